"""The defects of the Raft library that are its transport's: the stock half. Ours are shown where our transport is, in
the tests of the links between nodes; what can be shown of the quorum alone is here.
"""

from __future__ import annotations

import errno
import pickle
import socket
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import pysyncobj.tcp_connection
import pytest
from pysyncobj.config import SyncObjConf
from pysyncobj.node import TCPNode
from pysyncobj.tcp_connection import CONNECTION_STATE, TcpConnection
from pysyncobj.tcp_server import SERVER_STATE, TcpServer
from pysyncobj.transport import TCPTransport
from quorum_node import THREE, Cluster, ListMachine, Node

from kraftpy.metadata import quorum
from kraftpy.metadata.quorum_messages import COMMAND, BadMessageError
from kraftpy.metadata.raft import library

RAN: list[str] = []


def note(what: str) -> None:
    RAN.append(what)


class Hostile:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return note, ("ran",)


class Poller:
    def subscribe(self, descr: int, callback: Any, mask: int) -> None: ...

    def unsubscribe(self, descr: int) -> None: ...


class Connection:
    """The part of a connection that the transport uses."""

    def __init__(self) -> None:
        self.state = CONNECTION_STATE.CONNECTED
        self.sent: list[Any] = []
        self.sendRandKey = None

    def setOnMessageReceivedCallback(self, callback: Any) -> None:  # noqa: N802
        self.deliver = callback

    def setOnDisconnectedCallback(self, callback: Any) -> None: ...  # noqa: N802

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def disconnect(self) -> None:
        self.state = CONNECTION_STATE.DISCONNECTED


def transport(*, own: str | None = None, others: tuple[str, ...] = ()) -> Any:
    owner = SimpleNamespace(
        conf=SyncObjConf(), encryptor=None, addOnTickCallback=lambda callback: None, _poller=Poller()
    )
    made = TCPTransport(owner, None, [])
    made._selfIsReadonlyNode = own is None
    made._selfNode = None if own is None else TCPNode(own)
    for other in others:
        made._nodeAddrToNode[other] = TCPNode(other)
    return made


def received(message: bytes) -> tuple[TcpConnection, Any]:
    """Return the messages that a connection makes of bytes from the network."""
    connection = TcpConnection(Poller())
    connection._TcpConnection__readBuffer = struct.pack("i", len(message)) + message
    return connection, connection._TcpConnection__processParseMessage()


def test_d12_stock_listens_to_the_old_connection_after_the_new_one() -> None:
    made = transport(others=("b:1",))
    heard: list[str] = []
    made.setOnMessageReceivedCallback(lambda node, message: heard.append(message))
    old, new = Connection(), Connection()
    for connection in (old, new):
        made._onNewIncomingConnection(connection)
        connection.deliver("b:1")
    assert old.state == CONNECTION_STATE.CONNECTED
    new.deliver("newer")
    old.deliver("older")
    assert heard == ["newer", "older"]


def test_d12_ours_drops_what_was_meant_for_the_old_connection() -> None:
    node = Node(1, now_ms=10_000)
    node.quorum.connected(2, 10_000)
    node.quorum.tick(20_000)
    node.quorum.connected(2, 20_000)
    assert [message for message in node.quorum.take_messages() if message.peer == 2] == []


def test_d14_stock_breaks_an_idle_connection_with_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pysyncobj.tcp_connection, "monotonicTime", lambda: now)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(10)  # a child another thread forks meanwhile has the descriptor too, until it executes
        connection = TcpConnection(Poller(), socket=ours, timeout=3.5)
        now += 3.6
        connection.send({"type": "request_vote"})
        assert connection.state == CONNECTION_STATE.DISCONNECTED
        assert theirs.recv(100) == b"", "closed, and the vote was not asked for"


def test_d14_ours_takes_one_term_however_long_the_followers_said_nothing_to_each_other() -> None:
    cluster = Cluster()
    leader = cluster.settle()
    term = leader.quorum.term
    cluster.run(10_000)  # the followers' link carries nothing meanwhile
    cluster.kill(leader.id)
    assert cluster.leader().quorum.term == term + 1


def test_d15_stock_closes_its_listener_when_descriptors_run_out() -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        def close(self) -> None: ...

    server = TcpServer(Poller(), "127.0.0.1", 0, onNewConnection=lambda connection: None)
    server._TcpServer__state = SERVER_STATE.BINDED
    server._TcpServer__socket = Exhausted()
    server._TcpServer__onNewConnection(0, 1)
    assert server._TcpServer__state == SERVER_STATE.UNBINDED, "and nothing binds it again"


def test_d16_stock_runs_what_the_network_sends() -> None:
    RAN.clear()
    received(zlib.compress(pickle.dumps(Hostile())))
    assert RAN == ["ran"]


def test_d16_ours_unpickles_nothing() -> None:
    RAN.clear()
    hostile = pickle.dumps(Hostile())
    node = Node(2, now_ms=10_000)
    node.quorum.connected(1, 10_000)
    bodies: list[Any] = [
        hostile,
        Hostile(),
        {"type": hostile},
        {"type": "heartbeat", "term": Hostile(), "round": 1},
        {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": (hostile, True, True)},
    ]
    for body in bodies:
        with pytest.raises(BadMessageError):
            node.quorum.receive(1, body, 10_000)
    entries = [[b"\x02" + hostile, 1, 1]]
    appended = {
        "type": "append_entries", "term": 1, "commit_index": 2, "prevLogIdx": 0, "prevLogTerm": 0,
        "entries": entries, "round": 1,
    }  # fmt: skip
    with pytest.raises(BadMessageError):
        node.quorum.receive(1, appended, 10_000)
    assert (node.quorum.last_index, node.quorum.term) == (0, 0)
    node.quorum.receive(1, {**appended, "entries": [[COMMAND + hostile, 1, 1]]}, 10_000)
    node.sync()
    assert node.machine.commands == [hostile], "bytes, for the machine to judge"
    again = Node(2, disk=node.disk, machine=ListMachine())
    assert again.quorum.last_index == 1
    assert RAN == []
    for name in ("load", "loads", "dump", "dumps"):
        with pytest.raises(quorum.QuorumStoppedError):
            getattr(library.library.pickle, name)


def test_d17_stock_inflates_whatever_it_is_sent() -> None:
    size = 32 << 20
    message = zlib.compress(pickle.dumps(bytes(size)), 9)
    assert len(message) < size // 500
    assert len(received(message)[1]) == size


def test_d17_stock_waits_for_two_gigabytes_from_anybody() -> None:
    connection = TcpConnection(Poller())
    connection._TcpConnection__readBuffer = struct.pack("i", 2**31 - 1) + b"x"
    assert connection._TcpConnection__processParseMessage() is None
    connection._TcpConnection__state = CONNECTION_STATE.CONNECTED
    assert connection.state == CONNECTION_STATE.CONNECTED


def test_d18_stock_serves_strangers() -> None:
    made = transport(others=("b:1",))
    made.setOnUtilityMessageCallback("status", lambda arguments, callback: callback({"log_len": 1}, None))
    connection = Connection()
    made._onNewIncomingConnection(connection)
    connection.deliver(["status"])
    assert connection.sent == [{"log_len": 1}]
    joined: list[Any] = []
    made.setOnReadonlyNodeConnectedCallback(joined.append)
    reader = Connection()
    made._onNewIncomingConnection(reader)
    reader.deliver("readonly")
    assert len(joined) == 1, "and is sent the whole log"
    peer = Connection()
    made._onNewIncomingConnection(peer)
    peer.deliver("b:1")
    assert made._connections[TCPNode("b:1")] is peer, "whoever says so is that node"


def test_d18_ours_listens_to_connected_peers_only() -> None:
    node = Node(1, THREE, now_ms=10_000)
    node.quorum.receive(2, {"type": "heartbeat", "term": 5, "round": 1}, 10_000)
    assert (node.quorum.term, node.quorum.leader_id) == (0, None)


def test_d21_stock_lets_only_one_side_dial_and_seldom() -> None:
    low, high = transport(own="a:1"), transport(own="b:1")
    assert not low._shouldConnect(TCPNode("b:1"))
    assert high._shouldConnect(TCPNode("a:1"))
    assert (SyncObjConf().connectionRetryTime, SyncObjConf().dnsCacheTime) == (5.0, 600.0)
