"""`kraftpy console`: the cluster's pages in a browser."""

from __future__ import annotations

import gc
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kraftpy.cli.connect import address_option, client_options, config_option_with, own_settings
from kraftpy.cli.metrics_options import endpoints_in, metrics_options
from kraftpy.cli.output import Failure, tell

if TYPE_CHECKING:
    from kraftpy.config.console import ConsoleSettings
    from kraftpy.diagnosis.sampling import MetricsEndpoints

_DEFAULT = "127.0.0.1:8080"
_OWN = ("kraftpy.", "listener.name.console.")


@click.command()
@address_option
@config_option_with(_OWN, ", and of the console, kraftpy.console.*")
@click.option(
    "--listen",
    default=_DEFAULT,
    show_default=True,
    metavar="[https://]HOST:PORT",
    help="Address of the pages; with https, the file has listener.name.console.ssl.*.",
)
@click.option(
    "--allow-changes", is_flag=True, help="Let everyone on this machine change the cluster, without a sign-in."
)
@metrics_options
@click.option(
    "--chaos-runs",
    "runs",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory with chaos runs whose reports are shown.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    envvar="KRAFTPY_LOG_FORMAT",
    show_envvar=True,
    help="Lines of the log on standard error: text, or json for one JSON object per line.",
)
@click.option("--node-id", type=int, hidden=True, help="The node that the console belongs to.")
@click.option("--one-of-many", is_flag=True, hidden=True, help="Name the node on each line of the log.")
@click.option(
    "--until-input-ends", is_flag=True, hidden=True, help="End with standard input, as a node's console does."
)
def console(
    bootstrap: str,
    listen: str,
    allow_changes: bool,
    endpoints: MetricsEndpoints,
    runs: Path | None,
    log_format: str,
    node_id: int | None,
    one_of_many: bool,
    until_input_ends: bool,
) -> None:
    """Show a cluster's pages in a browser, until Ctrl-C.

    Works with any Kafka cluster; needs the extra `console`. Pages only show, unless --allow-changes is given, or
    operators sign in. Beyond this machine, a sign-in is needed: kraftpy.console.sign.in in the file.

    \b
      kraftpy console
      kraftpy console -b broker:9093 --command-config console.properties --listen https://0.0.0.0:8443
    """
    try:
        from kraftpy.console.app import console_app
        from kraftpy.console.serving import open_socket, serve
    except ImportError as error:
        raise Failure(f"the console needs the extra console (pip install 'kraftpy[console]'): {error}") from error
    from kraftpy.broker.log_lines import log_handler
    from kraftpy.broker.security.audit import open_audit_file
    from kraftpy.broker.security.certificate import Certificate
    from kraftpy.broker.startup import StartupError
    from kraftpy.config import ConfigError
    from kraftpy.config.console_listener import parse_console_listener
    from kraftpy.console.access.configuring import access_settings
    from kraftpy.console.cluster import Cluster
    from kraftpy.tls import TlsError

    options = client_options(bootstrap)
    try:
        has_tls, address = parse_console_listener("--listen", listen)
        settings = _settings()
        endpoints = endpoints_in(settings, endpoints)
        certificate = Certificate("the console", settings.tls()) if has_tls else None
        access = access_settings(settings, options, address, is_tls=has_tls, allow_changes=allow_changes)
        open_audit_file(settings["kraftpy.audit.log.file"], settings["kraftpy.audit.log.max.bytes"])
    except (ConfigError, TlsError, StartupError) as error:
        raise click.UsageError(str(error)) from None
    if settings.has_tls_settings and not has_tls:
        tell("listener.name.console.ssl.*: not used, because --listen has no https://")
    try:
        opened = open_socket(address.host, address.port)
    except OSError as error:
        raise Failure(f"cannot listen on {address}: {error.strerror or error}") from error
    level = os.environ.get("KRAFTPY_LOG_LEVEL", "WARNING").upper()
    logging.basicConfig(level=level, handlers=[log_handler(log_format, node_id, is_one_of_many=one_of_many)])
    shown = address._replace(port=opened.getsockname()[1])
    scheme = "http" if certificate is None else "https"
    app = console_app(Cluster(options), access=access.on_port(shown.port), runs=runs, endpoints=endpoints)
    gc.freeze()  # modules and classes live as long as the process: the garbage collector need not look at them
    ready = partial(click.echo, f"the console is at {scheme}://{shown}/")
    serve(app, opened, ready, certificate, until_input_ends=until_input_ends)


def _settings() -> ConsoleSettings:
    """Return the settings in the file, with its variables filled in. Raises ConfigError."""
    from kraftpy.cli.server import read_text
    from kraftpy.config.console import ConsoleSettings
    from kraftpy.config.sources import parse_properties
    from kraftpy.config.variables import fill_in

    return ConsoleSettings(
        {
            name: fill_in(name, text, os.environ, lambda path: read_text(Path(path)), parse_properties)
            for name, text in own_settings().items()
        }
    )
