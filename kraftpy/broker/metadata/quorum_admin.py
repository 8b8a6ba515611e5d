"""Describes the metadata quorum and changes its voters, on any node: only the quorum's leader can, so it is asked.

The leader also tells its defaults for new topics: those of a topic that is created without numbers are the active
controller's, as in Kafka. KIP-595 and KIP-853. Left out: directory ids of voters.
"""

from __future__ import annotations

from collections.abc import Callable
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
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links


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

    def serve(self, links: Links) -> None:
        """Answer the other nodes' requests from now on."""
        links.serve("describe quorum", self._answer_describe)
        links.serve("change voter", self._answer_change_voter)
        links.serve("topic defaults", self._answer_topic_defaults)

    async def describe(self) -> QuorumDescription:
        """Describe the quorum as its leader sees it. Raises KafkaError: NOT_CONTROLLER if the leader is unreachable."""
        voter = self._leading()
        if voter is None:
            return read_description(await self._ask_leader("describe quorum", {}))
        return describe_quorum(voter, self._clock)

    async def change_voter(self, *, add: tuple[int, str] | None = None, remove: int | None = None) -> None:
        """Add a voter (id and `host:port`) that has caught up, or remove one.

        Raises KafkaError: NOT_CONTROLLER if the leader is unreachable, INVALID_REQUEST with its reason if it refuses.
        """
        if add is not None and (problem := address_problem(add[1])) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        voter = self._leading()
        if voter is not None:
            reason = await voter.change_voter(add=add, remove=remove)
        else:
            body = {"add": None if add is None else list(add), "remove": remove}
            reason = (await self._ask_leader("change voter", body))["refused"]
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason)

    async def topic_defaults(self) -> TopicDefaults:
        """Return the active controller's defaults for new topics; this node's own if it cannot be asked."""
        if self._leading() is not None or self._links is None:
            return self._own_defaults
        try:
            found = (await self._ask_leader("topic defaults", {}))["defaults"]
            return TopicDefaults(int(found[0]), int(found[1]))
        except (KafkaError, LookupError, TypeError, ValueError):  # unreachable, or of another version
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
        return {
            "refused": await voter.change_voter(add=None if add is None else (add[0], add[1]), remove=body["remove"])
        }

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
