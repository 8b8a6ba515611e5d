"""Partitions on this node: replicas, logs, and kafka_exporter's view of topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kraftpy.metrics.families import Page, labels
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.metadata.image import Partition

_AT_ONCE: Final = 50
_REPLICA: Final = 'clientId="Replica"'


def logs(node: Node, page: Page) -> Iterator[None]:
    """Add every log on this node, and the lag of replicas that follow."""
    names = ("size", "numlogsegments", "logstartoffset", "logendoffset")
    size, segments, start, end = (page.family(f"kafka_log_log_{name}") for name in names)
    lag = page.family("kafka_server_fetcherlagmetrics_consumerlag")
    largest = producers = failed = 0
    for number, replica in enumerate(node.replicas, 1):
        labelled, log = _of(replica.topic_partition), replica.log
        size(labelled, log.segments.size_bytes)
        segments(labelled, len(log.segments))
        start(labelled, log.log_start_offset)
        end(labelled, log.log_end_offset)
        producers += len(log.producers)
        following = replica.following
        if following is not None:
            behind = max(0, following.leader_high_watermark - log.log_end_offset)
            largest = max(largest, behind)
            failed += following.retry_at is not None
            lag(f"{_REPLICA},{labelled}", behind)
        if not number % _AT_ONCE:
            yield
    if node.config.is_broker:
        page.add("kafka_server_replicafetchermanager_maxlag", largest, _REPLICA)
        page.add("kafka_server_replicafetchermanager_failedpartitionscount", failed, _REPLICA)
        page.add("kafka_server_replicamanager_produceridcount", producers)
    failures = node.directories.failures
    page.add("kafka_log_logmanager_offlinelogdirectorycount", len(failures))
    for path in node.directories.paths:
        page.add("kafka_log_logmanager_logdirectoryoffline", int(path in failures), labels(logDirectory=path))


def replicas(node: Node, page: Page) -> Iterator[None]:
    """Add the partitions that this broker leads, and how well they are replicated."""
    if not node.config.is_broker:
        return
    names = (
        "replicascount",
        "insyncreplicascount",
        "underreplicated",
        "underminisr",
        "atminisr",
        "laststableoffsetlag",
    )
    count, in_sync, under, under_min, at_min, open_lag = (
        page.family(f"kafka_cluster_partition_{each}") for each in names
    )
    leaders = below = below_min = at_the_min = moving = replica_count = 0
    for number, replica in enumerate(node.replicas, 1):
        replica_count += 1
        leading = replica.leading
        if leading is not None:
            labelled, state = _of(replica.topic_partition), leading.state
            members, least = len(state.isr), leading.effective_min_insync_replicas
            leaders += 1
            below += (is_below := members < len(state.replicas))
            below_min += (is_below_min := members < least)
            at_the_min += (is_at_min := members == least)
            count(labelled, len(state.replicas))
            in_sync(labelled, members)
            under(labelled, int(is_below))
            under_min(labelled, int(is_below_min))
            at_min(labelled, int(is_at_min))
            open_lag(labelled, max(0, replica.high_watermark - replica.last_stable_offset))
            known = node.image.partition(*replica.topic_partition)
            moving += known is not None and known.is_reassigning
        if not number % _AT_ONCE:
            yield
    for name, value in {
        "leadercount": leaders,
        "partitioncount": replica_count,
        "offlinereplicacount": len(node.replicas.offline.failures()),
        "underreplicatedpartitions": below,
        "underminisrpartitioncount": below_min,
        "atminisrpartitioncount": at_the_min,
        "reassigningpartitions": moving,
    }.items():
        page.add(f"kafka_server_replicamanager_{name}", value)
    traffic = node.metrics.traffic
    if traffic is not None:
        page.add("kafka_server_replicamanager_isrexpands_total", traffic.isr_expands)
        page.add("kafka_server_replicamanager_isrshrinks_total", traffic.isr_shrinks)
        page.add("kafka_server_replicamanager_failedisrupdates_total", traffic.failed_isr_updates)
    page.add("kafka_server_fetchsessioncache_numincrementalfetchsessions", len(node.fetch_sessions))
    page.add("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", node.fetch_sessions.remembered)


def topics(node: Node, page: Page) -> Iterator[None]:
    """Add kafka_exporter's view of the topics: each partition by its leader, or by the active controller without one.

    So every series is shown by one node, and sums over all nodes are those that one exporter would show.
    """
    image, is_active = node.image, node.metadata.is_leader
    if is_active:
        brokers = [each for each in image.brokers() if not each.fenced]
        page.add("kafka_brokers", len(brokers))
        for broker in brokers:
            endpoint = broker.endpoint(node.config.inter_broker_listener) or next(iter(broker.endpoints), None)
            address = "" if endpoint is None else f"{endpoint.host}:{endpoint.port}"
            page.add("kafka_broker_info", 1, labels(id=broker.broker_id, address=address))
    shown = _Topics(page)
    held: dict[TopicPartition, Replica] = {}
    for number, replica in enumerate(node.replicas, 1):
        if replica.leading is not None:
            held[replica.topic_partition] = replica
            known = image.partition(*replica.topic_partition)
            if known is not None:
                shown.add(replica.topic_partition, known, replica, image_topic_partitions(node, replica))
        if not number % _AT_ONCE:
            yield
    if is_active:
        for number, (topic, partition, known) in enumerate(image.partitions(), 1):
            if not known.has_leader:
                shown.add(TopicPartition(topic.name, partition), known, None, len(topic.partitions))
            if not number % (10 * _AT_ONCE):
                yield


def image_topic_partitions(node: Node, replica: Replica) -> int:
    """Return how many partitions the replica's topic has."""
    topic = node.image.topic(replica.topic_partition.topic)
    return 0 if topic is None else len(topic.partitions)


class _Topics:
    """The families of kafka_exporter that have a topic."""

    def __init__(self, page: Page) -> None:
        self.partitions = page.family("kafka_topic_partitions")
        names = (
            "current_offset",
            "oldest_offset",
            "leader",
            "replicas",
            "in_sync_replica",
            "leader_is_preferred",
            "under_replicated_partition",
        )
        self.families = [page.family(f"kafka_topic_partition_{name}") for name in names]

    def add(self, key: TopicPartition, known: Partition, replica: Replica | None, partitions: int) -> None:
        labelled = _of(key)
        end, oldest, leader, replicas, in_sync, is_preferred, is_under = self.families
        if key.partition == 0:
            self.partitions(labels(topic=key.topic), partitions)
        if replica is not None:
            end(labelled, replica.high_watermark)
            oldest(labelled, replica.log.log_start_offset)
            leader(labelled, known.leader)
        replicas(labelled, len(known.replicas))
        in_sync(labelled, len(known.isr))
        is_preferred(labelled, int(known.leader == known.preferred_leader))
        is_under(labelled, int(len(known.isr) < len(known.replicas)))


def _of(key: TopicPartition) -> str:
    return labels(topic=key.topic, partition=key.partition)
