"""Decides the requests and timeouts of members of the consumer protocol (KIP-848).

Every decision works on a `Draft`. It either refuses before adding anything to it, or adds all resulting records: the
member, the group's epoch, the new targets, and the member's progress towards its own. Nothing here waits or sends;
`changes` has the records stored and answers afterwards.

A change of topics or partitions is noticed at the next heartbeat of any member, because the version of the topics has
changed.

Regular expressions are resolved within the limits of one step (`topic_matches`), which is enough for most. The rest
follows a little later (`look_at_topics`); until then an expression keeps its previous matches, or has none.

Differences from Kafka: a static member may rejoin under its present id (Kafka: UNRELEASED_INSTANCE_ID); a heartbeat to
an unknown group gets UNKNOWN_MEMBER_ID, on which every client rejoins, unless its sender leaves.

Members that speak the classic protocol are handled in `classic_members`.

Left out: racks, which Kafka's assignors ignore as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kraftpy.groups.apart import LIGHT, UNITS_AT_ONCE, Deciding, Work
from kraftpy.groups.assignment import Assignment, TopicIdPartition, by_topic
from kraftpy.groups.assignment_interval import may_assign
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer.assignors import ASSIGNORS, Subscriber
from kraftpy.groups.consumer.group import ConsumerGroup, Draft
from kraftpy.groups.consumer.reconciliation import reconciled
from kraftpy.groups.consumer.records import (
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberState,
    MemberValue,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
)
from kraftpy.groups.events import Request
from kraftpy.groups.member_epochs import FIRST_EPOCH, JOINING, LEAVING_FOR_NOW, next_epoch
from kraftpy.groups.member_errors import NO_GROUP_ID, fenced_member, group_is_full, is_blank, unknown_member
from kraftpy.groups.patterns import PatternError, shown
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import NEVER, Topics
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupTopicPartitions,
)
from kraftpy.types import Millis, TopicId

FIRST_HEARTBEAT_WITH_OWN_MEMBER_ID = 1

_SEEN_PER_UNIT = 5
"""How many topics are compared with a member's rights in the time of a unit of work."""

T = TypeVar("T")


def heartbeat_error(error_code: ErrorCode, text: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """Return a heartbeat response that carries only an error."""
    return ConsumerGroupHeartbeatResponse(error_code=error_code, error_message=text or error_code.meaning)


class ConsumerProtocol:
    """Decides for the groups in one partition. `new_id` returns ids for members that have none."""

    def __init__(
        self,
        config: GroupConfig,
        settings: Settings,
        topics: Topics,
        new_id: Callable[[], str],
        matches: TopicMatches,
    ) -> None:
        self.config = config
        self.settings = settings
        self.topics = topics
        self.new_id = new_id
        self.matches = matches

    # ---- one heartbeat

    def heartbeat(
        self, draft: Draft, event: Request, message: ConsumerGroupHeartbeatRequest, timestamp: Millis
    ) -> Deciding[ConsumerGroupHeartbeatResponse]:
        """Let a member join, carry on or leave."""
        try:
            self._check(message, event.api_version)
            if message.member_epoch < JOINING:
                return (yield from self._leave(draft, message))
            return (yield from self._join_or_stay(draft, event, message, timestamp))
        except KafkaError as error:
            return heartbeat_error(error.code, error.message)

    def _check(self, message: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
        """Refuse invalid requests."""
        problem = None
        joins = message.member_epoch == JOINING
        if is_blank(message.group_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, NO_GROUP_ID)
        if message.member_epoch < LEAVING_FOR_NOW:
            problem = "MemberEpoch is invalid."
        elif is_blank(message.member_id) and (
            message.member_epoch not in (JOINING, LEAVING_FOR_NOW) or api_version >= FIRST_HEARTBEAT_WITH_OWN_MEMBER_ID
        ):
            problem = "MemberId can't be empty."
        elif message.instance_id is not None and is_blank(message.instance_id):
            problem = "InstanceId can't be empty."
        elif message.rack_id is not None and is_blank(message.rack_id):
            problem = "RackId can't be empty."
        elif message.member_epoch == LEAVING_FOR_NOW and message.instance_id is None:
            problem = "InstanceId can't be null."
        elif joins and message.rebalance_timeout_ms < 0:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif joins and (message.topic_partitions is None or message.topic_partitions):
            problem = "TopicPartitions must be empty when (re-)joining."
        elif joins and message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
            problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        if message.server_assignor is not None and message.server_assignor not in self.config.group_consumer_assignors:
            known = ", ".join(self.config.group_consumer_assignors)
            text = f"ServerAssignor {message.server_assignor} is not supported. Supported assignors: {known}."
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)

    def _join_or_stay(
        self, draft: Draft, event: Request, message: ConsumerGroupHeartbeatRequest, timestamp: Millis
    ) -> Deciding[ConsumerGroupHeartbeatResponse]:
        member_id = message.member_id or self.new_id()
        predecessor = self._admit(draft.group, member_id, message)
        known = draft.group.members.get(predecessor or member_id)
        self._see_by(draft, event, known, message)
        if message.subscribed_topic_regex and message.subscribed_topic_regex not in draft.group.regexes:
            self._check_regex(message.subscribed_topic_regex)
        named = len(message.subscribed_topic_names or ()) // LIGHT
        update = partial(_updated, known or MemberValue(), message, event)
        updated: MemberValue = update() if named <= UNITS_AT_ONCE else (yield Work(named, update))
        owned: Assignment | None = None
        if (partitions := message.topic_partitions) is not None:
            units = _count(partitions) // LIGHT
            owned = (
                _assignment(partitions)
                if units <= UNITS_AT_ONCE
                else (yield Work(units, partial(_assignment, partitions)))
            )
        before, after = yield from self.take_in(draft, member_id, updated, owned, timestamp, predecessor)
        assignment: ConsumerGroupHeartbeatResponseAssignment | None = None
        if _must_tell(message, before, after):
            assignment = yield Work(len(after.assigned), partial(_answer, after.assigned))
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.settings(message.group_id).consumer_heartbeat_interval_ms,
            assignment=assignment,
        )

    def _see_by(
        self, draft: Draft, event: Request, known: MemberValue | None, message: ConsumerGroupHeartbeatRequest
    ) -> None:
        """Match expressions by the sender's rights, if it subscribes with one or the group has no rights yet."""
        group = draft.group
        has_expression = bool(message.subscribed_topic_regex or (known is not None and known.subscribed_topic_regex))
        if not group.are_rights_known or (has_expression and group.rights != event.rights):
            if group.rights != event.rights:
                group.looked_up, group.topics_version = {}, NEVER
            group.rights, group.are_rights_known = event.rights, True

    def _check_regex(self, regex: str) -> None:
        if self.matches.is_overdrawn:
            text = "Too many regular expressions are being compiled. Try again."
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        try:
            self.matches.check(regex)
        except PatternError as error:
            text = f"SubscribedTopicRegex {shown(regex)} is not a valid regular expression: {error}."
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from error

    def take_in(
        self,
        draft: Draft,
        member_id: str,
        updated: MemberValue,
        owned: Assignment | None,
        timestamp: Millis,
        predecessor: str | None,
    ) -> Deciding[tuple[CurrentValue, CurrentValue]]:
        """Update a member from its request: what it said before, and what it says now. Never refuses.

        `owned` is what the member reports as owned, None if it reports nothing; `predecessor` is the id of the member
        that it replaces.
        """
        if predecessor is not None:
            units = len(draft.group.target(predecessor)) + 2 * len(draft.group.current(predecessor).assigned)
            yield Work(units, partial(_take_over, draft, predecessor, member_id))
        known = draft.group.members.get(member_id)
        before = draft.group.current(member_id)
        resubscribed = _reads(known or MemberValue()) != _reads(updated)
        if known != updated:
            key = MemberKey(draft.group.group_id, member_id)
            yield Work(len(updated.subscribed_topic_names) // LIGHT, partial(draft.put, key, updated))
        is_first = draft.group.epoch == 0
        changed = resubscribed or is_first or (known is not None and known.server_assignor != updated.server_assignor)
        is_new = yield from self._refresh(draft, timestamp, changed=changed)

        def settle() -> CurrentValue:
            if is_new:
                self._begin_epoch(draft, changed=changed)
            if self.may_assign(draft.group, timestamp):
                self._retarget(draft, timestamp)
            after = reconciled(draft.group, member_id, owned, self.topics, resubscribed=resubscribed)
            if after != before or member_id not in draft.group.currents:
                draft.put(CurrentKey(draft.group.group_id, member_id), after)
            return after

        epoch = draft.group.assignment_epoch
        if is_new or (draft.group.epoch != epoch and self.may_assign(draft.group, timestamp)):
            units = self._units(draft.group)
        elif before.state is MemberState.STABLE and before.member_epoch == epoch:
            units = 0
        else:
            units = len(before.assigned) + len(before.pending_revocation) + len(draft.group.target(member_id))
        after = yield from self._apart(draft, units, settle)
        return before, after

    def look_at_topics(self, draft: Draft, timestamp: Millis) -> Deciding[None]:
        """Start the group's next epoch if its topics have changed, or more of its expressions are resolved."""
        is_new = yield from self._refresh(draft, timestamp, changed=False)
        yield from self._begin_epoch_if(is_new, draft, changed=False)

    def _begin_epoch_if(self, is_new: bool, draft: Draft, *, changed: bool) -> Deciding[None]:
        if is_new:
            yield from self._apart(draft, self._units(draft.group), partial(self._begin_epoch, draft, changed=changed))

    def _apart(self, draft: Draft, units: int, function: Callable[[], T]) -> Deciding[T]:
        """Have a part of the decision computed. It reads the topics as they are at that time."""
        version = self.topics.version
        result: T = yield Work(units, function)
        if self.topics.version != version:  # some of them may have changed before they were read, others after
            draft.group.topics_version = NEVER
        return result

    def _units(self, group: ConsumerGroup) -> int:
        """Return the size of the group: its members, the topics they subscribe to, and the partitions of these.

        Stops counting once the group is known to be large.
        """
        units = len(group.members) + len(group.holders)
        subscriptions = {id(names): names for names in (m.subscribed_topic_names for m in group.members.values())}
        for names in (*subscriptions.values(), *(known.topics for known in group.regexes.values())):
            if units > UNITS_AT_ONCE:
                break
            units += self._size(names)
        return units

    def _size(self, names: tuple[str, ...]) -> int:
        if len(names) > UNITS_AT_ONCE:
            return len(names)
        return sum(1 + info.partition_count for name in names if (info := self.topics.topic(name)) is not None)

    def _admit(self, group: ConsumerGroup, member_id: str, message: ConsumerGroupHeartbeatRequest) -> str | None:
        """Check that the member may join or stay. Returns the id of the member that it replaces, if any."""
        joins = message.member_epoch == JOINING
        holder = None if message.instance_id is None else group.static_members.get(message.instance_id)
        if message.instance_id is not None:
            if joins and holder is not None and holder != member_id:
                is_kept = group.members[holder].classic is None
                if is_kept and group.current(holder).member_epoch != LEAVING_FOR_NOW:
                    text = (
                        f"Static member {member_id} with instance id {message.instance_id} cannot join the group "
                        f"because the instance id is owned by member {holder}."
                    )
                    raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
                return holder
            if not joins:
                _check_static(holder, member_id, message.instance_id)
        if member_id not in group.members:
            if not joins:
                raise unknown_member(member_id, group.group_id)
            if len(group.members) >= self.config.group_consumer_max_size:
                raise group_is_full("consumer", self.config.group_consumer_max_size)
        elif not joins:
            _check_epoch(group.current(member_id), message)
        return None

    # ---- going

    def _leave(self, draft: Draft, message: ConsumerGroupHeartbeatRequest) -> Deciding[ConsumerGroupHeartbeatResponse]:
        """Let a member leave. A static member may leave temporarily, and keeps its partitions for a session timeout."""
        group, member_id = draft.group, message.member_id
        if group.is_gone:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
        if message.instance_id is not None:
            _check_static(group.static_members.get(message.instance_id), member_id, message.instance_id)
        if member_id not in group.members:
            raise unknown_member(member_id, group.group_id)
        if message.member_epoch == LEAVING_FOR_NOW:
            left = CurrentValue(
                member_epoch=LEAVING_FOR_NOW,
                previous_member_epoch=LEAVING_FOR_NOW,  # requests sent before it left are too late
                assigned=group.current(member_id).assigned,
            )
            yield Work(2 * len(left.assigned), partial(draft.put, CurrentKey(group.group_id, member_id), left))
        else:
            yield from self.remove(draft, member_id)
        return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=message.member_epoch)

    def remove(self, draft: Draft, member_id: str) -> Deciding[None]:
        """Remove a member and release its partitions. The next heartbeat of another member computes new targets."""
        current = draft.group.current(member_id)
        held = len(current.assigned) + len(current.pending_revocation)
        yield Work(held // LIGHT, partial(_erase, draft, member_id))
        is_new = yield from self._refresh(draft, Millis(0), changed=True)
        yield from self._begin_epoch_if(is_new, draft, changed=True)

    # ---- the group

    def _refresh(self, draft: Draft, timestamp: Millis, *, changed: bool) -> Deciding[bool]:
        """Look at the topics if they or the members' subscriptions have changed.

        Returns True if that may be the start of the group's next epoch.
        """
        group = draft.group
        is_pointless = group.is_resolving and self.matches.is_spent
        if not changed and (group.topics_version == self.topics.version or is_pointless):
            return False
        before, version = len(draft.records), self.topics.version
        is_complete = yield from self._look_up_regexes(draft, timestamp)
        draft.group.is_resolving = not is_complete
        draft.group.topics_version = version if is_complete else NEVER
        return changed or is_complete or len(draft.records) > before

    def _begin_epoch(self, draft: Draft, *, changed: bool) -> None:
        """Start the group's next epoch if its members, their subscriptions or the topics have changed."""
        group = draft.group
        hashed = draft.group.hash_of(self.topics)
        if changed or hashed != draft.group.metadata_hash:
            is_idle = group.epoch == 0 and not group.subscribed_topics()
            epoch = FIRST_EPOCH if is_idle else next_epoch(group.epoch)
            value = GroupValue(epoch=epoch, metadata_hash=hashed)
            draft.put(GroupKey(group.group_id), value)
            if is_idle:  # nothing to assign, so the first assignment need not wait
                draft.put(TargetMetadataKey(group.group_id), TargetMetadataValue(assignment_epoch=epoch))

    def _look_up_regexes(self, draft: Draft, timestamp: Millis) -> Deciding[bool]:
        """Resolve every expression in use; False if some are left for later."""
        group, version = draft.group, self.topics.version
        needed = {regex for member in group.members.values() if (regex := member.subscribed_topic_regex) is not None}
        for regex in sorted(group.regexes.keys() - needed):
            draft.put(RegexKey(group.group_id, regex), None)
        looked_up = {regex: at for regex, at in group.looked_up.items() if regex in needed}
        may_look = group.are_rights_known or not self.config.has_authorizer
        found: dict[str, tuple[str, ...] | None] = {}
        for regex in sorted(needed, key=lambda each: (looked_up.get(each, NEVER), each)):  # oldest results first
            if draft.group.regexes.get(regex) is None or looked_up.get(regex) != version:
                found[regex] = self.matches.resolve(regex) if may_look else None
        if group.rights is not None and any(found.values()):
            units = sum(len(topics or ()) for topics in found.values()) // _SEEN_PER_UNIT
            found = yield Work(units, partial(_seen, found, group.rights.visible()))
        for regex, topics in found.items():
            known = draft.group.regexes.get(regex)
            if topics is not None:
                looked_up[regex] = version
            elif known is not None:
                continue
            if known is None or known.topics != topics:
                value = RegexValue(topics=topics or (), version=version, timestamp=timestamp)
                draft.put(RegexKey(group.group_id, regex), value)
        draft.group.looked_up = looked_up
        return all(looked_up.get(regex) == version for regex in needed)

    def may_assign(self, group: ConsumerGroup, timestamp: Millis) -> bool:
        """Return True if the group's last targets are old enough for new ones (KIP-1263)."""
        return may_assign(group.assigned_at, self.settings(group.group_id).consumer_assignment_interval_ms, timestamp)

    def _retarget(self, draft: Draft, timestamp: Millis) -> None:
        """Compute targets for the group's epoch, if that is not done yet."""
        group = draft.group
        if group.epoch == group.assignment_epoch:
            return
        counts: dict[TopicId, int] = {}
        members: dict[str, Subscriber] = {}
        subscriptions: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
        for member_id, member in group.members.items():
            subscription = _reads(member)
            if subscription not in subscriptions:
                known = [info for name in group.topics_of(member) if (info := self.topics.topic(name)) is not None]
                counts.update(known)
                subscriptions[subscription] = frozenset(info.topic_id for info in known)
            members[member_id] = Subscriber(
                instance_id=member.instance_id,
                topics=subscriptions[subscription],
                target=group.target(member_id),
            )
        draft.cost += len(members) + sum(counts.values()) + sum(map(len, subscriptions.values()))
        assignor = ASSIGNORS[self.assignor_name(group)]
        for member_id, target in sorted(assignor(members, counts).items()):
            if member_id not in group.targets or group.targets[member_id] != target:
                draft.put(TargetMemberKey(group.group_id, member_id), TargetMemberValue(partitions=target))
        value = TargetMetadataValue(assignment_epoch=group.epoch, assigned_at=timestamp)
        draft.put(TargetMetadataKey(group.group_id), value)

    def assignor_name(self, group: ConsumerGroup) -> str:
        """Return the assignor its members want, or the broker's first."""
        wanted = group.assignor(self.config.group_consumer_assignors[0])
        # A member may have requested it from another coordinator that allowed it.
        return wanted if wanted in ASSIGNORS else self.config.group_consumer_assignors[0]


# ---- parts


def _reads(member: MemberValue) -> tuple[tuple[str, ...], str | None]:
    return member.subscribed_topic_names, member.subscribed_topic_regex


def _must_tell(message: ConsumerGroupHeartbeatRequest, before: CurrentValue, after: CurrentValue) -> bool:
    """Return True if the response must name the member's partitions."""
    return message.member_epoch == JOINING or _is_complete(message) or after.assigned != before.assigned


def _is_complete(message: ConsumerGroupHeartbeatRequest) -> bool:
    """Return True if the heartbeat is complete, as after a lost response: then the response must be complete too."""
    subscribes = message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None
    return message.rebalance_timeout_ms >= 0 and subscribes and message.topic_partitions is not None


def _updated(known: MemberValue, message: ConsumerGroupHeartbeatRequest, event: Request) -> MemberValue:
    """Return the member, updated from the heartbeat. A joining member starts from scratch."""
    base = MemberValue(instance_id=known.instance_id) if message.member_epoch == JOINING else known
    names, regex = message.subscribed_topic_names, message.subscribed_topic_regex
    return replace(
        base,
        instance_id=base.instance_id if message.instance_id is None else message.instance_id,
        rack_id=base.rack_id if message.rack_id is None else message.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        subscribed_topic_names=base.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=base.subscribed_topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=(
            base.rebalance_timeout_ms if message.rebalance_timeout_ms < 0 else message.rebalance_timeout_ms
        ),
        server_assignor=base.server_assignor if message.server_assignor is None else message.server_assignor,
        classic=None,
    )


def _check_static(holder: str | None, member_id: str, instance_id: str) -> None:
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}."
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, text)


def _check_epoch(current: CurrentValue, message: ConsumerGroupHeartbeatRequest) -> None:
    """Check the epoch: the member's, or its previous one if the response with the new one may have been lost."""
    if current.state is MemberState.UNKNOWN and message.topic_partitions != []:
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, "The member's stored state is unreadable. It must rejoin.")
    if message.member_epoch == current.member_epoch:
        return
    is_last = message.member_epoch == current.previous_member_epoch and message.topic_partitions is not None
    if is_last and _assignment(message.topic_partitions or []) <= current.assigned:
        return
    raise fenced_member("consumer", message.member_epoch, current.member_epoch)


def _erase(draft: Draft, member_id: str) -> None:
    group_id = draft.group.group_id
    draft.put(CurrentKey(group_id, member_id), None)
    draft.put(TargetMemberKey(group_id, member_id), None)
    draft.put(MemberKey(group_id, member_id), None)


def _seen(
    found: Mapping[str, tuple[str, ...] | None], is_visible: Callable[[str], bool]
) -> dict[str, tuple[str, ...] | None]:
    """Leave out the topics that are not visible, of each expression that has been resolved."""
    return {regex: None if topics is None else tuple(filter(is_visible, topics)) for regex, topics in found.items()}


def _take_over(draft: Draft, old_id: str, new_id: str) -> None:
    """Let a static member's new instance inherit the place, target and partitions of the old one (KIP-345)."""
    group_id = draft.group.group_id
    member, target, current = (
        draft.group.members[old_id],
        draft.group.target(old_id),
        draft.group.current(old_id),
    )
    _erase(draft, old_id)
    draft.put(MemberKey(group_id, new_id), member)
    draft.put(TargetMemberKey(group_id, new_id), TargetMemberValue(partitions=target))
    draft.put(CurrentKey(group_id, new_id), CurrentValue(assigned=current.assigned))


def _assignment(topics: list[ConsumerGroupTopicPartitions]) -> Assignment:
    return frozenset(
        TopicIdPartition(TopicId(topic.topic_id), partition) for topic in topics for partition in topic.partitions
    )


def _count(topics: list[ConsumerGroupTopicPartitions]) -> int:
    """Return the number of topics and partitions named; if there are very many topics, count only these."""
    if len(topics) > UNITS_AT_ONCE:
        return len(topics)
    return len(topics) + sum(len(topic.partitions) for topic in topics)


def _answer(assigned: Assignment) -> ConsumerGroupHeartbeatResponseAssignment:
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(assigned)
        ]
    )
