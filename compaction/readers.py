"""Registered readers: what is kept for those who have not read it yet.

```
 offset     0   1   2 ∅  3   4   5 ∅  6           horizons of both tombstones have passed
                         ▲ orders-cache            the tombstone at 5 stays until orders-cache has read it, or has expired;
                                                   that at 2 goes
```

Registration is optional. A reader that names itself pins tombstones that it has not read, beyond `delete.retention.ms`, and the files of
the table version that it read last, beyond VACUUM's retention (7 days at the most, as long as that version can be read at all); until it
has moved on, or has not been seen for its expiration, or is dropped. Kafka has no such thing: a consumer that sleeps past
`delete.retention.ms` may miss a delete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.config.keys import DAY_MS
from lastword.compaction.display import Displayed
from lastword.compaction.errors import UserError
from lastword.compaction.read_positions import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: How long a reader that is not seen any more pins what it has not read, unless it says otherwise.
EXPIRATION_MS: Final = 7 * DAY_MS
_LONGEST_NAME: Final = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader that named itself: where it was when it was seen last. `registration` is the number of its newest row in the ledger."""

    name: str
    position: Position
    seen_ms: int
    expiration_ms: int
    registration: int = 0

    def is_expired(self, now_ms: int) -> bool:
        """Tell whether it has not been seen for its expiration, and pins nothing any more."""
        return now_ms - self.seen_ms >= self.expiration_ms

    def is_due(self, now_ms: int) -> bool:
        """Tell whether the ledger must be told again that the reader is there: by its last row it could be taken for expired soon."""
        return not 0 <= now_ms - self.seen_ms < renewal_ms(self.expiration_ms)

    def lag(self, end: Iterable[int]) -> int:
        """Return how many offsets it is behind an offset vector, all partitions together; gaps count, as in Kafka's consumer lag."""
        return sum(max(0, to - at) for at, to in zip(self.position.offsets, end, strict=True))

    def to_details(self) -> dict[str, Any]:
        """Return it as JSON's types alone, for the ledger."""
        return {
            "offsets": list(self.position.offsets),
            "table_version": self.position.table_version,
            "since_version": self.position.since_version,
            "expiration_ms": self.expiration_ms,
        }

    @staticmethod
    def from_details(name: str, details: Mapping[str, Any], seen_ms: int, registration: int = 0) -> Reader | None:
        """Return the reader that `to_details` wrote; None for one that was dropped."""
        if details.get("offsets") is None:
            return None
        position = Position(
            offsets=tuple(details["offsets"]), table_version=details["table_version"], since_version=details["since_version"]
        )
        return Reader(name=name, position=position, seen_ms=seen_ms, expiration_ms=details["expiration_ms"], registration=registration)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReaderStanding(Displayed):
    """A registered reader as people see it: what it reads next, its lag in offsets, when it was seen, whether it has expired."""

    name: str
    offsets: tuple[int, ...]
    lag: int
    seen_ms: int
    expires_ms: int
    expired: bool

    @staticmethod
    def of(reader: Reader, end: Sequence[int], now_ms: int) -> ReaderStanding:
        """Describe a reader against the log ends of a moment."""
        return ReaderStanding(
            name=reader.name,
            offsets=reader.position.offsets,
            lag=reader.lag(end),
            seen_ms=reader.seen_ms,
            expires_ms=reader.seen_ms + reader.expiration_ms,
            expired=reader.is_expired(now_ms),
        )


def renewal_ms(expiration_ms: int) -> int:
    """Return how long the row of a reader in the ledger serves before the reader writes the next one."""
    return expiration_ms // 2


def check_reader(name: str, expiration_ms: int) -> str:
    """Return a reader's name; raise `UserError` for a name or an expiration that is not allowed."""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        message = f"reader {name!r}: 1 to {_LONGEST_NAME} printable characters are allowed"
        raise UserError(message)
    if expiration_ms < 1:
        message = f"reader {name}: an expiration of {expiration_ms} ms; allowed is 1 or more"
        raise UserError(message)
    return name


def unread_offsets(readers: Iterable[Reader], partitions: int, now_ms: int) -> list[int | None]:
    """Return for each partition the lowest offset that a reader has not read yet, None where no reader is registered."""
    positions = [
        reader.position.offsets for reader in readers if not reader.is_expired(now_ms) and len(reader.position.offsets) == partitions
    ]
    return [min((offsets[partition] for offsets in positions), default=None) for partition in range(partitions)]


def oldest_seen_ms(readers: Iterable[Reader], now_ms: int) -> int | None:
    """Return the oldest time at which a reader was last seen; None if no reader is registered."""
    return min((reader.seen_ms for reader in readers if not reader.is_expired(now_ms)), default=None)
