"""The network of a simulation: TCP between processes, as programs see it.

Bytes arrive in order, whole or split anywhere, after a delay drawn from the seed; loss is a delay, since TCP sends
again. A cut link holds bytes back and releases them, all at once and in order, some time after it is healed; a
connection survives that, and is half open meanwhile. A process that dies while its machine lives has its connections
reset; a machine that dies leaves its peers with half-open ones, which are reset when they send to it after it is back.
A link may be cut in one direction only. An attempt to connect that is not answered is repeated and may in the end be
answered twice: the server then sees a connection that its client knows nothing of.

A receiver that does not read holds at most `tcp.WINDOW_BYTES`; then the sender's own buffer grows, and its protocol
gets `pause_writing` (asyncio's flow control).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from chaos.worlds.loop import Process, SimulatedLoop, current
from chaos.worlds.tcp import Endpoint, Flow, Socket, Transport

_FIRST_PORT: Final = 49152
_RETRY_SYN: Final = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
_CONNECT_TIMEOUT: Final = 127.0
_ACCEPT_SECONDS: Final = 0.002
"""The longest time between a connection's last packet and the turn of the server's loop that accepts it."""


class Link:
    """The path between two hosts, in one direction. Times are in seconds; `loss` is the chance of a resend."""

    __slots__ = ("bytes_per_second", "is_cut", "jitter", "latency", "loss", "random")

    def __init__(self, random: Random) -> None:
        self.random = random
        self.make_good()

    def make_good(self) -> None:
        """Make it whole and fast, as it was at first."""
        self.latency = 0.0002
        self.jitter = 0.0003
        self.loss = 0.0
        self.bytes_per_second = 500e6
        self.is_cut = False

    def delay(self, size: int) -> float:
        """Return the seconds that a packet takes."""
        seconds = self.latency + self.random.random() * self.jitter + size / self.bytes_per_second
        while self.loss and self.random.random() < self.loss:
            seconds += 0.2
        return seconds


class Network:
    """All hosts and the links between them."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(f"network {seed}")
        self.phantoms = 0.0
        """The chance that an attempt to connect reaches the server twice."""
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[tuple[str, int], Server] = {}
        self._next_port = _FIRST_PORT
        self._machines_down: set[str] = set()
        self._flows: dict[tuple[str, str], dict[Flow, None]] = {}
        loop.network = self

    # --- what lies between ---

    def link(self, source: str, target: str) -> Link:
        """Return the link from one host to another; it stays the same for the whole simulation."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self.random)
        return found

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from one host to the other."""
        if source != target:
            self.link(source, target).is_cut = True

    def heal(self) -> None:
        """Make all links whole and fast; bytes held back continue on their way."""
        for pair, link in self._links.items():
            was_cut = link.is_cut
            link.make_good()
            if was_cut:
                self.released(pair)

    def mend(self, source: str, target: str) -> None:
        """Make this direction whole again."""
        link = self.link(source, target)
        if link.is_cut:
            link.is_cut = False
            self.released((source, target))

    def degrade(self, source: str, target: str, latency: float, jitter: float, loss: float) -> None:
        """Make this direction slower by this many seconds, and lossy; zeros make it good again."""
        link, good = self.link(source, target), Link(self.random)
        link.latency, link.jitter, link.loss = good.latency + latency, good.jitter + jitter, loss

    def released(self, pair: tuple[str, str]) -> None:
        """Send again what a cut held back, after TCP's current timeout."""
        for flow in list(self._flows.get(pair, ())):
            flow.retransmit()

    # --- machines ---

    def machine_down(self, host: str) -> None:
        """Cut the machine's power: its peers do not hear of it."""
        self._machines_down.add(host)
        self._forget_listeners(host)

    def machine_up(self, host: str) -> None:
        """Restore the power; data sent to its old connections is answered with a reset."""
        self._machines_down.discard(host)
        for pair in list(self._flows):
            if pair[1] == host and not self.link(*pair).is_cut:
                self.released(pair)

    def is_up(self, host: str) -> bool:
        """Return True if the machine answers at all."""
        return host not in self._machines_down

    def _forget_listeners(self, host: str) -> None:
        for key in [key for key in self._listening if key[0] == host]:
            del self._listening[key]

    # --- listening and connecting ---

    def listen(self, factory: Callable[[], Any], port: int, start_serving: bool) -> Server:
        """Bind a port of the process that runs now. Raises OSError if it is taken."""
        process = current.get()
        assert process is not None, "only processes listen"
        if not port:
            port = self._free_port()
        if (process.host, port) in self._listening:
            raise OSError(98, "Address already in use")
        server = Server(self, process, port, factory, start_serving)
        self._listening[process.host, port] = server
        process.before_death.append(server.close)
        return server

    def closed(self, server: Server) -> None:
        """Remove a server that no longer listens."""
        if self._listening.get((server.process.host, server.port)) is server:
            del self._listening[server.process.host, server.port]

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect to a host. Raises ConnectionRefusedError, or TimeoutError as an OSError, if that fails."""
        process = current.get()
        assert process is not None, "only processes connect"
        gives_up_at = self.loop.time() + _CONNECT_TIMEOUT
        answer: asyncio.Future[Endpoint] = self.loop.create_future()
        try:
            for pause in (*_RETRY_SYN, None):
                self._send_syn(process, host, port, answer)
                wait = gives_up_at - self.loop.time() if pause is None else pause
                if (await asyncio.wait([answer], timeout=max(0.0, wait)))[0]:
                    transport = Transport(answer.result())
                    protocol = transport.begin(factory)
                    protocol.connection_made(transport)
                    transport.opened()
                    return transport, protocol
        except asyncio.CancelledError:
            if answer.done() and answer.exception() is None:
                answer.result().abort()
            raise
        finally:
            answer.cancel()  # any later answer comes too late
        raise TimeoutError(110, "Connection timed out")

    def _send_syn(self, process: Process, host: str, port: int, answer: asyncio.Future[Endpoint]) -> None:
        if self.link(process.host, host).is_cut or not self.is_up(host):
            return
        times = 2 if self.phantoms and self.random.random() < self.phantoms else 1
        for _ in range(times):
            delay = self.link(process.host, host).delay(60)
            self.loop.call_at(
                self.loop.time() + delay,
                self._syn_arrives,
                process,
                host,
                port,
                answer,
                context=self.loop.outside,
            )

    def _syn_arrives(self, process: Process, host: str, port: int, answer: asyncio.Future[Endpoint]) -> None:
        if not self.is_up(host):
            return
        back = self.link(host, process.host).delay(60)
        server = self._listening.get((host, port))
        is_heard = not self.link(host, process.host).is_cut
        if server is None or not server.is_serving_:
            if is_heard:
                refused = ConnectionRefusedError(111, "Connection refused")

                def refuse() -> None:
                    if not answer.done():
                        answer.set_exception(refused)
                        answer.exception()  # the caller may be at its next attempt by now, or dead

                self._tell(process, back, refuse)
            return
        near = Endpoint(self, process, self._free_port(), host, port)
        far = Endpoint(self, server.process, port, process.host, near.port)
        near.join(far)
        far.join(near)
        server.accept(far)
        if not is_heard:
            far.peer_knows_nothing()
            return

        def established() -> None:
            if answer.done() or process.is_dead:  # this attempt came late: it is reset
                near.abort()
                return
            answer.set_result(near)

        self._tell(process, back, established)

    def _tell(self, process: Process, delay: float, callback: Callable[[], object]) -> None:
        self.loop.call_later(delay, process.call_soon, callback, context=self.loop.outside)

    def flow_began(self, flow: Flow) -> None:
        """Note a new direction of a connection."""
        self._flows.setdefault((flow.source.process.host, flow.target.process.host), {})[flow] = None

    def flow_ended(self, flow: Flow) -> None:
        """Note that it is gone."""
        self._flows.get((flow.source.process.host, flow.target.process.host), {}).pop(flow, None)


class Server:
    """The server that `create_server` returns."""

    def __init__(
        self, network: Network, process: Process, port: int, factory: Callable[[], Any], start_serving: bool
    ) -> None:
        self.network = network
        self.process = process
        self.port = port
        self.factory = factory
        self.is_serving_ = start_serving
        self.sockets = [Socket(process.host, port)]

    def accept(self, endpoint: Endpoint) -> None:
        """Accept a connection a moment later, by when the server may have been closed."""

        def made() -> None:
            if endpoint.is_closed:
                return
            transport = Transport(endpoint)
            protocol = transport.begin(self.factory)
            protocol.connection_made(transport)
            transport.opened()

        network = self.network
        delay = network.random.random() * _ACCEPT_SECONDS
        network.loop.call_later(delay, self.process.call_soon, made, context=network.loop.outside)

    async def start_serving(self) -> None:
        """Accept connections from now on."""
        self.is_serving_ = True

    def is_serving(self) -> bool:
        """Return True if it accepts connections."""
        return self.is_serving_

    def close(self) -> None:
        """Stop listening."""
        self.is_serving_ = False
        self.network.closed(self)

    async def wait_closed(self) -> None:
        """Return at once: closing takes no time."""
