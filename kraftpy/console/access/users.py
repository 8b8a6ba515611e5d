"""The people of the console: their names, how they proved them, and their roles.

A viewer reads. An operator changes the cluster as well. Both are the console's own words: what a user's requests may do
to the cluster is decided by its ACLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kraftpy.security.principal import ANONYMOUS, USER, Principal


class Role(StrEnum):
    """The rights of a user in the console. The value is the word in settings, pages and the audit log."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Proof(StrEnum):
    """How a user proved a name. The value is the word in settings and the audit log."""

    NONE = "none"
    PASSWORD = "password"
    """A name and password that the cluster accepts."""
    OIDC = "oidc"
    """A token of an identity provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user, as pages show it."""

    name: str
    role: Role
    proof: Proof

    @property
    def may_change(self) -> bool:
        """True if the user may change the cluster."""
        return self.role is Role.OPERATOR

    @property
    def is_signed_in(self) -> bool:
        """True if the user has proved a name."""
        return self.proof is not Proof.NONE

    @property
    def principal(self) -> Principal:
        """The name in the audit log, as the cluster's ACLs have it."""
        return Principal(USER, self.name) if self.is_signed_in else ANONYMOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A user who has just signed in. `repr` shows no secrets."""

    user: User
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options with which a client acts as the user; empty if it acts as the console."""
