"""SASL on a link, in frames before its hello, on controller listeners that are SASL_PLAINTEXT or SASL_SSL.

    caller: mechanism, token
    called: token, last one or not, lifetime of the session   or   the reason of a refusal

The mechanisms and their rules are those of clients (`kraftpy.security.sasl`, `kraftpy.client.login`). Tokens travel in
the link's own frames, because links do not speak Kafka's protocol. A refusal is sent, and the connection closed, after
`connection.failed.authentication.delay.ms`. A Kafka client on the same listener logs in with Kafka's requests.

If the session ends, the caller authenticates again on the same link before that, by the same mechanism and with the
same principal (KIP-368). The called side closes a link whose session has ended.

Left out: delegation tokens, which stand for users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kraftpy.broker.metadata.link_messages import (
    BadBodyError,
    LinkError,
    login_answer,
    read_login_answer,
    read_login_token,
)
from kraftpy.client.login import log_in
from kraftpy.client.security import Login
from kraftpy.metadata.codec import CodecError, pack
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.principal import Principal
from kraftpy.security.sasl import SaslServer, State


class LoginServer:
    """The called side: checks tokens until a name is proved, and again when the caller renews its session."""

    def __init__(self, sasl: SaslServer, *, failure_delay_ms: int) -> None:
        self._sasl = sasl
        self._token = b""
        self.failure_delay = failure_delay_ms / 1000
        """The time before a refusal is sent, in seconds."""

    def take(self, frame: bytes) -> Awaitable[None] | None:
        """Take the caller's frame; return what to await before `answer`, None if nothing.

        Raises AuthenticationFailed, with a reason that the caller may know, or LinkError for a malformed frame.
        """
        mechanism, self._token = read_login_token(frame)
        sasl, now_ms = self._sasl, _now_ms()
        if sasl.state is State.COMPLETE and not sasl.may_renew(now_ms):
            raise LinkError("it logs in again, but its session does not end, or has just begun")
        if sasl.state is not State.AUTHENTICATE and not sasl.handshake(mechanism, has_requests=True, now_ms=now_ms):
            raise AuthenticationFailed(f"SASL mechanism {mechanism[:40]} is not among {', '.join(sasl.mechanisms)}")
        return sasl.prepare(self._token)

    def answer(self) -> tuple[bytes, Principal | None]:
        """Return the frame to send, and the proved name if the frame taken was the last one.

        Raises AuthenticationFailed, with a reason that the caller may know.
        """
        token, lifetime_ms = self._sasl.evaluate(self._token, _now_ms())
        is_done = self._sasl.state is State.COMPLETE
        return (
            login_answer(token, is_done=is_done, lifetime_ms=lifetime_ms),
            self._sasl.principal if is_done else None,
        )

    def has_expired(self) -> bool:
        """Return whether the session has ended, so that the caller has to have renewed it."""
        return self._sasl.has_expired(_now_ms())


async def prove(login: Login, host: str, ask: Callable[[bytes], Awaitable[bytes]]) -> int:
    """Log in as the caller; return the session's lifetime in milliseconds, 0 if it does not end.

    `host` is the address that is called; `ask` sends a frame and returns the next one. Raises LinkError.
    """
    exchange = log_in(login, host)
    answer: Any = None
    try:
        while True:
            match exchange.send(answer):
                case (_, SaslHandshakeRequest()):
                    answer = SaslHandshakeResponse(mechanisms=[login.mechanism])  # the first token names it
                case (_, SaslAuthenticateRequest() as request):
                    answer = _answered(await ask(pack({"mechanism": login.mechanism, "token": request.auth_bytes})))
                case compute:
                    assert callable(compute)
                    answer = await asyncio.to_thread(compute)
    except StopIteration as done:
        return int(done.value)
    except (KafkaError, CodecError, BadBodyError) as error:
        name = f"as {login.username}" if login.username else f"by {login.mechanism}"
        raise LinkError(f"this node cannot log in {name}: {error}") from error


def _answered(frame: bytes) -> SaslAuthenticateResponse:
    found = read_login_answer(frame)
    if isinstance(found, str):
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=found)
    token, lifetime_ms = found
    return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
