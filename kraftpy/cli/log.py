"""`kraftpy log dump|verify`: look into segment files, offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kraftpy.cli.output import Failure, at_terminal, json_line, local_time, write_lines

segment_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def log() -> None:
    """Look into the files of a log. No broker is needed; nothing is changed."""


@log.command()
@click.argument("file", type=segment_file)
@click.option("--records", "-r", "with_records", is_flag=True, help="Show the records of each batch, too.")
@click.option("--from-offset", type=click.IntRange(min=0), default=0, help="Leave out batches below this offset.")
@click.option("--max-batches", type=click.IntRange(min=1), help="Stop after so many batches.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as in a pipe.")
def dump(file: Path, with_records: bool, from_offset: int, max_batches: int | None, as_json: bool) -> None:
    """Print the batches of a segment FILE (.log), or the entries of an index (.index, .timeindex).

    The CRC of every batch is checked; the first that is damaged ends the output with exit status 1.

    \b
      kraftpy log dump kraftpy-data/flights-0/00000000000000000000.log --records
    """
    as_json = as_json or not at_terminal()
    if file.suffix in (".index", ".timeindex"):
        write_lines(json_line(row) if as_json else _spaced(row) for row in _index_entries(file))
        return
    lines = _json_lines if as_json else _text_lines
    write_lines(lines(file, with_records, from_offset, max_batches))


@log.command()
@click.argument("files", type=segment_file, nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as in a pipe.")
def verify(files: tuple[Path, ...], as_json: bool) -> None:
    """Check every batch and record of segment FILEs (.log).

    Prints what each holds. Exit status 1 where one is damaged, with the file, the position and the offsets before it.
    """
    from kraftpy.cli.segments import Corruption
    from kraftpy.cli.segments import verify as verify_file

    as_json = as_json or not at_terminal()
    damaged = []
    for file in files:
        try:
            held = verify_file(file)
        except Corruption as corruption:
            damaged.append(str(corruption))
            if as_json:
                row = {"position": corruption.position, "next_offset": corruption.next_offset}
                write_lines([json_line({"file": str(file), "ok": False, **row, "reason": corruption.reason})])
            continue
        row = {"batches": held.batches, "records": held.records, "size_bytes": held.size_bytes}
        offsets = {"first_offset": held.first_offset, "last_offset": held.last_offset}
        if as_json:
            write_lines([json_line({"file": str(file), "ok": True, **row, **offsets})])
        else:
            span = "" if held.first_offset is None else f", offsets {held.first_offset}-{held.last_offset}"
            sizes = f"{held.batches} batches, {held.records} records, {held.size_bytes} bytes"
            write_lines([f"{file}: ok, {sizes}{span}"])
    if damaged:
        raise Failure("\nkraftpy: ".join(damaged))


def _chosen(file: Path, from_offset: int, max_batches: int | None) -> Iterator[Any]:
    """The batches to show. A damaged one raises Failure, after those before it were shown."""
    from kraftpy.cli.segments import Corruption, read_batches

    shown = 0
    try:
        for batch in read_batches(file):
            if batch.header.last_offset < from_offset:
                continue
            yield batch
            shown += 1
            if shown == max_batches:
                return
    except Corruption as corruption:
        raise Failure(str(corruption)) from None


def _records(file: Path, batch: Any) -> list[Any]:
    """The records of a batch. A batch whose CRC matches and whose records still make no sense raises Failure."""
    from kraftpy.protocol.errors import KafkaError
    from kraftpy.protocol.record_batch import iter_records

    try:
        return list(iter_records(batch.data))
    except KafkaError as error:
        header = batch.header
        offsets = f"offsets {header.base_offset}-{header.last_offset}"
        raise Failure(f"{file}: corrupt at position {batch.position}, {offsets}: {error.message}") from None


def _json_lines(file: Path, with_records: bool, from_offset: int, max_batches: int | None) -> Iterator[str]:
    from kraftpy.cli.records import encode_bytes, record_row

    for batch in _chosen(file, from_offset, max_batches):
        header = batch.header
        fields = {
            "position": batch.position,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "records_count": header.records_count,
            "size_bytes": header.size_bytes,
            "crc": header.crc,
            "crc_ok": True,
            "compression": header.compression.name.lower(),
            "timestamp_type": header.timestamp_type.name.lower(),
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "partition_leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
        }
        yield json_line({"kind": "batch", **fields})
        for record in _records(file, batch) if with_records else ():
            if header.is_control:
                row = {"offset": record.offset, "timestamp": record.timestamp, "control": _control(record)}
                yield json_line({"kind": "control", **row, **encode_bytes("value", record.value)})
            else:
                yield json_line({"kind": "record", **record_row(record)})


def _text_lines(file: Path, with_records: bool, from_offset: int, max_batches: int | None) -> Iterator[str]:
    from kraftpy.cli.records import shown

    for batch in _chosen(file, from_offset, max_batches):
        header = batch.header
        parts = [
            f"@{batch.position}",
            f"offsets {header.base_offset}-{header.last_offset}",
            f"{header.records_count} records",
            f"{header.size_bytes} bytes",
            header.compression.name.lower(),
            local_time(header.max_timestamp),
            f"epoch {header.partition_leader_epoch}",
            f"crc {header.crc:08x} ok",
        ]
        if header.producer_id >= 0:
            parts.append(f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}")
        parts += ["transactional"] * header.is_transactional + ["control"] * header.is_control
        yield "  ".join(parts)
        for record in _records(file, batch) if with_records else ():
            if header.is_control:
                yield f"  {record.offset}  {local_time(record.timestamp)}  {_control(record)}"
                continue
            headers = "".join(f"  {name}={shown(value)}" for name, value in record.headers)
            when = local_time(record.timestamp)
            yield f"  {record.offset}  {when}  {shown(record.key)} -> {shown(record.value)}{headers}"


def _control(record: Any) -> str:
    """A control record in a word: abort, commit, or its number."""
    kind = int.from_bytes((record.key or b"")[2:4], "big")
    return {0: "abort", 1: "commit"}.get(kind, f"type {kind}")


def _index_entries(file: Path) -> Iterator[dict[str, int]]:
    """The entries of an index file, up to the zeros of its unused end."""
    base = int(file.stem) if file.stem.isdecimal() else 0
    data = file.read_bytes()
    first, width, name = (4, 8, "position") if file.suffix == ".index" else (8, 12, "timestamp")
    for start in range(0, len(data) - width + 1, width):
        entry = data[start : start + width]
        if start and not any(entry):
            return
        one, two = int.from_bytes(entry[:first], "big"), int.from_bytes(entry[first:], "big")
        offset, other = (one, two) if name == "position" else (two, one)
        yield {"offset": base + offset, name: other}


def _spaced(row: dict[str, int]) -> str:
    return "  ".join(f"{name} {value}" for name, value in row.items())
