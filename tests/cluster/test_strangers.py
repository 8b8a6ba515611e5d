"""The controller listener under attack: by strangers, and by a node that says what it should not.

A stranger became a node if there was no secret, ended a voter by naming another cluster, and put a command into the
metadata log that no node could start with again.

Each test has its own cluster, because its quorum is attacked, with a secret and without.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cutting import BOUND_SECONDS, create, until

from kraftpy.broker.containment import UNEXPECTED
from kraftpy.broker.metadata.link_messages import LinkError
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.storage.format import format_directories
from kraftpy.config import Address, BrokerConfig, Listener
from kraftpy.metadata.codec import pack
from kraftpy.metadata.commands import DeleteTopics, Endpoint, RegisterBroker, TopicReference, encode_command
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.testing import Cluster
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from kraftpy.types import BrokerId, Millis

pytestmark = [pytest.mark.timeout(180)]
SECRET = "a secret of the cluster"
STRANGER = 77


def controllers(cluster: Cluster) -> dict[int, Address]:
    """The address of each node's controller listener."""
    found = {}
    for node in cluster.nodes:
        lines = (cluster.node_directory(node) / "server.properties").read_text().splitlines()
        listeners = next(line for line in lines if line.startswith("listeners="))
        address = next(each for each in listeners.split(",") if "CONTROLLER://" in each).rpartition("://")[2]
        host, _, port = address.rpartition(":")
        found[node] = Address(host, int(port))
    return found


@asynccontextmanager
async def joining(cluster: Cluster, secret: str | None = None) -> AsyncIterator[Links]:
    """A node that does not belong to the cluster, and connects to its voters."""
    async with asyncio.TaskGroup() as tasks:
        links = Links(STRANGER, tasks=tasks, is_voter=False, silence_ms=2000, secret=secret)  # type: ignore[arg-type]
        try:
            await links.start(controllers(cluster))
            yield links
        finally:
            await links.stop()


async def linked(links: Links, nodes: list[int]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while links.peers != nodes:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


def submitted(command: bytes, node_id: int = STRANGER, sequence: int = 0) -> bytes:
    return encode_submission(SubmissionId(node_id=node_id, nonce=b"n" * 16, sequence=sequence), command)


def bad_commands() -> list[bytes]:
    delete = encode_command(DeleteTopics(topics=(TopicReference(name="t"),), time_ms=Millis(0)))
    register = RegisterBroker(
        broker_id=BrokerId(STRANGER),
        incarnation_id=b"i" * 16,
        endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1 << 40),),
        time_ms=Millis(0),
    )
    return [
        submitted(pack([99, 5, {}])),
        submitted(pack([3, 99, {}])),
        submitted(pack([3, 5, {"topics": [[]]}])),
        submitted(b"\xc1"),
        submitted(b""),
        submitted(delete, node_id=1),
        delete,
        pack([99, 5, {}]),
        b"\xc1",
        submitted(encode_command(register)),
    ]


async def says_what_it_should_not(cluster: Cluster) -> None:
    async with joining(cluster) as links:
        await linked(links, list(cluster.nodes))
        for node in cluster.nodes:
            for command in bad_commands():
                assert links.send(node, "submit", {"data": command})
            bodies: list[dict[str, Any]] = [{}, {"data": None}, {"data": "x", "more": 1}, {"epoch": "e"}]
            for body in bodies:
                for kind in ("submit", "raft"):
                    assert links.send(node, kind, body)
                for kind in ("follow", "heartbeat", "change voter", "unheard\nof"):
                    with pytest.raises(LinkError):
                        await links.request(node, kind, body, 10_000)
            assert links.send(node, "raft", {"type": "append_entries", "term": 0, "entries": [[b"\x00", 1, -1]]})
            with pytest.raises(LinkError):
                await links.request(node, "change voter", {"add": [7, 5], "remove": None}, 10_000)
        assert links.peers == list(cluster.nodes)


def test_what_a_node_should_not_say_costs_nobody_anything() -> None:
    with Cluster(keep_on_failure=True) as cluster:
        create(cluster, "t")
        asyncio.run(says_what_it_should_not(cluster))
        create(cluster, "u")
        for node in cluster.nodes:
            log = cluster.logs(node)
            assert "Traceback" not in log
            assert UNEXPECTED not in log
            assert log.count("refused a message from node") == 1, "one line a minute"
            assert cluster.leader_of("t", ask=node) is not None, "it was deleted in another node's name"
        for node in cluster.nodes:
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start(node, wait=False)
        cluster.wait_ready()
        create(cluster, "v")
        until(lambda: cluster.leader_of("t", ask=1), "nobody leads after a restart")


async def stays_out(cluster: Cluster) -> None:
    async with joining(cluster) as links, joining(cluster, "another secret, of theirs") as others:
        links.cluster_id = others.cluster_id = "an\nother"
        async with joining(cluster, SECRET) as friend:
            await linked(friend, list(cluster.nodes))
        for node in cluster.nodes:
            until(lambda node=node: cluster.logs(node).count("does not know the secret"), "it was not refused")  # type: ignore[misc]
        assert not links.peers
        assert not others.peers
        assert links.refused_cluster is None, "a stranger is not told the cluster's id"


def test_without_the_secret_nobody_is_a_node() -> None:
    with Cluster(settings={"kraftpy.quorum.secret": SECRET}, keep_on_failure=True) as cluster:
        asyncio.run(stays_out(cluster))
        create(cluster, "t")
        for node in cluster.nodes:
            assert "an\nother" not in cluster.logs(node)
            assert cluster.logs(node).count("does not know the secret") == 1, "one line a minute"
            assert SECRET not in cluster.logs(node)


# -- a voter that has met no peer yet


@asynccontextmanager
async def lone_voter(directory: Path, ports: dict[int, int]) -> AsyncIterator[subprocess.Popen[str]]:
    """Node 1 of a quorum of three, which has the id of its cluster, and waits for the others."""
    format_directories(BrokerConfig.of({"log.dirs": str(directory / "data")}), "ours")
    overrides = {
        "log.dirs": str(directory / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{ports[1]}",
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items()),
    }
    arguments = [part for name, text in overrides.items() for part in ("--override", f"{name}={text}")]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "kraftpy", "server", *arguments], stderr=log, text=True)  # noqa: ASYNC220
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def happens(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not what():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)


async def test_a_voter_that_has_no_peer_yet_does_not_believe_who_comes_to_it(
    tmp_path: Path, ports: ReservedPorts
) -> None:
    voters = {node: ports.reserve() for node in (1, 2, 3)}
    log = tmp_path / "log"
    async with lone_voter(tmp_path, voters) as process, asyncio.TaskGroup() as tasks:
        settings: Any = {"tasks": tasks, "silence_ms": 2000}
        strangers = [Links(number, is_voter=False, **settings) for number in (STRANGER, STRANGER + 1)]
        for stranger in strangers:
            stranger.cluster_id = "theirs"
            await stranger.start({1: Address("127.0.0.1", voters[1])})
        await happens(lambda: "belongs to cluster theirs, this node to ours" in log.read_text())
        hello = pack({"version": 1, "node": 2, "nonce": bytes(32), "cluster": "theirs", "knocks": True})
        for _ in range(40):  # longer than it takes to look at what it has met
            reader, writer = await asyncio.open_connection("127.0.0.1", voters[1])
            writer.write(len(hello).to_bytes(4, "big") + hello)
            await reader.read(1)
            writer.close()
            await asyncio.sleep(0.05)
            assert process.poll() is None, log.read_text()
        assert log.read_text().count("belongs to cluster theirs") == 1, "one line a minute"

        # A node at the address of another voter has to do with this one: then it is the settings that are wrong.
        other = Links(2, is_voter=True, **settings)
        other.cluster_id = "another"
        await other.listen(Listener("CONTROLLER", "127.0.0.1", voters[2]))
        await other.start({1: Address("127.0.0.1", voters[1])})
        await happens(lambda: process.poll() is not None)
        assert process.returncode == 2
        assert log.read_text().splitlines()[-1] == (
            f"kraftpy: log.dirs: {tmp_path}/data belongs to cluster ours, the quorum to cluster another"
        )
        for links in (*strangers, other):
            await links.stop()


# -- a node reachable from beyond this machine


def started(directory: Path, **settings: str) -> tuple[int, str]:
    """Status and standard error of a server that is not expected to start."""
    given = {
        "log.dirs": str(directory / "data"),
        **{name.replace("_", "."): text for name, text in settings.items()},
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    done = subprocess.run(
        [sys.executable, "-m", "kraftpy", "server", str(properties)],
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://:0",
            "controller_quorum_voters": "1@127.0.0.1:19,2@127.0.0.1:29",
        },
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://0.0.0.0:0",
            "controller_quorum_voters": "1@127.0.0.1:19,2@127.0.0.1:29",
        },
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "controller_quorum_voters": "1@127.0.0.1:19,2@192.0.2.1:29",
        },
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "process_roles": "broker",
            "controller_quorum_bootstrap_servers": "192.0.2.1:29",
        },
    ],
)
def test_a_quorum_beyond_this_machine_takes_a_secret(tmp_path: Path, settings: dict[str, str]) -> None:
    status, said = started(tmp_path, **settings)
    assert status == 2
    assert said.count("\n") == 1
    assert "kraftpy.quorum.secret is not set" in said
    assert "is beyond this machine: set the same secret on every node" in said
    assert not (tmp_path / "data").exists(), "nothing is touched before that is known"


def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://:0"}
    status, said = started(tmp_path, **settings, kraftpy_quorum_secret="too short")
    assert (status, said.count("\n")) == (2, 1)
    assert "kraftpy.quorum.secret is not allowed: 9 characters can be guessed; at least 16" in said
    assert "too short" not in said


def test_kafkas_example_of_one_node_starts_without_a_secret(tmp_path: Path, ports: ReservedPorts) -> None:
    """Its controller listener is on every interface, but accepts no peer from another machine (`test_link_trust`)."""
    port = ports.reserve()
    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://0.0.0.0:{port}"
    settings = {"listeners": listeners, "controller.quorum.voters": f"1@localhost:{port}"}
    with EmbeddedBroker(tmp_path, settings=settings) as broker, socket.create_connection(("127.0.0.1", port)) as there:
        there.sendall(b"\0\0\0\1x")
        assert there.recv(1) == b""
        assert "Traceback" not in broker.log_text
