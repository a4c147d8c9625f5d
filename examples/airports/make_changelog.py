"""Make the airports changelog: what changed from one release of the PyPI package `airportsdata` to the next, keyed by ICAO code.

```
 release       20201205        20211228.2       20220921             20260905
 load("ICAO")  28,863 records  28,875 records   28,883 records  ...  28,298 records ──► newest.json.gz
                    │               │                │                    │
 changes       all inserted ──► difference ────► difference ──► ... ─► difference
 files         00-20201205      01-20211228.2    02-20220921    ...    09-20260905
```

The releases are pinned by version and hash, the order of the lines is that of the ICAO codes, and a gzip file carries neither name nor
time. So every run writes the same lines, and with the same zlib the same bytes.

    python examples/airports/make_changelog.py                  # download ten wheels (10 MB) through pip, write beside this script
    python examples/airports/make_changelog.py --wheels FOLDER  # wheels that are there already
    python examples/airports/make_changelog.py --out FOLDER     # write elsewhere, to compare
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Airport = dict[str, Any]

RELEASES = {
    "20201205": "c94a72c49435d7381174e4e9e17ac1a6712d9fada6f5db54f3ed9582c019f927",
    "20211228.2": "65a713af5517b2df277e28e5901b96ff4637f404410ddaabc9719bca54efdee2",
    "20220921": "bb06ae71381c66997f2c310f700f739d92b6db721b3c61f347ef9cd5a2d5b06a",
    "20230303": "58a515438ed14b5c68a5b43d0c135fa14ac87ae5cdb1224beb236095ddda1a04",
    "20230906": "90ed75f700c0f5043180509ef7728b27701cf1728d0068a7c9abd5d986b19f9d",
    "20240401": "cf6e4537e254cb9a84fc97db03aad923c6fbb854a6c3f7a73a1d884d42b85342",
    "20241001": "67d71cf2c5378cc17ff66b62b1e11aa2444043949c894543ac8fd8dafce192fd",
    "20250909": "ce7dc6e1485afe3915e708212c7024ad158470c1c934e6a6cb217cf28b798ac7",
    "20260315": "22e03801468663fbee9a73e8864f25e3707acc1e43d0fc47586cc8c66365700a",
    "20260905": "d7eaa9a57d373b0adaaae0d52da2af0bb0edf73f7baa170f7c415d3342bf4868",
}
"""The releases in the order of their dates, each with the SHA-256 of its wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one release changed, as counts of records."""

    release: str
    inserts: int
    updates: int
    deletes: int
    records: int


def main() -> None:
    """Read the arguments, write the files and print one table row per release, as it stands in README.md."""
    parser = argparse.ArgumentParser(description="Make the changelog of the airportsdata package.")
    parser.add_argument("--wheels", type=Path, help="folder with the wheels; without it they are downloaded through pip")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to (default: beside this script)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheels = arguments.wheels or Path(scratch, "wheels")
        if arguments.wheels is None:
            download(wheels)
        for number, step in enumerate(write_changelog(wheels, Path(scratch), arguments.out)):
            print(f"| {number:02} | {step.release} | {step.inserts:,} | {step.updates:,} | {step.deletes:,} | {step.records:,} |")


def download(folder: Path) -> None:
    """Download the wheel of every release into the folder; pip refuses one whose hash is another."""
    folder.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirements.txt"
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--python-version",
        "3.14",
    ]
    for release, sha256 in RELEASES.items():
        requirement.write_text(f"airportsdata=={release} --hash=sha256:{sha256}\n", encoding="utf-8")
        subprocess.run([*pip, "download", *options, "--dest", str(folder), "--requirement", str(requirement)], check=True)  # noqa: S603 - arguments are constants


def write_changelog(wheels: Path, scratch: Path, out: Path) -> Iterator[Step]:
    """Write the changes of each release, then the newest release whole; yield the counts of each step."""
    before: dict[str, Airport] = {}
    for number, release in enumerate(RELEASES):
        after = load(wheels, release, scratch)
        lines = list(changes(before, after))
        write_lines(out / "changes" / f"{number:02}-{release}.json.gz", lines)
        deletes = len(before.keys() - after.keys())
        inserts = len(after.keys() - before.keys())
        yield Step(release=release, inserts=inserts, updates=len(lines) - inserts - deletes, deletes=deletes, records=len(after))
        before = after
    write_lines(out / "newest.json.gz", (before[icao] for icao in sorted(before)))


def load(wheels: Path, release: str, scratch: Path) -> dict[str, Airport]:
    """Return the airports of a release by ICAO code, exactly as `airportsdata.load("ICAO")` of that release returns them."""
    wheel = wheels / f"airportsdata-{release}-py3-none-any.whl"
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != RELEASES[release]:
        message = f"{wheel.name} is not the wheel that was released: its SHA-256 differs from the pinned one; download it anew"
        raise SystemExit(message)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch / release)
    source = scratch / release / "airportsdata" / "__init__.py"
    spec = importlib.util.spec_from_file_location(f"airportsdata_{release.replace('.', '_')}", source)
    assert spec is not None, source
    assert spec.loader is not None, source
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    airports: dict[str, Airport] = module.load("ICAO")
    return airports


def changes(before: Mapping[str, Airport], after: Mapping[str, Airport]) -> Iterator[Airport]:
    """Yield what turns `before` into `after`, sorted by ICAO code: `{"op": "u", ...record}` or `{"op": "d", "icao": code}`."""
    for icao in sorted(before.keys() | after.keys()):
        if icao not in after:
            yield {"op": "d", "icao": icao}
        elif before.get(icao) != after[icao]:
            yield {"op": "u", **after[icao]}


def write_lines(path: Path, rows: Iterable[Airport]) -> None:
    """Write the rows as gzip JSON lines without a file name or a time in the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main()
