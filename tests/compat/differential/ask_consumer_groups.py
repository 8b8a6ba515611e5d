"""Questions about groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from functools import partial
from typing import Any

from both import Both, together
from differ import Differ
from scenario_table import add_scenario

QUIET: dict[str, Any] = {"subscribed_topic_names": None, "topic_partitions": None, "rebalance_timeout_ms": -1}
"""A heartbeat that changes nothing."""


def beating(group: str, **more: Any) -> dict[str, Any]:
    """Return the heartbeat with which m1 joins."""
    return {
        "group_id": group,
        "member_id": "m1",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10000,
        "subscribed_topic_names": ["cg"],
        "topic_partitions": [],
        **more,
    }


def _odd_joins(topic_id: Both) -> dict[str, dict[str, Any]]:
    return {
        "empty group": {"group_id": ""},
        "blank group": {"group_id": " "},
        "empty member": {"member_id": ""},
        "blank member": {"member_id": " "},
        "long member": {"member_id": "x" * 300},
        "epoch -3": {"member_epoch": -3},
        "epoch 5 of nobody": {"member_epoch": 5},
        "leave of nobody": {"member_epoch": -1},
        "static leave of nobody": {"member_epoch": -2, "instance_id": "i"},
        "static leave without instance": {"member_epoch": -2},
        "no rebalance timeout": {"rebalance_timeout_ms": -1},
        "rebalance timeout 0": {"rebalance_timeout_ms": 0},
        "no subscription": {"subscribed_topic_names": None},
        "empty subscription": {"subscribed_topic_names": []},
        "null partitions": {"topic_partitions": None},
        "owned partitions": {"topic_partitions": [{"topic_id": topic_id, "partitions": [0]}]},
        "empty instance": {"instance_id": ""},
        "empty rack": {"rack_id": ""},
        "unknown assignor": {"server_assignor": "nope"},
        "empty assignor": {"server_assignor": ""},
        "range": {"server_assignor": "range"},
        "unknown topic": {"subscribed_topic_names": ["no.such"]},
        "bad topic name": {"subscribed_topic_names": ["sp ace", ""]},
        "topic twice": {"subscribed_topic_names": ["cg", "cg"]},
    }


REGEXES: dict[str, dict[str, Any]] = {
    "regex": {"subscribed_topic_regex": "cg.*", "subscribed_topic_names": None},
    "bad regex": {"subscribed_topic_regex": "[", "subscribed_topic_names": None},
    "empty regex": {"subscribed_topic_regex": "", "subscribed_topic_names": None},
    "empty regex, names": {"subscribed_topic_regex": ""},
    "lookbehind": {"subscribed_topic_regex": "(?<=a)b", "subscribed_topic_names": None},
}


def _odd_heartbeats(version: int, differ: Differ) -> None:
    topic_id = differ.create("cg", 3)
    for note, changed in (_odd_joins(topic_id) | (REGEXES if version else {})).items():
        body = beating(f"cg-{note.replace(' ', '-')}-{version}", **changed)
        differ.ask("consumer_group_heartbeat", body, version, note=note)


def _life_of_a_consumer_group(version: int, differ: Differ) -> None:
    topic_id = differ.create("cg", 3)
    group = f"cgl{version}"

    def beat(note: str, **more: Any) -> Both:
        return differ.ask("consumer_group_heartbeat", beating(group, **more), version, note=note)

    epoch = beat("join").member_epoch
    owned = {**QUIET, "topic_partitions": [{"topic_id": topic_id, "partitions": [0, 1, 2]}]}
    beat("owned", member_epoch=epoch, **owned)
    beat("nothing new", member_epoch=epoch, **QUIET)
    beat("epoch too high", member_epoch=99, **QUIET)
    beat("old epoch", member_epoch=together(lambda current: current - 1, epoch), **QUIET)
    beat("join again", member_epoch=0)
    beat("other member, unknown", member_id="m2", member_epoch=3, **QUIET)
    differ.ask("consumer_group_describe", {"group_ids": [group]}, version, note="one member")
    differ.ask("describe_groups", {"groups": [group]}, 6, note="of the new protocol")
    _offsets_of_a_consumer_group(differ, group, topic_id, epoch)
    beat("second joins", member_id="m2")
    beat("first is told", member_epoch=epoch, **QUIET)
    beat("second leaves", member_id="m2", member_epoch=-1, **QUIET)
    beat("second leaves again", member_id="m2", member_epoch=-1, **QUIET)
    beat("first leaves", member_epoch=-1, **QUIET)
    differ.ask("consumer_group_describe", {"group_ids": [group]}, version, note="empty")


def _offsets_of_a_consumer_group(differ: Differ, group: str, topic_id: Both, epoch: Both) -> None:
    who: dict[str, tuple[Any, Any]] = {
        "member": (epoch, "m1"),
        "wrong epoch": (99, "m1"),
        "old epoch": (0, "m1"),
        "unknown member": (1, "x"),
        "simple": (-1, ""),
    }
    partitions = [{"partition_index": 0, "committed_offset": 3}]
    topics = [{"name": "cg", "topic_id": topic_id, "partitions": partitions}]
    for version in range(2, 11):
        for note, (in_epoch, member) in who.items():
            body = {"group_id": group, "generation_id_or_member_epoch": in_epoch, "member_id": member, "topics": topics}
            differ.ask("offset_commit", body, version, note=f"consumer protocol, {note}")
    asked = [{"name": "cg", "topic_id": topic_id, "partition_indexes": [0]}]
    for version in (9, 10):
        for note, (in_epoch, member) in who.items():
            one = {"group_id": group, "member_epoch": in_epoch, "member_id": member or None, "topics": asked}
            differ.ask("offset_fetch", {"groups": [one]}, version, note=f"consumer protocol, {note}")


def _static_members(version: int, differ: Differ) -> None:
    differ.create("cg", 3)
    group = f"cgs{version}"

    def beat(note: str, **more: Any) -> Both:
        body = beating(group, instance_id="i1", **more)
        return differ.ask("consumer_group_heartbeat", body, version, note=f"static: {note}")

    epoch = beat("join").member_epoch
    beat("another of the same instance", member_id="m2")
    beat("the first with a wrong member id", member_id="m3", member_epoch=epoch, **QUIET)
    beat("leaves for a while", member_epoch=-2, **QUIET)
    beat("another takes over", member_id="m2")
    beat("the old one", member_epoch=epoch, **QUIET)
    beat("leaves for good", member_id="m2", member_epoch=-1, **QUIET)


for _version in (0, 1):
    add_scenario(f"consumer_heartbeats_oddly_{_version}", partial(_odd_heartbeats, _version))
    add_scenario(f"life_of_a_consumer_group_{_version}", partial(_life_of_a_consumer_group, _version))
    add_scenario(f"static_members_of_consumer_groups_{_version}", partial(_static_members, _version))
