"""Links: the connections between the nodes of a cluster, over the controller listener.

A link carries msgpack frames both ways: one-way messages, and requests with their answers. There is at most one live
link per peer; a newer connection of the same peer closes the older one first, and nothing that the older one still
brings is looked at. So what arrives from a peer between `is_up=True` and `is_up=False` is in order and of one
connection.

Who connects: a node that does not vote connects to every voter; of two voters the one with the higher id connects, and
the other knocks (connects, proves who it is, hangs up) to be called at once after a start. A lost link is tried again
after `_RETRY_SECONDS`, then more and more slowly, up to `_MAX_RETRY_SECONDS`; the name is resolved anew each time.

How a connection begins, what keeps it alive and what a peer can do to it, `link` says; what is said over it,
`link_messages`. A body of another shape is not handed on: a message is dropped, a request refused, an answer is none.

Connections that have proved nothing yet are few: `_MAX_HALF_OPEN`, and of one address `_MAX_HALF_OPEN_OF_HOST`. Beyond
that the oldest goes, of the address that has the most; those from where a node has proved itself before go last.

Left out: encryption, and any rights: whoever knows the secret is a node of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.link import ANSWER, ONE_WAY, REFUSAL, TICKS_OF_SILENCE, Body, Link
from kraftpy.broker.metadata.link_messages import ANSWERS, REQUESTS, BadBodyError, LinkError, check, printable
from kraftpy.broker.metadata.secret import NO_SECRET_KEY, derived_key, is_loopback, is_remote_address
from kraftpy.config import Address, Listener
from kraftpy.metadata.journal import MAX_ENTRY_BYTES

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = MAX_ENTRY_BYTES + (1 << 20)
"""Room for the largest entry and what is around it."""
MAX_BUFFERED_BYTES = 32 << 20
_MAX_HALF_OPEN = 64
_MAX_HALF_OPEN_OF_HOST = 32
_MAX_KNOWN_HOSTS = 256
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 1.0
Receiver = Callable[[int, Body], None]
"""Takes a one-way message: the peer and the body, which has the shape of its kind."""
Handler = Callable[[int, Body], Awaitable[Body]]
"""Answers a request: the peer and the body, which has the shape of its kind. Any exception refuses the request."""
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
        complaints: Complaints | None = None,
        incidents: Incidents | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.node_id = node_id
        self.is_voter = is_voter
        self.max_frame_bytes = max_frame_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.cluster_id: str | None = None
        """Where it is known, a peer that knows another is refused."""
        self.key = NO_SECRET_KEY
        """The key that nodes prove to have: made of the secret before anything is sent or received (`derive_key`)."""
        self.refused_cluster: str | None = None
        """The id of another cluster, to which the node belongs that was met last at an address of the quorum."""
        self._secret = secret
        self._complaints = Complaints() if complaints is None else complaints
        self._incidents = Incidents(self._complaints) if incidents is None else incidents
        self._known_hosts: dict[str, None] = {}
        """From where nodes have proved themselves, the latest last."""
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
        self._is_closed = False

    # --- what the node asks of it ------------------------------------------------------------

    @property
    def peers(self) -> list[int]:
        """Nodes whose link is up, by id."""
        return sorted(self._up)

    @property
    def is_protected(self) -> bool:
        """Whether this node has a secret that others prove to know."""
        return self._secret is not None

    def key_for(self, purpose: bytes) -> bytes:
        """32 bytes for another use of the secret, from which neither the secret nor the links' key can be told."""
        return blake2b(purpose, key=self.key, digest_size=32).digest()

    def is_connected(self, peer: int) -> bool:
        """Whether the link to this peer is up."""
        return peer in self._up

    def send(self, peer: int, kind: str, body: Body) -> bool:
        """Send one way; whether there is a link to send it on. That it arrives is not said."""
        connection = self._up.get(peer)
        return connection is not None and connection.send([ONE_WAY, kind, body])

    async def request(self, peer: int, kind: str, body: Body, timeout_ms: int) -> Body:
        """Ask and wait; the answer has the shape of its kind. Raises LinkError where there is none."""
        connection = self._up.get(peer)
        if connection is None:
            raise LinkError(f"node {peer} is not connected")
        answer = connection.request(kind, body)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await answer
        except TimeoutError:
            raise LinkError(f"node {peer} did not answer within {timeout_ms} ms") from None
        try:
            check(ANSWERS, kind, found)
        except BadBodyError as error:
            self.refuse_body(peer, error)
            raise LinkError(f"node {peer} gave an answer that is none: {error}") from None
        return found

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

    async def derive_key(self) -> None:
        """Make the key of the secret, in a thread: it takes some 50 ms. `start` waits for it."""
        if self._secret is not None and self.key is NO_SECRET_KEY:
            self.key = await asyncio.to_thread(derived_key, self._secret)

    def remote_listener(self) -> str | None:
        """An address beyond this machine that `listen` has bound, if there is one."""
        hosts = [str(each.getsockname()[0]) for server in self._servers for each in server.sockets]
        return next((host for host in hosts if not is_loopback(host)), None)

    def must_not_meet(self, host: str) -> bool:
        """Whether nothing may be said to or heard from an address: beyond this machine that takes a secret."""
        return self._secret is None and not is_loopback(host)

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
        await self.derive_key()
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
        hosts = Counter(each.host for each in self._half_open)
        if hosts[connection.host] > _MAX_HALF_OPEN_OF_HOST:
            self._close_oldest(connection.host)
        elif len(self._half_open) > _MAX_HALF_OPEN:
            self._close_oldest(max(hosts, key=lambda host: (host not in self._known_hosts, hosts[host])))

    def _close_oldest(self, host: str) -> None:
        oldest = next(each for each in self._half_open if each.host == host)
        oldest.close("too many connections have not said who they are", "too many")

    def knocked(self, peer: int) -> None:
        """A peer has proved that it is there: see at once."""
        if peer not in self._up and (caller := self._callers.get(peer)) is not None:
            caller.hurry()

    def opened(self, connection: Link, peer: int) -> None:
        """The peer has proved who it is: this is its link now."""
        self._half_open.pop(connection, None)
        self._known_hosts.pop(connection.host, None)
        self._known_hosts[connection.host] = None
        if len(self._known_hosts) > _MAX_KNOWN_HOSTS:
            del self._known_hosts[next(iter(self._known_hosts))]
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

    def note_refusal(self, connection: Link, kind: str, reason: str) -> None:
        """A connection ended before it was a link. Each kind of reason is told once a minute for each address."""
        level = logging.INFO if kind in ("lost", "no node", "too many") else logging.WARNING
        self._complaints.write(
            logger, level, f"link {kind}", connection.host, "a connection of the quorum with %s was closed: %s",
            connection.host or "nobody", printable(reason),
        )  # fmt: skip

    def refuse_body(self, peer: int, error: Exception) -> None:
        """Log that a body was refused, because no node of this version sends such a one."""
        self._complaints.write(
            logger, logging.ERROR, "link body", str(peer), "node %d: what it sent is refused: %s", peer,
            printable(str(error)),
        )  # fmt: skip

    def arrived(self, peer: int, kind: str, body: Body) -> None:
        """A one-way message."""
        receiver = self._receivers.get(kind)
        if receiver is None:
            return
        try:
            check(REQUESTS, kind, body)
            receiver(peer, body)
        except BadBodyError as error:
            self.refuse_body(peer, error)
        except Exception as error:
            self._incidents.note(f"the message {kind} of node {peer}", error, kind=f"link message {kind}")

    def asked(self, connection: Link, number: int, kind: str, body: Body) -> bool:
        """A request, answered by a task of its own. A node that is ending starts none: the link is closed instead."""
        answering = self._answer(connection, number, kind, body)
        try:
            self._tasks.create_task(answering, name=f"answer {printable(kind, 40)}")
        except RuntimeError:  # the group takes no more tasks
            answering.close()
            connection.close("this node is ending")
            return False
        return True

    async def _answer(self, connection: Link, number: int, kind: str, body: Body) -> None:
        handler, peer = self._handlers.get(kind), connection.peer
        assert peer is not None
        try:
            if handler is None:
                raise LinkError(f"nothing here answers {printable(kind, 40)}")
            check(REQUESTS, kind, body)
            answer = [ANSWER, number, await handler(peer, body)]
        except LinkError as error:
            if isinstance(error, BadBodyError):
                self.refuse_body(peer, error)
            answer = [REFUSAL, number, str(error)]
        except Exception as error:
            self._incidents.note(f"the request {kind} of node {peer}", error, kind=f"link request {kind}")
            answer = [REFUSAL, number, f"it could not be answered: {type(error).__name__}"]
        connection.answer(answer)

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

        if links.must_not_meet(self.address.host) and is_remote_address(self.address.host):
            return  # a name is looked at once it is resolved
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.create_connection(connection, *self.address)
        except (OSError, TimeoutError) as error:
            logger.debug("no link to %s: %s", self.address, error)
            return
        peer = await made[0].ready
        if peer is not None:
            self.peer = peer
