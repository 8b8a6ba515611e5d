"""Decisions about brokers: registration, fencing, controlled shutdown, what they do to partitions; producer id blocks.

A broker's epoch is the image version that its registration created. A new incarnation of a registered broker starts
over: it leaves every ISR, and the partitions that it leads again get a new leader epoch. It also leaves the eligible
leader replicas (KIP-966), because records that it had not synced may be gone, unless it proves with its last epoch that
it stopped cleanly. Partitions that it had synced before it acknowledged anything (`kraftpy.flush.before.ack`) are
exempt, provided that its disks are those of the previous incarnation. A fenced broker leads nothing and is in no ISR
that can do without it (`elections`).

A broker may have tens of thousands of partitions, and deciding and replaying one entry occupies every node. A command
with `max_partitions` therefore changes at most so many, and is repeated until it is no longer `is_partial`. Meanwhile a
broker to be fenced or shut down is leaving: it is not elected and joins no ISR, but leads what it has not lost yet. A
broker that is unfenced is active at once, and returning until partitions without a leader have been offered to it. The
last part is decided on the image as it is then, so no change since the first part is missed. Both states are in the
image: any later controller continues, or reverses them.

A broker in controlled shutdown is not elected, leaves its ISRs, and hands its leaderships to other eligible replicas.
It keeps leading partitions that no other broker may lead until it is fenced. Its next registration ends this state.

KIPs: 631 (registration, epochs), 841 (fenced replicas stay out of ISRs), 966, 730 (producer ids).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from kraftpy.metadata.commands import (
    AllocateProducerIds,
    ChangeBroker,
    CordonBroker,
    FormatCluster,
    RegisterBroker,
    UnregisterBroker,
)
from kraftpy.metadata.decision import BrokerResult, Decision, ProducerIdBlock, Refused
from kraftpy.metadata.elections import PartitionUpdate, Rules, change_records, next_state
from kraftpy.metadata.features import formatted_features
from kraftpy.metadata.image import Broker, Image, Partition, Topic
from kraftpy.metadata.records import (
    NO_LEADER,
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
MAX_BROKER_ID = _NO_LIMIT = (1 << 31) - 1


def format_cluster(command: FormatCluster, image: Image) -> Decision[None]:
    """Set the cluster id and the initial features, once.

    INCONSISTENT_CLUSTER_ID if the cluster already has another id. Only the first formatting sets features.
    """
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
            message=f"Expected cluster ID {image.cluster_id}, but got cluster ID {command.cluster_id}.",
        )
    return Decision()


def register_broker(command: RegisterBroker, image: Image) -> Decision[BrokerResult]:
    """Give a new incarnation a new epoch; one that registers again keeps its epoch (KIP-631)."""
    if not 0 <= command.broker_id <= MAX_BROKER_ID or len(command.incarnation_id) != 16:
        return Decision(
            error=ErrorCode.INVALID_REQUEST,
            message="The broker id must not be negative, and the incarnation id must be 16 bytes long.",
        )
    existing = image.broker(command.broker_id)
    again = existing if existing and existing.incarnation_id == command.incarnation_id else None
    limit = command.max_partitions if command.fenced else 0
    if existing and not again and not existing.fenced and not command.previous_session_expired:
        return Decision(
            error=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            message=f"Another live broker is registered with broker id {command.broker_id}.",
        )
    registered = BrokerRegistered(
        broker_id=command.broker_id,
        broker_epoch=again.broker_epoch if again else image.version + 1,
        incarnation_id=command.incarnation_id,
        endpoints=command.endpoints,
        rack=command.rack,
        fenced=again.fenced if again else command.fenced,
        registered_ms=command.time_ms,
        is_cordoned=existing is not None and existing.is_cordoned,
        host=command.host,
    )
    records: list[Record] = [registered]
    if again:
        if again.in_controlled_shutdown or again.is_leaving or again.is_returning:
            records.append(_changed(again))
    else:
        is_clean = existing is not None and existing.broker_epoch == command.previous_broker_epoch
        has_same_disks = existing is not None and existing.incarnation_id in command.previous_incarnation_ids
        changes, is_partial = _at_most(
            limit, _restart_changes(command, image, is_clean=is_clean, has_same_disks=has_same_disks)
        )
        if is_partial:
            if existing is not None and not existing.fenced and not existing.is_leaving:
                records = [_changed(replace(existing, is_leaving=True, is_returning=False)), *changes]
            else:
                records = [*changes]
            return Decision(records=tuple(records), result=BrokerResult(broker_epoch=-1, is_partial=True))
        records += changes
    return Decision(records=tuple(records), result=BrokerResult(broker_epoch=registered.broker_epoch))


def _restart_changes(
    command: RegisterBroker, image: Image, *, is_clean: bool, has_same_disks: bool
) -> Iterator[PartitionChanged]:
    """Yield the partition changes that a new incarnation causes: those of a fencing, then of an immediate return
    unless it registers as fenced."""
    broker_id = command.broker_id
    rules = Rules(image, changed=_as_registered(command))
    synced = {each.topic_id: frozenset(each.partitions) for each in command.synced_replicas if has_same_disks}
    is_limited = command.max_partitions > 0 and command.fenced
    within = image.held_by(broker_id).keys() | image.eligible_in(broker_id).keys()
    if not is_limited:
        within |= image.held_by(NO_LEADER).keys()
    for topic, number, partition in image.partitions_of(broker_id, within):
        if _is_candidate(partition, broker_id) or not partition.has_leader:
            unclean = None if is_clean or number in synced.get(topic.topic_id, ()) else broker_id
            loses_eligibility = unclean is not None and broker_id in partition.eligible_leader_replicas
            if is_limited and not loses_eligibility and not _must_leave(partition, broker_id, rules):
                continue
            update = PartitionUpdate(isr=_without(partition.isr, broker_id), unclean=unclean, starts_over=broker_id)
            yield from change_records(topic, number, partition, next_state(topic.name, partition, update, rules))


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
    """Fence, unfence or shut down a broker.

    A fenced broker leaves every ISR and leadership; an unfenced one may lead partitions without a leader; one in
    controlled shutdown hands its leaderships over.
    """
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=refused.error, message=refused.message)
    before = image.broker(command.broker_id)
    assert before is not None
    result = BrokerResult(broker_epoch=command.broker_epoch)
    after = replace(
        before,
        fenced=command.fenced,
        in_controlled_shutdown=before.in_controlled_shutdown or command.in_controlled_shutdown,
        is_leaving=False,
        is_returning=False,
    )
    if after == before:
        return Decision(result=result)
    rules = Rules(image, changed=after)
    is_limited = command.max_partitions > 0
    if after.fenced:
        moves = _fence_changes(command.broker_id, image, rules, is_limited=is_limited)
    elif after.in_controlled_shutdown:
        moves = _hand_over_changes(command.broker_id, image, rules)
    else:
        moves = _unfence_changes(command.broker_id, image, rules, is_limited=is_limited)
    changes, is_partial = _at_most(command.max_partitions, moves)
    if is_partial:
        result = BrokerResult(broker_epoch=command.broker_epoch, is_partial=True)
        if after.is_active:
            after = replace(after, is_returning=True)
        else:
            after = replace(before, is_leaving=True, is_returning=False)
    records: list[Record] = [_changed(after)] if after != before else []
    return Decision(records=(*records, *changes), result=result)


def _changed(after: Broker) -> BrokerChanged:
    return BrokerChanged(
        broker_id=after.broker_id,
        fenced=after.fenced,
        in_controlled_shutdown=after.in_controlled_shutdown,
        is_leaving=after.is_leaving,
        is_returning=after.is_returning,
        is_cordoned=after.is_cordoned,
    )


def cordon_broker(command: CordonBroker, image: Image) -> Decision[None]:
    """Cordon a broker, or end that. Its replicas stay where they are; it keeps this state when it registers again."""
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=refused.error, message=refused.message)
    before = image.broker(command.broker_id)
    assert before is not None
    if before.is_cordoned == command.is_cordoned:
        return Decision()
    return Decision(records=(_changed(replace(before, is_cordoned=command.is_cordoned)),))


def _at_most(limit: int, changes: Iterable[PartitionChanged]) -> tuple[list[PartitionChanged], bool]:
    """Return the first changes, at most `limit` (0 is no limit), and whether there are more."""
    if limit <= 0:
        return [*changes], False
    found = [*islice(changes, min(limit, _NO_LIMIT) + 1)]
    return found[:limit], len(found) > limit


def unregister_broker(command: UnregisterBroker, image: Image) -> Decision[BrokerResult]:
    """Move its partitions as a fencing would, then remove its registration. It may register again later."""
    registered = image.broker(command.broker_id)
    if registered is None:
        return Decision(
            error=ErrorCode.BROKER_ID_NOT_REGISTERED,
            message=f"Broker ID {command.broker_id} is not currently registered",
        )
    rules = Rules(image, gone=command.broker_id)
    moves = _fence_changes(command.broker_id, image, rules, is_limited=command.max_partitions > 0)
    changes, is_partial = _at_most(command.max_partitions, moves)
    if not is_partial:
        return Decision(records=(*changes, BrokerUnregistered(broker_id=command.broker_id)))
    records: list[Record] = [*changes]
    if not registered.fenced and not registered.is_leaving:
        records.insert(0, _changed(replace(registered, is_leaving=True, is_returning=False)))
    return Decision(records=tuple(records), result=BrokerResult(broker_epoch=registered.broker_epoch, is_partial=True))


def stale_epoch(broker_id: BrokerId, broker_epoch: int, image: Image) -> Refused | None:
    """Return the refusal if `broker_epoch` is not the epoch of the broker's current registration."""
    broker = image.broker(broker_id)
    if broker is None:
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker registration found for broker id {broker_id}.")
    if broker.broker_epoch != broker_epoch:
        return Refused(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected epoch {broker.broker_epoch} of broker {broker_id}, but got broker epoch {broker_epoch}.",
        )
    return None


def _fence_changes(
    broker_id: BrokerId, image: Image, rules: Rules, *, is_limited: bool = False
) -> Iterator[PartitionChanged]:
    """Yield changes that take the broker out of ISRs and leaderships."""
    for topic, number, partition in image.partitions_of(broker_id, image.held_by(broker_id)):
        if broker_id in partition.isr or broker_id == partition.leader:
            if is_limited and not _must_leave(partition, broker_id, rules):
                continue
            update = PartitionUpdate(isr=_without(partition.isr, broker_id))
            yield from change_records(topic, number, partition, next_state(topic.name, partition, update, rules))


def _must_leave(partition: Partition, broker_id: BrokerId, rules: Rules) -> bool:
    """Return whether a fencing changes the partition, without computing how: a part passes those of earlier ones."""
    if broker_id == partition.leader:
        return True
    return broker_id in partition.isr and (rules.has_elr or len(partition.isr) > 1)


def _unfence_changes(
    broker_id: BrokerId, image: Image, rules: Rules, *, is_limited: bool = False
) -> Iterator[PartitionChanged]:
    """Yield changes that let this broker lead partitions with no leader, or with one that is shutting down."""
    inactive = [each for each in image.holders() if each not in rules.active]  # `NO_LEADER` is one of them
    within = frozenset(chain.from_iterable(map(image.held_by, inactive)))
    for topic, number, partition in image.partitions_of(broker_id, within):
        if not partition.has_leader:
            if is_limited and not _may_lead(topic, partition, broker_id, rules):
                continue
            after = next_state(topic.name, partition, PartitionUpdate(), rules)
            yield from change_records(topic, number, partition, after)
        elif partition.leader not in rules.active:
            yield from _removal_changes(topic, number, partition, partition.leader, rules)


def _may_lead(topic: Topic, partition: Partition, broker_id: BrokerId, rules: Rules) -> bool:
    """Return whether the broker may be elected, without electing anyone: a part may pass many that it may not lead."""
    return broker_id not in partition.offline_replicas and (
        _is_candidate(partition, broker_id) or broker_id in partition.last_known_elr or rules.allows_unclean(topic.name)
    )


def _hand_over_changes(broker_id: BrokerId, image: Image, rules: Rules) -> Iterator[PartitionChanged]:
    """Take the broker out of ISRs and leaderships if a successor exists. Other partitions would become leaderless."""
    for topic, number, partition in image.partitions_of(broker_id, image.held_by(broker_id)):
        if broker_id in partition.isr:
            yield from _removal_changes(topic, number, partition, broker_id, rules)


def _removal_changes(
    topic: Topic, number: int, partition: Partition, broker_id: BrokerId, rules: Rules
) -> Sequence[PartitionChanged]:
    """Take a stopping broker out of the ISR and leadership, unless it leads and has no successor."""
    if partition.leader == broker_id and not _has_successor(partition, rules):
        return ()
    update = PartitionUpdate(isr=_without(partition.isr, broker_id))
    return change_records(topic, number, partition, next_state(topic.name, partition, update, rules))


def _has_successor(partition: Partition, rules: Rules) -> bool:
    """Return whether an active replica that holds all committed records may take over."""
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
    """Allocate the next block of ids. No block is given out twice, even if the broker does not use it."""
    if refused := stale_epoch(command.broker_id, command.broker_epoch, image):
        return Decision(error=ErrorCode.STALE_BROKER_EPOCH, message=refused.message)
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_IDS_PER_BLOCK:
        return Decision(error=ErrorCode.UNKNOWN_SERVER_ERROR, message="Every producer id has been allocated.")
    allocated = ProducerIdsAllocated(
        broker_id=command.broker_id, next_producer_id=ProducerId(first + PRODUCER_IDS_PER_BLOCK)
    )
    return Decision(records=(allocated,), result=ProducerIdBlock(first_producer_id=first, count=PRODUCER_IDS_PER_BLOCK))
