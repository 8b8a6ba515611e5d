"""Formats the responses and records of a group coordinator as they appear in scripts."""

from __future__ import annotations

from assignment_words import show_beat
from consumer_words import show_consumer_record, show_described
from share_words import (
    show_altered,
    show_offsets_deleted,
    show_share_described,
    show_share_record,
)
from streams_words import show_streams_beat, show_streams_described, show_streams_record

from kraftpy.groups.consumer.records import read_key as read_consumer_key
from kraftpy.groups.consumer.records import read_value as read_consumer_value
from kraftpy.groups.events import GroupResponse
from kraftpy.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    Record,
    read_group,
    read_key,
    read_offset,
)
from kraftpy.groups.share.records import read_key as read_share_key
from kraftpy.groups.share.records import read_value as read_share_value
from kraftpy.groups.streams.records import read_key as read_streams_key
from kraftpy.groups.streams.records import read_value as read_streams_value
from kraftpy.groups.subscription import subscribed_topics
from kraftpy.protocol.consumer_protocol import decode_assignment, encode_assignment
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsResponse
from kraftpy.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeResponse,
)
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsResponse
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsResponse,
)
from kraftpy.protocol.messages.describe_groups import DescribeGroupsResponse
from kraftpy.protocol.messages.heartbeat import HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupResponse
from kraftpy.protocol.messages.list_groups import ListGroupsResponse
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitResponse,
)
from kraftpy.protocol.messages.offset_delete import (
    OffsetDeleteResponse,
)
from kraftpy.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
)
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeResponse
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeResponse
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse
from kraftpy.protocol.messages.sync_group import SyncGroupResponse
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
)
from kraftpy.types import TopicPartition


def word(data: bytes) -> str:
    """Metadata in one word: the topics of a subscription, or the bytes as text."""
    topics = subscribed_topics(data)
    return f"<{'+'.join(sorted(topics))}>" if topics is not None else data.decode() or "-"


def assigned_word(data: bytes) -> str:
    """Format an assignment as one word: `t:0,1;u:2` if it is one of partitions, or the bytes as text."""
    if data[:2] != b"\x00\x03":
        return word(data)
    by_topic: dict[str, list[str]] = {}
    for topic, partition in decode_assignment(data):
        by_topic.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or "nothing"


def partitions_of(text: str) -> list[TopicPartition]:
    """`t:0,1;u:2` as partitions."""
    parts = [each.partition(":") for each in text.split(";") if ":" in each]
    return [TopicPartition(topic, int(number)) for topic, _, numbers in parts for number in numbers.split(",")]


def assignment_of(text: str) -> bytes:
    """`t:0,1;u:2` as an assignment, with user data where `~WORD` follows; any other word as its bytes."""
    partitions, tilde, user_data = text.partition("~")
    if ":" not in partitions:
        return text.encode()
    return encode_assignment(partitions_of(partitions), user_data.encode() if tilde else None)


def error(code: int) -> str:
    return ErrorCode.of(code).name


# ---- what happened, in words


def show_record(record: Record) -> str:
    key, value = read_key(record[0]), record[1]
    consumer_key = read_consumer_key(record[0])
    if consumer_key is not None:
        said = None if value is None else read_consumer_value(consumer_key, value)
        return show_consumer_record(consumer_key, said)
    share_key = read_share_key(record[0])
    if share_key is not None:
        return show_share_record(share_key, None if value is None else read_share_value(share_key, value))
    streams_key = read_streams_key(record[0])
    if streams_key is not None:
        return show_streams_record(streams_key, None if value is None else read_streams_value(streams_key, value))
    match key:
        case OffsetCommitKey():
            name = f"offset {key.group_id} {key.topic}:{key.partition}"
            if value is None:
                return f"delete {name}"
            offset = read_offset(value)
            epoch = f" epoch={offset.leader_epoch}" if offset.leader_epoch != -1 else ""
            metadata = f" metadata={offset.metadata}" if offset.metadata else ""
            expires = f" expires={offset.expire_timestamp}" if offset.expire_timestamp != -1 else ""
            return f"{name} = {offset.offset}{epoch}{metadata}{expires} at {offset.commit_timestamp}"
        case GroupMetadataKey():
            if value is None:
                return f"delete group {key.group_id}"
            return f"group {key.group_id} {show_group(read_group(value))}"
    raise AssertionError(record)


def show_group(value: GroupMetadataValue) -> str:
    members = " ".join(
        f"{m.member_id}{'@' + m.group_instance_id if m.group_instance_id else ''}"
        f"({word(m.subscription)})={assigned_word(m.assignment)}"
        for m in value.members
    )
    return (
        f"generation={value.generation_id} type={value.protocol_type or '-'} protocol={value.protocol or '-'} "
        f"leader={value.leader or '-'} {members or 'empty'}"
    )


def show_join(r: JoinGroupResponse) -> str:
    if r.error_code:
        return f"join {error(r.error_code)}{' member=' + r.member_id if r.member_id else ''}"
    skip = " skip-assignment" if r.skip_assignment else ""
    members = " ".join(
        f"{m.member_id}{'@' + m.group_instance_id if m.group_instance_id else ''}({word(m.metadata)})"
        for m in r.members
    )
    return (
        f"join generation={r.generation_id} member={r.member_id} leader={r.leader} protocol={r.protocol_name}{skip}"
        f"{': ' + members if members else ''}"
    )


def show_fetch(r: OffsetFetchResponse) -> str:
    if r.error_code:
        return f"fetch {error(r.error_code)}"
    parts = []
    for topics, code in [(r.topics, 0), *((group.topics, group.error_code) for group in r.groups)]:
        parts += [error(code)] if code else []
        for topic in topics:
            for p in topic.partitions:
                epoch = f"/epoch={p.committed_leader_epoch}" if p.committed_leader_epoch != -1 else ""
                metadata = f"/{p.metadata}" if p.metadata else ""
                failed = f"/{error(p.error_code)}" if p.error_code else ""
                parts.append(f"{topic.name}:{p.partition_index}={p.committed_offset}{metadata}{epoch}{failed}")
    return f"fetch {' '.join(parts) or 'nothing'}"


def show_leave(r: LeaveGroupResponse) -> str:
    members = " ".join(
        f"{m.member_id}{'@' + m.group_instance_id if m.group_instance_id else ''}:{error(m.error_code)}"
        for m in r.members
    )
    return f"leave {error(r.error_code)} {members}".rstrip()


def show_describe(r: DescribeGroupsResponse) -> str:
    lines = []
    for group in r.groups:
        head = f"describe {group.group_id} {error(group.error_code)} {group.group_state}"
        message = f' "{group.error_message}"' if group.error_message else ""
        lines.append(f"{head}{message} type={group.protocol_type or '-'} protocol={group.protocol_data or '-'}")
        for m in group.members:
            instance = f"@{m.group_instance_id}" if m.group_instance_id else ""
            lines.append(
                f"    {m.member_id}{instance} client={m.client_id} host={m.client_host} "
                f"metadata={word(m.member_metadata)} assignment={word(m.member_assignment)}"
            )
    return "\n".join(lines)


def show_by_partition(name: str, r: OffsetCommitResponse | OffsetDeleteResponse | TxnOffsetCommitResponse) -> str:
    parts = [f"{t.name}:{p.partition_index}={error(p.error_code)}" for t in r.topics for p in t.partitions]
    top = [error(r.error_code)] if isinstance(r, OffsetDeleteResponse) else []
    return " ".join([name, *top, *parts])


def show_response(response: GroupResponse) -> str:
    match response:
        case JoinGroupResponse():
            return show_join(response)
        case SyncGroupResponse(error_code=0):
            protocol = f" protocol={response.protocol_name}" if response.protocol_name else ""
            return f"sync assignment={assigned_word(response.assignment)}{protocol}"
        case SyncGroupResponse():
            return f"sync {error(response.error_code)}"
        case HeartbeatResponse():
            return f"heartbeat {error(response.error_code)}"
        case LeaveGroupResponse():
            return show_leave(response)
        case OffsetCommitResponse():
            return show_by_partition("commit", response)
        case TxnOffsetCommitResponse():
            return show_by_partition("txn-commit", response)
        case OffsetDeleteResponse():
            return show_by_partition("delete-offsets", response)
        case OffsetFetchResponse():
            return show_fetch(response)
        case DescribeGroupsResponse():
            return show_describe(response)
        case ListGroupsResponse():
            groups = [
                f"{g.group_id}[{' '.join(filter(None, (g.protocol_type, g.group_state, g.group_type)))}]"
                for g in response.groups
            ]
            return " ".join(["list", error(response.error_code), *groups])
        case ConsumerGroupHeartbeatResponse():
            return show_beat("beat", response)
        case ConsumerGroupDescribeResponse():
            return show_described(response)
        case StreamsGroupHeartbeatResponse():
            return show_streams_beat(response)
        case StreamsGroupDescribeResponse():
            return show_streams_described(response)
        case ShareGroupHeartbeatResponse():
            return show_beat("share", response)
        case ShareGroupDescribeResponse():
            return show_share_described(response)
        case AlterShareGroupOffsetsResponse():
            return show_altered(response)
        case DeleteShareGroupOffsetsResponse():
            return show_offsets_deleted(response)
        case DeleteGroupsResponse():
            results = [f"{r.group_id}={error(r.error_code)}" for r in response.results]
            return " ".join(["delete-group", *results])
