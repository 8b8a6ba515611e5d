"""Real nodes: a quorum of them elects, agrees, and survives kills, pauses, restarts and cuts.

Each test has its own cluster, because voters are killed, cut off and moved.
"""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.add_raft_voter import AddRaftVoterRequest
from kraftpy.protocol.messages.add_raft_voter import Listener as AddedListener
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from kraftpy.testing.asking import ask
from kraftpy.testing.nodes import Cluster

BOUND_SECONDS = 30.0


def until(condition: Callable[[], bool]) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + BOUND_SECONDS
        time.sleep(0.02)
    return time.monotonic() - began


def address(cluster: Cluster, node: int) -> tuple[str, int]:
    host, _, port = cluster.address(node).rpartition(":")
    return host, int(port)


def create(cluster: Cluster, node: int, name: str, replicas: int = 2) -> int:
    """Create a topic by asking one node, as a client that tries again would; the error of the last try."""
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=replicas, assignments=[], configs=[])
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        error = ErrorCode.of(
            ask(address(cluster, node), ApiKey.CREATE_TOPICS, 7, request, timeout=BOUND_SECONDS).topics[0].error_code
        )
        if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) or time.monotonic() > deadline:
            return error
        time.sleep(0.05)


def topics(cluster: Cluster, node: int) -> set[str]:
    answer = ask(address(cluster, node), ApiKey.METADATA, 9, MetadataRequest(topics=None), timeout=BOUND_SECONDS)
    return {topic.name for topic in answer.topics if topic.name}


def live(cluster: Cluster, node: int) -> set[int]:
    answer = ask(address(cluster, node), ApiKey.METADATA, 9, MetadataRequest(topics=[]), timeout=BOUND_SECONDS)
    return {broker.node_id for broker in answer.brokers}


def leader(cluster: Cluster) -> int:
    until(lambda: cluster.quorum_leader() is not None)
    found = cluster.quorum_leader()
    assert found is not None
    return found


def test_three_nodes_go_on_through_what_happens_to_one() -> None:
    with Cluster(brokers=3) as cluster:
        made = set()
        for node in cluster.nodes:
            made.add(f"by-{node}")
            assert create(cluster, node, f"by-{node}", replicas=3) == ErrorCode.NONE
        for node in cluster.nodes:
            until(lambda node=node: topics(cluster, node) == made)  # type: ignore[misc]

        # The leader is killed; the others continue, and it comes back with everything.
        killed = leader(cluster)
        others = [node for node in cluster.nodes if node != killed]
        cluster.kill(killed)
        made.add("after-kill")
        assert create(cluster, others[0], "after-kill") == ErrorCode.NONE
        until(lambda: live(cluster, others[1]) == set(others))
        cluster.start(killed)
        until(lambda: topics(cluster, killed) == made)

        # A follower is killed.
        follower = next(node for node in cluster.nodes if node != leader(cluster))
        cluster.kill(follower)
        until(lambda: follower not in live(cluster, leader(cluster)))
        cluster.start(follower)

        # The leader is paused: another one takes over, and the paused one finds out.
        paused = leader(cluster)
        cluster.pause(paused)
        asked = next(node for node in cluster.nodes if node != paused)
        made.add("while-paused")
        assert create(cluster, asked, "while-paused") == ErrorCode.NONE
        cluster.resume(paused)
        until(lambda: topics(cluster, paused) == made)
        until(lambda: live(cluster, paused) == set(cluster.nodes))

        # One after the other is restarted.
        for node in cluster.nodes:
            cluster.stop(node)
            asked = next(other for other in cluster.nodes if other != node)
            made.add(f"without-{node}")
            assert create(cluster, asked, f"without-{node}") == ErrorCode.NONE
            cluster.start(node)
        for node in cluster.nodes:
            until(lambda node=node: topics(cluster, node) == made)  # type: ignore[misc]


def test_a_leader_that_is_cut_off_is_replaced_and_comes_back() -> None:
    with Cluster(brokers=3) as cluster:
        cut = leader(cluster)
        others = [node for node in cluster.nodes if node != cut]
        cluster.partition([cut], others)
        until(lambda: cut not in live(cluster, others[0]))
        assert create(cluster, others[0], "beyond") == ErrorCode.NONE
        assert "beyond" not in topics(cluster, cut)
        cluster.heal()
        until(lambda: "beyond" in topics(cluster, cut))
        until(lambda: live(cluster, cut) == set(cluster.nodes))


def test_controllers_apart_from_brokers(tmp_path: Path) -> None:
    with Cluster(brokers=2, controllers=3, directory=tmp_path / "cluster") as cluster:
        for node in cluster.brokers:
            assert create(cluster, node, f"by-{node}") == ErrorCode.NONE
            assert live(cluster, node) == set(cluster.brokers), "controllers serve no clients"
        active = leader(cluster)
        assert active in cluster.controllers
        cluster.kill(active)
        assert create(cluster, 1, "after-kill") == ErrorCode.NONE
        cluster.start(active)
        # A broker without any controller: it still knows what it knew.
        cluster.stop(2)
        cluster.start(2)
        until(lambda: topics(cluster, 2) == {"by-1", "by-2", "after-kill"})


def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with Cluster(brokers=3, directory=tmp_path / "cluster") as cluster:
        cluster.stop(3)
        properties = cluster.node_directory(3) / "data" / "meta.properties"
        text = properties.read_text()
        lines = [line for line in text.splitlines() if not line.startswith("#")]  # nor the checksum: it would not match
        kept = dict(line.split("=", 1) for line in lines)
        properties.write_text("\n".join(lines).replace(kept["cluster.id"], "AnotherClusterAltogether") + "\n")
        cluster.start(3, wait=False)
        until(lambda: "belongs to cluster" in cluster.logs(3))
        until(lambda: not cluster.is_running(3))
        cluster.kill(3)  # it has ended
        properties.write_text(text)
        cluster.start(3)


def test_new_topics_take_the_controllers_defaults() -> None:
    """Topics made on their own as well, unless their broker was given defaults: as in Kafka."""
    controllers = {"num.partitions": "3", "default.replication.factor": "2"}
    given = {3: controllers, 2: {"num.partitions": "5", "default.replication.factor": "1"}}
    with Cluster(brokers=2, controllers=1, node_settings=given) as cluster:

        def shape(name: str) -> tuple[int, int]:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            (topic,) = ask(address(cluster, 1), ApiKey.METADATA, 9, asked, timeout=BOUND_SECONDS).topics
            return len(topic.partitions), len(topic.partitions[0].replica_nodes) if topic.partitions else 0

        for node, by_itself in ((1, (3, 2)), (2, (5, 1))):
            topic = CreatableTopic(
                name=f"asked-{node}", num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=15_000)
            (created,) = ask(address(cluster, node), ApiKey.CREATE_TOPICS, 7, request, timeout=BOUND_SECONDS).topics
            assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 3, 2)
            name = f"used-{node}"
            used = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
            ask(address(cluster, node), ApiKey.METADATA, 9, used, timeout=BOUND_SECONDS)
            until(lambda name=name, by_itself=by_itself: shape(name) == by_itself)  # type: ignore[misc]


def test_voters_are_added_and_removed_by_their_directory_ids(tmp_path: Path) -> None:
    """As Kafka's `kafka-metadata-quorum` does it, with the id of the directory that the node has now."""
    with Cluster(brokers=3, directory=tmp_path / "cluster") as cluster:

        def described(node: int) -> tuple[dict[int, bytes], dict[int, bytes], dict[int, Any]]:
            request = DescribeQuorumRequest(
                topics=[QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])]
            )
            found = ask(address(cluster, node), ApiKey.DESCRIBE_QUORUM, 2, request, timeout=BOUND_SECONDS)
            (state,) = found.topics[0].partitions
            voters, observers = (
                {each.replica_id: each.replica_directory_id for each in replicas}
                for replicas in (state.current_voters, state.observers)
            )
            return voters, observers, {each.node_id: each.listeners for each in found.nodes}

        def directory_id(node: int) -> bytes:
            text = (cluster.node_directory(node) / "data" / "meta.properties").read_text()
            (written,) = re.findall(r"^directory\.id=(\S+)$", text, re.MULTILINE)
            return urlsafe_b64decode(written + "==")

        def change(api_key: ApiKey, request: Any, asked: int = 1) -> tuple[ErrorCode, str | None]:
            found = ask(address(cluster, asked), api_key, 0, request, timeout=BOUND_SECONDS)
            return ErrorCode.of(found.error_code), found.error_message

        ids = {node: directory_id(node) for node in cluster.nodes}
        for node in cluster.nodes:
            until(lambda node=node: described(node)[0] == ids)  # type: ignore[misc]
        leading = leader(cluster)
        going = next(node for node in cluster.nodes if node != leading)
        listeners = described(leading)[2][going]

        error, message = change(
            ApiKey.REMOVE_RAFT_VOTER, RemoveRaftVoterRequest(voter_id=going, voter_directory_id=ids[leading])
        )
        assert error == ErrorCode.VOTER_NOT_FOUND
        assert message is not None
        assert message.startswith(f"Cannot remove voter ReplicaKey(id={going}, directoryId=")
        gone = RemoveRaftVoterRequest(voter_id=going, voter_directory_id=ids[going])
        assert change(ApiKey.REMOVE_RAFT_VOTER, gone)[0] == ErrorCode.NONE
        until(lambda: described(leading)[:2] == (without(ids, going), {going: ids[going]}))

        def added(directory: bytes) -> AddRaftVoterRequest:
            return AddRaftVoterRequest(
                timeout_ms=30_000,
                voter_id=going,
                voter_directory_id=directory,
                listeners=[AddedListener(name=each.name, host=each.host, port=each.port) for each in listeners],
            )

        assert change(ApiKey.ADD_RAFT_VOTER, added(ids[leading]))[0] == ErrorCode.REQUEST_TIMED_OUT
        assert change(ApiKey.ADD_RAFT_VOTER, added(ids[going]))[0] == ErrorCode.NONE
        assert change(ApiKey.ADD_RAFT_VOTER, added(ids[going]))[0] == ErrorCode.DUPLICATE_VOTER
        until(lambda: described(going)[0] == ids)

        for is_asked_itself in (True, False):  # a leader hands over to the one that removes it
            going = leader(cluster)
            staying = next(node for node in cluster.nodes if node != going)
            listeners = described(going)[2][going]
            gone = RemoveRaftVoterRequest(voter_id=going, voter_directory_id=ids[going])
            error, message = change(ApiKey.REMOVE_RAFT_VOTER, gone, going if is_asked_itself else staying)
            assert error == ErrorCode.NONE, message
            until(lambda going=going, staying=staying: described(staying)[0] == without(ids, going))  # type: ignore[misc]
            until(lambda going=going: change(ApiKey.ADD_RAFT_VOTER, added(ids[going]))[0] == ErrorCode.NONE)  # type: ignore[misc]
            until(lambda staying=staying: described(staying)[0] == ids)  # type: ignore[misc]


def without(ids: dict[int, bytes], node: int) -> dict[int, bytes]:
    return {each: directory_id for each, directory_id in ids.items() if each != node}
