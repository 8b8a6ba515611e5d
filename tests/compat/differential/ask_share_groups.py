"""Questions about share groups (KIP-932): membership, fetching and acknowledging, offsets, the state of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from both import Both
from differ import Differ
from good_and_bad_batches import produced, rows
from scenario_table import add_scenario, scenario
from side import Side

from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import ZERO_UUID

UNKNOWN_ID = b"\x11" * 16
MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"
ACCEPT, RELEASE, REJECT, RENEW, GAP = 1, 2, 3, 4, 0

Batch = tuple[int, int, list[int]]
"""The first and the last offset of an acknowledgement, and its types."""


def beating(group: str, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "member_id": "m1", "member_epoch": 0, "subscribed_topic_names": ["sg"], **more}


ODD_JOINS: dict[str, dict[str, Any]] = {
    "empty group": {"group_id": ""},
    "blank group": {"group_id": " "},
    "empty member": {"member_id": ""},
    "long member": {"member_id": "x" * 300},
    "epoch -2": {"member_epoch": -2},
    "epoch 5 of nobody": {"member_epoch": 5},
    "leave of nobody": {"member_epoch": -1},
    "no subscription": {"subscribed_topic_names": None},
    "empty subscription": {"subscribed_topic_names": []},
    "empty rack": {"rack_id": ""},
    "unknown topic": {"subscribed_topic_names": ["no.such"]},
}


@scenario
def share_heartbeats_oddly(differ: Differ) -> None:
    differ.create("sg", 2)
    for note, changed in ODD_JOINS.items():
        body = beating(f"sg-{note.replace(' ', '-')}", **changed)
        differ.ask("share_group_heartbeat", body, 1, note=note)


def _topic_with_records(differ: Differ, group: str) -> Both:
    """Make a topic of five records, which the group reads from the beginning."""
    topic_id = differ.create("sg", 2)
    batch = encode_batch(rows(differ.now(), 5))
    differ.ask("produce", produced("sg", batch, topic_id=topic_id), 13, compare=False)
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": group, "configs": [config]}
    differ.ask("incremental_alter_configs", {"resources": [resource]}, 1, compare=False)
    return topic_id


def _has_partitions(group: str, side: Side) -> bool:
    """Go on with the member until it has been given both partitions."""
    described = side.quiet("share_group_describe", {"group_ids": [group]}, 1).groups[0]
    member = described.members[0]
    body = beating(group, member_id=MEMBER, member_epoch=member.member_epoch, subscribed_topic_names=None)
    answer = side.quiet("share_group_heartbeat", body, 1)
    given = sum(len(topic.partitions) for topic in member.assignment.topic_partitions)
    return given == 2 and bool(answer.member_epoch == member.member_epoch == described.group_epoch)


def _join(differ: Differ, group: str) -> Both:
    """Join as the only member, wait for its partitions, and return its epoch."""
    differ.ask("share_group_heartbeat", beating(group, member_id=MEMBER), 1, note="join")
    differ.wait("the member has partitions", partial(_has_partitions, group))
    described = differ.ask("share_group_describe", {"group_ids": [group]}, 1, note="one member")
    return described.groups[0].members[0].member_epoch


def acknowledging(index: int = 0, *batches: Batch) -> dict[str, Any]:
    """Return a partition of ShareFetch or ShareAcknowledge."""
    told = [{"first_offset": first, "last_offset": last, "acknowledge_types": types} for first, last, types in batches]
    return {"partition_index": index, "acknowledgement_batches": told}


class _Reader:
    """Asks as the member, over connections that it names."""

    def __init__(self, differ: Differ, group: str, version: int, topic_id: Both) -> None:
        self._differ = differ
        self._group = group
        self._version = version
        self._topic_id = topic_id

    def topic(self, *partitions: dict[str, Any], topic_id: Any = None) -> dict[str, Any]:
        return {"topic_id": self._topic_id if topic_id is None else topic_id, "partitions": list(partitions)}

    def fetch(
        self, note: str, epoch: int, topics: Sequence[dict[str, Any]] = (), client: str = "reader", **more: Any
    ) -> None:
        body = {
            "group_id": self._group,
            "member_id": MEMBER,
            "share_session_epoch": epoch,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 2,
            "batch_size": 2,
            "topics": list(topics),
            "forgotten_topics_data": [],
            **more,
        }
        self._differ.ask("share_fetch", body, self._version, note=note, client=client)

    def acknowledge(
        self, note: str, epoch: int, topics: Sequence[dict[str, Any]] = (), client: str = "reader", **more: Any
    ) -> None:
        body = {
            "group_id": self._group,
            "member_id": MEMBER,
            "share_session_epoch": epoch,
            "topics": list(topics),
            **more,
        }
        self._differ.ask("share_acknowledge", body, self._version, note=note, client=client)


def _reader(differ: Differ, group: str, version: int) -> _Reader:
    topic_id = _topic_with_records(differ, group)
    _join(differ, group)
    return _Reader(differ, group, version, topic_id)


def _odd_share_sessions(version: int, differ: Differ) -> None:
    reader = _reader(differ, f"sgo{version}", version)
    topic, fetch, acknowledge = reader.topic, reader.fetch, reader.acknowledge
    known = [topic(acknowledging())]
    fetch("no session", 1, known)
    fetch("no session, final", -1)
    fetch("epoch -2", -2)
    acknowledge("no session", 1, known)
    acknowledge("epoch 0", 0, known)
    acknowledge("final without session", -1, known)
    fetch("null group", 0, known, group_id=None)
    fetch("empty group", 0, known, group_id="")
    fetch("null member", 0, known, member_id=None)
    fetch("bad member", 0, known, member_id="x")
    fetch("empty member", 0, known, member_id="")
    fetch("unknown group", 0, known, group_id="sg.none", client="a")
    fetch("acknowledges in the first", 0, [topic(acknowledging(0, (0, 0, [ACCEPT])))], client="b")
    fetch("first, empty", 0, [], client="c")
    fetch("unknown topic", 0, [topic(acknowledging(), topic_id=UNKNOWN_ID)], client="d")
    fetch("unknown partition", 0, [topic(acknowledging(9))], client="e")
    fetch("no topic id", 0, [topic(acknowledging(), topic_id=ZERO_UUID)], client="f")
    fetch("max records 0", 0, known, max_records=0, client="g")
    fetch("max records -1", 0, known, max_records=-1, client="h")
    fetch("batch size 0", 0, known, batch_size=0, client="i")


def _share_session(version: int, differ: Differ) -> None:
    reader = _reader(differ, f"sgl{version}", version)
    topic, fetch, acknowledge = reader.topic, reader.fetch, reader.acknowledge

    def batch(first: int, last: int, *types: int) -> list[dict[str, Any]]:
        return [topic(acknowledging(0, (first, last, list(types))))]

    fetch("first", 0, [topic(acknowledging())])
    fetch("second", 1, batch(0, 1, ACCEPT))
    fetch("epoch again", 1)
    fetch("epoch ahead", 9)
    fetch("acknowledges twice", 2, batch(0, 1, ACCEPT))
    fetch("acknowledges what is not acquired", 3, batch(100, 101, ACCEPT))
    acknowledge("types too many", 4, batch(2, 3, 1, 1, 1))
    acknowledge("type 9", 5, batch(2, 3, 9))
    acknowledge("first above last", 6, batch(3, 2, ACCEPT))
    acknowledge("type -1", 7, batch(2, 3, -1))
    overlapping = [topic(acknowledging(0, (2, 3, [ACCEPT]), (3, 4, [ACCEPT])))]
    acknowledge("overlapping", 8, overlapping)
    acknowledge("no types", 9, batch(2, 3))
    acknowledge("gap", 10, batch(2, 3, GAP))
    acknowledge("release", 11, batch(2, 3, RELEASE))
    acknowledge("reject", 12, batch(4, 4, REJECT))
    unknown = [topic(acknowledging(0, (2, 3, [ACCEPT])), topic_id=UNKNOWN_ID)]
    acknowledge("unknown topic", 13, unknown)
    acknowledge("unknown partition", 14, [topic(acknowledging(9, (2, 3, [ACCEPT])))])
    acknowledge("renew without the flag", 15, batch(2, 3, RENEW))
    if version == 2:
        acknowledge("renew with the flag", 16, batch(2, 3, RENEW), is_renew_ack=True)
        acknowledge("flag without renew", 17, batch(2, 3, ACCEPT), is_renew_ack=True)
        fetch("mode 1", 18, share_acquire_mode=1)
        fetch("mode 9", 19, share_acquire_mode=9)
        fetch("renew in fetch", 20, is_renew_ack=True)
    fetch("final", -1)
    fetch("after final", 5)
    fetch("final with topics", -1, [topic(acknowledging())])


for _version in (1, 2):
    add_scenario(f"share_sessions_oddly_{_version}", partial(_odd_share_sessions, _version))
    add_scenario(f"share_session_{_version}", partial(_share_session, _version))


@scenario
def share_members_that_are_fenced(differ: Differ) -> None:
    _topic_with_records(differ, "sgf")
    epoch = _join(differ, "sgf")
    for note, told in {"nothing new": epoch, "epoch too high": 99, "epoch -2": -2}.items():
        body = beating("sgf", member_id=MEMBER, member_epoch=told, subscribed_topic_names=None)
        differ.ask("share_group_heartbeat", body, 1, note=note)


# Offsets of a share group

PARTITIONS_OF_TOPICS: dict[str, tuple[tuple[str, tuple[tuple[int, int], ...]], ...]] = {
    "empty": (("sg", ((0, 2),)),),
    "negative": (("sg", ((0, -1),)),),
    "beyond": (("sg", ((0, 999),)),),
    "unknown partitions": (("sg", ((9, 0), (-1, 0))),),
    "unknown topic": (("no.such", ((0, 0),)),),
    "no topics": (),
    "empty topic": (("", ((0, 0),)),),
    "twice": (("sg", ((0, 1), (0, 2))),),
}


def altering(group: str, topics: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]) -> dict[str, Any]:
    told = [
        {
            "topic_name": name,
            "partitions": [{"partition_index": index, "start_offset": offset} for index, offset in positions],
        }
        for name, positions in topics
    ]
    return {"group_id": group, "topics": told}


def deleting(group: str, *topics: str) -> dict[str, Any]:
    return {"group_id": group, "topics": [{"topic_name": name} for name in topics]}


@scenario
def share_group_offsets(differ: Differ) -> None:
    _topic_with_records(differ, "sga")
    _join(differ, "sga")
    some = [
        {"topic_name": "sg", "partitions": [0, 1, 9, -1]},
        {"topic_name": "no.such", "partitions": [0]},
        {"topic_name": "", "partitions": [0]},
    ]
    one = {"group_id": "sga", "topics": []}
    for version in (0, 1):
        for note, groups in {
            "all": [{"group_id": "sga", "topics": None}],
            "some": [{"group_id": "sga", "topics": some}],
            "no groups": [],
            "group twice": [one, one],
        }.items():
            differ.ask("describe_share_group_offsets", {"groups": groups}, version, note=note)
    whole = PARTITIONS_OF_TOPICS["empty"]
    differ.ask("alter_share_group_offsets", altering("sga", whole), 0, note="with members")
    differ.ask("delete_share_group_offsets", deleting("sga", "sg"), 0, note="with members")
    leave = beating("sga", member_id=MEMBER, member_epoch=-1, subscribed_topic_names=None)
    differ.ask("share_group_heartbeat", leave, 1, note="leaves")
    for note, topics in PARTITIONS_OF_TOPICS.items():
        differ.ask("alter_share_group_offsets", altering("sga", topics), 0, note=note)
    for group in ("sg.none", ""):
        differ.ask("alter_share_group_offsets", altering(group, whole), 0, note=f"of {group!r}")
    described = {"groups": [{"group_id": "sga", "topics": None}]}
    differ.ask("describe_share_group_offsets", described, 1, note="after alter", eventually=True)
    for note, body in {
        "unknown topic": deleting("sga", "no.such"),
        "two": deleting("sga", "sg", "no.such"),
        "again": deleting("sga", "sg"),
        "no topics": deleting("sga"),
        "unknown group": deleting("sg.none", "sg"),
        "empty group": deleting("", "sg"),
    }.items():
        differ.ask("delete_share_group_offsets", body, 0, note=note)
    differ.ask("describe_share_group_offsets", described, 1, note="after delete", eventually=True)
    differ.ask("share_group_describe", {"group_ids": ["sga"]}, 1, note="empty")
    differ.ask("delete_groups", {"groups_names": ["sga"]}, 2, note="share group")


@scenario
def share_group_offsets_below_any(differ: Differ) -> None:
    differ.create("sg", 1)
    for offset in (-2, -(2**63)):
        body = altering(f"sgb{offset}", (("sg", ((0, offset),)),))
        differ.ask("alter_share_group_offsets", body, 0, note=f"below: {offset}")


# The state that leaders keep at the coordinator


class _States:
    """Asks about the state of a share partition."""

    def __init__(self, differ: Differ, group: str, version: int, topic_id: Both) -> None:
        self._differ = differ
        self._group = group
        self._version = version
        self._topic_id = topic_id

    def _ask(self, api: str, note: str, version: int, group: str | None, topic_id: Any, fields: dict[str, Any]) -> None:
        partitions = [{"partition": 0, **fields}]
        topics = [{"topic_id": self._topic_id if topic_id is None else topic_id, "partitions": partitions}]
        body = {"group_id": self._group if group is None else group, "topics": topics}
        self._differ.ask(api, body, version, note=note)

    def read(self, note: str, group: str | None = None, topic_id: Any = None, **more: Any) -> None:
        self._ask("read_share_group_state", note, 0, group, topic_id, {"leader_epoch": 0, **more})

    def summary(self, note: str, group: str | None = None, topic_id: Any = None, **more: Any) -> None:
        fields = {"leader_epoch": 0, **more}
        self._ask("read_share_group_state_summary", note, self._version, group, topic_id, fields)

    def write(
        self,
        note: str,
        group: str | None = None,
        topic_id: Any = None,
        batches: Sequence[tuple[int, int, int, int]] = (),
        **more: Any,
    ) -> None:
        fields = {
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": 5,
            "delivery_complete_count": 1,
            "state_batches": [
                {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
                for first, last, state, count in batches
            ],
            **more,
        }
        self._ask("write_share_group_state", note, self._version, group, topic_id, fields)

    def initialize(self, note: str, group: str | None = None, topic_id: Any = None, **more: Any) -> None:
        fields = {"state_epoch": 1, "start_offset": 5, **more}
        self._ask("initialize_share_group_state", note, 0, group, topic_id, fields)

    def delete(self, note: str, group: str | None = None, topic_id: Any = None) -> None:
        self._ask("delete_share_group_state", note, 0, group, topic_id, {})


def _share_state(version: int, differ: Differ) -> None:
    states = _States(differ, f"ssg{version}", version, differ.create("ss", 1))
    read, summary, write, initialize = states.read, states.summary, states.write, states.initialize
    actions: tuple[Callable[..., None], ...] = (read, summary, write, initialize, states.delete)
    for action in (read, summary, write, states.delete):
        action("nothing")
    for action in actions:
        action("empty group", group="")
        action("unknown topic", topic_id=UNKNOWN_ID)
        action("no topic id", topic_id=ZERO_UUID)
    initialize("negative epoch", state_epoch=-1)
    initialize("negative offset", start_offset=-2)
    initialize("offset -1", start_offset=-1)
    initialize("first", state_epoch=1)
    initialize("again")
    initialize("older epoch", state_epoch=0)
    initialize("newer", state_epoch=2)
    read("after initialize")
    summary("after initialize")
    write("old state epoch", state_epoch=0)
    write("new state epoch", state_epoch=9)
    write("right", state_epoch=2, batches=[(5, 7, 0, 1), (8, 9, 2, 1)])
    read("after write")
    write("older leader epoch", state_epoch=2, leader_epoch=-1)
    write("start -1", state_epoch=2, start_offset=-1)
    write("bad batch", state_epoch=2, batches=[(9, 5, 0, 1)])
    write("bad state", state_epoch=2, batches=[(5, 5, 9, 1)])
    write("count -1", state_epoch=2, batches=[(5, 5, 0, -1)])
    read("leader epoch 5", leader_epoch=5)
    write("leader epoch fenced", state_epoch=2, leader_epoch=1)
    summary("end")
    states.delete("one")
    read("deleted")
    states.delete("again")


def _share_state_of_nothing(version: int, differ: Differ) -> None:
    topic_id = differ.create("ss", 1)
    group = f"ssn{version}"
    unknown = [{"partition": 9}, {"partition": -1}]
    for api in ("read", "write", "initialize", "delete"):
        for note, topics in {
            "no topics": [],
            "no partitions": [{"topic_id": topic_id, "partitions": []}],
            "unknown partitions": [{"topic_id": topic_id, "partitions": unknown}],
        }.items():
            body = {"group_id": group, "topics": topics}
            differ.ask(f"{api}_share_group_state", body, 0, note=note)
            if api == "read":
                differ.ask("read_share_group_state_summary", body, version, note=note)


for _version in (0, 1):
    add_scenario(f"share_state_{_version}", partial(_share_state, _version))
    add_scenario(f"share_state_of_nothing_{_version}", partial(_share_state_of_nothing, _version))
