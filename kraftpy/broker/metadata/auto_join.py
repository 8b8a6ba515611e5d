"""A controller that adds itself to the voters: `controller.quorum.auto.join.enable` (KIP-853, KIP-1186).

It has to follow a quorum that tells disks apart. If a voter with this node's id and another directory is among the
voters, this node's disk was replaced, and that voter is removed first. The leader makes one change at a time, and adds
this node once it has caught up; a refusal is retried, less and less often up to `controller.quorum.fetch.timeout.ms`.
As in Kafka, a controller that is removed at run time adds itself again: stop it before you remove it.

Left out: joining a quorum that was configured by `controller.quorum.voters`. It identifies voters by node id alone, so
it cannot know whether this node has lost what it once promised.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import NamedTuple

from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.metadata.voter import Voter
from kraftpy.config import Address, BrokerConfig
from kraftpy.config.quorum import AUTO_JOIN, VOTERS
from kraftpy.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

_LOOK_MS = 1_000
_RETRY_SECONDS = 0.1
_MOST_TOLD = 20


class _Change(NamedTuple):
    """The next change of the voters on the way to this node being one."""

    is_removal: bool
    directory_id: bytes
    """That of the voter to remove, or this node's own."""


class AutoJoin:
    """The task of one controller; `address` is the one at which other nodes reach it."""

    def __init__(self, config: BrokerConfig, metadata: MetadataLog, address: Address) -> None:
        self._node_id = config.node_id
        self._longest_pause = config.controller_quorum_fetch_timeout_ms / 1000
        self._metadata = metadata
        self._address = address
        self._told: set[str] = set()
        """The lines that were logged since this node was last a voter, the first `_MOST_TOLD`: each is logged once."""

    async def run(self) -> None:
        """Add this node to the voters whenever it is not one of them."""
        pause = _RETRY_SECONDS
        while True:
            change = self._next_change()
            if change is None:
                pause = _RETRY_SECONDS
                await self._metadata.wait_for(lambda: self._next_change() is not None, _LOOK_MS)
                continue
            try:
                await self._make(change)
            except KafkaError as error:
                self._tell(f"this controller is not a voter yet, and tries again: {error.message}")
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, self._longest_pause)
            else:
                pause = _RETRY_SECONDS
                await self._metadata.wait_for(lambda change=change: self._next_change() != change, _LOOK_MS)  # type: ignore[misc]

    def _next_change(self) -> _Change | None:
        """Return the next change to ask the leader for; None if there is none, or no leader to ask."""
        source = self._metadata.source
        quorum = source.quorum if isinstance(source, Voter) else None
        if quorum is None or quorum.is_voter:
            self._told.clear()
            return None
        voters = quorum.voter_set
        assert isinstance(source, Voter)
        if self._metadata.leader_id in (None, self._node_id) or not voters.addresses:
            return None
        if not voters.directories or source.directory_id is None:
            self._tell(f"{AUTO_JOIN} has no effect: this quorum was configured by {VOTERS}")
            return None
        old = voters.directories.get(self._node_id)
        return _Change(False, source.directory_id) if old is None else _Change(True, old)

    async def _make(self, change: _Change) -> None:
        quorum, node_id = self._metadata.quorum, self._node_id
        if change.is_removal:
            self._tell("this controller has a new disk, and removes the voter with the old one")
            await quorum.change_voter(remove=node_id, directory_id=change.directory_id)
        else:
            self._tell("this controller adds itself to the voters of the metadata quorum")
            await quorum.change_voter(add=(node_id, str(self._address)), directory_id=change.directory_id)

    def _tell(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            logger.warning("%s", text)
