"""A node's health as plain values fit for JSON: the errors it has survived and the work it cannot do.

A healthy node has no log directory and no partition offline, and has met no unexpected error. Lists are cut, so that
the result stays small however much is wrong; the counts beside them are exact.

Left out: whether clients are served. Only a client can find that out (`kraftpy ping`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kraftpy.broker.containment import Incidents
    from kraftpy.broker.replication.replicas import Replicas
    from kraftpy.broker.services import HasConfig, HasImage, HasNodeId
    from kraftpy.broker.storage.directories import LogDirectories

    class Broker(HasConfig, HasImage, HasNodeId, Protocol):
        """The part of a broker that its health depends on."""

        @property
        def replicas(self) -> Replicas:
            """The replicas on this node."""

        @property
        def directories(self) -> LogDirectories:
            """The log directories of this node."""

        @property
        def incidents(self) -> Incidents:
            """The unexpected errors that the node survived."""

        @property
        def connections(self) -> Sequence[object]:
            """Every open client connection."""


_MOST_NAMED = 20


def health_of(broker: Broker) -> dict[str, Any]:
    """Return `is_healthy` and the reasons why not: offline log directories (path -> reason) and partitions, incidents.

    `limits` holds the bounds on what clients can take of the node, and how much of each is taken.
    """
    offline = [f"{key}: {why}" for key, why in broker.replicas.offline.failures().items()]
    failures = dict(broker.directories.failures)
    return {
        "node_id": int(broker.node_id),
        "is_healthy": not (failures or offline or broker.incidents.count),
        "offline_log_directories": failures,
        "offline_partition_count": len(offline),
        "offline_partitions": offline[:_MOST_NAMED],
        "incident_count": broker.incidents.count,
        "incidents": [f"{incident.what}: {incident.error}" for incident in broker.incidents.last],
        "limits": {
            "connections": [len(broker.connections), broker.config.max_connections],
            "configs_bytes": [broker.image.configs_bytes, broker.config.kraftpy_max_configs_bytes],
        },
    }
