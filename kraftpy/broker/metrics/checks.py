"""Health as three questions, each answered with the reasons why not.

    livez     the process works: its loop turns, and it has log directories. If not, a restart may help.
    readyz    it can serve: it has started, is registered and unfenced, and knows the metadata, which it can write. If
              not, send it no one.
    clusterz  the cluster, as this node sees it, is well: a controller, no partition without leader or replica.

An answer comes from the event loop. If there is none in time, the loop is stuck, which is an answer too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from kraftpy.broker.metadata.observer import Observer
from kraftpy.broker.metadata.voter import Voter
from kraftpy.broker.metrics.own import RUNNING

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node

_MOST_BEHIND: Final = 1000
"""How many entries of the metadata a node that is ready may have yet to act on."""
_MOST_NAMED: Final = 20
_AT_ONCE: Final = 1000

Answer = dict[str, Any]
"""An answer, as JSON: `status` is "ok", or "failed" with `reasons`."""


def _answer(node: Node, reasons: list[str], **more: Any) -> Answer:
    status = {"status": "failed" if reasons else "ok", "node_id": int(node.node_id)}
    return {**status, "reasons": reasons[:_MOST_NAMED], **more}


def livez(node: Node) -> Answer:
    """Return whether the process works."""
    reasons = []
    failures = node.directories.failures
    if failures and len(failures) == len(node.directories.paths):
        reasons.append("every log directory has failed")
    elif node.directories.paths[0] in failures:
        reasons.append(f"the log directory of the metadata has failed: {failures[node.directories.paths[0]]}")
    return _answer(node, reasons)


def readyz(node: Node, state: int) -> Answer:
    """Return whether the node can serve; `state` is Kafka's number for how far it has started."""
    reasons = list(livez(node)["reasons"])
    if state != RUNNING:
        reasons.append("the node is stopping" if state > RUNNING else "the node is starting")
    metadata = node.metadata
    if metadata.leader_id is None:
        reasons.append("the metadata quorum has no leader that this node knows")
    source = metadata.source
    if isinstance(source, Voter) and source.quorum is None and source.has_disk_trouble:
        reasons.append(source.refusal.message)  # such as a full disk: a restart frees no space
    if isinstance(source, Observer) and not source.is_current:
        reasons.append("this node has not caught up with the metadata")
    behind = metadata.applied_index - metadata.acted_index
    if node.config.is_broker and behind > _MOST_BEHIND:
        reasons.append(f"this node has yet to act on {behind} entries of the metadata")
    if node.config.is_broker:
        if node.lifecycle.broker_epoch < 0:
            reasons.append("this broker is not registered")
        elif not node.lifecycle.is_active:
            reasons.append("this broker is fenced")
    return _answer(node, reasons)


def clusterz(node: Node, found: list[Answer]) -> Iterator[None]:
    """Put into `found` whether the cluster is well; pauses between thousands of partitions."""
    image = node.image
    reasons = []
    brokers = image.brokers()
    fenced = [int(each.broker_id) for each in brokers if each.fenced]
    offline: list[str] = []
    under: list[str] = []
    partitions = offline_count = under_count = 0
    for topic, number, partition in image.partitions():
        partitions += 1
        if not partition.has_leader:
            offline_count += 1
            if len(offline) < _MOST_NAMED:
                offline.append(f"{topic.name}-{number}")
        elif len(partition.isr) < len(partition.replicas):
            under_count += 1
            if len(under) < _MOST_NAMED:
                under.append(f"{topic.name}-{number}")
        if not partitions % _AT_ONCE:
            yield
    leader = node.metadata.leader_id
    if leader is None:
        reasons.append("the metadata quorum has no leader that this node knows")
    if offline_count:
        reasons.append(f"partitions without a leader: {offline_count}")
    if under_count:
        reasons.append(f"under-replicated partitions: {under_count}")
    if fenced:
        reasons.append(f"fenced brokers: {len(fenced)} ({', '.join(map(str, fenced[:_MOST_NAMED]))})")
    if not any(not each.fenced for each in brokers):
        reasons.append("no broker serves clients")
    found.append(
        _answer(
            node,
            reasons,
            cluster_id=image.cluster_id,
            leader=leader,
            brokers=len(brokers) - len(fenced),
            fenced_brokers=fenced[:_MOST_NAMED],
            partitions=partitions,
            offline_partition_count=offline_count,
            offline_partitions=offline,
            under_replicated_partition_count=under_count,
            under_replicated_partitions=under,
        )
    )
