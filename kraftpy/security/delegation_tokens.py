"""The rules for delegation tokens (KIP-48, KIP-373): HMACs, lifetimes, and which principals may renew or see them.

A token lets its bearer log in as its owner by SCRAM: the user name is the token's id, and the password is an HMAC of
the id under a secret that the cluster's nodes share. The HMAC is not stored: the metadata holds a digest of it, by
which a token is found. A node with a different secret does not accept the token.

Times are milliseconds since the epoch. A sum that exceeds 64 bits becomes the greatest 64-bit number, as in Kafka.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Set
from typing import Final, Protocol

from kraftpy.security.principal import USER, Principal
from kraftpy.security.scram import LEAST_ITERATIONS, Mechanism, ScramCredential, credential_of, salted_password

_INT64_MAX: Final = 2**63 - 1


class Token(Protocol):
    """The properties of a token that the rules need. All principals of a token are users."""

    @property
    def owner(self) -> str:
        """The name of the user that its bearer logs in as."""

    @property
    def requester(self) -> str:
        """The name of the user that created it."""

    @property
    def renewers(self) -> tuple[str, ...]:
        """The names of the users that may renew and expire it, in addition to the owner."""

    @property
    def expiry_ms(self) -> int:
        """The time at which it expires unless it is renewed."""

    @property
    def max_ms(self) -> int:
        """The time at which it expires even if it is renewed."""


def token_hmac(secret: str, token_id: str) -> bytes:
    """Return the HMAC that proves possession of a token."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def hmac_digest(token_hmac: bytes) -> bytes:
    """Return the digest by which a token is found; the HMAC cannot be computed from it."""
    return hashlib.sha256(token_hmac).digest()


def is_hmac_of(token_hmac_given: bytes, secret: str, token_id: str) -> bool:
    """Compare an HMAC with a token's, in constant time; return whether they are equal."""
    return hmac.compare_digest(token_hmac_given, token_hmac(secret, token_id))


def password_of(token_hmac: bytes) -> str:
    """Return the password with which a token's bearer logs in."""
    return b64encode(token_hmac).decode()


def token_credential(mechanism: Mechanism, secret: str, token_id: str, salt: bytes) -> ScramCredential:
    """Return the SCRAM credential of a token. Takes milliseconds, like `salted_password`."""
    salted = salted_password(mechanism, password_of(token_hmac(secret, token_id)), salt, LEAST_ITERATIONS)
    return credential_of(mechanism, salted, salt, LEAST_ITERATIONS)


def later(now_ms: int, period_ms: int) -> int:
    """Return the time `period_ms` from now, within 64 bits: the period may be any number that a client sent."""
    return max(-_INT64_MAX - 1, min(now_ms + period_ms, _INT64_MAX))


def times_of_new(now_ms: int, asked_ms: int, max_lifetime_ms: int, expiry_time_ms: int) -> tuple[int, int]:
    """Return the time at which a new token expires, and the latest time to which it can be renewed.

    `asked_ms` is the longest lifetime that its creator asks for; 0 and less stand for `max_lifetime_ms`.
    """
    max_ms = later(now_ms, min(max_lifetime_ms, asked_ms) if asked_ms > 0 else max_lifetime_ms)
    return min(max_ms, later(now_ms, expiry_time_ms)), max_ms


def renewal_period(asked_ms: int, expiry_time_ms: int) -> int:
    """Return how long a token is renewed for; an `asked_ms` of 0 and less stands for the longest, `expiry_time_ms`."""
    return min(expiry_time_ms, asked_ms) if asked_ms > 0 else expiry_time_ms


def has_expired(token: Token, now_ms: int) -> bool:
    """Return whether a token has expired, for renewals as well."""
    return token.max_ms < now_ms or token.expiry_ms < now_ms


def may_renew(token: Token, principal: Principal) -> bool:
    """Return whether a principal may renew and expire a token: it is the token's owner or one of its renewers."""
    return principal.kind == USER and (principal.name == token.owner or principal.name in token.renewers)


def has_part_in(token: Token, principals: Set[Principal]) -> bool:
    """Return whether one of them is the token's owner, requester or renewer: these see it without needing a right."""
    return any(Principal(USER, name) in principals for name in (token.owner, token.requester, *token.renewers))
