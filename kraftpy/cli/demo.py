"""`kraftpy demo`: the whole job on real data, from an empty directory to a table, a plot and an audit."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Directory for the nodes' data, the pipeline with its tables, and the picture.",
)
def demo(output: Path) -> None:
    """Run a demo on real data: nodes, producers, Spark, an audit.

    Replays the flights of 2013 from New York into a cluster, and kills and restarts one of its nodes meanwhile. A
    declarative pipeline counts the delays of each hour and airport and publishes them exactly once, in two runs; a
    consumer group reads the flights, too. Plots the delays, and checks that every record arrived everywhere exactly
    once: exits with status 1 if not. Ends without help and leaves only its output.
    """
    from kraftpy.demo import main

    raise click.exceptions.Exit(main(output))
