"""Sessions of links: renewed by the caller before they end, and closed by the called side if they are not (KIP-368)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata import dialing
from kraftpy.broker.metadata.link import LOGIN, Link
from kraftpy.broker.metadata.link_login import prove
from kraftpy.broker.metadata.transport import Links
from kraftpy.client.security import Login
from kraftpy.config import Address, BrokerConfig, Listener
from kraftpy.metadata.codec import pack
from kraftpy.security.plain import plain_message
from tests.security.listeners import secure_listeners

HOST = "127.0.0.1"
BOUND_SECONDS = 20.0
SESSION_MS = 1_200
PREFIX = "listener.name.controller.plain."
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def config(node: int, user: str = "node", password: str = "right", session_ms: int = SESSION_MS) -> BrokerConfig:
    return BrokerConfig.of(
        {
            "process.roles": "controller",
            "node.id": str(node),
            "controller.quorum.voters": f"1@{HOST}:1,2@{HOST}:2",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://{HOST}:0",
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            f"{PREFIX}sasl.jaas.config": f'{MODULE} required username="{user}" password="{password}" '
            'user_node="right" user_other="right";',
            f"{PREFIX}connections.max.reauth.ms": str(session_ms),
            "connection.failed.authentication.delay.ms": "0",
            "log.dirs": "unused",
        }
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


class Pair:
    """Node 2, which calls node 1."""

    def __init__(self, called: Links, caller: Links) -> None:
        self.called = called
        self.caller = caller

    def link(self) -> Link:
        """The called side of the link."""
        return self.called._up[2]

    async def until_up(self, other_than: Link | None = None) -> Link:
        await until(lambda: self.called._up.get(2) not in (None, other_than) and 1 in self.caller.peers)
        return self.link()


@contextlib.asynccontextmanager
async def pair(session_ms: int = SESSION_MS) -> AsyncIterator[Pair]:
    async with asyncio.TaskGroup() as group:
        made = []
        for node in (1, 2):
            settings = config(node, session_ms=session_ms)
            links = Links(node, is_voter=True, tasks=cast("Tasks", group), silence_ms=600)
            secure_listeners(settings, links=links)
            made.append(links)
        called, caller = made
        port = await called.listen(Listener(name="CONTROLLER", host=HOST, port=0))
        await called.start({})
        await caller.start({1: Address(HOST, port)})
        yield Pair(called, caller)
        await caller.stop()
        await called.stop()


async def test_a_link_lasts_longer_than_its_sessions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with pair() as nodes:
        link = await nodes.until_up()
        first = link._login._sasl.expires_at_ms  # type: ignore[union-attr]
        await asyncio.sleep(3 * SESSION_MS / 1000)
        assert nodes.link() is link
        assert link._login._sasl.expires_at_ms > first + SESSION_MS  # type: ignore[union-attr, operator]
        assert nodes.caller.send(1, "anything", {})
    assert caplog.text.count("link to node 2 is up") == 1


async def test_a_link_without_a_renewal_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("kraftpy.client.login.renewed_after_ms", lambda lifetime_ms, random: None)
    async with pair(session_ms=300) as nodes:
        link = await nodes.until_up()
        await nodes.until_up(other_than=link)
    assert "is down: its session has expired, and it has not authenticated again" in caplog.text


async def test_nothing_is_taken_after_the_end_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame that arrives first closes the link; its message is not delivered."""
    monkeypatch.setattr("kraftpy.client.login.renewed_after_ms", lambda lifetime_ms, random: None)
    async with pair(session_ms=60_000) as nodes:
        link = await nodes.until_up()
        received: list[Any] = []
        nodes.called.receive("a message", lambda peer, body: received.append(body))
        link._login._sasl.expires_at_ms = 0.0  # type: ignore[union-attr]
        assert nodes.caller.send(1, "a message", {})
        await nodes.until_up(other_than=link)
        assert received == []
        assert nodes.caller.send(1, "a message", {"a": 1})
        await until(lambda: received)
        assert received == [{"a": 1}]


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("other", "right", "Cannot change principals during re-authentication from User.node: User.other"),
        ("node", "wrong", "Invalid username or password"),
    ],
)
async def test_a_renewal_that_fails_closes_the_link(
    caplog: pytest.LogCaptureFixture, user: str, password: str, reason: str
) -> None:
    """Messages that the caller sends behind it do not count, and the caller learns the reason."""
    async with pair() as nodes:
        link = await nodes.until_up()
        received: list[Any] = []
        nodes.called.receive("a message", lambda peer, body: received.append(body))
        own = nodes.caller._up[1]
        own.close = lambda reason, kind="lost": Link.close(own, reason, kind)  # type: ignore[method-assign]
        refused = asyncio.create_task(prove(Login(mechanism="PLAIN", username=user, password=password), HOST, own.ask))
        await asyncio.sleep(0)
        nodes.caller.send(1, "a message", {})
        with pytest.raises(Exception, match=reason):
            await refused
        await nodes.until_up(other_than=link)
        assert received == []
    assert f"Failed authentication with {HOST} (" in caplog.text
    assert reason in caplog.text


async def test_a_caller_that_has_lost_its_rights_is_not_renewed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair() as nodes:
        await nodes.until_up()
        monkeypatch.setattr(nodes.called, "may_be_node", lambda listener, principal, host: False)
        await until(lambda: not nodes.called.peers)
    assert "User:node may not be a node" in caplog.text


@pytest.mark.parametrize("session_ms", [0, 60_000])
async def test_a_login_out_of_turn_closes_the_link(session_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    """If the session has no end; or a second time within a second; or if there is no login at all on this side."""
    caplog.set_level("INFO")
    token = pack({"mechanism": "PLAIN", "token": plain_message("node", "right")})
    async with pair(session_ms=session_ms) as nodes:
        link = await nodes.until_up()
        own = nodes.caller._up[1]
        for _ in range(2):
            own.send([LOGIN, token])
        await nodes.until_up(other_than=link)
        assert nodes.called._up[2].send([LOGIN, token]), "the caller expects no answer"
        await nodes.until_up(other_than=nodes.link())
    assert "it logs in again, but its session does not end, or has just begun" in caplog.text
    assert "it sent an unexpected frame of a login" in caplog.text


async def test_a_renewal_that_is_not_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "_SECURE_CONNECT_SECONDS", 0.2)
    async with pair() as nodes:
        link = await nodes.until_up()
        monkeypatch.setattr(link, "_receive_login", lambda frame: None)
        monkeypatch.setattr(link, "_end_session", lambda: None)
        await nodes.until_up(other_than=link)


async def test_a_login_that_takes_time_is_checked_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another frame meanwhile is refused before the login, and other frames are served during a renewal."""
    may_go_on = asyncio.Event()

    async def wait() -> None:
        await may_go_on.wait()

    monkeypatch.setattr("kraftpy.security.sasl.PlainServer.prepare", lambda self, token: wait())
    may_go_on.set()
    async with pair() as nodes:
        link = await nodes.until_up()
        may_go_on.clear()
        await until(lambda: link._is_checking)
        received: list[Any] = []
        nodes.called.receive("a message", lambda peer, body: received.append(body))
        assert nodes.caller.send(1, "a message", {})
        await until(lambda: received)
        may_go_on.set()
        await until(lambda: not link._is_checking)
        assert nodes.link() is link
