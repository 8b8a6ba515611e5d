"""Questions to three nodes: to leaders, coordinators and others, and to the two that remain when one dies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ask_classic_groups import joining
from ask_transactions import STRANGER, initializing
from both import Both, together
from differ import Differ
from good_and_bad_batches import produced, rows
from scenario_table import of_three_nodes
from side import Side
from surroundings import coordinator

from kraftpy.protocol.record_batch import encode_batch
from kraftpy.protocol.schema import ZERO_UUID

NODES = (1, 2, 3)
NOT_ENOUGH_REPLICAS = 19
PLACES = [[1, 2], [2, 3], [3, 1], [1, 3], [3, 2]]
"""The replicas of each partition. Kafka wants as many of each."""
MEGABYTE = 1 << 20
WAIT_SECONDS = 60.0


def placed(
    differ: Differ, name: str, replicas: Sequence[list[int]] = PLACES, configs: dict[str, str] | None = None
) -> Both:
    """Create a topic with an assignment of replicas."""
    assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in enumerate(replicas)]
    return differ.create(name, -1, configs, assignments=assignments)


def fetching(name: str, topic_id: Both | bytes, *indexes: int, **more: Any) -> dict[str, Any]:
    parts = [{"partition": each, "fetch_offset": 0, "partition_max_bytes": MEGABYTE, **more} for each in indexes]
    topics = [{"topic": name, "topic_id": topic_id, "partitions": parts}]
    return {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": MEGABYTE, "topics": topics}


def _everyone_knows(name: str, side: Side) -> bool:
    """Return whether every running node knows a leader for each partition of a topic."""
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    for node in side.cluster.running_nodes():
        topic = side.quiet("metadata", body, 12, node).topics[0]
        if topic.error_code or not all(partition.leader_id > 0 for partition in topic.partitions):
            return False
    return True


def _is_replicated(name: str, count: int, side: Side) -> bool:
    """Return whether every replica of a topic is in sync, and knows that the high watermark is `count`."""
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    for partition in side.quiet("metadata", body, 12).topics[0].partitions:
        if len(partition.isr_nodes) < len(partition.replica_nodes):
            return False
        asked = fetching(name, ZERO_UUID, partition.partition_index)
        for node in partition.replica_nodes:
            fetched = side.quiet("fetch", asked, 12, node)
            if fetched.responses[0].partitions[0].high_watermark != count:
                return False
    return True


# Leaders and followers


@of_three_nodes
def produce_to_each_node(differ: Differ) -> None:
    topic_id = placed(differ, "th")
    differ.wait("every node knows the topic", lambda side: _everyone_knows("th", side))
    batch = encode_batch(rows(differ.now(), 2))
    for node in NODES:
        for index in range(len(PLACES)):
            body = produced("th", batch, index=index, topic_id=topic_id)
            note = f"to {node} partition {index}"
            differ.each_version("produce", body, note, (3, 7, 9, 10, 12, 13), node=node)


def _with_records(differ: Differ, name: str) -> Both:
    topic_id = placed(differ, name)
    differ.wait("every node knows the topic", lambda side: _everyone_knows(name, side))
    batch = encode_batch(rows(differ.now(), 2))
    for index, replicas in enumerate(PLACES):
        body = produced(name, batch, index=index, topic_id=topic_id)
        differ.ask("produce", body, 13, node=replicas[0], compare=False)
    differ.wait("the records are replicated", lambda side: _is_replicated(name, 2, side))
    return topic_id


@of_three_nodes
def fetch_from_each_node(differ: Differ) -> None:
    topic_id = _with_records(differ, "tf")
    for node in NODES:
        for index in range(len(PLACES)):
            note = f"from {node} partition {index}"
            differ.each_version("fetch", fetching("tf", topic_id, index), note, node=node)
            for epoch in (0, 7):
                body = fetching("tf", topic_id, index, current_leader_epoch=epoch)
                differ.each_version("fetch", body, f"{note} epoch {epoch}", (9, 12, 16, 18), node=node)
            body = {**fetching("tf", topic_id, index), "rack_id": "x"}
            differ.each_version("fetch", body, f"{note} rack", (11, 18), node=node)


@of_three_nodes
def offsets_of_each_node(differ: Differ) -> None:
    _with_records(differ, "to")
    for node in NODES:
        for index in range(len(PLACES)):
            note = f"{node} partition {index}"
            listed = [{"name": "to", "partitions": [{"partition_index": index, "timestamp": -1}]}]
            differ.each_version("list_offsets", {"topics": listed}, note, node=node)
            asked = {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
            body: dict[str, Any] = {"replica_id": -1, "topics": [{"topic": "to", "partitions": [asked]}]}
            differ.each_version("offset_for_leader_epoch", body, note, node=node)
            body = {"topics": [{"name": "to", "partition_indexes": [index]}]}
            differ.ask("describe_producers", body, 0, note=note, node=node)
            deleted = [{"name": "to", "partitions": [{"partition_index": index, "offset": 1}]}]
            differ.each_version("delete_records", {"topics": deleted, "timeout_ms": 3000}, note, node=node)


@of_three_nodes
def descriptions_by_each_node(differ: Differ) -> None:
    _with_records(differ, "td")
    for node in NODES:
        note = f"from {node}"
        body: dict[str, Any] = {"topics": [{"name": "td"}], "allow_auto_topic_creation": False}
        differ.each_version("metadata", body, note, range(4, 14), node=node)
        body = {"topics": [{"topic": "td", "partitions": list(range(len(PLACES)))}]}
        differ.each_version("describe_log_dirs", body, note, node=node)
        body = {"topics": [{"name": "td"}], "response_partition_limit": 100, "cursor": None}
        differ.ask("describe_topic_partitions", body, 0, note=note, node=node)
        differ.each_version("describe_cluster", {"endpoint_type": 1}, note, node=node)
        differ.ask("list_groups", {}, 5, note=note, node=node)
        for name in ("", "1", "2", "3", "4"):
            keys = ["node.id", "log.retention.hours"]
            asked = {"resource_type": 4, "resource_name": name, "configuration_keys": keys}
            differ.ask("describe_configs", {"resources": [asked]}, 4, note=f"broker {name!r} {note}", node=node)
            config = {"name": "leader.replication.throttled.rate", "config_operation": 0, "value": "1000000"}
            resource = {"resource_type": 4, "resource_name": name, "configs": [config]}
            body = {"resources": [resource], "validate_only": True}
            differ.ask("incremental_alter_configs", body, 1, note=f"broker {name!r} {note}", node=node)


# Topics


@of_three_nodes
def create_topics_at_each_node(differ: Differ) -> None:
    for node in NODES:
        for replicas in (-1, 1, 2, 3, 4, 0):
            topic = {"name": f"tt{node}.{replicas}", "num_partitions": 2, "replication_factor": replicas}
            body = {"topics": [topic], "timeout_ms": 10000}
            differ.ask("create_topics", body, 7, note=f"{replicas} replicas at {node}", node=node)
        for number, places in enumerate(
            ([[1, 2], [2, 3]], [[1, 2], [3]], [[1, 4]], [[1, 1]], [[4]], [[1, 2, 3], [3, 2, 1]])
        ):
            assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in enumerate(places)]
            topic = {"name": f"ta{node}.{number}", "num_partitions": -1, "replication_factor": -1}
            body = {"topics": [{**topic, "assignments": assignments}], "timeout_ms": 10000}
            differ.ask("create_topics", body, 7, note=f"assignment {places} at {node}", node=node)


def _moving(name: str, *moves: tuple[int, list[int] | None], **more: Any) -> dict[str, Any]:
    partitions = [{"partition_index": index, "replicas": replicas} for index, replicas in moves]
    return {"timeout_ms": 5000, "topics": [{"name": name, "partitions": partitions}], **more}


@of_three_nodes
def reassignments_that_are_refused(differ: Differ) -> None:
    placed(differ, "tr")
    for allow in (True, False):
        for index in range(len(PLACES)):
            for replicas in ([1], [3, 2, 1], [4, 1], [1, 1], []):
                if replicas in ([4, 1], [1, 1], []) or not allow:
                    body = _moving("tr", (index, replicas), allow_replication_factor_change=allow)
                    versions = None if allow else (1,)  # version 0 cannot forbid it, and would begin to move
                    differ.each_version(
                        "alter_partition_reassignments", body, f"{index} to {replicas} allow {allow}", versions
                    )


@of_three_nodes
def reassignments_that_move(differ: Differ) -> None:
    placed(differ, "tm")
    body = _moving("tm", (0, [3, 2]), (3, [2, 3, 1]), (4, [1]))
    differ.ask("alter_partition_reassignments", body, 1, note="moves")
    nothing_moves = lambda side: not side.quiet("list_partition_reassignments", {"topics": None}, 0).topics  # noqa: E731
    differ.wait("nothing moves any more", nothing_moves, WAIT_SECONDS)
    differ.wait("all replicas are in sync", lambda side: _is_replicated("tm", 0, side), WAIT_SECONDS)
    differ.ask("metadata", {"topics": [{"name": "tm"}]}, 12, note="after moves", eventually=True)
    asked = [{"topic": "tm", "partitions": [0, 1, 2, 3, 4]}]
    body = {"election_type": 0, "topic_partitions": asked, "timeout_ms": 5000}
    differ.each_version("elect_leaders", body, "preferred")
    differ.ask("metadata", {"topics": [{"name": "tm"}]}, 12, note="after preferred", eventually=True)
    for note, count, brokers in (("by hand", 7, [[1, 2], [2, 1]]), ("by hand, fewer replicas", 8, [[1]])):
        topic = {"name": "tm", "count": count, "assignments": [{"broker_ids": each} for each in brokers]}
        differ.ask("create_partitions", {"topics": [topic], "timeout_ms": 5000}, 3, note=note)
    for name, value in (
        *(("min.insync.replicas", "4"), ("min.insync.replicas", "3"), ("unclean.leader.election.enable", "true")),
    ):
        config = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": "tm", "configs": [config]}
        differ.ask("incremental_alter_configs", {"resources": [resource]}, 1, note=f"{name}={value}")


# Coordinators


def _nodes_of(differ: Differ, key_type: int, name: str) -> tuple[tuple[str, Both], ...]:
    """Return a node that does not coordinate something, and the one that does."""
    right = differ.own(lambda side: coordinator(side, key_type, name))
    return ("wrong", together(lambda node: node % 3 + 1, right)), ("right", right)


@of_three_nodes
def classic_groups_at_each_node(differ: Differ) -> None:
    group = "tgroup"
    member = {"group_id": group, "generation_id": 1, "member_id": "x"}
    for note, node in _nodes_of(differ, 0, group):
        for api, body in {
            "join_group": joining(group, "nobody"),
            "heartbeat": member,
            "sync_group": {**member, "protocol_type": "consumer", "protocol_name": "range"},
            "leave_group": {"group_id": group, "member_id": "x", "members": [{"member_id": "x"}]},
            "describe_groups": {"groups": [group]},
            "delete_groups": {"groups_names": [group]},
        }.items():
            differ.each_version(api, body, note, node=node)


@of_three_nodes
def offsets_of_groups_at_each_node(differ: Differ) -> None:
    group = "tgroup"
    differ.create("tg", 1)
    committed = [{"name": "tg", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    asked = [{"name": "tg", "partition_indexes": [0]}]
    for note, node in _nodes_of(differ, 0, group):
        body: dict[str, Any] = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        differ.each_version("offset_commit", {**body, "topics": committed}, note, range(2, 10), node=node)
        body = {"group_id": group, "topics": asked}
        differ.each_version("offset_fetch", body, note, range(1, 8), node=node)
        differ.each_version("offset_fetch", {"groups": [body]}, note, (8, 9), node=node)
        body = {"group_id": group, "topics": [{"name": "tg", "partitions": [{"partition_index": 0}]}]}
        differ.ask("offset_delete", body, 0, note=note, node=node)
        if note == "wrong":
            body = {
                "transactional_id": "ttxn",
                "group_id": group,
                "producer_id": STRANGER,
                "producer_epoch": 0,
                "generation_id": -1,
                "member_id": "",
                "topics": committed,
            }
            differ.each_version("txn_offset_commit", body, note, node=node)


@of_three_nodes
def other_groups_at_each_node(differ: Differ) -> None:
    group = "tgroup"
    for note, node in _nodes_of(differ, 0, group):
        for api in ("consumer_group_describe", "share_group_describe", "streams_group_describe"):
            differ.each_version(api, {"group_ids": [group]}, note, node=node)
        for api in ("consumer_group_heartbeat", "share_group_heartbeat"):
            body = {"group_id": group, "member_id": "m", "member_epoch": 5}
            differ.each_version(api, body, note, node=node)
        body = {"groups": [{"group_id": group, "topics": None}]}
        differ.each_version("describe_share_group_offsets", body, note, node=node)


@of_three_nodes
def transactions_at_each_node(differ: Differ) -> None:
    name = "ttxn"
    differ.create("tg", 1)
    topics = [{"name": "tg", "partitions": [0]}]
    who = {"transactional_id": name, "producer_id": STRANGER, "producer_epoch": 0}
    for note, node in _nodes_of(differ, 1, name):
        differ.each_version("init_producer_id", initializing(name, 10000), note, node=node)
        differ.each_version("end_txn", {**who, "committed": True}, note, node=node)
        body: dict[str, Any] = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": STRANGER,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        }
        differ.each_version("add_partitions_to_txn", body, note, range(4), node=node)
        body = {"transactions": [{**who, "verify_only": True, "topics": topics}]}
        differ.each_version("add_partitions_to_txn", body, note, (4, 5), node=node)
        differ.each_version("add_offsets_to_txn", {**who, "group_id": "tgroup"}, note, node=node)
        differ.ask("describe_transactions", {"transactional_ids": [name]}, 0, note=note, node=node)


# A node dies: the last scenario, for it is not started again


def _is_fenced(side: Side) -> bool:
    """Return whether the others know that node 3 is dead."""
    return all(
        3 not in [broker.broker_id for broker in side.quiet("describe_cluster", {"endpoint_type": 1}, 1, node).brokers]
        for node in (1, 2)
    )


def _is_refused(body: dict[str, Any], side: Side) -> bool:
    """Return whether the leader knows that it has too few replicas: in Kafka, the metadata show it earlier."""
    partition = side.quiet("produce", body, 13).responses[0].partition_responses[0]
    return bool(partition.error_code == NOT_ENOUGH_REPLICAS)


@of_three_nodes
def zz_a_node_dies(differ: Differ) -> None:
    topic_id = placed(differ, "td", configs={"min.insync.replicas": "1"})
    three = placed(differ, "td.all", [[1, 2, 3]], {"min.insync.replicas": "3"})
    probe = placed(differ, "td.probe", [[1, 2, 3]], {"min.insync.replicas": "3"})
    batch = encode_batch(rows(differ.now(), 2))
    for index in range(4):
        body = produced("td", batch, index=index, topic_id=topic_id)
        differ.ask("produce", body, 13, node=PLACES[index][0], compare=False)
    for side in differ.sides:
        side.cluster.kill(3)
    differ.wait("the others know it", _is_fenced, WAIT_SECONDS)
    differ.wait("partitions have other leaders", lambda side: _everyone_knows("td.all", side), WAIT_SECONDS)
    written = produced("td.probe", batch, topic_id=probe)
    differ.wait("the leader knows that it has lost a replica", partial(_is_refused, written), WAIT_SECONDS)
    _topics_without_a_node(differ)
    _records_without_a_node(differ, topic_id, three, batch)
    _creations_without_a_node(differ)
    _reassignments_without_a_node(differ)
    body = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    differ.each_version("describe_quorum", body, "node 3 is dead")
    differ.ask("unregister_broker", {"broker_id": 3}, 0, note="the dead one")
    body = {"topics": [{"name": "td"}], "allow_auto_topic_creation": False}
    differ.ask("metadata", body, 12, note="unregistered", eventually=True)


def _topics_without_a_node(differ: Differ) -> None:
    note = "node 3 is dead"
    topics = [{"name": "td"}, {"name": "td.all"}]
    for version in (1, 5, 7, 9, 12, 13):
        body: dict[str, Any] = {"topics": topics, "allow_auto_topic_creation": False}
        differ.ask("metadata", body, version, note=note, eventually=True)
    body = {"topics": topics, "response_partition_limit": 100, "cursor": None}
    differ.ask("describe_topic_partitions", body, 0, note=note, eventually=True)
    for fenced in (True, False):
        body = {"endpoint_type": 1, "include_fenced_brokers": fenced}
        differ.ask("describe_cluster", body, 2, note=f"{note}, fenced {fenced}")


def _records_without_a_node(differ: Differ, topic_id: Both, three: Both, batch: bytes) -> None:
    note = "node 3 is dead"
    for acks in (-1, 1):
        body = produced("td.all", batch, acks, topic_id=three)
        differ.ask("produce", body, 13, note=f"two of three replicas, acks {acks}")
        for index, node in ((0, 1), (1, 2), (3, 1), (4, 1)):
            body = produced("td", batch, acks, index=index, topic_id=topic_id)
            differ.ask("produce", body, 13, note=f"partition {index} acks {acks}", node=node)
    differ.ask("fetch", fetching("td", topic_id, *range(5)), 18, note=note, eventually=True)
    listed = [{"partition_index": index, "timestamp": -1} for index in range(5)]
    body = {"topics": [{"name": "td", "partitions": listed}]}
    differ.ask("list_offsets", body, 11, note=note, eventually=True)
    asked = [{"topic": "td", "partitions": [0, 1, 2, 3, 4]}]
    for kind, versions in ((0, None), (1, (1, 2))):
        body = {"election_type": kind, "topic_partitions": asked, "timeout_ms": 5000}
        differ.each_version("elect_leaders", body, f"type {kind}, {note}", versions)


def _creations_without_a_node(differ: Differ) -> None:
    for replicas in (3, 2, -1):
        topic = {"name": f"late{replicas}", "num_partitions": 1, "replication_factor": replicas}
        body: dict[str, Any] = {"topics": [topic], "timeout_ms": 10000}
        differ.ask("create_topics", body, 7, note=f"{replicas} replicas, node 3 is dead")
    for name, brokers in (("late.a", [3, 1]), ("late.b", [3])):
        assignments = [{"partition_index": 0, "broker_ids": brokers}]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        body = {"topics": [topic], "timeout_ms": 10000}
        differ.ask("create_topics", body, 7, note=f"assigned to {brokers}, node 3 is dead")
    body = {"topics": [{"name": "late.a"}, {"name": "late.b"}], "allow_auto_topic_creation": False}
    differ.ask("metadata", body, 12, note="assigned to the dead one", eventually=True)


def _reassignments_without_a_node(differ: Differ) -> None:
    differ.ask("alter_partition_reassignments", _moving("td", (3, [1, 3])), 1, note="to the dead one")
    differ.ask("list_partition_reassignments", {"topics": None}, 0, note="to the dead one", eventually=True)
    differ.ask("alter_partition_reassignments", _moving("td", (3, None)), 1, note="given up")
