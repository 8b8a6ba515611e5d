"""Share groups (KIP-932) in the words of scripts: records, answers, requests, what share coordinators are asked.

Partitions are written as in `assignment_words`; a start offset stands behind them, `t:0@5`.
"""

from __future__ import annotations

from collections.abc import Mapping

from assignment_words import described, joined, partitions
from topics_now import TopicsNow, once_called

from kraftpy.groups.assignment import TopicIdPartition, by_topic
from kraftpy.groups.events import ChangeState, Deletion, Initialization
from kraftpy.groups.share.records import (
    ShareCurrentKey,
    ShareCurrentValue,
    ShareGroupKey,
    ShareGroupValue,
    ShareKey,
    ShareMemberKey,
    ShareMemberValue,
    ShareStateKey,
    ShareStateValue,
    ShareTargetMemberKey,
    ShareTargetMemberValue,
    ShareTargetMetadataKey,
    ShareTargetMetadataValue,
    ShareValue,
    TopicState,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from kraftpy.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsResponse
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeResponse
from kraftpy.types import TopicId


def partitions_asked(asked: ChangeState) -> list[TopicIdPartition]:
    """The partitions a question is about, in order."""
    match asked.change:
        case Initialization(start_offsets=offsets):
            return sorted(offsets)
        case Deletion(partitions=doomed):
            return sorted(doomed)


class ShareCoordinators:
    """The state that all share coordinators keep: the state epoch and start offset of each of a group's partitions."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, TopicIdPartition], tuple[int, int]] = {}

    def change(
        self, asked: ChangeState, failing: Mapping[TopicIdPartition, ErrorCode]
    ) -> dict[TopicIdPartition, ErrorCode]:
        """Do as asked, except for what should fail. Returns what failed."""
        failed = dict(failing)
        match asked.change:
            case Initialization(state_epoch=epoch, start_offsets=offsets):
                for each, start_offset in offsets.items():
                    known = self.states.get((asked.group_id, each))
                    if each in failed:
                        continue
                    if known is not None and epoch < known[0]:
                        failed[each] = ErrorCode.FENCED_STATE_EPOCH
                    else:
                        self.states[asked.group_id, each] = (epoch, start_offset)
            case Deletion(partitions=doomed):
                for each in doomed:
                    if each not in failed:
                        self.states.pop((asked.group_id, each), None)
        return failed

    def forget(self, topic_ids: frozenset[TopicId]) -> None:
        """Forget these topics: they are deleted."""
        self.states = {key: state for key, state in self.states.items() if key[1].topic_id not in topic_ids}

    def of(self, group_id: str) -> dict[TopicIdPartition, tuple[int, int]]:
        return {each: state for (owner, each), state in self.states.items() if owner == group_id}


def read_failures(words: list[str], topics: TopicsNow) -> dict[TopicIdPartition, ErrorCode]:
    """Parse `t:0=ERROR`, the error of share coordinators for a partition."""
    failing = {}
    for each in words:
        where, _, code = each.partition("=")
        name, _, number = where.partition(":")
        failing[TopicIdPartition(topics.last_id(name), int(number))] = ErrorCode[code]
    return failing


def read_alteration(group_id: str, words: list[str]) -> AlterShareGroupOffsetsRequest:
    """`t:0=5` for each partition."""
    found: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for each in words:
        where, _, offset = each.partition("=")
        name, _, number = where.partition(":")
        wanted = AlterShareGroupOffsetsRequestPartition(partition_index=int(number), start_offset=int(offset))
        found.setdefault(name, []).append(wanted)
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=parts) for name, parts in found.items()]
    return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)


def show_change(asked: ChangeState) -> str:
    match asked.change:
        case Initialization(state_epoch=epoch, start_offsets=offsets):
            what = " ".join(
                f"{once_called(each.topic_id)}:{each.partition}@{offset}" for each, offset in sorted(offsets.items())
            )
            return f"ask {asked.token}: {asked.group_id} initialize state-epoch={epoch} {what}"
        case Deletion(partitions=doomed):
            return f"ask {asked.token}: {asked.group_id} delete {partitions(doomed)}"


def show_share_described(r: ShareGroupDescribeResponse) -> str:
    lines = []
    for group in r.groups:
        if group.error_code:
            code = ErrorCode.of(group.error_code).name
            lines.append(f'describe-share {group.group_id} {code} "{group.error_message}"')
            continue
        epochs = f"epoch={group.group_epoch} assignment-epoch={group.assignment_epoch}"
        lines.append(f"describe-share {group.group_id} {group.group_state} {epochs} assignor={group.assignor_name}")
        for m in group.members:
            rack = f" rack={m.rack_id}" if m.rack_id is not None else ""
            reads = "+".join(m.subscribed_topic_names)
            lines.append(f"    {m.member_id}{rack} epoch={m.member_epoch} reads={reads} has={described(m.assignment)}")
    return "\n".join(lines)


def _outcome(code: int, message: str | None) -> str:
    name = ErrorCode.of(code)
    return name.name if message in (None, name.meaning) else f'{name.name} "{message}"'


def show_altered(r: AlterShareGroupOffsetsResponse) -> str:
    if r.error_code:
        return f"alter-offsets {_outcome(r.error_code, r.error_message)}"
    parts = [
        f"{topic.topic_name}:{each.partition_index}={_outcome(each.error_code, each.error_message)}"
        for topic in r.responses
        for each in topic.partitions
    ]
    return " ".join(["alter-offsets", *parts])


def show_offsets_deleted(r: DeleteShareGroupOffsetsResponse) -> str:
    if r.error_code:
        return f"delete-share-offsets {_outcome(r.error_code, r.error_message)}"
    parts = [f"{topic.topic_name}={_outcome(topic.error_code, topic.error_message)}" for topic in r.responses]
    return " ".join(["delete-share-offsets", *parts])


def _states(states: Mapping[TopicId, TopicState]) -> str:
    found = frozenset(TopicIdPartition(topic_id, n) for topic_id, state in states.items() for n in state.partitions)
    return joined([(once_called(topic_id), numbers) for topic_id, numbers in by_topic(found)])


def show_partitions(value: ShareStateValue) -> str:
    """Format what the group knows of its partitions' state."""
    shown = [
        f"{word}={_states(states)}"
        for word, states in (("wants", value.initializing), ("state", value.initialized))
        if states
    ]
    gone = [f"forgets={'+'.join(once_called(each) for each in sorted(value.deleting))}"] if value.deleting else []
    return " ".join([*shown, *gone]) or "-"


def show_share_record(key: ShareKey, value: ShareValue | None) -> str:
    match key:
        case ShareGroupKey():
            name = f"share-group {key.group_id}"
        case ShareMemberKey():
            name = f"share-member {key.group_id} {key.member_id}"
        case ShareTargetMetadataKey():
            name = f"share-targets {key.group_id}"
        case ShareTargetMemberKey():
            name = f"share-target {key.group_id} {key.member_id}"
        case ShareCurrentKey():
            name = f"share-current {key.group_id} {key.member_id}"
        case ShareStateKey():
            name = f"share-partitions {key.group_id}"
    match value:
        case None:
            return f"delete {name}"
        case ShareGroupValue():
            return f"{name} epoch={value.epoch}"
        case ShareMemberValue():
            rack = f" rack={value.rack_id}" if value.rack_id is not None else ""
            return f"{name}{rack} reads={'+'.join(value.subscribed_topic_names)}"
        case ShareTargetMetadataValue():
            return f"{name} epoch={value.assignment_epoch}"
        case ShareTargetMemberValue():
            return f"{name} = {partitions(value.partitions)}"
        case ShareCurrentValue():
            return f"{name} epoch={value.member_epoch} has={partitions(value.assigned)}"
        case ShareStateValue():
            return f"{name} {show_partitions(value)}"
