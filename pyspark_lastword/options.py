"""The options of `format("lastword")`: names, defaults and meaning are those of Spark's Kafka source where it has them.

| option | default | meaning |
|---|---|---|
| `path` | (needed) | the topic's folder `<log.dir>/<topic>`, a path or URI; with `topic` the log.dir |
| `topic` | - | the name of the topic in the log.dir `path` |
| `startingOffsets` | batch `earliest`, stream `latest` | one of these, or JSON `{"0": 23, "1": -2}`: -2 is earliest, -1 latest |
| `startingTimestamp` | - | ms; the first offset whose timestamp is not older, else the latest; wins over `startingOffsets` |
| `endingOffsets` | `latest` | batch alone: `latest` or JSON |
| `maxOffsetsPerTrigger` | - | about so many offsets a micro-batch, shared among the partitions |
| `isolation` | `read_committed` | or `read_uncommitted` |
| `includeHeaders` | `false` | the column `headers` |
| `failOnDataLoss` | `true` | records that were deleted or taken back before they were read are an error; else a warning |
| `onMissedTombstones` | `error` | or `warn`: tombstones that were removed before they were read |
| `readTable` | `false` | batch alone: instead of records the newest row of each key, with the columns and types of the topic |
| `schema` | those of the sources | with `readTable`: the columns, as SQL DDL |
| `mode` | `FAILFAST` | with `readTable`: a value that does not fit its column is an error; or `PERMISSIVE`: null |
| `storage.…` | - | storage options of delta-rs for object stores, such as `storage.aws_region` |

A query that starts anew begins at `startingOffsets`; one that goes on begins where its checkpoint says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.compaction.read_positions import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = (
    "path",
    "topic",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "isolation",
    "includeHeaders",
    "failOnDataLoss",
    "onMissedTombstones",
    "readTable",
    "schema",
    "mode",
)
#: Options that only a read of records takes, and options that only `readTable` takes.
_OF_RECORDS: Final = frozenset(
    {
        "startingoffsets",
        "startingtimestamp",
        "endingoffsets",
        "maxoffsetspertrigger",
        "includeheaders",
        "failondataloss",
        "onmissedtombstones",
    }
)
_OF_TABLE: Final = frozenset({"schema", "mode"})
_STORAGE: Final = "storage."
_CHOICES: Final = {
    "isolation": ("read_committed", "read_uncommitted"),
    "includeheaders": ("true", "false"),
    "failondataloss": ("true", "false"),
    "onmissedtombstones": ("error", "warn"),
    "readtable": ("true", "false"),
    "mode": ("failfast", "permissive"),
}
#: What a stream (True) or a batch (False) does not take: the option, the value (None: any), and what to do instead.
_ONE_KIND_ONLY: Final = (
    (True, "endingoffsets", None, "a stream has no end; use spark.read, or Trigger.AvailableNow"),
    (False, "maxoffsetspertrigger", None, "a batch has no triggers; use endingOffsets"),
    (True, "readtable", "true", "a stream gives records; to keep a table in step with a topic, use materialize()"),
    (False, "startingoffsets", LATEST, "a batch that starts at the latest offsets is empty; allowed is earliest or JSON"),
    (False, "endingoffsets", EARLIEST, "a batch that ends at the earliest offsets is empty; allowed is latest or JSON"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one load, checked; `starting_offsets` and `ending_offsets` are checked against the topic when it is read."""

    path: str
    starting_offsets: str = EARLIEST
    starting_timestamp_ms: int | None = None
    ending_offsets: str = LATEST
    max_offsets_per_trigger: int | None = None
    isolation: str = "read_committed"
    include_headers: bool = False
    fail_on_data_loss: bool = True
    fail_on_missed_tombstones: bool = True
    read_table: bool = False
    schema: str | None = None
    mode: str = "FAILFAST"
    storage_options: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def parse(options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
        """Return the options of a batch, of a stream, or of either (`streaming` None); names in any case.

        Raises `InvalidConfiguration` naming every unknown option with the nearest known one, and every value with what is allowed.
        """
        given = {name.lower(): str(value) for name, value in options.items()}
        storage = {name.removeprefix(_STORAGE): value for name, value in given.items() if name.startswith(_STORAGE)}
        wrong = [*_unknown(given), *_not_allowed(given, streaming=streaming)]
        if wrong:
            subject = 'format("lastword")'
            raise InvalidConfiguration(subject, wrong)
        moment, most = given.get("startingtimestamp"), given.get("maxoffsetspertrigger")
        return SourceOptions(
            path=f"{given['path'].rstrip('/')}/{given['topic']}" if given.get("topic") else given["path"],
            starting_offsets=given.get("startingoffsets", LATEST if streaming else EARLIEST),
            starting_timestamp_ms=None if moment is None else int(moment),
            ending_offsets=given.get("endingoffsets", LATEST),
            max_offsets_per_trigger=None if most is None else int(most),
            isolation=given.get("isolation", "read_committed").lower(),
            include_headers=given.get("includeheaders", "false").lower() == "true",
            fail_on_data_loss=given.get("failondataloss", "true").lower() == "true",
            fail_on_missed_tombstones=given.get("onmissedtombstones", "error").lower() == "error",
            read_table=given.get("readtable", "false").lower() == "true",
            schema=given.get("schema"),
            mode=given.get("mode", "FAILFAST").upper(),
            storage_options=storage,
        )


def _unknown(given: Mapping[str, str]) -> list[Violation]:
    """Return the options that nobody knows."""
    known = {name.lower(): name for name in _NAMES}
    wrong = []
    for name in given:
        if name not in known and not name.startswith(_STORAGE):
            near = get_close_matches(name, known, n=1)
            allowed = f"unknown option; did you mean {known[near[0]]}?" if near else f"unknown option; known are {', '.join(_NAMES)}"
            wrong.append(Violation(key=name, value=given[name], allowed=allowed))
    return wrong


def _not_allowed(given: Mapping[str, str], *, streaming: bool | None) -> list[Violation]:
    """Return the values that are not allowed, and what only a batch or only a stream knows."""
    wrong = []

    def refuse(name: str, allowed: str) -> None:
        shown = {one.lower(): one for one in _NAMES}[name]
        wrong.append(Violation(key=shown, value=given.get(name, "(not given)"), allowed=allowed))

    if not given.get("path"):
        refuse("path", "the folder of a topic, <log.dir>/<topic>: load(path); or a log.dir, with the option topic")
    for name, choices in _CHOICES.items():
        if name in given and given[name].lower() not in choices:
            refuse(name, f"allowed is {' or '.join(choices)}")
    for name, least in (("startingtimestamp", 0), ("maxoffsetspertrigger", 1)):
        if name in given and not (given[name].isdecimal() and int(given[name]) >= least):
            refuse(name, f"allowed is a whole number from {least} on")
    for kind, name, value, allowed in _ONE_KIND_ONLY:
        if streaming is kind and name in given and value in {None, given[name].lower()}:
            refuse(name, allowed)
    is_table = given.get("readtable", "false").lower() == "true"
    because = "a table is read whole, without this option of records" if is_table else "it needs readTable = true"
    for name in sorted(given.keys() & (_OF_RECORDS if is_table else _OF_TABLE)):
        refuse(name, because)
    return wrong
