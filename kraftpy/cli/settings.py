"""The options that give commands the settings of a topic, a group or another resource."""

from __future__ import annotations

import click

Settings = dict[str, str]


def settings_of(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Settings:
    """Parse NAME=VALUE options into a mapping. Only the broker judges them: it may know other settings than we do."""
    settings = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{value}' is not NAME=VALUE", ctx, param)
        settings[name.strip()] = text.strip()
    return settings


config_option = click.option(
    "--config",
    "-c",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=settings_of,
    help="Setting under Kafka's own name; repeatable.",
)
