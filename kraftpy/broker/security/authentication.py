"""SASL on one connection: answers its requests until the client has logged in, and again when its session ends.

Before the login, only ApiVersions, SaslHandshake and SaslAuthenticate are served, in this order; other requests are not
even decoded, and a request may have up to `sasl.server.max.receive.size` bytes. A client that fails gets its answer
after `connection.failed.authentication.delay.ms`, in which nothing more is read from it, and is then disconnected. The
answer gives the reason unless it would reveal a secret.

Once a session without an end has begun, the connection's requests go to the broker directly. The rules are in
`kraftpy.security.sasl`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from kraftpy.broker.connection import LastAnswer
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode, ProtocolError
from kraftpy.protocol.frames import decode_request_header, encode_response
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kraftpy.protocol.schema import decode
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.sasl import IllegalState, SaslServer, State

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.broker.response_writer import Response

    Serve = Callable[[bytearray, Connection], Awaitable[Response | None]]

_SIZE_BYTES = 4
_ERROR_OF_VERSIONS = slice(8, 10)
"""The place of the error code in an answer to ApiVersions of any version: after the size and the header."""
_BEFORE_HANDSHAKE = "Unexpected Kafka request of type %s during SASL handshake."
_NAMES = {int(key): "".join(word.capitalize() for word in key.name.split("_")) for key in ApiKey}


class Authentication:
    """Stands in front of `serve`, which answers the requests of a client that has logged in.

    `failed` logs the reason for which a client was refused.
    """

    def __init__(
        self, sasl: SaslServer, serve: Serve, failed: Callable[[Connection, str], None], *, failure_delay_ms: int
    ) -> None:
        self._sasl = sasl
        self._serve = serve
        self._failed = failed
        self._failure_delay = failure_delay_ms / 1000

    async def answer(self, frame: bytearray, connection: Connection) -> Response | None:
        """Answer one request. Raises ProtocolError to close the connection, or LastAnswer to answer and close it."""
        try:
            return await self._answer(frame, connection)
        except IllegalState as illegal:
            raise ProtocolError(str(illegal)) from illegal

    async def _answer(self, frame: bytearray, connection: Connection) -> Response | None:
        sasl = self._sasl
        match sasl.state:
            case State.COMPLETE:
                return await self._in_session(frame, connection)
            case State.AUTHENTICATE:
                return await self._token(frame, connection)
            case State.FAILED:
                raise IllegalState("the client has failed to authenticate")
        key = int.from_bytes(frame[:2], "big")
        if key == ApiKey.SASL_HANDSHAKE:
            return await self._handshake(frame, connection)
        if key != ApiKey.API_VERSIONS:
            raise IllegalState(_BEFORE_HANDSHAKE % _NAMES.get(key, key))
        sasl.versions_asked()
        response = await self._serve(frame, connection)
        assert isinstance(response, bytes | bytearray)
        if not any(response[_ERROR_OF_VERSIONS]):
            sasl.versions_told()
        return response

    async def _in_session(self, frame: bytearray, connection: Connection) -> Response | None:
        sasl, now_ms = self._sasl, _now_ms()
        is_handshake = int.from_bytes(frame[:2], "big") == ApiKey.SASL_HANDSHAKE
        if is_handshake and sasl.may_renew(now_ms):
            return await self._handshake(frame, connection)
        if sasl.has_expired(now_ms):
            raise IllegalState("the session has expired, and the client has not authenticated again")
        return await self._serve(frame, connection)

    async def _handshake(self, frame: bytearray, connection: Connection) -> Response:
        header, request = _decoded(frame, SaslHandshakeRequest)
        sasl = self._sasl
        is_known = sasl.handshake(request.mechanism, has_requests=header.api_version >= 1, now_ms=_now_ms())
        error = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        response = SaslHandshakeResponse(error_code=error, mechanisms=sasl.mechanisms)
        encoded = encode_response(header.api_key, header.api_version, header.correlation_id, response)
        if not is_known:
            await self._refuse(connection, encoded, f"Unsupported SASL mechanism {request.mechanism}")
        return encoded

    async def _token(self, frame: bytearray, connection: Connection) -> Response:
        sasl = self._sasl
        if not sasl.has_requests:
            await self._prepare(bytes(frame))
            try:
                token, _ = sasl.evaluate(bytes(frame), _now_ms())
            except AuthenticationFailed as failure:
                await self._refuse(connection, None, _told(failure))
            self._complete(connection)
            return len(token).to_bytes(_SIZE_BYTES, "big") + token
        header = decode_request_header(frame)[0]
        if header.api_key != ApiKey.SASL_AUTHENTICATE:
            name = _NAMES.get(header.api_key, header.api_key)
            reason = f"Unexpected Kafka request of type {name} during SASL authentication."
            await self._refuse(connection, _illegal(header), reason)
        header, request = _decoded(frame, SaslAuthenticateRequest)
        await self._prepare(request.auth_bytes)
        try:
            token, lifetime_ms = sasl.evaluate(request.auth_bytes, _now_ms())
            response = SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)
            self._complete(connection)
        except AuthenticationFailed as failure:
            error = ErrorCode.SASL_AUTHENTICATION_FAILED
            response = SaslAuthenticateResponse(error_code=error, error_message=str(failure))
            encoded = encode_response(header.api_key, header.api_version, header.correlation_id, response)
            await self._refuse(connection, encoded, _told(failure))
        return encode_response(header.api_key, header.api_version, header.correlation_id, response)

    async def _prepare(self, token: bytes) -> None:
        """Wait until the mechanism can check the token."""
        needed = self._sasl.prepare(token)
        if needed is not None:
            await needed

    def _complete(self, connection: Connection) -> None:
        if self._sasl.state is State.COMPLETE:
            connection.authenticated(self._sasl.principal, is_by_token=self._sasl.is_by_token)
            if self._sasl.expires_at_ms is None:
                connection.answer_with(self._serve)

    async def _refuse(self, connection: Connection, answer: bytes | None, reason: str) -> None:
        """Log the reason, wait, and have the connection closed after this answer. Raises LastAnswer."""
        self._failed(connection, reason)
        await asyncio.sleep(self._failure_delay)
        raise LastAnswer(answer)


def _decoded(frame: bytearray, kind: type[Any]) -> tuple[Any, Any]:
    """Decode a request of the given class. Raises ProtocolError for a version that is not served."""
    header, body = decode_request_header(frame)[0], decode_request_header(frame)[1]
    api = APIS[header.api_key]
    if header.api_version not in api:
        raise ProtocolError(f"Version {header.api_version} is not supported for apiKey {api.key.name}")
    return header, decode(kind, body, header.api_version, exact=False)


def _illegal(header: Any) -> bytes | None:
    """Return ILLEGAL_SASL_STATE as the answer to any request; None if its answer has no field for an error."""
    try:
        response = APIS[header.api_key].response(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        return encode_response(header.api_key, header.api_version, header.correlation_id, response)
    except Exception:  # the answer has no error code, or the request's version is unknown
        return None


def _told(failure: AuthenticationFailed) -> str:
    """Return the whole reason for a failure, for the log."""
    return f"{failure}: {failure.__cause__}" if failure.__cause__ is not None else str(failure)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
