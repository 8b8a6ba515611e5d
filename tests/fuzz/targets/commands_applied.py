"""Entries of the metadata log, applied to an image that has topics, brokers and settings.

The machine is total: of all commands only a newer schema raises, and no decided command may fail in an unexpected way.
The resulting image can be saved and restored.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftpy.metadata import commands
from kraftpy.metadata.codec import pack
from kraftpy.metadata.commands import NewerSchemaError, encode_command
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, Millis, TopicId

ALLOWED = (NewerSchemaError,)
MORE_BYTES = 1 << 20
_NOW = Millis(1_700_000_000_000)


def _begun() -> bytes:
    machine = MetadataStateMachine()
    for index, command in enumerate(FIRST, 1):
        machine.apply(index, 1, encode_command(command))
    return machine.snapshot()


FIRST = (
    commands.FormatCluster(cluster_id="cluster", time_ms=_NOW),
    commands.RegisterBroker(
        broker_id=BrokerId(1),
        incarnation_id=b"1" * 16,
        endpoints=(commands.Endpoint(listener="PLAINTEXT", host="h", port=9092),),
        time_ms=_NOW,
        fenced=False,
    ),
    commands.CreateTopics(
        topics=(
            commands.NewTopic(name="odd", topic_id=TopicId(b"t" * 16), partitions=2, replication_factor=1),
            commands.NewTopic(name="odd-2", topic_id=TopicId(b"u" * 16), partitions=1, replication_factor=1),
        ),
        time_ms=_NOW,
    ),
)
MORE = (
    commands.DeleteTopics(topics=(commands.TopicReference(name="odd"),), time_ms=_NOW),
    commands.CreatePartitions(topics=(commands.NewPartitions(name="odd", count=3),), time_ms=_NOW),
    commands.SetConfigs(
        changes=(
            commands.ConfigChange(
                resource_type=2,
                resource_name="odd",
                operations=(
                    commands.ConfigOperation(
                        name="retention.ms", operation=commands.ConfigOperationType.SET, value="1000"
                    ),
                ),
            ),
        ),
        time_ms=_NOW,
    ),
    commands.UnregisterBroker(broker_id=BrokerId(1), time_ms=_NOW),
)


def one(data: bytes) -> None:
    """Entries, each after two bytes of its length."""
    machine = MetadataStateMachine()
    machine.restore(_BEGUN)
    position, index = 0, len(FIRST)
    while position + 2 <= len(data):
        size = int.from_bytes(data[position : position + 2], "big")
        entry = data[position + 2 : position + 2 + size]
        position += 2 + size
        index += 1
        applied = machine.apply(index, 1, entry)
        assert applied.decision.error != ErrorCode.UNKNOWN_SERVER_ERROR, applied.decision.message
    saved = machine.snapshot()
    machine.restore(saved)
    assert machine.snapshot() == saved


def seeds() -> Iterator[tuple[str, bytes]]:
    """Commands, bare and submitted, alone and in a row."""

    def framed(*entries: bytes) -> bytes:
        return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)

    submitted = [
        encode_submission(SubmissionId(node_id=1, nonce=b"n" * 8, sequence=number), command)
        for number, command in enumerate((*FIRST, *MORE))
    ]
    for number, command in enumerate((*FIRST, *MORE)):
        yield f"{number}-{type(command).__name__}", framed(encode_command(command))
    yield "all", framed(*map(encode_command, (*FIRST, *MORE)))
    yield "submitted", framed(*submitted, *submitted)
    for number, cls in sorted(commands._CLASSES.items()):
        yield f"empty-{cls.__name__}", framed(pack([commands.SCHEMA, number, {}]))
    yield "newer", framed(pack([commands.SCHEMA + 1, 1, {}]))


_BEGUN = _begun()
