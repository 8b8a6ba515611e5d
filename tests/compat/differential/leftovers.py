"""Cleans up after a scenario: its topics, groups and settings are deleted.

A scenario's answers must not depend on those that ran before it. Transactional ids, which cannot be deleted, are known
as elders when the next scenario begins, and lists leave them out.
"""

from __future__ import annotations

from typing import Any

from side import Side
from surroundings import wait

CLIENT_METRICS, GROUPS = 16, 32
"""Types of resources whose settings outlive a scenario's topics."""
SET_WHILE_RUNNING = {1, 7, 8}
"""Sources of settings of topics, client metrics and groups."""
MOST_TOPICS = 100


def existing(side: Side) -> set[str]:
    """Return the groups and transactional ids that a cluster has, of scenarios that ran before."""
    found: set[str] = set()
    for node in side.cluster.running_nodes():
        found |= {group.group_id for group in side.quiet("list_groups", {}, 4, node).groups}
        transactions = side.quiet("list_transactions", {"state_filters": [], "producer_id_filters": []}, 0, node)
        found |= {each.transactional_id for each in transactions.transaction_states}
    return found


def clean(side: Side) -> None:
    """Delete everything that can be deleted."""
    for node in side.cluster.running_nodes():
        _delete_groups(side, node)
    wait(side, "its topics are deleted", lambda: not _delete_topics(side))
    for kind in (GROUPS, CLIENT_METRICS):
        for resource in side.quiet("list_config_resources", {"resource_types": [kind]}, 1).config_resources:
            _forget_settings(side, kind, resource.resource_name)


def _delete_groups(side: Side, node: int) -> None:
    """Take their members from groups, and delete the groups. One that stays is an elder."""
    groups = side.quiet("list_groups", {}, 5, node).groups
    for group in groups:
        match group.group_type.lower():
            case "classic":
                _dissolve_classic(side, node, group.group_id)
            case "consumer" | "share" | "streams" as kind:
                _dissolve(side, node, kind, group.group_id)
    side.quiet("delete_groups", {"groups_names": [group.group_id for group in groups]}, 2, node)


def _dissolve_classic(side: Side, node: int, group: str) -> None:
    described = side.quiet("describe_groups", {"groups": [group]}, 5, node).groups[0]
    members = [{"member_id": member.member_id} for member in described.members]
    if members:
        side.quiet("leave_group", {"group_id": group, "members": members}, 5, node)


def _dissolve(side: Side, node: int, kind: str, group: str) -> None:
    described = side.quiet(f"{kind}_group_describe", {"group_ids": [group]}, 0 if kind == "streams" else 1, node)
    for member in described.groups[0].members:
        body: dict[str, Any] = {"group_id": group, "member_id": member.member_id, "member_epoch": -1}
        if kind != "share":
            body["instance_id"] = member.instance_id
        side.quiet(f"{kind}_group_heartbeat", body, 0 if kind == "streams" else 1, node)


def _delete_topics(side: Side) -> list[str]:
    """Delete the topics of users; return which there were."""
    names = _topics(side)
    for first in range(0, len(names), MOST_TOPICS):
        side.quiet("delete_topics", {"topic_names": names[first : first + MOST_TOPICS], "timeout_ms": 20000}, 5)
    return names


def _topics(side: Side) -> list[str]:
    answer = side.quiet("metadata", {"topics": None, "allow_auto_topic_creation": False}, 12)
    return [topic.name for topic in answer.topics if topic.name and not topic.name.startswith("__")]


def _forget_settings(side: Side, kind: int, name: str) -> None:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    described = side.quiet("describe_configs", {"resources": [asked]}, 4).results[0]
    dynamic = [config.name for config in described.configs if config.config_source in SET_WHILE_RUNNING]
    configs = [{"name": key, "config_operation": 1, "value": None} for key in dynamic]
    if configs:
        body = {"resources": [{"resource_type": kind, "resource_name": name, "configs": configs}]}
        side.quiet("incremental_alter_configs", body, 1)
