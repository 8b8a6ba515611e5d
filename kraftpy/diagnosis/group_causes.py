"""The causes for which a group does not get on: a function from what was seen of it to sentences.

    for cause in causes(observed):
        print(cause.name, cause.text)

Each cause has a name for programs, and a sentence for people that names the partition, member or transaction. A cause
*stops* the group, or part of it, or is only a warning: something that may stop it, or that slows it down. Nothing is
guessed: a cause is told if what was seen shows it, and the sentence says what cannot be seen, such as a consumer's
isolation level.

`observing` looks at a group. Nothing here asks a broker, and nothing knows the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from kraftpy.client.admin.model import GroupDescription, GroupMember
from kraftpy.client.model import PartitionInfo
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

NO_GROUP: Final = "no-such-group"
NOT_ALLOWED: Final = "not-allowed-to-look"
COORDINATOR: Final = "coordinator-not-available"
NO_MEMBERS: Final = "no-members"
IDLE_MEMBERS: Final = "more-members-than-partitions"
NOT_ASSIGNED: Final = "partition-without-member"
NOT_ADVANCING: Final = "member-does-not-advance"
NOT_ADVANCING_THERE: Final = "partition-does-not-advance"
KEEPS_PARTITIONS: Final = "member-keeps-partitions"
WAITS_TO_JOIN: Final = "rebalance-waits"
REBALANCES: Final = "rebalance-loop"
NO_LEADER: Final = "partition-without-leader"
NO_TOPIC: Final = "topic-is-gone"
TRANSACTION: Final = "open-transaction"
FALLS_BEHIND: Final = "falls-behind"
BEHIND_RETENTION: Final = "offset-behind-retention"
BEYOND_END: Final = "offset-beyond-end"
NO_RIGHT: Final = "no-right"

_SETTLED: Final = frozenset({"Stable", "Empty", "Dead"})
_CLASSIC_WAITS: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})
_NOT_AVAILABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
_NOT_AUTHORIZED: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_LEAST_CHANGES: Final = 2
"""A group that changed once while it was watched has no loop."""
_NOTICEABLE: Final = 0.1
"""The part of what was written by which the lag must have grown, to tell it from a group that reads in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A reason why a group does not get on."""

    name: str
    """One of the names above."""
    text: str
    """The sentence for people."""
    stops: bool = True
    """The group, or part of it, cannot get on; False: a warning."""
    partition: TopicPartition | None = None
    member: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """The values in the sentence, for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int
    transactional_id: str | None = None
    """None if no coordinator knows the producer: then the transaction hangs."""
    started_at_ms: int = -1
    timeout_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A partition of the group at one time. An offset of None is unknown, or there is none."""

    committed: int | None = None
    first: int | None = None
    stable: int | None = None
    """The end for readers of committed records."""
    end: int | None = None

    @property
    def lag(self) -> int | None:
        """The offsets between the committed offset, or the first one without it, and the end."""
        if self.end is None:
            return None
        at = self.first if self.committed is None else self.committed
        return None if at is None else max(0, self.end - at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A right that the principal of the group's members lacks."""

    operation: str
    resource: str
    """The type and the name."""
    is_denied: bool
    """An ACL denies it, or ACLs allow it to others only; False: no ACL covers the resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A group as it was observed for a few seconds."""

    group_id: str
    seconds: float = 0.0
    """The time between the first and the last look."""
    failure: KafkaError | None = None
    """Why the group could not be described."""
    coordinator_partition: PartitionInfo | None = None
    """The partition of __consumer_offsets that keeps the group, if the group could not be described."""
    looks: Sequence[GroupDescription] = ()
    """The group, several times, the newest last."""
    before: Mapping[TopicPartition, Place] = field(default_factory=dict)
    after: Mapping[TopicPartition, Place] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionInfo] = field(default_factory=dict)
    """The partitions of the group's topics."""
    topics: frozenset[str] = frozenset()
    """The topics that the group has offsets in, is assigned to or subscribed to, as far as that is known."""
    alive: frozenset[int] = frozenset()
    """The brokers that are alive."""
    transactions: Mapping[TopicPartition, Sequence[OpenTransaction]] = field(default_factory=dict)
    nothing_left: frozenset[TopicPartition] = frozenset()
    """Partitions with a lag in which only transaction markers and aborted records follow."""
    principal: str | None = None
    refusals: Sequence[Refusal] | None = ()
    """None: the ACLs could not be seen."""

    @property
    def group(self) -> GroupDescription | None:
        """The group as last seen."""
        return self.looks[-1] if self.looks else None

    @property
    def lag(self) -> int:
        """The records that the group has not read, as far as that is known."""
        return sum(place.lag or 0 for name, place in self.after.items() if name not in self.nothing_left)


def causes(seen: Observed) -> list[Cause]:
    """Return the causes, those that stop the group first."""
    found = list(_refused(seen))
    group = seen.group
    if group is None:
        found += _unseen(seen)
    elif group.state == "Dead" and not any(place.committed is not None for place in seen.after.values()):
        text = f"group {seen.group_id} does not exist: no member has joined it, or it was deleted or has expired"
        found.append(Cause(name=NO_GROUP, text=text))
    else:
        found += _of_partitions(seen)
        found += _of_transactions(seen)
        found += _of_offsets(seen)
        found += _of_members(seen, group)
        found += _of_rebalances(seen, group)
        found += _of_speed(seen)
    return sorted(found, key=lambda cause: not cause.stops)


def _refused(seen: Observed) -> Iterator[Cause]:
    if seen.refusals is None:
        text = f"the principal that asks may not see ACLs, so it is not known which rights {seen.principal} has"
        yield Cause(name=NOT_ALLOWED, text=text, stops=False)
    for refusal in seen.refusals or ():
        reason = (
            "an ACL denies it, or ACLs allow it to others only" if refusal.is_denied else "no ACL covers the resource"
        )
        yield Cause(
            name=NO_RIGHT,
            text=f"{seen.principal} has no right to {refusal.operation} {refusal.resource}: {reason}",
            details={"principal": seen.principal, "operation": refusal.operation, "resource": refusal.resource},
        )


def _unseen(seen: Observed) -> Iterator[Cause]:
    failure = seen.failure
    if failure is None:
        return
    if failure.code in _NOT_AUTHORIZED:
        text = f"the principal that asks may not look at group {seen.group_id}: {failure}"
        yield Cause(name=NOT_ALLOWED, text=text)
    elif failure.code in _NOT_AVAILABLE:
        where = seen.coordinator_partition
        if where is None:
            why = "the topic __consumer_offsets, which keeps groups, does not exist yet"
        elif where.leader < 0:
            why = f"the partition that keeps the group, {_shown(where)}, has no leader{_replicas(where, seen.alive)}"
        else:
            why = f"broker {where.leader}, which leads {_shown(where)}, is loading it or does not answer"
        yield Cause(
            name=COORDINATOR,
            text=f"the group has no coordinator that answers ({failure.code.name}): {why}",
            partition=None if where is None else TopicPartition(where.topic, where.partition),
        )
    else:
        raise failure


def _of_partitions(seen: Observed) -> Iterator[Cause]:
    known = {name.topic for name in seen.partitions}
    for topic in sorted(seen.topics - known):
        yield Cause(
            name=NO_TOPIC,
            text=f"topic {topic} does not exist, or the principal that asks may not see it, but the group reads it or "
            "has offsets in it",
            stops=False,
            details={"topic": topic},
        )
    for name, info in sorted(seen.partitions.items()):
        if info.leader < 0 and name in seen.after:
            yield Cause(
                name=NO_LEADER,
                text=f"{name} has no leader{_replicas(info, seen.alive)}; nobody can read it",
                partition=name,
                details={"replicas": list(info.replicas)},
            )


def _of_transactions(seen: Observed) -> Iterator[Cause]:
    for name, opened in sorted(seen.transactions.items()):
        place = seen.after.get(name, Place())
        for each in sorted(opened, key=lambda each: each.start_offset):
            if place.stable is None or each.start_offset > place.stable:
                continue  # an earlier one holds the readers
            at = place.first if place.committed is None else place.committed
            holds = at is not None and at >= place.stable
            began_ms = each.started_at_ms if each.started_at_ms >= 0 else each.last_timestamp_ms
            who = (
                f"transactional id {each.transactional_id}, producer {each.producer_id}"
                if each.transactional_id is not None
                else f"producer {each.producer_id}, which no coordinator knows: it hangs, and only `kraftpy txn abort "
                f"{name.topic}:{name.partition} --start-offset {each.start_offset}` ends it"
            )
            effect = (
                "holds consumers with isolation.level=read_committed there"
                if holds
                else f"will hold consumers with isolation.level=read_committed, which are at {at} now"
            )
            yield Cause(
                name=TRANSACTION,
                text=f"{name}: a transaction, open from offset {each.start_offset} since {_time(began_ms)}, {effect}: "
                f"{who}{_end_of(each)}",
                stops=holds,
                partition=name,
                details={
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "start_offset": each.start_offset,
                    "since_ms": began_ms,
                },
            )


def _of_offsets(seen: Observed) -> Iterator[Cause]:
    for name, place in sorted(seen.after.items()):
        committed, details = place.committed, {"committed": place.committed, "first": place.first, "end": place.end}
        if committed is None or place.first is None or place.end is None:
            continue
        if committed < place.first:
            yield Cause(
                name=BEHIND_RETENTION,
                text=f"{name}: the committed offset {committed} is before the first record that is kept, at "
                f"{place.first}: {place.first - committed} offsets were deleted before the group read them, and it "
                "goes on where auto.offset.reset says",
                partition=name,
                details=details,
            )
        elif committed > place.end:
            yield Cause(
                name=BEYOND_END,
                text=f"{name}: the committed offset {committed} is beyond the end, {place.end}: the topic was created "
                "anew or has lost records, and the group goes on where auto.offset.reset says",
                partition=name,
                details=details,
            )


def _of_members(seen: Observed, group: GroupDescription) -> Iterator[Cause]:
    if not group.members:
        if seen.lag or not seen.after:
            yield Cause(
                name=NO_MEMBERS,
                text=f"the group has no member: no consumer with group.id={seen.group_id} runs, or none could join"
                + (f"; {_some(seen.lag, 'offset')} to be read" if seen.lag else ""),
            )
        return
    if group.state not in _SETTLED:
        return
    idle = [member for member in group.members if not member.partitions]
    if idle and len(idle) < len(group.members):
        owned = sum(len(member.partitions) for member in group.members)
        yield Cause(
            name=IDLE_MEMBERS,
            text=f"{len(idle)} of {len(group.members)} members have nothing to read: only {_some(owned, 'partition')} "
            f"can be assigned; idle: {_members(idle)}",
            stops=False,
            details={"members": [member.member_id for member in idle]},
        )
    if group.group_type == "share":
        return
    owners = {name: member for member in group.members for name in member.partitions}
    for name, place in sorted(seen.after.items()):
        lag = place.lag
        if name not in owners and place.committed is not None and lag and name not in seen.nothing_left:
            yield Cause(
                name=NOT_ASSIGNED,
                text=f"{name}: {_some(lag, 'offset')} to be read, but no member is assigned to it: none subscribes to "
                f"{name.topic}, or may see it",
                partition=name,
                details={"lag": lag},
            )
    yield from _of_owners(seen, owners)


def _of_owners(seen: Observed, owners: Mapping[TopicPartition, GroupMember]) -> Iterator[Cause]:
    """Tell the members that had something to read all the time and did not get on, at all or in some partitions."""
    stuck: dict[str, list[TopicPartition]] = {}
    moved: dict[str, list[TopicPartition]] = {}
    for name, member in sorted(owners.items()):
        before, after = seen.before.get(name), seen.after.get(name)
        if before is None or after is None or not before.lag or name in seen.nothing_left:
            continue
        if before.committed != after.committed:
            moved.setdefault(member.member_id, []).append(name)
            continue
        info = seen.partitions.get(name)
        if info is None or info.leader < 0:
            continue
        at = after.first if after.committed is None else after.committed
        is_held = after.stable is not None and at is not None and at >= after.stable
        was_its = all(
            name in each.partitions
            for look in seen.looks
            for each in look.members
            if each.member_id == member.member_id
        )
        if was_its and not is_held:
            stuck.setdefault(member.member_id, []).append(name)
    members = {member.member_id: member for member in owners.values()}
    for member_id, names in stuck.items():
        member = members[member_id]
        at_all = (
            "has committed nothing" if all(seen.after[name].committed is None for name in names) else "did not move"
        )
        lag = sum(seen.after[name].lag or 0 for name in names)
        there = (
            f"member {_member(member)} has {_some(lag, 'offset')} to read in {_names(names)}, but {at_all} in "
            f"{seen.seconds:.0f} s"
        )
        elsewhere = moved.get(member_id, [])
        yield Cause(
            name=NOT_ADVANCING_THERE if elsewhere else NOT_ADVANCING,
            text=f"{there}, though it does read {_names(elsewhere)}: it is busy with those, or cannot process what is "
            "next here; watch it for longer to tell"
            if elsewhere
            else f"{there}: it polls too rarely (max.poll.interval.ms will end its membership), cannot process what it "
            "reads, does not commit, or has died (session.timeout.ms will end its membership)",
            stops=not elsewhere,
            member=member_id,
            partition=names[0] if len(names) == 1 else None,
            details={"partitions": [str(name) for name in names], "lag": lag, "client": _client(member)},
        )


def _of_rebalances(seen: Observed, group: GroupDescription) -> Iterator[Cause]:
    changes = [change for pair in pairwise(seen.looks) if (change := _change(*pair)) is not None]
    if len(changes) >= _LEAST_CHANGES:
        joined, left = Counter[str](), Counter[str]()
        for change in changes:
            joined.update(change[0])
            left.update(change[1])
        back = sorted(joined.keys() & left.keys())
        if back:
            why = (
                f"{', '.join(back)} left and came back: a consumer does that if it takes longer than "
                "max.poll.interval.ms between two polls, if it cannot send heartbeats within session.timeout.ms, or "
                "if it crashes"
            )
        elif joined or left:
            why = f"members come or go: joined {_counts(joined)}; left {_counts(left)}"
        else:
            why = "its members stay, so their subscriptions or the topics' partitions change, or members join again"
        yield Cause(
            name=REBALANCES,
            text=f"the group was rebalanced {len(changes)} times in {seen.seconds:.0f} s: {why}",
            details={"changes": len(changes), "joined": dict(joined), "left": dict(left)},
        )
    elif group.members and len(seen.looks) > 1 and all(look.state in _CLASSIC_WAITS for look in seen.looks):
        phase = (
            "for members to join again, up to the longest max.poll.interval.ms of them: one of them does not poll"
            if group.state == "PreparingRebalance"
            else "for the assignment of its leader, which may be computing it, or has died"
        )
        yield Cause(
            name=WAITS_TO_JOIN,
            text=f"a rebalance has not ended in {seen.seconds:.0f} s ({group.state}): it waits {phase}; "
            f"members: {_members(group.members)}",
            details={"state": group.state},
        )
    yield from _of_reconciliation(seen, group)


def _of_reconciliation(seen: Observed, group: GroupDescription) -> Iterator[Cause]:
    """Tell the members of KIP-848's protocol that were behind the group's assignment all the time.

    A member reaches the assignment's epoch once it has given up what it is to give up, for which it has to poll.
    """
    if len(seen.looks) < 2:
        return
    assigned = {name for member in group.members for name in member.partitions}
    waiting = sorted({name for member in group.members for name in member.target or ()} - assigned)
    for member in group.members:
        if all(_is_behind(look, member) for look in seen.looks):
            kept = sorted(set(member.partitions) - set(member.target or ()))
            yield Cause(
                name=KEEPS_PARTITIONS,
                text=f"member {_member(member)} has not given up what it is to give up in {seen.seconds:.0f} s: it is "
                f"still at epoch {member.member_epoch}, the group's assignment at {group.assignment_epoch}; it has to "
                f"poll for that, and others wait for {_names(waiting or kept) or 'it'}",
                member=member.member_id,
                details={"waiting": [str(name) for name in waiting or kept], "client": _client(member)},
            )


def _is_behind(look: GroupDescription, member: GroupMember) -> bool:
    """Return whether the member was at its present epoch then, and the assignment was newer."""
    then = next((each for each in look.members if each.member_id == member.member_id), None)
    if then is None or then.member_epoch is None or look.assignment_epoch is None:
        return False
    return then.member_epoch == member.member_epoch and then.member_epoch < look.assignment_epoch


def _change(before: GroupDescription, after: GroupDescription) -> tuple[list[str], list[str]] | None:
    """Return the clients that joined and left between two looks; None if the group did not change."""
    earlier = {member.member_id: member for member in before.members}
    later = {member.member_id: member for member in after.members}
    joined = [_client(member) for name, member in later.items() if name not in earlier]
    left = [_client(member) for name, member in earlier.items() if name not in later]
    is_settled = before.state in _SETTLED and after.state in _SETTLED
    moved = is_settled and any(
        set(member.partitions) != set(later[name].partitions) for name, member in earlier.items() if name in later
    )
    began = before.state in _SETTLED and after.state not in _SETTLED
    if joined or left or moved or began or before.group_epoch != after.group_epoch:
        return joined, left
    return None


def _of_speed(seen: Observed) -> Iterator[Cause]:
    """Tell whether more is written than the group reads, though it does read."""
    written = read = lag = 0
    for name, after in seen.after.items():
        before = seen.before.get(name)
        if before is None or None in (before.end, after.end, before.committed, after.committed):
            continue
        assert before.end is not None
        assert after.end is not None
        assert before.committed is not None
        assert after.committed is not None
        written += max(0, after.end - before.end)
        read += max(0, after.committed - before.committed)
        lag += after.lag or 0
    if read and written - read > _NOTICEABLE * written and lag > written:
        seconds = max(seen.seconds, 0.001)
        yield Cause(
            name=FALLS_BEHIND,
            text=f"the lag of {lag} grows: {written / seconds:.0f} offsets a second are written, and "
            f"{read / seconds:.0f} are read: the group needs faster members, or more of them and more partitions",
            stops=False,
            details={"lag": lag, "written_per_second": written / seconds, "read_per_second": read / seconds},
        )


# Words


def _end_of(transaction: OpenTransaction) -> str:
    """Return when its coordinator aborts a transaction that is not ended; "" if none will."""
    if transaction.transactional_id is None or transaction.started_at_ms < 0 or transaction.timeout_ms <= 0:
        return ""
    return f"; transaction.timeout.ms ends it at {_time(transaction.started_at_ms + transaction.timeout_ms)}"


def _client(member: GroupMember) -> str:
    return f"{member.client_id}@{member.client_host.removeprefix('/')}"


def _member(member: GroupMember) -> str:
    return f"{member.member_id} ({_client(member)})"


def _members(members: Sequence[GroupMember], most: int = 5) -> str:
    more = f" and {len(members) - most} more" if len(members) > most else ""
    return ", ".join(_client(member) for member in members[:most]) + more


def _names(names: Sequence[TopicPartition], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def _some(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common(5)) or "nobody"


def _shown(info: PartitionInfo) -> str:
    return f"{info.topic}-{info.partition}"


def _replicas(info: PartitionInfo, alive: frozenset[int]) -> str:
    dead = [replica for replica in info.replicas if replica not in alive]
    if len(info.replicas) == 1:
        state = "not alive" if dead else "alive, but may not lead it"
        return f": its only replica is on broker {info.replicas[0]}, which is {state}"
    where = f": its replicas are on brokers {_ids(info.replicas)}"
    if not dead:
        return f"{where}, which are alive, but none of them may lead it"
    if len(dead) == len(info.replicas):
        return f"{where}, none of which is alive"
    return f"{where}, of which {_ids(dead)} {'is' if len(dead) == 1 else 'are'} not alive"


def _ids(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "an unknown time"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
