"""Hosts of brokers in commands and snapshots: without any, both are read and written as before.

`hosts.script` says what is decided.
"""

from __future__ import annotations

import msgpack

from kraftpy.metadata.commands import CreateTopics, NewTopic, RegisterBroker, decode_command, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.image import Image
from kraftpy.types import BrokerId, Millis, TopicId

FIRST = {
    "broker_id": 1,
    "incarnation_id": bytes(16),
    "endpoints": [],
    "time_ms": 0,
    "rack": "east",
    "fenced": False,
}
"""A registration as versions before hosts wrote it."""


def test_only_metadata_with_a_host_needs_the_newest_version() -> None:
    machine = MetadataStateMachine()
    schemas = []
    for index, host in enumerate((None, "rack-7", None), 1):
        command = RegisterBroker(
            broker_id=BrokerId(1),
            incarnation_id=bytes([index]) * 16,
            endpoints=(),
            time_ms=Millis(0),
            previous_session_expired=True,
            host=host,
        )
        schemas.append(msgpack.unpackb(encode_command(command))[0])
        assert decode_command(encode_command(command)) == command
        assert not machine.apply(index, 1, encode_command(command)).decision.error
        schemas.append(msgpack.unpackb(machine.snapshot())[0])
        restored = Image.from_bytes(machine.snapshot()).broker(BrokerId(1))
        assert restored is not None
        assert restored.host == host
    assert schemas == [4, 4, 8, 8, 4, 4]


def test_commands_and_snapshots_without_hosts_mean_what_they_meant() -> None:
    machine = MetadataStateMachine()
    for number in (1, 2, 3):
        data = msgpack.packb([4, 2, {**FIRST, "broker_id": number}])
        assert not machine.apply(number, 1, data).decision.error
    snapshot = machine.snapshot()
    plain = msgpack.unpackb(snapshot)
    assert plain[0] == 4
    assert not any("host" in each for each in plain[1]["brokers"])
    for image in (machine.image, Image.from_bytes(snapshot)):
        assert [broker.host for broker in image.brokers()] == [None] * 3
    other = MetadataStateMachine()
    other.restore(snapshot)
    create = CreateTopics(
        topics=(NewTopic(name="t", topic_id=TopicId(b"t" * 16), partitions=3, replication_factor=2),), time_ms=Millis(0)
    )
    for each in (machine, other):
        assert not each.apply(4, 1, encode_command(create)).decision.error
        topic = each.image.topic("t")
        assert topic is not None
        assert [partition.replicas for partition in topic.partitions] == [(1, 2), (2, 3), (3, 1)]
