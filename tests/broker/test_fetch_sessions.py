"""Fetch sessions by the rules of KIP-227: epochs, partitions left out of an answer, eviction."""

from __future__ import annotations

import itertools

import pytest

from kraftpy.broker.replication.fetch_sessions import EVICTION_MS, FetchContext, FetchSessions
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from kraftpy.types import Millis

NOW = Millis(1_000_000)
LAST_EPOCH = 2**31 - 1
TOPIC_ID = bytes(range(16))


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, itertools.count(1).__next__)


def request(
    session_id: int = 0,
    epoch: int = 0,
    *partitions: int,
    forget: tuple[int, ...] = (),
    topic: str = "t",
    offset: int = 0,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=100)
                    for number in partitions
                ],
            )
        ],
        forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=list(forget))] if forget else [],
    )


def answer(
    number: int, *, records: bytes = b"", error: ErrorCode = ErrorCode.NONE, end: int = 5, start: int = 0
) -> PartitionData:
    if error is not ErrorCode.NONE:
        return PartitionData(partition_index=number, error_code=error)
    return PartitionData(partition_index=number, high_watermark=end, log_start_offset=start, records=records)


def sent(context: FetchContext, **answers: object) -> list[int]:
    """The partitions whose (unchanging, empty) answer is sent."""
    return [p.partition for p in context.partitions if context.include(p, answer(p.partition, **answers))]  # type: ignore[arg-type]


def numbers(context: FetchContext) -> list[int]:
    return [partition.partition for partition in context.partitions]


def refusal(store: FetchSessions, asked: FetchRequest, version: int = 12, now: Millis = NOW) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        store.open(asked, version, now)
    return caught.value.code


def test_a_full_request_makes_a_session_and_answers_everything() -> None:
    store = sessions()
    context = store.open(request(0, 0, 0, 1), 12, NOW)
    assert (context.session_id, context.incremental, numbers(context)) == (1, False, [0, 1])
    assert sent(context) == [0, 1]


def test_an_incremental_request_answers_only_what_changed() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0, 1, 2), 12, NOW))
    assert sent(store.open(request(1, 1), 12, NOW)) == [], "same high watermark, same start, no records"
    assert sent(store.open(request(1, 2), 12, NOW), records=b"x") == [0, 1, 2]
    assert sent(store.open(request(1, 3), 12, NOW), end=6) == [0, 1, 2]
    assert sent(store.open(request(1, 4), 12, NOW), end=6) == []
    assert sent(store.open(request(1, 5), 12, NOW), end=6, start=1) == [0, 1, 2]


def test_after_an_error_a_partition_is_sent_again_though_nothing_else_changed() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    assert sent(store.open(request(1, 1), 12, NOW), error=ErrorCode.KAFKA_STORAGE_ERROR) == [0]
    assert sent(store.open(request(1, 2), 12, NOW), error=ErrorCode.KAFKA_STORAGE_ERROR) == [0], "errors always"
    assert sent(store.open(request(1, 3), 12, NOW)) == [0]
    assert sent(store.open(request(1, 4), 12, NOW)) == []


def test_partitions_are_added_changed_and_forgotten() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0, 1), 12, NOW))
    context = store.open(request(1, 1, 1, 2, forget=(0,), offset=7), 12, NOW)
    assert numbers(context) == [1, 2]
    assert [partition.fetch_offset for partition in context.partitions] == [7, 7]
    assert sent(context) == [2], "what is new in the session is sent; what only moved is not"


def test_a_partition_that_is_added_and_forgotten_at_once_is_forgotten() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0, 1), 12, NOW))
    context = store.open(request(1, 1, 1, 2, forget=(1, 2)), 12, NOW)
    assert (numbers(context), context.asked) == ([0], [])


def test_a_session_without_partitions_is_closed() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    context = store.open(request(1, 1, forget=(0,)), 12, NOW)
    assert (context.session_id, len(store)) == (0, 0)


def test_the_epoch_must_match_exactly() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    assert refusal(store, request(1, 2)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sent(store.open(request(1, 1), 12, NOW))
    assert refusal(store, request(1, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH, "a repeated request"
    sent(store.open(request(1, 2), 12, NOW))


def test_an_unknown_session() -> None:
    store = sessions()
    assert refusal(store, request(5, 1, 0)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(store, request(0, 1, 0)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_wraps_to_one() -> None:
    store = sessions()
    context = store.open(request(0, 0, 0), 12, NOW)
    assert context.session is not None
    context.session.epoch = LAST_EPOCH
    store.open(request(1, LAST_EPOCH), 12, NOW)
    store.open(request(1, 1), 12, NOW)


def test_a_request_that_was_overtaken_must_not_answer() -> None:
    """Two requests of one session at once, on two connections: only the later one's answer moves the session."""
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    waiting = store.open(request(1, 1), 12, NOW)
    assert not waiting.is_overtaken
    store.open(request(1, 2), 12, NOW)
    assert waiting.is_overtaken


def test_a_full_request_replaces_the_session_it_names() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    context = store.open(request(1, 0, 3), 12, NOW)
    assert (context.session_id, len(store), numbers(context)) == (2, 1, [3])


def test_the_final_epoch_ends_the_session_and_answers_once() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    context = store.open(request(1, -1, 0, 1), 12, NOW)
    assert (context.session_id, len(store), sent(context)) == (0, 0, [0, 1])


@pytest.mark.parametrize("version", [4, 6])
def test_versions_without_sessions_make_none(version: int) -> None:
    store = sessions()
    asked = request(0, -1, 0)
    assert store.open(asked, version, NOW).session_id == 0
    assert len(store) == 0


def test_a_request_for_nothing_makes_a_session_that_its_next_request_may_fill() -> None:
    store = sessions()
    assert store.open(request(), 12, NOW).session_id == 1
    context = store.open(request(1, 1, 0), 12, NOW)
    assert (context.session_id, numbers(context), sent(context)) == (1, [0], [0])


def test_a_session_that_stays_empty_is_closed() -> None:
    store = sessions()
    store.open(request(), 12, NOW)
    context = store.open(request(1, 1), 12, NOW)
    assert (context.session_id, numbers(context), len(store)) == (0, [], 0)


def test_a_follower_that_fetches_nothing_has_no_session() -> None:
    store = sessions()
    assert store.open(request(), 15, NOW, follower_id=2).session_id == 0
    assert len(store) == 0


def test_ids_and_names_do_not_mix_in_a_session() -> None:
    store = sessions()
    sent(store.open(request(0, 0, 0), 12, NOW))
    assert refusal(store, request(1, 1), version=13) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    sent(store.open(request(1, 1), 12, NOW))


def test_a_topic_created_again_is_another_partition_of_the_session() -> None:
    store = sessions()

    def by_id(topic_id: bytes, session_id: int, epoch: int) -> FetchRequest:
        asked = request(session_id, epoch, 0, topic="")
        asked.topics[0].topic_id = topic_id
        return asked

    sent(store.open(by_id(TOPIC_ID, 0, 0), 13, NOW))
    assert len(store.open(by_id(TOPIC_ID[::-1], 1, 1), 13, NOW).partitions) == 2


def test_what_returned_records_is_served_last_next_time() -> None:
    store = sessions()
    context = store.open(request(0, 0, 0, 1, 2), 12, NOW)
    for partition in context.partitions:
        context.include(partition, answer(partition.partition, records=b"x" if partition.partition == 0 else b""))
    assert numbers(store.open(request(1, 1), 12, NOW)) == [1, 2, 0]


def test_a_partition_named_twice_is_served_once() -> None:
    assert numbers(sessions().open(request(0, 0, 3, 3), 12, NOW)) == [3]


# --- room ---


def test_without_room_there_is_no_session_but_an_answer() -> None:
    store = sessions(slots=1)
    sent(store.open(request(0, 0, 0), 12, NOW))
    context = store.open(request(0, 0, 0, 1, 2), 12, Millis(NOW + 1))
    assert (context.session_id, sent(context)) == (0, [0, 1, 2]), "a young session stays, however small"
    store.open(request(1, 1), 12, NOW)


def test_a_session_unused_for_long_makes_room() -> None:
    store = sessions(slots=2)
    store.open(request(0, 0, 0), 12, NOW)
    store.open(request(0, 0, 0, 1, 2), 12, NOW)
    later = Millis(NOW + EVICTION_MS + 1)
    store.open(request(1, 1), 12, later)
    assert store.open(request(0, 0, 5), 12, later).session_id == 3
    assert refusal(store, request(2, 1), now=later) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    store.open(request(1, 2), 12, later)


def test_an_old_smaller_session_makes_room_for_a_larger_one() -> None:
    store = sessions(slots=1)
    store.open(request(0, 0, 0, 1), 12, NOW)
    later = Millis(NOW + EVICTION_MS)
    store.open(request(1, 1), 12, later)
    much_later = Millis(later + EVICTION_MS)
    assert store.open(request(0, 0, 7, 8), 12, much_later).session_id == 0, "as large, and in use: it stays"
    assert store.open(request(0, 0, 7, 8, 9), 12, much_later).session_id == 2


def test_no_slots_means_no_sessions() -> None:
    store = sessions(slots=0)
    assert store.open(request(0, 0, 0), 12, NOW).session_id == 0


def test_a_follower_has_a_session_for_each_set_of_partitions() -> None:
    store = sessions(slots=10)
    first = store.open(request(0, 0, 0), 12, NOW, follower_id=2).session
    second = store.open(request(0, 0, 1), 12, NOW, follower_id=2).session
    assert first is not None
    assert second is not None
    assert len(store) == 2
    third = store.open(request(0, 0, 1, 2), 12, NOW, follower_id=2).session
    assert third is not None
    assert len(store) == 2
    assert second.changed_keys is not None
    assert second.changed_keys.is_over, "a partition is fetched in one session at a time"
    store.open(request(0, 0, 3), 12, Millis(NOW + EVICTION_MS + 1), follower_id=2)
    assert len(store) == 1, "what is idle is of before the follower started again"


def test_a_follower_has_one_session_and_it_takes_the_place_of_a_clients() -> None:
    store = sessions(slots=2)
    client = store.open(request(0, 0, 0), 12, NOW).session_id
    first = store.open(request(0, 0, 0), 12, NOW, follower_id=2).session
    again = store.open(request(0, 0, 0), 12, NOW, follower_id=2).session_id
    assert len(store) == 2
    assert first is not None
    assert first.changed_keys is not None
    assert first.changed_keys.is_over
    other = store.open(request(0, 0, 0), 12, NOW, follower_id=3).session_id
    assert 0 not in (again, other)
    assert refusal(store, request(client, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(store, request(other, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "it is nobody else's"


def test_a_consumer_does_not_end_a_followers_session() -> None:
    store = sessions()
    followers = store.open(request(0, 0, 0), 15, NOW, follower_id=2).session_id
    own = store.open(request(0, 0, 0), 15, NOW).session_id
    for epoch in (0, -1):
        store.open(request(followers, epoch, 0), 15, NOW)
    assert store.open(request(followers, 1), 15, NOW, follower_id=2).session_id == followers
    store.open(request(own, -1, 0), 15, NOW)
    with pytest.raises(KafkaError):
        store.open(request(own, 1), 15, NOW)
