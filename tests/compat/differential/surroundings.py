"""Waits for what scenarios need: coordinators that are loaded, topics that can be used, topics that are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from side import Side

SETTLING_SECONDS = 20.0
BETWEEN_SECONDS = 0.03
LOADING = {14, 15, 16}
"""Error codes of a coordinator that is not ready, or elsewhere."""
UNKNOWN_TOPIC = 3
KEYS = 40
"""Names enough that each partition of an internal topic has one of them."""


def wait(side: Side, what: str, is_so: Callable[[], bool], seconds: float = SETTLING_SECONDS) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{side.cluster.kind}: not in {seconds} s: {what}")
        time.sleep(BETWEEN_SECONDS)


def make_ready(side: Side) -> None:
    """Have every coordinator loaded, so that no answer differs because one is still starting."""
    for key_type, prefix in enumerate(("warm", "warm", "warm:AAAAAAAAAAAAAAAAAAAAAA:")):
        names = [f"{prefix}{number}" for number in range(KEYS)]
        wait(side, "coordinators are known", partial(_are_known, side, key_type, names), 60.0)
        for name in names:
            wait(side, f"the coordinator of {name} is loaded", partial(_is_loaded, side, key_type, name))
    for node in side.cluster.running_nodes():
        wait(side, f"node {node} gives producer ids", partial(_gives_producer_ids, side, node))


def _gives_producer_ids(side: Side, node: int) -> bool:
    body = {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    return bool(side.quiet("init_producer_id", body, 5, node).error_code == 0)


def coordinator(side: Side, key_type: int, name: str) -> int:
    """Return the node that coordinates a group, a transactional id or a share partition."""
    answer = side.quiet("find_coordinator", {"key_type": key_type, "coordinator_keys": [name]}, 6)
    node: int = answer.coordinators[0].node_id
    return node


def _are_known(side: Side, key_type: int, names: Sequence[str]) -> bool:
    answer = side.quiet("find_coordinator", {"key_type": key_type, "coordinator_keys": list(names)}, 6)
    return not any(each.error_code for each in answer.coordinators)


def _is_loaded(side: Side, key_type: int, name: str) -> bool:
    node = coordinator(side, key_type, name)
    if key_type == 0:
        code = side.quiet("delete_groups", {"groups_names": [name]}, 2, node).results[0].error_code
    elif key_type == 1:
        described = side.quiet("describe_transactions", {"transactional_ids": [name]}, 0, node)
        code = described.transaction_states[0].error_code
    else:
        return node > 0
    return code not in LOADING


def can_be_used(side: Side, names: Sequence[str]) -> bool:
    body = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
    answer = side.quiet("metadata", body, 12)
    side.names.learn(0, answer)
    leaders: dict[int, dict[str, list[int]]] = {}
    for topic in answer.topics:
        if topic.error_code or not topic.partitions:
            return False
        for partition in topic.partitions:
            if partition.leader_id < 0 or partition.error_code:
                return False
            leaders.setdefault(partition.leader_id, {}).setdefault(topic.name, []).append(partition.partition_index)
    for node, topics in leaders.items():  # a leader may be known before its log is there
        asked = [
            {"name": name, "partitions": [{"partition_index": index, "timestamp": -1} for index in indexes]}
            for name, indexes in topics.items()
        ]
        listed = side.quiet("list_offsets", {"replica_id": -1, "topics": asked}, 7, node)
        if any(partition.error_code for topic in listed.topics for partition in topic.partitions):
            return False
    return True


def is_gone(side: Side, topic: str) -> bool:
    """Return whether no node knows a topic."""
    body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    nodes = side.cluster.running_nodes()
    return all(side.quiet("metadata", body, 12, node).topics[0].error_code == UNKNOWN_TOPIC for node in nodes)
