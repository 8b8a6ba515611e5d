"""The voters that a controller starts with, and their addresses.

In this order: what its directory was formatted with (`storage.first_voters`), `controller.quorum.voters`, or itself. A
controller that has none of these and several `controller.quorum.bootstrap.servers` starts only if its log has voters.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.broker.metadata.quorum_admin import address_problem
from kraftpy.broker.storage.first_voters import read_first_voters
from kraftpy.config import Address, BrokerConfig
from kraftpy.config.quorum import parse_address
from kraftpy.metadata.voters import VoterSet
from kraftpy.ports import Directory


def first_voters(config: BrokerConfig, directory: Directory) -> VoterSet | None:
    """Return the voters that count until the log has its own; None if it must have them. Blocks.

    Raises CodecError or OSError.
    """
    formatted = read_first_voters(directory)
    if formatted is not None:
        return formatted
    if configured := config.controller_quorum_voters:
        return VoterSet({voter.node_id: str(voter.address) for voter in configured})
    return VoterSet({config.node_id: ""}) if config.is_own_quorum else None


def addresses_of(voters: Mapping[int, str]) -> dict[int, Address]:
    """Return the addresses of the voters that have one that can be used."""
    return {
        node_id: parse_address("voters", text)
        for node_id, text in voters.items()
        if text and address_problem(text) is None
    }
