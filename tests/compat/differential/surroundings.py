"""What surrounds the scenarios: clusters made ready for them, and cleaned of what they leave.

A scenario's answers must not depend on those that ran before it. What cannot be deleted, groups with members and
transactional ids, is known as an elder when the next begins, and lists leave it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from side import Side

SETTLING_SECONDS = 20.0
BETWEEN_SECONDS = 0.03
CLIENT_METRICS, GROUPS = 16, 32
"""Types of resources whose settings outlive a scenario's topics."""
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
    body = {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    wait(side, "producer ids are given", lambda: side.quiet("init_producer_id", body, 5).error_code == 0)


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
    """Whether no node knows a topic."""
    body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    nodes = (node for node in range(1, side.cluster.count + 1) if side.cluster.is_running(node))
    return all(side.quiet("metadata", body, 12, node).topics[0].error_code == UNKNOWN_TOPIC for node in nodes)


def existing(side: Side) -> set[str]:
    """Return the groups and transactional ids that a cluster has, of scenarios that ran before."""
    found: set[str] = set()
    for node in range(1, side.cluster.count + 1):
        if not side.cluster.is_running(node):
            continue
        found |= {group.group_id for group in side.quiet("list_groups", {}, 4, node).groups}
        transactions = side.quiet("list_transactions", {"state_filters": [], "producer_id_filters": []}, 0, node)
        found |= {each.transactional_id for each in transactions.transaction_states}
    return found


def clean(side: Side) -> None:
    """Delete topics, the groups that are empty, and settings: nothing of a scenario is left to the next."""
    nodes = [node for node in range(1, side.cluster.count + 1) if side.cluster.is_running(node)]
    for node in nodes:
        groups = [group.group_id for group in side.quiet("list_groups", {}, 4, node).groups]
        side.quiet("delete_groups", {"groups_names": groups}, 2, node)
    wait(side, "its topics are deleted", lambda: not _delete_topics(side))
    for kind in (GROUPS, CLIENT_METRICS):
        for resource in side.quiet("list_config_resources", {"resource_types": [kind]}, 1).config_resources:
            _forget_settings(side, kind, resource.resource_name)


def _delete_topics(side: Side) -> list[str]:
    """Delete the topics of users; return which there were."""
    names = _topics(side)
    for first in range(0, len(names), 100):
        side.quiet("delete_topics", {"topic_names": names[first : first + 100], "timeout_ms": 20000}, 5)
    return names


def _topics(side: Side) -> list[str]:
    answer = side.quiet("metadata", {"topics": None, "allow_auto_topic_creation": False}, 12)
    return [topic.name for topic in answer.topics if topic.name and not topic.name.startswith("__")]


def _forget_settings(side: Side, kind: int, name: str) -> None:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    described = side.quiet("describe_configs", {"resources": [asked]}, 4).results[0]
    dynamic = [config.name for config in described.configs if config.config_source in (1, 7, 8)]
    configs = [{"name": key, "config_operation": 1, "value": None} for key in dynamic]
    if configs:
        body = {"resources": [{"resource_type": kind, "resource_name": name, "configs": configs}]}
        side.quiet("incremental_alter_configs", body, 1)
