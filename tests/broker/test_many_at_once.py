"""Clients that leave in the middle, requests that meet, and more partitions than open files."""

from __future__ import annotations

import socket
import struct
import threading
from random import Random

from broker_wire import StartBroker, ask, connect, create_topic, fetch, produce_request, produce_values, read_all

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kraftpy.protocol.record_batch import encode_batch

SEED = 20261121


def leave(connection: socket.socket) -> None:
    """Close with a reset, as a process does that dies."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def deletion(topic: str, offset: int) -> DeleteRecordsRequest:
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=1000)


def test_a_client_that_leaves_during_a_sync_costs_the_partition_nothing(start_broker: StartBroker) -> None:
    """The sync continues without it, and the log learns that it was done."""
    broker = start_broker()
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "synced", flush_messages="1")
        leavers = 60
        for number in range(leavers):
            leaver = connect(broker.bootstrap)
            request = produce_request("synced", encode_batch([(1, None, b"%d" % number, ())]))
            leaver.sendall(encode_request(ApiKey.PRODUCE, 9, 1, "leaver", request))
            leave(leaver)
        first = produce_values(connection, "synced", b"of one who stays")
        assert first <= leavers
        assert produce_values(connection, "synced", b"again") > first
    broker.kill()
    broker.start()
    values = [value for _, value in read_all(broker.bootstrap, "synced")]
    assert values[first] == b"of one who stays"
    assert "Traceback" not in broker.log_text


def test_checkpoints_that_meet(start_broker: StartBroker) -> None:
    """Each deletion of records writes the same file: one after the other, also for clients that have left."""
    broker = start_broker()
    topics = [f"shortened-{number}" for number in range(4)]
    with connect(broker.bootstrap) as connection:
        for topic in topics:
            create_topic(connection, topic)
            produce_values(connection, topic, *(b"%d" % number for number in range(20)))
    failures: list[object] = []

    def shorten(topic: str) -> None:
        with connect(broker.bootstrap) as mine:
            for offset in range(1, 16):
                leaver = connect(broker.bootstrap)
                leaver.sendall(encode_request(ApiKey.DELETE_RECORDS, 2, 1, "leaver", deletion(topic, offset)))
                leave(leaver)
                found = ask(mine, ApiKey.DELETE_RECORDS, 2, deletion(topic, offset)).topics[0].partitions[0]
                if (found.error_code, found.low_watermark) != (ErrorCode.NONE, offset):
                    failures.append(found)

    threads = [threading.Thread(target=shorten, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    broker.kill()
    broker.start()
    with connect(broker.bootstrap) as connection:
        for topic in topics:
            assert fetch(connection, topic, 15).log_start_offset == 15
    assert "Traceback" not in broker.log_text


def test_more_partitions_than_open_files(start_broker: StartBroker) -> None:
    """Logs are opened in several threads while clients use others; a log closed to make room opens again."""
    partitions, rounds = 150, 3
    broker = start_broker(settings={"num.recovery.threads.per.data.dir": "4"})
    chance = Random(SEED)
    expected: dict[tuple[str, int], list[bytes]] = {}

    def write(topic: str) -> None:
        with connect(broker.bootstrap) as connection:
            for partition in chance.sample(range(partitions), partitions):
                value = f"{topic} {partition} {chance.random()}".encode()
                produce_values(connection, topic, value, partition=partition)
                expected.setdefault((topic, partition), []).append(value)

    for number in range(rounds):
        with connect(broker.bootstrap) as connection:
            creating = threading.Thread(target=create_topic, args=(connection, f"many-{number}", partitions))
            creating.start()
            for earlier in range(number):
                write(f"many-{earlier}")
            creating.join()
        write(f"many-{number}")
    for end in (broker.kill, broker.stop):
        end()
        broker.start()
        for (topic, partition), values in chance.sample(sorted(expected.items()), 60):
            assert [value for _, value in read_all(broker.bootstrap, topic, partition=partition)] == values
    assert "Traceback" not in broker.log_text
