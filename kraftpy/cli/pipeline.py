"""`kraftpy pipeline init|run|dry-run`: declarative Spark pipelines on topics."""

from __future__ import annotations

from pathlib import Path

import click

from kraftpy.cli.connect import bootstrap_option, command_config, config_option
from kraftpy.cli.output import Failure


@click.group()
def pipeline() -> None:
    """Create a declarative pipeline on topics and run it on Spark."""


@pipeline.command()
@click.argument("name")
@bootstrap_option
@click.option("--source-topic", default="events", show_default=True, help="Topic to read.")
@click.option("--target-topic", default="counts", show_default=True, help="Topic to write the counts to.")
def init(name: str, bootstrap: str, source_topic: str, target_topic: str) -> None:
    """Create a working project in the new directory NAME.

    It reads a topic into tables (bronze, silver, quarantine), counts by windows of event time, and writes the counts to
    a topic, exactly once. Its README explains the next steps. The project names the file of --command-config, and does
    not copy it.
    """
    from kraftpy.pipeline.project import ProjectError, create

    try:
        written = create(
            name,
            Path(),
            bootstrap_servers=bootstrap,
            source_topic=source_topic,
            target_topic=target_topic,
            command_config=command_config(),
        )
    except (ProjectError, OSError) as error:
        raise Failure(str(error)) from None
    for path in written:
        click.echo(f"wrote {path.relative_to(Path().resolve())}")


_project = click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Project directory.  [default: the current one]",
)


_master = click.option(
    "--master",
    metavar="URL",
    help="Spark master to run on, such as spark://host:7077.  [default: this machine]",
)


@pipeline.command()
@_project
@_master
@click.option("--refresh", metavar="TABLES", help="Update only these tables, separated by commas.")
@click.option("--full-refresh", metavar="TABLES", help="Rebuild these tables from the beginning.")
@click.option("--full-refresh-all", is_flag=True, help="Rebuild everything from the beginning.")
@config_option
def run(
    project: Path, master: str | None, refresh: str | None, full_refresh: str | None, full_refresh_all: bool
) -> None:
    """Process the topic's new records through the pipeline, then exit."""
    arguments = [] if refresh is None else ["--refresh", refresh]
    arguments += [] if full_refresh is None else ["--full-refresh", full_refresh]
    arguments += ["--full-refresh-all"] if full_refresh_all else []
    _run(project, dry=False, master=master, arguments=arguments)


@pipeline.command(name="dry-run")
@_project
@_master
@config_option
def dry_run(project: Path, master: str | None) -> None:
    """Check the pipeline without writing anything.

    Checks that its tables and their columns fit.
    """
    _run(project, dry=True, master=master, arguments=[])


def _run(project: Path, *, dry: bool, master: str | None, arguments: list[str]) -> None:
    from kraftpy.pipeline.project import ProjectError
    from kraftpy.pipeline.run import run as run_project
    from kraftpy.spark.java import NoJavaError

    try:
        status = run_project(project, dry=dry, master=master, arguments=arguments, command_config=command_config())
    except (ProjectError, NoJavaError, OSError) as error:
        raise Failure(str(error)) from None
    if status:
        raise click.exceptions.Exit(1)
