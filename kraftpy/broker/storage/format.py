"""Assigns new log directories to a cluster before a broker first opens them, like Kafka's `kafka-storage format`.

A directory that was formatted before is left alone; if it belongs to another cluster, it is refused and nothing is
written. A broker formats unformatted directories itself, with a cluster id that it makes up. Everything here blocks.

A controller's first directory also gets the first voters, if the quorum is to tell disks apart (KIP-853), and if this
node is one of them, the id that they give its directory.
"""

from __future__ import annotations

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.bootstrap import write_bootstrap
from kraftpy.broker.storage.directories import DirectoryError, id_text, random_id
from kraftpy.broker.storage.first_voters import write_first_voters
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.metadata.credentials import ScramChange
from kraftpy.metadata.voters import VoterSet


def format_directories(
    config: BrokerConfig,
    cluster_id: str,
    credentials: tuple[ScramChange, ...] = (),
    *,
    first_voters: VoterSet | None = None,
    must_be_new: bool = False,
) -> list[str]:
    """Assign every new directory of `log.dirs` to `cluster_id`, and return their paths. Raises DirectoryError.

    `credentials` and `first_voters` are the initial ones of a new cluster; a controller keeps them in its first
    directory. None stands for a quorum that does not tell disks apart, and no voters for one that this node is to find.
    """
    new: dict[str, OsDirectory] = {}
    for name in config.log_dirs:
        try:
            directory = OsDirectory(name)
            properties = layout.read_meta_properties(directory)
        except layout.CorruptFile as error:
            raise DirectoryError(f"log.dirs: {error}") from error
        except OSError as error:
            raise DirectoryError(f"log.dirs: cannot use {name}: {error.strerror}") from error
        if properties is None:
            new[name] = directory
        elif properties.get("cluster.id", cluster_id) != cluster_id:
            raise DirectoryError(
                f"log.dirs: {directory.path} belongs to cluster {properties['cluster.id']}, not to {cluster_id}"
            )
        elif must_be_new:
            raise DirectoryError(
                f"Log directory {directory.path} is already formatted. Use --ignore-formatted to ignore this directory "
                "and format the others."
            )
    for name, directory in new.items():
        keeps_metadata = config.is_controller and name == config.log_dirs[0]
        own_id = first_voters.directories.get(config.node_id) if keeps_metadata and first_voters is not None else None
        marks = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(config.node_id),
            "directory.id": random_id() if own_id is None else id_text(own_id),
        }
        try:
            if credentials and keeps_metadata:
                write_bootstrap(directory, credentials)
            if first_voters is not None and keeps_metadata:
                write_first_voters(directory, first_voters)
            layout.write_meta_properties(directory, marks)
        except OSError as error:
            raise DirectoryError(f"log.dirs: cannot use {directory.path}: {error.strerror}") from error
    return [directory.path for directory in new.values()]
