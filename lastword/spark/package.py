"""lastword's own code as one zip, for Python on Spark's executors.

Tasks of appends, of cleanings and of `format("lastword")` import `lastword` there. `spark_session` adds the zip to each session that it
starts on a cluster, so that executors run the code of the driver, whichever version is installed beside them. For a session of your own:

    spark-submit --py-files "$(python -m lastword.spark.package)" app.py

The zip holds no dependencies: `EXECUTOR_PACKAGES` must be installed where the executors are.

    pip install $(python -m lastword.spark.package --needs)
"""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What tasks import beside pyspark, which Spark brings, and the standard library.
EXECUTOR_PACKAGES: Final = ("deltalake", "msgspec", "numpy", "polars", "pyarrow", "pyroaring", "tenacity")
_PACKAGES: Final = ("lastword", "pyspark_lastword")
#: One for all files, so that the same code makes the same zip.
_TIME: Final = (1980, 1, 1, 0, 0, 0)
#: Masters whose tasks run in the driver's own process tree, on its own Python path.
_LOCAL: Final = re.compile(r"local(\[.*\])?")


def is_cluster(master: str) -> bool:
    """Tell whether a master has executors besides the driver."""
    return _LOCAL.fullmatch(master) is None


def package(folder: Path) -> Path:
    """Write the zip into a folder, which is made if need be, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lastword.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in sorted(_modules()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _modules() -> Iterator[tuple[str, Path]]:
    for package_name in _PACKAGES:
        spec = find_spec(package_name)
        for location in (spec.submodule_search_locations or []) if spec else []:
            yield from _below(Path(location), package_name)


def _below(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Return the modules below a folder by their names in the zip; in a checkout some folders are links to others."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _below(path, f"{name}/{path.name}")
        elif path.suffix == ".py":
            yield f"{name}/{path.name}", path


def main(
    folder: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("dist"),
    needs: Annotated[bool, typer.Option("--needs", help="Print the packages that executors need, in the versions that are here.")] = False,  # noqa: FBT002  typer
) -> None:
    """Write lastword.zip, and print its path, for --py-files and spark.submit.pyFiles."""
    if needs:
        typer.echo(" ".join(f"{name}=={version(name)}" for name in EXECUTOR_PACKAGES))
    else:
        typer.echo(str(package(folder).resolve()))


if __name__ == "__main__":
    typer.run(main)
