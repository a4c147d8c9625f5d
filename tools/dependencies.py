"""The page docs/reference/dependencies.md: each package and jar that lastword installs, with its version and licence.

```
 requirements-service.lock ─► names, versions ─┐
 lastword/spark/jars.lock  ─► coordinates ─────┼─► dependencies_page()
 _LICENCES, _LICENCES_OF_JARS                  ─┘
```

A licence is written down here, as an SPDX expression, when a package comes into a lock. A test compares it with what the installed package
says of itself. Jars say it in their POM, which nothing downloads; theirs were read there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from lastword.spark.jars import locked

ROOT: Final = Path(__file__).resolve().parents[1]
_PIN: Final = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: ; (?P<marker>[^\\]+?))? \\$", re.MULTILINE)

LICENCES: Final = {
    "annotated-doc": "MIT",
    "annotated-types": "MIT",
    "anyio": "MIT",
    "arro3-core": "MIT OR Apache-2.0",
    "click": "BSD-3-Clause",
    "colorama": "BSD-3-Clause",
    "delta-spark": "Apache-2.0",
    "deltalake": "Apache-2.0",
    "deprecated": "MIT",
    "exceptiongroup": "MIT",
    "filelock": "MIT",
    "h11": "MIT",
    "idna": "BSD-3-Clause",
    "importlib-metadata": "Apache-2.0",
    "jinja2": "BSD-3-Clause",
    "markdown-it-py": "MIT",
    "markupsafe": "BSD-3-Clause",
    "mdurl": "MIT",
    "msgspec": "BSD-3-Clause",
    "numpy": "BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0",
    "obstore": "MIT",
    "pandas": "BSD-3-Clause",
    "platformdirs": "MIT",
    "polars": "MIT",
    "polars-runtime-32": "MIT",
    "prometheus-client": "Apache-2.0 AND BSD-2-Clause",
    "protobuf": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "pyarrow": "Apache-2.0",
    "pydantic": "MIT",
    "pydantic-core": "MIT",
    "pydantic-settings": "MIT",
    "pygments": "BSD-2-Clause",
    "pyroaring": "MIT",
    "pyspark": "Apache-2.0",
    "python-dateutil": "BSD-3-Clause OR Apache-2.0",
    "python-dotenv": "BSD-3-Clause",
    "pytz": "MIT",
    "rich": "MIT",
    "shellingham": "ISC",
    "six": "MIT",
    "starlette": "BSD-3-Clause",
    "structlog": "MIT OR Apache-2.0",
    "tenacity": "Apache-2.0",
    "tomli": "MIT",
    "tqdm": "MPL-2.0 AND MIT",
    "typer": "MIT",
    "typing-extensions": "PSF-2.0",
    "typing-inspection": "MIT",
    "tzdata": "Apache-2.0",
    "uvicorn": "BSD-3-Clause",
    "wrapt": "BSD-2-Clause",
    "zipp": "MIT",
}
#: The releases of Spark for which jars.lock lists jars.
_SPARKS: Final = ("4.0", "4.1", "4.2")
#: By the group of a Maven coordinate; of the jars that a user gets, not those of the tests.
_LICENCES_OF_JARS: Final = {
    "io.delta": "Apache-2.0",
    "org.apache.commons": "Apache-2.0",
    "org.apache.hadoop": "Apache-2.0",
    "org.apache.kafka": "Apache-2.0",
    "org.apache.spark": "Apache-2.0",
    "org.wildfly.openssl": "Apache-2.0",
    "software.amazon.awssdk": "Apache-2.0",
    "software.amazon.s3.analyticsaccelerator": "Apache-2.0",
}


def read_pins() -> dict[str, list[str]]:
    """Return the packages of requirements-service.lock by name, each with the versions that Pythons and platforms get."""
    versions: dict[str, list[str]] = defaultdict(list)
    for pin in _PIN.finditer((ROOT / "requirements-service.lock").read_text(encoding="utf-8")):
        versions[pin["name"]].append(pin["version"])
    return dict(versions)


def dependencies_page() -> str:
    """Return the page. Raises `KeyError` with the name of a package or a group of jars that has no licence in this module."""
    jars = sorted({jar.coordinate for group in ("spark", "s3") for spark in _SPARKS for jar in locked(group, spark)})
    return "\n".join(
        [
            "# Dependencies",
            "",
            "Made by `python -m tools.reference` from `requirements-service.lock` and `lastword/spark/jars.lock`, which also have the",
            "hashes. lastword itself is under Apache-2.0, and carries no code of others. Licences are SPDX expressions.",
            "",
            "## Python packages",
            "",
            "With Spark (`pip install 'lastword[spark]'`). Where several versions are named, Python or the platform decides.",
            "",
            "| package | version | licence |",
            "|---|---|---|",
            *(f"| {name} | {', '.join(versions)} | {LICENCES[name]} |" for name, versions in read_pins().items()),
            "",
            "## Jars",
            "",
            "What a Spark session of lastword loads beside the jars of pyspark; of each set only those of the installed Spark, and those",
            "of an object store only where they are asked for. pyspark and the bundle of the AWS SDK contain jars of others: their",
            "licences are in the folder `licenses` of pyspark and in `META-INF` of the bundle.",
            "",
            "| jar | licence |",
            "|---|---|",
            *(f"| {coordinate} | {_LICENCES_OF_JARS[coordinate.split(':')[0]]} |" for coordinate in jars),
            "",
        ]
    )
