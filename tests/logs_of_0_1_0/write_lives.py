"""Writes `lives.tar.xz`: topics whose ledgers have rows of all kinds, as version 0.1.0 writes them. README.md says when."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from lastword import LogDir
from tests.golden import frozen_clock
from tests.pictures import T0
from tests.stability.lives import LIVES

ARCHIVE: Final = Path(__file__).parent / "lives.tar.xz"


def write(archive: Path) -> None:
    """Write the topics into an archive."""
    with tempfile.TemporaryDirectory() as folder, frozen_clock(T0):
        logs = LogDir(Path(folder) / "log_dir")
        for life in LIVES:
            life(logs)
        with tarfile.open(archive, "w:xz", preset=9) as written:
            written.add(Path(folder) / "log_dir", "log_dir")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
