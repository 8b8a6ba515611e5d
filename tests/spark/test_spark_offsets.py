"""Which records a query reads: positions to ranges, ranges to Spark partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.spark.offsets import (
    Assign,
    AtOffsets,
    AtTimestamps,
    ByDuration,
    Committed,
    DataLossError,
    Earliest,
    Latest,
    OffsetRange,
    Offsets,
    OptionError,
    Subscribe,
    SubscribePattern,
    UnknownTopicError,
    divide,
    plan_ranges,
    present_partitions,
    resolve,
    wanted_partitions,
    wanted_topics,
)
from kraftpy.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
FOUND = {"a": [1, 0], "b": [0]}


class KnownOffsets:
    """A broker whose logs are [10, 20), with one record per offset at 100 times its offset in milliseconds."""

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        return dict.fromkeys(partitions, 20)

    def at_timestamps(self, timestamps: Offsets) -> Mapping[TopicPartition, int | None]:
        ceilings = {where: max(10, -(-time // 100)) for where, time in timestamps.items()}
        return {where: offset if offset < 20 else None for where, offset in ceilings.items()}

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> Offsets:
        return {where: 17 for where in partitions if where == A0 and group_id == "g"}

    def now_ms(self) -> int:
        return 2_000


def span(start: int, end: int, where: TopicPartition = A0) -> OffsetRange:
    return OffsetRange(topic=where.topic, partition=where.partition, start=start, end=end)


def test_partitions_of_what_was_named() -> None:
    assert wanted_partitions(Subscribe(topics=("b", "a")), FOUND) == [A0, A1, B0]
    assert wanted_partitions(Assign(partitions=(A1, B0)), FOUND) == [A1, B0]
    assert wanted_partitions(SubscribePattern(pattern="[ab]"), FOUND) == [A0, A1, B0]


def test_a_pattern_matches_whole_names() -> None:
    assert wanted_topics(SubscribePattern(pattern="a"), ["a", "ab", "ba"]) == ["a"]


@pytest.mark.parametrize(
    ("subscription", "message"),
    [
        (Subscribe(topics=("a", "c")), "unknown topic: c"),
        (Subscribe(topics=("d", "c")), "unknown topics: c, d"),
        (Assign(partitions=(A0, TopicPartition("a", 7))), "unknown partition: a-7"),
        (SubscribePattern(pattern="x.*"), "no topic matches"),
    ],
)
def test_what_is_not_there_is_named(subscription: Subscribe, message: str) -> None:
    with pytest.raises(UnknownTopicError, match=message):
        wanted_partitions(subscription, FOUND)


def test_positions_resolve_to_offsets() -> None:
    broker = KnownOffsets()
    assert resolve(Earliest(), [A0, A1], broker) == {A0: 10, A1: 10}
    assert resolve(Latest(), [A0], broker) == {A0: 20}
    written = AtOffsets(option="endingOffsets", offsets={A0: 13, A1: -1, B0: -2})
    assert resolve(written, [A0, A1, B0], broker) == {A0: 13, A1: 20, B0: 10}


def test_timestamps_resolve_to_the_first_record_not_before() -> None:
    def at(timestamps: Offsets | int, *, latest_if_none: bool = False) -> dict[TopicPartition, int]:
        position = AtTimestamps(option="startingTimestamp", timestamps=timestamps, latest_if_none=latest_if_none)
        return resolve(position, [A0, A1], KnownOffsets())

    assert at(1201) == {A0: 13, A1: 13}
    assert at({A0: 0, A1: 1900}) == {A0: 10, A1: 19}
    assert at({A0: 0, A1: 1901}, latest_if_none=True) == {A0: 10, A1: 20}
    with pytest.raises(OptionError, match=r"startingTimestamp: no record at or after the timestamp in a-1 \(at 1901\)"):
        at({A0: 0, A1: 1901})


def test_offsets_must_name_every_partition_and_no_other() -> None:
    with pytest.raises(OptionError, match=r"startingOffsets: every partition must be named; missing: a-1"):
        resolve(AtOffsets(option="startingOffsets", offsets={A0: 1}), [A0, A1], KnownOffsets())
    with pytest.raises(OptionError, match=r"names partitions that are not read: b-0"):
        resolve(AtOffsets(option="startingOffsets", offsets={A0: 1, B0: 1}), [A0], KnownOffsets())


def plan(start: int, end: int, *, fail: bool = True, log: tuple[int, int] = (10, 20)) -> list[tuple[int, int]]:
    made = plan_ranges(
        start={A0: start}, end={A0: end}, log_start={A0: log[0]}, log_end={A0: log[1]}, fail_on_data_loss=fail
    )
    return [(each.start, each.end) for each in made.ranges]


def test_ranges_within_the_log_are_read_as_asked() -> None:
    assert plan(10, 20) == [(10, 20)]
    assert plan(12, 13) == [(12, 13)]


@pytest.mark.parametrize(("start", "end"), [(10, 10), (20, 20), (15, 12), (5, 5)])
def test_a_range_that_ends_before_it_starts_reads_nothing(start: int, end: int) -> None:
    assert plan(start, end) == []


@pytest.mark.parametrize(
    ("start", "end", "kept"), [(9, 20, [(10, 20)]), (10, 21, [(10, 20)]), (0, 5, []), (21, 25, []), (21, 20, [])]
)
def test_what_the_log_does_not_hold_fails_or_is_left_out(start: int, end: int, kept: list[tuple[int, int]]) -> None:
    with pytest.raises(DataLossError, match=rf"a-0: asked for \[{start}, {end}\), the log holds \[10, 20\)"):
        plan(start, end)
    assert plan(start, end, fail=False) == kept


def test_a_loss_that_is_allowed_is_still_told() -> None:
    made = plan_ranges(start={A0: 0}, end={A0: 20}, log_start={A0: 10}, log_end={A0: 20}, fail_on_data_loss=False)
    assert made.losses == ("a-0: asked for [0, 20), the log holds [10, 20)",)


def test_one_spark_partition_each_by_default() -> None:
    assert divide([span(0, 5), span(0, 3, A1)]) == [(span(0, 5),), (span(0, 3, A1),)]


def test_max_records_splits_evenly() -> None:
    assert divide([span(0, 10)], max_records=4) == [(span(0, 3),), (span(3, 6),), (span(6, 10),)]


def test_min_partitions_cuts_the_largest_first() -> None:
    pieces = divide([span(0, 90), span(0, 10, A1)], min_partitions=4)
    assert [(each.partition, each.start, each.end) for (each,) in pieces] == [
        (0, 0, 30),
        (0, 30, 60),
        (0, 60, 90),
        (1, 0, 10),
    ]


def test_max_partitions_merges_neighbours_about_evenly() -> None:
    small = [span(0, 10, TopicPartition("a", index)) for index in range(6)]
    assert [len(group) for group in divide(small, max_partitions=3)] == [2, 2, 2]
    skewed = [span(0, 100, A0), span(0, 1, A1), span(0, 1, B0)]
    assert divide(skewed, max_partitions=2) == [(skewed[0],), (skewed[1], skewed[2])]


def test_merging_never_goes_beyond_max_records() -> None:
    small = [span(0, 10, TopicPartition("a", index)) for index in range(4)]
    assert [len(group) for group in divide(small, max_partitions=1, max_records=25)] == [2, 2]


limits = st.none() | st.integers(1, 40)


@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=12), least=limits, most=limits, records=limits)
def test_every_offset_is_read_exactly_once(
    sizes: list[int], least: int | None, most: int | None, records: int | None
) -> None:
    whole = [span(7, 7 + size, TopicPartition("t", index)) for index, size in enumerate(sizes)]
    groups = divide(whole, min_partitions=least, max_partitions=most, max_records=records)
    read = [(each.partition, offset) for group in groups for each in group for offset in range(each.start, each.end)]
    assert read == [(each.partition, offset) for each in whole for offset in range(each.start, each.end)]
    assert all(groups)
    if records is not None:
        assert max(sum(each.size for each in group) for group in groups) <= records
    if most is not None and records is None:
        assert len(groups) <= most
    if least is not None and most is None:
        assert len(groups) >= min(least, len(read))


def test_times_from_now_and_commits() -> None:
    ago = ByDuration(option="startingOffsets", milliseconds=500)
    assert resolve(ago, [A0], KnownOffsets()) == {A0: 15}
    assert resolve(ByDuration(option="startingOffsets", milliseconds=1), [A0], KnownOffsets()) == {A0: 20}
    assert resolve(Committed(group_id="g"), [A0, B0], KnownOffsets()) == {A0: 17, B0: 10}


def test_partitions_that_are_there() -> None:
    assert present_partitions(Subscribe(topics=("b", "c", "a")), FOUND) == [A0, A1, B0]
    assert present_partitions(Assign(partitions=(A1, TopicPartition("a", 7))), FOUND) == [A1]
    assert present_partitions(SubscribePattern(pattern="x.*"), FOUND) == []
