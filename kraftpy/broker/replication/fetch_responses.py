"""Builds responses to Fetch for consumers and followers: partitions of which a session must hear, and leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.leader_hints import LeaderHints
from kraftpy.broker.replication.fetch_sessions import FetchContext, FetchedPartition
from kraftpy.broker.services import HasImage, HasSlices
from kraftpy.broker.slicing import PIECE
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, NodeEndpoint, PartitionData
from kraftpy.types import ZERO_TOPIC_ID, TopicPartition

if TYPE_CHECKING:
    from kraftpy.broker.replication.replicas import Replicas
    from kraftpy.broker.request import RequestContext


class Broker(HasImage, HasSlices, Protocol):
    """The part of a broker that fetch responses need."""


_FIRST_LEADER_VERSION = 16
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

Answers = list[tuple[FetchedPartition, PartitionData]]


def name_leaders(broker: HasImage, answers: Answers, context: RequestContext) -> list[NodeEndpoint]:
    """Name the leaders of partitions that are not led here (KIP-951), in versions with a field for it."""
    if context.api_version < _FIRST_LEADER_VERSION:
        return []
    hints: LeaderHints | None = None
    for partition, answer in answers:
        if answer.error_code in _LED_ELSEWHERE:
            hints = hints or LeaderHints(broker, context.listener)
            leader = hints.of(partition.topic, partition.topic_id, partition.partition)
            if leader is not None:
                answer.current_leader = leader
    return [] if hints is None else hints.endpoints


async def respond_long(
    broker: Broker, fetched: FetchContext, answers: Answers, context: RequestContext
) -> FetchResponse:
    """Do what `respond` does for many partitions, in slices."""
    response = FetchResponse(session_id=fetched.session_id, responses=[], node_endpoints=[])
    endpoints: dict[int, NodeEndpoint] = {}
    for start in range(0, len(answers), PIECE):
        await broker.slices.breathe(2 * PIECE)
        piece = answers[start : start + PIECE]
        part = respond(fetched, piece, name_leaders(broker, piece, context))
        endpoints |= {endpoint.node_id: endpoint for endpoint in part.node_endpoints}
        last = response.responses[-1] if response.responses else None
        for topic in part.responses:
            if last is not None and (topic.topic, topic.topic_id) == (last.topic, last.topic_id):
                last.partitions += topic.partitions
            else:
                response.responses.append(topic)
    response.node_endpoints = list(endpoints.values())
    return response


def respond(fetched: FetchContext, answers: Answers, endpoints: list[NodeEndpoint]) -> FetchResponse:
    """Build the response from the partitions that its session must include; adjacent ones of a topic are grouped."""
    topics: list[FetchableTopicResponse] = []
    last: tuple[str, bytes] | None = None
    for partition, answer in answers:
        if not fetched.include(partition, answer):
            continue
        key = (partition.topic, partition.topic_id)
        if key != last:
            topics.append(FetchableTopicResponse(topic=partition.topic, topic_id=partition.topic_id, partitions=[]))
            last = key
        topics[-1].partitions.append(answer)
    return FetchResponse(session_id=fetched.session_id, responses=topics, node_endpoints=endpoints)


def count_fetched(replicas: Replicas, answers: Answers, *, is_follower: bool) -> None:
    """Count the partitions of an answer and their records by topic, if there are metrics."""
    traffic = replicas.traffic
    if traffic is None:
        return
    for partition, answer in answers:
        if partition.topic_id == ZERO_TOPIC_ID:
            replica = replicas.held(TopicPartition(partition.topic, partition.partition))
        else:
            replica = replicas.held_by_id(partition.topic_id, partition.partition)
        topic = None if replica is None else replica.traffic
        traffic.fetched(topic, answer.error_code, len(answer.records or b""), is_follower=is_follower)
