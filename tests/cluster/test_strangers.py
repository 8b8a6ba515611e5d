"""The controller listener, and whoever reaches it: who is no node, and a node that says what it should not.

A stranger became a node where there was no secret, ended a voter by naming another cluster, and put a command into the
metadata log that no node could start with again.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cutting import BOUND_SECONDS, create, until

from kraftpy.broker.containment import UNEXPECTED
from kraftpy.broker.link_bodies import LinkError
from kraftpy.broker.links import Links
from kraftpy.config import Address
from kraftpy.metadata.codec import pack
from kraftpy.metadata.commands import (
    DeleteTopics,
    Endpoint,
    RegisterBroker,
    SubmissionId,
    TopicReference,
    encode_command,
    encode_submission,
)
from kraftpy.testing import Cluster
from kraftpy.types import BrokerId, Millis

pytestmark = [pytest.mark.timeout(180)]
SECRET = "a secret of the cluster"
STRANGER = 77


def controllers(cluster: Cluster) -> dict[int, Address]:
    """Where each node's controller listener is."""
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
    """A node that is none of the cluster's, and connects to its voters."""
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
            assert log.count("what it sent is refused") == 1, "one line a minute"
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


# -- a node that is to be met beyond this machine


def started(directory: Path, **settings: str) -> tuple[int, str]:
    """Status and standard error of a server that is not expected to start."""
    overrides = {
        "log.dirs": str(directory / "data"),
        **{name.replace("_", "."): text for name, text in settings.items()},
    }
    arguments = [part for name, text in overrides.items() for part in ("--override", f"{name}={text}")]
    done = subprocess.run(
        [sys.executable, "-m", "kraftpy", "server", *arguments],
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
