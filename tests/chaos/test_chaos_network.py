"""The simulated network: what becomes of an attempt to connect that is given up."""

from __future__ import annotations

import asyncio

from chaos.worlds.loop import Process, SimulatedLoop
from chaos.worlds.network import Network


class Peer(asyncio.Protocol):
    """Notes what becomes of its connection."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.happened.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.happened.append(f"lost {type(exc).__name__}")


def give_up(*, listens: bool) -> tuple[SimulatedLoop, list[Peer]]:
    """A client that waits a second for a server which answers after two."""
    loop = SimulatedLoop(1)
    network = Network(loop, 1)
    server, client = Process(loop, "server", "server", "1"), Process(loop, "client", "client", "2")
    peers: list[Peer] = []

    def accept() -> Peer:
        peers.append(Peer())
        return peers[-1]

    async def listen() -> None:
        if listens:
            await asyncio.get_running_loop().create_server(accept, "server", 9092)

    async def connect() -> str:
        network.degrade("server", "client", 2.0, 0.0, 0.0)
        try:
            async with asyncio.timeout(1.0):
                await asyncio.get_running_loop().create_connection(Peer, "server", 9092)
        except TimeoutError:
            return "gave up"
        return "connected"

    loop.run_until_complete(server.run(listen(), name="listen"))
    assert loop.run_until_complete(client.run(connect(), name="connect")) == "gave up"
    loop.run_for(100.0)
    return loop, peers


def test_a_connection_that_nobody_waits_for_any_more_is_reset() -> None:
    loop, peers = give_up(listens=True)
    assert [peer.happened for peer in peers] == [["made", "lost ConnectionResetError"]]
    assert loop.unhandled == []


def test_a_refusal_that_nobody_waits_for_is_nobodys_error() -> None:
    loop, _ = give_up(listens=False)
    assert loop.unhandled == []
