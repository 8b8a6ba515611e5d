"""A bit of a sealed segment flips while the broker runs: readers get an error, never bad data, and all else works."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from broker_wire import StartBroker, ask, connect, create_topic, fetch, produce_values
from replicating import running, until

from kraftpy.client.connection import Connection
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.record_batch import read_header, split_batches

BOUND_SECONDS = 30.0
SEGMENT = "00000000000000000000.log"
BATCHES = 8
HEADER_BITS = {
    "base offset": 7 * 8 + 1,
    "base offset, high": 0 * 8 + 6,
    "length": 11 * 8,
    "length, high": 9 * 8,
    "leader epoch": 15 * 8 + 4,
    "magic": 16 * 8,
    "crc": 18 * 8 + 3,
    "attributes": 22 * 8 + 5,
    "last offset delta": 26 * 8,
    "max timestamp": 40 * 8,
    "producer id": 50 * 8,
    "records count": 60 * 8,
    "a record": 80 * 8 + 7,
}


def flip(path: Path, bit: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


def consume(bootstrap: str, topic: str, start: int, end: int) -> tuple[list[bytes | None], int | None]:
    """Read with confluent-kafka from an offset: values up to `end` or the first error, and its code."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bit-rot", "enable.auto.commit": False, "log_level": 0}
    )
    values: list[bytes | None] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
        deadline = time.monotonic() + BOUND_SECONDS
        while len(values) < end - start:
            assert time.monotonic() < deadline, values
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                return values, error.code()
            values.append(message.value())
        return values, None
    finally:
        consumer.close()


def test_every_kind_of_bit(start_broker: StartBroker) -> None:
    """In front of the damage and behind it all is read; at it there is an error, one line in the log, and no data."""
    broker = start_broker()
    expected_lines = 0
    with connect(broker.bootstrap) as connection:
        for kind, bit in HEADER_BITS.items():
            topic = kind.replace(" ", "-").replace(",", "")
            create_topic(connection, topic, internal_segment_bytes="1300")
            values = [b"%d:" % number + b"x" * 100 for number in range(3 * BATCHES)]
            for number in range(BATCHES):
                produce_values(connection, topic, *values[3 * number : 3 * number + 3])
            path = next(broker.data_dir.rglob(f"{topic}-0/{SEGMENT}"))
            batches = split_batches(path.read_bytes())
            assert 2 < len(batches) < BATCHES
            if len(kind) % 2:
                assert fetch(connection, topic, 0).error_code == ErrorCode.NONE  # it was read before, and was fine
            damaged = batches[1][0]
            flip(path, 8 * batches[0][0].size_bytes + bit)
            expected_lines += 1

            for _ in range(2):
                found = fetch(connection, topic, 3)
                assert (found.error_code, bytes(found.records or b"")) == (ErrorCode.CORRUPT_MESSAGE, b""), kind
            first = fetch(connection, topic, 0)
            assert (first.error_code, bytes(first.records)) == (ErrorCode.NONE, bytes(batches[0][1])), kind
            behind = fetch(connection, topic, damaged.next_offset)
            assert behind.error_code == ErrorCode.NONE, kind
            assert read_header(bytes(behind.records)).base_offset == damaged.next_offset

            lines = [line for line in broker.log_text.splitlines() if f"{topic}-0: damaged" in line]
            assert len(lines) == 1, broker.log_text
            assert str(path) in lines[0]
            assert f"at byte {batches[0][0].size_bytes}" in lines[0]
            assert "offsets 3 to 5" in lines[0]
            if kind in ("base offset", "length", "a record"):
                code = ErrorCode.CORRUPT_MESSAGE
                assert consume(broker.bootstrap, topic, 0, len(values)) == (values[:3], code), kind
                assert consume(broker.bootstrap, topic, 6, len(values)) == (values[6:], None), kind
    assert broker.log_text.count(": damaged: ") == expected_lines
    assert "Traceback" not in broker.log_text


def test_a_time_within_damage_is_an_error(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "timed", internal_segment_bytes="1000")
        for number in range(BATCHES):
            produce_values(connection, "timed", b"%d" % number + b"x" * 300)
        path = next(broker.data_dir.rglob(f"timed-0/{SEGMENT}"))
        flip(path, 8 * 100)
        partition = ListOffsetsPartition(partition_index=0, timestamp=1)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="timed", partitions=[partition])])
        found = ask(connection, ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0]
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE
        assert fetch(connection, "timed", 1).error_code == ErrorCode.NONE
    assert "Traceback" not in broker.log_text


async def test_damage_is_never_replicated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A follower that comes back gets what lies in front of the damage, and says what it waits for."""
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("copied", (1, 2), segment_bytes="1048576")
        for number in range(4):
            await cluster.nodes[1].produce("copied", b"%d" % number * 50)
        await cluster.stop(2)
        await cluster.fence(2)
        for number in range(4, 9):
            await cluster.nodes[1].produce("copied", b"%d" % number * 50)
        replica = cluster.replica(1, "copied")
        path = Path(replica.log.directory.path) / SEGMENT
        batches = split_batches(path.read_bytes()[: replica.log.segments.size_bytes])
        position = sum(header.size_bytes for header, _ in batches[:6])
        flip(path, 8 * (position + 70))
        with caplog.at_level(logging.ERROR):
            await cluster.start(2)
            await until(lambda: any("damaged at broker 1" in line for line in caplog.messages))
        assert cluster.replica(2, "copied").log.log_end_offset == 6
        assert cluster.nodes[2].log_bytes("copied") == b"".join(bytes(data) for _, data in batches[:6])
        flip(path, 8 * (position + 70))  # as if the segment had come back from a copy
        await cluster.caught_up("copied")
        assert cluster.nodes[1].log_bytes("copied") == cluster.nodes[2].log_bytes("copied")
    assert len([line for line in caplog.messages if "damaged at broker 1" in line]) == 1
    assert len([line for line in caplog.messages if "copied-0: damaged: " in line]) == 1


async def test_a_damaged_copy_is_refused_and_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bit that flips on the way to a follower: not appended, said once, asked for again."""
    flipped: list[int] = []
    is_flipping = False
    known = Connection.send

    async def with_a_flip(answer: asyncio.Future[Any]) -> Any:
        response = await answer
        for topic in response.responses if is_flipping else ():
            for partition in topic.partitions:
                if partition.records and len(flipped) < 3:
                    records = bytearray(partition.records)
                    records[70] ^= 4
                    partition.records = memoryview(records)
                    flipped.append(len(records))
        return response

    def send(self: Connection, key: ApiKey, *request: Any, **how: Any) -> asyncio.Future[Any]:
        answer = known(self, key, *request, **how)
        return asyncio.ensure_future(with_a_flip(answer)) if key is ApiKey.FETCH else answer

    monkeypatch.setattr(Connection, "send", send)
    async with running(tmp_path, 1, 2) as cluster:
        await cluster.create("copied", (1, 2))
        await cluster.nodes[1].produce("copied", b"first")
        await cluster.caught_up("copied")
        is_flipping = True
        with caplog.at_level(logging.ERROR):
            assert (await cluster.nodes[1].produce("copied", b"second")).error_code == ErrorCode.NONE
        assert len(flipped) == 3
        await cluster.caught_up("copied")
        assert cluster.nodes[1].log_bytes("copied") == cluster.nodes[2].log_bytes("copied")
    assert len([line for line in caplog.messages if "cannot append what" in line]) == 1
