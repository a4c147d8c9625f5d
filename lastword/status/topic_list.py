"""Chooses and sorts the topics of the overview, as a request asks by `?find=TEXT&sort=COLUMN`.

```
 ?find=shop         topics whose name has this text, in whatever case
 ?sort=records      most records first; each column of the table but the drawings, "topic" by name
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lastword.status.records import InvalidRequest
from lastword.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.status.standing import TopicStanding

#: The columns by which topics are sorted, the highest value first.
_VALUES: Final[Mapping[str, Callable[[TopicStanding], float]]] = {
    "records": lambda topic: topic.record_count,
    "size": lambda topic: topic.size_bytes,
    "dirty": lambda topic: topic.dirtiest.report.ratio if topic.dirtiest else 0,
    "compaction-lag": lambda topic: topic.compaction_lag_ms,
    "consumer-lag": lambda topic: topic.consumer_lag,
    "transactions": lambda topic: len(topic.transactions),
    "dead-letters": lambda topic: topic.dead_letters.count if topic.dead_letters else 0,
    "stale-keys": lambda topic: topic.stale_keys or 0,
    "late": lambda topic: topic.appends.late,
}
SORTS: Final = ("topic", *_VALUES)
_PARAMETERS: Final = ("find", "sort")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """The topics that the overview shows, the text that their names contain, and the column that sorts them."""

    topics: tuple[TopicStanding, ...]
    find: str = ""
    sort: str = "topic"


def choose_topics(topics: Sequence[TopicStanding], asked: Mapping[str, str]) -> TopicList:
    """Return the topics that a request asks for, sorted by its column. Raises `InvalidRequest` that names what is allowed."""
    for name, value in asked.items():
        if name not in _PARAMETERS:
            message = f"{printable(name, 80)} = {printable(value, 80)!r}: allowed are the parameters find and sort"
            raise InvalidRequest(message)
    find, sort = asked.get("find", "").strip(), asked.get("sort", "topic")
    if sort not in SORTS:
        message = f"sort = {printable(sort, 80)!r}: allowed is one of {', '.join(SORTS)}"
        raise InvalidRequest(message)
    shown = sorted((topic for topic in topics if find.casefold() in topic.name.casefold()), key=lambda topic: topic.name)
    if sort != "topic":
        shown.sort(key=_VALUES[sort], reverse=True)
    return TopicList(topics=tuple(shown), find=find, sort=sort)
