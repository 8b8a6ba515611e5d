"""The consumer protocol (KIP-848) in the words of scripts: records, answers, requests.

Partitions are written as in `assignment_words`.
"""

from __future__ import annotations

from assignment_words import described, partitions
from topics_now import TopicsNow

from kraftpy.groups.consumer.records import (
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
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupTopicPartitions,
)


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
                f"has={described(m.assignment)} target={described(m.target_assignment)}"
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
