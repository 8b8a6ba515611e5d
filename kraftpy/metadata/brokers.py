"""What is decided about brokers: their sessions, and what their coming and going does to partitions; blocks of ids.

A broker's epoch is the image's version that its registration made. A new incarnation of a registered broker starts
over: it leaves every ISR, and the partitions that it leads again get a new leader epoch. Unless it proves with its last
epoch that it stopped cleanly, what it had not synced may be gone: it leaves the eligible leader replicas too
(KIP-966). Not of partitions that it had synced before it acknowledged anything (`kraftpy.flush.before.ack`), where its
disks are those of the incarnation before. A broker that is fenced leads nothing and is in no ISR that can do without it
(`elections`).

In controlled shutdown a broker is elected nowhere, leaves the ISRs, and hands its leaderships to whoever may have
them; what nobody else may lead it leads until it is fenced. That state ends with its next registration.

KIPs: 631 (registration, epochs), 841 (fenced replicas stay out of ISRs), 966, 730 (producer ids).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kraftpy.metadata.commands import (
    AllocateProducerIds,
    ChangeBroker,
    FormatCluster,
    RegisterBroker,
    UnregisterBroker,
)
from kraftpy.metadata.decision import BrokerResult, Decision, ProducerIdBlock, Refused
from kraftpy.metadata.elections import Rules, Wish, changed, settle
from kraftpy.metadata.features import formatted_features
from kraftpy.metadata.image import Broker, Image, Partition, Topic
from kraftpy.metadata.records import (
    BrokerChanged,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterFormatted,
    PartitionChanged,
    ProducerIdsAllocated,
    Record,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, ProducerId

PRODUCER_IDS_PER_BLOCK = 1000
MAX_PRODUCER_ID = (1 << 63) - 1
MAX_BROKER_ID = (1 << 31) - 1


def format_cluster(command: FormatCluster, image: Image) -> Decision[None]:
    """INCONSISTENT_CLUSTER_ID where the cluster has another id already. The first one's features count."""
    if not command.cluster_id:
        return Decision(error=ErrorCode.INVALID_REQUEST, message="The cluster id is empty.")
    if image.cluster_id is None:
        try:
            features = formatted_features(command, image)
        except Refused as refused:
            return Decision(error=refused.error, message=refused.message)
        return Decision(records=(ClusterFormatted(cluster_id=command.cluster_id), *features))
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
    if again:
        if again.in_controlled_shutdown:
            records.append(BrokerChanged(broker_id=again.broker_id, fenced=again.fenced, in_controlled_shutdown=True))
    else:
        is_clean = existing is not None and existing.broker_epoch == command.previous_broker_epoch
        has_same_disks = existing is not None and existing.incarnation_id in command.previous_incarnation_ids
        records += _started(command, image, is_clean=is_clean, has_same_disks=has_same_disks)
    return Decision(records=tuple(records), result=BrokerResult(broker_epoch=registered.broker_epoch))


def _started(command: RegisterBroker, image: Image, *, is_clean: bool, has_same_disks: bool) -> list[PartitionChanged]:
    """What a new incarnation does to partitions: as if it had been fenced, and came back at once where it is not."""
    broker_id = command.broker_id
    rules = Rules(image, changed=_as_registered(command))
    synced = {each.topic_id: frozenset(each.partitions) for each in command.synced_replicas if has_same_disks}
    records = []
    for topic, number, partition in image.partitions_of(broker_id):
        if _is_candidate(partition, broker_id) or not partition.has_leader:
            unclean = None if is_clean or number in synced.get(topic.topic_id, ()) else broker_id
            wish = Wish(isr=_without(partition.isr, broker_id), unclean=unclean, starts_over=broker_id)
            records += changed(topic, number, partition, settle(topic.name, partition, wish, rules))
    return records


def _as_registered(command: RegisterBroker) -> Broker:
    return Broker(
        broker_id=command.broker_id,
        broker_epoch=0,
        incarnation_id=command.incarnation_id,
        endpoints=(),
        rack=command.rack,
        fenced=command.fenced,
        registered_ms=command.time_ms,
    )


def change_broker(command: ChangeBroker, image: Image) -> Decision[BrokerResult]:
    """Fence: out of every ISR and leadership. Unfence: lead what nobody leads. Shut down: hand over."""
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=refused.error, message=refused.message)
    before = image.broker(command.broker_id)
    assert before is not None
    result = BrokerResult(broker_epoch=command.broker_epoch)
    after = replace(
        before,
        fenced=command.fenced,
        in_controlled_shutdown=before.in_controlled_shutdown or command.in_controlled_shutdown,
    )
    if after == before:
        return Decision(result=result)
    rules = Rules(image, changed=after)
    records: list[Record] = [
        BrokerChanged(
            broker_id=command.broker_id, fenced=after.fenced, in_controlled_shutdown=after.in_controlled_shutdown
        )
    ]
    if after.fenced:
        records += _left(command.broker_id, image, rules)
    elif after.in_controlled_shutdown:
        records += _handed_over(command.broker_id, image, rules)
    else:
        records += _came(command.broker_id, image, rules)
    return Decision(records=tuple(records), result=result)


def unregister_broker(command: UnregisterBroker, image: Image) -> Decision[None]:
    """Fence it, as it were, and forget it. It is nobody's broker until it registers again."""
    if image.broker(command.broker_id) is None:
        return Decision(
            error=ErrorCode.BROKER_ID_NOT_REGISTERED, message=f"No broker with id {command.broker_id} is registered."
        )
    left = _left(command.broker_id, image, Rules(image, gone=command.broker_id))
    return Decision(records=(*left, BrokerUnregistered(broker_id=command.broker_id)))


def stale_epoch(broker_id: BrokerId, broker_epoch: int, image: Image) -> Refused | None:
    """Why a session of this epoch is not the broker's, if it is not."""
    broker = image.broker(broker_id)
    if broker is None:
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {broker_id} is registered.")
    if broker.broker_epoch != broker_epoch:
        return Refused(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}."
        )
    return None


def _left(broker_id: BrokerId, image: Image, rules: Rules) -> list[PartitionChanged]:
    records = []
    for topic, number, partition in image.partitions_of(broker_id):
        if broker_id in partition.isr or broker_id == partition.leader:
            wish = Wish(isr=_without(partition.isr, broker_id))
            records += changed(topic, number, partition, settle(topic.name, partition, wish, rules))
    return records


def _came(broker_id: BrokerId, image: Image, rules: Rules) -> list[PartitionChanged]:
    """It may lead what nobody leads, and what somebody leads who is about to stop."""
    records: list[PartitionChanged] = []
    for topic, number, partition in image.partitions_of(broker_id):
        if not partition.has_leader:
            records += changed(topic, number, partition, settle(topic.name, partition, Wish(), rules))
        elif partition.leader not in rules.active:
            records += _without_stopping(topic, number, partition, partition.leader, rules)
    return records


def _handed_over(broker_id: BrokerId, image: Image, rules: Rules) -> list[PartitionChanged]:
    """Out of the ISRs and leaderships that somebody else may have: the rest would only be left without a leader."""
    records: list[PartitionChanged] = []
    for topic, number, partition in image.partitions_of(broker_id):
        if broker_id in partition.isr:
            records += _without_stopping(topic, number, partition, broker_id, rules)
    return records


def _without_stopping(
    topic: Topic, number: int, partition: Partition, broker_id: BrokerId, rules: Rules
) -> Sequence[PartitionChanged]:
    """Out of the ISR, and no longer the leader where somebody else may be."""
    if partition.leader == broker_id and not _has_successor(partition, rules):
        return ()
    wish = Wish(isr=_without(partition.isr, broker_id))
    return changed(topic, number, partition, settle(topic.name, partition, wish, rules))


def _has_successor(partition: Partition, rules: Rules) -> bool:
    """Whether somebody active may lead it who has all that is committed."""
    candidates = {*partition.isr, *partition.eligible_leader_replicas}.difference(partition.offline_replicas)
    return not rules.active.isdisjoint(candidates)


def _is_candidate(partition: Partition, broker_id: BrokerId) -> bool:
    return (
        broker_id in partition.isr or broker_id == partition.leader or broker_id in partition.eligible_leader_replicas
    )


def _without(members: tuple[BrokerId, ...], broker_id: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(member for member in members if member != broker_id)


# -- producer ids


def allocate_producer_ids(command: AllocateProducerIds, image: Image) -> Decision[ProducerIdBlock]:
    """The next block, which nobody gets again, whether the broker uses it or not."""
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=ErrorCode.STALE_BROKER_EPOCH, message=refused.message)
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_IDS_PER_BLOCK:
        return Decision(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="Every producer id has been given away.")
    allocated = ProducerIdsAllocated(
        broker_id=command.broker_id, next_producer_id=ProducerId(first + PRODUCER_IDS_PER_BLOCK)
    )
    return Decision(records=(allocated,), result=ProducerIdBlock(first_producer_id=first, count=PRODUCER_IDS_PER_BLOCK))
