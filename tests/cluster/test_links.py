"""The companion: what it carries, what a cut holds back, whose connection it is, and that it cleans up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.testing.companion import TOKEN

BOUND_SECONDS = 20.0
SILENCE_SECONDS = 0.15


class Links:
    """A companion with a link from node 1 to node 2 and one that all take for node 2, both leading to `server`."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(BOUND_SECONDS)
        port = self.server.getsockname()[1]
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.from_one, self.shared = (listener.getsockname()[1] for listener in listeners)
        links = [
            {"fd": listener.fileno(), "from_node": from_node, "to_node": 2, "to_port": port}
            for listener, from_node in zip(listeners, (1, None), strict=True)
        ]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from kraftpy.testing.companion import main; main()",
                json.dumps({"token": os.urandom(8).hex(), "remove": None, "links": links}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno() for listener in listeners],
        )
        for listener in listeners:
            listener.close()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.server)

    def cut(self, *pairs: tuple[int, int]) -> None:
        """In both directions."""
        self.cut_one_way(*pairs, *((other, one) for one, other in pairs))

    def cut_one_way(self, *pairs: tuple[int, int]) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(pairs).encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"ok\n"

    def connect(self, port: int) -> socket.socket:
        connection = self._stack.enter_context(socket.create_connection(("127.0.0.1", port), BOUND_SECONDS))
        connection.settimeout(BOUND_SECONDS)
        return connection

    def accept(self) -> socket.socket:
        accepted, _ = self.server.accept()
        accepted.settimeout(BOUND_SECONDS)
        return self._stack.enter_context(accepted)

    def close(self) -> None:
        self._stack.close()
        self.process.communicate(timeout=BOUND_SECONDS)


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.close()


def exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        more = connection.recv(count - len(found))
        assert more, f"closed after {bytes(found[:100])!r} ..."
        found += more
    return bytes(found)


def assert_silent(connection: socket.socket) -> None:
    connection.settimeout(SILENCE_SECONDS)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(BOUND_SECONDS)


def request_of(client_id: str) -> bytes:
    return encode_request(ApiKey.METADATA, 9, 7, client_id, MetadataRequest(topics=[]))


def test_bytes_and_closes_are_passed_on(links: Links) -> None:
    near = links.connect(links.from_one)
    near.sendall(b"there")
    far = links.accept()
    assert exactly(far, 5) == b"there"
    far.sendall(b"and back")
    assert exactly(near, 8) == b"and back"
    far.close()
    assert near.recv(1) == b""


def test_many_bytes_arrive_once_although_their_receiver_is_slow(links: Links) -> None:
    """The companion waits for the slow receiver while it passes them on."""
    near = links.connect(links.from_one)
    near.sendall(b"there")
    far = links.accept()
    assert exactly(far, 5) == b"there"
    sent = array("Q", range(1 << 22)).tobytes()  # more than all sockets on the way hold
    with ThreadPoolExecutor(1) as sending:
        sending.submit(far.sendall, sent)
        assert_not_all_taken(far)
        assert exactly(near, len(sent)) == sent
    assert_silent(near)


def assert_not_all_taken(connection: socket.socket) -> None:
    """Wait until the sockets on the way are full."""
    deadline = time.monotonic() + BOUND_SECONDS
    full_since: float | None = None
    while full_since is None or time.monotonic() - full_since < SILENCE_SECONDS:
        assert time.monotonic() < deadline
        if select.select([], [connection], [], 0)[1]:
            full_since = None
        elif full_since is None:
            full_since = time.monotonic()
        time.sleep(0.01)


def test_a_cut_holds_bytes_and_closes_until_it_is_healed(links: Links) -> None:
    near = links.connect(links.from_one)
    near.sendall(b"a")
    far = links.accept()
    assert exactly(far, 1) == b"a"
    links.cut((1, 2))
    near.sendall(b"b")
    far.sendall(b"c")
    assert_silent(far)
    assert_silent(near)
    near.close()
    assert_silent(far)
    links.cut()
    assert exactly(far, 1) == b"b", "held, not lost"
    assert far.recv(1) == b"", "and then closed"


def test_a_new_connection_over_a_cut_hangs(links: Links) -> None:
    links.cut((1, 2))
    near = links.connect(links.from_one)
    near.sendall(b"hello")
    far = links.accept()
    assert_silent(far)
    assert_silent(near)
    links.cut()
    assert exactly(far, 5) == b"hello"


@pytest.mark.parametrize("link", ["from_one", "shared"])
def test_one_direction_alone_is_cut(links: Links, link: str) -> None:
    opening = request_of("broker-1-fetcher-0")
    near = links.connect(getattr(links, link))
    near.sendall(opening)
    far = links.accept()
    assert exactly(far, len(opening)) == opening
    links.cut_one_way((1, 2))
    near.sendall(b"lost for now")
    far.sendall(b"heard")
    assert exactly(near, 5) == b"heard"
    assert_silent(far)
    links.cut_one_way((2, 1))
    assert exactly(far, 12) == b"lost for now"
    far.sendall(b"back")
    near.sendall(b"there")
    assert exactly(far, 5) == b"there"
    assert_silent(near)
    far.close()
    assert_silent(near)
    links.cut_one_way()
    assert exactly(near, 4) == b"back"
    assert near.recv(1) == b"", "and then closed"


def test_other_pairs_are_not_concerned(links: Links) -> None:
    links.cut((1, 3), (2, 3))
    near = links.connect(links.from_one)
    near.sendall(b"hello")
    assert exactly(links.accept(), 5) == b"hello"


def test_a_shared_link_knows_its_connections_by_the_client_id(links: Links) -> None:
    one, three = request_of("broker-1-fetcher-0"), request_of("broker-13-fetcher-0")
    connections = {}
    for name, data in (("one", one), ("three", three)):
        near = links.connect(links.shared)
        near.sendall(data[:9])
        far = links.accept()
        near.sendall(data[9:])
        assert exactly(far, len(data)) == data
        connections[name] = near, far
    links.cut((1, 2))
    for near, _ in connections.values():
        near.sendall(b"more")
    assert exactly(connections["three"][1], 4) == b"more"
    assert_silent(connections["one"][1])
    links.cut()
    assert exactly(connections["one"][1], 4) == b"more"


def test_whoever_is_no_node_passes(links: Links) -> None:
    links.cut((1, 2))
    data = request_of("somebody")
    near = links.connect(links.shared)
    near.sendall(data)
    assert exactly(links.accept(), len(data)) == data


def test_much_is_passed_on_whole_past_a_slow_reader(links: Links) -> None:
    near = links.connect(links.from_one)
    far_data = bytes(range(256)) * (1 << 14)
    near.settimeout(0.2)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(far_data):
            sent += near.send(far_data[sent : sent + 65536])
    near.settimeout(BOUND_SECONDS)
    far = links.accept()
    assert exactly(far, sent) == far_data[:sent]


def test_where_nobody_listens_the_connection_is_closed(links: Links) -> None:
    links.server.close()
    assert links.connect(links.from_one).recv(1) == b""


ORPHANING = """
    import os, signal, sys
    from kraftpy.testing import Cluster
    cluster = Cluster(brokers=1)
    cluster.open()
    print(cluster.pid(1), cluster.directory, cluster._wiring.token, flush=True)
    if sys.argv[1] == "fork" and os.fork() == 0:  # a child that holds every file the parent had
        os.close(1)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def marked(token: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{TOKEN}={token}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_nothing_is_left_of_a_test_that_was_killed(how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ORPHANING), how],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        pid, directory, token = process.stdout.readline().split()
    assert process.wait(BOUND_SECONDS) == -signal.SIGKILL
    try:
        deadline = time.monotonic() + BOUND_SECONDS
        while marked(token) or Path(directory).exists():
            assert time.monotonic() < deadline, f"{pid} or {directory} is still there"
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):  # the forked child
            os.killpg(process.pid, signal.SIGKILL)


def test_what_is_no_request_passes(links: Links) -> None:
    """A greeting of TLS, whose random bytes could be the length of a client id that never comes."""
    greeting = bytes.fromhex("1603010200 010001fc 0303 00 02bc") + bytes(503)
    opener = links.connect(links.shared)
    opener.sendall(greeting)
    assert exactly(links.accept(), len(greeting)) == greeting
