"""The identity behind a request, as ACLs, quotas and logs name it: a type and a name, such as "User:alice" (KIP-11)."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
"""The type of every principal that Kafka's own mechanisms establish."""


class Principal(NamedTuple):
    """A principal. Both parts are case-sensitive, and the name may contain any character, even ":"."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of a connection that proves no name (PLAINTEXT, or TLS without a client certificate)."""


def parse_principal(text: str) -> Principal:
    """Parse "Type:name". Raises ValueError."""
    kind, colon, name = text.partition(":")
    if not kind or not colon:
        raise ValueError(f"expected a string in format principalType:principalName but got {text}")
    return Principal(kind, name)
