"""The links that a node's settings and its voters ask for, and why they led to no quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.configured_voters import addresses_of
from kraftpy.broker.metadata.secret import SecretError, configured_secret
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.metadata.voter import Voter
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig
from kraftpy.config.quorum import BOOTSTRAP, VOTERS

if TYPE_CHECKING:
    from kraftpy.broker.metadata.log import MetadataLog
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
    voters, bootstrap = config.controller_quorum_voters, config.controller_quorum_bootstrap_servers
    setting, quorum = (BOOTSTRAP, bootstrap) if bootstrap and not voters else (VOTERS, voters)
    connected = ", ".join(map(str, links.peers)) or "none"
    return f"{setting}: no leader of {','.join(map(str, quorum))} was found (connected: {connected})"


async def start_links(config: BrokerConfig, links: Links, metadata: MetadataLog) -> None:
    """Start connecting to the voters. Raises StartupError if they cannot be trusted.

    The voters are the configured ones. A controller whose voters come from the log or from its directory's format
    connects to these; unless it is one of them, it also looks for the quorum at
    `controller.quorum.bootstrap.servers`, because its log may be old or empty.
    """
    source = metadata.source
    quorum = source.quorum if isinstance(source, Voter) else None
    if quorum is None or not metadata.follows_voters(quorum.voter_set):
        voters = {voter.node_id: voter.address for voter in config.controller_quorum_voters}
        await links.start(voters, () if voters else config.controller_quorum_bootstrap_servers)
        return
    voters = addresses_of(quorum.voter_set.addresses)
    others = {node_id: address for node_id, address in voters.items() if node_id != config.node_id}
    if (problem := links.why_untrusted(config, others)) is not None:
        raise StartupError(problem)
    links.follows_log = True
    bootstrap = () if quorum.is_voter else config.controller_quorum_bootstrap_servers
    await links.start(voters, bootstrap, is_voter=quorum.is_voter)
