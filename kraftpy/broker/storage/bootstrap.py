"""The credentials that `kraftpy format --add-scram` leaves for a new cluster, beside the metadata journal.

The first active controller puts them into the metadata before the cluster has its id. Until then, controllers with
SCRAM between them use the file; later, it is ignored. Kafka keeps such records in `bootstrap.checkpoint`.
Everything here blocks.
"""

from __future__ import annotations

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.directories import METADATA_DIRECTORY
from kraftpy.metadata.codec import CodecError, from_plain, pack, to_plain, unpack
from kraftpy.metadata.credentials import ScramChange
from kraftpy.ports import Directory

BOOTSTRAP = "bootstrap"
_VERSION = 1


def write_bootstrap(log_directory: OsDirectory, credentials: tuple[ScramChange, ...]) -> None:
    """Write the credentials of a new cluster, readable by this user alone. Raises OSError."""
    data = pack([_VERSION, [to_plain(each) for each in credentials]])
    log_directory.child(METADATA_DIRECTORY).replace(BOOTSTRAP, data)


def read_bootstrap(metadata_directory: Directory) -> tuple[ScramChange, ...]:
    """Return the credentials of a new cluster; empty if the file does not exist. Raises CodecError or OSError."""
    try:
        data = metadata_directory.read(BOOTSTRAP)
    except FileNotFoundError:
        return ()
    match unpack(data):
        case [1, list(credentials)]:
            return tuple(from_plain(ScramChange, each) for each in credentials)
        case _:
            raise CodecError(f"{BOOTSTRAP} is not a list of credentials of this version")
