"""`kraftpy log dump`: print the contents of log files, as lines for people or as JSON lines.

Every kind of file is printed as rows; for people, a segment's batches, with their records beneath them, have lines of
their own format. A batch is shown only after its CRC was checked.

Left out: the state that results from the metadata journal (its commands are named, not carried out).
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import click

from kraftpy.cli.log_places import OFFSET_CHECKPOINTS
from kraftpy.cli.output import json_line, local_time, write_lines
from kraftpy.cli.segments import Corruption, FileBatch, read_batches
from kraftpy.client.json_records import encode_bytes, record_row, shown
from kraftpy.log import layout
from kraftpy.protocol.errors import KafkaError, ProtocolError
from kraftpy.protocol.record_batch import iter_records

GROUPS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
SHARE_GROUPS = "__share_group_state"
_JOURNAL = ("journal", "snapshot", "vote")


class _Damaged(Exception):
    """The rest of a file cannot be shown; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRange:
    """The part of a segment to show."""

    with_records: bool = False
    from_offset: int = 0
    max_batches: int | None = None


def dump_files(files: Sequence[Path], chosen: DumpRange, *, as_json: bool, is_headed: bool) -> list[str]:
    """Print the files' contents, each under its name if `is_headed`. Returns a line for each damaged file.

    Raises UsageError for a file that does not belong to a log.
    """
    damage = []
    for file in files:
        if is_headed:
            write_lines([json_line({"kind": "file", "file": str(file)}) if as_json else f"{file}:"])
        try:
            if file.suffix == layout.LOG:
                write_lines((_json_lines if as_json else _text_lines)(file, chosen))
            else:
                write_lines(json_line(row) if as_json else _spaced(row) for row in _rows(file))
        except _Damaged as error:
            damage.append(str(error))
    return damage


# --- segments ---------------------------------------------------------------------------------------------------------


def _shown(file: Path, chosen: DumpRange) -> Iterator[FileBatch]:
    """Yield the batches to show. Raises _Damaged for a damaged one, after those before it were shown."""
    count = 0
    try:
        for batch in read_batches(file):
            if batch.header.last_offset < chosen.from_offset:
                continue
            yield batch
            count += 1
            if count == chosen.max_batches:
                return
    except Corruption as corruption:
        raise _Damaged(str(corruption)) from None


def _records(file: Path, batch: FileBatch) -> list[Any]:
    """Return a batch's records. Raises _Damaged if the CRC matches but the records make no sense."""
    try:
        return list(iter_records(batch.data))
    except KafkaError as error:
        header = batch.header
        offsets = f"offsets {header.base_offset}-{header.last_offset}"
        raise _Damaged(f"{file}: corrupt at position {batch.position}, {offsets}: {error.message}") from None


def _json_lines(file: Path, chosen: DumpRange) -> Iterator[str]:
    described = _described(file)
    for batch in _shown(file, chosen):
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
        for record in _records(file, batch) if chosen.with_records else ():
            if header.is_control:
                row = {"offset": record.offset, "timestamp": record.timestamp, "control": _control(record)}
                yield json_line({"kind": "control", **row, **encode_bytes("value", record.value)})
            elif described is not None:
                yield json_line(described(record))
            else:
                yield json_line({"kind": "record", **record_row(record)})


def _text_lines(file: Path, chosen: DumpRange) -> Iterator[str]:
    described = _described(file)
    for batch in _shown(file, chosen):
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
        for record in _records(file, batch) if chosen.with_records else ():
            if header.is_control:
                yield f"  {record.offset}  {local_time(record.timestamp)}  {_control(record)}"
                continue
            if described is not None:
                yield f"  {record.offset}  {local_time(record.timestamp)}  {_spaced(described(record))}"
                continue
            headers = "".join(f"  {name}={shown(value)}" for name, value in record.headers)
            when = local_time(record.timestamp)
            yield f"  {record.offset}  {when}  {shown(record.key)} -> {shown(record.value)}{headers}"


def _control(record: Any) -> str:
    """Describe a control record in a word: abort, commit, or its number."""
    kind = int.from_bytes((record.key or b"")[2:4], "big")
    return {0: "abort", 1: "commit"}.get(kind, f"type {kind}")


def _described(file: Path) -> Callable[[Any], dict[str, Any]] | None:
    """Return the function that decodes an internal topic's records to rows; None to show them as they are."""
    partition = layout.parse_partition(file.resolve().parent.name)
    rows = {GROUPS: _group_row, TRANSACTIONS: _transaction_row, SHARE_GROUPS: _share_row}
    return None if partition is None else rows.get(partition.topic)


def _share_row(record: Any) -> dict[str, Any]:
    """Decode a record of `__share_group_state`; one of an unknown kind is shown as it is."""
    from kraftpy.share.records import SNAPSHOT, from_batches, read_key, read_snapshot, read_update

    place = {"offset": record.offset, "timestamp": record.timestamp}
    try:
        found = read_key(record.key or b"")
        if found is not None:
            kind, key = found
            row = {**place, "group": key.group_id, "topic_id": key.topic_id.hex(), "partition": key.partition}
            if record.value is None:
                return {"kind": "share_state_deleted", **row}
            value: Any = read_snapshot(record.value) if kind == SNAPSHOT else read_update(record.value)
            said = {
                "kind": "share_snapshot" if kind == SNAPSHOT else "share_update",
                **row,
                "snapshot_epoch": value.snapshot_epoch,
                "leader_epoch": value.leader_epoch,
                "start_offset": value.start_offset,
                "batches": [
                    f"{each.first_offset}-{each.last_offset} {each.state.name.lower()} {each.delivery_count}"
                    for each in from_batches(value.state_batches)
                ],
            }
            return {**said, "state_epoch": value.state_epoch} if kind == SNAPSHOT else said
    except ProtocolError:
        pass
    return {"kind": "record", **record_row(record)}


def _transaction_row(record: Any) -> dict[str, Any]:
    """Decode a record of `__transaction_state`; one of an unknown kind is shown as it is."""
    from kraftpy.transactions.records import read_key, read_value

    place = {"offset": record.offset, "timestamp": record.timestamp}
    try:
        transactional_id = read_key(record.key or b"")
        if transactional_id is not None and record.value is None:
            return {"kind": "transaction_deleted", **place, "transactional_id": transactional_id}
        if transactional_id is not None:
            value = read_value(record.value)
            return {
                "kind": "transaction",
                **place,
                "transactional_id": transactional_id,
                "state": value.state.value,
                "producer_id": value.producer_id,
                "producer_epoch": value.producer_epoch,
                "timeout_ms": value.timeout_ms,
                "started_at": value.started_at,
                "partitions": [str(partition) for partition in sorted(value.partitions)],
            }
    except ProtocolError:
        pass
    return {"kind": "record", **record_row(record)}


def _group_row(record: Any) -> dict[str, Any]:
    """Decode a record of `__consumer_offsets`; one of an unknown kind is shown as it is."""
    from kraftpy.groups.records import GroupMetadataKey, OffsetCommitKey, read_group, read_key, read_offset

    place = {"offset": record.offset, "timestamp": record.timestamp}
    try:
        match read_key(record.key or b""):
            case OffsetCommitKey() as key:
                row = {"group": key.group_id, "topic": key.topic, "partition": key.partition}
                if record.value is None:
                    return {"kind": "offset_deleted", **place, **row}
                value = read_offset(record.value)
                committed = {"committed_offset": value.offset, "leader_epoch": value.leader_epoch}
                return {"kind": "offset_committed", **place, **row, **committed, "metadata": value.metadata}
            case GroupMetadataKey() as key:
                if record.value is None:
                    return {"kind": "group_deleted", **place, "group": key.group_id}
                group = read_group(record.value)
                return {
                    "kind": "group",
                    **place,
                    "group": key.group_id,
                    "generation_id": group.generation_id,
                    "protocol_type": group.protocol_type,
                    "protocol": group.protocol,
                    "leader": group.leader,
                    "members": [member.member_id for member in group.members],
                }
            case None:
                row = _consumer_group_row(record)
                if row:
                    return {"kind": row.pop("kind"), **place, **row}
    except ProtocolError:
        pass
    return {"kind": "record", **record_row(record)}


def _consumer_group_row(record: Any) -> dict[str, Any]:
    """Decode a record of a group of the consumer protocol; empty if it is not one."""
    from kraftpy.groups.consumer import records

    key = records.read_key(record.key or b"")
    if key is None:
        return {}
    kinds = {
        records.GroupKey: "consumer_group",
        records.MemberKey: "consumer_member",
        records.TargetMetadataKey: "consumer_targets",
        records.TargetMemberKey: "consumer_target",
        records.CurrentKey: "consumer_assignment",
        records.RegexKey: "consumer_regex",
    }
    kind = kinds[type(key)]
    names = {field.name.removesuffix("_id"): getattr(key, field.name) for field in dataclasses.fields(key)}
    if record.value is None:
        return {"kind": f"{kind}_deleted", **names}
    value = records.read_value(key, record.value)
    said = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return {"kind": kind, **names, **said}


def _plain(value: Any) -> Any:
    """Turn a field into what JSON can express: partitions by their topic's id, a state by its name."""
    if isinstance(value, frozenset):
        return [f"{each.topic_id.hex()}:{each.partition}" for each in sorted(value)]
    if isinstance(value, Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value


# --- the other files --------------------------------------------------------------------------------------------------


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that is not a segment. Raises _Damaged, and UsageError if it belongs to no log."""
    from kraftpy.broker.runtime import OsDirectory
    from kraftpy.log.epochs import LeaderEpochs

    directory = OsDirectory(file.parent)
    try:
        if file.suffix in (layout.INDEX, layout.TIME_INDEX):
            yield from _index_entries(file)
        elif file.suffix == layout.SNAPSHOT:
            yield from _producers(file.read_bytes())
        elif file.suffix == layout.TRANSACTION_INDEX:
            yield from _aborted(file.read_bytes())
        elif file.name == layout.LEADER_EPOCHS:
            for epoch, start_offset in LeaderEpochs.decode(file.read_bytes()).entries():
                yield {"leader_epoch": epoch, "start_offset": start_offset}
        elif file.name in OFFSET_CHECKPOINTS:
            for partition, offset in sorted(layout.read_offsets(directory, file.name).items()):
                yield {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        elif file.name == layout.PARTITION_METADATA:
            metadata = layout.read_partition_metadata(directory)
            topic_id, is_synced = metadata or (None, False)
            yield {"topic_id": None if topic_id is None else topic_id.hex(), "synced_before_ack": is_synced}
        elif file.name == layout.META_PROPERTIES:
            yield dict(sorted((layout.read_meta_properties(directory) or {}).items()))
        elif file.name == layout.CLEAN_SHUTDOWN:
            yield {"broker_epoch": layout.read_clean_shutdown(directory)}
        elif file.name in _JOURNAL:
            yield from _journal(file.parent)
        else:
            raise click.UsageError(f"{file} is not a file of a log")
    except layout.CorruptFile as error:
        raise _Damaged(f"{file}: corrupt: {str(error).removeprefix(f'{file}: ')}") from None


def _producers(data: bytes) -> Iterator[dict[str, Any]]:
    from kraftpy.log.producer_states import ProducerStates

    states, _ = ProducerStates.decode(data)
    for producer in states.describe():
        yield {
            "kind": "producer",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "last_sequence": producer.last_sequence,
            "last_timestamp": producer.last_timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "open_since_offset": None if producer.current_txn_start_offset < 0 else producer.current_txn_start_offset,
        }


def _aborted(data: bytes) -> Iterator[dict[str, Any]]:
    from kraftpy.log import aborted_transactions as aborted

    for ended in aborted.decode(data):
        yield {
            "kind": "aborted",
            "producer_id": ended.producer_id,
            "first_offset": ended.first_offset,
            "marker_offset": ended.last_offset,
            "last_stable_offset": ended.last_stable_offset,
        }


def _journal(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries after the snapshot, read from a copy because loading a journal may repair it."""
    from kraftpy.broker.runtime import OsDirectory
    from kraftpy.metadata.codec import CodecError
    from kraftpy.metadata.commands import decode_command
    from kraftpy.metadata.journal import Journal, JournalError
    from kraftpy.metadata.submissions import decode_submission

    with tempfile.TemporaryDirectory(prefix="kraftpy-dump-") as scratch:
        copy = Path(scratch) / directory.name
        shutil.copytree(directory, copy)
        journal = Journal(OsDirectory(copy))
        try:
            snapshot, entries = journal.load()
        except JournalError as error:
            raise _Damaged(str(error).replace(str(copy), str(directory))) from None
        yield {"kind": "vote", "term": journal.term, "voted_for": journal.voted_for}
        journal.close()
    if snapshot is not None:
        size = {"size_bytes": len(snapshot.data)}
        yield {"kind": "snapshot", "index": snapshot.index, "term": snapshot.term, **size}
    for entry in entries:
        try:
            command = type(decode_command(decode_submission(entry.data[1:])[1])).__name__
        except (CodecError, ValueError):
            command = ""  # the quorum's own
        size = {"size_bytes": len(entry.data)}
        yield {"kind": "entry", "index": entry.index, "term": entry.term, "command": command or None, **size}


def _index_entries(file: Path) -> Iterator[dict[str, int]]:
    """Yield the entries of an index file, up to the zeros of its unused end."""
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


def _spaced(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {'-' if value is None else value}" for name, value in row.items())
