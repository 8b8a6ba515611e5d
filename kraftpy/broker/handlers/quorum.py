"""DescribeQuorum (55), AddRaftVoter (80), RemoveRaftVoter (81): the nodes that keep the metadata.

Any broker answers, and asks the quorum's leader for details that only the leader knows. A voter is added once it has
caught up, and one change is made at a time. KIP-595, KIP-836 (times), KIP-853 (voters), KIP-1186 (an answer before the
commit).

A quorum that was formatted with its first voters knows each voter's directory: a node with a new disk is another voter,
and the old one can be removed by its directory's id. A quorum that was configured by `controller.quorum.voters` knows
node ids alone. If a request names a directory there, it must be the one that the voter has now, and the voter must be
connected to the quorum's leader, which asks for it.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Protocol

from kraftpy.metadata.topics import METADATA_TOPIC
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kraftpy.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    QuorumPartitionState,
    QuorumTopicState,
    ReplicaState,
)
from kraftpy.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from kraftpy.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kraftpy.broker.handlers.services import HasMetadata
    from kraftpy.broker.metadata.quorum_description import QuorumDescription, ReplicaOfLog
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasConfig, HasImage

    class Broker(HasConfig, HasImage, HasMetadata, Protocol):
        """The part of a broker that these handlers need."""


_LOOK_SECONDS = 0.02
_DIRECTORIES_VERSION = 2
"""The first version of DescribeQuorum with directory ids."""


async def describe_quorum(
    broker: Broker, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """Describe the metadata quorum. As in Kafka, a request that also names another partition is refused as a whole."""
    if not _is_about_the_log(request):
        return _unknown(request)
    try:
        described = await broker.metadata.quorum.describe()
        ids = await broker.metadata.quorum.directory_ids() if context.api_version >= _DIRECTORIES_VERSION else {}
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=shortened(error.message))
    topic = QuorumTopicState(topic_name=METADATA_TOPIC, partitions=[_state(described, ids)])
    return DescribeQuorumResponse(error_message="", topics=[topic], nodes=_nodes(broker, described))


def _is_about_the_log(request: DescribeQuorumRequest) -> bool:
    named = [(topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions]
    return len(request.topics) == 1 and named == [(METADATA_TOPIC, 0)]


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Answer that there is no such quorum, with zeros in all other fields, like Kafka."""
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = [
        QuorumTopicState(
            topic_name=topic.topic_name,
            partitions=[
                QuorumPartitionState(
                    partition_index=each.partition_index,
                    error_code=error,
                    error_message=error.meaning,
                    leader_id=0,
                    leader_epoch=0,
                    high_watermark=0,
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(error_message="", topics=topics, nodes=[])


def _state(described: QuorumDescription, ids: Mapping[int, bytes]) -> QuorumPartitionState:
    return QuorumPartitionState(
        partition_index=0,
        error_message="",
        leader_id=described.leader_id,
        leader_epoch=described.leader_epoch,
        high_watermark=described.high_watermark,
        current_voters=[_replica(voter, described.leader_id, ids) for voter in described.voters],
        observers=[_replica(observer, described.leader_id, ids) for observer in described.observers],
    )


def _replica(replica: ReplicaOfLog, leader_id: int, ids: Mapping[int, bytes]) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id or ids.get(replica.node_id, ZERO_UUID),
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_caught_up_ms if replica.node_id == leader_id else replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )


def _nodes(broker: Broker, described: QuorumDescription) -> list[Node]:
    """Return the voters and their addresses; a node that is a quorum of its own may have none."""
    name = broker.config.controller_listener_names[0]
    nodes = []
    for node_id, address in sorted(described.addresses.items()):
        host, _, port = address.rpartition(":")
        listeners = [Listener(name=name, host=host.strip("[]"), port=int(port))] if port else []
        nodes.append(Node(node_id=node_id, listeners=listeners))
    return nodes


async def add_raft_voter(broker: Broker, request: AddRaftVoterRequest, context: RequestContext) -> AddRaftVoterResponse:
    """Add a voter to the quorum."""
    try:
        _check(broker, request.cluster_id)
        if request.voter_id < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{request.voter_id} is not a valid voter id")
        async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
            address = _address(broker, request)
            described = await broker.metadata.quorum.describe()
            ids = await broker.metadata.quorum.directory_ids()
            key = _key(request.voter_id, request.voter_directory_id)
            if request.voter_id in _voters(described):
                problem = f"The voter id for {key} is already part of the set of voters {_keys(described, ids)}."
                raise KafkaError(ErrorCode.DUPLICATE_VOTER, problem)
            if not _has_directory(request.voter_id, request.voter_directory_id, ids):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"New voter {key} is not ready to receive requests")
            own = ids.get(request.voter_id) if described.has_directories else None
            await broker.metadata.quorum.change_voter(add=(request.voter_id, address), directory_id=own)
            if request.ack_when_committed:
                await _committed(broker, request.voter_id, votes=True)
    except TimeoutError:
        late = f"not committed within {request.timeout_ms} ms; describe the quorum before you try again"
        return AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=late)
    except KafkaError as error:
        return AddRaftVoterResponse(error_code=error.code, error_message=shortened(error.message))
    return AddRaftVoterResponse()


async def remove_raft_voter(
    broker: Broker, request: RemoveRaftVoterRequest, context: RequestContext
) -> RemoveRaftVoterResponse:
    """Remove a voter from the quorum."""
    try:
        _check(broker, request.cluster_id)
        async with asyncio.timeout(broker.config.request_timeout_ms / 1000):
            described = await broker.metadata.quorum.describe()
            ids = _directories(described, await broker.metadata.quorum.directory_ids())
            is_meant = _has_directory(request.voter_id, request.voter_directory_id, ids)
            if request.voter_id not in _voters(described) or not is_meant:
                key = _key(request.voter_id, request.voter_directory_id)
                problem = f"Cannot remove voter {key} from the set of voters {_keys(described, ids)}"
                raise KafkaError(ErrorCode.VOTER_NOT_FOUND, problem)
            named = ids.get(request.voter_id) if described.has_directories else None
            await broker.metadata.quorum.change_voter(remove=request.voter_id, directory_id=named)
            await _committed(broker, request.voter_id, votes=False)
    except TimeoutError:
        late = "not committed in time; describe the quorum before you try again"
        return RemoveRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=late)
    except KafkaError as error:
        return RemoveRaftVoterResponse(error_code=error.code, error_message=shortened(error.message))
    return RemoveRaftVoterResponse()


def _check(broker: Broker, cluster_id: str | None) -> None:
    """Check that the request means this cluster. Raises KafkaError."""
    if cluster_id is not None and cluster_id != broker.image.cluster_id:
        problem = f'The given id "{cluster_id}" doesn\'t match the cluster id "{broker.image.cluster_id}"'
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, problem)


def _has_directory(node_id: int, directory_id: bytes, ids: Mapping[int, bytes]) -> bool:
    return directory_id == ZERO_UUID or ids.get(node_id) == directory_id


def _key(node_id: int, directory_id: bytes) -> str:
    """Return a voter and its directory in the form of Kafka's messages."""
    shown = urlsafe_b64encode(directory_id).decode().rstrip("=") if directory_id != ZERO_UUID else "<undefined>"
    return f"ReplicaKey(id={node_id}, directoryId={shown})"


def _keys(described: QuorumDescription, ids: Mapping[int, bytes]) -> str:
    known = _directories(described, ids)
    return f"[{', '.join(_key(voter, known.get(voter, ZERO_UUID)) for voter in sorted(_voters(described)))}]"


def _directories(described: QuorumDescription, ids: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the directories of the voters in the log, if it has them; otherwise those that the nodes have now."""
    return {**ids, **{each.node_id: each.directory_id for each in described.voters if each.directory_id is not None}}


def _address(broker: Broker, request: AddRaftVoterRequest) -> str:
    """Return the address of the new voter's controller listener. Raises KafkaError."""
    names = broker.config.controller_listener_names
    for listener in request.listeners:
        if listener.name in names:
            if not listener.host or not listener.port:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"listener {listener.name} has no host or no port")
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            return f"{host}:{listener.port}"
    problem = f"Add voter request didn't include the endpoint for the default listener {names[0]}"
    raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _voters(described: QuorumDescription) -> frozenset[int]:
    return frozenset(voter.node_id for voter in described.voters)


async def _committed(broker: Broker, voter_id: int, *, votes: bool) -> None:
    """Wait until a quorum has the change; a new leader may take it back, and then this waits forever."""
    end_offset: int | None = None
    while True:
        try:
            described = await broker.metadata.quorum.describe()
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
            await asyncio.sleep(_LOOK_SECONDS)
            continue
        if end_offset is None:
            end_offset = max(replica.log_end_offset for replica in described.voters)
        if (voter_id in _voters(described)) == votes and described.high_watermark >= end_offset:
            return
        await asyncio.sleep(_LOOK_SECONDS)
