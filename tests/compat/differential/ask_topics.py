"""Questions about topics: Metadata, CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions."""

from __future__ import annotations

from typing import Any

from both import Both
from differ import Differ
from scenario_table import scenario

from kraftpy.protocol.schema import ZERO_UUID

UNKNOWN_ID = b"\x11" * 16
MAX_INT = 2**31 - 1
ODD_NAMES = (
    *("", ".", "..", "a" * 249, "a" * 250, "sp ace", "sla/sh", "ünï", "a:b", "a,b", "new\nline", "tab\t", "a\0b"),
    *("__x", "A.b_c-1"),
)
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


# Metadata


@scenario
def metadata(differ: Differ) -> None:
    differ.create("meta", 3)
    differ.create("meta.two", 1)
    differ.each_version("metadata", {"topics": None, "allow_auto_topic_creation": False}, "null topics")
    differ.each_version("metadata", {"topics": [], "allow_auto_topic_creation": False}, "no topics")
    for name in ["meta", "meta.missing", *ODD_NAMES, *INTERNAL]:
        body = {"topics": named(name), "allow_auto_topic_creation": False}
        differ.each_version("metadata", body, f"{name[:20]!r} without creation", range(4, 14))
    twice = {"topics": named("meta", "meta", "no.such", "no.such"), "allow_auto_topic_creation": False}
    differ.each_version("metadata", twice, "duplicates", range(4, 14))


@scenario
def metadata_of_names_that_cannot_be_created(differ: Differ) -> None:
    for version in range(4, 14):
        for name in ("", ".", "sp ace", "a" * 250, "ünï"):
            body = {"topics": named(name), "allow_auto_topic_creation": True}
            differ.ask("metadata", body, version, note=f"creation of {name[:12]!r}")
    body = {"topics": named("__cluster_metadata"), "allow_auto_topic_creation": True}
    differ.each_version("metadata", body, "creation of __cluster_metadata")


@scenario
def metadata_with_operations(differ: Differ) -> None:
    differ.create("meta.ops", 1)
    for cluster, topics in ((True, False), (False, True), (True, True)):
        body = {
            "topics": named("meta.ops"),
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": cluster,
            "include_topic_authorized_operations": topics,
        }
        note = f"operations of the cluster {cluster}, of topics {topics}"
        differ.each_version("metadata", body, note, range(8, 14))


@scenario
def metadata_by_id(differ: Differ) -> None:
    topic_id = differ.create("meta.id", 1)
    one = {"topic_id": topic_id, "name": None}
    cases: dict[str, list[dict[str, Any]]] = {
        "id": [one],
        "id and name": [{"topic_id": topic_id, "name": "meta.id"}],
        "id and another name": [{"topic_id": topic_id, "name": "other"}],
        "unknown id": [{"topic_id": UNKNOWN_ID, "name": None}],
        "unknown id and name": [{"topic_id": UNKNOWN_ID, "name": "meta.id"}],
        "no id and null name": [{"topic_id": ZERO_UUID, "name": None}],
        "id and name mixed": [one, {"topic_id": ZERO_UUID, "name": "meta.id"}],
        "id twice": [one, one],
        "known and unknown id": [one, {"topic_id": UNKNOWN_ID, "name": None}],
    }
    for version in range(10, 14):
        for note, topics in cases.items():
            differ.ask("metadata", {"topics": topics}, version, note=note)


@scenario
def metadata_that_creates(differ: Differ) -> None:
    for version in range(14):
        name = f"auto.v{version}"
        body = {"topics": named(name), "allow_auto_topic_creation": True}
        differ.ask("metadata", body, version, note="first", compare=version == 12)
        differ.settle(name)
        differ.ask("metadata", body, version, note="then")
    body = {"topics": named("auto_v0"), "allow_auto_topic_creation": True}
    for note in ("creation of a name that collides", "again"):
        differ.ask("metadata", body, 12, note=note)


# CreateTopics


def new_topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def ask_to_create(differ: Differ, note: str, partitions: int, replicas: int, **more: Any) -> None:
    """Ask for a topic in each version, to be checked only and then to be made."""
    for validate in (True, False):
        for version in range(2, 8):
            name = f"{note.replace(' ', '-')[:40]}-{version}"
            body = {
                "topics": [new_topic(name, partitions, replicas, **more)],
                "timeout_ms": 20000,
                "validate_only": validate,
            }
            differ.ask("create_topics", body, version, note=f"{note}{', validated' if validate else ''}")


@scenario
def create_topics_of_odd_names(differ: Differ) -> None:
    for validate in (True, False):
        for name in (*ODD_NAMES, *INTERNAL):
            body = {"topics": [new_topic(name)], "validate_only": validate, "timeout_ms": 20000}
            differ.each_version("create_topics", body, f"name {name[:20]!r} validate {validate}")


@scenario
def create_topics_of_odd_sizes(differ: Differ) -> None:
    for count in (0, -1, -2, -(2**31)):
        ask_to_create(differ, f"partitions {count}", count, 1)
    for replicas in (0, -1, -2, 2, 9, 32767, -32768):
        ask_to_create(differ, f"replicas {replicas}", 1, replicas)
    ask_to_create(differ, "default both", -1, -1)
    for version in range(2, 8):
        body = {"topics": [new_topic(f"many-{version}", 100001)], "validate_only": True, "timeout_ms": 20000}
        differ.ask("create_topics", body, version, note="many partitions, validated")


@scenario
def create_topics_with_assignments(differ: Differ) -> None:
    cases: dict[str, list[tuple[int, list[int]]]] = {
        "one": [(0, [1])],
        "unknown broker": [(0, [9])],
        "negative broker": [(0, [-1])],
        "duplicate broker": [(0, [1, 1])],
        "no brokers": [(0, [])],
        "gap": [(1, [1])],
        "gap 0 2": [(0, [1]), (2, [1])],
        "negative partition": [(-1, [1])],
        "same partition twice": [(0, [1]), (0, [1])],
        "sizes differ": [(0, [1]), (1, [1, 9])],
        "two": [(0, [1]), (1, [1])],
        "out of order": [(1, [1]), (0, [1])],
    }
    for note, placed in cases.items():
        assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in placed]
        ask_to_create(differ, f"assign {note}", -1, -1, assignments=assignments)
    one = [{"partition_index": 0, "broker_ids": [1]}]
    ask_to_create(differ, "assign and partitions", 1, -1, assignments=one)
    ask_to_create(differ, "assign and replicas", -1, 1, assignments=one)


CONFIGS: dict[str, list[tuple[str, str | None]]] = {
    "unknown config": [("no.such.config", "1")],
    "empty config name": [("", "1")],
    "null value": [("retention.ms", None)],
    "empty value": [("retention.ms", "")],
    "null cleanup": [("cleanup.policy", None)],
    "bad retention": [("retention.ms", "abc")],
    "negative retention": [("retention.ms", "-2")],
    "duplicate config": [("retention.ms", "1"), ("retention.ms", "2")],
    "ok config": [("retention.ms", "1000"), ("cleanup.policy", "compact,delete")],
    "spaces": [("retention.ms", " 1000 ")],
    "cleanup spaces": [("cleanup.policy", "compact, delete")],
    "cleanup empty": [("cleanup.policy", "")],
    "cleanup twice": [("cleanup.policy", "delete,delete")],
    "cleanup bad": [("cleanup.policy", "compress")],
    "cleanup case": [("cleanup.policy", "Compact")],
    "min isr 0": [("min.insync.replicas", "0")],
    "min isr 5": [("min.insync.replicas", "5")],
    "remote": [("remote.storage.enable", "true")],
    "local retention": [("local.retention.ms", "10"), ("retention.ms", "5")],
    "lag": [("min.compaction.lag.ms", "100"), ("max.compaction.lag.ms", "50")],
    "segment small": [("segment.bytes", "10")],
    "max message 0": [("max.message.bytes", "0")],
    "message format": [("message.format.version", "3.0")],
    "downconversion": [("message.downconversion.enable", "true")],
    "timestamp diff": [("message.timestamp.difference.max.ms", "1")],
    "throttle": [("leader.replication.throttled.replicas", "0:1,1:1")],
    "throttle star": [("leader.replication.throttled.replicas", "*")],
    "throttle bad": [("leader.replication.throttled.replicas", "x")],
    "compression": [("compression.type", "zstd"), ("compression.zstd.level", "3")],
    "compression bad": [("compression.type", "bzip")],
    "gzip level bad": [("compression.gzip.level", "77")],
    "bool case": [("unclean.leader.election.enable", "TRUE")],
    "bool yes": [("unclean.leader.election.enable", "yes")],
    "long overflow": [("retention.ms", "99999999999999999999")],
    "int overflow": [("segment.bytes", "3000000000")],
    "float": [("min.cleanable.dirty.ratio", "0.5")],
    "float high": [("min.cleanable.dirty.ratio", "1.5")],
    "float nan": [("min.cleanable.dirty.ratio", "NaN")],
    "hex": [("retention.ms", "0x10")],
    "plus": [("retention.ms", "+10")],
    "underscore": [("retention.ms", "1_000")],
}


@scenario
def create_topics_with_settings(differ: Differ) -> None:
    for note, settings in CONFIGS.items():
        ask_to_create(differ, note, 1, 1, configs=[{"name": name, "value": value} for name, value in settings])


@scenario
def create_topics_of_the_same_name(differ: Differ) -> None:
    differ.each_version("create_topics", lambda v: {"topics": [new_topic(f"dup{v}")] * 2}, "twice in the request")
    both = [new_topic("dup.a"), new_topic("dup.a"), new_topic("dup.b")]
    differ.each_version("create_topics", lambda v: {"topics": _renamed(both, v)}, "twice, and another")
    differ.each_version("create_topics", {"topics": []}, "no topics")
    for version in range(2, 8):
        for note, names, validate in (
            ("first", ["coll.{}"], False),
            ("exists", ["coll.{}"], False),
            ("exists, validated", ["coll.{}"], True),
            ("collides", ["coll_{}"], False),
            ("collides within the request", ["cola.{}", "cola_{}"], False),
        ):
            topics = [new_topic(name.format(version)) for name in names]
            body = {"topics": topics, "validate_only": validate, "timeout_ms": 20000}
            differ.ask("create_topics", body, version, note=note)
        topics = [new_topic(f"good{version}", 2), new_topic("ba d")]
        differ.ask("create_topics", {"topics": topics, "timeout_ms": 20000}, version, note="good and bad together")
    differ.ask("metadata", {"topics": None}, 12, note="then", eventually=True)


def _renamed(topics: list[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    return [{**topic, "name": f"{topic['name']}{version}"} for topic in topics]


@scenario
def create_topics_without_time(differ: Differ) -> None:
    for version in range(2, 8):
        for timeout in (0, -1):
            body = {"topics": [new_topic(f"no-time{timeout}-{version}")], "timeout_ms": timeout}
            differ.ask("create_topics", body, version, note=f"timeout {timeout}")
    differ.ask("metadata", {"topics": None}, 12, note="then", eventually=True)


# DeleteTopics


@scenario
def delete_topics_by_name(differ: Differ) -> None:
    for version in range(1, 6):
        differ.create(f"del{version}")
        differ.create(f"del.twice{version}")
        for note, names in (
            ("by name", [f"del{version}"]),
            ("unknown name", [f"del{version}"]),
            ("none", []),
            ("name twice", [f"del.twice{version}"] * 2),
            ("odd names", ["", "sp ace", "__cluster_metadata"]),
        ):
            differ.ask("delete_topics", {"topic_names": names, "timeout_ms": 10000}, version, note=note)


@scenario
def delete_topics_by_id(differ: Differ) -> None:
    a, b = differ.create("del.a"), differ.create("del.b")
    differ.create("del.c")
    cases: dict[str, list[tuple[str | None, Both | bytes]]] = {
        "both": [("del.a", a)],
        "neither": [(None, ZERO_UUID)],
        "unknown id": [(None, UNKNOWN_ID)],
        "id twice": [(None, a), (None, a)],
        "same topic by id and by name": [(None, b), ("del.b", ZERO_UUID)],
        "name twice": [("del.c", ZERO_UUID), ("del.c", ZERO_UUID)],
        "one unknown": [("del.c", ZERO_UUID), ("no.such", ZERO_UUID)],
        "by id": [(None, b)],
        "by id again": [(None, b)],
        "empty name": [("", ZERO_UUID)],
    }
    for note, topics in cases.items():
        body = {"topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics], "timeout_ms": 10000}
        differ.ask("delete_topics", body, 6, note=note)


@scenario
def delete_topics_without_time(differ: Differ) -> None:
    for version in range(1, 7):
        name = f"del.time{version}"
        differ.create(name)
        topics = [{"name": name, "topic_id": ZERO_UUID}]
        differ.ask(
            "delete_topics", {"topics": topics, "topic_names": [name], "timeout_ms": 0}, version, note="timeout 0"
        )
    differ.ask("metadata", {"topics": None}, 12, note="then", eventually=True)


# CreatePartitions


@scenario
def create_partitions(differ: Differ) -> None:
    differ.create("cp", 2)
    whole: list[tuple[str, list[dict[str, Any]]]] = [
        *((f"count {count}", [{"name": "cp", "count": count, "assignments": None}]) for count in (0, -1, 1, 2)),
        ("unknown", [{"name": "no.such", "count": 3, "assignments": None}]),
        ("empty name", [{"name": "", "count": 3, "assignments": None}]),
        ("duplicate", [{"name": "cp", "count": 30, "assignments": None}] * 2),
        ("none", []),
    ]
    assigned: dict[str, list[list[int]]] = {
        "unknown broker": [[9]],
        "empty": [[]],
        "too many": [[1], [1]],
        "duplicate broker": [[1, 1]],
        "negative": [[-1]],
        "none": [],
    }
    for validate in (True, False):
        for version in range(4):
            count = 3 if validate else 3 + version
            cases = list(whole)
            if validate:
                cases.append(("count 100000", [{"name": "cp", "count": 100000, "assignments": None}]))
            for note, brokers in assigned.items():
                assignments = [{"broker_ids": each} for each in brokers]
                cases.append((f"assign {note}", [{"name": "cp", "count": count, "assignments": assignments}]))
            for note, topics in cases:
                body = {"topics": topics, "timeout_ms": 10000, "validate_only": validate}
                differ.ask("create_partitions", body, version, note=f"{note} validate {validate}")


@scenario
def create_partitions_that_grow(differ: Differ) -> None:
    for version in range(4):
        name = f"grow{version}"
        differ.create(name, 1)
        by_hand = [{"broker_ids": [1]}]
        for note, count, assignments, timeout in (
            ("grow", 3, None, 10000),
            ("grow by hand", 4, by_hand, 10000),
            ("timeout 0", 9, None, 0),
        ):
            topics = [{"name": name, "count": count, "assignments": assignments}]
            differ.ask("create_partitions", {"topics": topics, "timeout_ms": timeout}, version, note=note)
    body: dict[str, Any] = {"topics": named(*(f"grow{version}" for version in range(4)))}
    differ.ask("metadata", body, 12, note="then", eventually=True)
    internal = [{"name": "__consumer_offsets", "count": 20, "assignments": None}]
    body = {"topics": internal, "timeout_ms": 10000, "validate_only": True}
    differ.ask("create_partitions", body, 3, note="internal")


# DescribeTopicPartitions

ASKED = (
    *(("tp.a",), ("tp.c",), ("tp.c", "tp.b", "tp.a"), ("tp.a", "tp.a"), ("no.such",), ("", "sp ace")),
    *(("__consumer_offsets",), ("tp.a", "no.such", "tp.c")),
)
CURSORS = (
    *(("tp.a", 0), ("tp.a", 2), ("tp.a", 3), ("tp.a", 99), ("tp.a", -1), ("tp.b", 1), ("tp.bb", 0), ("zzz", 0)),
    *(("", 0), ("no.such", 1)),
)


@scenario
def topic_partitions(differ: Differ) -> None:
    _make_pages(differ)
    for names in ASKED:
        for limit in (2000, 1, 2, 3, 4, 0, -1, MAX_INT):
            body = {"topics": named(*names), "response_partition_limit": limit, "cursor": None}
            differ.ask("describe_topic_partitions", body, 0, note=f"{','.join(names)} limit {limit}")


@scenario
def topic_partitions_from_a_cursor(differ: Differ) -> None:
    _make_pages(differ)
    for names in ASKED:
        for limit in (2000, 2):
            for name, index in CURSORS:
                cursor = {"topic_name": name, "partition_index": index}
                body = {"topics": named(*names), "response_partition_limit": limit, "cursor": cursor}
                note = f"{','.join(names)} limit {limit} cursor {name}-{index}"
                differ.ask("describe_topic_partitions", body, 0, note=note)


def _make_pages(differ: Differ) -> None:
    for name, partitions in (("tp.a", 3), ("tp.b", 2), ("tp.c", 1)):
        differ.create(name, partitions)
