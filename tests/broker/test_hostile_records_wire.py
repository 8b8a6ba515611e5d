"""Batches that cost more than they are worth, against a broker: others are answered, and memory comes back."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from broker_wire import (
    BOUND_SECONDS,
    StartBroker,
    answer,
    ask,
    connect,
    create_topic,
    produce,
    produce_request,
    produce_values,
    read_all,
    resident_mb,
)
from hostile_batches import NOW, batch_of, bomb, empty_members, many_records, record

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.record_batch import encode_batch

MILLION = 1_000_000


def listing(topic: str, timestamp: int) -> ListOffsetsRequest:
    wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
    )


def answered_meanwhile(attacker: socket.socket, other: Callable[[], object], limit: int = 10_000) -> int:
    """Count another client's requests that are answered while the attacker's is pending."""
    count = 0
    while count < limit:
        other()
        if select.select([attacker], [], [], 0)[0]:
            return count
        count += 1
    return count


@pytest.mark.parametrize(
    "settings", [{"compression_type": "lz4"}, {"cleanup_policy": "compact"}], ids=["lz4", "compact"]
)
def test_a_million_records_hold_up_nobody(start_broker: StartBroker, settings: dict[str, str]) -> None:
    broker = start_broker()
    with connect(broker.bootstrap, 120) as attacker, connect(broker.bootstrap) as other:
        create_topic(other, "looked-at", max_message_bytes="20000000", **settings)
        create_topic(other, "plain")
        request = produce_request("looked-at", many_records(MILLION))
        attacker.sendall(encode_request(ApiKey.PRODUCE, 9, 7, "test", request))
        assert answered_meanwhile(attacker, lambda: produce_values(other, "plain", b"v")) >= 5
        found = answer(attacker, ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
        assert (found.error_code, found.base_offset) == (ErrorCode.NONE, 0)
        assert produce_values(other, "plain", b"v") > 5


def test_a_search_in_a_million_records_holds_up_nobody(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap, 120) as attacker, connect(broker.bootstrap) as other:
        create_topic(other, "plain")
        assert produce(other, "plain", many_records(MILLION, last_after_ms=10)).error_code == ErrorCode.NONE
        for timestamp in (NOW + 1, -3):
            attacker.sendall(encode_request(ApiKey.LIST_OFFSETS, 7, 7, "test", listing("plain", timestamp)))
            assert answered_meanwhile(attacker, lambda: ask(other, ApiKey.LIST_OFFSETS, 7, listing("plain", -1))) >= 5
            found = answer(attacker, ApiKey.LIST_OFFSETS, 7).topics[0].partitions[0]
            assert (found.error_code, found.offset) == (ErrorCode.NONE, MILLION - 1)


def test_what_expands_to_gigabytes_takes_little_memory_and_gives_it_back(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as client:
        create_topic(client, "lz4", compression_type="lz4")
        create_topic(client, "compacted", cleanup_policy="compact")
        create_topic(client, "plain")
        produce_values(client, "lz4", b"v")
        before = resident_mb(broker.pid)
        assert produce(client, "lz4", bomb()).error_code == ErrorCode.INVALID_RECORD
        assert produce(client, "compacted", bomb()).error_code == ErrorCode.INVALID_RECORD
        assert produce(client, "plain", bomb()).error_code == ErrorCode.NONE
        for timestamp in (NOW, -3):
            found = ask(client, ApiKey.LIST_OFFSETS, 7, listing("plain", timestamp)).topics[0].partitions[0]
            assert (found.error_code, found.offset) == (ErrorCode.NONE, 0)
        large = batch_of(record(value=bytes(120_000_000)))
        assert produce(client, "lz4", large).error_code == ErrorCode.NONE
        with open(f"/proc/{broker.pid}/status") as status:
            peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
        assert peak < before + 512
        deadline = time.monotonic() + BOUND_SECONDS
        while resident_mb(broker.pid) > before + 80:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_megabyte_of_empty_members_is_corrupt(start_broker: StartBroker, codec: Compression) -> None:
    broker = start_broker()
    with connect(broker.bootstrap) as client:
        create_topic(client, "t", compression_type="snappy", max_message_bytes="2000000")
        found = produce(client, "t", empty_members(codec))
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE
        assert produce_values(client, "t", b"v") == 0


def test_limits_are_settings(start_broker: StartBroker) -> None:
    broker = start_broker(
        settings={
            "kraftpy.batch.max.records": "10",
            "kraftpy.batch.max.headers": "20",
            "kraftpy.batch.max.expanded.bytes": "3000",
        }
    )
    with connect(broker.bootstrap) as client:
        create_topic(client, "plain")
        create_topic(client, "lz4", compression_type="lz4")
        told: list[tuple[ErrorCode, str]] = []
        for topic, batch in (
            ("plain", many_records(11)),
            ("lz4", many_records(11)),
            ("lz4", batch_of(record(headers=21))),
            ("lz4", batch_of(record(value=bytes(3000)))),
        ):
            found = produce(client, topic, batch)
            told.append((ErrorCode(found.error_code), found.error_message))
        assert [code.name for code, _ in told] == [
            "INVALID_RECORD",
            "INVALID_RECORD",
            "INVALID_RECORD",
            "MESSAGE_TOO_LARGE",
        ]
        for (_, text), name in zip(told, ("records", "records", "headers", "expanded.bytes"), strict=True):
            assert f"kraftpy.batch.max.{name}" in text
        assert produce(client, "plain", many_records(10)).error_code == ErrorCode.NONE
        assert produce(client, "lz4", batch_of(record(headers=20))).error_code == ErrorCode.NONE


def test_what_one_producer_sends_ahead_stays_in_order(start_broker: StartBroker) -> None:
    """Small batches do not overtake a large one of the same connection, nor of the same producer."""
    broker = start_broker()
    with connect(broker.bootstrap, 60) as client, connect(broker.bootstrap) as other:
        create_topic(client, "t", compression_type="lz4", max_message_bytes="20000000")
        sequence = 0
        sizes = (3, 60_000, 2, 40_000, 1)
        expected: list[bytes] = []
        for number, size in enumerate(sizes):
            values = [b"%d-%d" % (number, each) for each in range(size)]
            expected += values
            batch = encode_batch(
                [(NOW, None, value, ()) for value in values],
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
            )
            sequence += size
            client.sendall(encode_request(ApiKey.PRODUCE, 9, number, "test", produce_request("t", batch)))
        while not select.select([client], [], [], 0)[0]:
            produce_values(other, "t", b"other")
        for number in range(len(sizes)):
            found: Any = answer(client, ApiKey.PRODUCE, 9, number).responses[0].partition_responses[0]
            assert found.error_code == ErrorCode.NONE
        stored = [value for _, value in read_all(broker.bootstrap, "t") if value != b"other"]
        assert stored == expected
