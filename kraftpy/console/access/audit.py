"""The console's lines in the audit log: one for each change, sign-in and sign-out, allowed or refused.

A line is a JSON object with the fields of the broker's own (`kraftpy.broker.security.authorizer`), by the same logger;
`listener` is `console`, `request` is the method and the route, `status` is the answer's. Texts from browsers are
shortened, and everything outside ASCII is escaped, so that nobody can write a line, or a terminal's control characters.

A change names what it changes:

    changes(request, Operation.DELETE, ResourceType.TOPIC, "orders")

Without that, the line has no operation. Details are those fields of a form that are named: others may be passwords.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from kraftpy.broker.security.audit import NAME
from kraftpy.console.access.users import User
from kraftpy.protocol.errors import shortened
from kraftpy.security.acls import Operation, ResourceType

audit = logging.getLogger(NAME)

MOST_RESOURCES: Final = 1_000
"""The most lines of one request."""
REFUSED_SIGN_IN_LINES: Final = 100
"""Refused sign-ins within a minute that have a line each; strangers cannot fill the log."""
_ATTRIBUTE: Final = "audited"


@dataclass(frozen=True, slots=True)
class Change:
    """An operation that a request performs on a resource."""

    operation: Operation
    resource_type: ResourceType
    resource: str
    details: Mapping[str, str]


def changes(
    request: Request,
    operation: Operation,
    resource_type: ResourceType,
    resource: str,
    details: Mapping[str, str] | None = None,
) -> None:
    """Tell the audit log what a request changes, and what else to show. Call it before the change is tried."""
    told: list[Change] = getattr(request.state, _ATTRIBUTE, [])
    told.append(Change(operation, resource_type, resource, details or {}))
    setattr(request.state, _ATTRIBUTE, told)


class Audit:
    """Writes lines. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._minute = 0.0
        self._refused = 0

    def change(self, request: Request, user: User, status: int, reason: str | None = None) -> None:
        """Write the lines of a change that was answered with a status; a `reason` says why the console refused it."""
        told: list[Change] = getattr(request.state, _ATTRIBUTE, [])
        for number, each in enumerate(told[:MOST_RESOURCES], 1):
            line = _line(request, user, status, reason, each.operation.name, each.resource_type.name, each.resource)
            if each.details:
                line["details"] = {name: shortened(value) for name, value in each.details.items()}
            _write(line, is_truncated=number == MOST_RESOURCES)
        if not told:
            _write(_line(request, user, status, reason))

    def sign_in(self, request: Request, user: User, status: int, reason: str | None = None) -> None:
        """Write the line of a sign-in; a `reason` says why it was refused."""
        if reason is not None:
            now = self._clock()
            if now - self._minute >= 60:
                self._minute, self._refused = now, 0
            self._refused += 1
            if self._refused > REFUSED_SIGN_IN_LINES:
                return
        is_last = reason is not None and self._refused == REFUSED_SIGN_IN_LINES
        _write(_line(request, user, status, reason, "SIGN_IN"), is_truncated=is_last)

    def sign_out(self, request: Request, user: User) -> None:
        """Write the line of a sign-out."""
        _write(_line(request, user, 303, None, "SIGN_OUT"))


def _line(
    request: Request,
    user: User,
    status: int,
    reason: str | None,
    operation: str | None = None,
    resource_type: str | None = None,
    resource: str | None = None,
) -> dict[str, Any]:
    line = {
        "decision": "ALLOWED" if reason is None and status not in (401, 403) else "DENIED",
        "principal": shortened(str(user.principal)),
        "host": address_of(request),
        "listener": "console",
        "operation": operation,
        "resource_type": resource_type,
        "resource": shortened(resource),
        "request": shortened(f"{request.method} {request.scope['path']}"),
        "client_id": "kraftpy-console",
        "proof": user.proof.value,
        "role": user.role.value,
        "status": status,
    }
    return line if reason is None else {**line, "reason": reason}


def _write(line: Mapping[str, Any], *, is_truncated: bool = False) -> None:
    audit.info("%s", json.dumps({**line, "is_truncated": True} if is_truncated else line))


def address_of(request: Request) -> str:
    """Return the address of a request's connection. Headers about proxies are not believed."""
    return "" if request.client is None else request.client.host
