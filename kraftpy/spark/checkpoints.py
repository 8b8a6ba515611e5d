"""A stream's checkpoint, given back to Spark's own Kafka connector.

A checkpoint has a file for each batch under `offsets`: a line with the format's version, one with the query's settings,
and one for each source with the offsets at which its batch ends (OffsetSeqLog.scala). Both readers write
`{"topic": {"0": 23}}`; ours adds the topics' ids (`stream_offsets`), which the connector would take for a topic.
Without them the files are the connector's.

Files are replaced one by one, each of them whole; a run that is interrupted can be repeated. Left out: checkpoints that
are not in a local directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from kraftpy.spark.offsets import STARTED_AT, TOPIC_IDS


class CheckpointError(ValueError):
    """The directory is not a stream's checkpoint, or is not one that could be changed; the message says why."""


def offset_files(checkpoint: Path) -> list[Path]:
    """Return the files of the batches' offsets, oldest first. Raises CheckpointError if there are none."""
    files = [path for path in (checkpoint / "offsets").glob("*") if path.name.isdecimal()]
    if not files:
        raise CheckpointError(f"{checkpoint} is not the checkpoint of a stream: it has no offsets")
    return sorted(files, key=lambda path: int(path.name))


def release(checkpoint: Path) -> int:
    """Take the topics' ids out of all offsets, and return how many files had them. The query must not run.

    Raises CheckpointError, also if no batch was finished: the connector would then look for a start of its own.
    """
    files = offset_files(checkpoint)
    if not any(path.name.isdecimal() for path in (checkpoint / "commits").glob("*")):
        raise CheckpointError(f"{checkpoint}: no batch has been finished; start the other query with a new checkpoint")
    texts = {path: path.read_text() for path in files}
    changed = {path: plain for path, text in texts.items() if (plain := without_ids(text)) != text}
    for path, text in changed.items():
        _replace(path, text)
    return len(changed)


def without_ids(text: str) -> str:
    """Return the contents of a file of offsets without topic ids. Raises CheckpointError."""
    lines = text.split("\n")
    if not lines[0].startswith("v"):
        raise CheckpointError(f"a file of offsets begins with {lines[0][:20]!r}, not with a version")
    return "\n".join([*lines[:2], *_plain(lines[2:])])


def _plain(lines: Sequence[str]) -> list[str]:
    found = []
    for line in lines:
        try:
            offsets = json.loads(line)
        except ValueError:
            offsets = None  # "-" for a source without new records
        if isinstance(offsets, dict) and not offsets.keys().isdisjoint((TOPIC_IDS, STARTED_AT)):
            kept = {topic: each for topic, each in offsets.items() if topic not in (TOPIC_IDS, STARTED_AT)}
            line = json.dumps(kept, separators=(",", ":"))
        found.append(line)
    return found


def _replace(path: Path, text: str) -> None:
    """Write a file in place of another, and remove the checksum that Hadoop keeps beside it, which is optional."""
    written = path.with_name(f".{path.name}.released")
    written.write_text(text)
    with written.open("rb") as file:
        os.fsync(file.fileno())
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    written.replace(path)
