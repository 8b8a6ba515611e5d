"""The worlds in which scenarios ask: clusters that are open to every client, and clusters with an authorizer.

In the worlds with an authorizer, clients log in with PLAIN, and a user's password is its name. In "rights", the client
"main" is a user who has the rights that the scenario gives, and all others are a super user. In "tokens" and
"no-tokens", with and without a secret for delegation tokens, a client named like a user is that user, the client
"clear" is nobody, on a listener without logins, and all others are a super user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftpy.config.broker import AUTHORIZER

OPEN: Final = "open"
RIGHTS: Final = "rights"
TOKENS: Final = "tokens"
NO_TOKENS: Final = "no-tokens"

USER: Final = "alice"
CLEAR: Final = "CLEAR"
"""The listener of clients that do not log in, in the worlds of tokens."""
USERS: Final = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "mallory")
"""The users without rights in the worlds of tokens."""
_ADMIN: Final = "admin"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


def _jaas(*users: str) -> str:
    return " ".join([f'username="{_ADMIN}" password="{_ADMIN}"', *(f'user_{user}="{user}"' for user in users)])


_WITH_AUTHORIZER: Final[Mapping[str, str]] = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{_PLAIN} required {_jaas(_ADMIN, USER)};",
    "authorizer.class.name": AUTHORIZER,
    "super.users": f"User:{_ADMIN};User:ANONYMOUS",
    "auto.create.topics.enable": "false",
}
_WITHOUT_SECRET: Final[Mapping[str, str]] = {
    **_WITH_AUTHORIZER,
    "listener.security.protocol.map": f"PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,{CLEAR}:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{_PLAIN} required {_jaas(_ADMIN, *USERS)};",
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
}
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    OPEN: {},
    RIGHTS: _WITH_AUTHORIZER,
    TOKENS: {**_WITHOUT_SECRET, "delegation.token.secret.key": "the secret of both clusters"},
    NO_TOKENS: _WITHOUT_SECRET,
}
"""The settings of both clusters in each world, beside those that they always have."""
LISTENERS: Final[Mapping[str, Mapping[str, str]]] = {TOKENS: {CLEAR: "PLAINTEXT"}, NO_TOKENS: {CLEAR: "PLAINTEXT"}}
"""The listeners of each world beside the one that all have: protocols by name."""


def user_of(world: str, client: str) -> str | None:
    """Return the user that a client logs in as, with its name for a password; None if it does not."""
    if world == OPEN or listener_of(world, client):
        return None
    if world == RIGHTS:
        return USER if client == "main" else _ADMIN
    return client if client in USERS else _ADMIN


def listener_of(world: str, client: str) -> str | None:
    """Return the listener that a client uses; None for the one that every world has."""
    return CLEAR if world in LISTENERS and client == "clear" else None
