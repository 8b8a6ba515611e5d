"""Delegation tokens as SCRAM credentials (KIP-48), derived at a token's first login.

Deriving a credential takes milliseconds, so it happens in a thread, one at a time, and the result is kept as long as
the token exists. Kafka derives the credentials of every token on every broker in advance.

The salt is the one that an unknown name would get, so that it does not reveal which ids belong to tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from kraftpy.security.delegation_tokens import has_expired, token_credential
from kraftpy.security.sasl import TokenLogin
from kraftpy.security.scram import Mechanism, ScramCredential, fake_credential

if TYPE_CHECKING:
    from kraftpy.metadata.delegation_tokens import DelegationToken
    from kraftpy.metadata.image import Image
    from kraftpy.ports import Clock

_SPARE: Final = 16

_Key = tuple[str, str]
"""A token's id and a mechanism's name."""


class TokenCredentials:
    """The credentials of tokens under the cluster's secret. `own_secret` is this node's secret for making salts."""

    def __init__(self, secret: str, own_secret: bytes, clock: Clock, image: Callable[[], Image]) -> None:
        self._secret = secret
        self._own_secret = own_secret
        self._clock = clock
        self._image = image
        self._derived: dict[_Key, ScramCredential] = {}
        self._deriving: dict[_Key, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def of_mechanism(self, mechanism: Mechanism) -> OfMechanism:
        """Return the tokens as credentials of a mechanism."""
        return OfMechanism(self, mechanism)

    def token(self, token_id: str) -> DelegationToken | None:
        """Return a token; None if it does not exist or has expired."""
        token = self._image().delegation_tokens.of_id(token_id)
        return None if token is None or has_expired(token, self._clock.now()) else token

    def remaining_ms(self, token: DelegationToken) -> int:
        """Return how long until a token expires unless it is renewed."""
        return token.expiry_ms - self._clock.now()

    def derived(self, mechanism: Mechanism, token_id: str) -> ScramCredential | None:
        """Return a token's credential; None if it has not been derived yet."""
        return self._derived.get((token_id, mechanism.name))

    async def derive(self, mechanism: Mechanism, token_id: str) -> None:
        """Derive a token's credential; concurrent calls share one derivation."""
        key = token_id, mechanism.name
        task = self._deriving.get(key)
        if task is None:
            task = self._deriving[key] = asyncio.create_task(self._derive(mechanism, token_id), name="token credential")
            task.add_done_callback(lambda _: self._deriving.pop(key))
        await asyncio.shield(task)

    async def _derive(self, mechanism: Mechanism, token_id: str) -> None:
        salt = fake_credential(mechanism, token_id, self._own_secret).salt
        async with self._turn:
            made = await asyncio.to_thread(token_credential, mechanism, self._secret, token_id, salt)
        self._drop_removed()
        self._derived[token_id, mechanism.name] = made

    def _drop_removed(self) -> None:
        """Drop the credentials of tokens that are gone, once there are many."""
        tokens = self._image().delegation_tokens
        if len(self._derived) > _SPARE + 2 * len(tokens):
            self._derived = {key: made for key, made in self._derived.items() if tokens.of_id(key[0]) is not None}


class OfMechanism:
    """Tokens as credentials of one mechanism (`sasl.TokenLogins`)."""

    def __init__(self, credentials: TokenCredentials, mechanism: Mechanism) -> None:
        self._credentials = credentials
        self._mechanism = mechanism

    def prepare(self, token_id: str) -> Awaitable[None] | None:
        """Derive the credential of an existing token, unless that is done already."""
        known = self._credentials
        if known.token(token_id) is None or known.derived(self._mechanism, token_id) is not None:
            return None
        return known.derive(self._mechanism, token_id)

    def find(self, token_id: str) -> TokenLogin | None:
        """Return the login of a token; None if the token does not exist or has expired."""
        token = self._credentials.token(token_id)
        made = self._credentials.derived(self._mechanism, token_id)
        if token is None or made is None:
            return None
        return TokenLogin(made, token.owner, self._credentials.remaining_ms(token))
