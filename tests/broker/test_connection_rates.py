"""How fast connections are created: those beyond a rate wait, and those beyond the rate of their address are closed.

The clock of the rates moves only when a test moves it, so that every wait is known; the waits themselves are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from one_broker import BOUND_SECONDS, running
from test_client_quotas import Client, SetClock, administering
from test_many_share_partitions import Calls

from kraftpy.broker.broker import Broker
from kraftpy.broker.quotas import connections
from kraftpy.broker.quotas.connections import ConnectionQuotas
from kraftpy.broker.quotas.hosts import addresses_of, normal_address
from kraftpy.client import KafkaError, ResourceType
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.quotas.entities import entity_of
from kraftpy.quotas.limits import Limits

WINDOW_SECONDS = 10


@asynccontextmanager
async def rated(directory: Path, *settings: str) -> AsyncIterator[tuple[Broker, SetClock]]:
    """A broker whose rates of connections go by a clock that is set."""
    clock = SetClock()
    async with running(directory, *settings) as broker:
        broker.connection_quotas = ConnectionQuotas(
            broker.settings, clock, lambda: broker.image, broker.tasks, broker.complaints
        )
        yield broker, clock


async def connect(broker: Broker) -> Client:
    listener = broker.advertised[0]
    return Client(*await asyncio.open_connection(listener.host, listener.port), "test")


async def is_served(client: Client) -> bool:
    """Return whether the broker answers; False if it closes."""
    try:
        answered = await client.ask(ApiKey.API_VERSIONS, 2, ApiVersionsRequest())
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return bool(answered.error_code == ErrorCode.NONE)


async def waits(broker: Broker, count: int) -> list[Client]:
    """Open connections; return them as soon as the broker lets that many wait."""
    clients = [await connect(broker) for _ in range(count)]
    async with asyncio.timeout(BOUND_SECONDS):
        while sum(connection._is_muted for connection in broker.connections) < count:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.005)
    return clients


@pytest.mark.parametrize(
    "setting", ["max.connection.creation.rate=2", "listener.name.plaintext.max.connection.creation.rate=2"]
)
async def test_connections_beyond_a_rate_wait_and_are_served(tmp_path: Path, setting: str) -> None:
    async with rated(tmp_path, setting) as (broker, _):
        first = [await connect(broker) for _ in range(2 * WINDOW_SECONDS)]
        assert all([await is_served(client) for client in first])
        assert not any(connection._is_muted for connection in broker.connections)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        (late,) = await waits(broker, 1)
        assert await is_served(first[0])  # no client waits for it
        assert await is_served(late)
        assert loop.time() - began_at >= 0.4  # 21 in 10 s are 5 percent too many: half a second
        for client in (*first, late):
            client.close()


async def test_the_rate_can_be_changed_while_the_broker_runs(tmp_path: Path) -> None:
    async with rated(tmp_path) as (broker, clock), administering(broker) as admin:
        name = "max.connection.creation.rate"
        await admin.alter_configs({(ResourceType.BROKER, ""): {name: "1"}})
        clients = [await connect(broker) for _ in range(WINDOW_SECONDS)]
        assert all([await is_served(client) for client in clients])
        clients += await waits(broker, 1)
        await admin.alter_configs({(ResourceType.BROKER, ""): {name: None}})
        own = f"listener.name.plaintext.{name}"
        for bad, problem in (
            ("0", f"Invalid {name} 0"),
            ("-1", f"Invalid value -1 for configuration {name}: Value must be at least 0"),
            ("fast", f"Invalid value fast for configuration {name}: Not a number of type INT"),
            ("2147483648", f"Invalid value 2147483648 for configuration {name}: Not a number of type INT"),
        ):
            with pytest.raises(KafkaError, match=problem) as refused:
                await admin.alter_configs({(ResourceType.BROKER, str(broker.node_id)): {own: bad}})
            assert refused.value.code == ErrorCode.INVALID_REQUEST
        await admin.alter_configs({(ResourceType.BROKER, str(broker.node_id)): {own: "1"}})
        clock.now_ms += 60_000
        clients += [await connect(broker) for _ in range(WINDOW_SECONDS)]
        assert all([await is_served(client) for client in clients[-WINDOW_SECONDS:]])
        clients += await waits(broker, 1)
        for client in clients:
            client.close()


async def test_too_many_that_wait_are_closed_at_once(tmp_path: Path) -> None:
    settings = ("max.connection.creation.rate=1", "socket.listen.backlog.size=2")
    async with rated(tmp_path, *settings) as (broker, _):
        clients = [await connect(broker) for _ in range(WINDOW_SECONDS)]
        waiting = await waits(broker, 2)
        refused = await connect(broker)
        assert not await is_served(refused)
        for client in (*clients, *waiting, refused):
            client.close()


@pytest.mark.parametrize("entity", ["127.0.0.1", None, "localhost"])
async def test_connections_beyond_the_rate_of_their_address_are_held_and_closed(
    tmp_path: Path, entity: str | None
) -> None:
    async with rated(tmp_path) as (broker, clock), administering(broker) as admin:
        await admin.alter_client_quotas({"ip": entity}, {"connection_creation_rate": 1})
        (await connect(broker)).close()  # from here on, the name is being resolved
        async with asyncio.timeout(BOUND_SECONDS):
            while entity is not None and "127.0.0.1" not in broker.connection_quotas._by_address:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        clock.now_ms += 60_000
        clients = [await connect(broker) for _ in range(WINDOW_SECONDS)]
        assert all([await is_served(client) for client in clients])
        (late,) = await waits(broker, 1)
        assert await is_served(clients[0])
        assert not await is_served(late)
        clock.now_ms += 12_000
        again = await connect(broker)
        assert await is_served(again)
        await admin.alter_client_quotas({"ip": entity}, {"connection_creation_rate": None})
        more = [await connect(broker) for _ in range(2 * WINDOW_SECONDS)]
        assert all([await is_served(client) for client in more])
        for client in (*clients, late, again, *more):
            client.close()


async def test_an_address_of_its_own_is_not_held_to_the_default(tmp_path: Path) -> None:
    async with rated(tmp_path) as (broker, _), administering(broker) as admin:
        await admin.alter_client_quotas({"ip": None}, {"connection_creation_rate": 1})
        await admin.alter_client_quotas({"ip": "::ffff:127.0.0.1"}, {"connection_creation_rate": 1000})
        clients = [await connect(broker) for _ in range(3 * WINDOW_SECONDS)]
        assert all([await is_served(client) for client in clients])
        for client in clients:
            client.close()


async def test_addresses_are_compared_in_one_form() -> None:
    assert normal_address("::ffff:10.0.0.1") == normal_address("10.0.0.1") == "10.0.0.1"
    assert normal_address("0:0:0:0:0:0:0:1") == normal_address("::1%lo") == "::1"
    assert normal_address("example") is None
    assert "127.0.0.1" in await addresses_of("localhost")
    for nothing in ("", "\0", "a" * 300, "no-such-host.invalid"):
        assert await addresses_of(nothing) == []


async def test_quotas_of_many_addresses_are_looked_up_in_slices_and_changes_meanwhile_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    monkeypatch.setattr(Limits, "of_ip", calls.wrapping(Limits.of_ip))
    at_once = connections._LOOKED_UP_AT_ONCE
    many = 4 * at_once
    async with rated(tmp_path) as (broker, _):
        limits, key = broker.image.quotas.limits, "connection_creation_rate"
        for number in range(many):
            limits.set(entity_of([("ip", f"::ffff:10.{number >> 8}.0.{number & 255}")]), key, 5.0)
        clients = [await connect(broker)]
        assert await is_served(clients[0])
        limits.set(entity_of([("ip", "10.0.1.1")]), key, 7.0)
        clients.append(await connect(broker))
        assert await is_served(clients[1])
        async with asyncio.timeout(BOUND_SECONDS):
            while len(broker.connection_quotas._by_address) < many + 1:  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0)
        assert broker.connection_quotas._by_address["10.0.0.7"] == 5.0
        assert broker.connection_quotas._by_address["10.0.1.1"] == 7.0
        assert 0 < calls.most <= 2 * at_once + 2
        for client in clients:
            client.close()
