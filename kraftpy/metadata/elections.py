"""Who leads a partition, who is in sync, who may lead when nobody is: the one way in which a partition's state changes.

`settle` takes a partition, what shall be changed about it and the rules that hold, and gives the state that follows:

1. A reassignment whose new replicas are all in sync is completed (KIP-455), unless that would leave fewer in sync than
   the minimum asks for. Then only the lead is taken from who is to go, so that the others can catch up with a replica
   that stays: the copy of the one that goes may be damaged.
2. The leader stays where it may. Else, in the order of the replicas: an active member of the ISR; an active eligible
   leader replica; the leader itself where it only is about to stop; who led last, where nobody else is known to hold
   what is committed; where the topic allows unclean elections, any active replica; nobody.
3. An eligible leader replica that is elected is the ISR. So is one elected uncleanly (the last two), and the partition
   is recovering until its leader says otherwise (KIP-704).
4. A replica that is offline (its broker lives and cannot use its log, KIP-858) is elected only where an unclean
   election was asked for and nobody else is there; with that it counts as there again.
5. While the ISR is smaller than its minimum, who left it is an eligible leader replica: nothing has been committed
   without it (KIP-966). One that stopped uncleanly may have lost what was committed, and is none.

Without the feature `eligible.leader.replicas.version` there are none, and the last member never leaves an ISR.

Invariants: the leader is active, or alone about to stop, not offline, and in the ISR; ISR and eligible leader replicas
are among the replicas, in their order, and nobody is both; there are eligible ones only while the ISR is below its
minimum; epochs never fall; a change has a new partition epoch; a new leader, the same leader in a new life, and
replicas taken away make a new leader epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kraftpy.config.settings import whole_number
from kraftpy.metadata.image import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION, Broker, Image, Partition, Topic
from kraftpy.metadata.records import NO_LEADER, PartitionChanged
from kraftpy.types import BrokerId, LeaderEpoch

Replicas = tuple[BrokerId, ...]


class Rules:
    """What elections go by: the image, and what this command is about to change of it."""

    __slots__ = ("_cluster", "_configs", "_image", "_min_insync", "_unclean", "active", "has_elr", "unfenced")

    def __init__(
        self,
        image: Image,
        *,
        changed: Broker | None = None,
        gone: BrokerId | None = None,
        topic_configs: Mapping[str, Mapping[str, str]] | None = None,
        cluster_configs: Mapping[str, str] | None = None,
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
        self._min_insync: dict[str, int] = {}
        self._unclean: dict[str, bool] = {}

    def min_insync_replicas(self, topic: str) -> int:
        """The least number of replicas in sync with which anything is committed."""
        found = self._min_insync.get(topic)
        if found is None:
            found = self._min_insync[topic] = whole_number(self._value(topic, MIN_INSYNC_REPLICAS), 1)
        return found

    def allows_unclean(self, topic: str) -> bool:
        """Whether somebody may be elected who lacks committed records."""
        found = self._unclean.get(topic)
        if found is None:
            value = self._value(topic, UNCLEAN_ELECTION) or ""
            found = self._unclean[topic] = value.strip().lower() == "true"
        return found

    def _value(self, topic: str, name: str) -> str | None:
        configs = self._configs.get(topic)
        if configs is None:
            configs = self._image.topic_configs(topic)
        return configs.get(name) or self._cluster.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What shall change about a partition. None leaves it as it is."""

    isr: Replicas | None = None
    replicas: Replicas | None = None
    adding: Replicas | None = None
    removing: Replicas | None = None
    is_recovering: bool | None = None
    unclean: BrokerId | None = None
    """Stopped without having everything synced."""
    starts_over: BrokerId | None = None
    """Came up again: where it still leads, it does so in a new epoch."""
    prefers_first: bool = False
    """The preferred leader shall lead, if it may."""
    offline: Replicas | None = None
    """Whose logs cannot be used."""
    may_be_unclean: bool = False
    """An unclean election was asked for, whatever the topic's settings are."""


def settle(topic: str, partition: Partition, wish: Wish, rules: Rules) -> Partition:
    """The partition as it then stands; the same object where nothing changes."""
    replicas = partition.replicas if wish.replicas is None else wish.replicas
    adding = partition.adding_replicas if wish.adding is None else wish.adding
    removing = partition.removing_replicas if wish.removing is None else wish.removing
    isr = partition.isr if wish.isr is None else wish.isr
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
    offline = _ordered(partition.offline_replicas if wish.offline is None else wish.offline, replicas)
    if wish.replicas is not None or replicas is not partition.replicas:
        isr = _ordered(isr, replicas)
    if offline:
        isr = tuple(member for member in isr if member not in offline) or isr
    eligible: Collection[BrokerId] = ()
    if rules.has_elr and (partition.eligible_leader_replicas or isr != partition.isr):
        eligible = {*partition.eligible_leader_replicas, *partition.isr}.difference(isr, (wish.unclean,))
        eligible = _ordered(eligible, replicas)
    last_known = _last_known(partition, isr)
    leader, is_unclean = _elected(partition, wish, rules, topic, replicas, isr, leaving, eligible, last_known, offline)
    is_recovering = partition.is_recovering if wish.is_recovering is None else wish.is_recovering
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
        or leader == wish.starts_over
        or (replicas is not partition.replicas and any(replica not in replicas for replica in partition.replicas))
    ):
        epoch = LeaderEpoch(epoch + 1)
    settled = Partition(
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
    return partition if _is_same(settled, partition) else settled


def _is_same(one: Partition, other: Partition) -> bool:
    """Whether they differ in the partition epoch alone."""
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
    wish: Wish,
    rules: Rules,
    topic: str,
    replicas: Replicas,
    isr: Replicas,
    leaving: Replicas,
    eligible: Collection[BrokerId],
    last_known: Replicas,
    offline: Replicas,
) -> tuple[BrokerId, bool]:
    """The leader, and whether it may lack what was committed."""
    active = rules.active.difference(offline) if offline else rules.active
    if wish.prefers_first and replicas[0] in isr and replicas[0] in active:
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
    if wish.may_be_unclean or rules.allows_unclean(topic):
        for replica in replicas:
            if replica in active:
                return replica, True
    if wish.may_be_unclean:
        for replica in replicas:
            if replica in rules.active:
                return replica, True
    return NO_LEADER, False


def changed(topic: Topic, number: int, before: Partition, after: Partition) -> list[PartitionChanged]:
    """The record of a partition that was settled; none where it is as before."""
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
