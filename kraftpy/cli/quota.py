"""`kraftpy quota list|set|remove`: quotas of users, client ids and IP addresses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, tell

if TYPE_CHECKING:
    from kraftpy.client.admin.model import ClientQuota

TYPES = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Column of the output -> type of entity."""
DEFAULT = "<default>"
_F = TypeVar("_F", bound=Callable[..., Any])


def entity_options(function: _F) -> _F:
    """Add the options that name an entity."""
    for column, kind in reversed(TYPES.items()):
        option = kind.replace("_", "-")
        noun = {"user": "user", "client-id": "client id", "ip": "IP address"}[kind]
        function = click.option(
            f"--{option}-default", f"{column}_default", is_flag=True, help=f"Every {noun} without a quota of its own."
        )(function)
        function = click.option(f"--{option}", column, help=f"A single {noun}.")(function)
    return function


@click.group()
def quota() -> None:
    """Show, set and remove quotas of users, client ids and IP addresses."""


@quota.command(name="list")
@entity_options
@bootstrap_option
@format_option
def list_quotas(bootstrap: str, form: str, **named: Any) -> None:
    """List quotas: all, or those of entities with the given names. The default entity has null for a name."""
    entity = _entity(named)

    async def work() -> list[ClientQuota]:
        async with admin_client(bootstrap, "kraftpy-quota") as admin:
            return await admin.describe_client_quotas(entity)

    found = run(bootstrap, work())
    is_table = form == "table" or (form == "auto" and at_terminal())
    rows: list[dict[str, Any]] = []
    for each in found:
        for key, value in sorted(each.values.items()):
            names = {column: each.entity[kind] for column, kind in TYPES.items() if kind in each.entity}
            if is_table:  # every row of a table has every column
                names = {column: (names[column] or DEFAULT) if column in names else "" for column in TYPES}
            rows.append({**names, "quota": key, "value": _number(value)})
    print_rows(rows, form, empty="no quotas")


@quota.command(name="set")
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@entity_options
@bootstrap_option
def set_quotas(quotas: tuple[str, ...], bootstrap: str, **named: Any) -> None:
    """Set quotas of a user, a client id, both together, or an IP address. Its other quotas stay as they are.

    Quotas: producer_byte_rate and consumer_byte_rate (bytes per second), request_percentage (of one thread's time),
    controller_mutation_rate (partitions per second); connection_creation_rate (per second) for IP addresses.
    """
    entity, values = _needed(named), dict(map(_value, quotas))
    _alter(bootstrap, entity, dict(values))
    tell(f"{_shown(entity)} has {', '.join(f'{key}={_number(value)}' for key, value in values.items())}")


@quota.command()
@click.argument("keys", nargs=-1, metavar="[QUOTA]...")
@entity_options
@bootstrap_option
def remove(keys: tuple[str, ...], bootstrap: str, **named: Any) -> None:
    """Remove quotas of exactly this user, client id, both together or IP address: the named ones, or all."""
    entity = _needed(named)

    async def work() -> list[str]:
        async with admin_client(bootstrap, "kraftpy-quota") as admin:
            found = await admin.describe_client_quotas(entity, strict=True)
            present = sorted(found[0].values) if found else []
            chosen = [key for key in present if not keys or key in keys]
            if missing := [key for key in keys if key not in present]:
                raise Failure(f"{_shown(entity)} has no {', '.join(missing)}")
            if not chosen:
                raise Failure(f"{_shown(entity)} has no quotas")
            await admin.alter_client_quotas(entity, dict.fromkeys(chosen))
            return chosen

    tell(f"{_shown(entity)} has no {', '.join(run(bootstrap, work()))} any more")


def _alter(bootstrap: str, entity: dict[str, str | None], values: dict[str, float | None]) -> None:
    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-quota") as admin:
            await admin.alter_client_quotas(entity, values)

    run(bootstrap, work())


def _entity(named: dict[str, Any]) -> dict[str, str | None]:
    """Return the entity of the options. Raises UsageError if a type has both a name and the default."""
    entity: dict[str, str | None] = {}
    for column, kind in TYPES.items():
        name, is_default = named[column], named[f"{column}_default"]
        if name is not None and is_default:
            raise click.UsageError(f"--{kind} and --{kind}-default exclude each other")
        if name is not None or is_default:
            entity[kind] = name
    return entity


def _needed(named: dict[str, Any]) -> dict[str, str | None]:
    entity = _entity(named)
    if not entity:
        raise click.UsageError("name an entity: --user, --client-id, both, or --ip, each with a name or -default")
    return entity


def _value(text: str) -> tuple[str, float]:
    key, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not equals or not math.isfinite(number):
        raise click.UsageError(f"{text!r} is not of the form QUOTA=NUMBER")
    return key, number


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _shown(entity: dict[str, str | None]) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity.items())
