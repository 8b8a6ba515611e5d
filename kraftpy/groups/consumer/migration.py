"""Migrates a group between the protocols while it has members (KIP-848's online upgrade and downgrade).

Upgrade: a member joins a classic group with the consumer protocol. The members become members of a consumer group as
they are: the generation is the epoch, and each member's assignment is both its current assignment and its target. They
continue to speak the classic protocol (`classic_members`) until they are restarted.

Downgrade: the last member that speaks the consumer protocol has left, and classic members remain. They become a classic
group again, whose generation is the epoch, and rebalance on their own.

Either is one batch of records: at any time, the log says that the group is of one kind or the other.
`group.consumer.migration.policy` says which direction is allowed.
"""

from __future__ import annotations

from collections import Counter

from kraftpy.groups.assignment import Assignment
from kraftpy.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, Member, State
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer.classic_members import BYTES_PER_UNIT, to_ids, to_names
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.consumer.records import (
    ClassicMember,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
)
from kraftpy.groups.records import GroupMetadataValue, MemberMetadata, group_record
from kraftpy.groups.topics import Topics
from kraftpy.protocol.consumer_protocol import (
    Subscription,
    assignment_user_data,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kraftpy.protocol.errors import ProtocolError
from kraftpy.types import Millis

_UPGRADING = ("bidirectional", "upgrade")
_DOWNGRADING = ("bidirectional", "downgrade")
_STANDARD_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors whose user data in an assignment may be lost.

librdkafka copies the member's subscription user data there, with the sticky assignors if the member was in an earlier
generation, but nothing reads it.
"""


def units(group: ClassicGroup) -> int:
    """Return the work of migrating a group: its members, and the size of their subscriptions and assignments."""
    in_bytes = group.members_weight + sum(len(member.assignment or b"") for member in group.members.values())
    return len(group.members) + in_bytes // BYTES_PER_UNIT


def why_not_upgraded(group: ClassicGroup, config: GroupConfig) -> str | None:
    """Explain why this classic group with members cannot become a consumer group; None if it can."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return f"Group {group.group_id} is not a consumer group."
    cannot = f"Cannot upgrade classic group {group.group_id} to consumer group because"
    if config.group_consumer_migration_policy.lower() not in _UPGRADING:
        return f"{cannot} the online upgrade is disabled."
    if len(group.members) >= config.group_consumer_max_size:
        return f"{cannot} the group size exceeds the consumer group maximum size."
    try:
        for member in group.members.values():
            _subscription(group, member)
            decode_assignment(member.assignment or b"")
            has_user_data = bool(assignment_user_data(member.assignment or b""))
            if has_user_data and group.protocol_name not in _STANDARD_ASSIGNORS:
                return (
                    f"{cannot} an unsupported custom assignor is in use. Please refer to the documentation or "
                    "switch to a default assignor before re-attempting the upgrade."
                )
    except ProtocolError as error:
        return f"{cannot} the embedded consumer protocol is malformed: {error}."
    return None


def upgrade(draft: Draft, group: ClassicGroup, topics: Topics) -> None:
    """Put the group's members into the draft of a consumer group, which must still be empty.

    Members that have not received a generation are left out: they rejoin.
    """
    known = {member.member_id: member for member in group.members.values() if not member.is_new}
    held = _held(group, known, topics)
    for member_id, member in known.items():
        draft.put(MemberKey(group.group_id, member_id), _as_consumer(group, member))
    if not known:
        return
    value = GroupValue(epoch=group.generation_id, metadata_hash=draft.group.hash_of(topics))
    draft.put(GroupKey(group.group_id), value)
    for member_id in known:
        draft.put(TargetMemberKey(group.group_id, member_id), TargetMemberValue(partitions=held[member_id]))
    draft.put(TargetMetadataKey(group.group_id), TargetMetadataValue(assignment_epoch=group.generation_id))
    for member_id in known:
        current = CurrentValue(
            member_epoch=group.generation_id, previous_member_epoch=group.generation_id, assigned=held[member_id]
        )
        draft.put(CurrentKey(group.group_id, member_id), current)


def _subscription(group: ClassicGroup, member: Member) -> Subscription:
    chosen = member.metadata(group.protocol_name) or member.protocols[0][1]
    return decode_subscription(chosen, member.group_instance_id)


def _held(group: ClassicGroup, members: dict[str, Member], topics: Topics) -> dict[str, Assignment]:
    """Return what each member may be reading: its assignment or, between generations, what it reports as owned."""
    held: dict[str, Assignment] = {}
    taken: set[object] = set()
    for member_id, member in members.items():
        if member.assignment is not None and group.state is not State.COMPLETING_REBALANCE:
            partitions = decode_assignment(member.assignment)
        else:
            partitions = _subscription(group, member).owned
        # A classic leader may have assigned a partition twice; in a consumer group it has one holder.
        held[member_id] = to_ids(partitions, topics) - taken
        taken |= held[member_id]
    return held


def _as_consumer(group: ClassicGroup, member: Member) -> MemberValue:
    subscription = _subscription(group, member)
    chosen_first = sorted(member.protocols, key=lambda protocol: protocol[0] != group.protocol_name)
    return MemberValue(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(session_timeout_ms=member.session_timeout_ms, protocols=tuple(chosen_first)),
    )


def may_downgrade(group: ConsumerGroup, config: GroupConfig) -> bool:
    """Return True if only classic members are left and the policy allows a downgrade."""
    return (
        bool(group.members)
        and all(member.classic is not None for member in group.members.values())
        and config.group_consumer_migration_policy.lower() in _DOWNGRADING
        and len(group.members) <= config.group_max_size
    )


def downgrade(draft: Draft, topics: Topics, timestamp: Millis) -> None:
    """Delete the consumer group and store a classic group with its members instead."""
    value = _as_classic(draft.group, topics, timestamp)
    draft.delete_all()
    draft.records.append(group_record(draft.group.group_id, value))
    draft.successor = value


def _as_classic(group: ConsumerGroup, topics: Topics, timestamp: Millis) -> GroupMetadataValue:
    chosen = _protocol_name(group)
    members = []
    for member_id, member in sorted(group.members.items()):
        assert member.classic is not None
        members.append(
            MemberMetadata(
                member_id=member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                subscription=dict(member.classic.protocols).get(chosen, b""),
                assignment=encode_assignment(to_names(group.current(member_id).assigned, topics)),
            )
        )
    return GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation_id=group.epoch,
        protocol=chosen,
        leader=members[0].member_id,
        current_state_timestamp=timestamp,
        members=tuple(members),
    )


def _protocol_name(group: ConsumerGroup) -> str:
    """Return the protocol that most members prefer among the most widely supported. The rebalance chooses again."""
    known: Counter[str] = Counter()
    preferred: Counter[str] = Counter()
    for member in group.members.values():
        if member.classic is not None:
            known.update(list(dict.fromkeys(name for name, _ in member.classic.protocols)))
            preferred[member.classic.protocol_name] += 1
    return max(sorted(known), key=lambda name: (known[name], preferred[name]))
