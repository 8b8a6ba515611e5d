"""Links: the connections between the nodes of a cluster, over the controller listener.

A link carries msgpack frames both ways: one-way messages, and requests with their answers. There is at most one live
link per peer; a newer connection of the same peer closes the older one first, and nothing that the older one still
brings is looked at. So what arrives from a peer between `is_up=True` and `is_up=False` is in order and of one
connection.

Who connects: a node that does not vote connects to every voter; of two voters the one with the higher id connects, and
the other knocks (connects, says who it is, and hangs up) to be called at once after a start. A lost link is tried again
after `_RETRY_SECONDS`, then more and more slowly, up to `_MAX_RETRY_SECONDS`; the name is resolved anew each time.

How a connection begins, what keeps it alive and what a peer can do to it, `link` says.

Left out: encryption, and any rights: whoever knows the secret is a node of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b

from kraftpy.broker.containment import Tasks
from kraftpy.broker.link import ANSWER, ONE_WAY, REFUSAL, TICKS_OF_SILENCE, Body, Link, LinkError
from kraftpy.config import Address, Listener
from kraftpy.metadata.journal import MAX_ENTRY_BYTES

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = MAX_ENTRY_BYTES + (1 << 20)
"""Room for the largest entry and what is around it."""
MAX_BUFFERED_BYTES = 32 << 20
_MAX_HALF_OPEN = 64
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 1.0
_NO_SECRET = b"a cluster without a secret"
Receiver = Callable[[int, Body], None]
"""Takes a one-way message: the peer and the body. Must not raise."""
Handler = Callable[[int, Body], Awaitable[Body]]
"""Answers a request: the peer and the body. Any exception refuses the request."""
OnConnection = Callable[[int, bool], None]
"""Told that the link to a peer is up or down."""


class Links:
    """All links of one node."""

    def __init__(
        self,
        node_id: int,
        *,
        is_voter: bool,
        tasks: Tasks,
        silence_ms: int,
        secret: str | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.node_id = node_id
        self.is_voter = is_voter
        self.max_frame_bytes = max_frame_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.cluster_id: str | None = None
        """Where it is known, a peer that knows another is refused."""
        self.secret = blake2b(b"kraftpy links" + (secret.encode() if secret else _NO_SECRET)).digest()
        self.refused_cluster: str | None = None
        """The id of another cluster whose node was met last."""
        self._tasks = tasks
        self._tick_seconds = silence_ms / 1000 / TICKS_OF_SILENCE
        self._voters: dict[int, Address] = {}
        self._callers: dict[int, _Caller] = {}
        self._bootstrap: dict[Address, _Caller] = {}
        self._up: dict[int, Link] = {}
        self._half_open: dict[Link, None] = {}
        self._receivers: dict[str, Receiver] = {}
        self._handlers: dict[str, Handler] = {}
        self._on_connection: list[OnConnection] = []
        self._servers: list[asyncio.Server] = []
        self._ticking: asyncio.Task[None] | None = None
        self._told: dict[str, float] = {}
        self._is_closed = False

    # --- what the node asks of it ------------------------------------------------------------

    @property
    def peers(self) -> list[int]:
        """Nodes whose link is up, by id."""
        return sorted(self._up)

    def is_connected(self, peer: int) -> bool:
        """Whether the link to this peer is up."""
        return peer in self._up

    def send(self, peer: int, kind: str, body: Body) -> bool:
        """Send one way; whether there is a link to send it on. That it arrives is not said."""
        connection = self._up.get(peer)
        return connection is not None and connection.send([ONE_WAY, kind, body])

    async def request(self, peer: int, kind: str, body: Body, timeout_ms: int) -> Body:
        """Ask and wait. Raises LinkError where there is no answer."""
        connection = self._up.get(peer)
        if connection is None:
            raise LinkError(f"node {peer} is not connected")
        answer = connection.request(kind, body)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise LinkError(f"node {peer} did not answer within {timeout_ms} ms") from None

    def receive(self, kind: str, receiver: Receiver) -> None:
        """Who takes the one-way messages of a kind."""
        self._receivers[kind] = receiver

    def serve(self, kind: str, handler: Handler) -> None:
        """Who answers the requests of a kind."""
        self._handlers[kind] = handler

    def on_connection(self, callback: OnConnection) -> None:
        """Have a function told of links that come up and go down, in order with what arrives on them."""
        self._on_connection.append(callback)

    def disconnect(self, peer: int) -> None:
        """Close the link to a peer; it may come back."""
        if (connection := self._up.get(peer)) is not None:
            connection.close("it is given up here")

    # --- start and stop ----------------------------------------------------------------------

    async def listen(self, listener: Listener) -> int:
        """Bind an address, at which `start` will take connections; the port that it got. Raises OSError."""
        server = await asyncio.get_running_loop().create_server(
            lambda: Link(self, is_caller=False), listener.host or None, listener.port, backlog=128, start_serving=False
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def start(self, voters: Mapping[int, Address], bootstrap: tuple[Address, ...] = ()) -> None:
        """Begin to connect, and to take connections: whoever is to hear of links has said so before.

        `bootstrap` are addresses of voters whose ids are not known.
        """
        for server in self._servers:
            await server.start_serving()
        self._ticking = self._tasks.create_task(self._tick(), name="links")
        self.set_voters(voters)
        for address in bootstrap:
            self._bootstrap[address] = _Caller(self, None, address, self._tasks)

    def set_voters(self, voters: Mapping[int, Address], *, is_voter: bool | None = None) -> None:
        """Who the voters are now: links to those that are none any more are left to the other side."""
        if is_voter is not None:
            self.is_voter = is_voter
        self._voters = {node_id: address for node_id, address in voters.items() if node_id != self.node_id}
        for node_id in [*self._callers]:
            if self._voters.get(node_id) != self._callers[node_id].address:
                self._callers.pop(node_id).stop()
        for node_id, address in self._voters.items():
            if node_id not in self._callers and not self._is_closed:
                self._callers[node_id] = _Caller(self, node_id, address, self._tasks)

    async def stop(self) -> None:
        """Close everything."""
        self._is_closed = True
        for server in self._servers:
            server.close()
        self._on_connection.clear()
        for caller in [*self._callers.values(), *self._bootstrap.values()]:
            caller.stop()
        if self._ticking is not None:
            self._ticking.cancel()
        for connection in [*self._up.values(), *self._half_open]:
            connection.close("this node stops")

    # --- what its connections tell ------------------------------------------------------------

    def calls(self, peer: int) -> bool:
        """Whether it is this node that connects to the peer, rather than knock."""
        return not self.is_voter or peer not in self._voters or self.node_id > peer

    def half_opened(self, connection: Link) -> None:
        """A connection that has proved nothing yet."""
        if self._is_closed:  # it was accepted before
            connection.close("this node stops")
            return
        self._half_open[connection] = None
        if len(self._half_open) > _MAX_HALF_OPEN:
            next(iter(self._half_open)).close("too many that have not said who they are")

    def knocked(self, peer: int) -> None:
        """Somebody says that this peer is there: see at once."""
        if peer not in self._up and (caller := self._callers.get(peer)) is not None:
            caller.hurry()

    def opened(self, connection: Link, peer: int) -> None:
        """The peer has proved who it is: this is its link now."""
        self._half_open.pop(connection, None)
        if (older := self._up.get(peer)) is not None:
            older.close("the peer has a newer one")
        self._up[peer] = connection
        logger.info("link to node %d is up", peer)
        for callback in self._on_connection:
            callback(peer, True)

    def closed(self, connection: Link, reason: str) -> None:
        """A connection is gone, or is not to be listened to any more."""
        self._half_open.pop(connection, None)
        peer = connection.peer
        if peer is None or self._up.get(peer) is not connection:
            return
        del self._up[peer]
        logger.info("link to node %d is down: %s", peer, reason)
        for callback in self._on_connection:
            callback(peer, False)
        for caller in [*self._callers.values(), *self._bootstrap.values()]:
            if caller.peer == peer:
                caller.hurry()

    def note_refusal(self, connection: Link, reason: str) -> None:
        """A connection ended before it was a link. The same reason is told once a minute."""
        now = asyncio.get_running_loop().time()
        if now - self._told.get(reason, -60.0) >= 60.0:
            if len(self._told) >= _MAX_HALF_OPEN:
                self._told.clear()
            self._told[reason] = now
            logger.info("a connection of the quorum was closed: %s", reason)

    def arrived(self, peer: int, kind: str, body: Body) -> None:
        """A one-way message."""
        receiver = self._receivers.get(kind)
        if receiver is not None:
            receiver(peer, body)

    def asked(self, connection: Link, number: int, kind: str, body: Body) -> None:
        """A request, answered by a task of its own. A node that is ending starts none: the link is closed instead."""
        answering = self._answer(connection, number, kind, body)
        try:
            self._tasks.create_task(answering, name=f"answer {kind}")
        except RuntimeError:  # the group takes no more tasks
            answering.close()
            connection.close("this node is ending")

    async def _answer(self, connection: Link, number: int, kind: str, body: Body) -> None:
        handler = self._handlers.get(kind)
        try:
            if handler is None:
                raise LinkError(f"nothing here answers {kind}")
            assert connection.peer is not None
            connection.send([ANSWER, number, await handler(connection.peer, body)])
        except Exception as error:
            if not isinstance(error, LinkError):
                logger.exception("the request %s of node %s could not be answered", kind, connection.peer)
            connection.send([REFUSAL, number, str(error) or type(error).__name__])

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            for connection in [*self._up.values()]:
                connection.tick()


class _Caller:
    """Connects to one address until there is a link, and again when it is lost."""

    def __init__(self, links: Links, peer: int | None, address: Address, tasks: Tasks) -> None:
        self.address = address
        self.peer = peer
        self._links = links
        self._hurry = asyncio.Event()
        self._task = tasks.create_task(self._run(), name=f"link to {address}")

    def hurry(self) -> None:
        """Try soon: the link is lost, or somebody says that the peer is there."""
        self._hurry.set()

    def stop(self) -> None:
        """Try no more."""
        self._task.cancel()

    async def _run(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            if not self._is_connected():
                await self._call()
            timeout = None if self._is_connected() else pause * random.uniform(0.8, 1.2)
            try:
                async with asyncio.timeout(timeout):
                    await self._hurry.wait()
            except TimeoutError:
                pause = min(pause * 1.5, _MAX_RETRY_SECONDS)
            else:
                self._hurry.clear()
                pause = _RETRY_SECONDS
                await asyncio.sleep(_RETRY_SECONDS / 2)  # however often that is said

    def _is_connected(self) -> bool:
        return self.peer is not None and self._links.is_connected(self.peer)

    async def _call(self) -> None:
        links, loop = self._links, asyncio.get_running_loop()
        is_knock = self.peer is not None and not links.calls(self.peer)
        made: list[Link] = []

        def connection() -> Link:
            made.append(Link(links, is_caller=True, expected=self.peer, is_knock=is_knock))
            return made[0]

        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.create_connection(connection, *self.address)
        except (OSError, TimeoutError) as error:
            logger.debug("no link to %s: %s", self.address, error)
            return
        peer = await made[0].ready
        if peer is not None:
            self.peer = peer
