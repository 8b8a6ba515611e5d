"""The option by which commands are given settings of a topic or a group."""

from __future__ import annotations

import click

Settings = dict[str, str]


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Settings:
    """NAME=VALUE options as a mapping. Names and values are the broker's to judge: it may know others than we do."""
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
    callback=_settings,
    help="A setting under Kafka's own name; may be repeated.",
)
