"""Configuration: Kafka's keys, defaults and validators, human units, broker synonyms and messages (docs/semantics.md#16)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.config.keys import (
    GIB,
    INT_MAX,
    LONG_MAX,
    LONG_MIN,
    REFUSED_KEYS,
    SERVICE_KEYS,
    TOPIC_KEYS,
    SettingType,
    canonical_text,
    interval_ms,
)
from lastword.compaction.config.topic_config import (
    ServiceConfig,
    TopicConfig,
    describe_topic_config,
    normalize_overrides,
    parse_service_config,
    parse_topic_config,
)
from lastword.compaction.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def refusals(overrides: dict[str, object], defaults: dict[str, object] | None = None) -> dict[str, str]:
    """Return what is allowed for each key that was refused."""
    with pytest.raises(InvalidConfiguration) as caught:
        parse_topic_config(overrides, defaults=defaults)
    return {violation.key: violation.allowed for violation in caught.value.violations}


def service_refusals(settings: dict[str, object]) -> dict[str, str]:
    """Return what is allowed for each setting of the service that was refused."""
    with pytest.raises(InvalidConfiguration) as caught:
        parse_service_config(settings)
    return {violation.key: violation.allowed for violation in caught.value.violations}


def violated_keys(parse: Callable[[dict[str, object]], object], settings: dict[str, object]) -> list[str]:
    """Return the keys of all violations, none when there is a configuration."""
    try:
        parse(settings)
    except InvalidConfiguration as error:
        return [violation.key for violation in error.violations]
    return []


def value_of(key: str, raw: object) -> object:
    """Return what one override becomes."""
    return getattr(parse_topic_config({key: raw}), TOPIC_KEYS[key].field)


# --- defaults -----------------------------------------------------------------------------------------------------------------------------


def test_a_topic_without_overrides_has_kafkas_defaults() -> None:
    """They are those of docs/semantics.md#16, plus the keys that Kafka gives to clients or brokers."""
    expected = TopicConfig(
        cleanup_policy=frozenset({"delete"}),
        compression_type="zstd",
        delete_retention_ms=86_400_000,
        file_delete_delay_ms=60_000,
        max_compaction_lag_ms=9_223_372_036_854_775_807,
        max_message_bytes=1_048_588,
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        partitioner="lastword",
        producer_id_expiration_ms=86_400_000,
        retention_bytes=-1,
        retention_ms=604_800_000,
        segment_bytes=1_073_741_824,
        segment_ms=604_800_000,
        segment_slices=10_000,
        transaction_timeout_ms=60_000,
    )

    assert expected == parse_topic_config({})


def test_a_service_without_settings_has_kafkas_defaults() -> None:
    """The table and the dataclass say the same."""
    config, topic_defaults = parse_service_config({})

    assert ServiceConfig() == config
    assert topic_defaults == {}
    assert {key.field: key.default for key in SERVICE_KEYS.values()} == dataclasses.asdict(config)


def test_the_tables_and_the_dataclasses_have_the_same_keys_in_the_order_of_their_names() -> None:
    """One field a key, and no key both here and refused."""
    assert [key.field for key in TOPIC_KEYS.values()] == [field.name for field in dataclasses.fields(TopicConfig)]
    assert [key.field for key in SERVICE_KEYS.values()] == [field.name for field in dataclasses.fields(ServiceConfig)]
    assert list(TOPIC_KEYS) == sorted(TOPIC_KEYS)
    assert list(SERVICE_KEYS) == sorted(SERVICE_KEYS)
    assert REFUSED_KEYS.keys().isdisjoint({*TOPIC_KEYS, *SERVICE_KEYS})


@pytest.mark.parametrize("key", [*TOPIC_KEYS.values(), *SERVICE_KEYS.values()], ids=lambda key: key.name)
def test_every_key_documents_itself(key: object) -> None:
    """The reference documentation is made of these."""
    assert all(getattr(key, part) for part in ("name", "doc", "allowed", "default_text", "kind"))
    assert str(getattr(key, "doc", "")).endswith(".")


# --- policies -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "policies"),
    [
        ("compact", {"compact"}),
        ("compact,delete", {"compact", "delete"}),
        (" delete , compact ", {"compact", "delete"}),
        (["compact", "delete"], {"compact", "delete"}),
        (("delete",), {"delete"}),
        (frozenset({"compact"}), {"compact"}),
        ("compact,compact", {"compact"}),
        ("", set()),
        ([], set()),
    ],
)
def test_a_cleanup_policy_is_a_set_of_policies_and_may_be_empty(raw: object, policies: set[str]) -> None:
    """Duplicates collapse; neither policy is allowed, as in Kafka."""
    config = parse_topic_config({"cleanup.policy": raw})

    assert policies == config.cleanup_policy
    assert config.compacted == ("compact" in policies)
    assert config.deletes == ("delete" in policies)


@pytest.mark.parametrize("raw", ["compress", "compact,", "Compact", ["compact", 7], [["compact"]], None, True, 1])
def test_another_cleanup_policy_is_refused(raw: object) -> None:
    """The message lists the choices."""
    assert refusals({"cleanup.policy": raw}) == {
        "cleanup.policy": "any of compact, delete, as a list or with commas between; empty for none"
    }


def test_a_compacted_topic_rolls_no_later_than_its_max_compaction_lag() -> None:
    """Kafka's LogConfig.maxSegmentMs."""
    lagging = {"segment.ms": "7d", "max.compaction.lag.ms": "1h"}

    assert parse_topic_config({**lagging, "cleanup.policy": "compact"}).max_segment_ms == HOUR_MS
    assert parse_topic_config({**lagging, "cleanup.policy": "delete"}).max_segment_ms == 7 * DAY_MS
    assert parse_topic_config({"cleanup.policy": "compact", "segment.ms": "2d"}).max_segment_ms == 2 * DAY_MS


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "gzip", "uncompressed"])
def test_a_codec_is_one_that_parquet_has(codec: str) -> None:
    """The codecs are those of docs/semantics.md#A.36."""
    assert codec == value_of("compression.type", codec)


@pytest.mark.parametrize("raw", ["producer", "none", "", 1, None, ["zstd"]])
def test_another_codec_is_refused(raw: object) -> None:
    """Kafka's `producer` among them."""
    assert refusals({"compression.type": raw}) == {"compression.type": "one of gzip, lz4, snappy, uncompressed, zstd"}


# --- numbers and units --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (134_217_728, 134_217_728),
        ("134217728", 134_217_728),
        (134_217_728.0, 134_217_728),
        ("128MiB", 134_217_728),
        ("128 mib", 134_217_728),
        ("1 GiB", 1_073_741_824),
        ("1.5 GiB", 1_610_612_736),
        ("64kb", 64_000),
        ("64 k", 64_000),
        ("64 Ki", 65_536),
        ("2MB", 2_000_000),
        ("2g", 2_000_000_000),
        ("0.001 TB", 1_000_000_000),
        ("2048B", 2_048),
        (" 2e3 ", 2_000),
    ],
)
def test_a_size_is_bytes_or_has_a_decimal_or_a_binary_unit(raw: object, size: int) -> None:
    """KB is 1000 bytes, KiB 1024, in any case."""
    assert size == value_of("segment.bytes", raw)


@pytest.mark.parametrize(
    ("raw", "time_ms"),
    [
        (500, 500),
        ("500ms", 500),
        ("90 s", 90_000),
        ("30 min", 1_800_000),
        ("30m", 1_800_000),
        ("12h", 43_200_000),
        ("0.5 d", 43_200_000),
        ("7d", 604_800_000),
        ("1 Week", 604_800_000),
        ("2 days", 172_800_000),
        ("9223372036854775807", LONG_MAX),
    ],
)
def test_a_time_is_milliseconds_or_has_a_unit(raw: object, time_ms: int) -> None:
    """From milliseconds to weeks."""
    assert time_ms == value_of("retention.ms", raw)


@pytest.mark.parametrize(
    "raw",
    [
        *(True, False, None, math.nan, math.inf, -math.inf, 1.5, 2**63, 10**5000, b"1", object(), [1]),
        *(
            "",
            " ",
            "ms",
            "1.5",
            "0.5 ms",
            "1 fortnight",
            "7 kb",
            "1,000",
            "1_000",
            "0x10",
            "٣",
            "nan",
            "inf",
            "--1",
            "-2",
            "-1 d",
            "7dd",
            "1e999",
        ),
    ],
    ids=lambda raw: f"{type(raw).__name__} {hex(raw)[:8] if isinstance(raw, int) else '' if type(raw) is object else raw}",
)
def test_what_is_no_time_is_refused(raw: object) -> None:
    """Booleans, NaN, fractions of a millisecond, a unit of another kind, a negative time with a unit."""
    allowed = "whole milliseconds, or with a unit (500ms, 30 min, 12h, 7d, 1w); at least 0, or -1 for no limit"
    assert refusals({"retention.ms": raw}) == {"retention.ms": allowed}


@pytest.mark.parametrize(("raw", "ratio"), [(0, 0.0), (1, 1.0), ("0.25", 0.25), ("1e-1", 0.1), (0.5, 0.5)])
def test_a_ratio_is_a_number_from_0_to_1(raw: object, ratio: float) -> None:
    """0 and 1 are allowed."""
    assert ratio == value_of("min.cleanable.dirty.ratio", raw)


@pytest.mark.parametrize("raw", [-0.1, 1.01, "50%", "50 k", True, math.nan, "nan"])
def test_another_ratio_is_refused(raw: object) -> None:
    """A percentage, too."""
    assert refusals({"min.cleanable.dirty.ratio": raw}) == {"min.cleanable.dirty.ratio": "a number; at least 0 and at most 1"}


@pytest.mark.parametrize(
    ("key", "least", "greatest"),
    [
        ("delete.retention.ms", 0, LONG_MAX),
        ("file.delete.delay.ms", 0, LONG_MAX),
        ("max.compaction.lag.ms", 1, LONG_MAX),
        ("max.message.bytes", 0, INT_MAX),
        ("min.compaction.lag.ms", 0, LONG_MAX),
        ("producer.id.expiration.ms", 1, LONG_MAX),
        ("retention.bytes", LONG_MIN, LONG_MAX),
        ("retention.ms", -1, LONG_MAX),
        ("segment.bytes", 1024, INT_MAX),
        ("segment.ms", 1, LONG_MAX),
        ("segment.slices", 1, INT_MAX),
        ("transaction.timeout.ms", 1, LONG_MAX),
    ],
)
def test_a_key_has_kafkas_range(key: str, least: int, greatest: int) -> None:
    """The least and the greatest value are allowed, the ones beyond are not (segment.bytes from 1 KiB, docs/semantics.md#A.6)."""
    assert value_of(key, least) == least
    assert value_of(key, greatest) == greatest
    assert list(refusals({key: least - 1})) == [key]
    assert list(refusals({key: greatest + 1})) == [key]


def test_any_negative_retention_bytes_is_no_limit_as_in_kafka() -> None:
    """The range of Kafka's key is that of a long."""
    assert value_of("retention.bytes", "-5") == -5
    assert refusals({"retention.bytes": "-5 MiB"})["retention.bytes"].endswith("any of 64 bits, negative for no limit")


# --- violations ---------------------------------------------------------------------------------------------------------------------------


def test_all_violations_are_reported_at_once_with_key_value_and_what_is_allowed() -> None:
    """In the order in which the settings were given."""
    with pytest.raises(InvalidConfiguration) as caught:
        parse_topic_config(
            {"segment.byte": 1, "cleanup.policy": ["compact", "x"], "segment.ms": "0", "retention.ms": "7d"},
            subject="topic fruit-prices",
        )

    assert str(caught.value) == (
        "invalid configuration of topic fruit-prices:\n"
        "  segment.byte = 1: unknown; did you mean segment.bytes?\n"
        "  cleanup.policy = compact,x: any of compact, delete, as a list or with commas between; empty for none\n"
        "  segment.ms = 0: whole milliseconds, or with a unit (500ms, 30 min, 12h, 7d, 1w); at least 1"
    )


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (None, "None"),
        ({"compact", "x"}, "compact,x"),
        ("y" * 1000, "y" * 80 + "…"),
        (10**5000, "an integer of 16610 bits"),
        (-1, "-1"),
    ],
    ids=["missing", "set", "long text", "huge", "number"],
)
def test_a_message_shows_the_value_within_a_line(raw: object, shown: str) -> None:
    """However long the value is."""
    with pytest.raises(InvalidConfiguration) as caught:
        parse_topic_config({"cleanup.policy": raw})

    assert shown == caught.value.violations[0].value


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("segment.byte", "segment.bytes"),
        ("segment_bytes", "segment.bytes"),
        ("Cleanup.Policy", "cleanup.policy"),
        ("retention.msec", "retention.ms"),
        ("min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(typo: str, meant: str) -> None:
    """Underscores and capitals, too."""
    assert refusals({typo: 1}) == {typo: f"unknown; did you mean {meant}?"}


def test_a_key_that_resembles_nothing_gets_the_list() -> None:
    """All of them, sorted."""
    assert refusals({"zzz": 1}) == {"zzz": f"unknown; known are {', '.join(TOPIC_KEYS)}"}


@pytest.mark.parametrize(
    "key",
    [
        *("segment.index.bytes", "log.cleaner.io.buffer.size", "flush.ms", "flush.messages", "min.insync.replicas", "preallocate"),
        *("unclean.leader.election.enable", "log.cleaner.enable", "index.interval.bytes", "remote.storage.enable"),
        *("message.timestamp.type", "segment.jitter.ms", "compression.zstd.level", "transaction.max.timeout.ms"),
    ],
)
def test_a_key_of_kafka_that_makes_no_sense_here_is_refused_with_the_reason(key: str) -> None:
    """For a topic and for the service alike."""
    assert refusals({key: 1}) == {key: REFUSED_KEYS[key]}
    assert service_refusals({key: 1}) == {key: REFUSED_KEYS[key]}
    assert REFUSED_KEYS[key].startswith("not here: ")


@pytest.mark.parametrize("key", ["partitions", "num.partitions"])
def test_the_number_of_partitions_is_no_setting(key: str) -> None:
    """It is fixed at creation (docs/semantics.md#A.35)."""
    assert refusals({key: 8})[key].startswith("the number of partitions is fixed when the topic is created")


def test_a_topic_may_not_override_what_belongs_to_the_service() -> None:
    """Settings of the service, and broker synonyms, are refused in a topic's configuration."""
    assert refusals({"log.cleaner.threads": 2, "log.retention.hours": 1}) == {
        "log.cleaner.threads": "a setting of the service, not of one topic",
        "log.retention.hours": "a service-wide default; for one topic the key is retention.ms",
    }


def test_the_min_compaction_lag_is_at_most_the_max() -> None:
    """Equal is allowed, also when one of them is a service-wide default."""
    assert parse_topic_config({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 5}).min_compaction_lag_ms == 5
    expected = {"min.compaction.lag.ms": "at most max.compaction.lag.ms, which is 4"}
    assert expected == refusals({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4})
    assert expected == refusals({"min.compaction.lag.ms": 5}, defaults={"log.cleaner.max.compaction.lag.ms": 4})
    assert expected == service_refusals({"log.cleaner.min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4})


def test_a_lag_that_is_wrong_by_itself_is_not_compared() -> None:
    """One mistake, one violation."""
    assert list(refusals({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": "x"}, defaults={"max.compaction.lag.ms": 4})) == [
        "max.compaction.lag.ms"
    ]


# --- service-wide defaults ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defaults", "retention_ms"),
    [
        ({"log.retention.hours": "24"}, DAY_MS),
        ({"log.retention.hours": 24, "log.retention.minutes": 90}, 90 * 60_000),
        ({"log.retention.minutes": 90, "log.retention.hours": 24, "log.retention.ms": "5s"}, 5_000),
        ({"log.retention.ms": "5s", "retention.ms": "6s"}, 6_000),
        ({"log.retention.hours": -1}, -1),
        ({"log.retention.minutes": -1, "log.retention.hours": 24}, -1),
    ],
)
def test_broker_synonyms_give_defaults_with_kafkas_precedence(defaults: dict[str, object], retention_ms: int) -> None:
    """The key itself, then milliseconds, minutes, hours, in whatever order they are given; the topic's own wins over all."""
    assert parse_topic_config({}, defaults=defaults).retention_ms == retention_ms
    assert parse_topic_config({"retention.ms": "1h"}, defaults=defaults).retention_ms == HOUR_MS


@pytest.mark.parametrize(
    ("synonym", "raw", "field", "value"),
    [
        ("log.cleanup.policy", "compact", "cleanup_policy", frozenset({"compact"})),
        ("log.cleaner.delete.retention.ms", "1h", "delete_retention_ms", HOUR_MS),
        ("log.segment.delete.delay.ms", "1h", "file_delete_delay_ms", HOUR_MS),
        ("log.cleaner.max.compaction.lag.ms", "1h", "max_compaction_lag_ms", HOUR_MS),
        ("log.cleaner.min.compaction.lag.ms", "1h", "min_compaction_lag_ms", HOUR_MS),
        ("log.cleaner.min.cleanable.ratio", 0.1, "min_cleanable_dirty_ratio", 0.1),
        ("message.max.bytes", "2MiB", "max_message_bytes", 2_097_152),
        ("log.retention.bytes", "1GiB", "retention_bytes", GIB),
        ("log.segment.bytes", "64kb", "segment_bytes", 64_000),
        ("log.roll.ms", "1h", "segment_ms", HOUR_MS),
        ("log.roll.hours", 1, "segment_ms", HOUR_MS),
        ("compression.type", "gzip", "compression_type", "gzip"),
        ("producer.id.expiration.ms", "1h", "producer_id_expiration_ms", HOUR_MS),
    ],
)
def test_every_broker_synonym_reaches_its_key(synonym: str, raw: object, field: str, value: object) -> None:
    """The broker synonyms are those of docs/semantics.md#A.37; the two last have one name in both."""
    assert value == getattr(parse_topic_config({}, defaults={synonym: raw}), field)


def test_hours_and_minutes_are_whole_numbers_in_that_unit() -> None:
    """No units, and no overflow of the milliseconds; at least 1, as Kafka's broker demands of its retention."""
    assert refusals({}, defaults={"log.retention.hours": "7d", "log.retention.minutes": 0, "log.roll.hours": -1}) == {
        "log.retention.hours": "a whole number; at least 1 and at most 2562047788015, or -1 for no limit",
        "log.retention.minutes": "a whole number; at least 1 and at most 153722867280912, or -1 for no limit",
        "log.roll.hours": "a whole number; at least 1 and at most 2562047788015",
    }
    assert list(refusals({}, defaults={"log.retention.ms": 0})) == ["log.retention.ms"]


def test_a_topic_ignores_the_services_own_settings_among_the_defaults_but_not_their_mistakes() -> None:
    """All settings of a service can be given as defaults of its topics; wrong values among them are reported."""
    assert parse_topic_config({}, defaults={"log.cleaner.threads": 4}) == parse_topic_config({})
    assert list(refusals({}, defaults={"log.cleaner.threads": 0})) == ["log.cleaner.threads"]


# --- the service --------------------------------------------------------------------------------------------------------------------------


def test_the_settings_of_a_service_are_its_own_and_the_defaults_of_its_topics() -> None:
    """The defaults keep their names, as canonical texts, and are what a topic's parser takes."""
    config, topic_defaults = parse_service_config(
        {
            "log.cleaner.threads": "2",
            "log.cleaner.dedupe.buffer.size": "256MiB",
            "log.cleaner.io.buffer.load.factor": "0.75",
            "log.cleaner.io.max.bytes.per.second": "50 MiB",
            "log.cleaner.backoff.ms": "1s",
            "log.retention.check.interval.ms": "1 min",
            "log.initial.task.delay.ms": 0,
            "transactional.id.expiration.ms": "1d",
            "log.retention.hours": 24,
            "segment.bytes": "64kb",
            "cleanup.policy": ["delete", "compact"],
        }
    )

    expected = ServiceConfig(
        log_cleaner_threads=2,
        log_cleaner_dedupe_buffer_size=268_435_456,
        log_cleaner_io_buffer_load_factor=0.75,
        log_cleaner_io_max_bytes_per_second=52_428_800.0,
        log_cleaner_backoff_ms=1_000,
        log_retention_check_interval_ms=60_000,
        log_initial_task_delay_ms=0,
        transactional_id_expiration_ms=86_400_000,
    )
    assert expected == config
    assert topic_defaults == {"cleanup.policy": "compact,delete", "log.retention.hours": "24", "segment.bytes": "64000"}
    assert parse_topic_config({}, defaults=topic_defaults).segment_bytes == 64_000


@pytest.mark.parametrize(
    ("raw", "rate"), [("inf", math.inf), (math.inf, math.inf), (1.5, 1.5), ("1.7976931348623157E308", 1.7976931348623157e308)]
)
def test_the_throttle_may_be_off(raw: object, rate: float) -> None:
    """Kafka's way to say so is the greatest double."""
    assert parse_service_config({"log.cleaner.io.max.bytes.per.second": raw})[0].log_cleaner_io_max_bytes_per_second == rate


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        *(("log.cleaner.io.max.bytes.per.second", raw) for raw in (0, -1, math.nan, "-inf", "1e999", True)),
        *(("log.cleaner.io.buffer.load.factor", raw) for raw in (0, 1.1, math.inf, "0.9 k")),
        *(("log.cleaner.threads", raw) for raw in (0, -1, 1.5, True, "2k", 2**31)),
        ("log.cleaner.backoff.ms", -1),
        ("log.retention.check.interval.ms", 0),
        ("log.initial.task.delay.ms", -1),
    ],
)
def test_a_setting_of_the_service_out_of_its_range_is_refused(key: str, raw: object) -> None:
    """And no other is blamed for it."""
    assert service_refusals({key: raw}) == {key: SERVICE_KEYS[key].allowed}


def test_each_cleaner_thread_has_more_than_1_mib_of_the_dedupe_buffer() -> None:
    """Kafka's check, strict, in whole bytes; nothing is said of it while the number of threads is wrong by itself."""
    parse_service_config({"log.cleaner.dedupe.buffer.size": 4 * 2**20 + 4, "log.cleaner.threads": 4})
    allowed = "more than 1048576 (1 MiB) for each of log.cleaner.threads, which is 4"
    for size in ("4MiB", str(4 * 2**20 + 3)):
        refused = service_refusals({"log.cleaner.dedupe.buffer.size": size, "log.cleaner.threads": 4})
        assert refused == {"log.cleaner.dedupe.buffer.size": allowed}
    with pytest.raises(InvalidConfiguration, match=r"log\.cleaner\.dedupe\.buffer\.size = 4194304"):
        parse_service_config({"log.cleaner.dedupe.buffer.size": "4MiB", "log.cleaner.threads": 4})
    assert list(service_refusals({"log.cleaner.dedupe.buffer.size": 0, "log.cleaner.threads": 0})) == ["log.cleaner.threads"]
    unreadable = service_refusals({"log.cleaner.dedupe.buffer.size": "much", "log.cleaner.threads": 200})
    assert "each of log.cleaner.threads" not in unreadable["log.cleaner.dedupe.buffer.size"]


def test_a_misspelt_setting_of_the_service_gets_the_nearest_of_all_keys() -> None:
    """Topic keys, synonyms and its own; the subject is the service."""
    with pytest.raises(InvalidConfiguration, match=r"invalid configuration of service:") as caught:
        parse_service_config({"log.retention.hour": 1, "log.cleaner.thread": 1, "segment.byte": 1})

    assert [violation.allowed for violation in caught.value.violations] == [
        "unknown; did you mean log.retention.hours?",
        "unknown; did you mean log.cleaner.threads?",
        "unknown; did you mean segment.bytes?",
    ]


# --- canonical texts ----------------------------------------------------------------------------------------------------------------------


def test_overrides_are_stored_as_canonical_texts_in_the_order_of_their_keys() -> None:
    """Only those that were given."""
    overrides = {"segment.bytes": "128MiB", "min.cleanable.dirty.ratio": 1, "cleanup.policy": ["delete", "compact"], "retention.ms": -1}

    assert list(normalize_overrides(overrides).items()) == [
        ("cleanup.policy", "compact,delete"),
        ("min.cleanable.dirty.ratio", "1.0"),
        ("retention.ms", "-1"),
        ("segment.bytes", "134217728"),
    ]


def test_overrides_that_are_wrong_are_not_stored() -> None:
    """`alter` reports the same violations as parsing does, under the name of the topic."""
    with pytest.raises(InvalidConfiguration, match=r"invalid configuration of topic t:\n  retention.ms = x"):
        normalize_overrides({"retention.ms": "x"}, subject="topic t")


def test_a_description_has_every_key_sorted() -> None:
    """With the texts that the tables give as defaults."""
    described = describe_topic_config(parse_topic_config({}))

    assert list(described.items()) == [(name, key.default_text) for name, key in TOPIC_KEYS.items()]


def raw_values(name: str) -> st.SearchStrategy[object]:
    """Return allowed values of a key, in every spelling."""
    key = TOPIC_KEYS[name]
    if key.kind is SettingType.CHOICE:
        return st.sampled_from(key.choices)
    if key.kind is SettingType.CHOICES:
        names = st.lists(st.sampled_from(key.choices))
        return names | names.map(",".join) | names.map(frozenset)
    if key.kind is SettingType.NUMBER:
        ratios = st.floats(min_value=0, max_value=1)
        return ratios | ratios.map(repr)
    units = ["b", "k", "kB", "MB", "Mi", "MiB"] if key.kind is SettingType.BYTES else ["ms", "s", "m", "min", "h", "d", "w", "weeks"]
    texts = st.builds(
        lambda number, gap, unit: f"{number}{gap}{unit}", st.integers(1024, 2047), st.sampled_from(["", " "]), st.sampled_from(units)
    )
    numbers = st.integers(int(key.minimum), int(key.maximum))
    if key.kind is SettingType.COUNT:
        return numbers | numbers.map(str)
    return numbers | numbers.map(str) | texts | (st.just(-1) if key.unlimited else st.nothing())


def all_overrides() -> st.SearchStrategy[dict[str, object]]:
    """Return any set of overrides, each allowed by itself; not both lags, as they could contradict each other."""
    either = st.sampled_from(["min.compaction.lag.ms", "max.compaction.lag.ms"])
    return either.flatmap(
        lambda left_out: st.fixed_dictionaries({}, optional={name: raw_values(name) for name in TOPIC_KEYS if name != left_out})
    )


@given(all_overrides())
def test_canonical_texts_and_descriptions_mean_what_they_were_made_from(overrides: dict[str, object]) -> None:
    """parse(normalize(x)) == parse(x), normalize is idempotent, and a description is a whole set of overrides."""
    config = parse_topic_config(overrides)
    texts = normalize_overrides(overrides)
    assert config == parse_topic_config(texts)
    assert config == parse_topic_config({}, defaults=texts)
    assert texts == normalize_overrides(texts)
    assert config == parse_topic_config(describe_topic_config(config))
    assert overrides.keys() == texts.keys()
    assert texts.items() <= describe_topic_config(config).items()


@given(
    st.dictionaries(
        st.sampled_from([*TOPIC_KEYS, *SERVICE_KEYS, "log.retention.hours", "partitions"]) | st.text(max_size=20),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=12)
        | st.lists(st.text(max_size=8))
        | st.binary(max_size=4),
    )
)
def test_whatever_is_given_there_is_a_configuration_or_a_list_of_violations(settings: dict[str, object]) -> None:
    """Never another error, and one violation a key."""
    for parse in (parse_topic_config, normalize_overrides, parse_service_config):
        keys = violated_keys(parse, settings)
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("value", "text"), [(1_073_741_824, "1073741824"), (0.5, "0.5"), ("zstd", "zstd"), (frozenset({"delete", "compact"}), "compact,delete")]
)
def test_a_value_has_one_text(value: float | str | frozenset[str], text: str) -> None:
    """Without units, sorted."""
    assert text == canonical_text(value)


@pytest.mark.parametrize("overrides", ["compact", ["cleanup.policy=compact"], None])
def test_settings_that_are_no_mapping_are_refused(overrides: object) -> None:
    """With what is allowed instead."""
    with pytest.raises(InvalidConfiguration, match=r'config = .*: a mapping of settings, as \{"cleanup.policy": "compact"\}'):
        parse_topic_config(overrides)


def test_of_many_settings_the_nearest_are_named() -> None:
    """Those of a topic are all listed; a service has too many."""
    with pytest.raises(InvalidConfiguration, match=r"zzz = \*\*\*: unknown; known are \S+, \S+, \S+ and \d+ others$"):
        parse_service_config({"zzz": 1})
    with pytest.raises(InvalidConfiguration, match=r"zzz = \*\*\*: unknown; known are cleanup.policy, .*transaction.timeout.ms$"):
        parse_topic_config({"zzz": 1})


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("10s", 10_000),
        ("500 ms", 500),
        ("5 seconds", 5_000),
        ("1 minute 30 seconds", 90_000),
        ("interval 2 hours", 7_200_000),
        ("now", None),
        ("10 parsecs", None),
        ("10", None),
        ("", None),
        ("-1 s", None),
        ("1.5 s", None),
    ],
)
def test_intervals(text: str, interval: int | None) -> None:
    """Whole numbers with units, one or several, as Spark has them too."""
    assert interval_ms(text) == interval
