"""Who may touch a partition: the state machine of cleaning, retention, pauses and quarantine (SEMANTICS §13).

```
            begin                      done
   none ───────────► IN_PROGRESS ───────────────► none            the checkpoint is written
     │                    │ abort_and_pause
     │ abort_and_pause    ▼            done
     │                 ABORTED ─────────────────► PAUSED(1)       no checkpoint
     ▼
  PAUSED(1) ◄──► PAUSED(2) …          resume takes one pause away
```

Uncleanable partitions stand beside it: neither cleaned nor shortened until somebody forces them. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from lastword.compaction.errors import InvalidCleaningState
from lastword.compaction.planning.planner import Obstacle

#: A topic's folder and a partition: a new topic of the same name in the same place inherits nothing (`forget`).
Place: TypeAlias = "tuple[str, int]"


@dataclass(slots=True)
class CleaningStates:
    """The states of the partitions that are not idle."""

    in_progress: set[Place] = field(default_factory=set)
    aborted: set[Place] = field(default_factory=set)
    pauses: dict[Place, int] = field(default_factory=dict)
    uncleanable: dict[Place, str] = field(default_factory=dict)

    def working_on(self, root: str) -> set[int]:
        """Return the partitions of a topic's folder that somebody works on."""
        return {partition for place_root, partition in (*self.in_progress, *self.aborted) if place_root == root}

    def obstacle(self, place: Place) -> Obstacle | None:
        """Return what keeps a partition from being cleaned or shortened; None when nothing does."""
        if place in self.in_progress or place in self.aborted:
            return Obstacle.IN_PROGRESS
        if place in self.pauses:
            return Obstacle.PAUSED
        return Obstacle.UNCLEANABLE if place in self.uncleanable else None

    def begin(self, place: Place) -> None:
        """Begin work on an idle partition; quarantine is the caller's to respect."""
        if self.obstacle(place) in {Obstacle.IN_PROGRESS, Obstacle.PAUSED}:
            raise InvalidCleaningState(place, "begin", self._name(place))
        self.in_progress.add(place)

    def done(self, place: Place) -> bool:
        """End work; return whether its checkpoint may be written: not when it was aborted, which leaves a pause."""
        if place in self.in_progress:
            self.in_progress.remove(place)
            return True
        if place in self.aborted:
            self.aborted.remove(place)
            self.pauses[place] = 1
            return False
        raise InvalidCleaningState(place, "done", self._name(place))

    def abort_and_pause(self, place: Place) -> bool:
        """Pause a partition, asking work in progress to stop; return whether there is some to wait for."""
        if place in self.aborted:
            raise InvalidCleaningState(place, "abort_and_pause", self._name(place))
        if place in self.in_progress:
            self.in_progress.remove(place)
            self.aborted.add(place)
            return True
        self.pauses[place] = self.pauses.get(place, 0) + 1
        return False

    def resume(self, place: Place) -> None:
        """Take one pause away."""
        if place not in self.pauses:
            raise InvalidCleaningState(place, "resume", self._name(place))
        self.pauses[place] -= 1
        if self.pauses[place] == 0:
            del self.pauses[place]

    def quarantine(self, place: Place, reason: str) -> None:
        """Mark a partition uncleanable."""
        self.uncleanable[place] = reason

    def release(self, place: Place) -> None:
        """Lift the quarantine after a cleaning that succeeded; nothing happens when there is none."""
        self.uncleanable.pop(place, None)

    def forget(self, topic: str) -> None:
        """Drop everything about a topic that is gone; work in hand ends by itself (`done`) and leaves nothing behind."""
        stopped = {place for place in self.aborted if place[0] == topic}
        self.aborted -= stopped
        self.in_progress |= stopped
        for known in (self.pauses, self.uncleanable):
            for place in [place for place in known if place[0] == topic]:
                del known[place]

    def _name(self, place: Place) -> str:
        if place in self.in_progress:
            return "in progress"
        if place in self.aborted:
            return "aborted"
        return f"paused {self.pauses[place]}" if place in self.pauses else "none"
