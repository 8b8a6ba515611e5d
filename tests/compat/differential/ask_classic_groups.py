"""Questions about groups of the classic protocol: joining, rebalances, static members, lists of groups."""

from __future__ import annotations

from functools import partial
from typing import Any

from both import Both, each
from differ import Differ
from scenario_table import add_scenario, scenario
from side import Side

SUBSCRIPTION = b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff"
"""To the topic "t"."""
PROTOCOLS = [{"name": "range", "metadata": SUBSCRIPTION}]


def joining(group: str, member: str | Both = "", **more: Any) -> dict[str, Any]:
    """Return a JoinGroup request."""
    return {
        "group_id": group,
        "session_timeout_ms": 10000,
        "rebalance_timeout_ms": 10000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
        **more,
    }


def syncing(group: str, member: Any, generation: Any, **more: Any) -> dict[str, Any]:
    """Return a SyncGroup request of a leader that gives itself something."""
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b"abc"}],
        **more,
    }


def joined(differ: Differ, group: str, version: int = 5, client: str = "main") -> tuple[Both, Both]:
    """Make a stable group of one member; return its member id and generation."""
    answer = differ.ask("join_group", joining(group), version, client=client, compare=False)
    if version >= 4:
        answer = differ.ask("join_group", joining(group, answer.member_id), version, client=client, compare=False)
    body = syncing(group, answer.member_id, answer.generation_id)
    differ.ask("sync_group", body, 5, client=client, compare=False)
    return answer.member_id, answer.generation_id


def committed(group: str, member: Any = "", generation: Any = -1, **more: Any) -> dict[str, Any]:
    """Return an OffsetCommit of offset 1 for the first partition of "t"."""
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        **more,
    }


# Lists and descriptions


def _groups_of_all_kinds(differ: Differ) -> None:
    differ.create("t", 2)
    joined(differ, "lg-stable")
    differ.ask("offset_commit", committed("lg-empty"), 8, compare=False)
    body = {"group_id": "lg-new", "member_id": "m1", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    new = {**body, "rebalance_timeout_ms": 10000, "topic_partitions": []}
    differ.ask("consumer_group_heartbeat", new, 1, compare=False)
    differ.ask("share_group_heartbeat", {**body, "group_id": "lg-share"}, 1, compare=False)


@scenario
def list_groups(differ: Differ) -> None:
    _groups_of_all_kinds(differ)
    for version in range(6):
        differ.ask("list_groups", {}, version, note="all", eventually=True)
    for states in (
        *(["Stable"], ["stable"], ["STABLE"], ["Empty"], ["Dead"], ["PreparingRebalance"], ["preparingrebalance"]),
        *(["Assigning"], ["Reconciling"], ["NoSuch"], [""], ["Stable", "Empty"], ["NotReady"], ["Unknown"]),
    ):
        differ.each_version("list_groups", {"states_filter": states}, f"states {states}", (4, 5))
    for types in (
        *(["classic"], ["Classic"], ["CLASSIC"], ["consumer"], ["share"], ["streams"], ["nosuch"], [""], ["unknown"]),
        ["classic", "share"],
    ):
        for states in ([], ["Stable"]):
            body = {"types_filter": types, "states_filter": states}
            differ.ask("list_groups", body, 5, note=f"types {types} states {states}")


@scenario
def describe_groups_of_all_kinds(differ: Differ) -> None:
    _groups_of_all_kinds(differ)
    differ.ask("share_group_describe", {"group_ids": ["lg-share"]}, 1, note="first", eventually=True)
    some = [{"topic_name": "t", "partitions": [0, 9]}, {"topic_name": "no.such", "partitions": [0]}]
    for group in ("lg-stable", "lg-empty", "lg-new", "lg-share", "no.such", ""):
        differ.each_version("describe_groups", {"groups": [group]}, group)
        for api in ("consumer_group_describe", "share_group_describe", "streams_group_describe"):
            differ.each_version(api, {"group_ids": [group], "include_authorized_operations": False}, group)
        for note, topics in (("all", None), ("of topics", some)):
            body = {"groups": [{"group_id": group, "topics": topics}]}
            differ.each_version("describe_share_group_offsets", body, f"{group} {note}")
    for note, groups in (("none", []), ("twice", ["no.such", "no.such"])):
        differ.each_version("describe_groups", {"groups": groups}, note)
        for api in ("consumer_group_describe", "share_group_describe", "streams_group_describe"):
            differ.each_version(api, {"group_ids": groups}, note)


@scenario
def one_protocol_at_a_group_of_another(differ: Differ) -> None:
    _groups_of_all_kinds(differ)
    topic = {"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 0}]}
    for group in ("lg-stable", "lg-new", "lg-share", "lg-empty"):

        def ask(api: str, body: dict[str, Any], version: int, note: str, group: str = group, **how: Any) -> None:
            differ.ask(api, {"group_id": group, **body}, version, note=f"{note} {group}", **how)

        member = {"member_id": "zz", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        new = {**member, "rebalance_timeout_ms": 10000, "topic_partitions": []}
        if group != "lg-stable":
            ask("join_group", joining(group), 3, "classic join of", client=f"of {group}")
        if group == "lg-empty":
            _joins_beside_a_classic_member(differ, {"group_id": group, **new})
        else:
            ask("consumer_group_heartbeat", new, 1, "consumer join of")
        ask("share_group_heartbeat", member, 1, "share join of")
        ask("heartbeat", {"generation_id": 1, "member_id": "m1"}, 4, "classic heartbeat of")
        ask("sync_group", {"generation_id": 1, "member_id": "m1"}, 3, "classic sync of")
        ask("leave_group", {"members": [{"member_id": "m9"}]}, 5, "classic leave of")
        ask("offset_commit", committed(group), 9, "simple commit to")
        differ.ask("offset_fetch", {"groups": [{"group_id": group, "topics": None}]}, 9, note=group)
        ask("offset_delete", {"topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}, 0, "offsets of")
        ask("alter_share_group_offsets", {"topics": [topic]}, 0, "alteration of")
        ask("delete_share_group_offsets", {"topics": [{"topic_name": "t"}]}, 0, "deletion of")
        differ.ask("delete_groups", {"groups_names": [group]}, 2, note=group)


def _joins_beside_a_classic_member(differ: Differ, body: dict[str, Any]) -> None:
    """Ask whether a member gets one of two partitions. Kafka gives it either, by the hash of the other's random id."""
    answers = differ.ask("consumer_group_heartbeat", body, 1, compare=False)
    given = [
        sum(len(topic.partitions) for topic in answer.assignment.topic_partitions) if answer.assignment else None
        for answer in each(answers)
    ]
    told = [f"{answer.error_code} epoch {answer.member_epoch}" for answer in each(answers)]
    outcomes = [f"{words}, {count} partitions" for words, count in zip(told, given, strict=True)]
    differ.compare_outcomes("CONSUMER_GROUP_HEARTBEAT", "consumer join beside a classic member", outcomes)


# Joining

ODD_JOINS: dict[str, dict[str, Any]] = {
    "empty group": {"group_id": ""},
    "session 0": {"session_timeout_ms": 0},
    "session -1": {"session_timeout_ms": -1},
    "session short": {"session_timeout_ms": 5999},
    "session long": {"session_timeout_ms": 1800001},
    "rebalance 0": {"rebalance_timeout_ms": 0},
    "rebalance -1": {"rebalance_timeout_ms": -1},
    "unknown member": {"member_id": "nobody"},
    "empty type": {"protocol_type": ""},
    "no protocols": {"protocols": []},
    "empty protocol name": {"protocols": [{"name": "", "metadata": b""}]},
    "protocol twice": {"protocols": PROTOCOLS * 2},
    "garbage metadata": {"protocols": [{"name": "range", "metadata": b"\xff"}]},
    "empty metadata": {"protocols": [{"name": "range", "metadata": b""}]},
    "connect type": {"protocol_type": "connect"},
    "odd group name": {"group_id": "sp ace/ü"},
}
ODD_INSTANCES: dict[str, dict[str, Any]] = {
    "empty instance": {"group_instance_id": ""},
    "dot instance": {"group_instance_id": "."},
    "instance with space": {"group_instance_id": "a b"},
    "long instance": {"group_instance_id": "a" * 250},
    "instance": {"group_instance_id": "i1"},
    "instance, empty protocol name": {"group_instance_id": "i2", "protocols": [{"name": "", "metadata": b""}]},
}
REASONS: dict[str, dict[str, Any]] = {"reason": {"reason": "because"}, "long reason": {"reason": "x" * 300}}


def _odd_joins(version: int, differ: Differ) -> None:
    differ.create("t", 2)
    cases = ODD_JOINS | (ODD_INSTANCES if version >= 5 else {}) | (REASONS if version >= 8 else {})
    for note, changed in cases.items():
        group = f"oj-{note.replace(' ', '-')}-{version}"
        body = {**joining(group), **changed}
        if note == "odd group name":
            body["group_id"] += str(version)
        differ.ask("join_group", body, version, note=note, client=note)


@scenario
def joins_after_a_refused_join(differ: Differ) -> None:
    for version in (0, 2, 5, 9):
        group = f"refused-{version}"
        differ.ask("join_group", joining(group, protocols=[]), version, note="no protocols")
        for note, protocols in (("no protocols again", []), ("protocols", PROTOCOLS)):
            body = joining(group, "nobody", protocols=protocols)
            differ.ask("join_group", body, version, note=f"{note}, of a member after a refused join")


STRANGERS: dict[str, dict[str, Any]] = {
    "wrong generation": {"generation_id": 99},
    "generation -1": {"generation_id": -1},
    "unknown member": {"member_id": "nobody"},
    "empty member": {"member_id": ""},
    "empty group": {"group_id": ""},
    "unknown group": {"group_id": "no.such"},
    "instance": {"group_instance_id": "x"},
}


def _life_of_a_group(version: int, differ: Differ) -> None:
    """Go with a group of one member from its first join to its last."""
    differ.create("t", 2)
    group = f"jg-life-{version}"
    answer = differ.ask("join_group", joining(group), version, note="first")
    if version >= 4:
        answer = differ.ask("join_group", joining(group, answer.member_id), version, note="first, with its id")
    member, generation = answer.member_id, answer.generation_id

    def beat(note: str, **more: Any) -> None:
        body = {"group_id": group, "generation_id": generation, "member_id": member, **more}
        differ.each_version("heartbeat", body, note)

    beat("before sync")
    if version == 9:
        _odd_syncs(differ, group, member, generation)
        for note, changed in STRANGERS.items():
            beat(note, **changed)
    else:
        differ.each_version("sync_group", syncing(group, member, generation), "leader")
    beat("stable")
    differ.each_version("describe_groups", {"groups": [group]}, "stable")
    body = {"groups": [group], "include_authorized_operations": True}
    differ.each_version("describe_groups", body, "stable, operations", (3, 4, 5, 6))
    other = [{"name": "roundrobin", "metadata": SUBSCRIPTION}]
    for note, who, changed in (
        ("unknown member of a stable group", "nobody", {}),
        ("other type of a stable group", "", {"protocol_type": "connect"}),
        ("no common protocol", "", {"protocols": other}),
        ("the only member changes protocols", member, {"protocols": other}),
    ):
        join = {**joining(group, who), **changed}
        differ.ask("join_group", join, version, note=note, client="other" if who == "" else "main")
    differ.ask("describe_groups", {"groups": [group]}, 6, note="completing rebalance")
    differ.ask("delete_groups", {"groups_names": [group]}, 2, note="not empty")
    _leaving(differ, version, group, member)
    last = {"group_id": group, "generation_id": generation, "member_id": member}
    differ.ask("heartbeat", last, 4, note="after it left")
    differ.ask("join_group", joining(group, member), version, note="joins again with its old id", client="other")


def _odd_syncs(differ: Differ, group: str, member: Both, generation: Both) -> None:
    cases = {f"before sync {note}": changed for note, changed in STRANGERS.items()}
    cases |= {
        "wrong protocol type": {"protocol_type": "connect"},
        "wrong protocol name": {"protocol_name": "roundrobin"},
        "null protocol type": {"protocol_type": None},
        "null protocol name": {"protocol_name": None},
        "assignments of a stranger": {"assignments": [{"member_id": "nobody", "assignment": b"abc"}]},
    }
    for note, changed in cases.items():
        differ.each_version("sync_group", {**syncing(group, member, generation), **changed}, note)


def _leaving(differ: Differ, version: int, group: str, member: Both) -> None:
    for used in range(6):
        body: dict[str, Any] = {"group_id": group, "member_id": "nobody", "members": [{"member_id": "nobody"}]}
        differ.ask("leave_group", body, used, note="unknown member")
    for note in ("leaves", "leaves again"):
        body = {"group_id": group, "member_id": member, "members": [{"member_id": member}]}
        differ.ask("leave_group", body, min(version, 5), note=note)
    differ.ask("describe_groups", {"groups": [group]}, 6, note="empty")


for _version in range(10):
    add_scenario(f"join_group_oddly_{_version}", partial(_odd_joins, _version))
    add_scenario(f"life_of_a_group_{_version}", partial(_life_of_a_group, _version))


@scenario
def leave_group_of_strangers(differ: Differ) -> None:
    joined(differ, "lv-known")
    cases: dict[str, list[dict[str, Any]]] = {
        "none": [],
        "empty member": [{"member_id": ""}],
        "unknown instance": [{"member_id": "", "group_instance_id": "x"}],
        "member twice": [{"member_id": "a"}, {"member_id": "a"}],
    }
    for version in (3, 4, 5):
        for note, members in cases.items():
            for group in ("", "no.such", "lv-known"):
                body = {"group_id": group, "members": members}
                differ.ask("leave_group", body, version, note=f"{group!r} {note}")


def _static_members(version: int, differ: Differ) -> None:
    differ.create("t", 2)
    group = f"st-{version}"
    static = {"group_instance_id": "i"}
    first = differ.ask("join_group", joining(group, **static), version, note="first")
    member, generation = first.member_id, first.generation_id

    def sync(who: Both, in_generation: Both, note: str) -> None:
        differ.ask("sync_group", syncing(group, who, in_generation, **static), 5, note=note)

    def beat(note: str, who: Any, **more: Any) -> None:
        body = {"group_id": group, "generation_id": generation, "member_id": who, **more}
        differ.ask("heartbeat", body, 4, note=note)

    sync(member, generation, "first")
    beat("with instance", member, **static)
    beat("without instance", member)
    beat("fenced", "other", **static)
    differ.ask("join_group", joining(group, "other", **static), version, note="fenced", client="other")
    unknown = joining(group, member, group_instance_id="zz")
    differ.ask("join_group", unknown, version, note="unknown instance with a known member", client="other")
    second = differ.ask("join_group", joining(group, **static), version, note="replaces", client="other")
    beat("replaced one", member, **static)
    sync(member, generation, "replaced one")
    sync(second.member_id, second.generation_id, "the new one")
    differ.ask("offset_commit", committed(group, member, generation, **static), 8, note="replaced one commits")
    differ.ask("describe_groups", {"groups": [group]}, 6, note="static")
    for note, leaver in (
        ("fenced leaves", {"member_id": member, **static}),
        ("unknown instance leaves", {"member_id": "", "group_instance_id": "zz"}),
        ("by instance alone", {"member_id": "", **static}),
    ):
        differ.ask("leave_group", {"group_id": group, "members": [leaver]}, 5, note=note)


for _version in (5, 7, 9):
    add_scenario(f"static_members_{_version}", partial(_static_members, _version))


def _is_preparing(group: str, side: Side) -> bool:
    state = side.quiet("describe_groups", {"groups": [group]}, 5).groups[0].group_state
    return bool(state == "PreparingRebalance")


def _rebalance(version: int, differ: Differ) -> None:
    """Take two members through a whole rebalance."""
    differ.create("t", 2)
    group = f"rb-{version}"
    a, generation = joined(differ, group, version, "a")
    b: str | Both = ""
    if version >= 4:
        b = differ.ask("join_group", joining(group), version, client="b", note="id wanted").member_id
    second = differ.send("join_group", joining(group, b), version, client="b")
    differ.wait("the group is preparing", partial(_is_preparing, group))
    beat = {"group_id": group, "generation_id": generation, "member_id": a}
    differ.ask("heartbeat", beat, 4, note="rebalance in progress")
    differ.ask("sync_group", {**beat, "assignments": []}, 3, note="while preparing")
    differ.ask("offset_commit", committed(group, a, generation), 8, note="while preparing")
    differ.ask("describe_groups", {"groups": [group]}, 6, note="preparing")
    of_a = differ.ask("join_group", joining(group, a), version, client="a", note="joins again")
    of_b = second.answers("the second")
    differ.ask("offset_commit", committed(group, a, of_a.generation_id), 8, note="while completing")
    differ.ask("heartbeat", {**beat, "generation_id": of_a.generation_id}, 4, note="completing")
    nothing = syncing(group, of_b.member_id, of_b.generation_id, assignments=[])
    follower = differ.send("sync_group", nothing, 5, client="b")
    given = [{"member_id": a, "assignment": b"A"}, {"member_id": of_b.member_id, "assignment": b"B"}]
    leading = syncing(group, a, of_a.generation_id, assignments=given)
    differ.ask("sync_group", leading, 5, client="a", note="leader")
    follower.answers("follower")
    differ.ask("sync_group", nothing, 5, client="b", note="follower again")
    differ.ask("describe_groups", {"groups": [group]}, 6, note="two members")
    leavers = [{"member_id": a}, {"member_id": of_b.member_id}, {"member_id": "x"}]
    differ.ask("leave_group", {"group_id": group, "members": leavers}, 5, note="three leave")
    differ.ask("describe_groups", {"groups": [group]}, 6, note="then")


for _version in (3, 5, 9):
    add_scenario(f"rebalance_{_version}", partial(_rebalance, _version))
