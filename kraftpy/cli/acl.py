"""`kraftpy acl list|add|remove`: who may do what (KIP-140).

`--producer` and `--consumer` stand for the operations that a producer and a consumer need, as in Kafka's kafka-acls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.connect import bootstrap_option, client_options, run
from kraftpy.cli.output import format_option, print_rows, tell

if TYPE_CHECKING:
    from kraftpy.client import AclBinding, Admin

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
    """Add an option for each type of resource, and for how its name is meant."""
    for name in reversed(_RESOURCES):
        text = f"{name.replace('-', ' ').capitalize()} by name; '*' for every one. Repeatable."
        command = click.option(f"--{name}", name.replace("-", "_"), multiple=True, metavar="NAME", help=text)(command)
    command = click.option("--cluster", is_flag=True, help="The cluster.")(command)
    return click.option("--prefixed", is_flag=True, help="The names are the beginnings of names.")(command)


@click.group()
def acl() -> None:
    """Show who may do what, allow and deny it."""


@acl.command(name="list")
@resource_options
@click.option("--principal", metavar="PRINCIPAL", help="Only those of this principal, such as User:alice.")
@click.option("--matching", is_flag=True, help="All that have an effect on the names, wildcards and prefixes too.")
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
        async with _admin(bootstrap) as admin:
            return [
                each
                for wanted in filters or [AclFilter(principal=principal)]
                for each in await admin.describe_acls(wanted)
            ]

    found = dict.fromkeys(run(bootstrap, work()))
    print_rows([_row(each) for each in found], form, empty="no ACLs")


@acl.command()
@resource_options
@click.option("--principal", required=True, metavar="PRINCIPAL", help="Such as User:alice; User:* for everybody.")
@click.option("--operation", "operations", type=click.Choice(OPERATIONS), multiple=True, help="Repeatable.")
@click.option("--producer", is_flag=True, help="What a producer needs: to write to topics and transactional ids.")
@click.option("--consumer", is_flag=True, help="What a consumer needs: to read from topics with groups.")
@click.option("--host", default="*", show_default=True, help="Address from which it holds; '*' for every one.")
@click.option("--deny", is_flag=True, help="Deny it, whatever else allows it.")
@bootstrap_option
def add(
    prefixed: bool,
    cluster: bool,
    principal: str,
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    host: str,
    deny: bool,
    bootstrap: str,
    **resources: tuple[str, ...],
) -> None:
    """Add ACLs: an operation on each resource, or what a producer or a consumer needs."""
    wanted = _bindings(prefixed, cluster, principal, operations, producer, consumer, host, deny, resources)

    async def work() -> None:
        async with _admin(bootstrap) as admin:
            await admin.create_acls(wanted)

    run(bootstrap, work())
    for each in wanted:
        tell(f"added: {_sentence(each)}")


@acl.command()
@resource_options
@click.option("--principal", required=True, metavar="PRINCIPAL", help="Such as User:alice; User:* for everybody.")
@click.option("--operation", "operations", type=click.Choice(OPERATIONS), multiple=True, help="Repeatable.")
@click.option("--producer", is_flag=True, help="What was added for a producer.")
@click.option("--consumer", is_flag=True, help="What was added for a consumer.")
@click.option("--host", default="*", show_default=True, help="Address from which it holds.")
@click.option("--deny", is_flag=True, help="What denies, in place of what allows.")
@bootstrap_option
def remove(
    prefixed: bool,
    cluster: bool,
    principal: str,
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    host: str,
    deny: bool,
    bootstrap: str,
    **resources: tuple[str, ...],
) -> None:
    """Remove ACLs, named as `add` names them."""
    from kraftpy.client import AclFilter

    wanted = _bindings(prefixed, cluster, principal, operations, producer, consumer, host, deny, resources)

    async def work() -> list[AclBinding]:
        async with _admin(bootstrap) as admin:
            removed = []
            for each in wanted:
                removed += await admin.delete_acls(
                    AclFilter(
                        resource_type=each.resource_type,
                        name=each.name,
                        pattern_type=each.pattern_type,
                        principal=each.principal,
                        host=each.host,
                        operation=each.operation,
                        permission=each.permission,
                    )
                )
            return removed

    removed = run(bootstrap, work())
    for each in removed:
        tell(f"removed: {_sentence(each)}")
    if not removed:
        tell("there is no such ACL")


def _named(cluster: bool, resources: dict[str, tuple[str, ...]]) -> list[tuple[int, str]]:
    """Return the resources that the options name, by type."""
    from kraftpy.client import AclResource
    from kraftpy.security.acls import CLUSTER_NAME

    found = [(int(AclResource[kind.upper()]), name) for kind, names in resources.items() for name in names]
    return [*found, *([(int(AclResource.CLUSTER), CLUSTER_NAME)] if cluster else [])]


def _bindings(
    prefixed: bool,
    cluster: bool,
    principal: str,
    operations: tuple[str, ...],
    producer: bool,
    consumer: bool,
    host: str,
    deny: bool,
    resources: dict[str, tuple[str, ...]],
) -> list[AclBinding]:
    """Return the bindings that the options mean. Raises a usage error."""
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
    """Return the name of a code; one that a newer cluster knows is shown as its number."""
    known: dict[int, str] = {int(each): each.name for each in kind}
    return known.get(code, str(code)).lower().replace("_", "-")


def _sentence(each: AclBinding) -> str:
    row = _row(each)
    from_host = "" if each.host == "*" else f" from {each.host}"
    names = f"{row['resource']} {'names that begin with ' if row['pattern'] == 'prefixed' else ''}{each.name}"
    return f"{each.principal}{from_host}: {row['permission']} {row['operation']} on {names}"


def _admin(bootstrap: str) -> Admin:
    from kraftpy.client import Admin

    return Admin(**client_options(bootstrap, client_id="kraftpy-acl"))
