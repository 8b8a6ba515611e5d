"""The first voters that `kraftpy format` leaves for a quorum, beside the metadata journal.

They count until the metadata log has voters of its own: its first leader writes them there. The file stays, as the mark
of a quorum that tells disks apart. It has no voters if the directory was formatted with `--no-initial-controllers`:
such a node learns them from the log. Kafka keeps the voters in a snapshot of no records, `bootstrap.checkpoint`.
Everything here blocks.
"""

from __future__ import annotations

import xxhash

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.directories import METADATA_DIRECTORY
from kraftpy.metadata.codec import CodecError, pack, unpack
from kraftpy.metadata.quorum_messages import BadMessageError, plain_voters, read_voters
from kraftpy.metadata.voters import VoterSet
from kraftpy.ports import Directory

FIRST_VOTERS = "first-voters"
_VERSION = 1
_CHECKSUM_BYTES = 8


def write_first_voters(log_directory: OsDirectory, voters: VoterSet) -> None:
    """Write the first voters of a quorum. Raises OSError."""
    body = pack([_VERSION, plain_voters(voters)])
    log_directory.child(METADATA_DIRECTORY).replace(FIRST_VOTERS, body + _checksum(body))


def read_first_voters(metadata_directory: Directory) -> VoterSet | None:
    """Return the first voters; None if the directory was not formatted with any. Raises CodecError or OSError."""
    try:
        data = metadata_directory.read(FIRST_VOTERS)
    except FileNotFoundError:
        return None
    body = data[:-_CHECKSUM_BYTES]
    if data[-_CHECKSUM_BYTES:] != _checksum(body):
        raise CodecError(f"{metadata_directory.path}/{FIRST_VOTERS} is damaged: its checksum does not match")
    match unpack(body):
        case [version, []] if version == _VERSION:
            return VoterSet({})
        case [version, voters] if version == _VERSION:
            try:
                return read_voters(voters)
            except BadMessageError as error:
                raise CodecError(f"{metadata_directory.path}/{FIRST_VOTERS}: {error}") from error
        case _:
            raise CodecError(f"{metadata_directory.path}/{FIRST_VOTERS} is not a list of voters of this version")


def _checksum(body: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(body).to_bytes(_CHECKSUM_BYTES, "little")
