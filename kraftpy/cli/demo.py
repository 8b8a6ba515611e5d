"""`kraftpy demo`: the main job on real input, from nothing to a table, a plot and an audit."""

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
    """See it all on real input: three nodes, producers, a Spark pipeline, an audit.

    Replays the flights of 2013 from New York into a cluster of which a node is killed meanwhile and comes back. A
    declarative pipeline counts the delays of each hour and airport and publishes them exactly once, in two runs; a
    consumer group reads the flights too. Draws the delays, and checks that everything is everywhere once: status 1
    where it is not. Ends by itself and leaves only its output.
    """
    from kraftpy.demo import main

    raise click.exceptions.Exit(main(output))
