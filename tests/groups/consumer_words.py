"""The consumer protocol (KIP-848) in the words of scripts: records, answers, requests.

Partitions are written `t:0,1;u:2`, none as `-`.
"""

from __future__ import annotations

from topics_now import TopicsNow, once_called

from kraftpy.groups.consumer_records import (
    Assignment,
    ConsumerKey,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
    TopicIdPartition,
    by_topic,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse, DescribedAssignment
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupTopicPartitions,
)
from kraftpy.types import TopicId


def joined(topics: list[tuple[str, list[int]]]) -> str:
    return ";".join(f"{name}:{','.join(map(str, partitions))}" for name, partitions in topics) or "-"


def partitions(assignment: Assignment) -> str:
    return joined([(once_called(topic_id), numbers) for topic_id, numbers in by_topic(assignment)])


def read_partitions(text: str, topics: TopicsNow) -> list[ConsumerGroupTopicPartitions]:
    """`t:0,1;u:2` as a member reports it."""
    found = []
    for each in text.split(";") if text not in ("", "-") else []:
        name, _, numbers = each.partition(":")
        info = topics.topic(name)
        assert info is not None, name
        found.append(
            ConsumerGroupTopicPartitions(topic_id=info.topic_id, partitions=[int(n) for n in numbers.split(",")])
        )
    return found


def assigned(r: ConsumerGroupHeartbeatResponse) -> Assignment | None:
    """The assignment an answer carries."""
    if r.assignment is None:
        return None
    return frozenset(
        TopicIdPartition(TopicId(topic.topic_id), number)
        for topic in r.assignment.topic_partitions
        for number in topic.partitions
    )


def show_beat(r: ConsumerGroupHeartbeatResponse) -> str:
    if r.error_code:
        return f"beat {ErrorCode.of(r.error_code).name}"
    has = assigned(r)
    told = f" has={partitions(has)}" if has is not None else ""
    every = f" every={r.heartbeat_interval_ms}" if r.heartbeat_interval_ms not in (0, 5_000) else ""
    return f"beat {r.member_id} epoch={r.member_epoch}{told}{every}"


def _described(assignment: DescribedAssignment) -> str:
    return joined([(each.topic_name, each.partitions) for each in assignment.topic_partitions])


def show_described(r: ConsumerGroupDescribeResponse) -> str:
    lines = []
    for group in r.groups:
        if group.error_code:
            code = ErrorCode.of(group.error_code).name
            lines.append(f'describe-consumer {group.group_id} {code} "{group.error_message}"')
            continue
        epochs = f"epoch={group.group_epoch} assignment-epoch={group.assignment_epoch}"
        lines.append(f"describe-consumer {group.group_id} {group.group_state} {epochs} assignor={group.assignor_name}")
        for m in group.members:
            instance = f"@{m.instance_id}" if m.instance_id else ""
            reads = "+".join(
                [*m.subscribed_topic_names, *([m.subscribed_topic_regex] if m.subscribed_topic_regex else [])]
            )
            lines.append(
                f"    {m.member_id}{instance} epoch={m.member_epoch} reads={reads} "
                f"has={_described(m.assignment)} target={_described(m.target_assignment)}"
                f"{' classic' if m.member_type == 0 else ''}"
            )
    return "\n".join(lines)


def show_consumer_record(key: ConsumerKey, value: ConsumerValue | None) -> str:
    match key:
        case GroupKey():
            name = f"consumer-group {key.group_id}"
        case MemberKey():
            name = f"member {key.group_id} {key.member_id}"
        case TargetMetadataKey():
            name = f"targets {key.group_id}"
        case TargetMemberKey():
            name = f"target {key.group_id} {key.member_id}"
        case CurrentKey():
            name = f"current {key.group_id} {key.member_id}"
        case RegexKey():
            name = f"regex {key.group_id} {key.regex}"
    match value:
        case None:
            return f"delete {name}"
        case GroupValue():
            return f"{name} epoch={value.epoch}"
        case MemberValue():
            reads = "+".join([*value.subscribed_topic_names, *([r] if (r := value.subscribed_topic_regex) else [])])
            instance = f" instance={value.instance_id}" if value.instance_id is not None else ""
            assignor = f" assignor={value.server_assignor}" if value.server_assignor is not None else ""
            classic = f" classic={value.classic.protocol_name}" if value.classic is not None else ""
            return f"{name}{instance} reads={reads}{assignor}{classic} timeout={value.rebalance_timeout_ms}"
        case TargetMetadataValue():
            return f"{name} epoch={value.assignment_epoch}"
        case TargetMemberValue():
            return f"{name} = {partitions(value.partitions)}"
        case CurrentValue():
            gives_up = f" gives-up={partitions(value.pending_revocation)}" if value.pending_revocation else ""
            return f"{name} epoch={value.member_epoch} {value.state.name} has={partitions(value.assigned)}{gives_up}"
        case RegexValue():
            return f"{name} = {'+'.join(value.topics) or '-'}"
