"""A broker changes a token that another broker has created, even if it has not heard of that yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from lone_connections import lone_connection

from kraftpy.broker.handlers.delegation_tokens import expire_delegation_token, renew_delegation_token
from kraftpy.broker.request import RequestContext
from kraftpy.metadata.decision import Decision
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kraftpy.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from kraftpy.security.delegation_tokens import hmac_digest, token_hmac
from kraftpy.security.principal import USER, Principal

SECRET = "secret"


class Lagging:
    """A broker that hears of a token when it catches up with the quorum."""

    def __init__(self) -> None:
        self.token = SimpleNamespace(token_id="of another broker")
        self.hmac = token_hmac(SECRET, self.token.token_id)
        self.has_caught_up = False
        self.submitted: list[Any] = []
        self.image = SimpleNamespace(delegation_tokens=SimpleNamespace(of_digest=self._of_digest))
        self.metadata = SimpleNamespace(catch_up=self._catch_up, submit=self._submit)
        self.clock = SimpleNamespace(now=lambda: 0)
        self.config = SimpleNamespace(
            delegation_token_secret_key=SECRET,
            delegation_token_expiry_time_ms=86_400_000,
            security_of=lambda listener: SimpleNamespace(sasl=object()),
        )

    def _of_digest(self, digest: bytes) -> Any:
        return self.token if self.has_caught_up and digest == hmac_digest(self.hmac) else None

    async def _catch_up(self) -> None:
        self.has_caught_up = True

    async def _submit(self, command: Any) -> Decision[Any]:
        self.submitted.append(command)
        return Decision(records=(), result=SimpleNamespace(expiry_ms=7))


def request_context(key: ApiKey) -> RequestContext:
    connection = lone_connection(Principal(USER, "bob"))
    return RequestContext(api_key=key, api_version=2, client_id="", client_host="", listener="L", connection=connection)


@pytest.mark.parametrize("period_ms", [-1, 60_000])
async def test_a_token_of_another_broker_expires(period_ms: int) -> None:
    broker = Lagging()
    request = ExpireDelegationTokenRequest(hmac=broker.hmac, expiry_time_period_ms=period_ms)
    answer = await expire_delegation_token(
        cast("Any", broker), request, request_context(ApiKey.EXPIRE_DELEGATION_TOKEN)
    )
    assert (answer.error_code, answer.expiry_timestamp_ms) == (ErrorCode.NONE, 7)
    assert len(broker.submitted) == 1


async def test_a_token_of_another_broker_is_renewed() -> None:
    broker = Lagging()
    request = RenewDelegationTokenRequest(hmac=broker.hmac, renew_period_ms=60_000)
    answer = await renew_delegation_token(cast("Any", broker), request, request_context(ApiKey.RENEW_DELEGATION_TOKEN))
    assert (answer.error_code, answer.expiry_timestamp_ms) == (ErrorCode.NONE, 7)


async def test_a_token_that_nobody_has_created_is_not_found() -> None:
    broker = Lagging()
    request = RenewDelegationTokenRequest(hmac=b"invented", renew_period_ms=60_000)
    answer = await renew_delegation_token(cast("Any", broker), request, request_context(ApiKey.RENEW_DELEGATION_TOKEN))
    assert answer.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert broker.submitted == []
