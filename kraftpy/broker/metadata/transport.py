"""Links: the connections between the nodes of a cluster, over the controller listener.

A link carries msgpack frames both ways: one-way messages, and requests with their answers. There is at most one live
link per peer; a newer connection of the same peer closes the older one first, and later frames of the older one are
ignored. Everything that arrives from a peer between `is_up=True` and `is_up=False` is therefore in order and from one
connection.

A node that does not vote connects to every voter. Between two voters, the one with the higher id connects; the other
knocks (connects, authenticates, disconnects) in order to be called at once after its start. A lost link is retried at
once, then with growing pauses; the name is resolved again each time (`dialing`). If the voters come from the log
(`follows_log`), the other node may know newer ones, without this node: after a few knocks in vain, this node connects.

`link` describes the handshake, the keep-alive and the limits on a peer; `link_messages` describes the messages. A body
of the wrong shape is not delivered: a message is dropped, a request is refused, and an answer counts as missing.

Unauthenticated connections are limited to `_MAX_HALF_OPEN`, and to `_MAX_HALF_OPEN_OF_HOST` per network (an IPv4
address, or the /64 of an IPv6 address). Beyond that, one is closed: first from networks that lately failed to prove
themselves, then from new ones, and last from networks from which a node has authenticated itself; within these, the
oldest connection of the network that has most. Among equals chance decides, so that no flood, from however many
addresses, can outrun a node that is new here. The memory of both kinds of networks is bounded.

Controller listeners can have TLS and SASL like others (`secure`): these then prove the identity of callers, and no
secret is needed. With an authorizer and without a secret, the caller's principal needs the right CLUSTER_ACTION
(`may_be_node`).

Left out: restricting which principal may be which node: a program that knows the secret, or has the right, may be any
node.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.dialing import Dialer
from kraftpy.broker.metadata.link import ANSWER, ONE_WAY, REFUSAL, TICKS_OF_SILENCE, Body, Link, LinkCounts
from kraftpy.broker.metadata.link_messages import ANSWERS, REQUESTS, BadBodyError, LinkError, check, printable
from kraftpy.broker.metadata.secret import NO_SECRET_KEY, derived_key, is_loopback, is_remote_address
from kraftpy.broker.peers import security_to
from kraftpy.broker.startup import opening
from kraftpy.config import Address, BrokerConfig, Listener
from kraftpy.metadata.journal import MAX_ENTRY_BYTES
from kraftpy.security.principal import Principal

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.broker.security.listeners import SecureListeners
    from kraftpy.client.security import Security
    from kraftpy.security.failures import AuthenticationFailed

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = MAX_ENTRY_BYTES + (1 << 20)
"""Room for the largest entry and its envelope."""
MAX_BUFFERED_BYTES = 32 << 20
_MAX_HALF_OPEN = 64
_MAX_HALF_OPEN_OF_HOST = 32
_MAX_KNOWN_NETWORKS = 256
_MAX_FAILED_NETWORKS = 1_024
_IPV4_MAPPED = bytes(10) + b"\xff\xff"
_RECEIVE_BYTES = 256 * 1024
Receiver = Callable[[int, Body], None]
"""Receives a one-way message: the peer and the body, whose shape has been checked."""
Handler = Callable[[int, Body], Awaitable[Body]]
"""Answers a request: the peer and the body, whose shape has been checked. Any exception refuses the request."""
NewClient = Callable[[], asyncio.BufferedProtocol]
"""Makes the protocol that serves a client's connection on a controller listener."""
OnConnection = Callable[[int, bool], None]
"""Called when the link to a peer comes up or goes down."""


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
        self.counts = LinkCounts()
        self.node_id = node_id
        self.is_voter = is_voter
        self.max_frame_bytes = max_frame_bytes
        self.max_buffered_bytes = max_buffered_bytes
        self.cluster_id: str | None = None
        """The cluster's id, if known; a peer of another cluster is refused."""
        self.key = NO_SECRET_KEY
        """The key that nodes prove to know, derived from the secret before anything is exchanged (`derive_key`)."""
        self.follows_log = False
        """True if the voters come from the metadata log, not from the settings."""
        self.refused_cluster: str | None = None
        """The id of another cluster whose node was last found at a configured address of the quorum."""
        self.security: SecureListeners | None = None
        """The TLS and SASL of the controller listeners; None if all of them are PLAINTEXT."""
        self._own_security: Callable[[], Security] | None = None
        """Returns the security of this node's connections to controllers; None if they are PLAINTEXT."""
        self._proving: frozenset[str] = frozenset()
        """The controller listeners on which every caller has to prove a name."""
        self._named: frozenset[str] = frozenset()
        """The controller listeners on which callers may prove a name: those with TLS or SASL."""
        self._secret = secret
        self._complaints = Complaints() if complaints is None else complaints
        self._incidents = Incidents(self._complaints) if incidents is None else incidents
        self._known_networks: dict[str, None] = {}
        """Networks of nodes that have authenticated themselves, the latest last."""
        self._failed_networks: dict[str, None] = {}
        """Networks whose connections to this node were closed before any had proved itself, the latest last."""
        self._tasks = tasks
        self.run = functools.partial(_run, tasks)
        self._tick_seconds = silence_ms / 1000 / TICKS_OF_SILENCE
        self._voters: dict[int, Address] = {}
        self._callers: dict[int, Dialer] = {}
        self._bootstrap: dict[Address, Dialer] = {}
        self._up: dict[int, Link] = {}
        self._half_open: dict[Link, None] = {}
        self._receivers: dict[str, Receiver] = {}
        self._handlers: dict[str, Handler] = {}
        self._on_connection: list[OnConnection] = []
        self._new_client: dict[str, NewClient] = {}
        """The function for each controller listener, by name; empty until the node serves clients there."""
        self._servers: dict[Listener, asyncio.Server] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._is_closed = False
        self.receive_buffer = memoryview(b"")
        """The buffer of all links with TLS: bytes are processed before the next are received."""

    # --- for the node ------------------------------------------------------------------------

    @property
    def peers(self) -> list[int]:
        """The ids of nodes whose link is up, sorted."""
        return sorted(self._up)

    @property
    def is_protected(self) -> bool:
        """True if this node has a secret, which peers must prove to know."""
        return self._secret is not None

    def secure(self, config: BrokerConfig, listeners: SecureListeners) -> None:
        """Use the TLS and SASL settings of the controller listeners. Call it before `listen`."""
        own, mechanism = config.controller_security, config.controller_mechanism
        if own is not None:
            self._own_security = functools.partial(security_to, own, mechanism, listeners.context_for)
        controllers = [each for each in config.secured if each.listener in config.controller_listener_names]
        if controllers:
            self.security = listeners
            self.receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
            self._proving = frozenset(each.listener for each in controllers if each.proves_clients)
            self._named = frozenset(each.listener for each in controllers)

    def own_security(self) -> Security | None:
        """Return the security of this node's connections to controllers; None if they are PLAINTEXT."""
        return None if self._own_security is None else self._own_security()

    def key_for(self, purpose: bytes) -> bytes:
        """Derive a 32-byte key for another use, which reveals neither the secret nor the links' key."""
        return blake2b(purpose, key=self.key, digest_size=32).digest()

    def is_connected(self, peer: int) -> bool:
        """Return whether the link to this peer is up."""
        return peer in self._up

    def send(self, peer: int, kind: str, body: Body) -> bool:
        """Send a one-way message; return False if there is no link. Delivery is not guaranteed."""
        connection = self._up.get(peer)
        return connection is not None and connection.send([ONE_WAY, kind, body])

    async def request(self, peer: int, kind: str, body: Body, timeout_ms: int) -> Body:
        """Send a request and return the answer, with its shape checked. Raises LinkError if there is no valid one."""
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
            raise LinkError(f"node {peer} sent an invalid answer: {error}") from None
        return found

    def receive(self, kind: str, receiver: Receiver) -> None:
        """Register the receiver of one-way messages of a kind."""
        self._receivers[kind] = receiver

    def serve(self, kind: str, handler: Handler) -> None:
        """Register the handler of requests of a kind."""
        self._handlers[kind] = handler

    def on_connection(self, callback: OnConnection) -> None:
        """Register a callback for links that come up or go down, ordered with the messages that arrive on them."""
        self._on_connection.append(callback)

    def serve_clients(self, listener: str, new_client: NewClient) -> None:
        """Serve the clients of a controller listener from now on (KIP-919); until then, they are disconnected."""
        self._new_client[listener] = new_client

    def disconnect(self, peer: int) -> None:
        """Close the link to a peer; it may be established again."""
        if (connection := self._up.get(peer)) is not None:
            connection.close("this node closed it")

    # --- start and stop ----------------------------------------------------------------------

    async def derive_key(self) -> None:
        """Derive the key from the secret in a thread, which takes some 50 ms. `start` waits for it."""
        if self._secret is not None and self.key is NO_SECRET_KEY:
            self.key = await asyncio.to_thread(derived_key, self._secret)

    def remote_listener(self) -> str | None:
        """Return a bound address that is reachable from other machines, if any."""
        hosts = [str(each.getsockname()[0]) for server in self._servers.values() for each in server.sockets]
        return next((host for host in hosts if not is_loopback(host)), None)

    def why_untrusted(self, config: BrokerConfig, voters: Mapping[int, Address] = MappingProxyType({})) -> str | None:
        """Explain why other nodes cannot be trusted: a quorum beyond this machine needs a secret. None if they can.

        A node that is its own quorum may have an unused controller listener, as in Kafka's examples for a single node.
        Without a secret it accepts no connection from beyond this machine (`forbids_links_to`). `voters` are the others
        that the log or the directory names.
        """
        if self.is_protected or (config.is_own_quorum and not voters):
            return None
        own = [listener.name for listener in config.controller_listeners]
        if self._own_security is not None and self._proving.issuperset(own):
            return None
        hosts = [voter.address.host for voter in config.controller_quorum_voters]
        hosts = hosts or [address.host for address in config.controller_quorum_bootstrap_servers]
        hosts += [address.host for address in voters.values()]
        where = self.remote_listener() or next(filter(is_remote_address, hosts), None)
        if where is None:
            return None
        return (
            f"kraftpy.quorum.secret is not set, and {where} is beyond this machine: set the same secret on every node "
            "of the cluster (kraftpy.quorum.secret or kraftpy.quorum.secret.file), or keep the quorum on 127.0.0.1"
        )

    def forbids_links_to(self, host: str, listener: str | None = None) -> bool:
        """Return whether links to an address are forbidden: other machines require a secret, or TLS or SASL.

        `listener` is the one to which a peer has connected; None if this node connects.
        """
        is_proved = self._own_security is not None if listener is None else listener in self._proving
        return self._secret is None and not is_proved and not is_loopback(host)

    async def listen(self, listener: Listener) -> int:
        """Bind an address on which `start` will accept connections; return the port. Raises StartupError."""
        with opening(listener):
            server = await asyncio.get_running_loop().create_server(
                functools.partial(_accepted, self, listener.name),
                listener.host or None,
                listener.port,
                backlog=128,
                start_serving=False,
            )
        self._servers[listener] = server
        return int(server.sockets[0].getsockname()[1])

    async def start(
        self, voters: Mapping[int, Address], bootstrap: tuple[Address, ...] = (), *, is_voter: bool | None = None
    ) -> None:
        """Start connecting and accepting connections. Register receivers, handlers and callbacks before this.

        `bootstrap` lists addresses of voters whose ids are not known.
        """
        await self.derive_key()
        for listener, server in self._servers.items():
            with opening(listener):
                await server.start_serving()
        self._ticking = self._tasks.create_task(self._tick(), name="links")
        self.set_voters(voters, is_voter=is_voter)
        for address in bootstrap:
            self._bootstrap[address] = Dialer(self, None, address, self._tasks)

    def set_voters(self, voters: Mapping[int, Address], *, is_voter: bool | None = None) -> None:
        """Update the voters. Links to nodes that no longer vote stay open until the peer closes them."""
        if is_voter is not None:
            self.is_voter = is_voter
            if is_voter:  # it knows the others, and they connect to it
                self.forget_bootstrap(*self._bootstrap)
        self._voters = {node_id: address for node_id, address in voters.items() if node_id != self.node_id}
        for node_id in [*self._callers]:
            if self._voters.get(node_id) != self._callers[node_id].address:
                self._callers.pop(node_id).stop()
        for node_id, address in self._voters.items():
            if node_id not in self._callers and self._ticking is not None and not self._is_closed:
                self._callers[node_id] = Dialer(self, node_id, address, self._tasks)

    def forget_bootstrap(self, *addresses: Address) -> None:
        """Stop calling these addresses of `bootstrap`."""
        for address in addresses:
            if (dialer := self._bootstrap.pop(address, None)) is not None:
                dialer.stop()

    async def stop(self) -> None:
        """Close everything."""
        self._is_closed = True
        self._new_client.clear()
        for server in self._servers.values():
            server.close()
        self._on_connection.clear()
        for caller in [*self._callers.values(), *self._bootstrap.values()]:
            caller.stop()
        if self._ticking is not None:
            self._ticking.cancel()
        for connection in [*self._up.values(), *self._half_open]:
            connection.close("this node stops")

    # --- for its connections ------------------------------------------------------------------

    def connects_to(self, peer: int) -> bool:
        """Return whether this node connects to the peer, rather than only knocking."""
        return not self.is_voter or peer not in self._voters or self.node_id > peer

    def may_be_node(self, listener: str, principal: Principal, host: str) -> bool:
        """Return whether a caller may be a node of the cluster; without a secret, its principal needs the right."""
        if self.security is None or self._secret is not None or listener not in self._named:
            return True
        return self.security.may_be_node(principal, host)

    def half_opened(self, connection: Link) -> None:
        """Admit a connection that is not authenticated yet."""
        if self._is_closed:  # accepted just before the stop
            connection.close("this node stops")
            return
        self._half_open[connection] = None
        counts = Counter(network_of(each.host) for each in self._half_open)
        network = network_of(connection.host)
        if counts[network] > _MAX_HALF_OPEN_OF_HOST:
            self._close_oldest(network)
        elif len(self._half_open) > _MAX_HALF_OPEN:
            known, failed = self._known_networks, self._failed_networks
            # The higher its rank, the sooner a network's connection is closed for others.
            ranks = {each: (each not in known, each in failed, count) for each, count in counts.items()}
            last = max(ranks.values())
            self._close_oldest(random.choice([each for each, rank in ranks.items() if rank == last]))

    def _close_oldest(self, network: str) -> None:
        oldest = next(each for each in self._half_open if network_of(each.host) == network)
        oldest.close("there are too many unauthenticated connections", "too many")

    def failed(self, connection: Link) -> None:
        """Remember the network of a connection to this node that was closed before it had proved itself."""
        _remember(self._failed_networks, network_of(connection.host), _MAX_FAILED_NETWORKS)

    def knocked(self, peer: int) -> None:
        """Connect at once to a peer that has just knocked."""
        if peer not in self._up and (caller := self._callers.get(peer)) is not None:
            caller.retry_soon()

    def opened(self, connection: Link, peer: int) -> None:
        """Make this connection the link of its authenticated peer."""
        self._half_open.pop(connection, None)
        network = network_of(connection.host)
        self._failed_networks.pop(network, None)
        _remember(self._known_networks, network, _MAX_KNOWN_NETWORKS)
        if (older := self._up.get(peer)) is not None:
            older.close("the peer opened a newer one")
        self._up[peer] = connection
        logger.info("link to node %d is up", peer)
        for callback in self._on_connection:
            callback(peer, True)

    def closed(self, connection: Link, reason: str) -> None:
        """Remove a connection that is closed."""
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
                caller.retry_soon()

    def login_failed(self, connection: Link, failure: AuthenticationFailed) -> None:
        """Log that a caller could not log in."""
        self.failed(connection)
        assert self.security is not None
        reason = str(failure) if failure.__cause__ is None else f"{failure}: {failure.__cause__}"
        self.security.failed_from(connection.host, printable(reason))

    def take_over(self, listener: str, transport: asyncio.Transport, received: bytes, principal: Principal) -> None:
        """Have the node serve a client's connection, beginning with the bytes received already."""
        if (new_client := self._new_client.get(listener)) is None:
            transport.abort()
            return
        client = new_client()
        if self.security is not None:
            self.security.admit(listener, cast("Connection", client), principal)
        transport.set_protocol(client)
        client.connection_made(transport)
        rest = memoryview(received)
        while rest and not transport.is_closing():
            room = memoryview(client.get_buffer(len(rest)))
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            client.buffer_updated(count)
            rest = rest[count:]

    def note_refusal(self, connection: Link, kind: str, reason: str) -> None:
        """Log that a connection ended before it became a link: each kind of reason once a minute per address."""
        level = logging.INFO if kind in ("lost", "late", "no node", "too many") else logging.WARNING
        self._complaints.write(
            logger, level, f"link {kind}", connection.host, "a connection of the quorum with %s was closed: %s",
            connection.host or "nobody", printable(reason),
        )  # fmt: skip

    def call_failed(self, address: Address, reason: str) -> None:
        """Log that TLS or a login failed on a connection to a controller."""
        self._complaints.write(
            logger, logging.WARNING, "link call", address.host, "no link to %s: %s", address, printable(reason)
        )

    def refuse_body(self, peer: int, error: Exception) -> None:
        """Log that a body was refused because no node of this version sends it."""
        self._complaints.write(
            logger, logging.ERROR, "link body", str(peer), "refused a message from node %d: %s", peer,
            printable(str(error)),
        )  # fmt: skip

    def received_message(self, peer: int, kind: str, body: Body) -> None:
        """Deliver a one-way message."""
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

    def received_request(self, connection: Link, number: int, kind: str, body: Body) -> bool:
        """Answer a request in its own task. If this node is stopping, close the link instead and return False."""
        if self.run(self._answer(connection, number, kind, body), f"answer {printable(kind, 40)}") is not None:
            return True
        connection.close("this node stops")
        return False

    async def _answer(self, connection: Link, number: int, kind: str, body: Body) -> None:
        handler, peer = self._handlers.get(kind), connection.peer
        assert peer is not None
        try:
            if handler is None:
                raise LinkError(f"this node has no handler for {printable(kind, 40)}")
            check(REQUESTS, kind, body)
            answer = [ANSWER, number, await handler(peer, body)]
        except LinkError as error:
            if isinstance(error, BadBodyError):
                self.refuse_body(peer, error)
            answer = [REFUSAL, number, str(error)]
        except Exception as error:
            self._incidents.note(f"the request {kind} of node {peer}", error, kind=f"link request {kind}")
            answer = [REFUSAL, number, f"the request failed: {type(error).__name__}"]
        connection.answer(answer)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            for connection in [*self._up.values()]:
                connection.tick()


def _accepted(links: Links, listener: str) -> asyncio.BaseProtocol:
    """Return the protocol for a socket accepted on this listener."""
    security = links.security
    if security is None:
        return Link(links, is_caller=False, listener=listener)
    from kraftpy.broker.metadata.link_login import LoginServer  # here: most quorums do not need it

    login = None
    if (sasl := security.sasl_settings(listener)) is not None:
        login = LoginServer(security.sasl_of_node(listener, sasl), failure_delay_ms=sasl.failure_delay_ms)
    link = Link(links, is_caller=False, listener=listener, login=login)
    return security.layer(listener, link, link.certified, lambda: link.host) or link


def _run(tasks: Tasks, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
    """Run a link's task; return None if this node is stopping."""
    try:
        return tasks.create_task(coroutine, name=name)
    except RuntimeError:  # the group takes no more tasks
        coroutine.close()
        return None


def network_of(host: str) -> str:
    """Return the network that an address counts for: an IPv6 host has as many addresses as it likes in its /64."""
    if ":" not in host:
        return host
    try:
        address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host
    if address.startswith(_IPV4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, address[len(_IPV4_MAPPED) :])
    return address[:8].hex()


def _remember(networks: dict[str, None], network: str, most: int) -> None:
    """Make this network the latest of at most `most`."""
    networks.pop(network, None)
    networks[network] = None
    if len(networks) > most:
        del networks[next(iter(networks))]
