"""What an append query knows of the source that it reads, asked before every micro-batch: its identity, partitions and log starts.

```
 source   ░░░░░░░░░ deleted ░░░░░░░░│ log start 24 ──────────────── log end
 query    ───────── read ───│ position 17                            17 to 23 are lost: on.data.loss = fail | go-on
 mirror   ░░ deleted too ░░░│ log start 17, 24 after the next micro-batch
```

A source that cannot be asked now says nothing: the query goes on, and its own reads find out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from lastword.compaction.errors import QueryRefused
from lastword.storage.cleaning.log_starts import raise_log_starts
from lastword.streaming import metrics
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog

_LOG: Final = logger("appender")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamState:
    """What a source says of itself: its id (another one when it was deleted and made again), partitions, first and next offsets."""

    identity: str = ""
    partitions: int | None = None
    log_starts: Mapping[int, int] = field(default_factory=dict)
    log_ends: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """What a query reads. `source` names it for people; `ask` returns its state, None when it does not answer now.

    `reads` is by what the ledger knows it, so that no other query reads it into the same topic, and `identity` the id that a source with
    offsets had when it was opened. A source that `begins_anew` was deleted and made again since the query read it: the position of the
    query means nothing any more.
    """

    source: str
    reads: str = ""
    identity: str = ""
    begins_anew: bool = False
    ask: Callable[[], UpstreamState | None] = UpstreamState
    on_data_loss: Literal["fail", "go-on"] = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror(Upstream):
    """The source whose partitions and offsets a topic keeps. One that was made again or widened stops the query."""


def check_mirror(log: TopicLog, mirror: Mirror, state: UpstreamState, *, query: str) -> None:
    """Raise `QueryRefused` if the topic is not the mirror of this source, or the source is another one by now."""
    decisions = log.decisions()
    known = decisions.mirror or {}
    if known.get("query") != query or known.get("source") != mirror.source:
        message = (
            f"topic {log.name} mirrors {known.get('source')} (query {known.get('query')}); it cannot mirror "
            f"{mirror.source} (query {query}) as well"
        )
        raise QueryRefused(message)
    if known.get("identity") != state.identity:
        message = (
            f"{mirror.source} was deleted and created again (its id was {known.get('identity')}, now {state.identity}): its offsets "
            f"begin anew, and topic {log.name} keeps offsets for ever. Mirror it into a new topic"
        )
        raise QueryRefused(message)
    if state.partitions is not None and state.partitions != decisions.partitions:
        message = (
            f"{mirror.source} has {state.partitions} partitions, topic {log.name} has {decisions.partitions}: a mirror needs the "
            f"same number. Mirror it into a new topic with partitions={state.partitions}"
        )
        raise QueryRefused(message)


def check_read_once(decisions: Decisions, reads: str, *, topic: str, query: str) -> None:
    """Raise `QueryRefused` if another query of the topic reads the same source: each of its rows would be appended twice."""
    others = sorted(name for name, source in decisions.query_sources.items() if source == reads and name != query)
    if reads and others:
        raise read_twice(reads, topic=topic, query=query, other=others[0])


def read_twice(what: str, *, topic: str, query: str, other: str) -> QueryRefused:
    """Return the error of a query that would read what another query of the topic has read, with the ways out."""
    return QueryRefused(
        f"query {query} of topic {topic}: query {other} reads {what} into this topic already, and each row would be appended twice. To go "
        f"on where that query stands, use its name: name = {other}. To append every row again, forget it first: lastword queries forget "
        f"{topic} {other}"
    )


def check_same_source(upstream: Upstream, state: UpstreamState, positions: Mapping[int, int], *, topic: str, query: str) -> bool:
    """Return whether a source was deleted and made again since a query read it, which `on.data.loss` = go-on lets pass.

    Args:
        upstream: The source as the query knows it: with the identity that it had, "" if that is not known.
        state: What the source says now.
        positions: The next offset that the query reads, by partition.
        topic: The topic that the query fills, for the message.
        query: The name of the query.

    Raises:
        QueryRefused: It was made again, or its offsets went back, and `on.data.loss` is fail; the message names both.
    """
    is_other = bool(upstream.identity and state.identity) and upstream.identity != state.identity
    gone = {
        partition: (at, state.log_ends.get(partition, 0))
        for partition, at in sorted(positions.items())
        if at > state.log_ends.get(partition, 0)
    }
    if not is_other and (not gone or not state.log_ends):
        return False
    if upstream.on_data_loss == "go-on":
        return is_other or not upstream.identity
    shown = gone or {partition: (at, state.log_ends.get(partition, 0)) for partition, at in sorted(positions.items())}
    places = ", ".join(
        f"partition {partition}: the query reads offset {at} next, and the log end offset is {end}"
        for partition, (at, end) in shown.items()
    )
    message = (
        f"query {query} of topic {topic}: {upstream.source} was deleted and created again, or lost records that the query has read"
        f"{f' ({places})' if places else ''}. To read what it has now from its start set on.data.loss = go-on; what was deleted unread is "
        "not in the log"
    )
    raise QueryRefused(message)


def follow_log_starts(log: TopicLog, state: UpstreamState, *, now_ms: int) -> None:
    """Raise the log starts of a mirror to those of its source, as far as it has records. Rule: docs/semantics.md#A.46."""
    today, ends = log.decisions(), log.at().log_end_offsets
    wanted = {partition: min(start, ends[partition]) for partition, start in state.log_starts.items() if partition < len(ends)}
    higher = {partition: start for partition, start in wanted.items() if start > today.log_start_offset(partition)}
    if higher and raise_log_starts(log, higher, why="source", now_ms=now_ms):
        _LOG.info("log start follows the source", topic=log.name, log_starts=higher)


def check_loss(log: TopicLog, upstream: Upstream, state: UpstreamState, positions: Mapping[int, int]) -> None:
    """Report the offsets that the source deleted before they were read; raise `QueryRefused` unless the query shall go on.

    Args:
        log: The topic that the query fills.
        upstream: The source, and the policy.
        state: What the source says now.
        positions: The next offset that the query reads, by partition.

    Raises:
        QueryRefused: Offsets are lost, and `on.data.loss` is `fail`. Rule: docs/semantics.md#A.47.
    """
    lost = {
        partition: (positions[partition], start)
        for partition, start in sorted(state.log_starts.items())
        if start > positions.get(partition, start)
    }
    if not lost:
        return
    ranges = ", ".join(f"partition {partition}: offsets {begin} to {end - 1}" for partition, (begin, end) in lost.items())
    if upstream.on_data_loss == "fail":
        message = (
            f"topic {log.name}: {upstream.source} deleted records before they were read ({ranges}). To go on behind them set "
            "on.data.loss = go-on; the records between stay out of the log"
        )
        raise QueryRefused(message)
    _LOG.warning("offsets were deleted at the source before they were read", topic=log.name, source=upstream.source, lost=ranges)
    metrics.LOST_OFFSETS.labels(log.name).inc(sum(end - begin for begin, end in lost.values()))
