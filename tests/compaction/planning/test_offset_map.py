"""The budget of the offset map, and the dirty range that fits it: docs/semantics.md#6 and docs/semantics.md#A.21."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.config.topic_config import ServiceConfig, parse_service_config
from lastword.compaction.log.segments import Span, segments_between
from lastword.compaction.planning.offset_map import BYTES_PER_ENTRY, DirtyRange, fit_dirty_range, map_entries, map_slots
from tests.compaction.logs import MIB, drawn

if TYPE_CHECKING:
    from lastword.compaction.planning.bounds import PartitionLog


def _service(**settings: object) -> ServiceConfig:
    return parse_service_config({f"log.cleaner.{name.replace('_', '.')}": value for name, value in settings.items()})[0]


def _fit(log: PartitionLog, first: int, end: int, entries: int) -> DirtyRange:
    return fit_dirty_range(segments_between(log.segments, first, end), first, end, entries)


def _drawn(found: DirtyRange) -> tuple[int, int, int, int]:
    return found.first_offset, found.end_offset, found.record_count, found.rounds_left


# --- the budget ---------------------------------------------------------------------------------------------------------------------------


def test_128_mib_are_5033164_keys_and_for_each_of_four_threads_a_quarter() -> None:
    """24 bytes a slot, 0.9 of them."""
    assert BYTES_PER_ENTRY == 24
    assert (map_slots(_service()), map_entries(_service())) == (5_592_405, 5_033_164)
    assert (map_slots(_service(threads=4)), map_entries(_service(threads=4))) == (1_398_101, 1_258_290)


def test_the_load_factor_and_the_buffer_are_settings() -> None:
    """`log.cleaner.io.buffer.load.factor`, `log.cleaner.dedupe.buffer.size`."""
    assert map_entries(_service(io_buffer_load_factor=1)) == 5_592_405
    assert map_entries(_service(dedupe_buffer_size="24MB", io_buffer_load_factor=0.5)) == 500_000


def test_a_budget_is_never_nothing() -> None:
    """Kafka with no entry would loop for ever."""
    config = ServiceConfig(log_cleaner_dedupe_buffer_size=24, log_cleaner_io_buffer_load_factor=0.01)
    assert (map_slots(config), map_entries(config)) == (1, 1)


# --- the range ----------------------------------------------------------------------------------------------------------------------------


def test_a_dirty_range_that_fits_is_mapped_whole() -> None:
    """Also when it fits exactly."""
    log = drawn("0:1 100:1 200:1 300:1* 310")
    found = _fit(log, 100, 300, 200)
    assert _drawn(found) == (100, 300, 200, 0)
    assert not found.cut
    after_a_gap = fit_dirty_range([replace(log.segments[1], record_count=60)], 100, 300, 60)
    assert _drawn(after_a_gap) == (100, 300, 60, 0), "the end is that of the range, whatever offsets are gone before it"


def test_20_gb_of_1_kb_records_with_7_5_million_entries_take_three_rounds() -> None:
    """20 million records; it is never an error."""
    size = 10**9
    picture = " ".join(f"{number * 1_000_000}:{size}" for number in range(20)) + " 20000000"
    log = drawn(picture)
    rounds, first = [], 0
    while first < 20_000_000:
        found = _fit(log, first, 20_000_000, 7_500_000)
        rounds.append(_drawn(found))
        first = found.end_offset
    assert rounds == [
        (0, 7_500_000, 7_500_000, 2),
        (7_500_000, 15_000_000, 7_500_000, 1),
        (15_000_000, 20_000_000, 5_000_000, 0),
    ]


def test_a_range_is_cut_at_the_base_of_the_segment_that_does_not_fit_any_more() -> None:
    """100 + 100 entries are used up at 200."""
    found = _fit(drawn("0:1 100:1 200:1 300:1 400"), 0, 400, 200)
    assert _drawn(found) == (0, 200, 200, 1)
    assert found.cut


def test_the_cut_is_at_the_base_of_that_segment_even_if_its_first_records_are_gone() -> None:
    """So the checkpoint never lies inside a segment."""
    first, second = drawn("0:1 100:1 200").segments
    found = fit_dirty_range([first, replace(second, first_offset=150, record_count=50)], 0, 200, 100)
    assert _drawn(found) == (0, 100, 100, 1)


def test_a_range_is_cut_inside_a_segment() -> None:
    """After 50 offsets of the second; what is left, 150, is once more as much."""
    assert _drawn(_fit(drawn("0:1 100:1 200:1 300"), 0, 300, 150)) == (0, 150, 150, 1)


def test_the_rounds_left_are_rounded_up() -> None:
    """299 records more at 100 a round are three rounds; 301 would be four."""
    assert _fit(drawn("0:1 399"), 0, 399, 100).rounds_left == 3
    assert _fit(drawn("0:1 400"), 0, 400, 100).rounds_left == 3
    assert _fit(drawn("0:1 401"), 0, 401, 100).rounds_left == 4


def test_a_round_makes_progress_by_one_record_at_least() -> None:
    """With a budget of a single entry."""
    assert _drawn(_fit(drawn("0:1 3"), 0, 3, 1)) == (0, 1, 1, 2)
    assert _drawn(_fit(drawn("0:1 3"), 2, 3, 1)) == (2, 3, 1, 0)


def test_records_below_the_range_do_not_count() -> None:
    """The segment began at 0; from 60 on it holds 40 offsets."""
    assert _drawn(_fit(drawn("0:1 100:1 200"), 60, 200, 140)) == (60, 200, 140, 0)
    assert _drawn(_fit(drawn("0:1 100:1 200"), 60, 200, 139)) == (60, 199, 139, 1)
    assert _drawn(_fit(drawn("0:1 100:1 200"), 60, 200, 10)) == (60, 70, 10, 13)


def test_a_segment_with_few_records_is_counted_by_its_records() -> None:
    """Three records in 100 offsets; from 60 on they might all three be there."""
    log = drawn("0:1#3 100:1 200")
    assert _drawn(_fit(log, 0, 200, 103)) == (0, 200, 103, 0)
    assert _drawn(_fit(log, 60, 200, 103)) == (60, 200, 103, 0)
    assert _drawn(_fit(log, 98, 200, 102)) == (98, 200, 102, 0)


def test_a_segment_with_gaps_is_cut_by_its_offsets() -> None:
    """As no offset stands twice, two offsets hold two records at most; the count starts at the first record that is there."""
    log = drawn("0:1#3..99 200:1#5..299 300")
    assert _drawn(_fit(log, 0, 300, 2)) == (0, 2, 2, 3)
    assert _drawn(_fit(log, 100, 300, 2)) == (100, 202, 2, 2)


def test_a_segment_of_several_slices_is_counted_slice_by_slice() -> None:
    """The mirror of a compacted topic: ten records in each hundred offsets, appended in three micro-batches.

    ```
     slice       0             1000          2000
     records     10, 0..99     10, 1000..    10, 2000..     25 entries take two whole and five offsets of the third
    ```
    """
    [segment] = drawn("0:1#30..2099 2100").segments
    spans = tuple(Span(first, first + 99, 10) for first in (0, 1_000, 2_000))
    sparse = [replace(segment, spans=spans)]
    found = {entries: _drawn(fit_dirty_range(sparse, 0, 2_100, entries)) for entries in (30, 25, 20, 10, 4)}
    assert found == {30: (0, 2_100, 30, 0), 25: (0, 2_005, 25, 1), 20: (0, 2_000, 20, 1), 10: (0, 1_000, 10, 2), 4: (0, 4, 4, 7)}
    assert _drawn(fit_dirty_range(sparse, 1_050, 2_100, 10)) == (1_050, 2_000, 10, 1)
    later = replace(segment, base_offset=90, spans=(Span(95, 99, 5), Span(100, 109, 10)))
    assert fit_dirty_range([drawn("0:1 90").segments[0], later], 0, 110, 90).end_offset == 90, "the base, where no segment is cut"


def test_a_segment_that_is_clean_to_its_end_needs_no_entry() -> None:
    """Its last record stands at 149, the checkpoint at 150 and at 151."""
    log = drawn("0:1..149 200:1 300")
    assert _drawn(_fit(log, 150, 300, 100)) == (150, 300, 100, 0)
    assert _drawn(_fit(log, 151, 300, 100)) == (151, 300, 100, 0)
    assert _drawn(_fit(log, 149, 300, 100)) == (149, 299, 100, 1)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5), st.integers(0, 30), st.integers(1, 20))
def test_whatever_the_log_a_range_never_holds_more_records_than_entries_and_always_goes_on(
    shape: list[tuple[int, int]], first: int, entries: int
) -> None:
    """Segments of some offsets and then a gap; rounds follow until the end is reached, as many as the first of them said at most."""
    offsets: list[list[int]] = []
    at = 0
    for count, gap in shape:
        offsets.append(list(range(at, at + count)))
        at += count + gap
    picture = " ".join(f"{one[0]}:1#{len(one)}..{one[-1]}" for one in offsets) + f" {at}"
    log = drawn(picture)
    present = [offset for one in offsets for offset in one]
    first = min(first, at - 1)
    told = _fit(log, first, at, entries).rounds_left
    rounds = 0
    while first < at:
        found = _fit(log, first, at, entries)
        inside = [offset for offset in present if first <= offset < found.end_offset]
        assert found.first_offset == first < found.end_offset <= at
        assert len(inside) <= found.record_count <= entries
        assert inside or found.end_offset == at
        assert found.cut == (found.end_offset < at)
        first = found.end_offset
        rounds += 1
    assert rounds == told + 1


def test_a_mib_is_2_to_the_20() -> None:
    """`128MiB` is what the default says."""
    assert _service(dedupe_buffer_size="128MiB") == _service() == ServiceConfig(log_cleaner_dedupe_buffer_size=128 * MIB)
