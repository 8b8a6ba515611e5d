"""Delegation tokens: Create-, Renew-, Expire- and DescribeDelegationToken (38 to 41). KIP-48, KIP-373.

A client that has authenticated, but not with a token, can create tokens: its own, and with the right CREATE_TOKENS for
other users. The metadata stores tokens without their HMACs, which are derived from `delegation.token.secret.key` on
each use. Since every client may create tokens, they take at most half of `kraftpy.max.configs.bytes`.

The broker that receives a request applies its own secret and limits; in Kafka, the controller does. All nodes should
have the same settings. An owner must be a user: Kafka accepts a principal of any type, and treats it as a user when it
logs in.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.metadata.delegation_tokens import (
    CreateDelegationToken,
    DelegationToken,
    ExpireDelegationToken,
    RemoveDelegationTokens,
    token_bytes,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kraftpy.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kraftpy.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kraftpy.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from kraftpy.security.acls import Operation, ResourceType
from kraftpy.security.delegation_tokens import (
    has_part_in,
    hmac_digest,
    is_hmac_of,
    renewal_period,
    times_of_new,
    token_hmac,
)
from kraftpy.security.principal import ANONYMOUS, USER, Principal
from kraftpy.types import Millis

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasConfigRoom, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasConfig, HasImage, HasSlices

    class Broker(HasClock, HasConfig, HasConfigRoom, HasImage, HasMetadata, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


_ID_BYTES = 16
_NO_TIME = -1
_RENEWERS_PER_UNIT = 5
"""How many renewers of a token are compared and described for one unit of `slicing`."""


async def create_delegation_token(
    broker: Broker, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """Create a token for the principal itself, or for another user."""
    requester = owner = context.principal
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
    )
    error = ErrorCode.NONE
    if not _has_proved_itself(broker, context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif owner != requester and not context.rights.allows(Operation.CREATE_TOKENS, ResourceType.USER, str(owner)):
        error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    elif any(renewer.principal_type != USER for renewer in request.renewers):
        error = ErrorCode.INVALID_PRINCIPAL_TYPE
    if error:
        response.error_code = error
        response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = _NO_TIME
        return response
    try:
        secret = _secret(broker)
        if owner.kind != USER:
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
        token = _new_token(broker, request, secret, owner, requester)
        _check_room(broker, token)
        with broker.config_room.held(token_bytes(token)):
            decision = await broker.metadata.submit(CreateDelegationToken(token=token, time_ms=token.issue_ms))
        if decision.error:
            raise KafkaError(decision.error, decision.message or "")
    except KafkaError as refused:
        response.error_code = refused.code
        return response
    response.issue_timestamp_ms, response.max_timestamp_ms = token.issue_ms, token.max_ms
    response.expiry_timestamp_ms, response.token_id = token.expiry_ms, token.token_id
    response.hmac = token_hmac(secret, token.token_id)
    return response


async def renew_delegation_token(
    broker: Broker, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Renew a token, at the request of its owner or a renewer."""
    if not _has_proved_itself(broker, context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=_NO_TIME)
    period_ms = renewal_period(request.renew_period_ms, broker.config.delegation_token_expiry_time_ms)
    error, expiry_ms = await _change(broker, context, request.hmac, period_ms, is_renewal=True)
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expiry_ms)


async def expire_delegation_token(
    broker: Broker, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """Change when a token expires, or remove it, at the request of its owner or a renewer."""
    if not _has_proved_itself(broker, context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=_NO_TIME)
    error, expiry_ms = await _change(broker, context, request.hmac, request.expiry_time_period_ms, is_renewal=False)
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expiry_ms)


async def describe_delegation_token(
    broker: Broker, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """Return the tokens that the principal may see, by its part in them or by its rights; of these owners only."""
    if not _has_proved_itself(broker, context):
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    try:
        secret = _secret(broker)
    except KafkaError as disabled:
        return DescribeDelegationTokenResponse(error_code=disabled.code)
    response = DescribeDelegationTokenResponse()
    sees = context.rights.allows
    owners = None
    if request.owners is not None:
        owners = {Principal(each.principal_type, each.principal_name) for each in request.owners}
    async for tokens in broker.slices.pieces(broker.image.delegation_tokens.all() if owners != set() else ()):
        for token in tokens:
            if len(token.renewers) > _RENEWERS_PER_UNIT:
                await broker.slices.breathe(len(token.renewers) // _RENEWERS_PER_UNIT)
            if (owners is None or has_part_in(token, owners)) and (
                has_part_in(token, {context.principal})
                or sees(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, is_asked_for=False)
                or sees(Operation.DESCRIBE_TOKENS, ResourceType.USER, f"{USER}:{token.owner}", is_asked_for=False)
            ):
                response.tokens.append(_described(token, secret))
    return response


def _has_proved_itself(broker: Broker, context: RequestContext) -> bool:
    """Return whether the client has authenticated, and not with a token."""
    security = broker.config.security_of(context.listener)
    if security is None or context.is_by_token:
        return False
    return security.sasl is not None or context.principal != ANONYMOUS


def _secret(broker: Broker) -> str:
    """Return the secret from which tokens are made. Raises KafkaError if tokens are not enabled."""
    secret = broker.config.delegation_token_secret_key
    if not secret:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return secret


def _check_room(broker: Broker, token: DelegationToken) -> None:
    """Check that tokens leave half of the memory limit to settings. Raises KafkaError (POLICY_VIOLATION)."""
    most = broker.config.kraftpy_max_configs_bytes // 2
    if broker.image.delegation_tokens.bytes + token_bytes(token) > most:
        problem = "Delegation tokens would take more than half of kraftpy.max.configs.bytes."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, problem)


def _new_token(
    broker: Broker, request: CreateDelegationTokenRequest, secret: str, owner: Principal, requester: Principal
) -> DelegationToken:
    config, now_ms = broker.config, broker.clock.now()
    token_id = urlsafe_b64encode(secrets.token_bytes(_ID_BYTES)).decode().rstrip("=")
    expiry_ms, max_ms = times_of_new(
        now_ms, request.max_lifetime_ms, config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms
    )
    return DelegationToken(
        token_id=token_id,
        digest=hmac_digest(token_hmac(secret, token_id)),
        owner=owner.name,
        requester=requester.name,
        renewers=tuple(renewer.principal_name for renewer in request.renewers),
        issue_ms=now_ms,
        expiry_ms=Millis(expiry_ms),
        max_ms=Millis(max_ms),
    )


async def _change(
    broker: Broker, context: RequestContext, hmac: bytes, period_ms: int, *, is_renewal: bool
) -> tuple[ErrorCode, int]:
    """Make a token expire after a period, or remove it if that is negative; return an error and the new expiry."""
    command: Any
    try:
        secret, digest = _secret(broker), hmac_digest(hmac)
        if broker.image.delegation_tokens.of_digest(digest) is None:
            await broker.metadata.catch_up()  # another broker may have created it just now
        token = broker.image.delegation_tokens.of_digest(digest)
        if token is None or not is_hmac_of(hmac, secret, token.token_id):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        requester, now_ms = context.principal.name, broker.clock.now()
        if period_ms < 0:
            command = RemoveDelegationTokens(digest=digest, requester=requester, time_ms=now_ms)
        else:
            command = ExpireDelegationToken(
                digest=digest, requester=requester, period_ms=period_ms, is_renewal=is_renewal, time_ms=now_ms
            )
        decision = await broker.metadata.submit(command)
    except KafkaError as refused:
        return refused.code, 0
    return decision.error, decision.result.expiry_ms if decision.result is not None else 0


def _described(token: DelegationToken, secret: str) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=USER,
        principal_name=token.owner,
        token_requester_principal_type=USER,
        token_requester_principal_name=token.requester,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=[DescribedDelegationTokenRenewer(principal_type=USER, principal_name=name) for name in token.renewers],
    )
