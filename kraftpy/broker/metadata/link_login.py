"""SASL on a link, in frames before its hello, on controller listeners that are SASL_PLAINTEXT or SASL_SSL.

    caller: mechanism, token
    called: token, last one or not   or   the reason of a refusal

The mechanisms and their rules are those of clients (`kraftpy.security.sasl`, `kraftpy.client.login`). Tokens travel in
the link's own frames, because links do not speak Kafka's protocol. A refusal is sent, and the connection closed, after
`connection.failed.authentication.delay.ms`. A Kafka client on the same listener logs in with Kafka's requests.

Left out: OAUTHBEARER and GSSAPI; authenticating again when a session ends (KIP-368), since a link stays up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kraftpy.broker.metadata.link_messages import BadBodyError, LinkError, read_login_answer, read_login_token
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
    """The called side: checks tokens until a name is proved."""

    def __init__(self, sasl: SaslServer, *, failure_delay_ms: int) -> None:
        self._sasl = sasl
        self.failure_delay = failure_delay_ms / 1000
        """The time before a refusal is sent, in seconds."""

    def answer(self, frame: bytes) -> tuple[bytes, Principal | None]:
        """Return the frame to send, and the proved name if this was the last token.

        Raises AuthenticationFailed, with a reason that the caller may know, or LinkError for a malformed frame.
        """
        mechanism, token = read_login_token(frame)
        sasl, now_ms = self._sasl, asyncio.get_running_loop().time() * 1000
        if sasl.state is not State.AUTHENTICATE and not sasl.handshake(mechanism, has_requests=True, now_ms=now_ms):
            raise AuthenticationFailed(f"SASL mechanism {mechanism[:40]} is not among {', '.join(sasl.mechanisms)}")
        answer, _ = sasl.evaluate(token, now_ms)
        is_done = sasl.state is State.COMPLETE
        return pack({"token": answer, "done": is_done}), sasl.principal if is_done else None


async def prove(login: Login, ask: Callable[[bytes], Awaitable[bytes]]) -> None:
    """Log in as the caller; `ask` sends a frame and returns the next one. Raises LinkError."""
    exchange = log_in(login, "")
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
    except StopIteration:
        return
    except (KafkaError, CodecError, BadBodyError) as error:
        raise LinkError(f"this node cannot log in as {login.username}: {error}") from error


def _answered(frame: bytes) -> SaslAuthenticateResponse:
    found = read_login_answer(frame)
    if isinstance(found, str):
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=found)
    return SaslAuthenticateResponse(auth_bytes=found)
