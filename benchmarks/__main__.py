"""Run the benchmarks: all of them, or those that are named."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks import append, arrow, cleaning, readers, status, transactions

_ALL = {
    "append": append.run,
    "transactions": transactions.run,
    "cleaning": cleaning.run,
    "arrow": arrow.run,
    "readers": readers.run,
    "status": status.run,
}


def main(names: Annotated[list[str] | None, typer.Argument(help=f"Which: {', '.join(_ALL)}; default: all.")] = None) -> None:
    """Print each benchmark's figures and its bound."""
    for name in names or list(_ALL):
        if name not in _ALL:
            message = f"no benchmark {name!r}; there are {', '.join(_ALL)}"
            raise typer.BadParameter(message)
        _ALL[name]()


if __name__ == "__main__":
    typer.run(main)
