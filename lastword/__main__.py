"""`python -m lastword`: the command line."""

from __future__ import annotations

from lastword.cli.app import main

main()
