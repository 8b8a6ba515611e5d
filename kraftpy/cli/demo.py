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
    """Load real flights into a broker, read them with a group and with Spark, and check that the counts balance."""
    from kraftpy.demo import main

    raise click.exceptions.Exit(main(output))
