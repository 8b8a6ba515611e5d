"""`kraftpy config list|describe|alter`: the settings of topics, brokers, groups, loggers and client metrics.

A resource is written as `topic:NAME`, `broker:ID`, `brokers` (all brokers), `group:NAME`, `logger:ID` (the loggers of
a node) or `client-metrics:NAME`. Works with any Kafka broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, tell
from kraftpy.cli.settings import Settings, config_option, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kraftpy.client import Admin
    from kraftpy.client.admin.model import ConfigEntry
    from kraftpy.client.model import ResourceType

ALL_BROKERS = "brokers"
KINDS = {
    "topic": "TOPIC",
    "broker": "BROKER",
    "group": "GROUP",
    "logger": "BROKER_LOGGER",
    "client-metrics": "CLIENT_METRICS",
}
"""The words for kinds of resources, and their names in `ResourceType`."""


Named = tuple[str, str]
"""A kind and a name; the name of all brokers is empty."""


def _named(ctx: click.Context, param: click.Parameter, value: str) -> Named:
    if value == ALL_BROKERS:
        return "broker", ""
    kind, colon, name = value.partition(":")
    if kind not in KINDS or not colon or not name:
        problem = f"'{value}' is neither KIND:NAME, of {', '.join(KINDS)}, nor '{ALL_BROKERS}'"
        raise click.BadParameter(problem, ctx, param)
    if kind in ("broker", "logger") and not (name.isascii() and name.isdecimal()):
        raise click.BadParameter(f"'{value}': a node is named by its number", ctx, param)
    return kind, name


def _all_named(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Named]:
    return list(dict.fromkeys(_named(ctx, param, value) for value in values))


@click.group()
def config() -> None:
    """Show and change settings of topics, brokers, groups, loggers and client metrics.

    \b
    RESOURCE is one of:
      topic:NAME            a topic
      broker:ID             one broker
      brokers               all brokers
      group:NAME            a group, which need not exist
      logger:ID             the log levels of a node
      client-metrics:NAME   a subscription to clients' metrics
    """


@config.command(name="list")
@click.option("--kind", "kinds", type=click.Choice(list(KINDS)), multiple=True, help="List only this kind; repeatable.")
@bootstrap_option
@format_option
def list_resources(kinds: tuple[str, ...], bootstrap: str, form: str) -> None:
    """List the resources that have settings.

    These are all topics, brokers and loggers, and the groups and subscriptions with settings of their own.
    """

    async def work() -> list[dict[str, Any]]:
        from kraftpy.client import ResourceType

        words = {ResourceType[name]: word for word, name in KINDS.items()}
        async with admin_client(bootstrap, "kraftpy-config") as admin:
            found = await admin.list_config_resources([ResourceType[KINDS[kind]] for kind in kinds])
        return [
            {"resource": f"{words[kind]}:{name}", "kind": words[kind], "name": name} for kind, name in sorted(found)
        ]

    print_rows(run(bootstrap, work()), form, plain="resource", empty="no resources")


@config.command()
@click.argument("resources", nargs=-1, required=True, callback=_all_named, metavar="RESOURCE...")
@click.option("--all", "every", is_flag=True, help="Show defaults as well.")
@click.option("--setting", "-s", "names", multiple=True, metavar="NAME", help="Show only this setting; repeatable.")
@click.option("--synonyms", is_flag=True, help="Show where each value comes from, and the values behind it.")
@click.option("--documentation", is_flag=True, help="Show the meaning of each setting.")
@bootstrap_option
@format_option
def describe(
    resources: list[Named],
    every: bool,
    names: tuple[str, ...],
    synonyms: bool,
    documentation: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Show the settings of RESOURCEs that are set, and where they were set.

    A broker's own settings take precedence over those of all brokers, and both over its file.

    \b
      kraftpy config describe broker:1 --all
      kraftpy config describe brokers topic:orders
      kraftpy config describe topic:orders --setting retention.ms --synonyms
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-config") as admin:
            await _check_brokers(admin, resources)
            described = await admin.describe_configs(
                map(_resource, resources),
                names=names or None,
                documentation=documentation,
                synonyms=synonyms,
            )
        rows = []
        for kind, name in resources:
            entries = described[_resource((kind, name))]
            for entry in sorted(entries.values(), key=lambda entry: entry.name):
                if every or names or not entry.is_default:
                    row = {"resource": _text(kind, name), **_row(entry)}
                    if synonyms:
                        row["synonyms"] = [_synonym(each.name, each.value, each.source.name) for each in entry.synonyms]
                    if documentation:
                        row["documentation"] = entry.documentation
                    rows.append(row)
        return rows

    rows = run(bootstrap, work())
    if form == "table" or (form == "auto" and at_terminal()):
        for row in rows:
            flags = [word for word in ("read_only", "sensitive") if row.pop(word)]
            row["source"] = row["source"].removesuffix("_config").replace("_", " ")
            row["remarks"] = ", ".join(flags).replace("_", "-")
    print_rows(rows, form, empty="no settings")


@config.command()
@click.argument("resource", callback=_named, metavar="RESOURCE")
@config_option
@click.option("--delete-config", "-d", "deleted", multiple=True, metavar="NAME", help="Unset a setting; repeatable.")
@click.option(
    "--append",
    "appended",
    multiple=True,
    metavar="NAME=VALUE",
    callback=settings_of,
    help="Append values, separated by commas, to a list; repeatable.",
)
@click.option(
    "--subtract",
    "subtracted",
    multiple=True,
    metavar="NAME=VALUE",
    callback=settings_of,
    help="Remove values, separated by commas, from a list; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Validate the change without making it.")
@bootstrap_option
def alter(
    resource: Named,
    settings: Settings,
    deleted: tuple[str, ...],
    appended: Settings,
    subtracted: Settings,
    dry_run: bool,
    bootstrap: str,
) -> None:
    """Change the settings of RESOURCE; all of them or, if one is refused, none.

    \b
      kraftpy config alter brokers --config log.retention.ms=86400000
      kraftpy config alter broker:2 --delete-config log.cleaner.threads
      kraftpy config alter topic:orders --append cleanup.policy=compact
      kraftpy config alter logger:1 --config kraftpy.broker=DEBUG
    """
    names = [*settings, *deleted, *appended, *subtracted]
    if not names:
        raise click.UsageError("nothing to change: give --config, --delete-config, --append or --subtract")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise click.UsageError(f"{twice} is to be changed in two ways")

    async def work() -> None:
        from kraftpy.client import AlterOperation

        changes: dict[str, str | tuple[AlterOperation, str | None] | None] = {**settings, **dict.fromkeys(deleted)}
        for operation, values in ((AlterOperation.APPEND, appended), (AlterOperation.SUBTRACT, subtracted)):
            changes.update((name, (operation, value)) for name, value in values.items())
        async with admin_client(bootstrap, "kraftpy-config") as admin:
            await _check_brokers(admin, [resource])
            await admin.alter_configs({_resource(resource): changes}, validate_only=dry_run)

    run(bootstrap, work())
    tell(f"{_text(*resource)} can be altered" if dry_run else f"altered {_text(*resource)}")


async def _check_brokers(admin: Admin, resources: Iterable[Named]) -> None:
    """Raise Failure if a broker does not run: only it can answer for itself, and a client would wait for it."""
    named = {int(name) for kind, name in resources if kind in ("broker", "logger") and name}
    if not named:
        return
    running = {each.node_id for each in (await admin.describe_cluster()).nodes}
    if missing := sorted(named - running):
        raise Failure(f"broker {missing[0]} is unknown; those that run are {', '.join(map(str, sorted(running)))}")


def _resource(named: Named) -> tuple[ResourceType, str]:
    from kraftpy.client import ResourceType

    kind, name = named
    return ResourceType[KINDS[kind]], name


def _text(kind: str, name: str) -> str:
    return f"{kind}:{name}" if name else ALL_BROKERS


def _row(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "setting": entry.name,
        "value": entry.value,
        "source": entry.source.name.lower(),
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
    }


def _synonym(name: str, value: str | None, source: str) -> str:
    return f"{source.lower()}:{name}={'' if value is None else value}"
