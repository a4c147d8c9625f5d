"""Where the tasks of a cleaning or a table run: here, or on the executors of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.planning.rate_limiter import spend_freely
from lastword.storage.cleaning.limits import CLEANING_LIMITS
from lastword.storage.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class _Sized:
    """A task that looks at so many bytes."""

    size_bytes: int

    def run(self, spend: object) -> str:  # noqa: ARG002  a task's signature
        return "here"


@dataclass
class _Executors:
    """A cluster that counts what it is given."""

    has_executors: bool = True
    given: list[int] = field(default_factory=list)

    def run(self, tasks: Sequence[Any], parallelism: int | None) -> list[Any]:  # noqa: ARG002  a cluster's signature
        self.given.append(len(tasks))
        return ["there"] * len(tasks)


@pytest.mark.parametrize(
    ("sizes", "spread_bytes", "has_executors", "is_limited", "place"),
    [
        ((60, 40), 100, True, False, "there"),
        ((60, 40), 101, True, False, "here"),
        ((60, 40), 100, False, False, "here"),
        ((60, 40), 100, True, True, "here"),
        ((100,), 100, True, False, "here"),
        ((2**27, 2**27), CLEANING_LIMITS.spread_bytes, True, False, "there"),
        ((2**27, 2**27 - 1), CLEANING_LIMITS.spread_bytes, True, False, "here"),
    ],
    ids=["as many bytes", "one byte fewer", "no executors", "limited", "one task", "256 MiB", "a byte below 256 MiB"],
)
def test_tasks_of_many_bytes_go_to_the_executors(
    sizes: tuple[int, ...], spread_bytes: int, place: str, *, has_executors: bool, is_limited: bool
) -> None:
    """One task stays here, and so does work with a limit of bytes a second."""
    cluster: Any = _Executors(has_executors=has_executors)
    tasks: Any = [_Sized(size) for size in sizes]
    done = run_tasks(tasks, spend_freely, what="clean", is_limited=is_limited, cluster=cluster, parallelism=2, spread_bytes=spread_bytes)
    assert done == [place] * len(sizes)
    assert cluster.given == ([len(sizes)] if place == "there" else [])


def test_without_a_cluster_tasks_run_here() -> None:
    """However many bytes they look at."""
    tasks: Any = [_Sized(2**40), _Sized(2**40)]
    assert run_tasks(tasks, spend_freely, what="clean", is_limited=False, cluster=None, parallelism=2, spread_bytes=0) == ["here"] * 2
