"""`kraftpy cluster status|quorum|elect-leaders|features|log-dirs|unregister|add-voter|remove-voter`.

Works with any Kafka broker; the answer omits what a broker does not support. Left out: the brokers' epochs, which no
API returns; the controllers' own listeners (a voter that is not a broker is seen only in the quorum).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, local_time, print_rows, say, tell
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, partitions_argument

if TYPE_CHECKING:
    from kraftpy.cli.health import ClusterHealth
    from kraftpy.client import Admin, TopicInfo
    from kraftpy.client.admin.model import ClusterDescription, QuorumDescription

T = TypeVar("T")
MINIMUM = "min.insync.replicas"
CONTROLLER_LISTENER = "CONTROLLER"


@click.group()
def cluster() -> None:
    """Show brokers and quorum, elect leaders, add and remove nodes."""


@cluster.command()
@bootstrap_option
@format_option
def status(bootstrap: str, form: str) -> None:
    """Show the health of brokers, quorum and partitions.

    Partitions with problems are only counted here.

    \b
    To list these partitions:
      kraftpy topic describe --under-replicated
      kraftpy topic describe --unavailable
      kraftpy topic describe --under-min-isr
    """

    async def work() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        from kraftpy.cli.health import cluster_health

        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            described = await admin.describe_cluster(include_fenced=True)
            topics = await admin.describe_topic_partitions()
            quorum = await if_served(admin.describe_quorum())
            moves = await if_served(admin.list_partition_reassignments()) or {}
            health = cluster_health(described, topics, await minimums(admin, topics), moves)
        return _summary(described, quorum, health), _broker_rows(described, quorum, health)

    summary, brokers = run(bootstrap, work())
    if form == "table" or (form == "auto" and at_terminal()):
        _print_summary(summary)
        print_rows(brokers, "table")
        return
    print_rows([{"kind": "cluster", **summary}], form)
    print_rows([{"kind": "broker", **row} for row in brokers], form)


@cluster.command()
@bootstrap_option
@format_option
def quorum(bootstrap: str, form: str) -> None:
    """Show the metadata quorum and the lag of each node.

    Lists the leader, the voters and the observers.
    """

    async def work() -> QuorumDescription:
        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            return await admin.describe_quorum()

    found = run(bootstrap, work())
    is_table = form == "table" or (form == "auto" and at_terminal())
    if is_table:
        click.echo(
            f"leader {_name(found.leader_id)}, epoch {found.leader_epoch}, high watermark {found.high_watermark}"
        )
    rows = _quorum_rows(found)
    if is_table:
        for row in rows:
            row["last_fetch"] = local_time(row.pop("last_fetch_ms"))
            row["last_caught_up"] = local_time(row.pop("last_caught_up_ms"))
            del row["leader_epoch"], row["high_watermark"]
    print_rows(rows, form, empty="no voters")


@cluster.command(name="elect-leaders")
@partitions_argument
@bootstrap_option
@click.option("--all", "every", is_flag=True, help="Elect leaders for every partition of every topic.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Elect an out-of-sync replica if no in-sync one is alive. Records it lacks are LOST.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@format_option
def elect_leaders(wanted: list[PartitionSet], bootstrap: str, every: bool, unclean: bool, yes: bool, form: str) -> None:
    """Elect the preferred replicas as leaders.

    A partition's preferred replica is the first in its list.

    \b
      kraftpy cluster elect-leaders flights
      kraftpy cluster elect-leaders flights:0,3 prices
      kraftpy cluster elect-leaders --all
    """
    if bool(wanted) == every:
        raise click.UsageError("give either partitions or --all")
    if unclean and not yes and at_terminal():
        click.confirm("Records that only dead replicas have will be lost. Continue?", abort=True)

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            partitions = None if every else [info.topic_partition for info in await chosen_partitions(admin, wanted)]
            results = await admin.elect_leaders(partitions, unclean=unclean)
        return [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "result": _election(failed.code.name if failed else ""),
                "message": str(failed) if failed and failed.code.name != "ELECTION_NOT_NEEDED" else None,
            }
            for partition, failed in sorted(results.items())
        ]

    rows = run(bootstrap, work())
    print_rows(rows, form, empty="every partition is led by its preferred replica")
    if failed := [row for row in rows if row["message"]]:
        raise Failure(f"{len(failed)} of {len(rows)} partitions have no new leader")


@cluster.command()
@bootstrap_option
@click.option("--set", "levels", multiple=True, metavar="NAME=LEVEL", help="Set a feature's level; 0 disables it.")
@click.option("--downgrade", is_flag=True, help="Allow lower levels if no metadata is lost.")
@click.option("--unsafe", is_flag=True, help="With --downgrade, allow it even if metadata is lost.")
@click.option("--dry-run", is_flag=True, help="Validate the change without making it.")
@format_option
def features(bootstrap: str, levels: tuple[str, ...], downgrade: bool, unsafe: bool, dry_run: bool, form: str) -> None:
    """Show or change the feature levels of the cluster.

    Shows the range of levels that brokers support, too.
    """
    wanted = dict(map(_level, levels))
    if not wanted and (downgrade or unsafe or dry_run):
        raise click.UsageError("nothing to change: give --set")
    if unsafe and not downgrade:
        raise click.UsageError("--unsafe requires --downgrade")

    async def work() -> list[dict[str, Any]]:
        from kraftpy.client import FeatureUpgrade

        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            if wanted:
                upgrade = FeatureUpgrade.UPGRADE
                if downgrade:
                    upgrade = FeatureUpgrade.UNSAFE_DOWNGRADE if unsafe else FeatureUpgrade.SAFE_DOWNGRADE
                await admin.update_features(wanted, upgrade=upgrade, validate_only=dry_run)
            found = await admin.describe_features()
        return [
            {
                "feature": name,
                "supported_from": found.supported[name].first if name in found.supported else None,
                "supported_to": found.supported[name].last if name in found.supported else None,
                "level": found.finalized.get(name, 0),
                "epoch": found.epoch,
            }
            for name in sorted({*found.supported, *found.finalized})
        ]

    print_rows(run(bootstrap, work()), form, empty="no features")
    if wanted and dry_run:
        say("nothing was changed: the levels are valid")


@cluster.command(name="log-dirs")
@bootstrap_option
@click.option(
    "--broker",
    "brokers",
    type=int,
    multiple=True,
    metavar="ID",
    help="Show only this broker's directories; repeatable.",
)
@format_option
def log_dirs(bootstrap: str, brokers: tuple[int, ...], form: str) -> None:
    """Show the brokers' log directories and their space.

    Shows the size of the logs in each, its free space, whether it is cordoned (gets no new replicas), and an error if
    it is offline.
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            found = await admin.describe_log_dirs(brokers or None)
        return [
            {
                "broker": directory.broker_id,
                "path": directory.path,
                "partitions": sum(not part.is_future for part in directory.partitions.values()),
                "size_bytes": sum(part.size_bytes for part in directory.partitions.values()),
                "usable_bytes": None if directory.usable_bytes < 0 else directory.usable_bytes,
                "total_bytes": None if directory.total_bytes < 0 else directory.total_bytes,
                "moving_in": sum(part.is_future for part in directory.partitions.values()),
                "lag": sum(part.offset_lag for part in directory.partitions.values() if part.is_future),
                "cordoned": directory.is_cordoned,
                "error": directory.error.name if directory.error else None,
            }
            for directory in found
        ]

    print_rows(run(bootstrap, work()), form)


@cluster.command()
@click.argument("broker", type=click.IntRange(min=0), metavar="BROKER")
@bootstrap_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def unregister(broker: int, bootstrap: str, yes: bool) -> None:
    """Unregister BROKER, which must be stopped for good.

    Move its partitions to other brokers first (kraftpy topic reassign): this command does not recreate its replicas.
    """
    if not yes and at_terminal():
        click.confirm(f"Unregister broker {broker}?", abort=True)

    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            await admin.unregister_broker(broker)

    run(bootstrap, work())
    tell(f"unregistered broker {broker}")


@cluster.command(name="add-voter")
@click.argument("node", type=click.IntRange(min=0), metavar="NODE")
@click.argument("address", metavar="HOST:PORT")
@bootstrap_option
@click.option("--listener", default=CONTROLLER_LISTENER, show_default=True, help="Name of the controller listener.")
@click.option(
    "--directory-id",
    callback=lambda ctx, param, value: _directory(ctx, param, value),
    help="Id of its metadata directory.",
)
def add_voter(node: int, address: str, bootstrap: str, listener: str, directory_id: bytes) -> None:
    """Add NODE, a running observer, to the voters. HOST:PORT is its controller listener.

    \b
      kraftpy cluster add-voter 4 node4.example.org:9093
    """
    from kraftpy.client.options import parse_bootstrap

    try:
        ((host, port),) = parse_bootstrap(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="HOST:PORT") from None

    async def work() -> None:
        from kraftpy.client import QuorumEndpoint

        endpoint = QuorumEndpoint(listener=listener, host=host, port=port)
        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            await admin.add_raft_voter(node, [endpoint], directory_id=directory_id)

    run(bootstrap, work())
    click.echo(f"added voter {node}")


@cluster.command(name="remove-voter")
@click.argument("node", type=click.IntRange(min=0), metavar="NODE")
@bootstrap_option
@click.option(
    "--directory-id",
    callback=lambda ctx, param, value: _directory(ctx, param, value),
    help="Id of its metadata directory.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def remove_voter(node: int, bootstrap: str, directory_id: bytes, yes: bool) -> None:
    """Remove NODE from the voters. It remains an observer."""
    if not yes and at_terminal():
        click.confirm(f"Remove node {node} from the voters?", abort=True)

    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-cluster") as admin:
            await admin.remove_raft_voter(node, directory_id=directory_id)

    run(bootstrap, work())
    click.echo(f"removed voter {node}")


async def minimums(admin: Admin, topics: Sequence[TopicInfo]) -> dict[str, int]:
    """Return the min.insync.replicas of each topic, if the broker reports them."""
    from kraftpy.client import ResourceType

    if not topics:
        return {}
    resources = [(ResourceType.TOPIC, info.name) for info in topics]
    described = await if_served(admin.describe_configs(resources, names=[MINIMUM])) or {}
    return {name: int(entries[MINIMUM].value or 1) for (_, name), entries in described.items() if MINIMUM in entries}


async def if_served(asking: Awaitable[T]) -> T | None:
    """Await a request. Returns None if the broker does not support it."""
    from kraftpy.client import UnsupportedVersion

    try:
        return await asking
    except UnsupportedVersion:
        return None


def _summary(described: ClusterDescription, quorum: QuorumDescription | None, health: ClusterHealth) -> dict[str, Any]:
    return {
        "cluster": described.cluster_id,
        "controller": _known(described.controller_id),
        "brokers": len(described.nodes),
        "fenced": sorted(described.fenced),
        "quorum_leader": None if quorum is None else _known(quorum.leader_id),
        "quorum_epoch": None if quorum is None else quorum.leader_epoch,
        "voters": None if quorum is None else sorted(voter.node_id for voter in quorum.voters),
        "largest_lag": None if quorum is None else max((_lag(row) or 0 for row in _quorum_rows(quorum)), default=0),
        "topics": health.topics,
        "partitions": health.partitions,
        "offline": health.offline,
        "under_replicated": health.under_replicated,
        "below_min_isr": health.below_minimum,
        "not_led_by_preferred": health.led_by_another,
        "moving": health.moving,
    }


def _print_summary(summary: dict[str, Any]) -> None:
    fenced = f", fenced {_list(summary['fenced'])}" if summary["fenced"] else ""
    tell(f"cluster {summary['cluster']}: {summary['brokers']} brokers{fenced}")
    if summary["voters"] is not None:
        click.echo(
            f"quorum: leader {_name(summary['quorum_leader'])}, epoch {summary['quorum_epoch']}, "
            f"voters {_list(summary['voters'])}, largest lag {summary['largest_lag']}"
        )
    click.echo(
        f"{summary['topics']} topics, {summary['partitions']} partitions: {summary['offline']} offline, "
        f"{summary['under_replicated']} under-replicated, {summary['below_min_isr']} below min ISR, "
        f"{summary['not_led_by_preferred']} not led by the preferred replica, {summary['moving']} moving\n"
    )


def _broker_rows(
    described: ClusterDescription, quorum: QuorumDescription | None, health: ClusterHealth
) -> list[dict[str, Any]]:
    from kraftpy.cli.health import quorum_role

    nodes = {node.node_id: node for node in described.nodes}
    rows = []
    for broker_id, load in sorted(health.brokers.items()):
        node = nodes.get(broker_id)
        state = "gone" if node is None else "fenced" if broker_id in described.fenced else "active"
        rows.append(
            {
                "broker": broker_id,
                "address": None if node is None else f"{node.host}:{node.port}",
                "rack": None if node is None else node.rack,
                "state": state,
                "quorum": quorum_role(broker_id, quorum),
                "leaders": load.leaders,
                "preferred": load.preferred,
                "replicas": load.replicas,
                "in_sync": load.in_sync,
            }
        )
    return rows


def _quorum_rows(found: QuorumDescription) -> list[dict[str, Any]]:
    """Return a row per voter and observer, the leader first."""
    rows = []
    end = max((voter.log_end_offset for voter in found.voters if voter.node_id == found.leader_id), default=-1)
    replicas = [(voter, "voter") for voter in found.voters] + [(other, "observer") for other in found.observers]
    for replica, role in sorted(replicas, key=lambda each: (each[0].node_id != found.leader_id, each[1] != "voter")):
        rows.append(
            {
                "node": replica.node_id,
                "role": "leader" if replica.node_id == found.leader_id else role,
                "leader_epoch": found.leader_epoch,
                "high_watermark": found.high_watermark,
                "log_end_offset": _known(replica.log_end_offset),
                "lag": None if replica.log_end_offset < 0 or end < 0 else max(0, end - replica.log_end_offset),
                "last_fetch_ms": replica.last_fetch_ms,
                "last_caught_up_ms": replica.last_caught_up_ms,
                "endpoints": [
                    f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
                    for endpoint in found.endpoints.get(replica.node_id, ())
                ],
            }
        )
    return rows


def _lag(row: dict[str, Any]) -> int | None:
    lag: int | None = row["lag"]
    return lag


def _election(error: str) -> str:
    if not error:
        return "elected"
    return "not needed" if error == "ELECTION_NOT_NEEDED" else "failed"


def _level(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not name or not equals or not level.isascii() or not level.isdecimal():
        raise click.UsageError(f"--set '{text}' is not NAME=LEVEL")
    return name, int(level)


def _directory(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes:
    """Parse a directory id as Kafka writes it: 22 characters of base64."""
    import base64
    import binascii

    if value is None:
        return bytes(16)
    try:
        data = base64.urlsafe_b64decode(value + "==")
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 16:
        raise click.BadParameter(f"'{value}' is not a directory id", ctx, param)
    return data


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _name(node_id: int | None) -> str:
    return "none" if node_id is None or node_id < 0 else str(node_id)


def _list(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
