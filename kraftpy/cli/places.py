"""The option of a time, as people write it."""

from __future__ import annotations

import click

from kraftpy.client.times import parse_time


def time_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse an option that is a time into milliseconds. Raises BadParameter."""
    if value is None:
        return None
    from time import time_ns

    try:
        return parse_time(value, time_ns() // 1_000_000)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
