"""`kraftpy spark release`: checkpoints of Spark's streams."""

from __future__ import annotations

from pathlib import Path

import click

from kraftpy.cli.output import Failure


@click.group()
def spark() -> None:
    """Work with the checkpoints of Spark's streams."""


@spark.command()
@click.argument("checkpoint", type=click.Path(exists=True, file_okay=False, path_type=Path))
def release(checkpoint: Path) -> None:
    """Let Spark's own Kafka connector continue a stream that read by format("kraftpy").

    Removes the topics' ids from the offsets in the directory CHECKPOINT, because the connector would take them for a
    topic. Stop the query first. The other direction needs nothing.
    """
    from kraftpy.spark.checkpoints import CheckpointError
    from kraftpy.spark.checkpoints import release as release_checkpoint

    try:
        changed = release_checkpoint(checkpoint)
    except (CheckpointError, OSError) as error:
        raise Failure(str(error)) from None
    click.echo(
        f"{changed} batches of {checkpoint} can be read by Spark's own connector now" if changed else "no change"
    )
