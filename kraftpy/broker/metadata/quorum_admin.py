"""Describes the metadata quorum and changes its voters, on any node: only the quorum's leader can, so it is asked.

The leader also reports its defaults for new topics: a topic created without numbers gets the active controller's, as in
Kafka. KIP-595 and KIP-853.

A quorum that was configured by `controller.quorum.voters` identifies nodes by node id alone. A request that describes
it, or names a directory when it changes a voter, needs the ids of metadata directories: the leader asks each node for
its own. A node that is not connected, or whose version does not answer that, has none. A quorum that tells disks apart
has the directories of its voters in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from kraftpy.broker.metadata.quorum_description import (
    QuorumDescription,
    describe_quorum,
    read_description,
    write_description,
)
from kraftpy.broker.metadata.voter import Voter
from kraftpy.config.quorum import parse_address
from kraftpy.config.settings import ConfigError
from kraftpy.metadata.raft.membership import LEADER_ITSELF, NEW_LEADER, NO_LEADER
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links

_DIRECTORY_ID_TIMEOUT_MS = 1_000
_HAND_OVER_SECONDS = 0.05
"""The pause before the next leader is asked."""


class TopicDefaults(NamedTuple):
    """A controller's `num.partitions` and `default.replication.factor`."""

    partitions: int
    replication_factor: int


class QuorumAdmin:
    """The quorum's administration, for clients of this node and for other nodes.

    `leading` returns this node's voter if it is the active controller. `leader_id` returns the node that leads.
    `own_defaults` are this node's settings for new topics.
    """

    def __init__(
        self,
        node_id: int,
        request_timeout_ms: int,
        clock: Clock,
        links: Links | None,
        own_defaults: TopicDefaults,
        *,
        leading: Callable[[], Voter | None],
        leader_id: Callable[[], int | None],
    ) -> None:
        self._node_id = node_id
        self._request_timeout_ms = request_timeout_ms
        self._clock = clock
        self._links = links
        self._own_defaults = own_defaults
        self._leading = leading
        self._leader_id = leader_id
        self.own_directory_id: Callable[[], bytes] = lambda: ZERO_UUID
        """Returns the id of this node's metadata directory; the owner of the directories sets it."""

    def serve(self, links: Links) -> None:
        """Answer the other nodes' requests from now on."""
        links.serve("describe quorum", self._answer_describe)
        links.serve("directory id", self._answer_directory_id)
        links.serve("directory ids", self._answer_directory_ids)
        links.serve("change voter", self._answer_change_voter)
        links.serve("topic defaults", self._answer_topic_defaults)

    async def describe(self) -> QuorumDescription:
        """Describe the quorum as its leader sees it. Raises KafkaError: NOT_CONTROLLER if the leader is unreachable."""
        voter = self._leading()
        if voter is None:
            return read_description(await self._ask_leader("describe quorum", {}))
        return describe_quorum(voter, self._clock)

    async def directory_ids(self) -> dict[int, bytes]:
        """Return the ids of the metadata directories of the nodes that the leader reaches."""
        from kraftpy.broker.metadata.link_messages import LinkError

        if self._leading() is None:
            try:
                return dict(map(tuple, (await self._ask_leader("directory ids", {}))["ids"]))
            except KafkaError:
                return {}
        found = {self._node_id: self.own_directory_id()}
        links = self._links
        if links is None:
            return found

        async def ask(peer: int) -> None:
            try:
                found[peer] = (await links.request(peer, "directory id", {}, _DIRECTORY_ID_TIMEOUT_MS))["id"]
            except LinkError:  # it is gone, or has an earlier version
                return

        await asyncio.gather(*map(ask, links.peers))
        return found

    async def change_voter(
        self, *, add: tuple[int, str] | None = None, remove: int | None = None, directory_id: bytes | None = None
    ) -> None:
        """Add a voter (id and `host:port`) that has caught up, or remove one.

        `directory_id` is that of the node to add, or must be that of the voter to remove; only a quorum that tells
        disks apart has a use for it. None stands for any voter's. A leader that is to be removed hands over first, and
        the next one is asked.

        Raises KafkaError: NOT_CONTROLLER if the leader is unreachable, INVALID_REQUEST with its reason if it refuses.
        """
        if add is not None and (problem := address_problem(add[1])) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        deadline_ms = self._clock.monotonic_ms() + self._request_timeout_ms
        passing: Collection[str] = (LEADER_ITSELF,)
        while True:
            try:
                reason = await self._change_voter(add, remove, directory_id)
                if reason is None:
                    return
                if reason not in passing:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or NEW_LEADER not in passing:
                    raise
                reason = error.message
            if self._clock.monotonic_ms() >= deadline_ms:
                raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
            passing = (LEADER_ITSELF, NEW_LEADER, NO_LEADER)
            await asyncio.sleep(_HAND_OVER_SECONDS)

    async def _change_voter(
        self, add: tuple[int, str] | None, remove: int | None, directory_id: bytes | None
    ) -> str | None:
        """Ask the leader once. Return None, or its reason against the change. Raises KafkaError (NOT_CONTROLLER)."""
        voter = self._leading()
        if voter is not None:
            return await voter.change_voter(add=add, remove=remove, directory_id=directory_id)
        body: dict[str, Any] = {"add": None if add is None else list(add), "remove": remove}
        if directory_id is not None:
            body["directory"] = directory_id
        refused: str | None = (await self._ask_leader("change voter", body))["refused"]
        return refused

    async def topic_defaults(self) -> TopicDefaults:
        """Return the active controller's defaults for new topics; this node's own if it cannot be asked."""
        if self._leading() is not None or self._links is None:
            return self._own_defaults
        try:
            found = (await self._ask_leader("topic defaults", {}))["defaults"]
            return TopicDefaults(int(found[0]), int(found[1]))
        except (KafkaError, LookupError, TypeError, ValueError):  # unreachable, or it has another version
            return self._own_defaults

    async def _ask_leader(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        leader = self._leader_id()
        if leader is None or leader == self._node_id or self._links is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata quorum has no leader")
        from kraftpy.broker.metadata.link_messages import LinkError

        try:
            return await self._links.request(leader, kind, body, self._request_timeout_ms)
        except LinkError as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error

    async def _answer_describe(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        return write_description(describe_quorum(self._leading_or_refuse(), self._clock))

    async def _answer_change_voter(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        voter = self._leading_or_refuse()
        add = body["add"]
        if add is not None and (problem := address_problem(add[1])) is not None:
            return {"refused": problem}
        added = None if add is None else (add[0], add[1])
        refused = await voter.change_voter(add=added, remove=body["remove"], directory_id=body.get("directory"))
        return {"refused": refused}

    async def _answer_directory_id(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        return {"id": self.own_directory_id()}

    async def _answer_directory_ids(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        self._leading_or_refuse()
        return {"ids": [[node, directory_id] for node, directory_id in sorted((await self.directory_ids()).items())]}

    async def _answer_topic_defaults(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        self._leading_or_refuse()
        return {"defaults": list(self._own_defaults)}

    def _leading_or_refuse(self) -> Voter:
        voter = self._leading()
        if voter is None:
            from kraftpy.broker.metadata.link_messages import LinkError

            raise LinkError("this node does not lead the metadata quorum")
        return voter


def address_problem(text: str) -> str | None:
    """Return an error message if a voter's address is malformed; None if it is valid."""
    try:
        parse_address("the voter's address", text)
    except ConfigError as error:
        return str(error)
    return None
