"""Users, ACLs and quotas: who may log in, do what, and how much of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.admin.acls import AclBinding, AclFilter, AclOperation, AclPattern, AclPermission, AclResource
from kraftpy.console.console import after_change, console_of
from kraftpy.console.forms import Refused, needs_typed, number_of, read_form, text_of
from kraftpy.console.paging import page_of
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.security.acls import CLUSTER_NAME
from kraftpy.security.scram import LEAST_ITERATIONS, MECHANISMS

E_ = TypeVar("E_", bound=IntEnum)
_MOST_PASSWORD: Final = 4_096
_TYPES: Final = ("user", "client-id", "ip")
_DEFAULT: Final = "<default>"
QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
_OFF: Final = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})


async def users(request: Request) -> Response:
    """List the users that have SCRAM credentials."""
    console = console_of(request)
    query = dict(request.query_params)
    find = query.get("find", "").strip()
    found = await console.cluster.admin.describe_scram_users()
    rows = [(name, credentials) for name, credentials in sorted(found.items()) if find.lower() in name.lower()]
    return console.render(
        request,
        "users.html",
        title="Users",
        page=page_of(rows, query),
        find=find,
        mechanisms=sorted(MECHANISMS),
        least_iterations=LEAST_ITERATIONS,
    )


async def set_user(request: Request) -> Response:
    """Give a user a password; create the user if there is none of that name."""
    fields = await read_form(request)
    name, password = text_of(fields, "name"), text_of(fields, "password")
    if len(password.encode()) > _MOST_PASSWORD:
        raise Refused(f"the password has more than {_MOST_PASSWORD:,} bytes")
    mechanism = fields.get("mechanism", "")
    if mechanism not in (*MECHANISMS, ""):
        raise Refused(f"mechanism is not one of {', '.join(sorted(MECHANISMS))}")
    iterations = number_of(fields, "iterations", LEAST_ITERATIONS, low=LEAST_ITERATIONS, high=16_384)
    admin = console_of(request).cluster.admin
    for each in [mechanism] if mechanism else sorted(MECHANISMS):
        await admin.set_scram_password(name, password, mechanism=each, iterations=iterations)
    return after_change("/users", "user set")


async def delete_user(request: Request) -> Response:
    """Remove a user's credentials, once the name was typed."""
    fields = await read_form(request)
    name = text_of(fields, "name")
    needs_typed(fields, name)
    admin = console_of(request).cluster.admin
    credentials = (await admin.describe_scram_users([name]))[name]
    await admin.delete_scram_passwords(name, credentials)
    return after_change("/users", "user deleted")


async def acls(request: Request) -> Response:
    """List ACLs."""
    console = console_of(request)
    query = dict(request.query_params)
    find = query.get("find", "").strip().lower()
    off = None
    try:
        found = await console.cluster.admin.describe_acls(AclFilter())
    except KafkaError as error:
        if error.code not in _OFF:
            raise
        found, off = [], str(error)
    rows = [_acl_row(each) for each in found if find in each.name.lower() or find in each.principal.lower()]
    rows.sort(key=lambda row: (row["resource"], row["name"], row["principal"], row["operation"]))
    return console.render(
        request,
        "acls.html",
        title="ACLs",
        page=page_of(rows, query),
        find=query.get("find", ""),
        off=off,
        resources=_names(AclResource),
        operations=["ALL", *_names(AclOperation)[1:]],
    )


def _names(kind: type[E_]) -> list[str]:
    """Return the names that a binding may have: not UNKNOWN, ANY or MATCH."""
    return [each.name for each in kind if each.name not in ("UNKNOWN", "ANY", "MATCH")]


def _acl_row(each: AclBinding) -> dict[str, Any]:
    return {
        "resource": AclResource(each.resource_type).name,
        "name": each.name,
        "pattern": AclPattern(each.pattern_type).name,
        "principal": each.principal,
        "host": each.host,
        "operation": AclOperation(each.operation).name,
        "permission": AclPermission(each.permission).name,
    }


def _binding(fields: Mapping[str, str]) -> AclBinding:
    """Return the binding of a form. Raises Refused."""
    resource = _member(AclResource, fields, "resource")
    principal = text_of(fields, "principal").strip()
    if ":" not in principal:
        raise Refused("principal is not of the form User:name")
    return AclBinding(
        resource_type=resource,
        name=CLUSTER_NAME if resource is AclResource.CLUSTER else text_of(fields, "name"),
        pattern_type=_member(AclPattern, fields, "pattern"),
        principal=principal,
        host=fields.get("host", "").strip() or "*",
        operation=_member(AclOperation, fields, "operation"),
        permission=_member(AclPermission, fields, "permission"),
    )


def _member(kind: type[E_], fields: Mapping[str, str], name: str) -> E_:
    value = fields.get(name, "")
    if value not in _names(kind):
        raise Refused(f"{name} is not one of {', '.join(_names(kind))}")
    return kind[value]


async def add_acl(request: Request) -> Response:
    """Add an ACL."""
    await console_of(request).cluster.admin.create_acls([_binding(await read_form(request))])
    return after_change("/acls", "acl added")


async def delete_acl(request: Request) -> Response:
    """Delete exactly one ACL."""
    binding = _binding(await read_form(request))
    deleted = await console_of(request).cluster.admin.delete_acls(
        AclFilter(
            resource_type=binding.resource_type,
            name=binding.name,
            pattern_type=binding.pattern_type,
            principal=binding.principal,
            host=binding.host,
            operation=binding.operation,
            permission=binding.permission,
        )
    )
    if not deleted:
        raise Refused("there is no such ACL any more: nothing was deleted", 409)
    return after_change("/acls", "acl deleted")


async def quotas(request: Request) -> Response:
    """List quotas."""
    console = console_of(request)
    query = dict(request.query_params)
    rows = [
        {
            "entity": {kind: _DEFAULT if name is None else name for kind, name in sorted(each.entity.items())},
            "names": {kind: each.entity.get(kind) for kind in _TYPES if kind in each.entity},
            "quota": key,
            "value": value,
        }
        for each in await console.cluster.admin.describe_client_quotas()
        for key, value in sorted(each.values.items())
    ]
    return console.render(
        request, "quotas.html", title="Quotas", page=page_of(rows, query), quotas=QUOTAS, types=_TYPES
    )


async def set_quota(request: Request) -> Response:
    """Set or remove one quota of a user, a client id, both together, or an address."""
    fields = await read_form(request)
    entity: dict[str, str | None] = {}
    for kind in _TYPES:
        if fields.get(f"{kind}-default"):
            entity[kind] = None
        elif fields.get(kind):
            entity[kind] = fields[kind]
    if not entity:
        raise Refused("name a user, a client id, both together, or an IP address")
    quota = text_of(fields, "quota")
    value: float | None = None
    if not fields.get("remove"):
        try:
            value = float(text_of(fields, "value"))
        except ValueError:
            raise Refused("value is not a number") from None
        if not math.isfinite(value) or value <= 0:
            raise Refused("value is not a number above 0")
    await console_of(request).cluster.admin.alter_client_quotas(entity, {quota: value})
    return after_change("/quotas", "quota set" if value is not None else "quota removed")
