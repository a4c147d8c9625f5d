"""The page of dependencies: each licence is what the installed package says of itself."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

import pytest

from tools.dependencies import LICENCES, read_pins

#: What packages write in place of an SPDX expression.
_SPDX: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "Dual License": "BSD-3-Clause OR Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}


def _licence(name: str) -> str:
    """Return the licence of an installed package: its expression, else its short text, else its classifiers."""
    metadata = importlib.metadata.distribution(name).metadata
    texts = [metadata[field] for field in ("License-Expression", "License") if field in metadata]
    said = texts[0].partition("\n")[0].strip() if texts else ""
    if not said or said.startswith("Copyright"):
        said = " OR ".join(line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or () if line.startswith("License ::"))
    return _SPDX.get(said, said)


def test_each_package_of_the_lock_has_a_licence_and_no_other() -> None:
    """A package that comes into the lock needs a line, one that leaves it takes its line along."""
    assert sorted(LICENCES) == sorted(read_pins())


@pytest.mark.parametrize("name", sorted(LICENCES))
def test_a_licence_is_what_the_package_says(name: str) -> None:
    """By the version that is installed; a package of another Python or platform is not looked at."""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed on this Python and platform")

    assert installed in read_pins()[name]
    assert re.sub(r"\s+", " ", _licence(name)) == LICENCES[name]
