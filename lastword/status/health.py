"""The health of the service: /healthz (should the process be kept running?) and /readyz (does it do all of its work?)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lastword.status.troubles import ago

if TYPE_CHECKING:
    from lastword.status.standing import QueryStanding, Standing

#: A heartbeat or a standing that is older than this is stale.
STALE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The reasons why a check failed; none if it passed."""

    reasons: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the check passed."""
        return not self.reasons


def alive(standing: Standing, *, heartbeat_ms: int, now_ms: int) -> Health:
    """Check the main loop and the log.dir. If the check fails, a restart may help."""
    reasons = []
    if now_ms - heartbeat_ms > STALE_MS:
        reasons.append(f"no heartbeat of the service for {ago(heartbeat_ms, now_ms)}")
    if standing.offline is not None:
        reasons.append(f"the log.dir cannot be read: {standing.offline}")
    return Health(reasons=tuple(reasons))


def ready(standing: Standing, *, heartbeat_ms: int, now_ms: int) -> Health:
    """Check that, in addition, all topics were read, all append queries, tables and the cleaner run, and no source needs a new epoch."""
    reasons = list(alive(standing, heartbeat_ms=heartbeat_ms, now_ms=now_ms).reasons)
    if not standing.loaded:
        reasons.append(f"topics are loading: {', '.join(standing.loading[:10])}" if standing.loading else "no topic read yet")
    elif now_ms - standing.taken_ms > STALE_MS:
        reasons.append(f"the status data is {ago(standing.taken_ms, now_ms)} old")
    reasons += [f"topic {topic.name} cannot be read: {topic.error}" for topic in standing.topics if topic.error is not None]
    reasons += [_describe_fault(query) for query in standing.queries if not query.works]
    reasons += [
        f"source {source.name} of topic {topic.name} may need a new epoch: its events are left out (lastword sources list {topic.name})"
        for topic in standing.topics
        for source in topic.sources
        if source.lower_positions
    ]
    reasons += [f"table {table.path} of topic {table.topic} failed: {table.message}" for table in standing.tables if table.message]
    if standing.cleaner_dead:
        reasons.append("the cleaner query failed and is about to restart")
    return Health(reasons=tuple(reasons))


def _describe_fault(query: QueryStanding) -> str:
    place = f" of topic {query.topic}" if query.topic else ""
    if query.active:
        return f"append query {query.name}{place} waits for its source: {query.issue}"
    return f"append query {query.name}{place} is not running: {query.message}"
