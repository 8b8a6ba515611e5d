"""What is decided about brokers: sessions, who leads when one goes or comes, in-sync replicas, producer id blocks.

A broker's epoch is the image's version that its registration made. A new incarnation of a registered broker starts
over: the partitions it led get a new leader epoch even when it leads them again, because what it had not synced may
be gone.

Election (guarantees of KIP-841 and its kin, without eligible leader replicas): an active member of the ISR in the
order of the replicas; else nobody. The last member is never taken out of an ISR.

Left out, for when there are several nodes: eligible leader replicas (KIP-966), unclean election, leader recovery state,
preferred election, controlled shutdown that moves leaders first, reassignments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kraftpy.metadata.commands import (
    AllocateProducerIds,
    ChangeBroker,
    ChangePartitions,
    FormatCluster,
    IsrChange,
    RegisterBroker,
)
from kraftpy.metadata.decision import BrokerResult, Decision, PartitionResult, ProducerIdBlock, Refused
from kraftpy.metadata.image import Image, Partition, Topic
from kraftpy.metadata.records import (
    NO_LEADER,
    BrokerChanged,
    BrokerRegistered,
    ClusterFormatted,
    PartitionChanged,
    ProducerIdsAllocated,
    Record,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, LeaderEpoch, ProducerId

PRODUCER_IDS_PER_BLOCK = 1000
MAX_PRODUCER_ID = (1 << 63) - 1
MAX_BROKER_ID = (1 << 31) - 1


def format_cluster(command: FormatCluster, image: Image) -> Decision[None]:
    """INCONSISTENT_CLUSTER_ID where the cluster has another id already."""
    if not command.cluster_id:
        return Decision(error=ErrorCode.INVALID_REQUEST, message="The cluster id is empty.")
    if image.cluster_id is None:
        return Decision(records=(ClusterFormatted(cluster_id=command.cluster_id),))
    if image.cluster_id != command.cluster_id:
        return Decision(
            error=ErrorCode.INCONSISTENT_CLUSTER_ID,
            message=f"The cluster's id is {image.cluster_id}, not {command.cluster_id}.",
        )
    return Decision()


def register_broker(command: RegisterBroker, image: Image) -> Decision[BrokerResult]:
    """A new epoch for a new incarnation; the epoch it has for one that registers again (KIP-631)."""
    if not 0 <= command.broker_id <= MAX_BROKER_ID or len(command.incarnation_id) != 16:
        return Decision(
            error=ErrorCode.INVALID_REQUEST, message="A broker has an id from 0 on and 16 bytes of its own."
        )
    existing = image.broker(command.broker_id)
    again = existing if existing and existing.incarnation_id == command.incarnation_id else None
    if existing and not again and not existing.fenced and not command.previous_session_expired:
        return Decision(
            error=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            message=f"Another broker is registered with id {command.broker_id}, and it is alive.",
        )
    registered = BrokerRegistered(
        broker_id=command.broker_id,
        broker_epoch=again.broker_epoch if again else image.version + 1,
        incarnation_id=command.incarnation_id,
        endpoints=command.endpoints,
        rack=command.rack,
        fenced=again.fenced if again else command.fenced,
        registered_ms=command.time_ms,
    )
    records: list[Record] = [registered]
    if not again:
        records += _settled(image, command.broker_id, active=not command.fenced, leaves=True)
    return Decision(records=tuple(records), result=BrokerResult(broker_epoch=registered.broker_epoch))


def change_broker(command: ChangeBroker, image: Image) -> Decision[BrokerResult]:
    """Fence: out of every ISR that has others, and of every leadership. Unfence: lead what nobody leads."""
    if refused := _stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=refused.error, message=refused.message)
    result = BrokerResult(broker_epoch=command.broker_epoch)
    if image.is_active(command.broker_id) is not command.fenced:
        return Decision(result=result)
    changed = BrokerChanged(broker_id=command.broker_id, fenced=command.fenced)
    settled = _settled(image, command.broker_id, active=not command.fenced, leaves=command.fenced)
    return Decision(records=(changed, *settled), result=result)


def _stale_epoch(broker_id: BrokerId, broker_epoch: int, image: Image) -> Refused | None:
    broker = image.broker(broker_id)
    if broker is None:
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {broker_id} is registered.")
    if broker.broker_epoch != broker_epoch:
        return Refused(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}."
        )
    return None


def _settled(image: Image, broker_id: BrokerId, *, active: bool, leaves: bool) -> list[PartitionChanged]:
    """What changes in partitions when a broker becomes active or not, and leaves the ISRs it was in or not."""
    records = []
    for topic, number, partition in image.partitions():
        isr = partition.isr
        if leaves and broker_id in isr and len(isr) > 1:
            isr = tuple(member for member in isr if member != broker_id)
        may_lead = [
            member
            for member in partition.replicas
            if member in isr and (active if member == broker_id else image.is_active(member))
        ]
        leader = partition.leader
        if leader not in may_lead:
            leader = may_lead[0] if may_lead else NO_LEADER
        starts_over = leaves and leader == broker_id
        if isr == partition.isr and leader == partition.leader and not starts_over:
            continue
        new_epoch = leader != partition.leader or starts_over
        records.append(_changed(topic, number, partition, isr=isr, leader=leader, new_epoch=new_epoch))
    return records


def _changed(
    topic: Topic,
    number: int,
    partition: Partition,
    *,
    isr: tuple[BrokerId, ...],
    leader: BrokerId,
    new_epoch: bool,
) -> PartitionChanged:
    return PartitionChanged(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=number,
        isr=isr,
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + new_epoch),
        partition_epoch=partition.partition_epoch + 1,
    )


# -- in-sync replicas


def change_partitions(command: ChangePartitions, image: Image) -> Decision[tuple[PartitionResult, ...]]:
    """Take a leader's proposals, each by itself (KIP-497, KIP-903)."""
    if refused := _stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=ErrorCode.STALE_BROKER_EPOCH, message=refused.message)
    times_named = Counter((change.topic_id, change.partition) for change in command.changes)
    records: list[Record] = []
    results = []
    for change in command.changes:
        error, state = ErrorCode.NONE, None
        try:
            if times_named[change.topic_id, change.partition] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST)
            topic, partition = _found(change, image)
            isr = _checked_isr(change, partition, command.broker_id, image)
            if isr != partition.isr:
                record = _changed(topic, change.partition, partition, isr=isr, leader=partition.leader, new_epoch=False)
                records.append(record)
                partition = replace(partition, isr=isr, partition_epoch=record.partition_epoch)
            state = partition
        except Refused as refusal:
            error = refusal.error
        results.append(PartitionResult(topic_id=change.topic_id, partition=change.partition, error=error, state=state))
    return Decision(records=tuple(records), result=tuple(results))


def _found(change: IsrChange, image: Image) -> tuple[Topic, Partition]:
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
    for broker_id in isr:
        broker = image.broker(broker_id)
        if broker is None or broker.fenced or epochs[broker_id] not in (-1, broker.broker_epoch):
            raise Refused(ErrorCode.INELIGIBLE_REPLICA)
    return isr


# -- producer ids


def allocate_producer_ids(command: AllocateProducerIds, image: Image) -> Decision[ProducerIdBlock]:
    """The next block, which nobody gets again, whether the broker uses it or not."""
    if refused := _stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=ErrorCode.STALE_BROKER_EPOCH, message=refused.message)
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_IDS_PER_BLOCK:
        return Decision(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="Every producer id has been given away.")
    allocated = ProducerIdsAllocated(
        broker_id=command.broker_id, next_producer_id=ProducerId(first + PRODUCER_IDS_PER_BLOCK)
    )
    return Decision(records=(allocated,), result=ProducerIdBlock(first_producer_id=first, count=PRODUCER_IDS_PER_BLOCK))
