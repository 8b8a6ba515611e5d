"""Shared by all commands that talk to a broker: its address, and a quick, clear failure if it is down."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from kraftpy.cli.output import Failure

T = TypeVar("T")
PROBE_SECONDS = 5.0


def _servers(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from kraftpy.client.options import parse_bootstrap

    try:
        parse_bootstrap(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


bootstrap_option = click.option(
    "--bootstrap-server",
    "-b",
    "bootstrap",
    envvar="KRAFTPY_BOOTSTRAP_SERVERS",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    callback=_servers,
    help="Broker to connect to first; separate several with commas.",
)


def run(bootstrap: str, work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine once a bootstrap server accepts connections. Raises Failure."""
    import asyncio

    async def probed() -> T:
        try:
            await _probe(bootstrap)
        except BaseException:
            work.close()
            raise
        return await work

    return asyncio.run(probed())


def probe(bootstrap: str) -> None:
    """Check that a bootstrap server accepts connections, for a command without an event loop. Raises Failure."""
    import asyncio

    asyncio.run(_probe(bootstrap))


async def _probe(bootstrap: str) -> None:
    """Connect and close. The client would try for a minute, which suits a service and not a person."""
    import asyncio

    from kraftpy.client.options import parse_bootstrap

    reason = ""
    for host, port in parse_bootstrap(bootstrap):
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            reason = f"no answer within {PROBE_SECONDS:g} s"
            continue
        except OSError as error:
            reason = _reason(error)
            continue
        writer.close()
        return
    raise Failure(f"cannot reach a broker at {bootstrap}: {reason}; is `kraftpy server` running there?")


def _reason(error: OSError) -> str:
    import errno
    import os

    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)
