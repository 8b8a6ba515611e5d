"""The admin client's calls about delegation tokens (KIP-48).

A token's bearer logs in as its owner, by SCRAM with the token's `token_id` and `password`, and `tokenauth=true` in
`sasl_jaas_config`. Brokers refuse these calls to clients that have not authenticated, or that used a token for it.
Principals are texts such as "User:alice".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kraftpy.client.admin.base import AdminBase
from kraftpy.client.admin.messages import check
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages import create_delegation_token as creating
from kraftpy.protocol.messages import describe_delegation_token as describing
from kraftpy.protocol.messages import expire_delegation_token as expiring
from kraftpy.protocol.messages import renew_delegation_token as renewing
from kraftpy.security.delegation_tokens import password_of
from kraftpy.security.principal import Principal, parse_principal


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token. Times are milliseconds since the epoch. `repr` shows no secrets."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    """The principal that created it; empty if the broker does not report it."""
    renewers: tuple[str, ...] = ()
    issue_ms: int
    expiry_ms: int
    max_ms: int

    @property
    def password(self) -> str:
        """The password with which its bearer logs in."""
        return password_of(self.hmac)


class TokenAdmin(AdminBase):
    """Admin calls about delegation tokens."""

    async def create_delegation_token(
        self, *, renewers: Iterable[str] = (), max_lifetime_ms: int = -1, owner: str | None = None
    ) -> DelegationToken:
        """Create a token for this client's principal or for `owner`. -1 asks for the longest lifetime."""
        listed = [parse_principal(each) for each in renewers]
        kind, name = (None, None) if owner is None else parse_principal(owner)
        request = creating.CreateDelegationTokenRequest(
            owner_principal_type=kind,
            owner_principal_name=name,
            renewers=[
                creating.CreatableRenewers(principal_type=each.kind, principal_name=each.name) for each in listed
            ],
            max_lifetime_ms=max_lifetime_ms,
        )
        low = 3 if owner is not None else 0
        answer = await self._ask(None, ApiKey.CREATE_DELEGATION_TOKEN, request, _check("no token created"), low=low)
        return DelegationToken(
            token_id=answer.token_id,
            hmac=answer.hmac,
            owner=str(Principal(answer.principal_type, answer.principal_name)),
            requester=_principal(answer.token_requester_principal_type, answer.token_requester_principal_name),
            renewers=tuple(str(each) for each in listed),
            issue_ms=answer.issue_timestamp_ms,
            expiry_ms=answer.expiry_timestamp_ms,
            max_ms=answer.max_timestamp_ms,
        )

    async def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Return the tokens that this client may see, by id; with `owners`, only those of these principals."""
        asked = None
        if owners is not None:
            asked = [
                describing.DescribeDelegationTokenOwner(principal_type=each.kind, principal_name=each.name)
                for each in map(parse_principal, owners)
            ]
        request = describing.DescribeDelegationTokenRequest(owners=asked)
        answer = await self._ask(None, ApiKey.DESCRIBE_DELEGATION_TOKEN, request, _check("tokens"))
        return sorted(map(_described, answer.tokens), key=lambda token: token.token_id)

    async def renew_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Renew a token until `period_ms` from now (-1: as long as the broker allows); return when it expires."""
        request = renewing.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
        answer = await self._ask(None, ApiKey.RENEW_DELEGATION_TOKEN, request, _check("token not renewed"))
        expiry_ms: int = answer.expiry_timestamp_ms
        return expiry_ms

    async def expire_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Make a token expire `period_ms` from now, or remove it if that is negative; return when it expires."""
        request = expiring.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
        answer = await self._ask(None, ApiKey.EXPIRE_DELEGATION_TOKEN, request, _check("token not expired"))
        expiry_ms: int = answer.expiry_timestamp_ms
        return expiry_ms


def _check(what: str) -> Any:
    return lambda answer: check(answer.error_code, what)


def _principal(kind: str, name: str) -> str:
    return str(Principal(kind, name)) if kind else ""


def _described(token: describing.DescribedDelegationToken) -> DelegationToken:
    return DelegationToken(
        token_id=token.token_id,
        hmac=token.hmac,
        owner=str(Principal(token.principal_type, token.principal_name)),
        requester=_principal(token.token_requester_principal_type, token.token_requester_principal_name),
        renewers=tuple(str(Principal(each.principal_type, each.principal_name)) for each in token.renewers),
        issue_ms=token.issue_timestamp,
        expiry_ms=token.expiry_timestamp,
        max_ms=token.max_timestamp,
    )
