"""The layout of a log directory: names of files, and the small files that are replaced as a whole.

```
<log dir>/meta.properties                   ids of the cluster, the node and the directory
         /.kafka_cleanshutdown              the last stop was clean; read, then deleted, before any log is opened
         /recovery-point-offset-checkpoint  per partition: everything before this offset is synced
         /log-start-offset-checkpoint       per partition: the first offset that readers may see
         /topic-0/partition.metadata        the topic's id, written before any data, and a promise
                 /leader-epoch-checkpoint
                 /00000000000000000000.log .index .timeindex
                 /00000000000000000000.txnindex     its aborted transactions, if it has any
                 /00000000000000000042.snapshot
```

Names and formats are Kafka's, but each of the small files also has a checksum: if any byte of a file changes, the file
is rejected (`CorruptFile`). The consequences are described at each reader.

* Checkpoints and `leader-epoch-checkpoint` end with a line `xxh64 <hex>`. Kafka would reject that line as malformed:
  before a directory is handed to Kafka, these files must be removed, and Kafka then scans the logs.
* `meta.properties` ends with a comment `#xxh64 <hex>`, `partition.metadata` with lines after the second one, and
  `.kafka_cleanshutdown` has a third field: Kafka reads these files and ignores the addition. Files without a checksum,
  as 0.1.0 and Kafka write them, are read too.
* Producer snapshots have a checksum in Kafka's format; our additions come after the part that Kafka reads
  (`log.producer_states`).
* `.txnindex` files are as Kafka writes them; their checksums are in the snapshots (`log.aborted_transactions`).

Every write here goes through `Directory.replace`: atomic, durable, and blocking. Call it from a thread.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple

import xxhash

from kraftpy.ports import Directory
from kraftpy.types import TopicId, TopicPartition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX)

DELETED: Final = ".deleted"  # out of the log, waiting to be removed
CLEANED: Final = ".cleaned"  # compaction's output while it is being written
SWAP: Final = ".swap"  # compaction's output, complete, about to replace the old segments
TEMPORARY: Final = ".tmp"  # a file that `Directory.replace` leaves if it is interrupted

PARTITION_METADATA: Final = "partition.metadata"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
META_PROPERTIES: Final = "meta.properties"
MOVED_FROM: Final = "moved-from"  # in a partition that was moved here, until the original is deleted
COPY_PROGRESS: Final = "copy-progress"  # in a copy that is being made (`log.copies`)
DELETED_PARTITION: Final = "-delete"
FUTURE_PARTITION: Final = "-future"
MOST_NAME_CHARACTERS: Final = 255

_DIGITS: Final = 20
_MOST_DIGITS: Final = 19
_PROMISE: Final = "synced_before_ack: true"
_PROOF: Final = "xxh64"
_COMMENT: Final = b"#xxh64 "


class CorruptFile(ValueError):
    """A small file whose checksum or form is wrong."""


# --- names ------------------------------------------------------------------------------------------------------------


def file_name(base_offset: int, suffix: str) -> str:
    """Return `00000000000000000042.log` for 42 and `.log`."""
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """Return the offset in a file's name; None if the name is not 20 digits and `suffix`, or not a valid offset."""
    digits = name[:_DIGITS]
    if len(name) == _DIGITS + len(suffix) and name.endswith(suffix) and digits.isdecimal() and digits.isascii():
        offset = int(digits)
        return offset if offset >> 63 == 0 else None
    return None


def parse_partition(name: str) -> TopicPartition | None:
    """Return the partition of a directory named like `topic-0`; None for any other name."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isdecimal() or not number.isascii() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number))


def deleted_partition_name(partition: TopicPartition, unique: str) -> str:
    """Return the name of a deleted partition's directory until it is removed; at most 255 characters."""
    suffix = f".{unique}{DELETED_PARTITION}"
    return str(partition)[: 255 - len(suffix)] + suffix


def future_partition_name(partition: TopicPartition, unique: str) -> str:
    """Return the name of a partition's unfinished copy; for the longest topics it is too long for a file name."""
    return f"{partition}.{unique}{FUTURE_PARTITION}"


def future_partitions(log_directory: Directory) -> dict[str, TopicPartition]:
    """Return directory name -> partition of each unfinished copy."""
    found = {}
    for name in log_directory.names():
        partition = parse_partition(name.removesuffix(FUTURE_PARTITION).rpartition(".")[0])
        if name.endswith(FUTURE_PARTITION) and partition is not None:
            found[name] = partition
    return found


def partitions(log_directory: Directory) -> list[TopicPartition]:
    """Return the partitions that have a directory here, sorted."""
    return sorted(found for name in log_directory.names() if (found := parse_partition(name)) is not None)


def deleted_partitions(log_directory: Directory) -> list[str]:
    """Return the directories of deleted partitions that have not been removed yet."""
    return [name for name in log_directory.names() if name.endswith(DELETED_PARTITION)]


# --- text with a checksum ---------------------------------------------------------------------------------------------


def with_checksum(text: str) -> bytes:
    """Return `text`, which ends in a newline, with its checksum as the last line."""
    body = text.encode()
    return body + f"xxh64 {xxhash.xxh64_hexdigest(body)}\n".encode()


def without_checksum(data: bytes) -> str:
    """Return the text without its checksum. Raises CorruptFile if the checksum is missing or does not match."""
    start = data.rfind(b"xxh64 ")
    if start < 0 or data[start:] != f"xxh64 {xxhash.xxh64_hexdigest(data[:start])}\n".encode():
        raise CorruptFile("the checksum does not match")
    try:
        return data[:start].decode()
    except UnicodeDecodeError as error:
        raise CorruptFile(str(error)) from error


def encode_entries(entries: list[tuple[object, ...]]) -> bytes:
    """Return a checkpoint in Kafka's format: version 0, the number of entries, then one line per entry."""
    lines = ["0", str(len(entries)), *(" ".join(map(str, entry)) for entry in entries)]
    return with_checksum("\n".join(lines) + "\n")


def decode_entries(data: bytes, fields: int) -> list[list[str]]:
    """Return the entries' fields as text. Raises CorruptFile for anything that `encode_entries` does not write."""
    lines = without_checksum(data).splitlines()
    if len(lines) < 2 or lines[0] != "0" or decode_number(lines[1]) != len(lines) - 2:
        raise CorruptFile("not a checkpoint of version 0")
    entries = [line.split(" ") for line in lines[2:]]
    if any(len(entry) != fields for entry in entries):
        raise CorruptFile(f"an entry without {fields} fields")
    return entries


def decode_number(text: str) -> int:
    """Return an epoch, offset or partition of a checkpoint: not negative, at most 63 bits. Raises CorruptFile."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) >> 63 == 0):
        raise CorruptFile(f"{text[:_DIGITS]!r} is not an epoch, offset or partition")
    return int(text)


# --- the log directory's files ----------------------------------------------------------------------------------------


def read_offsets(log_directory: Directory, name: str) -> dict[TopicPartition, int]:
    """Read a checkpoint of one offset per partition; return an empty one if there is no file. Raises CorruptFile."""
    try:
        data = log_directory.read(name)
    except FileNotFoundError:
        return {}
    try:
        return {
            TopicPartition(topic, decode_number(number)): decode_number(offset)
            for topic, number, offset in decode_entries(data, 3)
        }
    except CorruptFile as error:
        raise CorruptFile(f"{log_directory.path}/{name}: {error}") from error


def write_offsets(log_directory: Directory, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint of one offset per partition, durably. Blocks."""
    log_directory.replace(name, encode_entries([(*key, offset) for key, offset in sorted(offsets.items())]))


def take_clean_shutdown(log_directory: Directory) -> int | None:
    """Return the broker epoch of the last clean stop, and remove its marker; None if the last stop was not clean.

    The marker is removed durably before this returns, so a later crash is recognised. Returns -1 if the marker has no
    epoch. A damaged marker counts as none: the logs are then scanned from their recovery points, which only costs time.
    """
    epoch = read_clean_shutdown(log_directory)
    if log_directory.exists(CLEAN_SHUTDOWN):
        log_directory.delete(CLEAN_SHUTDOWN)
        log_directory.sync()
    return epoch


def read_clean_shutdown(log_directory: Directory) -> int | None:
    """Return what `take_clean_shutdown` would, but leave the marker in place."""
    try:
        fields = json.loads(log_directory.read(CLEAN_SHUTDOWN))
        epoch, proof = fields["brokerEpoch"], fields.get(_PROOF)
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if fields.keys() - {_PROOF} != {"version", "brokerEpoch"} or fields["version"] != 0 or not isinstance(epoch, int):
        return None
    return epoch if proof in (None, xxhash.xxh64_hexdigest(_marker(epoch))) else None


def mark_clean_shutdown(log_directory: Directory, broker_epoch: int = -1) -> None:
    """Write the marker of a clean stop, after every log is closed and every checkpoint written. Blocks."""
    text = _marker(broker_epoch)
    log_directory.replace(CLEAN_SHUTDOWN, text[:-1] + f', "{_PROOF}": "{xxhash.xxh64_hexdigest(text)}"}}'.encode())


def _marker(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def read_meta_properties(log_directory: Directory) -> dict[str, str] | None:
    """Return `cluster.id`, `node.id`, `directory.id` and `version`; None if the directory is new. Raises CorruptFile.

    A node does not start with a directory whose owner is unknown.
    """
    try:
        data = log_directory.read(META_PROPERTIES)
        proof = data.rfind(_COMMENT)
        text = (data if proof < 0 else without_checksum(data[:proof] + data[proof + 1 :]).encode()).decode()
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorruptFile(f"{log_directory.path}/{META_PROPERTIES}: {error}") from error
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_meta_properties(log_directory: Directory, properties: Mapping[str, str]) -> None:
    """Replace `meta.properties`, durably. Blocks."""
    text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
    log_directory.replace(META_PROPERTIES, text.encode() + b"#" + with_checksum(text)[len(text.encode()) :])


# --- the partition directory's files ----------------------------------------------------------------------------------


class PartitionMetadata(NamedTuple):
    """The contents of `partition.metadata`."""

    topic_id: TopicId
    synced_before_ack: bool = False
    """True if every record that this replica acknowledged, since its log was empty, had been synced before."""


def read_partition_metadata(directory: Directory) -> PartitionMetadata | None:
    """Return the topic id of a partition directory and its promise; None if it has no such file. Raises CorruptFile.

    A partition with a damaged file is not opened: it might belong to another topic.
    """
    try:
        data = directory.read(PARTITION_METADATA)
    except FileNotFoundError:
        return None
    lines = data.decode("ascii", "replace").splitlines()
    try:
        if len(lines) != 2:
            lines = without_checksum(data).splitlines()
        version, topic_id = (line.partition(":") for line in lines[:2])
        is_known = lines[2:] in ([], [_PROMISE])
        if is_known and (version[0], version[2].strip(), topic_id[0]) == ("version", "0", "topic_id"):
            found = urlsafe_b64decode(topic_id[2].strip() + "==")
            if len(found) == 16:
                return PartitionMetadata(TopicId(found), len(lines) > 2)
    except ValueError as error:
        raise CorruptFile(f"{directory.path}/{PARTITION_METADATA} has no topic id: {error}") from error
    raise CorruptFile(f"{directory.path}/{PARTITION_METADATA} has no topic id")


def claim_partition(
    directory: Directory, topic_id: TopicId | None, *, synced_before_ack: bool
) -> PartitionMetadata | None:
    """Return the metadata of a partition directory; write `topic_id` (None: unknown) if there is no id yet.

    A directory without any file then gets the promise `synced_before_ack`. Raises CorruptFile for another topic's
    directory. Blocks.
    """
    metadata = read_partition_metadata(directory)
    if topic_id is None:
        return metadata
    if metadata is None:
        is_new = not directory.names()
        metadata = PartitionMetadata(topic_id, is_new and synced_before_ack)
        write_partition_metadata(directory, metadata)
    elif metadata.topic_id != topic_id:
        raise CorruptFile(f"{directory.path} belongs to topic {metadata.topic_id.hex()}, not {topic_id.hex()}")
    return metadata


def read_topic_id(directory: Directory) -> TopicId | None:
    """Return the id of a partition directory's topic, as `read_partition_metadata` does."""
    found = read_partition_metadata(directory)
    return None if found is None else found.topic_id


def write_partition_metadata(directory: Directory, metadata: PartitionMetadata) -> None:
    """Write `partition.metadata`, durably. Call this before any data is written, so that its topic is known. Blocks."""
    text = f"version: 0\ntopic_id: {urlsafe_b64encode(metadata.topic_id).decode().rstrip('=')}\n"
    if metadata.synced_before_ack:
        text += f"{_PROMISE}\n"
    directory.replace(PARTITION_METADATA, with_checksum(text))
