"""Questions about coordinators and committed offsets: FindCoordinator, OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ask_classic_groups import joined
from both import Both
from differ import Differ
from scenario_table import add_scenario, scenario

from kraftpy.protocol.schema import ZERO_UUID

UNKNOWN_ID = b"\x11" * 16

Commit = Callable[..., None]


def position(offset: int, index: int = 0, epoch: int = -1, metadata: str | None = "") -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": metadata,
    }


def _committer(differ: Differ, version: int, topic_id: Both) -> Commit:
    """Return a function that commits something to a group without members."""

    def commit(
        note: str,
        *positions: dict[str, Any],
        group: str = "og-simple",
        topic: str = "t",
        topic_id: Any = topic_id,
        generation: Any = -1,
        member: Any = "",
        **more: Any,
    ) -> None:
        partitions = list(positions) or [position(7)]
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [{"name": topic, "topic_id": topic_id, "partitions": partitions}],
            **more,
        }
        differ.ask("offset_commit", body, version, note=note)

    return commit


def _commits(version: int, differ: Differ) -> None:
    topic_id = differ.create("t", 2)
    commit = _committer(differ, version, topic_id)
    commit("simple")
    for offset in (0, -1, -2, 2**63 - 1):
        commit(f"offset {offset}", position(offset))
    for epoch in (5, -5):
        commit(f"epoch {epoch}", position(8, epoch=epoch))
    for note, metadata in {
        "long metadata": "x" * 4097,
        "metadata at the limit": "x" * 4096,
        "null metadata": None,
        "metadata of two bytes a letter": "ü" * 2100,
    }.items():
        commit(note, position(9, metadata=metadata))
    commit("one bad", position(9, metadata="x" * 4097), position(9, 1))
    commit("unknown partitions", position(9, 9), position(9, -1))
    commit("known and unknown partition", position(9), position(9, 9))
    commit("partition twice", position(9), position(10))
    commit("unknown topic", topic="no.such", topic_id=UNKNOWN_ID)
    commit("empty topic", topic="", topic_id=ZERO_UUID)
    commit("bad topic", topic="sp ace", topic_id=UNKNOWN_ID)
    commit("internal topic", topic="__consumer_offsets", topic_id=UNKNOWN_ID)
    if version <= 4:
        commit("retention", retention_time_ms=1)
        commit("retention 0", retention_time_ms=0)
    one = {"name": "t", "topic_id": topic_id, "partitions": [position(1)]}
    for note, topics in {
        "no topics": [],
        "no partitions": [{**one, "partitions": []}],
        "topic twice": [one, one],
    }.items():
        body = {"group_id": "og-simple", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        differ.ask("offset_commit", body, version, note=note)
    differ.ask("offset_fetch", {"groups": [{"group_id": "og-simple", "topics": None}]}, 9, note="then")


def _commits_of_members(version: int, differ: Differ) -> None:
    topic_id = differ.create("t", 2)
    group = f"og{version}"
    member, generation = joined(differ, group)
    commit = _committer(differ, version, topic_id)
    commit("empty group", group="")
    commit("unknown group with generation", group="og-none", generation=1)
    commit("unknown group with member", group="og-none", generation=1, member="m")
    commit("unknown group, member, generation -1", group="og-none", member="m")
    commit("member", group=group, generation=generation, member=member)
    commit("wrong generation", group=group, generation=99, member=member)
    commit("generation 0", group=group, generation=0, member=member)
    commit("unknown member", group=group, generation=generation, member="x")
    commit("simple into a group with members", group=group)
    commit("empty member, generation", group=group, generation=generation)
    commit("member, generation -1", group=group, generation=-1, member=member)
    if version >= 7:
        commit("instance", group=group, generation=generation, member=member, group_instance_id="x")
        commit("instance of a simple group", group_instance_id="x")


for _version in range(2, 11):
    add_scenario(f"offset_commit_{_version}", partial(_commits, _version))
    add_scenario(f"offset_commit_of_members_{_version}", partial(_commits_of_members, _version))


def _with_offsets(differ: Differ) -> tuple[Both, Both, Both]:
    """Make a group with offsets and one with a member; return the topic's id, member id and generation."""
    topic_id = differ.create("t", 2)
    member, generation = joined(differ, "of-member")
    commit = _committer(differ, 8, topic_id)
    commit("for fetch", position(5, epoch=0, metadata="note"), position(6, 1), group="of-simple")
    return topic_id, member, generation


def _fetches(version: int, differ: Differ) -> None:
    topic_id, _, _ = _with_offsets(differ)
    cases: dict[str, list[tuple[str, Any, list[int]]] | None] = {
        "null": None,
        "empty": [],
        "known": [("t", topic_id, [0, 1])],
        "unknown partition": [("t", topic_id, [9, -1])],
        "no partitions": [("t", topic_id, [])],
        "unknown topic": [("no.such", UNKNOWN_ID, [0])],
        "empty topic": [("", ZERO_UUID, [0])],
        "twice": [("t", topic_id, [0, 0])],
        "topic twice": [("t", topic_id, [0]), ("t", topic_id, [1])],
    }
    for group in ("of-simple", "of-none", "", "of-member"):
        for note, asked in cases.items():
            if asked is None and version < 2:
                continue
            topics = None
            if asked is not None:
                topics = [{"name": name, "partition_indexes": indexes} for name, _, indexes in asked]
                if version >= 8:
                    topics = [{**each, "topic_id": own} for each, (_, own, _) in zip(topics, asked, strict=True)]
            body: dict[str, Any] = {"group_id": group, "topics": topics}
            if version >= 8:
                body = {"groups": [body]}
            for stable in (False, True) if version >= 7 and note == "known" else (False,):
                told = f"group {group!r} {note} stable {stable}"
                differ.ask("offset_fetch", {**body, "require_stable": stable}, version, note=told)
    if version >= 8:
        known = [{"name": "t", "topic_id": topic_id, "partition_indexes": [0]}]
        one = {"group_id": "of-simple", "topics": known}
        differ.ask("offset_fetch", {"groups": []}, version, note="no groups")
        differ.ask("offset_fetch", {"groups": [one, one]}, version, note="group twice")
        two = [one, {"group_id": "of-none", "topics": None}]
        differ.ask("offset_fetch", {"groups": two}, version, note="two groups")


for _version in range(1, 11):
    add_scenario(f"offset_fetch_{_version}", partial(_fetches, _version))


@scenario
def offset_fetch_of_members(differ: Differ) -> None:
    topic_id, member, generation = _with_offsets(differ)
    known = [{"name": "t", "topic_id": topic_id, "partition_indexes": [0]}]
    who: dict[str, tuple[Any, Any]] = {
        "x 0": ("x", 0),
        "x 5": ("x", 5),
        "null 3": (None, 3),
        "null -1": (None, -1),
        "empty 0": ("", 0),
        "itself": (member, generation),
        "itself 99": (member, 99),
        "x -1": ("x", -1),
    }
    for version in (9, 10):
        for note, (name, epoch) in who.items():
            for group in ("of-member", "of-simple", "of-none"):
                asked = {"group_id": group, "member_id": name, "member_epoch": epoch, "topics": known}
                differ.ask("offset_fetch", {"groups": [asked]}, version, note=f"{group} member {note}")


@scenario
def offset_delete(differ: Differ) -> None:
    _with_offsets(differ)
    cases: dict[str, tuple[str, list[tuple[str, list[int]]]]] = {
        "unknown group": ("of-none", [("t", [0])]),
        "empty group": ("", [("t", [0])]),
        "subscribed": ("of-member", [("t", [0])]),
        "simple": ("of-simple", [("t", [0])]),
        "again": ("of-simple", [("t", [0])]),
        "unknown topic": ("of-simple", [("no.such", [0])]),
        "unknown partitions": ("of-simple", [("t", [9, -1])]),
        "no topics": ("of-simple", []),
        "no partitions": ("of-simple", [("t", [])]),
        "twice": ("of-simple", [("t", [1, 1])]),
        "empty topic": ("of-simple", [("", [0])]),
    }
    for note, (group, topics) in cases.items():
        named = [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]} for name, indexes in topics
        ]
        differ.ask("offset_delete", {"group_id": group, "topics": named}, 0, note=note)
    differ.ask("offset_fetch", {"groups": [{"group_id": "of-simple", "topics": None}]}, 9, note="after deletes")


@scenario
def delete_groups(differ: Differ) -> None:
    _with_offsets(differ)
    for version in range(3):
        commit = _committer(differ, 8, differ.own(lambda side: ZERO_UUID))
        for name in ("dg-a", "dg-b"):
            commit(f"to be deleted {name}", group=name)
        for names in (
            *([], [""], ["of-none"], ["of-member"], ["dg-a"], ["dg-a"], ["dg-b", "dg-b"], ["dg-b"]),
            *(["of-none", "of-none"], ["of-member", "of-none"]),
        ):
            differ.ask("delete_groups", {"groups_names": names}, version, note=str(names))


@scenario
def find_coordinator(differ: Differ) -> None:
    zeros = "A" * 22
    keys = (
        *("g", "", "a" * 300, f"{zeros}:0", f"g:{zeros}:0", "g:bad:0", f"g:{zeros}:x", f"g:{zeros}:-1", f":{zeros}:0"),
    )
    for version in range(7):
        for kind in (0, 1, 2, 3, -1):
            for key in keys:
                body = {"key": key, "key_type": kind, "coordinator_keys": [key]}
                differ.ask("find_coordinator", body, version, note=f"type {kind} {key[:20]!r}")
        if version >= 4:
            for note, names in (("no keys", []), ("three keys", ["a", "a", "b"])):
                body = {"key_type": 0, "coordinator_keys": names}
                differ.ask("find_coordinator", body, version, note=note)
