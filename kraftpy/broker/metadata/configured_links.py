"""The links that a node's settings ask for."""

from __future__ import annotations

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.metadata.secret import SecretError, configured_secret
from kraftpy.broker.metadata.transport import Links
from kraftpy.broker.startup import StartupError
from kraftpy.config import BrokerConfig


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
