"""Decisions about delegation tokens (KIP-48)."""

from __future__ import annotations

from dataclasses import replace

from kraftpy.metadata.decision import Decision
from kraftpy.metadata.delegation_tokens import (
    CreateDelegationToken,
    DelegationTokenChanged,
    DelegationTokenRemoved,
    DelegationTokenResult,
    ExpireDelegationToken,
    RemoveDelegationTokens,
)
from kraftpy.metadata.image import Image
from kraftpy.protocol.errors import ErrorCode
from kraftpy.security.delegation_tokens import has_expired, later, may_renew
from kraftpy.security.principal import USER, Principal
from kraftpy.types import Millis


def create_delegation_token(command: CreateDelegationToken, image: Image) -> Decision[None]:
    """Store a new token. Refused if its id or its digest is taken, which is as good as impossible."""
    token, known = command.token, image.delegation_tokens
    if known.of_id(token.token_id) is not None or known.of_digest(token.digest) is not None:
        message = f"Delegation token {token.token_id} already exists."
        return Decision(error=ErrorCode.INVALID_REQUEST, message=message)
    return Decision(records=(DelegationTokenChanged(token=token),))


def expire_delegation_token(command: ExpireDelegationToken, image: Image) -> Decision[DelegationTokenResult]:
    """Change when a token expires. The checks are in Kafka's order, which differs for a renewal."""
    token = image.delegation_tokens.of_digest(command.digest)
    if token is None:
        return Decision(error=ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    is_over = has_expired(token, command.time_ms)
    if is_over and command.is_renewal:
        return Decision(error=ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not may_renew(token, Principal(USER, command.requester)):
        return Decision(error=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if is_over:
        return Decision(error=ErrorCode.DELEGATION_TOKEN_EXPIRED)
    expiry_ms = Millis(min(token.max_ms, later(command.time_ms, command.period_ms)))
    changed = replace(token, expiry_ms=expiry_ms)
    return Decision(records=(DelegationTokenChanged(token=changed),), result=DelegationTokenResult(expiry_ms=expiry_ms))


def remove_delegation_tokens(command: RemoveDelegationTokens, image: Image) -> Decision[DelegationTokenResult]:
    """Remove one token for its owner or a renewer, or those of the named tokens that have expired."""
    tokens = image.delegation_tokens
    result = DelegationTokenResult(expiry_ms=command.time_ms)
    if command.digest:
        token = tokens.of_digest(command.digest)
        if token is None:
            return Decision(error=ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        if not may_renew(token, Principal(USER, command.requester)):
            return Decision(error=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return Decision(records=(DelegationTokenRemoved(token_id=token.token_id),), result=result)
    records = tuple(
        DelegationTokenRemoved(token_id=token_id)
        for token_id in dict.fromkeys(command.token_ids)
        if (found := tokens.of_id(token_id)) is not None and has_expired(found, command.time_ms)
    )
    return Decision(records=records, result=result)
