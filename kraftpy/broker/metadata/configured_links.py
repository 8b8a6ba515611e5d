"""The links that a node's settings ask for, and why they led to no quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.secret import SecretError, configured_secret
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig

if TYPE_CHECKING:
    from kraftpy.broker.storage.directories import LogDirectories


def configured_links(config: BrokerConfig, tasks: Tasks, complaints: Complaints, incidents: Incidents) -> Links:
    """Return the links of this node. Raises StartupError if its secret cannot be read."""
    try:
        secret = configured_secret(config)
    except SecretError as error:
        raise StartupError(str(error)) from None
    return Links(
        config.node_id,
        is_voter=config.is_controller,
        tasks=tasks,
        silence_ms=config.controller_quorum_fetch_timeout_ms,
        secret=secret,
        complaints=complaints,
        incidents=incidents,
    )


def why_no_quorum(config: BrokerConfig, links: Links | None, directories: LogDirectories) -> str:
    """Explain why a node that starts has found no cluster."""
    if links is None:
        return f"{directories.paths[0]}: the metadata log could not be started"
    if links.refused_cluster is not None:
        return (
            f"log.dirs: {directories.paths[0]} belongs to cluster {directories.cluster_id}, "
            f"the quorum to cluster {links.refused_cluster}"
        )
    quorum = config.controller_quorum_voters or config.controller_quorum_bootstrap_servers
    connected = ", ".join(map(str, links.peers)) or "none"
    return f"controller.quorum.voters: no leader of {','.join(map(str, quorum))} was found (connected: {connected})"
