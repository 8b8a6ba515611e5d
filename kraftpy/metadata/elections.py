"""Leader election and ISR upkeep: every change to a partition's state goes through `next_state`.

`next_state` takes a partition, the requested update and the rules in force, and returns the resulting state:

1. A reassignment whose new replicas are all in sync is completed (KIP-455), unless that would leave fewer in sync than
   the minimum. In that case only the leadership moves away from a departing replica, so that the others catch up with a
   replica that stays; the departing copy may be damaged.
2. The leader stays if it may. Otherwise the first of these is elected, in replica order: an active member of the ISR;
   an active eligible leader replica; the leader itself if it is merely shutting down; the last known leader if no other
   replica is known to hold the committed records; any active replica if the topic allows unclean elections; none.
3. An eligible leader replica that is elected becomes the whole ISR. So does one elected uncleanly (the last two), and
   the partition is then recovering until its leader reports otherwise (KIP-704).
4. An offline replica (its broker is alive but cannot use its log, KIP-858) is elected only if an unclean election was
   requested and no other replica is available. It then counts as online again.
5. While the ISR is smaller than its minimum, a replica that left it is an eligible leader replica, since nothing has
   been committed without it (KIP-966). One that stopped uncleanly may have lost committed records and is not eligible.

Without the feature `eligible.leader.replicas.version` there are no such replicas, and the last member never leaves an
ISR.

Invariants: the leader is in the ISR, not offline, and active, or shutting down with no successor; ISR and eligible
leader replicas are disjoint subsets of the replicas, in replica order; eligible replicas exist only while the ISR is
below its minimum; epochs never fall; every change has a new partition epoch; a new leader, a restarted leader and the
removal of replicas each start a new leader epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kraftpy.config.settings import whole_number
from kraftpy.frozen import frozen
from kraftpy.metadata.image import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION, Broker, Image, Partition, Topic
from kraftpy.metadata.records import NO_LEADER, PartitionChanged
from kraftpy.types import BrokerId, LeaderEpoch

Replicas = tuple[BrokerId, ...]


class Rules:
    """The facts that elections depend on: the image plus the changes that this command is about to make."""

    __slots__ = (
        "_cluster",
        "_configs",
        "_defaults",
        "_image",
        "_min_insync",
        "_unclean",
        "active",
        "has_elr",
        "unfenced",
    )

    def __init__(
        self,
        image: Image,
        *,
        changed: Broker | None = None,
        gone: BrokerId | None = None,
        topic_configs: Mapping[str, Mapping[str, str]] | None = None,
        cluster_configs: Mapping[str, str] | None = None,
        controller_defaults: Mapping[str, str] | None = None,
        has_elr: bool | None = None,
    ) -> None:
        brokers = [broker for broker in image.brokers() if broker.broker_id != gone]
        if changed is not None:
            brokers = [broker for broker in brokers if broker.broker_id != changed.broker_id]
            brokers.append(changed)
        self.active = frozenset(broker.broker_id for broker in brokers if broker.is_active)
        self.unfenced = frozenset(broker.broker_id for broker in brokers if not broker.fenced)
        self.has_elr = image.has_eligible_leader_replicas if has_elr is None else has_elr
        self._image = image
        self._configs = topic_configs or {}
        self._cluster = image.cluster_configs() if cluster_configs is None else cluster_configs
        self._defaults = image.controller_defaults if controller_defaults is None else controller_defaults
        self._min_insync: dict[str, int] = {}
        self._unclean: dict[str, bool] = {}

    def min_insync_replicas(self, topic: str) -> int:
        """Return the minimum size of the ISR for records to be committed."""
        found = self._min_insync.get(topic)
        if found is None:
            found = self._min_insync[topic] = whole_number(self._value(topic, MIN_INSYNC_REPLICAS), 1)
        return found

    def allows_unclean(self, topic: str) -> bool:
        """Return whether a replica that lacks committed records may be elected."""
        found = self._unclean.get(topic)
        if found is None:
            value = self._value(topic, UNCLEAN_ELECTION) or ""
            found = self._unclean[topic] = value.strip().lower() == "true"
        return found

    def _value(self, topic: str, name: str) -> str | None:
        configs = self._configs.get(topic)
        if configs is None:
            configs = self._image.topic_configs(topic)
        return configs.get(name) or self._cluster.get(name) or self._defaults.get(name)


@frozen
class PartitionUpdate:
    """A requested change to a partition. None leaves a field as it is."""

    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    is_recovering: bool | None = None
    unclean: BrokerId | None = None
    """The replica that stopped before it had synced everything."""
    starts_over: BrokerId | None = None
    """The broker that restarted: if it still leads, it does so in a new leader epoch."""
    prefers_first: bool = False
    """Elect the preferred leader if it may lead."""
    offline: Replicas | None = None
    """Replicas whose logs cannot be used."""
    may_be_unclean: bool = False
    """An unclean election was requested; it overrides the topic's setting."""


def next_state(topic: str, partition: Partition, update: PartitionUpdate, rules: Rules) -> Partition:
    """Return the partition after the update; the same object if nothing changes."""
    replicas = partition.replicas if update.replicas is None else update.replicas
    adding = partition.adding_replicas if update.adding is None else update.adding
    removing = partition.removing_replicas if update.removing is None else update.removing
    isr = partition.isr if update.isr is None else update.isr
    if not rules.has_elr and not isr:
        isr = partition.isr
    minimum = rules.min_insync_replicas(topic)
    leaving: Replicas = ()
    if adding or removing:
        remaining = tuple(member for member in isr if member not in removing)
        kept = tuple(replica for replica in replicas if replica not in removing)
        enough = min(minimum, len(kept), len(isr))
        if remaining and all(replica in remaining for replica in adding):
            if len(remaining) >= enough:
                replicas, adding, removing, isr = kept, (), (), remaining
            else:
                leaving = removing
    offline = _ordered(partition.offline_replicas if update.offline is None else update.offline, replicas)
    if update.replicas is not None or replicas is not partition.replicas:
        isr = _ordered(isr, replicas)
    if offline:
        isr = tuple(member for member in isr if member not in offline) or isr
    eligible: Collection[BrokerId] = ()
    if rules.has_elr and (partition.eligible_leader_replicas or isr != partition.isr):
        eligible = {*partition.eligible_leader_replicas, *partition.isr}.difference(isr, (update.unclean,))
        eligible = _ordered(eligible, replicas)
    last_known = _last_known(partition, isr)
    leader, is_unclean = _elected(
        partition, update, rules, topic, replicas, isr, leaving, eligible, last_known, offline
    )
    is_recovering = partition.is_recovering if update.is_recovering is None else update.is_recovering
    if is_unclean:
        isr, eligible, is_recovering = (leader,), (), True
        offline = tuple(replica for replica in offline if replica != leader)
    elif leader != NO_LEADER and leader not in isr:
        eligible = _ordered({*eligible, *isr}.difference((leader,)), replicas)
        isr = (leader,)
    if not rules.has_elr or len(isr) >= min(minimum, len(replicas)):
        eligible = ()
    if not rules.has_elr or isr:
        last_known = ()
    epoch = partition.leader_epoch
    if (
        leader != partition.leader
        or leader == update.starts_over
        or (replicas is not partition.replicas and any(replica not in replicas for replica in partition.replicas))
    ):
        epoch = LeaderEpoch(epoch + 1)
    after = Partition(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition.partition_epoch + 1,
        adding_replicas=adding,
        removing_replicas=removing,
        eligible_leader_replicas=tuple(eligible),
        last_known_elr=last_known,
        is_recovering=is_recovering,
        offline_replicas=offline,
    )
    return partition if _is_same(after, partition) else after


def _is_same(one: Partition, other: Partition) -> bool:
    """Return whether two states are equal apart from the partition epoch."""
    return (
        one.isr == other.isr
        and one.leader == other.leader
        and one.leader_epoch == other.leader_epoch
        and one.replicas == other.replicas
        and one.adding_replicas == other.adding_replicas
        and one.removing_replicas == other.removing_replicas
        and one.eligible_leader_replicas == other.eligible_leader_replicas
        and one.last_known_elr == other.last_known_elr
        and one.is_recovering == other.is_recovering
        and one.offline_replicas == other.offline_replicas
    )


def _ordered(members: Collection[BrokerId], replicas: Replicas) -> Replicas:
    return tuple(replica for replica in replicas if replica in members)


def _last_known(partition: Partition, isr: Replicas) -> Replicas:
    if isr or not partition.has_leader:
        return partition.last_known_elr
    return (partition.leader,)


def _elected(
    partition: Partition,
    update: PartitionUpdate,
    rules: Rules,
    topic: str,
    replicas: Replicas,
    isr: Replicas,
    leaving: Replicas,
    eligible: Collection[BrokerId],
    last_known: Replicas,
    offline: Replicas,
) -> tuple[BrokerId, bool]:
    """Return the leader, and whether it may lack committed records."""
    active = rules.active.difference(offline) if offline else rules.active
    if update.prefers_first and replicas[0] in isr and replicas[0] in active:
        return replicas[0], False
    leader = partition.leader
    for members in (tuple(member for member in isr if member not in leaving), isr) if leaving else (isr,):
        if leader in members and leader in active:
            return leader, False
        for replica in replicas:
            if replica in members and replica in active:
                return replica, False
    for replica in eligible:
        if replica in active:
            return replica, False
    if leader in isr and leader in rules.unfenced and leader not in offline:
        return leader, False
    if not isr and not eligible and len(last_known) == 1 and last_known[0] in active and last_known[0] in replicas:
        return last_known[0], True
    if update.may_be_unclean or rules.allows_unclean(topic):
        for replica in replicas:
            if replica in active:
                return replica, True
    if update.may_be_unclean:
        for replica in replicas:
            if replica in rules.active:
                return replica, True
    return NO_LEADER, False


def change_records(topic: Topic, number: int, before: Partition, after: Partition) -> list[PartitionChanged]:
    """Return the record of a partition's change, or no record if it did not change."""
    if after is before:
        return []
    return [
        PartitionChanged(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=number,
            replicas=after.replicas,
            isr=after.isr,
            leader=after.leader,
            leader_epoch=after.leader_epoch,
            partition_epoch=after.partition_epoch,
            adding_replicas=after.adding_replicas,
            removing_replicas=after.removing_replicas,
            eligible_leader_replicas=after.eligible_leader_replicas,
            last_known_elr=after.last_known_elr,
            is_recovering=after.is_recovering,
            offline_replicas=after.offline_replicas,
        )
    ]
