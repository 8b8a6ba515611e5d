"""`kraftpy console`: the cluster's pages in a browser."""

from __future__ import annotations

import click

from kraftpy.cli.connect import bootstrap_option, client_options
from kraftpy.cli.output import Failure

_DEFAULT = "127.0.0.1:8080"


@click.command()
@bootstrap_option
@click.option("--listen", default=_DEFAULT, show_default=True, metavar="HOST:PORT", help="Address of the pages.")
@click.option("--allow-changes", is_flag=True, help="Let everyone who can reach the pages change the cluster.")
def console(bootstrap: str, listen: str, allow_changes: bool) -> None:
    """Show a cluster's pages in a browser, until Ctrl-C.

    Works with any Kafka cluster; needs the extra `console`. Pages only show, unless --allow-changes is given.

    \b
      kraftpy console
      kraftpy console -b broker:9093 --command-config client.properties --listen 127.0.0.1:8443
    """
    try:
        from kraftpy.console.app import console_app
        from kraftpy.console.serving import open_socket, serve
    except ImportError as error:
        raise Failure(f"the console needs the extra console (pip install 'kraftpy[console]'): {error}") from error
    from kraftpy.config import ConfigError
    from kraftpy.config.metrics import parse_metrics_listener
    from kraftpy.console.cluster import Cluster

    try:
        address = parse_metrics_listener(listen)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        opened = open_socket(address.host, address.port)
    except OSError as error:
        raise Failure(f"cannot listen on {address}: {error.strerror or error}") from error
    shown = address._replace(port=opened.getsockname()[1])
    app = console_app(Cluster(client_options(bootstrap)), allows_changes=allow_changes)
    serve(app, opened, lambda: click.echo(f"the console is at http://{shown}/"))
