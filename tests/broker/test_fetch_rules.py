"""Fetch: long polls, limits, errors, over the wire, byte by byte as a client would ask."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker_wire import (
    StartBroker,
    answer,
    ask,
    connect,
    create_topic,
    fetch,
    fetch_request,
    produce,
    produce_request,
    produce_values,
    serves,
)

from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.record_batch import encode_batch, split_batches
from kraftpy.testing.cluster import EmbeddedBroker

FOR_EVER_MS = 2**31 - 1
VERSIONS = range(APIS[ApiKey.FETCH].first, APIS[ApiKey.FETCH].last + 1)


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    return f"fetched-{time.time_ns()}"


@pytest.fixture
def asking(kraftpy_server: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


@pytest.fixture
def waiting(kraftpy_server: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


def poll(connection: socket.socket, request: FetchRequest, version: int = 12) -> None:
    connection.sendall(encode_request(ApiKey.FETCH, version, 7, "poll", request))


def is_silent(connection: socket.socket, seconds: float = 0.15) -> bool:
    """Nothing has arrived within that time. A wrong answer would have needed far less."""
    before = connection.gettimeout()
    connection.settimeout(seconds)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(before)
    return False


def several(
    topic: str,
    offsets: dict[int, int],
    *,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    partition_max_bytes: int = 1 << 20,
    **more: Any,
) -> FetchRequest:
    """A request for several partitions, each from its offset."""
    partitions = [
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for number, offset in offsets.items()
    ]
    topics = [FetchTopic(topic=topic, partitions=partitions)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics, **more)


# --- waiting ---


def test_an_append_ends_the_wait(asking: socket.socket, waiting: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    poll(waiting, fetch_request(topic, 0, max_wait_ms=FOR_EVER_MS))
    assert is_silent(waiting)
    produce_values(asking, topic, b"here")
    found = answer(waiting, ApiKey.FETCH, 12).responses[0].partitions[0]
    assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 1)
    assert b"here" in bytes(found.records)


def test_the_time_ends_the_wait_with_nothing(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    found = fetch(asking, topic, 0, max_wait_ms=20)
    assert (found.error_code, bytes(found.records), found.high_watermark) == (ErrorCode.NONE, b"", 0)
    assert (found.log_start_offset, found.last_stable_offset) == (0, 0)


@pytest.mark.parametrize("max_wait_ms", [0, -1])
def test_no_time_means_no_wait(asking: socket.socket, topic: str, max_wait_ms: int) -> None:
    create_topic(asking, topic)
    assert bytes(fetch(asking, topic, 0, max_wait_ms=max_wait_ms).records) == b""


def test_no_bytes_means_no_wait(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    request = several(topic, {0: 0}, min_bytes=0, max_wait_ms=FOR_EVER_MS)
    assert bytes(ask(asking, ApiKey.FETCH, 12, request).responses[0].partitions[0].records) == b""


def test_enough_bytes_from_several_partitions_end_the_wait(
    asking: socket.socket, waiting: socket.socket, topic: str
) -> None:
    create_topic(asking, topic, 3)
    batch = encode_batch([(1, None, b"x" * 100, ())])
    poll(waiting, several(topic, {0: 0, 1: 0, 2: 0}, min_bytes=3 * len(batch), max_wait_ms=FOR_EVER_MS))
    for partition in (0, 1):
        produce(asking, topic, batch, partition=partition)
        assert is_silent(waiting)
    produce(asking, topic, batch, partition=2)
    partitions = answer(waiting, ApiKey.FETCH, 12).responses[0].partitions
    assert [len(partition.records) for partition in partitions] == [len(batch)] * 3


def test_more_than_the_limit_is_not_waited_for(asking: socket.socket, topic: str) -> None:
    """`min_bytes` above `max_bytes` can never be had."""
    create_topic(asking, topic)
    produce_values(asking, topic, b"x" * 500)
    request = several(topic, {0: 0}, min_bytes=10_000, max_bytes=400, max_wait_ms=FOR_EVER_MS)
    assert len(ask(asking, ApiKey.FETCH, 12, request).responses[0].partitions[0].records) > 500


def test_the_deletion_of_the_topic_ends_the_wait(asking: socket.socket, waiting: socket.socket, topic: str) -> None:
    topic_id = create_topic(asking, topic)
    poll(waiting, fetch_request(topic, 0, max_wait_ms=FOR_EVER_MS))
    assert is_silent(waiting)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1000)
    assert ask(asking, ApiKey.DELETE_TOPICS, 6, request).responses[0].error_code == ErrorCode.NONE
    found = answer(waiting, ApiKey.FETCH, 12).responses[0].partitions[0]
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (found.high_watermark, found.log_start_offset, bytes(found.records)) == (-1, -1, b"")


def test_a_missing_partition_does_not_hurry_the_others(
    asking: socket.socket, waiting: socket.socket, topic: str
) -> None:
    """A client that asks for a deleted topic among others would ask again and again without a pause."""
    create_topic(asking, topic)
    poll(waiting, several(topic, {0: 0, 5: 0}, max_wait_ms=FOR_EVER_MS))
    assert is_silent(waiting)
    produce_values(asking, topic, b"here")
    partitions = answer(waiting, ApiKey.FETCH, 12).responses[0].partitions
    assert [partition.error_code for partition in partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_only_missing_partitions_are_not_waited_for(asking: socket.socket, topic: str) -> None:
    request = several(topic, {0: 0, 5: 0}, max_wait_ms=FOR_EVER_MS)
    partitions = ask(asking, ApiKey.FETCH, 12, request).responses[0].partitions
    assert {partition.error_code for partition in partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_error_is_told_at_once(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic, 2)
    request = several(topic, {0: 0, 1: 99}, max_wait_ms=FOR_EVER_MS)
    partitions = ask(asking, ApiKey.FETCH, 12, request).responses[0].partitions
    assert [partition.error_code for partition in partitions] == [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE]
    assert partitions[1].high_watermark == -1, "as Kafka: a partition with an error says nothing else"


def test_a_client_that_leaves_leaves_nothing_behind(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as asking:
        create_topic(asking, "left")
        for _ in range(50):
            with connect(broker.bootstrap) as waiting:
                poll(waiting, fetch_request("left", 0, max_wait_ms=FOR_EVER_MS))
        produce_values(asking, "left", b"here")
    serves(broker.bootstrap)
    assert "Traceback" not in broker.log_text
    assert broker.stop() == 0


# --- limits ---


def test_one_batch_comes_however_small_the_limits(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    produce_values(asking, topic, b"x" * 5000)
    produce_values(asking, topic, b"y" * 5000)
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}, {"max_bytes": -5}):
        records = ask(asking, ApiKey.FETCH, 12, several(topic, {0: 0}, **limits)).responses[0].partitions[0].records
        assert [header.base_offset for header, _ in split_batches(records)] == [0], limits


def test_only_the_first_partition_with_records_may_exceed_the_limit(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic, 3)
    for partition in (1, 2):
        produce_values(asking, topic, b"x" * 5000, partition=partition)
    found = ask(asking, ApiKey.FETCH, 12, several(topic, {0: 0, 1: 0, 2: 0}, max_bytes=100)).responses[0].partitions
    assert [bool(partition.records) for partition in found] == [False, True, False]
    assert [partition.high_watermark for partition in found] == [0, 1, 1]


def test_whole_batches_up_to_the_limits(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic, 2)
    size = len(encode_batch([(1, None, b"x" * 1000, ())]))
    for partition in (0, 1):
        for _ in range(10):
            produce(asking, topic, encode_batch([(1, None, b"x" * 1000, ())]), partition=partition)
    request = several(topic, {0: 0, 1: 0}, partition_max_bytes=4 * size + 5, max_bytes=6 * size + 5)
    found = ask(asking, ApiKey.FETCH, 12, request).responses[0].partitions
    # If a limit falls within a batch, the part before it may be returned, as in Kafka, or left out.
    assert [len(partition.records) // size for partition in found] == [4, 2]


def test_offsets_outside_the_log(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    produce_values(asking, topic, b"a", b"b", b"c")
    assert fetch(asking, topic, 3).error_code == ErrorCode.NONE
    assert fetch(asking, topic, 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(asking, topic, -1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    within = fetch(asking, topic, 1)
    assert [header.base_offset for header, _ in split_batches(within.records)] == [0], "whole batches"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(asking: socket.socket, topic: str, version: int) -> None:
    topic_id = create_topic(asking, topic)
    produce_values(asking, topic, b"value")
    request = fetch_request(topic, 0)
    request.topics[0].topic_id = topic_id
    found = ask(asking, ApiKey.FETCH, version, request)
    assert found.error_code == ErrorCode.NONE
    partition = found.responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark, partition.last_stable_offset) == (ErrorCode.NONE, 1, 1)
    assert partition.log_start_offset == (0 if version >= 5 else -1)
    assert b"value" in bytes(partition.records)
    assert found.responses[0].topic_id == (topic_id if version >= 13 else bytes(16))


@pytest.mark.parametrize("version", [13, 18])
def test_a_topic_id_that_is_not_known(asking: socket.socket, version: int) -> None:
    request = fetch_request("", 0)
    request.topics[0].topic_id = bytes(range(16))
    partition = ask(asking, ApiKey.FETCH, version, request).responses[0].partitions[0]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [13, 18])
def test_a_known_topic_id_with_a_partition_that_is_missing(asking: socket.socket, topic: str, version: int) -> None:
    request = fetch_request("", 0, partition=7)
    request.topics[0].topic_id = create_topic(asking, topic)
    partition = ask(asking, ApiKey.FETCH, version, request).responses[0].partitions[0]
    assert (partition.error_code, partition.aborted_transactions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


@pytest.mark.parametrize("version", [4, 12])
def test_a_topic_without_a_name_is_unknown_by_name(asking: socket.socket, version: int) -> None:
    partition = ask(asking, ApiKey.FETCH, version, fetch_request("", 0)).responses[0].partitions[0]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [13, 18])
def test_a_session_whose_topic_is_deleted_and_made_anew(asking: socket.socket, topic: str, version: int) -> None:
    first = fetch_request("", 0, session_epoch=0)
    first.topics[0].topic_id = create_topic(asking, topic)
    session_id = ask(asking, ApiKey.FETCH, version, first).session_id

    def later(epoch: int) -> int:
        request = FetchRequest(min_bytes=1, max_wait_ms=0, session_id=session_id, session_epoch=epoch)
        error: int = ask(asking, ApiKey.FETCH, version, request).responses[0].partitions[0].error_code
        return error

    deleted = DeleteTopicState(name=topic, topic_id=bytes(16))
    ask(asking, ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[deleted], timeout_ms=5000))
    assert later(1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create_topic(asking, topic)
    assert later(2) == ErrorCode.INCONSISTENT_TOPIC_ID
    anew = ask(asking, ApiKey.FETCH, version, first).responses[0].partitions[0]
    assert anew.error_code == ErrorCode.UNKNOWN_TOPIC_ID, "without a session, the id alone says which topic is meant"


def test_leader_epochs(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    produce_values(asking, topic, b"a")

    def with_epochs(current: int, last: int = -1, offset: int = 1) -> Any:
        request = fetch_request(topic, offset)
        request.topics[0].partitions[0].current_leader_epoch = current
        request.topics[0].partitions[0].last_fetched_epoch = last
        return ask(asking, ApiKey.FETCH, 12, request).responses[0].partitions[0]

    assert with_epochs(-1).error_code == ErrorCode.NONE
    assert with_epochs(0).error_code == ErrorCode.NONE
    assert with_epochs(9).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert with_epochs(0, last=0).diverging_epoch.epoch == -1
    diverging = with_epochs(0, last=0, offset=5)
    assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (0, 1)
    assert bytes(diverging.records) == b""


# --- sessions and order on one connection ---


def test_a_session_over_the_wire(asking: socket.socket, waiting: socket.socket, topic: str) -> None:
    create_topic(asking, topic, 2)
    first = ask(waiting, ApiKey.FETCH, 12, several(topic, {0: 0, 1: 0}, session_epoch=0))
    assert first.session_id > 0
    assert len(first.responses[0].partitions) == 2

    def later(epoch: int, **more: Any) -> FetchRequest:
        return FetchRequest(min_bytes=1, session_id=first.session_id, session_epoch=epoch, **more)

    assert ask(waiting, ApiKey.FETCH, 12, later(1, max_wait_ms=10)).responses == []
    poll(waiting, later(2, max_wait_ms=FOR_EVER_MS))
    assert is_silent(waiting)
    produce_values(asking, topic, b"here", partition=1)
    found = answer(waiting, ApiKey.FETCH, 12)
    assert [partition.partition_index for partition in found.responses[0].partitions] == [1]
    repeated = ask(waiting, ApiKey.FETCH, 12, later(2, max_wait_ms=0))
    assert repeated.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_moved_on_by_another_connection(asking: socket.socket, waiting: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    session_id = ask(waiting, ApiKey.FETCH, 12, several(topic, {0: 0}, session_epoch=0)).session_id
    poll(waiting, FetchRequest(min_bytes=1, max_wait_ms=FOR_EVER_MS, session_id=session_id, session_epoch=1))
    assert is_silent(waiting)
    ask(asking, ApiKey.FETCH, 12, FetchRequest(min_bytes=1, max_wait_ms=0, session_id=session_id, session_epoch=2))
    produce_values(asking, topic, b"here")
    assert answer(waiting, ApiKey.FETCH, 12).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_what_is_sent_behind_a_long_poll_is_answered_behind_it(
    asking: socket.socket, waiting: socket.socket, topic: str
) -> None:
    create_topic(asking, topic)
    poll(waiting, fetch_request(topic, 0, max_wait_ms=FOR_EVER_MS))
    second = produce_request(topic, encode_batch([(1, None, b"second", ())]))
    waiting.sendall(encode_request(ApiKey.PRODUCE, 9, 8, "poll", second))
    assert is_silent(waiting)
    produce_values(asking, topic, b"first")
    assert answer(waiting, ApiKey.FETCH, 12).responses[0].partitions[0].high_watermark == 1
    assert answer(waiting, ApiKey.PRODUCE, 9, 8).responses[0].partition_responses[0].base_offset == 1


# --- the order of partitions ---


@pytest.mark.parametrize("version", [4, 12, VERSIONS[-1]])
def test_partitions_are_answered_in_the_order_of_the_request(asking: socket.socket, topic: str, version: int) -> None:
    """Also if a topic comes again after another one, as in a client's session: the limits fall on the last ones."""
    ids = {}
    for name in (f"{topic}-a", f"{topic}-b"):
        ids[name] = create_topic(asking, name, partitions=2)
        for partition in range(2):
            produce_values(asking, name, b"value", partition=partition)
    order = [(f"{topic}-a", 1), (f"{topic}-b", 0), (f"{topic}-a", 0), (f"{topic}-b", 1)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[
            FetchTopic(
                topic=name if version < 13 else "",
                topic_id=ids[name] if version >= 13 else bytes(16),
                partitions=[FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)],
            )
            for name, partition in order
        ],
    )
    response = ask(asking, ApiKey.FETCH, version, request)
    names = {topic_id: name for name, topic_id in ids.items()}
    answered = [
        (names[topic.topic_id] if version >= 13 else topic.topic, each.partition_index)
        for topic in response.responses
        for each in topic.partitions
    ]
    assert answered == order
