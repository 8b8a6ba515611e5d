"""A socket and the protocol's own codecs: what a test needs to say exactly what a client would not."""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kraftpy.broker.broker_proof import BrokerProof
from kraftpy.broker.metadata.secret import NO_SECRET_KEY
from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.directories import METADATA_DIRECTORY
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.quorum_messages import command_in, unpack_snapshot
from kraftpy.ports import Buffer
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.protocol.schema import decode
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import BrokerId

BOUND_SECONDS = 20.0

StartBroker = Callable[..., EmbeddedBroker]
"""The fixture `start_broker`."""


def connect(bootstrap: str, timeout: float = BOUND_SECONDS) -> socket.socket:
    """A connection whose reads give up after `timeout` seconds."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=BOUND_SECONDS)
    connection.settimeout(timeout)
    return connection


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes. Raises EOFError if the peer closes first."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def read_frame(connection: socket.socket) -> bytes:
    """One response, without its size."""
    return read_exactly(connection, struct.unpack(">i", read_exactly(connection, 4))[0])


def is_closed(connection: socket.socket) -> bool:
    """Wait for the peer to close; return False if it sends something instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def ask(connection: socket.socket, key: ApiKey, version: int, request: Any) -> Any:
    """The response to a request."""
    connection.sendall(encode_request(key, version, 7, "test", request))
    return answer(connection, key, version)


def answer(connection: socket.socket, key: ApiKey, version: int, correlation_id: int = 7) -> Any:
    """The next response, which must be to that request."""
    found, body = decode_response_header(key, version, read_frame(connection))
    assert found == correlation_id
    return decode(APIS[key].response, body, version)


def say_to_be_a_broker(connection: socket.socket, data: Path, *, to: int = 1, is_alone: bool = True) -> None:
    """Prove to node `to` that this is the broker that keeps its data there, with its registration in the metadata."""
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(data / METADATA_DIRECTORY, copied, dirs_exist_ok=True)
        journal = Journal(OsDirectory(copied))
        loaded = journal.load()
        journal.close()
    machine = MetadataStateMachine()
    if loaded.snapshot is not None:
        machine.restore(unpack_snapshot(loaded.snapshot.data).state)
    for entry in loaded.entries:
        if (command := command_in(entry.data)) is not None:
            machine.apply(entry.index, entry.term, command)
    name = next(line for line in (data / "meta.properties").read_text().splitlines() if line.startswith("node.id="))
    broker = machine.image.broker(BrokerId(int(name.partition("=")[2])))
    assert broker is not None
    key = bytes(32) if is_alone else blake2b(b"connections of brokers", key=NO_SECRET_KEY, digest_size=32).digest()
    proof = BrokerProof(
        broker.broker_id,
        image=lambda: machine.image,
        broker_epoch=lambda: broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        key=lambda: key,
    )
    software, said = proof.software_for(BrokerId(to))
    hello = ApiVersionsRequest(client_software_name=software, client_software_version=said)
    assert ask(connection, ApiKey.API_VERSIONS, 3, hello).error_code == ErrorCode.NONE


def serves(bootstrap: str) -> None:
    """Assert that the broker answers a new connection."""
    with connect(bootstrap) as connection:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        found = ask(connection, ApiKey.API_VERSIONS, 3, request)
        assert isinstance(found, ApiVersionsResponse)
        assert found.error_code == ErrorCode.NONE


def resident_mb(pid: int) -> float:
    """Megabytes of memory a process has now."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def create_topic(connection: socket.socket, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Create a topic (settings with underscores for dots); its id."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[
                    CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=5000,
    )
    created = ask(connection, ApiKey.CREATE_TOPICS, 7, request).topics[0]
    assert created.error_code == ErrorCode.NONE, created
    return bytes(created.topic_id)


def produce_request(topic: str, records: Buffer, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    """A request that appends one batch."""
    data = PartitionProduceData(index=partition, records=records)  # type: ignore[arg-type]
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])


def produce(connection: socket.socket, topic: str, records: Buffer, version: int = 9, *, partition: int = 0) -> Any:
    """Append one batch; the partition's answer."""
    found = ask(connection, ApiKey.PRODUCE, version, produce_request(topic, records, partition=partition))
    return found.responses[0].partition_responses[0]


def produce_values(connection: socket.socket, topic: str, *values: bytes, partition: int = 0) -> int:
    """Append records in one batch; the offset of the first."""
    batch = encode_batch([(1_700_000_000_000, None, value, ()) for value in values])
    answered = produce(connection, topic, batch, partition=partition)
    assert answered.error_code == ErrorCode.NONE, answered
    return int(answered.base_offset)


def fetch_request(topic: str, offset: int, *, partition: int = 0, max_wait_ms: int = 0, **more: Any) -> FetchRequest:
    """A request for one partition, without a session."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])], **more
    )


def fetch(connection: socket.socket, topic: str, offset: int, *, partition: int = 0, max_wait_ms: int = 0) -> Any:
    """The records and bounds that a fetch of one partition returns."""
    request = fetch_request(topic, offset, partition=partition, max_wait_ms=max_wait_ms)
    return ask(connection, ApiKey.FETCH, 12, request).responses[0].partitions[0]


def read_all(bootstrap: str, topic: str, *, partition: int = 0, offset: int = 0) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record there is from an offset on."""
    found: list[tuple[int, bytes | None]] = []
    with connect(bootstrap) as connection:
        while True:
            answered = fetch(connection, topic, offset, partition=partition)
            assert answered.error_code == ErrorCode.NONE, answered.error_code
            if not answered.records:
                assert answered.high_watermark == offset
                return found
            for header, batch in split_batches(answered.records):
                for record in iter_records(batch):
                    value = None if record.value is None else bytes(record.value)
                    found.append((record.offset, value))
                offset = header.next_offset
