"""`kraftpy ping`: one question to one broker, for scripts and health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, client_options
from kraftpy.cli.output import Failure, format_option, print_rows

if TYPE_CHECKING:
    from kraftpy.protocol.messages.describe_cluster import DescribeClusterResponse


@click.command()
@bootstrap_option
@click.option("--node", type=click.IntRange(min=0), help="Fail unless this node is a live broker.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, metavar="SECONDS"
)
@format_option
def ping(bootstrap: str, node: int | None, timeout: float, form: str) -> None:
    """Ask a broker about its cluster. Exits with status 0 if it answers and the cluster has a controller.

    Asks only the first bootstrap server that accepts connections, once.
    """
    print_rows([ask(bootstrap, node=node, timeout_seconds=timeout)], form)


def ask(bootstrap: str, *, node: int | None = None, timeout_seconds: float = 5.0) -> dict[str, Any]:
    """Return a live broker's description of its cluster. Raises Failure if it is not live, or its cluster is not."""
    import asyncio

    from kraftpy.protocol.errors import ErrorCode, KafkaError

    try:
        server, answer = asyncio.run(_ask(bootstrap, timeout_seconds * 1000))
    except KafkaError as error:
        raise Failure(str(error)) from error
    brokers = sorted(broker.broker_id for broker in answer.brokers if not broker.is_fenced)
    if answer.error_code:
        raise Failure(f"{server}: {answer.error_message or ErrorCode.of(answer.error_code).meaning}")
    if answer.controller_id < 0:
        raise Failure(f"{server}: the cluster has no controller")
    if node is not None and node not in brokers:
        raise Failure(f"{server}: node {node} is not among the live brokers ({', '.join(map(str, brokers)) or 'none'})")
    return {"server": server, "cluster": answer.cluster_id, "controller": answer.controller_id, "brokers": brokers}


async def _ask(bootstrap: str, timeout_ms: float) -> tuple[str, DescribeClusterResponse]:
    """Send DescribeCluster over a connection of its own. Returns the answer and the server that gave it."""
    from kraftpy.client.connection import BrokerUnreachable, Connection
    from kraftpy.client.options import ClientOptions, parse_bootstrap
    from kraftpy.client.runtime import RealRuntime
    from kraftpy.protocol.apis import ApiKey
    from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest

    unreachable = None
    security = ClientOptions(**client_options(bootstrap)).security
    for host, port in parse_bootstrap(bootstrap):
        try:
            connection = await Connection.open(
                RealRuntime(),
                host,
                port,
                client_id="kraftpy-ping",
                request_timeout_ms=timeout_ms,
                setup_timeout_ms=timeout_ms,
                security=security,
            )
        except BrokerUnreachable as error:
            unreachable = error
            continue
        try:
            answer = await connection.request(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        finally:
            connection.close()
        return f"{host}:{port}", answer
    assert unreachable is not None, "there is always a server to ask"
    raise unreachable
