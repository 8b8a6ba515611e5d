"""A cluster's companion process: carries and cuts the traffic between nodes, and cleans up after a test that died.

Its only argument is a JSON object; it inherits the listening sockets of its links.

**Links.** Each is a listening socket that one or all nodes take for the address of another node; every connection to it
is forwarded to that node's real address. If all nodes share a link (the inter-broker listener is advertised once), the
client id of a connection's first request tells which node opened it: `broker-<node id>`, with any suffix. If the nodes
speak TLS there, the client id cannot be read: such connections are never cut.

**A cut** between two nodes looks like a network that drops packets: bytes are held, closes are held, a new connection
opens and stays silent; nothing is lost and nothing is closed. After healing, everything held is delivered in order. At
most what the sockets' buffers take is held; beyond that the sender waits.

A cut has a direction, possibly just one: bytes from one node to the other pass and those back are held, regardless of
which of the two opened the connection.

**Commands** are lines on standard input: a JSON list of pairs `[sender, receiver]`; from now on, nothing passes from
the first to the second of each pair. Each command is answered with a line. End of file, or a change of the parent
process, means that the test is gone: every process with the cluster's token in its environment is killed, and a
temporary directory is deleted.

Left out: delays, clients (only links between nodes come through here).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, cast

TOKEN = "KRAFTPY_TESTING_CLUSTER"
"""The environment variable that marks the processes of a cluster."""

_PEER = re.compile(rb"broker-(\d+)(?!\d)")
_FIRST_BYTES = struct.Struct(">ihhih")
"""The first bytes of a request: size, API key, version, correlation id, length of the client id."""
_ORPHAN_CHECK_SECONDS = 0.5
_GIVE_UP_READING_AT = 1024
_LARGEST_REQUEST = 100 << 20
"""A larger size at the start means that this is not a request but TLS, in which no client id can be read."""

Pair = tuple[int, int]
"""The sender, and the receiver that it does not reach."""


class Cuts:
    """The pairs of nodes that are cut off from each other."""

    def __init__(self) -> None:
        self._pairs: frozenset[Pair] = frozenset()
        self._connections: set[CarriedConnection] = set()

    def is_cut(self, sender: int, receiver: int) -> bool:
        """Return whether nothing passes from one to the other."""
        return (sender, receiver) in self._pairs

    def opened(self, connection: CarriedConnection) -> None:
        """Notify this connection of changes from now on."""
        self._connections.add(connection)

    def closed(self, connection: CarriedConnection) -> None:
        """Forget a connection: both ends are closed."""
        self._connections.discard(connection)

    def change(self, pairs: frozenset[Pair]) -> None:
        """Make exactly these cuts."""
        self._pairs = pairs
        for connection in list(self._connections):
            connection.release()


class End(asyncio.Protocol):
    """One of the two sockets of a connection; `other` is where its bytes go."""

    def __init__(self, carried: CarriedConnection) -> None:
        self._carried = carried
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._is_over = False
        self._is_told_to_wait = False
        self.other: End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass on what waited for this socket."""
        self._transport = cast("asyncio.Transport", transport)
        self._carried.release()

    def data_received(self, data: bytes) -> None:
        """Hold the data, and pass on what may pass."""
        self._held.append(data)
        self._carried.received(self, data)
        self.release()

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other end once everything received was passed on."""
        self._is_over = True
        self._carried.ended(self)
        self.release()

    def pause_writing(self) -> None:
        """Stop reading from the other end: this one accepts no more data."""
        self._is_told_to_wait = True
        if self.other is not None:
            self.other.release()

    def resume_writing(self) -> None:
        """Read from the other end again."""
        self._is_told_to_wait = False
        if self.other is not None:
            self.other.release()

    def release(self) -> None:
        """Pass on what may pass; pause or resume reading to match the other end."""
        other = self.other
        may_pass = other is not None and other._transport is not None and not self._carried.is_held(self)
        if may_pass:
            assert other is not None
            assert other._transport is not None
            held, self._held = self._held, []  # writing may pause the other end, which calls this again
            for data in held:
                if not other._transport.is_closing():
                    other._transport.write(data)
            if self._is_over:
                other.close()
                self._carried.over()
                return
        if self._transport is not None and not self._transport.is_closing():
            is_wanted = may_pass and other is not None and not other._is_told_to_wait
            if is_wanted or self._carried.needs_first_bytes(self):
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Close the socket once everything written has left."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()


class CarriedConnection:
    """A connection through a link: two ends, and the pair of nodes it belongs to."""

    def __init__(self, cuts: Cuts, from_node: int | None, to_node: int) -> None:
        self._cuts = cuts
        self._from_node = from_node
        self._to_node = to_node
        self._opening = b""
        self._is_known = from_node is not None
        self.near = End(self)
        self.far = End(self)
        self.near.other, self.far.other = self.far, self.near
        cuts.opened(self)

    def is_held(self, end: End) -> bool:
        """Return whether nothing received at this end may pass: it is cut, or its node is not known yet."""
        if not self._is_known or self._from_node is None:
            return not self._is_known
        if end is self.near:
            return self._cuts.is_cut(self._from_node, self._to_node)
        return self._cuts.is_cut(self._to_node, self._from_node)

    def needs_first_bytes(self, end: End) -> bool:
        """Return whether this end must be read although nothing may pass, to learn its node."""
        return not self._is_known and end is self.near

    def received(self, end: End, data: bytes) -> None:
        """Learn which node opened the connection from its first bytes."""
        if self._is_known or end is not self.near:
            return
        self._opening += data
        found = _client_id(self._opening)
        if found is not None:
            match = _PEER.match(found)
            self._from_node = int(match[1]) if match else None
            self._is_known = True
            self._opening = b""
            self.far.release()

    def ended(self, end: End) -> None:
        """Note that an end is closed. If the opener has not identified itself by now, it never will."""
        if end is self.near:
            self._is_known = True

    def release(self) -> None:
        """Pass on what may pass, because the cuts changed or an end is open."""
        self.near.release()
        self.far.release()

    def over(self) -> None:
        """Forget the connection: one end is closed and the other was notified."""
        self._cuts.closed(self)


def _client_id(opening: bytes) -> bytes | None:
    """Return the client id of the request that begins so; empty without one; None if more bytes are needed."""
    if len(opening) < _FIRST_BYTES.size:
        return None
    size, *_, length = _FIRST_BYTES.unpack_from(opening)
    if size > _LARGEST_REQUEST or not 0 <= length <= _GIVE_UP_READING_AT:
        return b""
    found = opening[_FIRST_BYTES.size : _FIRST_BYTES.size + length]
    return found if len(found) == length else None


class Companion:
    """The links of one cluster, and its cleanup."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._cuts = Cuts()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Carry traffic until the test is gone."""
        loop = asyncio.get_running_loop()
        servers = []
        for link in self._spec["links"]:
            listening = socket.socket(fileno=link["fd"])
            listening.setblocking(False)

            def accept(link: dict[str, Any] = link) -> End:
                carried = CarriedConnection(self._cuts, link["from_node"], link["to_node"])
                task = loop.create_task(self._reach(carried, link["to_port"]), name=f"to {link['to_node']}")
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
                return carried.near

            servers.append(await loop.create_server(accept, sock=listening))
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        watching = loop.create_task(self._watch_parent(os.getppid(), commands), name="the parent")
        while line := await commands.readline():
            self._cuts.change(frozenset((sender, receiver) for sender, receiver in json.loads(line)))
            print("ok", flush=True)
        watching.cancel()

    async def _reach(self, carried: CarriedConnection, port: int) -> None:
        """Open the far end. If nothing listens there, close the near end, as for a refused connection."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: carried.far, "127.0.0.1", port)
        except OSError:
            carried.near.close()
            carried.over()

    async def _watch_parent(self, parent: int, commands: asyncio.StreamReader) -> None:
        """Watch the parent: if it was killed, a child of its own may still hold its end of the pipe."""
        while os.getppid() == parent:  # noqa: ASYNC110 - asyncio has no event for it
            await asyncio.sleep(_ORPHAN_CHECK_SECONDS)
        commands.feed_eof()


def kill_marked(token: str) -> None:
    """Send SIGKILL to every process that has the token in its environment, except this one."""
    wanted = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environment:
            with contextlib.suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)


def main() -> None:
    """Run until the test is gone, then clean up after it."""
    spec = json.loads(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        asyncio.run(Companion(spec).run())
    finally:
        kill_marked(spec["token"])
        if spec["remove"] is not None:
            shutil.rmtree(spec["remove"], ignore_errors=True)
