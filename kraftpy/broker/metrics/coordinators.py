"""Groups, share groups and transactions that this node coordinates, and kafka_exporter's view of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kraftpy.broker.coordinator_shards import machines_of, states_of
from kraftpy.groups.classic.group import ClassicGroup, State
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.share.group import ShareGroup
from kraftpy.metrics.families import Page, labels

if TYPE_CHECKING:
    from kraftpy.broker.metrics.ends import Ends
    from kraftpy.broker.metrics.node import Node
    from kraftpy.groups.group import Group, Kind

_GROUPS: Final = "kafka_server_group_coordinator_metrics_"
_MANAGER: Final = "kafka_coordinator_group_groupmetadatamanager_"
_AT_ONCE: Final = 50
_OFFSETS_AT_ONCE: Final = 500
_CLASSIC: Final = (
    State.PREPARING_REBALANCE,
    State.COMPLETING_REBALANCE,
    State.STABLE,
    State.EMPTY,
    State.DEAD,
)


def _protocol(kind: Kind) -> str:
    if isinstance(kind, ClassicGroup):
        return "classic"
    if isinstance(kind, ConsumerGroup):
        return "consumer"
    return "share" if isinstance(kind, ShareGroup) else "streams"


def groups(node: Node, page: Page, ends: Ends) -> Iterator[None]:
    """Add the groups coordinated here, their offsets and their lag."""
    if not node.config.is_broker:
        return
    by_protocol = Counter(dict.fromkeys(("classic", "consumer", "share", "streams"), 0))
    classic: Counter[str] = Counter()
    consumer = Counter(dict.fromkeys(("Empty", "Assigning", "Reconciling", "Stable", "Dead"), 0))
    offsets = 0
    shown = _Groups(page, ends)
    for machine in machines_of(node.coordinators):
        for number, group in enumerate(list(machine.groups.values()), 1):
            protocol = _protocol(group.kind)
            by_protocol[protocol] += 1
            if protocol == "classic":
                classic[group.state_name] += 1
            elif protocol == "consumer":
                consumer[group.state_name] += 1
            offsets += len(group.offsets)
            yield from shown.add(group)
            if not number % _AT_ONCE:
                yield
        yield
    for protocol, count in by_protocol.items():
        page.add(f"{_GROUPS}group_count", count, labels(protocol=protocol))
    for state, count in sorted(consumer.items()):
        page.add(f"{_GROUPS}consumer_group_count", count, labels(state=state))
    for state, count in states_of(node.coordinators).items():
        page.add(f"{_GROUPS}num_partitions", count, labels(state=state))
    page.add(f"{_MANAGER}numoffsets", offsets)
    page.add(f"{_MANAGER}numgroups", by_protocol["classic"])
    for each in _CLASSIC:
        page.add(f"{_MANAGER}numgroups{each.value.lower()}", classic[each.value])


class _Groups:
    """The families of kafka_exporter that have a group."""

    def __init__(self, page: Page, ends: Ends) -> None:
        self._ends = ends
        prefix = "kafka_consumergroup_"
        self._members = page.family(f"{prefix}members")
        self._offset = page.family(f"{prefix}current_offset")
        self._offset_sum = page.family(f"{prefix}current_offset_sum")
        self._lag = page.family(f"{prefix}lag")
        self._lag_sum = page.family(f"{prefix}lag_sum")
        self._seconds = page.family(f"{prefix}lag_seconds")

    def add(self, group: Group) -> Iterator[None]:
        """Add a group; yields between pieces of long ones."""
        if isinstance(group.kind, ShareGroup):
            return
        named = labels(consumergroup=group.group_id)
        self._members(named, len(group.kind.members))
        sums: dict[str, tuple[int, int]] = {}
        for number, (key, value) in enumerate(list(group.offsets.items()), 1):
            labelled = f"{named},{labels(topic=key.topic, partition=key.partition)}"
            self._offset(labelled, value.offset)
            offset_sum, lag_sum = sums.get(key.topic, (0, 0))
            found = self._ends.lag(key, value.offset)
            if found is not None:
                lag, seconds = found
                lag_sum += lag
                self._lag(labelled, lag)
                self._seconds(labelled, seconds)
            sums[key.topic] = offset_sum + value.offset, lag_sum
            if not number % _OFFSETS_AT_ONCE:
                yield
        for topic, (offset_sum, lag_sum) in sums.items():
            labelled = f"{named},{labels(topic=topic)}"
            self._offset_sum(labelled, offset_sum)
            self._lag_sum(labelled, lag_sum)


def share_groups(node: Node, page: Page) -> Iterator[None]:
    """Add the share partitions served here, and the share coordinators."""
    if not node.config.is_broker:
        return
    prefix = "kafka_server_sharepartitionmetrics_"
    records, batches = page.family(f"{prefix}inflightmessagecount"), page.family(f"{prefix}inflightbatchcount")
    for number, held in enumerate(node.share_partitions, 1):
        key = held.replica.topic_partition
        labelled = labels(group=held.key.group_id, topic=key.topic, partition=key.partition)
        records(labelled, len(held.machine.records))
        batches(labelled, sum(1 for run in held.machine.records if not run.is_gap))
        if not number % _AT_ONCE:
            yield
    page.add("kafka_server_sharesessioncache_sharesessionscount", len(node.share_sessions))
    page.add("kafka_server_sharesessioncache_sharepartitionscount", node.share_sessions.remembered)
    for state, count in states_of(node.share_coordinators).items():
        page.add("kafka_server_share_coordinator_metrics_num_partitions", count, labels(state=state))


def transactions(node: Node, page: Page) -> Iterator[None]:
    """Add the transactions coordinated here."""
    if not node.config.is_broker:
        return
    prefix = "kafka_server_transaction_coordinator_metrics_"
    states: Counter[str] = Counter()
    count = 0
    for machine in machines_of(node.transactions):
        for each in list(machine.transactions.values()):
            count += 1
            states["New" if each.state is None else each.state.value] += 1
            if not count % 1000:
                yield
    page.add(f"{prefix}transactional_id_count", count)
    for state, number in sorted(states.items()):
        page.add(f"{prefix}transaction_count", number, labels(state=state))
    for state, number in states_of(node.transactions).items():
        page.add(f"{prefix}num_partitions", number, labels(state=state))
