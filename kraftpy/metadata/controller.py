"""The metadata state machine: `decide` a command on an image, `replay` what was decided, the same on every node.

    committed bytes -> decode_command -> decide(command, image) -> Decision(records, result, error)
                                                                       | image.replay(record) ...

`decide` changes nothing and may refuse; replaying may not. Both depend on their arguments alone: no clock, no chance,
no setting of the broker at hand, no order of a set. So `MetadataStateMachine.apply` can stand behind any log of
commands: the local journal of a single node, or a quorum.

`apply` is total. Bytes that are no command, or a failure of ours within `decide`, become a refusal that changes
nothing, since a command that raises would raise on every node and at every restart. What does stop the node: a
command that a newer version wrote, want of memory (the other nodes may have had it), and a failure within `replay`,
with half a decision taken in.

Left out: who may ask what (the handlers' part), and whether a command was applied before (creating a topic under its
own id twice is harmless; a block of producer ids given twice is only lost).
"""

from __future__ import annotations

from typing import Any, assert_never, overload

from kraftpy.metadata import brokers, configs, topics
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import (
    AllocateProducerIds,
    ChangeBroker,
    ChangePartitions,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FormatCluster,
    NewerSchemaError,
    RegisterBroker,
    SetConfigs,
    decode_command,
)
from kraftpy.metadata.decision import (
    BrokerResult,
    ConfigResult,
    Decision,
    PartitionResult,
    ProducerIdBlock,
    TopicResult,
)
from kraftpy.metadata.image import Image
from kraftpy.metadata.topics import is_internal, topic_name_problem
from kraftpy.protocol.errors import ErrorCode

__all__ = ["Decision", "MetadataStateMachine", "decide", "is_internal", "topic_name_problem"]


@overload
def decide(
    command: CreateTopics | DeleteTopics | CreatePartitions, image: Image
) -> Decision[tuple[TopicResult, ...]]: ...
@overload
def decide(command: SetConfigs, image: Image) -> Decision[tuple[ConfigResult, ...]]: ...
@overload
def decide(command: RegisterBroker | ChangeBroker, image: Image) -> Decision[BrokerResult]: ...
@overload
def decide(command: AllocateProducerIds, image: Image) -> Decision[ProducerIdBlock]: ...
@overload
def decide(command: ChangePartitions, image: Image) -> Decision[tuple[PartitionResult, ...]]: ...
@overload
def decide(command: FormatCluster, image: Image) -> Decision[None]: ...
@overload
def decide(command: Command, image: Image) -> Decision[Any]: ...
def decide(command: Command, image: Image) -> Decision[Any]:
    """What the command comes to on this image. Changes nothing, so it also answers what is only to be validated."""
    match command:
        case CreateTopics():
            return topics.create_topics(command, image)
        case DeleteTopics():
            return topics.delete_topics(command, image)
        case CreatePartitions():
            return topics.create_partitions(command, image)
        case SetConfigs():
            return configs.set_configs(command, image)
        case AllocateProducerIds():
            return brokers.allocate_producer_ids(command, image)
        case RegisterBroker():
            return brokers.register_broker(command, image)
        case ChangeBroker():
            return brokers.change_broker(command, image)
        case ChangePartitions():
            return brokers.change_partitions(command, image)
        case FormatCluster():
            return brokers.format_cluster(command, image)
        case _:
            assert_never(command)


class MetadataStateMachine:
    """An image, and the one way to change it: committed commands, in order."""

    __slots__ = ("image",)

    def __init__(self, image: Image | None = None) -> None:
        self.image = image or Image()

    def apply(self, command: bytes | memoryview) -> Decision[Any]:
        """Decide a committed command and take the decision in. Of all that it may hold, a newer schema alone raises."""
        try:
            decision = decide(decode_command(command), self.image)
        except (NewerSchemaError, MemoryError, RecursionError):
            raise
        except CodecError as error:
            return Decision(error=ErrorCode.INVALID_REQUEST, message=str(error))
        except Exception as error:
            message = f"a metadata command could not be decided: {type(error).__name__}: {error}"
            return Decision(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=message)
        for record in decision.records:
            self.image.replay(record)
        return decision

    def snapshot(self) -> bytes:
        """Everything that was applied, as bytes that `restore` takes."""
        return self.image.to_bytes()

    def restore(self, snapshot: bytes | memoryview) -> None:
        """Replace the image. Raises `CodecError`, and then nothing is replaced."""
        self.image = Image.from_bytes(snapshot)
