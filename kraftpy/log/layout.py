"""The layout of a log directory: names of files, and the small files that are replaced as a whole.

```
<log dir>/meta.properties                   which cluster, node and directory this is
         /.kafka_cleanshutdown              the last stop was clean; read, then deleted, before any log is opened
         /recovery-point-offset-checkpoint  per partition: all before this offset is synced
         /log-start-offset-checkpoint       per partition: the first offset readers may see
         /topic-0/partition.metadata        the topic's id, written before any data, and a promise
                 /leader-epoch-checkpoint
                 /00000000000000000000.log .index .timeindex
                 /00000000000000000000.txnindex     its aborted transactions, where it has any
                 /00000000000000000042.snapshot
```

Names and forms are Kafka's own, and each of the small files carries a checksum, which Kafka's do not: whatever byte of
it changes, it is read as it was written or not at all (`CorruptFile`). What that costs is said where each is read:

* checkpoints and `leader-epoch-checkpoint` end with a line `xxh64 <hex>`. Kafka would call that line malformed: whoever
  hands a directory to Kafka removes these files, and Kafka scans the logs.
* `meta.properties` ends with a comment `#xxh64 <hex>`, `partition.metadata` with lines behind the second one,
  `.kafka_cleanshutdown` has a third field: Kafka reads these files and passes over that. Those without a checksum are
  read too, as 0.1.0 and Kafka write them.
* producer snapshots have one in Kafka's form already; what is ours stands behind what Kafka reads
  (`log.producer_states`).
* `.txnindex` files are as Kafka writes them: the snapshots say what they must hold (`log.aborted_transactions`).

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
SWAP: Final = ".swap"  # compaction's output, complete, about to replace what it was made from
TEMPORARY: Final = ".tmp"  # what `Directory.replace` leaves when it is interrupted

PARTITION_METADATA: Final = "partition.metadata"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
META_PROPERTIES: Final = "meta.properties"
MOVED_FROM: Final = "moved-from"  # in a partition that was moved here, until what it came from is gone
DELETED_PARTITION: Final = "-delete"
FUTURE_PARTITION: Final = "-future"
MOST_NAME_CHARACTERS: Final = 255

_DIGITS: Final = 20
_PROMISE: Final = "synced_before_ack: true"
_PROOF: Final = "xxh64"
_COMMENT: Final = b"#xxh64 "


class CorruptFile(ValueError):
    """A small file whose checksum or form is wrong."""


# --- names ------------------------------------------------------------------------------------------------------------


def file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log` for 42 and `.log`."""
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name, or None where the name is not 20 digits and `suffix`."""
    if len(name) == _DIGITS + len(suffix) and name.endswith(suffix) and name[:_DIGITS].isdecimal():
        return int(name[:_DIGITS])
    return None


def parse_partition(name: str) -> TopicPartition | None:
    """The partition a directory holds, by its name `topic-0`; None for any other directory."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isdecimal() or not number.isascii() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number))


def deleted_partition_name(partition: TopicPartition, unique: str) -> str:
    """Return the name of a deleted partition's directory until it is removed; at most 255 characters."""
    suffix = f".{unique}{DELETED_PARTITION}"
    return str(partition)[: 255 - len(suffix)] + suffix


def future_partition_name(partition: TopicPartition, unique: str) -> str:
    """Return the name of a partition's copy while it is made; too long for a file name with the longest topics."""
    return f"{partition}.{unique}{FUTURE_PARTITION}"


def future_partitions(log_directory: Directory) -> dict[str, TopicPartition]:
    """Directories of copies that were being made, and of which partitions they are."""
    found = {}
    for name in log_directory.names():
        partition = parse_partition(name.removesuffix(FUTURE_PARTITION).rpartition(".")[0])
        if name.endswith(FUTURE_PARTITION) and partition is not None:
            found[name] = partition
    return found


def partitions(log_directory: Directory) -> list[TopicPartition]:
    """The partitions that have a directory here, sorted."""
    return sorted(found for name in log_directory.names() if (found := parse_partition(name)) is not None)


def deleted_partitions(log_directory: Directory) -> list[str]:
    """Directories of partitions that were deleted and not yet removed."""
    return [name for name in log_directory.names() if name.endswith(DELETED_PARTITION)]


# --- text with a checksum ---------------------------------------------------------------------------------------------


def with_checksum(text: str) -> bytes:
    """`text`, which ends in a newline, and a last line that proves it whole."""
    body = text.encode()
    return body + f"xxh64 {xxhash.xxh64_hexdigest(body)}\n".encode()


def without_checksum(data: bytes) -> str:
    """The text `with_checksum` was given. CorruptFile where the last line does not prove it."""
    start = data.rfind(b"xxh64 ")
    if start < 0 or data[start:] != f"xxh64 {xxhash.xxh64_hexdigest(data[:start])}\n".encode():
        raise CorruptFile("the checksum does not match")
    return data[:start].decode()


def encode_entries(entries: list[tuple[object, ...]]) -> bytes:
    """Kafka's checkpoint form: version 0, the number of lines, then one line per entry."""
    lines = ["0", str(len(entries)), *(" ".join(map(str, entry)) for entry in entries)]
    return with_checksum("\n".join(lines) + "\n")


def decode_entries(data: bytes, fields: int) -> list[list[str]]:
    """The entries' fields as text. CorruptFile where anything is not as `encode_entries` writes it."""
    lines = without_checksum(data).splitlines()
    if len(lines) < 2 or lines[0] != "0" or not lines[1].isdecimal() or int(lines[1]) != len(lines) - 2:
        raise CorruptFile("not a checkpoint of version 0")
    entries = [line.split(" ") for line in lines[2:]]
    if any(len(entry) != fields for entry in entries):
        raise CorruptFile(f"an entry without {fields} fields")
    return entries


# --- the log directory's files ----------------------------------------------------------------------------------------


def read_offsets(log_directory: Directory, name: str) -> dict[TopicPartition, int]:
    """A checkpoint of one offset per partition; empty where there is none. Raises CorruptFile."""
    try:
        data = log_directory.read(name)
    except FileNotFoundError:
        return {}
    try:
        return {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in decode_entries(data, 3)}
    except CorruptFile as error:
        raise CorruptFile(f"{log_directory.path}/{name}: {error}") from error


def write_offsets(log_directory: Directory, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace such a checkpoint, durably. Blocks."""
    log_directory.replace(name, encode_entries([(*key, offset) for key, offset in sorted(offsets.items())]))


def take_clean_shutdown(log_directory: Directory) -> int | None:
    """The broker epoch the last clean stop left, and forget it; None where the last stop was not clean.

    The marker is gone, durably, before this returns: a crash from here on is seen as one. -1 for an epoch not recorded.
    A damaged marker is none: the logs are scanned from their recovery points, which costs time alone.
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
    """Say that every log here was closed and every checkpoint written. The last write of a clean stop. Blocks."""
    text = _marker(broker_epoch)
    log_directory.replace(CLEAN_SHUTDOWN, text[:-1] + f', "{_PROOF}": "{xxhash.xxh64_hexdigest(text)}"}}'.encode())


def _marker(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()


def read_meta_properties(log_directory: Directory) -> dict[str, str] | None:
    """`cluster.id`, `node.id`, `directory.id`, `version`; None where the directory is new. Raises CorruptFile.

    A node does not start with a directory that cannot say whose it is.
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
    """Replace them, durably. Blocks."""
    text = "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
    log_directory.replace(META_PROPERTIES, text.encode() + b"#" + with_checksum(text)[len(text.encode()) :])


# --- the partition directory's files ----------------------------------------------------------------------------------


class PartitionMetadata(NamedTuple):
    """The contents of `partition.metadata`."""

    topic_id: TopicId
    synced_before_ack: bool = False
    """Every record that this replica ever acknowledged, since its log was empty, had been synced before."""


def read_partition_metadata(directory: Directory) -> PartitionMetadata | None:
    """Whose a partition directory is, and what it promises; None where nothing was written. Raises CorruptFile.

    A partition whose file is damaged is not opened: it might be another topic's.
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
    """Return what `read_partition_metadata` does, after writing the topic's id (None: unknown) if there is none yet.

    A directory without any file then promises `synced_before_ack`. Raises CorruptFile for another topic's directory.
    Blocks.
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
    """The id of the topic a partition directory belongs to; as `read_partition_metadata`."""
    found = read_partition_metadata(directory)
    return None if found is None else found.topic_id


def write_partition_metadata(directory: Directory, metadata: PartitionMetadata) -> None:
    """Record it, durably. Before any data, so that no data is ever of an unknown topic. Blocks."""
    text = f"version: 0\ntopic_id: {urlsafe_b64encode(metadata.topic_id).decode().rstrip('=')}\n"
    if metadata.synced_before_ack:
        text += f"{_PROMISE}\n"
    directory.replace(PARTITION_METADATA, with_checksum(text))
