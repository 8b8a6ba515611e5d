"""A stream's offsets: their text, the ranges between two, and what a log that has changed means for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.spark.stream_offsets import (
    BrokerOffsets,
    StreamOffsets,
    from_json,
    position_in,
    ranges_between,
    to_json,
)
from kraftpy.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
OLD, NEW = bytes(15) + b"\x01", bytes(15) + b"\x02"


def at(offsets: dict[TopicPartition, int], **ids: bytes) -> StreamOffsets:
    return StreamOffsets(offsets=offsets, topic_ids=ids)


def seen(
    ends: dict[TopicPartition, int], starts: dict[TopicPartition, int] | None = None, **ids: bytes
) -> BrokerOffsets:
    return BrokerOffsets(log_start={**dict.fromkeys(ends, 0), **(starts or {})}, log_end=ends, topic_ids=ids)


def test_the_text_is_that_of_sparks_own_source_with_topic_ids() -> None:
    offsets = at({TopicPartition("a", 10): 1, B0: 3, A1: 2}, a=OLD)
    assert json.dumps(to_json(offsets)) == (
        '{"a": {"1": 2, "10": 1}, "b": {"0": 3}, "#topicIds": {"a": "AAAAAAAAAAAAAAAAAAAAAQ"}}'
    )
    assert to_json(at({})) == {}


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["a", "b", "a.b-c_D"]), st.integers(0, 12)),
        st.integers(0, 2**63 - 1),
    ),
    st.binary(min_size=16, max_size=16).filter(any),
)
def test_text_and_back(offsets: dict[TopicPartition, int], topic_id: bytes) -> None:
    whole = StreamOffsets.of(offsets, dict.fromkeys([topic for topic, _ in offsets], topic_id))
    text = json.dumps(to_json(whole))
    assert from_json(json.loads(text)) == whole
    assert json.dumps(to_json(from_json(json.loads(text)))) == text


def test_the_end_of_a_first_batch_says_where_it_began() -> None:
    start, end = at({A0: 5}, a=OLD), replace(at({A0: 9, B0: 2}, a=OLD), started_at=at({A0: 5}, a=OLD))
    text = json.dumps(to_json(end))
    assert text.endswith('"#startedAt": {"a": {"0": 5}, "#topicIds": {"a": "AAAAAAAAAAAAAAAAAAAAAQ"}}}')
    assert from_json(json.loads(text)) == end
    assert ranges_between(at({A0: 8}, a=OLD), end) == ranges_between(start, replace(end, started_at=None))
    assert ranges_between(end, end) == []
    assert ranges_between(end, at({A0: 11, B0: 2}, a=OLD)) == ranges_between(
        at({A0: 9, B0: 2}, a=OLD), at({A0: 11, B0: 2}, a=OLD)
    )


def test_only_ids_that_are_known_and_needed_are_kept() -> None:
    assert StreamOffsets.of({A0: 1, B0: 1}, {"a": OLD, "b": bytes(16), "c": NEW}).topic_ids == {"a": OLD}


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": null}}', '{"#topicIds": {"a": "AA"}}', '{"#topicIds": {"a": "A"}}'],
)
def test_what_no_stream_has_written(text: str) -> None:
    with pytest.raises(ValueError, match="not an offset of a kraftpy stream"):
        from_json(json.loads(text))


def test_ranges_between_two_offsets() -> None:
    start, end = at({A0: 5, A1: 3}, a=OLD), at({A0: 9, A1: 3, B0: 4}, a=OLD, b=NEW)
    assert [(str(each), each.topic_id) for each in ranges_between(start, end)] == [
        ("a-0 [5, 9)", OLD),
        ("b-0 [0, 4)", NEW),
    ]
    assert ranges_between(end, end) == []


def test_a_topic_of_another_id_is_read_from_its_beginning() -> None:
    assert [str(each) for each in ranges_between(at({A0: 5}, a=OLD), at({A0: 9}, a=NEW))] == ["a-0 [0, 9)"]
    assert [str(each) for each in ranges_between(at({A0: 5}), at({A0: 9}, a=NEW))] == ["a-0 [5, 9)"]


def test_nothing_is_lost_in_a_log_that_grew() -> None:
    found = position_in(at({A0: 5, A1: 0}, a=OLD), seen({A0: 9, A1: 0, B0: 4}, a=OLD))
    assert (found.offsets, found.losses) == ({A0: 5, A1: 0, B0: 0}, ())


@pytest.mark.parametrize(
    ("start", "log", "resumed", "message"),
    [
        (at({A0: 5}), seen({A0: 9}, {A0: 7}), {A0: 7}, "a-0: the stream is at 5, the log starts at 7"),
        (at({A0: 5}), seen({A0: 4}), {A0: 4}, "a-0: the stream is at 5, the log ends at 4"),
        (at({}), seen({A0: 9}, {A0: 7}), {A0: 7}, "a-0: the partition is new, and the stream would start at 0"),
        (at({A0: 5, B0: 2}), seen({A0: 5}), {A0: 5}, "b-0: deleted, or no longer selected"),
        (at({A0: 5, A1: 2}), seen({A0: 5}), {A0: 5}, r"a-1: .* \(of a there are fewer partitions than before\)"),
        (at({A0: 5}, a=OLD), seen({A0: 9}, a=NEW), {A0: 0}, "topic 'a' was deleted and created again"),
        (at({A0: 5}, a=OLD), seen({A0: 2}, a=NEW), {A0: 0}, "topic 'a' was deleted and created again"),
    ],
)
def test_losses(start: StreamOffsets, log: BrokerOffsets, resumed: dict[TopicPartition, int], message: str) -> None:
    found = position_in(start, log)
    assert found.offsets == resumed
    [loss] = found.losses
    assert re.match(message, loss)
