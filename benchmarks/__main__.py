"""Run the benchmarks: all of them, or those that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from benchmarks import (
    append,
    arrow,
    cleaning,
    cluster,
    events,
    files,
    kept_tables,
    measure,
    memory,
    metadata,
    readers,
    results,
    rounds,
    scale,
    status,
    tables,
    transactions,
    without_spark,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: Each benchmark by its name; `measure.SMALL` makes it a test.
ALL: Final[dict[str, Callable[..., None]]] = {
    "append": append.run,
    "without_spark": without_spark.run,
    "events": events.run,
    "files": files.run,
    "transactions": transactions.run,
    "rewrite": cleaning.against_rewrite,
    "merge": cleaning.against_merge,
    "incremental": cleaning.incremental,
    "kafka": rounds.against_kafka,
    "small": rounds.small,
    "planning": cleaning.planning,
    "metadata": metadata.run,
    "throttle": cleaning.throttled,
    "memory": memory.run,
    "scale": scale.run,
    "cluster": cluster.run,
    "arrow": arrow.run,
    "readers": readers.run,
    "tables": tables.run,
    "kept_tables": kept_tables.run,
    "status": status.run,
}


def main(names: Annotated[list[str] | None, typer.Argument(help=f"Which: {', '.join(ALL)}; default: all.")] = None) -> None:
    """Print each benchmark's figures and its bound, and write them to benchmarks/RESULTS.md."""
    for name in names or list(ALL):
        if name not in ALL:
            message = f"no benchmark {name!r}; there are {', '.join(ALL)}"
            raise typer.BadParameter(message)
        cleaning.stop_session()
        ALL[name]()
        results.write(name, measure.taken())


if __name__ == "__main__":
    typer.run(main)
