"""Questions about the cluster: ApiVersions, DescribeCluster, DescribeQuorum, features, voters, directories, moves."""

from __future__ import annotations

from typing import Any

from differ import Differ
from peer_clusters import CLUSTER_ID
from scenario_table import scenario

from kraftpy.protocol.schema import ZERO_UUID

UNKNOWN_ID = b"\x11" * 16


@scenario
def api_versions(differ: Differ) -> None:
    body = {"client_software_name": "differ", "client_software_version": "1.0"}
    differ.each_version("api_versions", body)
    differ.each_version("api_versions", body, "again on the same connection")


@scenario
def names_of_client_software(differ: Differ) -> None:
    for name, version in (
        *(("", ""), ("bad name!", "1"), ("ok", "1 0"), ("-x", "1"), ("x-", "1"), ("ok", ""), ("a" * 300, "1")),
        *(("ünï", "1"), ("ok", "1.0+build"), (".", "."), ("a.b-c", "1.0.0-rc1")),
    ):
        body = {"client_software_name": name, "client_software_version": version}
        for used in (3, 4):
            differ.ask("api_versions", body, used, note=f"{name[:20]!r} {version!r}", client="named")


@scenario
def describe_cluster(differ: Differ) -> None:
    for endpoint in (1, 2, 0, 3, -1):
        for fenced in (False, True):
            for operations in (False, True):
                body = {
                    "endpoint_type": endpoint,
                    "include_fenced_brokers": fenced,
                    "include_cluster_authorized_operations": operations,
                }
                note = f"endpoint {endpoint} fenced {fenced} operations {operations}"
                differ.each_version("describe_cluster", body, note)


@scenario
def describe_quorum(differ: Differ) -> None:
    def asked(*topics: tuple[str, list[int]]) -> dict[str, Any]:
        return {
            "topics": [
                {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
                for name, indexes in topics
            ]
        }

    for note, body in {
        "none": asked(),
        "metadata": asked(("__cluster_metadata", [0])),
        "partition 1": asked(("__cluster_metadata", [1])),
        "no partitions": asked(("__cluster_metadata", [])),
        "another topic": asked(("el", [0])),
        "empty name": asked(("", [0])),
        "partition twice": asked(("__cluster_metadata", [0, 0])),
        "metadata and another": asked(("__cluster_metadata", [0]), ("x", [0])),
    }.items():
        differ.each_version("describe_quorum", body, note)


FEATURES = (
    *("metadata.version", "kraft.version", "group.version", "share.version", "streams.version", "transaction.version"),
    *("eligible.leader.replicas.version", "no.such", ""),
)


def _feature(differ: Differ, name: str) -> None:
    for kind in (0, 1):
        updates = [{"feature": name, "max_version_level": 99, "allow_downgrade": bool(kind)}]
        body = {"feature_updates": updates, "timeout_ms": 5000}
        differ.ask("update_features", body, 0, note=f"{name} 99 downgrade {bool(kind)}")
    for version, levels in ((1, (0, 1, 99)), (2, (-1, 0, 1, 2, 3, 6, 7, 25, 29, 30, 31, 99, 32767))):
        for level in levels:
            for kind in (0, 1, 2, 3, 9):
                updates = [{"feature": name, "max_version_level": level, "upgrade_type": kind}]
                body = {"feature_updates": updates, "validate_only": True, "timeout_ms": 5000}
                differ.ask("update_features", body, version, note=f"{name} {level} type {kind}")


@scenario
def features(differ: Differ) -> None:
    for name in FEATURES:
        _feature(differ, name)
    for version in (0, 1, 2):
        body: dict[str, Any] = {"feature_updates": [], "validate_only": True}
        differ.ask("update_features", body, version, note="none")
        if version:
            updates = [{"feature": "share.version", "max_version_level": 1, "upgrade_type": 1}] * 2
            body = {"feature_updates": updates, "validate_only": True, "timeout_ms": 5000}
            differ.ask("update_features", body, version, note="twice")


@scenario
def brokers_that_are_unknown(differ: Differ) -> None:
    for broker in (9, -1, 0, 2**31 - 1):
        differ.ask("unregister_broker", {"broker_id": broker}, 0, note=str(broker))


@scenario
def voters(differ: Differ) -> None:
    listeners: tuple[list[dict[str, Any]], ...] = (
        [],
        [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}],
        [{"name": "X", "host": "h", "port": 1}],
    )
    for cluster in (None, "", "wrong", CLUSTER_ID):
        for voter in (1, 9, -1):
            for directory in (ZERO_UUID, UNKNOWN_ID):
                body: dict[str, Any] = {"cluster_id": cluster, "voter_id": voter, "voter_directory_id": directory}
                note = f"cluster {cluster} voter {voter} directory {directory[:1].hex()}"
                differ.ask("remove_raft_voter", body, 0, note=note)
                for each in listeners:
                    body = {**body, "listeners": each, "timeout_ms": 2000}
                    name = each[0]["name"] if each else "none"
                    differ.each_version("add_raft_voter", body, f"{note} listener {name}")


# Directories


@scenario
def log_dirs(differ: Differ) -> None:
    differ.create("ld", 2)
    cases: dict[str, list[tuple[str, list[int]]] | None] = {
        "all": None,
        "none": [],
        "one": [("ld", [0])],
        "no partitions": [("ld", [])],
        "partition twice": [("ld", [0, 0, 1])],
        "unknown partitions": [("ld", [7, -1])],
        "unknown topic": [("no.such", [0])],
        "empty name": [("", [0])],
        "topic twice": [("ld", [0]), ("ld", [0])],
    }
    for note, topics in cases.items():
        asked = None if topics is None else [{"topic": name, "partitions": indexes} for name, indexes in topics]
        differ.each_version("describe_log_dirs", {"topics": asked}, note)


@scenario
def moves_between_log_dirs(differ: Differ) -> None:
    differ.create("ldm", 2)
    own = differ.own(lambda side: side.cluster.data_directory(1))
    cases: tuple[list[tuple[str, list[int]]], ...]
    cases = ([], [("ldm", [0])], [("no.such", [0])], [("ldm", [9])], [("ldm", [])])
    for where, path in (("/no/such", "/no/such"), ("nowhere", ""), ("relative", "relative"), ("its own", own)):
        for topics in cases:
            named = [{"name": name, "partitions": indexes} for name, indexes in topics]
            body = {"dirs": [{"path": path, "topics": named}]}
            differ.each_version("alter_replica_log_dirs", body, f"to {where} {topics}")
    differ.each_version("alter_replica_log_dirs", {"dirs": []}, "none")


# Elections and reassignments


@scenario
def elections(differ: Differ) -> None:
    differ.create("el", 2)
    cases: dict[str, list[tuple[str, list[int]]] | None] = {
        "all": None,
        "none": [],
        "one": [("el", [0])],
        "partition twice": [("el", [0, 0, 1])],
        "unknown partitions": [("el", [9, -1])],
        "unknown topic": [("no.such", [0])],
        "no partitions": [("el", [])],
        "empty name": [("", [0])],
        "topic twice": [("el", [0]), ("el", [0])],
    }
    for kind in (0, 1, 2, -1):
        for note, topics in cases.items():
            asked = None if topics is None else [{"topic": name, "partitions": indexes} for name, indexes in topics]
            body = {"election_type": kind, "topic_partitions": asked, "timeout_ms": 5000}
            differ.each_version("elect_leaders", body, f"type {kind}, {note}", None if kind == 0 else (1, 2))


def moved(index: int, replicas: list[int] | None) -> dict[str, Any]:
    return {"partition_index": index, "replicas": replicas}


@scenario
def reassignments(differ: Differ) -> None:
    differ.create("re", 2)
    for allow in (True, False):
        for replicas in (None, [], [1], [1, 1], [9], [-1], [1, 9]):
            for index in (0, 9, -1):
                body = {
                    "allow_replication_factor_change": allow,
                    "timeout_ms": 5000,
                    "topics": [{"name": "re", "partitions": [moved(index, replicas)]}],
                }
                differ.each_version("alter_partition_reassignments", body, f"{index} to {replicas} allow {allow}")


@scenario
def reassignments_of_odd_topics(differ: Differ) -> None:
    differ.create("ro", 2)
    one = moved(0, [1])
    cases: dict[str, list[tuple[str, list[dict[str, Any]]]]] = {
        "none": [],
        "unknown topic": [("no.such", [one])],
        "empty name": [("", [one])],
        "no partitions": [("ro", [])],
        "partition twice": [("ro", [one, one])],
        "topic twice": [("ro", [one]), ("ro", [one])],
        "good and bad": [("ro", [one, moved(1, [9])])],
    }
    for note, topics in cases.items():
        named = [{"name": name, "partitions": partitions} for name, partitions in topics]
        differ.each_version("alter_partition_reassignments", {"timeout_ms": 5000, "topics": named}, note)
    for note, asked in {
        "all": None,
        "none": [],
        "known and unknown partition": [{"name": "ro", "partition_indexes": [0, 9]}],
        "unknown topic": [{"name": "no.such", "partition_indexes": [0]}],
        "empty name": [{"name": "", "partition_indexes": []}],
    }.items():
        differ.each_version("list_partition_reassignments", {"topics": asked}, note)
