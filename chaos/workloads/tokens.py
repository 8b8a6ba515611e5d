"""Delegation tokens: created, renewed, ended and used to log in, also after their end (KIP-48).

One user, the *holder*, logs in with its password and sends requests by hand, so that none is repeated: it creates
tokens that last for some seconds, renews some of them, and lets some of them end at once. With a token, known or made
up, it then logs in by SCRAM at any broker, at any time, and asks for metadata on connections that such a login opened.

When all is quiet, `final_logins` creates one more token, waits for the end of most, and tries each on every broker.

Left out: renewers and owners other than the holder; a change of the cluster's secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from chaos.history import Recorder, Type
from chaos.workloads.clients import Setting
from chaos.workloads.wire import Wire
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from kraftpy.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.security.delegation_tokens import password_of
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS, ScramClient, salted_password

HOLDER: Final = "token-holder"
PASSWORD: Final = "holds"
SECRET: Final = "the secret of tokens"
FIRST_PROCESS: Final = 3_600_000
LAST_PROCESS: Final = 3_700_000
PAUSE_SECONDS: Final = 0.4

_SCRAM: Final = "SCRAM-SHA-512"
_LIFE_MS: Final = 8_000
"""The life of a token after its creation, and the most that a renewal adds."""
_RENEWED_MS: Final = (2_000, 15_000)
_LONGEST_MS: Final = (8_000, 25_000)
_LAST_LIFE_MS: Final = 3_600_000
_MOST_TOKENS: Final = 8
_MOST_TRIES: Final = 10
_WAIT_SECONDS: Final = 0.5
_NONCE: Final = "a-nonce-that-anybody-may-know"


@dataclass(slots=True)
class Held:
    """A token as its holder knows it."""

    number: int
    token_id: str
    hmac: bytes


def broker_settings() -> dict[str, str]:
    """Return the settings with which brokers have tokens."""
    return {"delegation.token.secret.key": SECRET, "delegation.token.expiry.time.ms": str(_LIFE_MS)}


class Holder:
    """The holder, as one process of a history at a time."""

    def __init__(
        self, setting: Setting, recorder: Recorder, chance: Random, brokers: Sequence[tuple[str, int]], process: int
    ) -> None:
        self.process = process
        self.tokens: list[Held] = []
        """The tokens that were created and answered, oldest first."""
        self._setting = setting
        self._recorder = recorder
        self._chance = chance
        self._brokers = list(brokers)
        self._sessions: list[tuple[Wire, Held, str]] = []
        """Connections that a login with a token opened."""

    async def work(self, is_over: Callable[[], bool], pause: Callable[[], float]) -> None:
        """Create, renew, end and use tokens until `is_over`."""
        while not is_over():
            await asyncio.sleep(pause())
            broker = self._chance.choice(self._brokers)
            recent = self.tokens[-_MOST_TOKENS:]
            if not recent:
                await self.create(broker, self._chance.randint(*_LONGEST_MS))
                continue
            held = self._chance.choice(recent)
            match self._chance.choices(("create", "renew", "end", "log-in", "forged", "use"), (2, 2, 1, 6, 1, 4))[0]:
                case "create":
                    await self.create(broker, self._chance.randint(*_LONGEST_MS))
                case "renew":
                    await self.renew(held, broker, self._chance.randint(*_RENEWED_MS))
                case "end":
                    await self.end(held, broker)
                case "forged":
                    await self.log_in(Held(held.number, held.token_id, held.hmac[::-1]), broker, is_forged=True)
                case "log-in":
                    await self.log_in(held, broker)
                case _:
                    await self.use()
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for wire, _, _ in self._sessions:
            wire.close()
        self._sessions.clear()

    async def create(self, broker: tuple[str, int], longest_ms: int, **extra: Any) -> Held | None:
        """Create a token that renewals let last for so long; return None without an answer."""
        request = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=longest_ms)
        value: dict[str, Any] = {"node": broker[0]}
        answer = await self._asked("create-token", ApiKey.CREATE_DELEGATION_TOKEN, request, value, broker, extra)
        if answer is None:
            return None
        held = Held(len(self.tokens), answer.token_id, answer.hmac)
        told = {**value, "token": held.number, "ends": self._ends(answer.expiry_timestamp_ms)}
        told["ends-at-the-latest"] = self._ends(answer.max_timestamp_ms)
        self._complete(Type.OK, "create-token", told, extra)
        self.tokens.append(held)
        return held

    async def renew(self, held: Held, broker: tuple[str, int], life_ms: int) -> None:
        """Let a token end after this time, or at its latest end."""
        request = RenewDelegationTokenRequest(hmac=held.hmac, renew_period_ms=life_ms)
        await self._change("renew-token", ApiKey.RENEW_DELEGATION_TOKEN, request, held, broker)

    async def end(self, held: Held, broker: tuple[str, int]) -> None:
        """Let a token end at once."""
        request = ExpireDelegationTokenRequest(hmac=held.hmac, expiry_time_period_ms=-1)
        await self._change("end-token", ApiKey.EXPIRE_DELEGATION_TOKEN, request, held, broker)

    async def log_in(self, held: Held, broker: tuple[str, int], *, is_forged: bool = False, **extra: Any) -> bool:
        """Log in with a token; return False without an answer. The connection is kept if the login is accepted."""
        value: dict[str, Any] = {"token": None if is_forged else held.number, "node": broker[0]}
        self._recorder.invoke(self._setting.now_ns(), self.process, "token-login", value, **extra)
        wire: Wire | None = None
        try:
            wire = await self._setting.runtime.connect(Wire, *broker)
            is_accepted = await _is_accepted(wire, held)
        except (OSError, EOFError, TimeoutError):
            if wire is not None:
                wire.close()
            self._complete(Type.INFO, "token-login", value, extra)
            return False
        self._complete(Type.OK, "token-login", {**value, "accepted": is_accepted}, extra)
        if is_accepted and not is_forged and not extra:
            self._sessions.append((wire, held, broker[0]))
        else:
            wire.close()
        return True

    async def use(self) -> None:
        """Send a request on a connection that a token opened; one that is not served is forgotten."""
        if not self._sessions:
            return
        wire, held, node = self._sessions.pop(self._chance.randrange(len(self._sessions)))
        value: dict[str, Any] = {"token": held.number, "node": node}
        self._recorder.invoke(self._setting.now_ns(), self.process, "token-use", value)
        try:
            await wire.body(ApiKey.METADATA, 12, MetadataRequest(topics=[]), HOLDER)
        except EOFError:
            wire.close()
            self._complete(Type.OK, "token-use", {**value, "served": False}, {})
        except TimeoutError:
            wire.close()
            self._complete(Type.INFO, "token-use", value, {})
        else:
            self._complete(Type.OK, "token-use", {**value, "served": True}, {})
            self._sessions.append((wire, held, node))

    async def _change(self, f: str, key: ApiKey, request: Any, held: Held, broker: tuple[str, int]) -> None:
        value = {"token": held.number, "node": broker[0]}
        answer = await self._asked(f, key, request, value, broker, {})
        if answer is not None:
            self._complete(Type.OK, f, {**value, "ends": self._ends(answer.expiry_timestamp_ms)}, {})

    async def _asked(
        self, f: str, key: ApiKey, request: Any, value: dict[str, Any], broker: tuple[str, int], extra: dict[str, Any]
    ) -> Any:
        """Log in with the password, and send a request; return None if it was not answered, or refused."""
        self._recorder.invoke(self._setting.now_ns(), self.process, f, value, **extra)
        wire: Wire | None = None
        try:
            wire = await self._setting.runtime.connect(Wire, *broker)
            await wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"), HOLDER)
            await _token(wire, plain_message(HOLDER, PASSWORD))
            answer = await wire.ask(key, APIS[key].last, request, HOLDER)
        except (OSError, EOFError, TimeoutError):
            answer = None
        finally:
            if wire is not None:
                wire.close()
        if answer is None or answer.error_code:  # an error may be of a change that was made all the same
            self._complete(Type.INFO, f, value, extra)
            return None
        return answer

    def _complete(self, type_: Type, f: str, value: dict[str, Any], extra: dict[str, Any]) -> None:
        self._recorder.complete(self._setting.now_ns(), self.process, type_, value, **extra)
        if type_ is Type.INFO:
            self.process += 1

    def _ends(self, wall_ms: int) -> int:
        """Return a time of the wall clock in nanoseconds since the run began, by a clock that is right."""
        return self._setting.now_ns() + (wall_ms - self._setting.runtime.now_ms()) * 1_000_000


async def _is_accepted(wire: Wire, held: Held) -> bool:
    answer = await wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=_SCRAM), HOLDER)
    if answer.error_code:
        return False
    mechanism = MECHANISMS[_SCRAM]
    client = ScramClient(mechanism, held.token_id, _NONCE, is_by_token=True)
    answer = await _token(wire, client.first())
    if answer.error_code:
        return False
    salt, iterations = client.challenged(answer.auth_bytes)
    password = password_of(held.hmac)
    salted = await asyncio.to_thread(salted_password, mechanism, password, salt, iterations)
    answer = await _token(wire, client.final(salted))
    if answer.error_code:
        return False
    try:
        client.verify(answer.auth_bytes)
    except AuthenticationFailed:
        return False
    return True


async def _token(wire: Wire, token: bytes) -> Any:
    key = ApiKey.SASL_AUTHENTICATE
    return await wire.ask(key, APIS[key].last, SaslAuthenticateRequest(auth_bytes=token), HOLDER)


async def final_logins(holder: Holder, brokers: Sequence[tuple[str, int]], tokens: Sequence[Held]) -> None:
    """Once brokers have caught up: create a token that lasts and one that is ended, and try these and the last ones."""
    holder.tokens = list(tokens)
    made = []
    for _ in range(_MOST_TRIES):
        found = await holder.create(brokers[0], _LAST_LIFE_MS, final=True)
        made += [] if found is None else [found]
        if len(made) == 2:
            break
        await asyncio.sleep(_WAIT_SECONDS)
    if len(made) == 2:
        await holder.end(made[1], brokers[0])
    await asyncio.sleep(6 * _WAIT_SECONDS)
    for broker in brokers:
        for held in made[:1]:
            await holder.renew(held, broker, _LIFE_MS)
            await asyncio.sleep(_WAIT_SECONDS)
        for held in (*made, *holder.tokens[-_MOST_TOKENS : -len(made) or None]):
            for _ in range(_MOST_TRIES):
                if await holder.log_in(held, broker, final=True):
                    break
                await asyncio.sleep(_WAIT_SECONDS)
