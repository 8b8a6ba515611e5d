"""Keys of tokens on a broker: fetched, kept, and not fetched again for every token that names an unknown one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from kraftpy.broker.security.jwks import MISSING_KEYS, MISSING_SECONDS, Jwks
from kraftpy.config.security import OauthbearerSettings
from kraftpy.endpoints import EndpointError
from kraftpy.security.json_web_tokens import Header, JwksError, KeySet, TokenRules, parse_jwks
from tests.security.tokens import Issuer

ISSUER = Issuer()
RULES = TokenRules(issuer="i", audience=("a",))


class Keys:
    """A source of keys that counts how often it is asked, and the loop's time, which is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: int) -> None:
        self.asked = 0
        self.shown: tuple[str, ...] = ("rsa",)
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        usual = {"refresh_ms": 3_600_000, "backoff_ms": 1, "backoff_max_ms": 10_000}
        made = OauthbearerSettings(rules=RULES, url="https://x/keys", **{**usual, **settings})
        self.jwks = Jwks("SASL", made, self._load)
        loop = asyncio.get_running_loop()
        real = loop.time
        self.ahead = 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead)

    def _load(self) -> KeySet:
        self.asked += 1
        self.may_answer.wait(20)
        if self.error is not None:
            raise self.error
        return parse_jwks(ISSUER.jwks(*self.shown))

    async def has(self, key_id: str) -> bool:
        """Do what a login does; return whether the key is there then."""
        header = Header("RS256" if key_id != "ec" else "ES256", key_id)
        if (needed := self.jwks.prepare(header)) is not None:
            await needed
        return self.jwks.keys is not None and self.jwks.keys.find(header) is not None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.jwks.run())
        try:
            await until(lambda: self.asked == 1)
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def test_unknown_keys_do_not_make_a_storm(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(monkeypatch)
    async with keys.running():
        assert await keys.has("rsa")
        assert keys.asked == 1
        found = await asyncio.gather(*(keys.has(f"random-{number}") for number in range(500)))
        assert not any(found)
        assert keys.asked == 2  # all waited for one look
        for number in range(500):
            assert not await keys.has(f"other-{number}")
        assert keys.asked == 2
        keys.shown = ("rsa", "ec")
        keys.ahead += 10.1
        assert await keys.has("ec")
        assert keys.asked == 3


async def test_a_key_that_is_not_there_is_looked_for_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(monkeypatch, backoff_max_ms=1_000)
    async with keys.running():
        assert await keys.has("rsa")
        assert not await keys.has("ec")
        asked = keys.asked
        keys.ahead += MISSING_SECONDS / 2
        assert not await keys.has("ec")
        assert keys.asked == asked
        keys.ahead += MISSING_SECONDS / 2 + 1
        keys.shown = ("rsa", "ec")
        assert await keys.has("ec")


async def test_few_unknown_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(monkeypatch, backoff_max_ms=1_000)
    async with keys.running():
        assert await keys.has("rsa")
        for number in range(MISSING_KEYS + 1):
            keys.ahead += 1.1
            assert not await keys.has(f"random-{number}")
        asked = keys.asked
        keys.ahead += 1.1
        assert not await keys.has(f"random-{MISSING_KEYS}")
        assert keys.asked == asked
        assert not await keys.has("random-0")  # it was forgotten
        assert keys.asked == asked + 1


@pytest.mark.parametrize("error", [EndpointError("x: timed out"), JwksError("x: no keys"), OSError("no threads")])
async def test_keys_stay_when_others_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    keys = Keys(monkeypatch, refresh_ms=1)
    async with keys.running():
        assert await keys.has("rsa")
        keys.error = error
        asked = keys.asked
        await until(lambda: keys.asked > asked + 3)
        assert await keys.has("rsa")
        assert "the present ones stay in use" in caplog.text
        keys.error, keys.shown = None, ("ec",)
        known = keys.jwks.keys
        await until(lambda: keys.jwks.keys is not known)
        assert await keys.has("ec")
        assert not await keys.has("rsa")


async def test_without_keys_nobody_waits_for_ever_and_the_endpoint_is_not_flooded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = Keys(monkeypatch, backoff_ms=10_000)
    keys.error = EndpointError("down")
    async with keys.running():
        found = await asyncio.gather(*(keys.has("rsa") for _ in range(200)))
        for _ in range(200):
            found.append(await keys.has("rsa"))
        assert not any(found)
        assert keys.asked <= 2
        keys.error = None
        keys.ahead += 10.1
        assert await keys.has("rsa")


async def test_a_login_that_waits_for_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kraftpy.broker.security.jwks.MOST_WAIT_SECONDS", 0.05)
    keys = Keys(monkeypatch)
    keys.may_answer.clear()
    async with keys.running():
        assert not await keys.has("rsa")
        keys.may_answer.set()
        await until(lambda: keys.jwks.keys is not None)
        assert keys.asked == 1
        assert await keys.has("rsa")


async def test_waiting_ends_with_the_connection_and_not_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(monkeypatch)
    keys.may_answer.clear()
    async with keys.running():
        first, second = (asyncio.create_task(keys.has("rsa")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        keys.may_answer.set()
        assert await second
