"""The metadata state machine: `decide` a command on an image, `replay` the decision; every node computes the same.

    committed bytes -> decode_command -> decide(command, image) -> Decision(records, result, error)
                                                                       | image.replay(record) ...  -> Applied

`decide` changes nothing and may refuse; replay may not. Both depend on their arguments alone: no clock, no randomness,
no setting of the local broker, no set order. `MetadataStateMachine.apply` can therefore stand behind any log of
commands: the local journal of a single node, or a quorum.

`apply` is total. Bytes that are not a command, or a bug within `decide`, become a refusal that changes nothing, since a
command that raises would raise on every node and at every restart. Three things do stop the node: a command written by
a newer version, lack of memory (the other nodes may have had enough), and a failure within `replay`, which leaves a
decision half applied. Commands from other nodes are checked before they enter the log (`proposals`).

A command may arrive as a submission; a duplicate of one changes nothing and is reported as such. An entry's term is the
controller's epoch: commands that a controller issued on its own (fencing, balancing) are refused in another term.

Left out: authorization, which is the handlers' part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never, overload

from kraftpy.metadata import (
    acl_decisions,
    brokers,
    configs,
    features,
    partitions,
    quota_decisions,
    reassignments,
    scram,
    token_decisions,
    topics,
)
from kraftpy.metadata.acls import CreateAcls, DeleteAcls, DeletedAcls
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import (
    AllocateProducerIds,
    AlterReassignments,
    BalanceLeaders,
    ChangeBroker,
    ChangePartitions,
    ChangeReplicas,
    Command,
    CordonBroker,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    FormatCluster,
    NewerSchemaError,
    RegisterBroker,
    SetConfigs,
    SetControllerDefaults,
    UnregisterBroker,
    UpdateFeatures,
    decode_command,
)
from kraftpy.metadata.credentials import ScramResult, SetScramCredentials
from kraftpy.metadata.decision import (
    Applied,
    BrokerResult,
    ConfigResult,
    Decision,
    ElectionResult,
    FeatureResult,
    PartitionResult,
    ProducerIdBlock,
    ReassignmentResult,
    TopicResult,
)
from kraftpy.metadata.delegation_tokens import (
    CreateDelegationToken,
    DelegationTokenResult,
    ExpireDelegationToken,
    RemoveDelegationTokens,
)
from kraftpy.metadata.image import Image
from kraftpy.metadata.quotas import AlterClientQuotas
from kraftpy.metadata.submissions import decode_submission
from kraftpy.metadata.topics import is_internal, topic_name_problem
from kraftpy.protocol.errors import ErrorCode

__all__ = ["Applied", "Decision", "MetadataStateMachine", "decide", "is_internal", "topic_name_problem"]


@overload
def decide(
    command: CreateTopics | DeleteTopics | CreatePartitions, image: Image
) -> Decision[tuple[TopicResult, ...]]: ...
@overload
def decide(command: SetConfigs, image: Image) -> Decision[tuple[ConfigResult, ...]]: ...
@overload
def decide(command: RegisterBroker | ChangeBroker | UnregisterBroker, image: Image) -> Decision[BrokerResult]: ...
@overload
def decide(command: AllocateProducerIds, image: Image) -> Decision[ProducerIdBlock]: ...
@overload
def decide(command: ChangePartitions | ChangeReplicas, image: Image) -> Decision[tuple[PartitionResult, ...]]: ...
@overload
def decide(command: ElectLeaders, image: Image) -> Decision[tuple[ElectionResult, ...]]: ...
@overload
def decide(command: AlterReassignments, image: Image) -> Decision[tuple[ReassignmentResult, ...]]: ...
@overload
def decide(command: UpdateFeatures, image: Image) -> Decision[tuple[FeatureResult, ...]]: ...
@overload
def decide(command: SetScramCredentials, image: Image) -> Decision[tuple[ScramResult, ...]]: ...
@overload
def decide(command: DeleteAcls, image: Image) -> Decision[tuple[DeletedAcls, ...]]: ...
@overload
def decide(
    command: ExpireDelegationToken | RemoveDelegationTokens, image: Image
) -> Decision[DelegationTokenResult]: ...
@overload
def decide(
    command: FormatCluster
    | CordonBroker
    | BalanceLeaders
    | SetControllerDefaults
    | CreateAcls
    | CreateDelegationToken
    | AlterClientQuotas,
    image: Image,
) -> Decision[None]: ...
@overload
def decide(command: Command, image: Image) -> Decision[Any]: ...
def decide(command: Command, image: Image) -> Decision[Any]:
    """Decide a command on this image. Changes nothing, so it also serves validate-only requests."""
    match command:
        case CreateTopics():
            return topics.create_topics(command, image)
        case DeleteTopics():
            return topics.delete_topics(command, image)
        case CreatePartitions():
            return topics.create_partitions(command, image)
        case SetConfigs():
            return configs.set_configs(command, image)
        case SetControllerDefaults():
            return configs.set_controller_defaults(command, image)
        case AllocateProducerIds():
            return brokers.allocate_producer_ids(command, image)
        case RegisterBroker():
            return brokers.register_broker(command, image)
        case ChangeBroker():
            return brokers.change_broker(command, image)
        case ChangePartitions():
            return partitions.change_partitions(command, image)
        case ChangeReplicas():
            return partitions.change_replicas(command, image)
        case FormatCluster():
            return brokers.format_cluster(command, image)
        case CordonBroker():
            return brokers.cordon_broker(command, image)
        case UnregisterBroker():
            return brokers.unregister_broker(command, image)
        case ElectLeaders():
            return partitions.elect_leaders(command, image)
        case BalanceLeaders():
            return partitions.balance_leaders(command, image)
        case AlterReassignments():
            return reassignments.alter_reassignments(command, image)
        case UpdateFeatures():
            return features.update_features(command, image)
        case SetScramCredentials():
            return scram.set_scram_credentials(command, image)
        case CreateAcls():
            return acl_decisions.create_acls(command, image)
        case DeleteAcls():
            return acl_decisions.delete_acls(command, image)
        case CreateDelegationToken():
            return token_decisions.create_delegation_token(command, image)
        case ExpireDelegationToken():
            return token_decisions.expire_delegation_token(command, image)
        case RemoveDelegationTokens():
            return token_decisions.remove_delegation_tokens(command, image)
        case AlterClientQuotas():
            return quota_decisions.alter_client_quotas(command, image)
        case _:
            assert_never(command)


class MetadataStateMachine:
    """An image and the only way to change it: applying committed commands in order."""

    __slots__ = ("image",)

    def __init__(self, image: Image | None = None) -> None:
        self.image = image or Image()

    def apply(self, index: int, term: int, data: bytes | memoryview) -> Applied:
        """Decide a committed command and replay the decision; total and deterministic.

        `data` comes from `encode_submission` or `encode_command`; `index` and `term` are its place in the log. The only
        content that raises is a newer schema.
        """
        try:
            submission, command = decode_submission(data)
        except CodecError as error:
            decision: Decision[Any] = Decision(error=ErrorCode.INVALID_REQUEST, message=str(error))
            return Applied(submission=None, decision=decision, is_unusable=True)
        if submission is not None and self.image.submissions.has(submission):
            return Applied(submission=submission, decision=Decision(message="applied before"), is_duplicate=True)
        decision, is_unusable = self._decide(command, term)
        if submission is not None:
            self.image.submissions.add(submission)
        for record in decision.records:
            self.image.replay(record, index)
        return Applied(submission=submission, decision=decision, is_unusable=is_unusable)

    def _decide(self, data: bytes | memoryview, term: int) -> tuple[Decision[Any], bool]:
        """Return the decision, and whether the command was unusable."""
        try:
            command = decode_command(data)
            if refused := _other_term(command, term):
                return refused, False
            return decide(command, self.image), False
        except (NewerSchemaError, MemoryError, RecursionError):
            raise
        except CodecError as error:
            return Decision(error=ErrorCode.INVALID_REQUEST, message=str(error)), True
        except Exception as error:
            message = f"a metadata command could not be decided: {type(error).__name__}: {error}"
            return Decision(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=message), True

    def capture(self) -> Callable[[], bytes]:
        """Capture the image; the returned function does what `snapshot` does, in any thread."""
        return self.image.capture()

    def snapshot(self) -> bytes:
        """Return the image as bytes for `restore`."""
        return self.image.to_bytes()

    def restore(self, snapshot: bytes | memoryview) -> None:
        """Replace the image. Raises `CodecError` and keeps the old one if the bytes are not a snapshot."""
        self.image = Image.from_bytes(snapshot)


def _other_term(command: Command, term: int) -> Decision[Any] | None:
    """Refuse a controller's own command outside its term, since a new controller may know better."""
    own = ChangeBroker | BalanceLeaders | SetControllerDefaults
    if isinstance(command, own) and command.controller_epoch not in (-1, term):
        message = (
            f"The command was issued by the controller of term {command.controller_epoch}; the term is now {term}."
        )
        return Decision(error=ErrorCode.NOT_CONTROLLER, message=message)
    return None
