"""The console's routes, and the role that each needs.

A `Page` is read by viewers; a `Change` alters the cluster, is sent by POST only, and needs an operator. The sign-in
sets `request.state.user`, an object with a `name` and a `role`; without one, `Console.allows_changes` decides alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page that only shows."""

    path: str
    endpoint: Endpoint
    role: str = VIEWER
    method: str = "GET"


@dataclass(frozen=True, slots=True)
class Change:
    """A form's target that changes the cluster."""

    path: str
    endpoint: Endpoint
    role: str = OPERATOR
    method: str = "POST"


def role_of(route: Route) -> str:
    """Return the role that a route of the console needs."""
    role: str = getattr(route.endpoint, "role", VIEWER)
    return role
