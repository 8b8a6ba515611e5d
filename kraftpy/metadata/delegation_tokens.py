"""Delegation tokens in the metadata (KIP-48): their commands and records, and the tokens of an image.

A token is stored without its HMAC, and is found by the HMAC's digest. All principals of a token are users. Decisions
are in `token_decisions`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.security.delegation_tokens import has_expired
from kraftpy.types import Millis

_OVERHEAD_BYTES: Final = 512
_RENEWER_BYTES: Final = 64


@frozen
class DelegationToken:
    """A token. `digest` is `hmac_digest` of its HMAC."""

    token_id: str
    digest: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    issue_ms: Millis
    expiry_ms: Millis
    max_ms: Millis


@frozen
class CreateDelegationToken:
    """Store a new token."""

    token: DelegationToken
    time_ms: Millis


@frozen
class ExpireDelegationToken:
    """Make a token expire `period_ms` from `time_ms`, but no later than its maximum lifetime, for a user.

    As in Kafka, a renewal is checked for expiry first and for the owner then, and other changes the other way round.
    """

    digest: bytes = field(repr=False)
    requester: str
    period_ms: int
    is_renewal: bool
    time_ms: Millis


@frozen
class RemoveDelegationTokens:
    """Remove tokens: those of `token_ids` that expired before `time_ms`, or the one that a user wants to remove."""

    token_ids: tuple[str, ...] = ()
    digest: bytes = field(default=b"", repr=False)
    """The token to remove, whose owner or renewer `requester` must be; empty to remove expired tokens."""
    requester: str = ""
    time_ms: Millis


@frozen
class DelegationTokenChanged:
    """A token was created or changed."""

    token: DelegationToken


@frozen
class DelegationTokenRemoved:
    """A token was removed."""

    token_id: str


@frozen
class DelegationTokenResult:
    """The time at which the token expires."""

    expiry_ms: Millis


class DelegationTokens:
    """The tokens of an image."""

    def __init__(self, tokens: tuple[DelegationToken, ...] = ()) -> None:
        self._by_id: dict[str, DelegationToken] = {}
        self._by_digest: dict[bytes, DelegationToken] = {}
        self.bytes = 0
        """Estimated memory of all tokens."""
        for token in tokens:
            self.put(token)

    def __len__(self) -> int:
        return len(self._by_id)

    def of_id(self, token_id: str) -> DelegationToken | None:
        """Return the token with this id, expired or not."""
        return self._by_id.get(token_id)

    def of_digest(self, digest: bytes) -> DelegationToken | None:
        """Return the token whose HMAC has this digest, expired or not."""
        return self._by_digest.get(digest)

    def all(self) -> tuple[DelegationToken, ...]:
        """Return every token, in no particular order."""
        return tuple(self._by_id.values())

    def expired(self, now_ms: int, most: int) -> tuple[str, ...]:
        """Return the ids of expired tokens, at most `most` of them."""
        found = []
        for token in self._by_id.values():
            if has_expired(token, now_ms):
                found.append(token.token_id)
                if len(found) == most:
                    break
        return tuple(found)

    def put(self, token: DelegationToken) -> None:
        """Apply a decided change."""
        self.remove(token.token_id)
        self._by_id[token.token_id] = self._by_digest[token.digest] = token
        self.bytes += token_bytes(token)

    def remove(self, token_id: str) -> None:
        """Apply a decided removal; does nothing if the token does not exist."""
        token = self._by_id.pop(token_id, None)
        if token is not None:
            del self._by_digest[token.digest]
            self.bytes -= token_bytes(token)


def token_bytes(token: DelegationToken) -> int:
    """Estimate the memory of a token."""
    names = (token.token_id, token.owner, token.requester, *token.renewers)
    return _OVERHEAD_BYTES + sum(map(len, names)) + _RENEWER_BYTES * len(token.renewers)
