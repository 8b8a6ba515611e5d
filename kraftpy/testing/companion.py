"""A cluster's companion process: it carries the traffic between nodes, cuts it when told, and cleans up when the
test that started it is gone.

Its only argument is a JSON object; the listening sockets of its links are inherited.

**Links.** Each is a listening socket that one or all nodes take for the address of another, and every connection to it
is passed on to that other's real one. Where all nodes share a link (the inter-broker listener is advertised once),
whose connection it is shows the client id of its first request: `broker-<node id>`, whatever follows.

**A cut** between two nodes is what a network that drops packets looks like: bytes are held, closes are held, a new
connection opens and stays silent; nothing is lost and nothing is closed. Healed, everything held goes on in its order.
At most what the sockets' buffers take is held; beyond that the sender waits.

It has a direction, which may be the only one: bytes from one node to the other pass, those back are held, whichever of
the two opened the connection.

**Commands** are lines on standard input: a JSON list of pairs `[sender, receiver]`, of which nothing passes from the
first to the second from now on; each is answered with a line. End of file, or another parent process than at the start,
means that the test is gone: every process with the cluster's token in its environment is killed, and a temporary
directory is deleted.

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
"""What opens a request: size, API key, version, correlation id, length of the client id."""
_ORPHAN_CHECK_SECONDS = 0.5
_GIVE_UP_READING_AT = 1024

Pair = tuple[int, int]
"""Who sends, and who does not get it."""


class Cuts:
    """Which nodes do not reach which."""

    def __init__(self) -> None:
        self._pairs: frozenset[Pair] = frozenset()
        self._connections: set[Carried] = set()

    def is_cut(self, sender: int, receiver: int) -> bool:
        """Whether nothing passes from one to the other."""
        return (sender, receiver) in self._pairs

    def opened(self, connection: Carried) -> None:
        """A connection that is told of changes from now on."""
        self._connections.add(connection)

    def closed(self, connection: Carried) -> None:
        """Both ends are gone."""
        self._connections.discard(connection)

    def change(self, pairs: frozenset[Pair]) -> None:
        """Exactly these from now on."""
        self._pairs = pairs
        for connection in list(self._connections):
            connection.release()


class End(asyncio.Protocol):
    """One of the two sockets of a connection; `other` is where its bytes go."""

    def __init__(self, carried: Carried) -> None:
        self._carried = carried
        self._transport: asyncio.Transport | None = None
        self._held: list[bytes] = []
        self._is_over = False
        self._is_told_to_wait = False
        self.other: End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """What waited for this socket goes on."""
        self._transport = cast("asyncio.Transport", transport)
        self._carried.release()

    def data_received(self, data: bytes) -> None:
        """Hold it, and pass on what may pass."""
        self._held.append(data)
        self._carried.received(self, data)
        self.release()

    def connection_lost(self, error: Exception | None) -> None:
        """The other end is told once all that was received is passed on."""
        self._is_over = True
        self._carried.ended(self)
        self.release()

    def pause_writing(self) -> None:
        """This end takes no more: the other is not read."""
        self._is_told_to_wait = True
        if self.other is not None:
            self.other.release()

    def resume_writing(self) -> None:
        """It takes more."""
        self._is_told_to_wait = False
        if self.other is not None:
            self.other.release()

    def release(self) -> None:
        """Pass on what may pass; read on, or wait, as the other end can take it."""
        other = self.other
        may_pass = other is not None and other._transport is not None and not self._carried.is_held(self)
        if may_pass:
            assert other is not None
            assert other._transport is not None
            for data in self._held:
                if not other._transport.is_closing():
                    other._transport.write(data)
            self._held.clear()
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
        """Close it once what was written has left."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()


class Carried:
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
        """Whether nothing that arrived at this end may pass: it is cut, or it is not known yet whose it is."""
        if not self._is_known or self._from_node is None:
            return not self._is_known
        if end is self.near:
            return self._cuts.is_cut(self._from_node, self._to_node)
        return self._cuts.is_cut(self._to_node, self._from_node)

    def needs_first_bytes(self, end: End) -> bool:
        """Whether bytes of this end are wanted although none may pass."""
        return not self._is_known and end is self.near

    def received(self, end: End, data: bytes) -> None:
        """Find out whose connection it is, from the first bytes of who opened it."""
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
        """Who opened it is gone: if it has not said who it was by now, it never will."""
        if end is self.near:
            self._is_known = True

    def release(self) -> None:
        """The cuts changed, or an end is there."""
        self.near.release()
        self.far.release()

    def over(self) -> None:
        """An end is gone and the other was told."""
        self._cuts.closed(self)


def _client_id(opening: bytes) -> bytes | None:
    """The client id of the request that begins so; empty where there is none; None where more bytes are needed."""
    if len(opening) < _FIRST_BYTES.size:
        return None
    *_, length = _FIRST_BYTES.unpack_from(opening)
    if not 0 <= length <= _GIVE_UP_READING_AT:
        return b""
    found = opening[_FIRST_BYTES.size : _FIRST_BYTES.size + length]
    return found if len(found) == length else None


class Companion:
    """The links of one cluster, and its end."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._cuts = Cuts()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the test is gone."""
        loop = asyncio.get_running_loop()
        servers = []
        for link in self._spec["links"]:
            listening = socket.socket(fileno=link["fd"])
            listening.setblocking(False)

            def accept(link: dict[str, Any] = link) -> End:
                carried = Carried(self._cuts, link["from_node"], link["to_node"])
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

    async def _reach(self, carried: Carried, port: int) -> None:
        """Open the far end; where nobody listens, the near end is closed, as a refused connection is."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: carried.far, "127.0.0.1", port)
        except OSError:
            carried.near.close()
            carried.over()

    async def _watch_parent(self, parent: int, commands: asyncio.StreamReader) -> None:
        """A parent that was killed may have left its end of the pipe to a child of its own."""
        while os.getppid() == parent:  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(_ORPHAN_CHECK_SECONDS)
        commands.feed_eof()


def kill_marked(token: str) -> None:
    """SIGKILL to every process that has the token in its environment, this one excepted."""
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
