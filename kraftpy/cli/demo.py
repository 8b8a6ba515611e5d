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
    help="Directory for the data, the Parquet files and the plot.",
)
def demo(output: Path) -> None:
    """See it all on real input: broker, group, Spark, audit.

    Loads the flights of 2013 from New York into a broker, reads them with a consumer group and with Spark, computes
    delays, draws them, and checks that the counts balance. Ends by itself and leaves only its output.
    """
    from kraftpy.demo import main

    raise click.exceptions.Exit(main(output))
