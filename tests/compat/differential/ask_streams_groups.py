"""Questions about streams groups (KIP-1071)."""

from __future__ import annotations

import contextlib
from typing import Any

from ask_classic_groups import joining
from both import Body, Both
from differ import Differ
from scenario_table import scenario
from side import Side

SOURCE: dict[str, Any] = {"subtopology_id": "0", "source_topics": ["stin"]}
TOPOLOGY: dict[str, Any] = {"epoch": 0, "subtopologies": [SOURCE]}
QUIET: dict[str, Any] = {
    "topology": None,
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
    "process_id": None,
    "client_tags": None,
    "rebalance_timeout_ms": -1,
}


_MISSING_SOURCE_TOPICS = 1


def beating(group: str, **more: Any) -> dict[str, Any]:
    """Return the heartbeat with which m1 joins."""
    return {
        "group_id": group,
        "member_id": "m1",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10000,
        "topology": TOPOLOGY,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p1",
        "client_tags": [],
        "endpoint_information_epoch": -1,
        "shutdown_application": False,
        **more,
    }


def of(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"topology": {"epoch": epoch, "subtopologies": list(subtopologies)}}


def with_changelog(name: str, partitions: int = 0) -> dict[str, Any]:
    topic = {"name": name, "partitions": partitions, "replication_factor": 1, "topic_configs": []}
    return of({**SOURCE, "state_changelog_topics": [topic]})


def matching(regex: str) -> dict[str, Any]:
    return of({"subtopology_id": "0", "source_topics": [], "source_topic_regex": [regex]})


ODD_JOINS: dict[str, dict[str, Any]] = {
    "empty group": {"group_id": ""},
    "empty member": {"member_id": ""},
    "epoch -3": {"member_epoch": -3},
    "epoch 5 of nobody": {"member_epoch": 5},
    "leave of nobody": {"member_epoch": -1},
    "static": {"instance_id": "i"},
    "no rebalance timeout": {"rebalance_timeout_ms": -1},
    "no topology": {"topology": None},
    "null tasks": {"active_tasks": None},
    "null standby": {"standby_tasks": None},
    "null warmup": {"warmup_tasks": None},
    "with tasks": {"active_tasks": [{"subtopology_id": "0", "partitions": [0]}]},
    "null process": {"process_id": None},
    "empty process": {"process_id": ""},
    "null tags": {"client_tags": None},
    "unknown source": of({"subtopology_id": "0", "source_topics": ["no.such"]}),
    "no subtopologies": of(),
    "epoch of topology 3": of(SOURCE, epoch=3),
    "epoch of topology -1": of(SOURCE, epoch=-1),
    "bad regex": matching("["),
    "regex": matching("sti.*"),
    "no sources": of({"subtopology_id": "0"}),
    "subtopology twice": of(SOURCE, SOURCE),
    "changelog": with_changelog("cl-topic"),
    "changelog with partitions": with_changelog("cl-topic2", 3),
    "bad changelog name": with_changelog("a b"),
    "bad source name": of({"subtopology_id": "0", "source_topics": ["a b"]}),
    "copartition index": of(
        {
            **SOURCE,
            "copartition_groups": [{"source_topics": [5], "source_topic_regex": [], "repartition_source_topics": []}],
        }
    ),
    "endpoint": {"user_endpoint": {"host": "h", "port": 1}},
}


def _knows_its_source(side: Side) -> bool:
    """Return whether the coordinator knows the topic, which takes Kafka's a moment."""
    answer = side.quiet("streams_group_heartbeat", beating("sxl-first"), 0)
    side.quiet("streams_group_heartbeat", beating("sxl-first", member_epoch=-1, **QUIET), 0)
    side.quiet("delete_groups", {"groups_names": ["sxl-first"]}, 2)
    return not any(status.status_code == _MISSING_SOURCE_TOPICS for status in answer.status or ())


def create_source(differ: Differ) -> None:
    """Create the topic that `SOURCE` names, and wait until the coordinators know it."""
    differ.create("stin", 2)
    differ.wait("the coordinator knows the topic", _knows_its_source, 10.0)


@scenario
def streams_heartbeats_oddly(differ: Differ) -> None:
    create_source(differ)
    for note, changed in ODD_JOINS.items():
        body = beating(f"sx-{note.replace(' ', '-')}", **changed)
        differ.ask("streams_group_heartbeat", body, 0, note=note)


def _is_stable(side: Side) -> bool:
    """Go on with the member until it has its tasks."""
    group = side.quiet("streams_group_describe", {"group_ids": ["sxl"]}, 0).groups[0]
    epoch = group.members[0].member_epoch
    tasks = group.members[0].target_assignment.active_tasks
    owned = [{"subtopology_id": task.subtopology_id, "partitions": task.partitions} for task in tasks]
    told: Body = {**QUIET, "active_tasks": owned, "standby_tasks": [], "warmup_tasks": []}
    answer = side.quiet("streams_group_heartbeat", beating("sxl", member_epoch=epoch, **told), 0)
    return bool(group.group_state == "Stable" and tasks and answer.member_epoch == epoch)


@scenario
def life_of_a_streams_group(differ: Differ) -> None:
    create_source(differ)

    def beat(note: str, **more: Any) -> Both:
        return differ.ask("streams_group_heartbeat", beating("sxl", **more), 0, note=note)

    beat("join")
    with contextlib.suppress(TimeoutError):
        differ.wait("the group is stable", _is_stable, 10.0)
    group = {"group_ids": ["sxl"]}
    epoch = differ.ask("streams_group_describe", group, 0, note="one member").groups[0].members[0].member_epoch
    beat("nothing new", member_epoch=epoch, **QUIET)
    differ.ask("list_groups", {"types_filter": ["streams"]}, 5, note="streams")
    beat("epoch 99", member_epoch=99, **QUIET)
    beat("second with another topology epoch", member_id="m2", **of(SOURCE, epoch=1))
    unknown = [{"subtopology_id": "zz", "partitions": [0]}]
    tasks = {**QUIET, "active_tasks": unknown, "standby_tasks": [], "warmup_tasks": []}
    beat("unknown task", member_epoch=epoch, **tasks)
    beat("static leave", member_epoch=-2, **QUIET)
    partitions = [{"partition_index": 0, "committed_offset": 3}]
    topics = [{"name": "stin", "partitions": partitions}]
    body = {"group_id": "sxl", "generation_id_or_member_epoch": epoch, "member_id": "m1", "topics": topics}
    differ.ask("offset_commit", body, 9, note="streams")
    one = {"group_id": "sxl", "member_id": "m1", "member_epoch": epoch, "topics": None}
    differ.ask("offset_fetch", {"groups": [one]}, 9, note="streams")
    for member in ("m2", "m1"):
        beat(f"{member} leaves", member_id=member, member_epoch=-1, **QUIET)
    differ.ask("streams_group_describe", group, 0, note="empty", eventually=True)
    differ.ask("delete_groups", {"groups_names": ["sxl"]}, 2, note="streams group")


@scenario
def streams_groups_that_go_back_to_the_classic_protocol(differ: Differ) -> None:
    """Only an empty one does, with its offsets; it may come forward again once it is empty."""
    create_source(differ)
    group = "sx-back"

    def beat(note: str, **more: Any) -> Both:
        return differ.ask("streams_group_heartbeat", beating(group, **more), 0, note=note)

    def look(note: str) -> None:
        differ.ask("streams_group_describe", {"group_ids": [group]}, 0, note=note)
        differ.ask("describe_groups", {"groups": [group]}, 6, note=note)
        differ.ask("offset_fetch", {"groups": [{"group_id": group, "topics": None}]}, 9, note=note)

    epoch = beat("joins").member_epoch
    partitions = [{"partition_index": 0, "committed_offset": 3}]
    commit = {"topics": [{"name": "stin", "partitions": partitions}], "group_id": group, "member_id": "m1"}
    differ.ask("offset_commit", {**commit, "generation_id_or_member_epoch": epoch}, 9)
    differ.ask("join_group", joining(group), 5, note="to one with a member")
    beat("leaves", member_epoch=-1, **QUIET)
    differ.ask("join_group", joining(group, "nobody"), 5, note="of nobody to an empty one")
    member = differ.ask("join_group", joining(group), 3, note="to an empty one").member_id
    look("classic")
    beat("joins a classic one")
    differ.ask("leave_group", {"group_id": group, "members": [{"member_id": member}]}, 5, note="the classic one")
    beat("joins again")
    look("streams again")
    beat("leaves again", member_epoch=-1, **QUIET)
    differ.ask("delete_groups", {"groups_names": [group]}, 2, note="that was classic")
