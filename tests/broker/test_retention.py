"""Old records go, by size and by time, and stay gone; a client still reading them can finish."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from pathlib import Path

from broker_wire import (
    BOUND_SECONDS,
    StartBroker,
    answer,
    ask,
    connect,
    create_topic,
    fetch,
    fetch_request,
    produce,
    produce_values,
    read_all,
)
from hostile_batches import with_max

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.record_batch import encode_batch, split_batches
from kraftpy.testing.cluster import EmbeddedBroker

OFTEN = {"log.retention.check.interval.ms": "20", "log.initial.task.delay.ms": "0"}
VALUE = bytes(500)
LARGE_VALUE = bytes(1_000_000)
LARGE_RECORDS = 40  # more than sockets hold between them


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def start_offset(broker: EmbeddedBroker, topic: str) -> int:
    """The log's start offset, as a client sees it."""
    earliest = ListOffsetsPartition(partition_index=0, timestamp=-2)
    with connect(broker.bootstrap) as connection:
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[earliest])])
        found = ask(connection, ApiKey.LIST_OFFSETS, 6, request).topics[0].partitions[0]
    assert found.error_code == ErrorCode.NONE
    return int(found.offset)


def segments(directory: Path) -> list[int]:
    return sorted(int(path.name.split(".")[0]) for path in directory.glob("*.log"))


def batch(timestamp_ms: int) -> bytes:
    return encode_batch([(timestamp_ms, None, VALUE, ())])


def test_by_size_and_for_good(start_broker: StartBroker) -> None:
    broker = start_broker(settings=OFTEN)
    directory = broker.data_dir / "logs" / "sized-0"
    limit = 2500
    with connect(broker.bootstrap) as connection:
        create_topic(
            connection,
            "sized",
            retention_ms="-1",
            retention_bytes=str(limit),
            internal_segment_bytes="1000",  # a batch to a segment
            file_delete_delay_ms="0",
        )
        for _ in range(10):
            produce_values(connection, "sized", VALUE)
    size = (directory / f"{9:020d}.log").stat().st_size
    kept = math.ceil(limit / size)  # one less would be less than the limit
    until(lambda: start_offset(broker, "sized") == 10 - kept, "segments go until no more would leave enough")
    until(lambda: segments(directory) == list(range(10 - kept, 10)), "their files go")
    until(lambda: not list(directory.glob("*.deleted")), "what was set aside is deleted")
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        assert start_offset(broker, "sized") == 10 - kept
        assert [offset for offset, _ in read_all(broker.bootstrap, "sized", offset=10 - kept)] == [
            *range(10 - kept, 10)
        ]
        with connect(broker.bootstrap) as connection:
            assert fetch(connection, "sized", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_by_time_and_the_next_offset_is_the_next(start_broker: StartBroker) -> None:
    broker = start_broker(settings={**OFTEN, "log.retention.minutes": "60"})
    now, old = time.time_ns() // 1_000_000, 1_700_000_000_000
    with connect(broker.bootstrap) as connection:
        for topic in ("mixed", "expired"):
            create_topic(connection, topic, internal_segment_bytes="1000", file_delete_delay_ms="0")
        for timestamp in (old, now, old, now):
            assert produce(connection, "mixed", batch(timestamp)).error_code == ErrorCode.NONE
        for _ in range(3):
            assert produce(connection, "expired", batch(old)).error_code == ErrorCode.NONE
    until(lambda: start_offset(broker, "expired") == 3, "the segment that is written to goes, too")
    until(lambda: start_offset(broker, "mixed") == 1, "only what lies before the first young segment goes")
    logs = broker.data_dir / "logs"
    until(lambda: segments(logs / "expired-0") == [3], "its files go, once its start is written down")
    until(lambda: segments(logs / "mixed-0") == [1, 2, 3], "its file goes")
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        assert start_offset(broker, "mixed") == 1
        assert start_offset(broker, "expired") == 3
    with connect(broker.bootstrap) as connection:
        assert produce(connection, "expired", batch(now)).base_offset == 3


def test_a_header_that_lies_about_the_time_neither_keeps_nor_deletes(start_broker: StartBroker) -> None:
    broker = start_broker(settings={**OFTEN, "log.retention.minutes": "60"})
    now, old = time.time_ns() // 1_000_000, 1_700_000_000_000
    with connect(broker.bootstrap) as connection:
        for topic in ("lying", "later"):
            create_topic(connection, topic, internal_segment_bytes="1000", file_delete_delay_ms="0")
        for timestamp, claimed in ((old, now), (now, old)):
            assert produce(connection, "lying", with_max(batch(timestamp), claimed)).error_code == ErrorCode.NONE
        until(lambda: start_offset(broker, "lying") == 1, "the old record goes, whatever its header says")
        assert produce(connection, "later", batch(old)).error_code == ErrorCode.NONE
        until(lambda: start_offset(broker, "later") == 1, "all logs have been looked at since")
    assert start_offset(broker, "lying") == 1


def test_whoever_reads_slowly_gets_all_of_a_deleted_topic(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as reader, connect(broker.bootstrap) as connection:
        topic_id = create_topic(
            connection, "slow", file_delete_delay_ms="0", max_message_bytes="2000000", retention_ms="-1"
        )
        for _ in range(LARGE_RECORDS):
            produce_values(connection, "slow", LARGE_VALUE)
        request = fetch_request("slow", 0, max_bytes=2**31 - 1)
        request.topics[0].partitions[0].partition_max_bytes = 2**31 - 1
        reader.sendall(encode_request(ApiKey.FETCH, 12, 7, "test", request))
        reader.recv(1, socket.MSG_PEEK)  # the answer has begun
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=5000)
        assert ask(connection, ApiKey.DELETE_TOPICS, 6, deletion).responses[0].error_code == ErrorCode.NONE
        logs = broker.data_dir / "logs"
        until(lambda: not list(logs.glob("slow-0*")), "its files are gone")
        found = answer(reader, ApiKey.FETCH, 12).responses[0].partitions[0]
    assert found.error_code == ErrorCode.NONE
    assert [header.base_offset for header, _ in split_batches(found.records)] == list(range(LARGE_RECORDS))
