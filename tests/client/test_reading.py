from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.consumer.fetch_session import FetchPosition, FetchSession
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.protocol.record_batch import ControlType, CorruptBatch, encode_batch, encode_control_batch
from kraftpy.types import TopicPartition

T0 = TopicPartition("t", 0)


def batch(base_offset: int, count: int, **options: object) -> bytes:
    records = [(1000 + n, None, b"%d" % (base_offset + n), ()) for n in range(count)]
    return encode_batch(records, base_offset=base_offset, leader_epoch=3, **options)  # type: ignore[arg-type]


def drain(reader: PartitionReader) -> list[int]:
    offsets = []
    while reader.decode_next(check_crcs=True):
        offsets += [record.offset for record in reader.hand_out(1_000)]
    return offsets


def test_records_before_the_position_and_in_a_batch_cut_short_are_not_handed_out() -> None:
    reader = PartitionReader(T0)
    reader.seek(12)
    reader.received(batch(10, 5) + batch(15, 2) + batch(17, 9)[:-1], None)
    assert reader.fetch_offset == 17
    assert drain(reader) == [12, 13, 14, 15, 16]
    assert (reader.position, reader.done, reader.leader_epoch, reader.buffered_bytes) == (17, 12, 3, 0)


def test_a_record_carries_everything() -> None:
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.received(encode_batch([(5, b"k", None, (("h", b"1"), ("h", None)))], leader_epoch=8), None)
    assert reader.decode_next(check_crcs=True)
    record = reader.hand_out(1)[0]
    assert tuple(record) == ("t", 0, 0, 5, b"k", None, (("h", b"1"), ("h", None)), 0, 8)


def marker(offset: int, producer_id: int = 7, kind: ControlType = ControlType.COMMIT) -> bytes:
    return encode_control_batch(
        kind, timestamp=1, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, base_offset=offset
    )


def aborted(base_offset: int, count: int) -> bytes:
    return batch(base_offset, count, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)


@pytest.mark.parametrize(
    ("behind", "end"),
    [
        (marker(2), 3),
        (marker(2) + marker(3) + marker(4), 5),
        (aborted(2, 4) + marker(6, kind=ControlType.ABORT), 7),
        (marker(2) + aborted(3, 4) + marker(7, kind=ControlType.ABORT) + marker(8), 9),
    ],
)
def test_what_is_no_record_belongs_to_the_record_before_it(behind: bytes, end: int) -> None:
    """A consumer that has handed out the last record stands at the end, as Kafka's does: a commit leaves no lag."""
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.last_stable_offset = end
    reader.received(batch(0, 2) + behind, [(7, 2)])
    assert reader.decode_next(check_crcs=True)
    reader.hand_out(1)
    assert (reader.position, reader.lag) == (1, end - 1)
    reader.hand_out(1)
    assert (reader.position, reader.lag, reader.buffered_bytes, reader.done) == (end, 0, 0, 0)
    assert not reader.decode_next(check_crcs=True)


def test_the_position_stops_before_the_next_record() -> None:
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.received(batch(0, 2) + marker(2) + batch(3, 1) + marker(4), None)
    assert reader.decode_next(check_crcs=True)
    reader.hand_out(9)
    assert reader.position == 3
    assert drain(reader) == [3]
    assert reader.position == 5


def test_a_seek_forgets_where_the_last_batch_ended() -> None:
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.received(batch(0, 2) + marker(2), None)
    assert reader.decode_next(check_crcs=True)
    reader.seek(1)
    assert reader.hand_out(9) == []
    assert reader.position == 1
    reader.received(batch(0, 2) + marker(2), None)
    assert drain(reader) == [1]
    assert reader.position == 3


def test_aborted_transactions_and_markers_are_passed_over() -> None:
    def transaction(base_offset: int, producer_id: int) -> bytes:
        return batch(base_offset, 2, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)

    def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
        return encode_control_batch(
            kind, timestamp=1, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, base_offset=offset
        )

    log = (
        transaction(0, 7)
        + transaction(2, 8)
        + marker(4, 7, ControlType.ABORT)
        + transaction(5, 7)
        + marker(7, 8, ControlType.COMMIT)
        + marker(8, 7, ControlType.COMMIT)
    )
    committed = PartitionReader(T0)
    committed.seek(0)
    committed.received(log, [(7, 0)])
    assert drain(committed) == [2, 3, 5, 6]
    assert (committed.position, committed.done) == (9, 2)  # records aborted before the first one are finished
    uncommitted = PartitionReader(T0)
    uncommitted.seek(0)
    uncommitted.received(log, None)
    assert drain(uncommitted) == [0, 1, 2, 3, 5, 6]


def test_what_is_passed_over_tells_its_epoch_as_records_do() -> None:
    """Otherwise a log whose leader changed before a marker looks as if it had been truncated there."""
    marker = encode_control_batch(
        ControlType.COMMIT,
        timestamp=1,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        base_offset=2,
        leader_epoch=4,
    )
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.received(batch(0, 2) + marker, [])
    assert drain(reader) == [0, 1]
    assert (reader.position, reader.leader_epoch) == (3, 4)


def test_a_marker_behind_the_last_record_is_finished_with_it() -> None:
    marker = encode_control_batch(
        ControlType.COMMIT, timestamp=1, producer_id=7, producer_epoch=0, coordinator_epoch=0, base_offset=2
    )
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.received(batch(0, 2), [])
    assert drain(reader) == [0, 1]
    reader.done = reader.position  # the application asks for more
    reader.received(marker, [])
    assert drain(reader) == []
    assert (reader.position, reader.done) == (3, 3)


def test_a_corrupt_batch_leaves_the_position_before_it() -> None:
    good, bad = batch(0, 2), bytearray(batch(2, 2))
    bad[-1] ^= 1
    reader = PartitionReader(T0)
    reader.seek(0)
    reader.received(good + bytes(bad), None)
    assert reader.decode_next(check_crcs=True)
    reader.hand_out(10)
    with pytest.raises(CorruptBatch):
        reader.decode_next(check_crcs=True)
    assert reader.position == 2
    reader.refetch()
    assert (reader.fetch_offset, reader.buffered_bytes) == (2, 0)


@given(st.lists(st.sampled_from(["fetch", "take", "seek", "ask"]), max_size=40), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_three_offsets_stay_in_order_and_no_record_is_given_twice(
    acts: list[str], limit: int
) -> None:
    log = [batch(base, 5) for base in range(0, 50, 5)]
    reader = PartitionReader(T0)
    reader.seek(0)
    expected = 0
    for act in acts:
        match act:
            case "fetch":
                reader.received(b"".join(log[reader.fetch_offset // 5 :][:2]), None)
            case "take":
                if reader.decode_next(check_crcs=False):
                    offsets = [record.offset for record in reader.hand_out(limit)]
                    assert offsets == list(range(expected, expected + len(offsets)))
                    expected += len(offsets)
            case "seek":
                expected = 20
                reader.seek(20)
            case "ask":
                reader.done = reader.position
        assert reader.done is not None
        assert reader.position is not None
        assert reader.done <= reader.position <= reader.fetch_offset
        assert reader.position == expected


def position(offset: int, topic_id: bytes = b"i" * 16) -> FetchPosition:
    return FetchPosition(topic_id, offset, 0, 100)


def test_a_fetch_session_sends_only_what_changed() -> None:
    session, other = FetchSession(), TopicPartition("t", 1)
    first = session.build({T0: position(0), other: position(0)})
    assert (first.session_id, first.session_epoch, set(first.partitions)) == (0, 0, {T0, other})
    session.answered(77)
    second = session.build({T0: position(5), other: position(0)})
    assert (second.session_id, second.session_epoch, set(second.partitions)) == (77, 1, {T0})
    session.answered(77)
    third = session.build({T0: position(5)})
    assert (third.session_epoch, third.partitions, third.forgotten) == (2, {}, ((other, b"i" * 16),))
    session.answered(77)
    again = session.build({T0: position(5), other: position(9)})
    assert set(again.partitions) == {other}


def test_a_fetch_session_starts_anew_after_doubt() -> None:
    session = FetchSession()
    session.build({T0: position(0)})
    session.answered(77)
    recreated = session.build({T0: position(0, b"j" * 16)})
    assert (recreated.session_id, set(recreated.partitions)) == (0, {T0})
    session.answered(0)  # the broker has no room for a session
    assert session.build({T0: position(0)}).session_epoch == 0
    session.answered(78)
    session.epoch = 2**31 - 1
    session.answered(78)
    assert session.epoch == 1
