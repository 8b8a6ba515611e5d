"""The worlds in which scenarios ask: clusters that are open to every client, and clusters with an authorizer.

In the world with an authorizer, clients log in with PLAIN: the client "main" as a user who has the rights that the
scenario gives, all others as a super user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftpy.config.broker import AUTHORIZER

OPEN: Final = "open"
RIGHTS: Final = "rights"

USER: Final = "alice"
_ADMIN: Final = "admin"
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_USERS: Final = f'username="{_ADMIN}" password="{_ADMIN}" user_{_ADMIN}="{_ADMIN}" user_{USER}="{USER}"'

SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    OPEN: {},
    RIGHTS: {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f"{_MODULE} required {_USERS};",
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:{_ADMIN};User:ANONYMOUS",
        "auto.create.topics.enable": "false",
    },
}
"""The settings of both clusters in each world, beside those that they always have."""


def user_of(world: str, client: str) -> str | None:
    """Return the user that a client logs in as, with its name for a password; None if it does not."""
    if world == OPEN:
        return None
    return USER if client == "main" else _ADMIN
