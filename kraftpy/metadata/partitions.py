"""Decisions about existing partitions: in-sync and offline replicas, elections on request, the balance of leaders.

`elections.next_state` works out the resulting state of each partition.

A broker whose log directory fails reports each replica in it, and each whose log is available again. A replica whose
log is gone is reported as lost: if another replica leads the partition, the lost one starts over from an empty log; if
none does, it stays offline, since otherwise the partition would become empty. An unclean election on request accepts
that loss.

KIPs: 497 (a leader's proposals), 841 and 903 (brokers that may not be in sync), 704 (recovery), 460 (elections on
request), 858 (failed directories: there they are known by ids, and a partition by its directory).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kraftpy.metadata.brokers import stale_epoch
from kraftpy.metadata.commands import (
    BalanceLeaders,
    ChangePartitions,
    ChangeReplicas,
    ElectLeaders,
    IsrChange,
    ReplicaChange,
    ReplicaState,
)
from kraftpy.metadata.decision import Decision, ElectionResult, PartitionResult, Refused
from kraftpy.metadata.elections import PartitionUpdate, Rules, change_records, next_state
from kraftpy.metadata.image import Image, Partition, Topic
from kraftpy.metadata.records import PartitionChanged, Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId


def change_partitions(command: ChangePartitions, image: Image) -> Decision[tuple[PartitionResult, ...]]:
    """Decide a leader's proposals, each independently (KIP-497, KIP-903).

    NEW_LEADER_ELECTED: the change was made and elected another leader, as the end of a reassignment may.
    """
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=ErrorCode.STALE_BROKER_EPOCH, message=refused.message)
    times_named = Counter((change.topic_id, change.partition) for change in command.changes)
    rules = Rules(image)
    records: list[Record] = []
    results = []
    for change in command.changes:
        error, state = ErrorCode.NONE, None
        try:
            if times_named[change.topic_id, change.partition] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST)
            topic, partition = _found(change, image)
            isr = _checked_isr(change, partition, command.broker_id, image)
            state = next_state(
                topic.name, partition, PartitionUpdate(isr=isr, is_recovering=change.is_recovering), rules
            )
            records += change_records(topic, change.partition, partition, state)
            if state.leader != command.broker_id:
                error = ErrorCode.NEW_LEADER_ELECTED
        except Refused as refusal:
            error = refusal.error
        results.append(PartitionResult(topic_id=change.topic_id, partition=change.partition, error=error, state=state))
    return Decision(records=tuple(records), result=tuple(results))


def _found(change: IsrChange | ReplicaChange, image: Image) -> tuple[Topic, Partition]:
    topic = image.topic_by_id(change.topic_id)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= change.partition < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic, topic.partitions[change.partition]


def _checked_isr(change: IsrChange, partition: Partition, sender: BrokerId, image: Image) -> tuple[BrokerId, ...]:
    """Validate a proposed ISR and return it in replica order. Checks run in Kafka's order: the first error counts."""
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        raise Refused(ErrorCode.NOT_CONTROLLER)
    if change.leader_epoch < partition.leader_epoch:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH)
    if sender != partition.leader:
        raise Refused(ErrorCode.INVALID_REQUEST)
    if change.partition_epoch < partition.partition_epoch:
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION)
    epochs = {member.broker_id: member.broker_epoch for member in change.isr}
    isr = tuple(broker_id for broker_id in partition.replicas if broker_id in epochs)
    if len(isr) != len(change.isr) or sender not in isr:
        raise Refused(ErrorCode.INVALID_REQUEST)
    if change.is_recovering and (len(isr) > 1 or not partition.is_recovering):
        raise Refused(
            ErrorCode.INVALID_REQUEST
        )  # a recovering leader is the whole ISR, and recovery cannot be requested
    for broker_id in isr:
        broker = image.broker(broker_id)
        if broker is None or broker.fenced or epochs[broker_id] not in (-1, broker.broker_epoch):
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
        if broker.is_leaving and broker_id not in partition.isr:
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
        if broker_id in partition.offline_replicas:
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
        if broker.in_controlled_shutdown and broker_id != sender:  # the leader itself stays until a successor may lead
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
    return isr


# -- offline replicas


def change_replicas(command: ChangeReplicas, image: Image) -> Decision[tuple[PartitionResult, ...]]:
    """Process a broker's report about its replicas, each independently: offline ones leave ISRs and leaderships."""
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=ErrorCode.STALE_BROKER_EPOCH, message=refused.message)
    times_named = Counter((change.topic_id, change.partition) for change in command.changes)
    rules = Rules(image)
    records: list[Record] = []
    results = []
    for change in command.changes:
        error, state = ErrorCode.NONE, None
        try:
            if times_named[change.topic_id, change.partition] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST)
            topic, partition = _found(change, image)
            if command.broker_id not in partition.replicas:
                raise Refused(ErrorCode.INVALID_REQUEST)
            state = _as_reported(change.state, command.broker_id, topic.name, partition, rules)
            records += change_records(topic, change.partition, partition, state)
        except Refused as refusal:
            error = refusal.error
        results.append(PartitionResult(topic_id=change.topic_id, partition=change.partition, error=error, state=state))
    return Decision(records=tuple(records), result=tuple(results))


def _as_reported(state: ReplicaState, broker_id: BrokerId, topic: str, partition: Partition, rules: Rules) -> Partition:
    others_offline = tuple(replica for replica in partition.offline_replicas if replica != broker_id)
    if state is ReplicaState.ONLINE:
        return next_state(topic, partition, PartitionUpdate(offline=others_offline), rules)
    if state is ReplicaState.TRUNCATED:
        isr = tuple(member for member in partition.isr if member != broker_id)
        return next_state(topic, partition, PartitionUpdate(isr=isr, unclean=broker_id, offline=others_offline), rules)
    is_lost = state is ReplicaState.LOST
    update = PartitionUpdate(
        isr=tuple(member for member in partition.isr if member != broker_id),
        unclean=broker_id if is_lost else None,
        offline=(*others_offline, broker_id),
    )
    after = next_state(topic, partition, update, rules)
    if not is_lost or not after.has_leader:
        return after
    still_offline = tuple(replica for replica in after.offline_replicas if replica != broker_id)
    follows = replace(after, offline_replicas=still_offline, partition_epoch=partition.partition_epoch)
    if follows == partition:
        return partition
    return replace(follows, partition_epoch=partition.partition_epoch + 1)


# -- elections on request


def elect_leaders(command: ElectLeaders, image: Image) -> Decision[tuple[ElectionResult, ...]]:
    """Elect preferred leaders, or if `unclean`, any replica of leaderless partitions; each independently (KIP-460)."""
    rules = Rules(image)
    records: list[Record] = []
    if command.partitions is None:
        return _elect_everywhere(image, rules, unclean=command.unclean)
    times_named = Counter((named.topic, named.partition) for named in command.partitions)
    results = []
    for named in command.partitions:
        error, message = ErrorCode.NONE, None
        try:
            if times_named[named.topic, named.partition] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST, "The request names this partition more than once.")
            topic, partition = found_by_name(named.topic, named.partition, image)
            records += _elect(topic, named.partition, partition, rules, unclean=command.unclean)
        except Refused as refused:
            error, message = refused.error, refused.message
        results.append(ElectionResult(topic=named.topic, partition=named.partition, error=error, message=message))
    return Decision(records=tuple(records), result=tuple(results))


def _elect_everywhere(image: Image, rules: Rules, *, unclean: bool) -> Decision[tuple[ElectionResult, ...]]:
    """Elect leaders of all partitions. Those that need no election have no result."""
    records: list[Record] = []
    results = []
    for topic, number, partition in image.partitions():
        error, message = ErrorCode.NONE, None
        try:
            records += _elect(topic, number, partition, rules, unclean=unclean)
        except Refused as refused:
            if refused.error is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            error, message = refused.error, refused.message
        results.append(ElectionResult(topic=topic.name, partition=number, error=error, message=message))
    return Decision(records=tuple(records), result=tuple(results))


def found_by_name(name: str, number: int, image: Image) -> tuple[Topic, Partition]:
    """Return the topic and partition that a client named. Raises `Refused` if one does not exist."""
    topic = image.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= number < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{number}")
    return topic, topic.partitions[number]


def _elect(topic: Topic, number: int, partition: Partition, rules: Rules, *, unclean: bool) -> list[PartitionChanged]:
    """Elect a leader of one partition. Raises `Refused` if no election is needed or no replica is eligible."""
    if unclean:
        if partition.has_leader:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.meaning)
        after = next_state(topic.name, partition, PartitionUpdate(may_be_unclean=True), rules)
        if not after.has_leader:
            raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica is on an active broker.")
        return change_records(topic, number, partition, after)
    preferred = partition.preferred_leader
    if partition.leader == preferred:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.meaning)
    after = next_state(topic.name, partition, PartitionUpdate(prefers_first=True), rules)
    if after.leader != preferred:
        raise Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader, broker {preferred}, is not in sync or not active.",
        )
    return change_records(topic, number, partition, after)


# -- the balance of leaders


def balance_leaders(command: BalanceLeaders, image: Image) -> Decision[None]:
    """Elect preferred leaders for brokers that lack more than the allowed share of their leaderships.

    Holds at most `max_elections` elections; the next round continues.
    """
    rules = Rules(image)
    records: list[Record] = []
    for topic, number, partition in _lacking(image, command.imbalance_percentage):
        if len(records) >= command.max_elections:
            break
        after = next_state(topic.name, partition, PartitionUpdate(prefers_first=True), rules)
        if after.leader == partition.preferred_leader:
            records += change_records(topic, number, partition, after)
    return Decision(records=tuple(records))


def is_balanced(image: Image, imbalance_percentage: int) -> bool:
    """Return whether `balance_leaders` would have nothing to do."""
    return not any(
        partition.preferred_leader in partition.isr for _, _, partition in _lacking(image, imbalance_percentage)
    )


def _lacking(image: Image, imbalance_percentage: int) -> list[tuple[Topic, int, Partition]]:
    """Return partitions not led by their preferred leader, if it is active and lacks more than its allowed share."""
    preferring: Counter[BrokerId] = Counter()
    displaced: Counter[BrokerId] = Counter()
    found = []
    for topic, number, partition in image.partitions():
        preferred = partition.replicas[0]
        preferring[preferred] += 1
        if partition.leader != preferred:
            displaced[preferred] += 1
            found.append((topic, number, partition))
    too_few = {
        broker_id
        for broker_id, count in displaced.items()
        if count * 100 > imbalance_percentage * preferring[broker_id] and image.is_active(broker_id)
    }
    return [item for item in found if item[2].replicas[0] in too_few]
