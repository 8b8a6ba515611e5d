"""`kraftpy spark release | report`: what Spark's streams leave behind, their checkpoints and event logs."""

from __future__ import annotations

from pathlib import Path

import click

from kraftpy.cli.output import Failure


@click.group()
def spark() -> None:
    """Work with the checkpoints and event logs of Spark's streams."""


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


@spark.command()
@click.argument("source", metavar="CHECKPOINT_OR_EVENT_LOG", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("spark-report.html"),
    show_default=True,
    help="The page's file; an existing one is replaced.",
)
def report(source: Path, output: Path) -> None:
    """Draw a stream's batches, their durations and lag over time, as one HTML page.

    An event log (spark.eventLog.enabled; a file, or the directory of one application) tells all of it, also while its
    application runs. A checkpoint has no lag, and the last 100 batches only.
    """
    from kraftpy.spark.checkpoint_batches import read_checkpoint
    from kraftpy.spark.checkpoints import CheckpointError
    from kraftpy.spark.event_logs import EventLogError, read_event_log
    from kraftpy.spark.report import page

    try:
        is_checkpoint = (source / "offsets").is_dir()
        recorded = read_checkpoint(source) if is_checkpoint else read_event_log(source)
        output.write_text(page(recorded, title=f"Streams of {source.resolve().name}"), encoding="utf-8")
    except (CheckpointError, EventLogError, OSError) as error:
        raise Failure(str(error)) from None
    histories = [query for query in recorded.queries.values() if query.points]
    batches = sum(query.total for query in histories)
    click.echo(f"{output}: {batches} batches" + ("" if len(histories) == 1 else f" of {len(histories)} queries"))
