"""What is decided about partitions that exist: in-sync and offline replicas, elections on request, leaders' balance.

What follows for the partition itself is `elections.settle`'s part.

A broker whose log directory fails says so of each replica in it, and of each whose log is there again. One that finds
a replica's log gone says that: where somebody else leads the partition it begins anew from nothing; where nobody does,
it stays offline, or an empty log would become what the partition holds. An unclean election on request accepts that.

KIPs: 497 (a leader's proposals), 841 and 903 (who may not be in sync), 704 (recovery), 460 (elections on request), 858
(failed directories: there they are known by ids, and a partition by its directory).
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
from kraftpy.metadata.elections import Rules, Wish, changed, settle
from kraftpy.metadata.image import Image, Partition, Topic
from kraftpy.metadata.records import PartitionChanged, Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId


def change_partitions(command: ChangePartitions, image: Image) -> Decision[tuple[PartitionResult, ...]]:
    """Take a leader's proposals, each by itself (KIP-497, KIP-903).

    NEW_LEADER_ELECTED: the change was made, and made somebody else the leader, as the end of a reassignment may.
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
            state = settle(topic.name, partition, Wish(isr=isr, is_recovering=change.is_recovering), rules)
            records += changed(topic, change.partition, partition, state)
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
    """The proposed ISR in the order of the replicas. The checks' order is Kafka's: clients tell by the first one."""
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
        raise Refused(ErrorCode.INVALID_REQUEST)  # who recovers is alone in sync, and nobody begins to by asking
    for broker_id in isr:
        broker = image.broker(broker_id)
        if broker is None or broker.fenced or epochs[broker_id] not in (-1, broker.broker_epoch):
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
        if broker_id in partition.offline_replicas:
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
        if broker.in_controlled_shutdown and broker_id != sender:  # itself it leads until somebody else may
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
    return isr


# -- offline replicas


def change_replicas(command: ChangeReplicas, image: Image) -> Decision[tuple[PartitionResult, ...]]:
    """Take what a broker says of its replicas: the offline ones leave ISRs and leaderships, each by itself."""
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
            records += changed(topic, change.partition, partition, state)
        except Refused as refusal:
            error = refusal.error
        results.append(PartitionResult(topic_id=change.topic_id, partition=change.partition, error=error, state=state))
    return Decision(records=tuple(records), result=tuple(results))


def _as_reported(state: ReplicaState, broker_id: BrokerId, topic: str, partition: Partition, rules: Rules) -> Partition:
    others_offline = tuple(replica for replica in partition.offline_replicas if replica != broker_id)
    if state is ReplicaState.ONLINE:
        return settle(topic, partition, Wish(offline=others_offline), rules)
    if state is ReplicaState.CUT:
        isr = tuple(member for member in partition.isr if member != broker_id)
        return settle(topic, partition, Wish(isr=isr, unclean=broker_id, offline=others_offline), rules)
    is_lost = state is ReplicaState.LOST
    wish = Wish(
        isr=tuple(member for member in partition.isr if member != broker_id),
        unclean=broker_id if is_lost else None,
        offline=(*others_offline, broker_id),
    )
    after = settle(topic, partition, wish, rules)
    if not is_lost or not after.has_leader:
        return after
    still_offline = tuple(replica for replica in after.offline_replicas if replica != broker_id)
    follows = replace(after, offline_replicas=still_offline, partition_epoch=partition.partition_epoch)
    if follows == partition:
        return partition
    return replace(follows, partition_epoch=partition.partition_epoch + 1)


# -- elections on request


def elect_leaders(command: ElectLeaders, image: Image) -> Decision[tuple[ElectionResult, ...]]:
    """Elect the preferred leaders, or where `unclean`, anyone where nobody leads; each by itself (KIP-460)."""
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
    """All partitions: one that has the leader it should have is not told of."""
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
    """A topic and its partition, as a client names it. Raises `Refused`."""
    topic = image.topic(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    if not 0 <= number < len(topic.partitions):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{number}.")
    return topic, topic.partitions[number]


def _elect(topic: Topic, number: int, partition: Partition, rules: Rules, *, unclean: bool) -> list[PartitionChanged]:
    """The election of one partition. Raises `Refused` where there is none to hold, or nobody to elect."""
    if unclean:
        if partition.has_leader:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {partition.leader} leads it.")
        after = settle(topic.name, partition, Wish(may_be_unclean=True), rules)
        if not after.has_leader:
            raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "None of its replicas is on an active broker.")
        return changed(topic, number, partition, after)
    preferred = partition.preferred_leader
    if partition.leader == preferred:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"Broker {preferred}, which is preferred, leads it.")
    after = settle(topic.name, partition, Wish(prefers_first=True), rules)
    if after.leader != preferred:
        raise Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {preferred}, which is preferred, is not in sync or not active.",
        )
    return changed(topic, number, partition, after)


# -- the balance of leaders


def balance_leaders(command: BalanceLeaders, image: Image) -> Decision[None]:
    """Give leaderships to the brokers preferred for them, where one lacks more than its share.

    Never more than `max_elections` at once: the next round takes up the rest.
    """
    rules = Rules(image)
    records: list[Record] = []
    for topic, number, partition in _lacking(image, command.imbalance_percentage):
        if len(records) >= command.max_elections:
            break
        after = settle(topic.name, partition, Wish(prefers_first=True), rules)
        if after.leader == partition.preferred_leader:
            records += changed(topic, number, partition, after)
    return Decision(records=tuple(records))


def is_balanced(image: Image, imbalance_percentage: int) -> bool:
    """Whether `balance_leaders` would have nothing to do."""
    return not any(
        partition.preferred_leader in partition.isr for _, _, partition in _lacking(image, imbalance_percentage)
    )


def _lacking(image: Image, imbalance_percentage: int) -> list[tuple[Topic, int, Partition]]:
    """Partitions led by another than the one they prefer, which is active and lacks more than its share of those."""
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
