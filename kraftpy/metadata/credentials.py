"""SCRAM credentials of users in the metadata (KIP-554): their commands and records, and the credentials of an image.

A credential lets a server check a password, but holds neither the password nor the key that a client derives from it.
`repr` shows none of its secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from operator import attrgetter
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.protocol.errors import ErrorCode
from kraftpy.security.scram import ScramCredential
from kraftpy.types import Millis

_OVERHEAD_BYTES: Final = 256


NOTHING_TO_DELETE: Final = "Attempt to delete a user credential that does not exist"


@frozen
class ScramChange:
    """A user's new credential for a mechanism (its number in Kafka's APIs); with 0 iterations, it is deleted."""

    name: str
    mechanism: int
    iterations: int = 0
    salt: bytes = field(default=b"", repr=False)
    stored_key: bytes = field(default=b"", repr=False)
    server_key: bytes = field(default=b"", repr=False)


@frozen
class SetScramCredentials:
    """Change credentials, each independently."""

    changes: tuple[ScramChange, ...]
    time_ms: Millis


@frozen
class ScramCredentialChanged:
    """A user has a new credential for a mechanism, or none any more."""

    change: ScramChange


@frozen
class ScramResult:
    """The result of one change."""

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Credentials:
    """The credentials of an image."""

    def __init__(self, changes: tuple[ScramChange, ...] = ()) -> None:
        self._by_name: dict[str, dict[int, ScramChange]] = {}
        self.bytes = 0
        """Estimated memory of all credentials."""
        for change in changes:
            self.replay(change)

    def of(self, name: str, mechanism: int) -> ScramCredential | None:
        """Return a user's credential for a mechanism."""
        found = self._by_name.get(name, {}).get(mechanism)
        if found is None:
            return None
        return ScramCredential(
            salt=found.salt, stored_key=found.stored_key, server_key=found.server_key, iterations=found.iterations
        )

    def users(self) -> list[str]:
        """Return the names of the users that have credentials, sorted."""
        return sorted(self._by_name)

    def iterations(self, name: str) -> dict[int, int]:
        """Return the iterations of a user's credentials by mechanism; empty for an unknown user."""
        return {number: change.iterations for number, change in sorted(self._by_name.get(name, {}).items())}

    def replay(self, change: ScramChange) -> None:
        """Apply a decided change."""
        of_user = self._by_name.setdefault(change.name, {})
        before = of_user.pop(change.mechanism, None)
        if before is not None:
            self.bytes -= credential_bytes(before)
        if change.iterations:
            of_user[change.mechanism] = change
            self.bytes += credential_bytes(change)
        if not of_user:
            del self._by_name[change.name]

    def saved(self) -> tuple[ScramChange, ...]:
        """Return the changes that lead to these credentials, in a fixed order."""
        return self.capture()()

    def capture(self) -> Callable[[], tuple[ScramChange, ...]]:
        """Capture the credentials; the returned function does what `saved` does, in any thread and at any time."""
        changes = [change for of_user in self._by_name.values() for change in of_user.values()]
        return lambda: tuple(sorted(changes, key=attrgetter("name", "mechanism")))


def credential_bytes(change: ScramChange) -> int:
    """Estimate the memory of a credential."""
    return _OVERHEAD_BYTES + len(change.name) + len(change.salt) + len(change.stored_key) + len(change.server_key)
