"""`kraftpy acl list|add|remove`: the rules that allow and deny operations on resources (KIP-140).

`--producer` and `--consumer` stand for the operations that a producer and a consumer need, as in Kafka's kafka-acls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import format_option, print_rows, tell

if TYPE_CHECKING:
    from kraftpy.client import AclBinding

F = TypeVar("F", bound=Callable[..., Any])

OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
    "create-tokens",
    "describe-tokens",
    "two-phase-commit",
)
_RESOURCES = ("topic", "group", "transactional-id", "delegation-token", "user")


def resource_options(command: F) -> F:
    """Add an option for each type of resource, and `--prefixed`."""
    for name in reversed(_RESOURCES):
        kind = name.replace("-", " ")
        text = f"{kind.capitalize()} with this name; '*' for any. Repeatable."
        command = click.option(f"--{name}", name.replace("-", "_"), multiple=True, metavar="NAME", help=text)(command)
    command = click.option("--cluster", is_flag=True, help="The cluster itself.")(command)
    return click.option("--prefixed", is_flag=True, help="Names stand for all that begin with them.")(command)


_BINDING_OPTIONS = (
    click.option("--principal", required=True, metavar="PRINCIPAL", help="Such as User:alice; User:* for every user."),
    click.option("--operation", "operations", type=click.Choice(OPERATIONS), multiple=True, help="Repeatable."),
    click.option("--producer", is_flag=True, help="All that a producer needs on these topics and transactional ids."),
    click.option("--consumer", is_flag=True, help="All that a consumer needs on these topics and groups."),
    click.option("--host", default="*", show_default=True, help="The client's address; '*' for any."),
    click.option("--deny", is_flag=True, help="ACLs that deny, which override all that allow."),
)


def binding_options(command: F) -> F:
    """Add the options that name the ACLs to add or to remove."""
    for option in reversed(_BINDING_OPTIONS):
        command = option(command)
    return resource_options(command)


@click.group()
def acl() -> None:
    """List, add and remove ACLs, which allow and deny operations on resources."""


@acl.command(name="list")
@resource_options
@click.option("--principal", metavar="PRINCIPAL", help="Only ACLs of this principal, such as User:alice.")
@click.option("--matching", is_flag=True, help="All ACLs that apply to the names, also by wildcards and prefixes.")
@bootstrap_option
@format_option
def list_acls(
    prefixed: bool,
    cluster: bool,
    principal: str | None,
    matching: bool,
    bootstrap: str,
    form: str,
    **resources: tuple[str, ...],
) -> None:
    """List ACLs."""
    from kraftpy.client import AclFilter, AclPattern

    pattern = AclPattern.MATCH if matching else AclPattern.PREFIXED if prefixed else AclPattern.ANY
    named = _named(cluster, resources)
    filters = [
        AclFilter(resource_type=kind, name=name, pattern_type=pattern, principal=principal) for kind, name in named
    ]

    async def work() -> list[AclBinding]:
        async with admin_client(bootstrap, "kraftpy-acl") as admin:
            return [
                each
                for wanted in filters or [AclFilter(principal=principal)]
                for each in await admin.describe_acls(wanted)
            ]

    found = dict.fromkeys(run(bootstrap, work()))
    print_rows([_row(each) for each in found], form, empty="no ACLs")


@acl.command()
@binding_options
@bootstrap_option
def add(bootstrap: str, **named: Any) -> None:
    """Add ACLs: for single operations, or for all that a producer or a consumer needs."""
    wanted = _bindings(**named)

    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-acl") as admin:
            await admin.create_acls(wanted)

    run(bootstrap, work())
    for each in wanted:
        tell(f"added: {_sentence(each)}")


@acl.command()
@binding_options
@bootstrap_option
def remove(bootstrap: str, **named: Any) -> None:
    """Remove ACLs, named by the options that add them."""
    from kraftpy.client import AclFilter

    wanted = _bindings(**named)

    async def work() -> list[AclBinding]:
        async with admin_client(bootstrap, "kraftpy-acl") as admin:
            removed = []
            for each in wanted:
                removed += await admin.delete_acls(AclFilter(**asdict(each)))
            return removed

    removed = run(bootstrap, work())
    for each in removed:
        tell(f"removed: {_sentence(each)}")
    if not removed:
        tell("there is no such ACL")


def _named(cluster: bool, resources: dict[str, tuple[str, ...]]) -> list[tuple[int, str]]:
    """Return type and name of each resource that the options name."""
    from kraftpy.client import AclResource
    from kraftpy.security.acls import CLUSTER_NAME

    found = [(int(AclResource[kind.upper()]), name) for kind, names in resources.items() for name in names]
    return [*found, *([(int(AclResource.CLUSTER), CLUSTER_NAME)] if cluster else [])]


def _bindings(
    *,
    prefixed: bool,
    cluster: bool,
    principal: str,
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    host: str,
    deny: bool,
    **resources: tuple[str, ...],
) -> list[AclBinding]:
    """Return the bindings that the options name. Raises UsageError if they name none."""
    from kraftpy.client import AclBinding, AclOperation, AclPattern, AclPermission, AclResource

    asked = [
        (kind, name, int(AclOperation[each.upper().replace("-", "_")]))
        for kind, name in _named(cluster, resources)
        for each in operations
    ]
    topics, groups, ids = resources["topic"], resources["group"], resources["transactional_id"]
    if producer:
        asked += _each(AclResource.TOPIC, topics, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
        asked += _each(AclResource.TRANSACTIONAL_ID, ids, AclOperation.WRITE, AclOperation.DESCRIBE)
    if consumer:
        asked += _each(AclResource.TOPIC, topics, AclOperation.READ, AclOperation.DESCRIBE)
        asked += _each(AclResource.GROUP, groups, AclOperation.READ)
    if not asked:
        raise click.UsageError("name a resource, such as --topic, and --operation, --producer or --consumer")
    return [
        AclBinding(
            resource_type=kind,
            name=name,
            pattern_type=AclPattern.PREFIXED if prefixed else AclPattern.LITERAL,
            principal=principal,
            host=host,
            operation=operation,
            permission=AclPermission.DENY if deny else AclPermission.ALLOW,
        )
        for kind, name, operation in dict.fromkeys(asked)
    ]


def _each(kind: int, names: tuple[str, ...], *operations: int) -> list[tuple[int, str, int]]:
    return [(int(kind), name, int(operation)) for name in names for operation in operations]


def _row(each: AclBinding) -> dict[str, Any]:
    from kraftpy.client import AclOperation, AclPattern, AclPermission, AclResource

    return {
        "resource": _word(AclResource, each.resource_type),
        "name": each.name,
        "pattern": _word(AclPattern, each.pattern_type),
        "principal": each.principal,
        "host": each.host,
        "operation": _word(AclOperation, each.operation),
        "permission": _word(AclPermission, each.permission),
    }


def _word(kind: Any, code: int) -> str:
    """Return the name of a code, or its number if only a newer cluster knows it."""
    known: dict[int, str] = {int(each): each.name for each in kind}
    return known.get(code, str(code)).lower().replace("_", "-")


def _sentence(each: AclBinding) -> str:
    row = _row(each)
    from_host = "" if each.host == "*" else f" from {each.host}"
    names = f"{row['resource']} {'names that begin with ' if row['pattern'] == 'prefixed' else ''}{each.name}"
    return f"{each.principal}{from_host}: {row['permission']} {row['operation']} on {names}"
