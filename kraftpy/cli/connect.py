"""Shared by all commands that talk to a broker: its address, a client, and a quick, clear failure if it is down.

`--command-config` names a file with settings of clients, such as those of TLS and SASL; `client_options` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.output import Failure

if TYPE_CHECKING:
    from kraftpy.client import Admin

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS, _FILE, _OWN = "kraftpy.client options", "kraftpy.command config", "kraftpy.own settings"
PROBE_SECONDS = 5.0


def _servers(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from kraftpy.client.options import parse_bootstrap

    try:
        parse_bootstrap(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


def _command_config(ctx: click.Context, param: click.Parameter, value: Path | None, own: tuple[str, ...] = ()) -> None:
    """Read the file, and keep what it says for `client_options`, and for `own_settings` what begins with `own`."""
    if value is None:
        return
    from kraftpy.cli.output import tell
    from kraftpy.client.properties import options_of
    from kraftpy.config import ConfigError
    from kraftpy.config.sources import parse_properties

    try:
        settings = parse_properties(value.read_text(encoding="utf-8"), value.name)
        ctx.meta[_OWN] = {name: text for name, text in settings.items() if name.startswith(own)} if own else {}
        options, ignored = options_of({name: text for name, text in settings.items() if name not in ctx.meta[_OWN]})
    except (OSError, UnicodeDecodeError, ConfigError, ValueError) as error:
        raise click.BadParameter(f"{value}: {error}", ctx, param) from None
    if ignored:
        tell(f"{value}: {', '.join(ignored)}: not used by this command")
    ctx.meta[_OPTIONS], ctx.meta[_FILE] = options, value


def client_options(bootstrap: str, **own: Any) -> dict[str, Any]:
    """Return the options of a client of the running command; its own ones take precedence over those of the file."""
    ctx = click.get_current_context(silent=True)
    given = {} if ctx is None else ctx.meta.get(_OPTIONS, {})
    return {**given, **own, "bootstrap_servers": bootstrap}


def own_settings() -> dict[str, str]:
    """Return the settings in the running command's file that are its own (`config_option_with`)."""
    ctx = click.get_current_context(silent=True)
    return {} if ctx is None else ctx.meta.get(_OWN, {})


def admin_client(bootstrap: str, client_id: str) -> Admin:
    """Return the running command's admin client."""
    from kraftpy.client import Admin

    return Admin(**client_options(bootstrap, client_id=client_id))


def security_options() -> dict[str, Any]:
    """Return the TLS and SASL options of the running command's file."""
    return {
        name: value for name, value in client_options("").items() if name.startswith(("security_", "ssl_", "sasl_"))
    }


def command_config() -> Path | None:
    """Return the path that `--command-config` names; None without it."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.meta.get(_FILE)


address_option = click.option(
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


def config_option_with(own: tuple[str, ...], kinds: str) -> Callable[[F], F]:
    """Return `--command-config` for a command that has settings of its own in the file: those that begin with `own`."""
    return click.option(
        "--command-config",
        type=click.Path(path_type=Path),
        envvar="KRAFTPY_COMMAND_CONFIG",
        show_envvar=True,
        expose_value=False,
        callback=partial(_command_config, own=own),
        help=f"Properties file with settings of clients, such as security.protocol, ssl.* and sasl.*{kinds}.",
    )


config_option = config_option_with((), "")


def bootstrap_option(command: F) -> F:
    """Give a command `--bootstrap-server`, and `--command-config`."""
    return address_option(config_option(command))


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
