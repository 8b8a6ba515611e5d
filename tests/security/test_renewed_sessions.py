"""Our clients renew sessions before they end, on their connections (KIP-368)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.client import Admin, Consumer, ErrorCode, KafkaError, OffsetSpec, Producer, RangeReader, TopicPartition
from kraftpy.client.connection import Connection
from kraftpy.client.login import renewed_after_ms
from kraftpy.client.ranges.connection import BlockingConnection
from kraftpy.client.security import Login, Security
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import HOST, ReservedPorts
from tests.security.listeners import PLAIN_MODULE, add_users, open_connection
from tests.security.tokens import unsecured_token
from tests.waiting import sleep_until

SESSION_MS = 1_300
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")


class Listeners:
    """A broker whose sessions are short, and a plain listener."""

    def __init__(self, ports: ReservedPorts) -> None:
        self.port, self.plain = ports.reserve(), ports.reserve()
        self.broker = EmbeddedBroker(
            settings={
                "listeners": f"SASL://{HOST}:{self.port},PLAIN://{HOST}:{self.plain}",
                "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,PLAIN:PLAINTEXT",
                "inter.broker.listener.name": "PLAIN",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="a";',
                "connections.max.reauth.ms": str(SESSION_MS),
                "kraftpy.sasl.oauthbearer.allow.unsecured.tokens": "true",
            }
        )

    def login(self, mechanism: str, token: Callable[[], str] = unsecured_token) -> Login:
        if mechanism == "OAUTHBEARER":
            return Login(mechanism=mechanism, token=token)
        return Login(mechanism=mechanism, username="alice", password="a")

    def options(self, mechanism: str) -> dict[str, Any]:
        own = {"sasl_username": "alice", "sasl_password": "a"}
        return {
            "bootstrap_servers": f"{HOST}:{self.port}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            **({"sasl_oauthbearer_token_provider": unsecured_token} if mechanism == "OAUTHBEARER" else own),
        }

    async def open(self, login: Login) -> Connection:
        return await open_connection(self.port, login)


@pytest.fixture(scope="module")
def listeners() -> Iterator[Listeners]:
    with ReservedPorts() as ports:
        made = Listeners(ports)
        with made.broker as running:
            add_users(f"{HOST}:{made.plain}", "alice", password="a")
            yield made
            assert "Traceback" not in running.log_text


async def test_a_connection_outlives_its_session(listeners: Listeners) -> None:
    connections = [await listeners.open(listeners.login(mechanism)) for mechanism in MECHANISMS]
    ends_at = time.monotonic() + 2.1 * SESSION_MS / 1000
    while time.monotonic() < ends_at:
        await asyncio.gather(*(ask(connection) for connection in connections for _ in range(3)))
    assert not any(connection.closed for connection in connections)
    for connection in connections:
        connection.close()


async def ask(connection: Connection) -> Any:
    return await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))


async def test_a_connection_that_was_idle_is_renewed_late(listeners: Listeners) -> None:
    connections = [await listeners.open(listeners.login(mechanism)) for mechanism in MECHANISMS]
    await asyncio.to_thread(sleep_until, time.monotonic() + SESSION_MS / 1000 + 0.05)
    await asyncio.gather(*(ask(connection) for connection in connections for _ in range(20)))
    assert not any(connection.closed for connection in connections)
    for connection in connections:
        connection.close()


async def test_a_renewal_that_fails_fails_the_requests_that_wait_for_it(listeners: Listeners) -> None:
    names = iter(("alice", "bob"))
    connection = await listeners.open(listeners.login("OAUTHBEARER", lambda: unsecured_token(sub=next(names))))
    await asyncio.to_thread(sleep_until, time.monotonic() + SESSION_MS / 1000 * 0.96)
    requests = [connection.request(ApiKey.METADATA, MetadataRequest(topics=[])) for _ in range(3)]
    for failed in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(failed, KafkaError)
        assert failed.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals during re-authentication" in str(failed)
    assert connection.closed
    with pytest.raises(KafkaError):
        await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))


async def test_a_provider_that_fails_at_a_renewal_costs_the_connection(listeners: Listeners) -> None:
    given: list[str] = []

    def provide() -> str:
        if given:
            raise RuntimeError("no more")
        given.append(unsecured_token())
        return given[0]

    connection = await listeners.open(listeners.login("OAUTHBEARER", provide))
    await asyncio.to_thread(sleep_until, time.monotonic() + SESSION_MS / 1000 * 0.96)
    with pytest.raises(KafkaError, match="RuntimeError: no more"):
        await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
    assert connection.closed


async def test_closing_ends_a_renewal(listeners: Listeners) -> None:
    connection = await listeners.open(listeners.login("PLAIN"))
    await asyncio.to_thread(sleep_until, time.monotonic() + SESSION_MS / 1000 * 0.96)
    waiting = connection.send(ApiKey.METADATA, MetadataRequest(topics=[]), 12)
    connection.close()
    with contextlib.suppress(KafkaError):
        await waiting
    await connection.wait_closed()
    assert {task for task in asyncio.all_tasks() if "_log_in_again" in repr(task) and not task.done()} == set()


def test_a_blocking_connection_outlives_its_session(listeners: Listeners) -> None:
    login = listeners.login("SCRAM-SHA-256")
    connection = BlockingConnection(
        HOST, listeners.port, client_id="b", request_timeout_ms=20_000, setup_timeout_ms=20_000,
        security=Security(login=login),
    )  # fmt: skip
    for _ in range(2):
        sleep_until(time.monotonic() + SESSION_MS / 1000 * 0.96)
        connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
    connection.close()


async def test_clients_go_on_on_the_connections_that_they_have(listeners: Listeners) -> None:
    opened: list[str] = []
    open_connection = Connection.open.__func__  # type: ignore[attr-defined]

    async def count(cls: type[Connection], *arguments: Any, **named: Any) -> Connection:
        made: Connection = await open_connection(cls, *arguments, **named)
        opened.append(made.name)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "open", classmethod(count))
        options = listeners.options("OAUTHBEARER")
        async with (
            Producer(**options) as producer,
            Admin(**options) as admin,
            Consumer("renewed", group_id="renewed", auto_offset_reset="earliest", **options) as consumer,
        ):
            await (await producer.send("renewed", b"0"))
            assert (await anext(consumer)).value == b"0"
            await admin.list_topics()
            before = len(opened)
            ends_at, sent = time.monotonic() + 1.5 * SESSION_MS / 1000, 0
            while time.monotonic() < ends_at:
                sent += 1
                await (await producer.send("renewed", b"%d" % sent))
                assert (await anext(consumer)).value == b"%d" % sent
                await admin.list_topics()
            assert len(opened) == before
    with RangeReader(**listeners.options("PLAIN")) as reader:
        found = reader.offsets({TopicPartition("renewed", 0): OffsetSpec.LATEST})[TopicPartition("renewed", 0)]
        assert found is not None
        assert found.offset == sent + 1


@pytest.mark.parametrize(
    ("lifetime_ms", "random", "after"),
    [(0, 0.5, None), (1_000, 0.99, None), (1_170, 0.0, None), (10_000, 0.0, 8_500.0), (10_000, 0.999, 9_499.0)],
)
def test_when_a_session_is_renewed(lifetime_ms: int, random: float, after: float | None) -> None:
    assert renewed_after_ms(lifetime_ms, random) == (None if after is None else pytest.approx(after))
