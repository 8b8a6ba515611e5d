"""Filters as limits of what is read: nothing that they let through is left out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from kraftpy.spark import configure
from kraftpy.spark.filters import narrow, push
from kraftpy.spark.offsets import OffsetRange
from kraftpy.spark.source import BatchReader, FilteringBatchReader, batch_reader
from kraftpy.types import TopicPartition

NAMES = {name: name for name in ("topic", "partition", "offset", "timestamp", "key")}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RANGES = [
    OffsetRange(topic=topic, partition=partition, start=10, end=20) for topic in ("a", "b") for partition in range(3)
]


def ranges_with(*filters: Filter) -> set[str]:
    limits, _ = push(filters, NAMES)
    return {str(each) for each in narrow(RANGES, limits, {})}


def left_of(*filters: Filter) -> list[Filter]:
    return push(filters, NAMES)[1]


def test_topics_and_partitions_are_chosen() -> None:
    assert ranges_with(EqualTo(("topic",), "a"), EqualTo(("partition",), 1)) == {"a-1 [10, 20)"}
    assert ranges_with(In(("topic",), ("b", "c")), LessThan(("partition",), 2)) == {"b-0 [10, 20)", "b-1 [10, 20)"}
    assert ranges_with(In(("partition",), (0, 2)), EqualTo(("topic",), "a")) == {"a-0 [10, 20)", "a-2 [10, 20)"}
    assert ranges_with(EqualTo(("topic",), "a"), EqualNullSafe(("topic",), "b")) == set()


def test_offsets_cut_ranges() -> None:
    only = EqualTo(("topic",), "a"), EqualTo(("partition",), 0)
    assert ranges_with(*only, GreaterThan(("offset",), 12), LessThanOrEqual(("offset",), 15)) == {"a-0 [13, 16)"}
    assert ranges_with(*only, GreaterThanOrEqual(("offset",), 12), LessThan(("offset",), 15)) == {"a-0 [12, 15)"}
    assert ranges_with(*only, EqualTo(("offset",), 17)) == {"a-0 [17, 18)"}
    assert ranges_with(*only, In(("offset",), (3, 12, 14))) == {"a-0 [10, 15)"}
    assert ranges_with(*only, EqualTo(("offset",), 20)) == set()
    assert ranges_with(*only, In(("offset",), ())) == set()


def test_what_ranges_say_exactly_is_not_left_to_spark() -> None:
    said = [
        EqualTo(("topic",), "a"),
        In(("partition",), (0, 5)),
        IsNotNull(("offset",)),
        GreaterThan(("offset",), 3),
        In(("offset",), (7, 8)),
    ]
    assert left_of(*said) == []


def test_what_ranges_do_not_say_is_left_to_spark() -> None:
    unsaid = [
        IsNull(("offset",)),
        IsNotNull(("key",)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("offset", "x"), 1),
        EqualTo(("partition",), None),
        GreaterThan(("timestamp",), EPOCH + timedelta(hours=1)),
        LessThan(("timestamp",), EPOCH + timedelta(hours=1)),
        In(("offset",), (12, 14)),
    ]
    assert left_of(*unsaid) == unsaid
    assert ranges_with(*unsaid[:-1]) == {str(each) for each in RANGES}


def test_a_time_says_where_to_begin() -> None:
    hour = EPOCH + timedelta(hours=1)
    limits, _ = push([GreaterThan(("timestamp",), hour), GreaterThanOrEqual(("timestamp",), EPOCH)], NAMES)
    assert limits.from_ms == 3_600_000
    [first, *others] = narrow(RANGES, limits, {TopicPartition("a", 0): 14, TopicPartition("a", 1): 99})
    assert str(first) == "a-0 [14, 20)"
    assert [str(each) for each in others] == [f"{each} [10, 20)" for each in ("a-2", "b-0", "b-1", "b-2")]
    naive = push([EqualTo(("timestamp",), datetime(1970, 1, 1, 0, 0, 1))], NAMES)[0]
    assert naive.from_ms == 1000
    assert push([GreaterThan(("timestamp",), EPOCH - timedelta(seconds=1))], NAMES)[0].from_ms is None


NUMBERS = st.integers(-3, 25)
ANY_FILTER = st.one_of(
    st.builds(
        lambda kind, column, value: kind((column,), value),
        st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
        st.sampled_from(["partition", "offset"]),
        NUMBERS,
    ),
    st.builds(lambda values: In(("offset",), tuple(values)), st.lists(NUMBERS, max_size=4)),
    st.builds(lambda values: In(("topic",), tuple(values)), st.lists(st.sampled_from("abc"), max_size=2)),
    st.builds(lambda value: EqualTo(("topic",), value), st.sampled_from("abc")),
)
PASSES: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, value: bool(found == value),
    EqualNullSafe: lambda found, value: bool(found == value),
    GreaterThan: lambda found, value: bool(found > value),
    GreaterThanOrEqual: lambda found, value: bool(found >= value),
    LessThan: lambda found, value: bool(found < value),
    LessThanOrEqual: lambda found, value: bool(found <= value),
    In: lambda found, value: found in value,
}


@given(st.lists(ANY_FILTER, max_size=4))
def test_ranges_and_what_is_left_let_through_what_the_filters_do(filters: list[Any]) -> None:
    def passes(row: dict[str, Any], wanted: list[Any]) -> bool:
        return all(PASSES[type(each)](row[each.attribute[0]], each.value) for each in wanted)

    def rows(ranges: list[OffsetRange]) -> list[dict[str, Any]]:
        return [
            {"topic": each.topic, "partition": each.partition, "offset": offset}
            for each in ranges
            for offset in range(each.start, each.end)
        ]

    limits, left = push(filters, NAMES)
    expected = [row for row in rows(RANGES) if passes(row, filters)]
    assert [row for row in rows(narrow(RANGES, limits, {})) if passes(row, left)] == expected


# Switched on ---------------------------------------------------------------------------------------------------------


def test_filters_are_taken_only_where_that_was_switched_on() -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    schema = StructType([StructField("offset", LongType())])
    assert type(batch_reader(options, schema)) is BatchReader
    assert type(batch_reader({**options, "pushDown": "true"}, schema)) is FilteringBatchReader

    class Builder:
        def __init__(self) -> None:
            self.settings: dict[str, str] = {}

        def config(self, name: str, value: str) -> Builder:
            self.settings[name] = value
            return self

    builder: Any = Builder()
    assert configure(builder) is builder
    assert builder.settings == {"spark.sql.python.filterPushdown.enabled": "true"}
    assert type(batch_reader({**options, "pushdown": "false"}, schema)) is BatchReader
