"""Whether the service lives, and whether it does all of its work: /healthz and /readyz."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lastword.status.troubles import ago

if TYPE_CHECKING:
    from lastword.status.standing import Standing

#: A loop, or a standing, that is older than this stands still.
STALE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`ok`, or the reasons why not."""

    reasons: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Tell whether there is nothing to say against it."""
        return not self.reasons


def alive(standing: Standing, *, heartbeat_ms: int, now_ms: int) -> Health:
    """Say whether the process is worth keeping: its loop turns and the log.dir is there. A restart may help when it is not."""
    reasons = []
    if now_ms - heartbeat_ms > STALE_MS:
        reasons.append(f"the service's loop has not turned for {ago(heartbeat_ms, now_ms)}")
    if standing.offline is not None:
        reasons.append(f"the log.dir cannot be read: {standing.offline}")
    return Health(reasons=tuple(reasons))


def ready(standing: Standing, *, heartbeat_ms: int, now_ms: int) -> Health:
    """Say whether it does all of its work: every topic was looked at, every query and the cleaner run."""
    reasons = list(alive(standing, heartbeat_ms=heartbeat_ms, now_ms=now_ms).reasons)
    if not standing.loaded:
        reasons.append(f"topics are still loading: {', '.join(standing.loading[:10]) or 'none was looked at yet'}")
    elif now_ms - standing.taken_ms > STALE_MS:
        reasons.append(f"the topics were last looked at {ago(standing.taken_ms, now_ms)} ago")
    reasons += [f"topic {topic.name} cannot be looked at: {topic.error}" for topic in standing.topics if topic.error is not None]
    reasons += [f"append query {query.name} of topic {query.topic} does not run" for query in standing.queries if not query.active]
    if standing.cleaner_dead:
        reasons.append("the cleaner query died and waits for its restart")
    return Health(reasons=tuple(reasons))
