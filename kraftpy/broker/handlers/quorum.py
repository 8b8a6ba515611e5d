"""DescribeQuorum (55), AddRaftVoter (80), RemoveRaftVoter (81): the nodes that keep the metadata.

Any broker answers; it asks the quorum's leader for what only that one knows. A voter is added once it has caught up,
and one change is made at a time. KIP-595, KIP-836 (times), KIP-853 (voters), KIP-1186 (an answer before the commit).

Left out: directory ids of voters. Nodes are identified by number; a request that names a directory is refused.
"""

from __future__ import annotations

import asyncio
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
    from kraftpy.broker.handlers.services import HasMetadata
    from kraftpy.broker.metadata.quorum_description import QuorumDescription, ReplicaOfLog
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasConfig, HasImage

    class Broker(HasConfig, HasImage, HasMetadata, Protocol):
        """The part of a broker that these handlers need."""


_LOOK_SECONDS = 0.02


async def describe_quorum(
    broker: Broker, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    """Describe the metadata quorum, once for each time the request names its partition."""
    try:
        described = await broker.metadata.quorum.describe()
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=shortened(error.message))
    topics = []
    for topic in request.topics:
        numbers = dict.fromkeys(partition.partition_index for partition in topic.partitions)
        partitions = [
            _state(described)
            if topic.topic_name == METADATA_TOPIC and number == 0
            else QuorumPartitionState(partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for number in numbers
        ]
        topics.append(QuorumTopicState(topic_name=topic.topic_name, partitions=partitions))
    return DescribeQuorumResponse(topics=topics, nodes=_nodes(broker, described))


def _state(described: QuorumDescription) -> QuorumPartitionState:
    return QuorumPartitionState(
        partition_index=0,
        leader_id=described.leader_id,
        leader_epoch=described.leader_epoch,
        high_watermark=described.high_watermark,
        current_voters=[_replica(voter, described.leader_id) for voter in described.voters],
        observers=[_replica(observer, described.leader_id) for observer in described.observers],
    )


def _replica(replica: ReplicaOfLog, leader_id: int) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.node_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=-1 if replica.node_id == leader_id else replica.last_fetch_ms,
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
        _check(broker, request.cluster_id, request.voter_directory_id)
        async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
            address = _address(broker, request)
            voters = _voters(await broker.metadata.quorum.describe())
            if request.voter_id in voters:
                problem = f"The voter id for {request.voter_id} is already part of the set of voters {sorted(voters)}."
                raise KafkaError(ErrorCode.DUPLICATE_VOTER, problem)
            await broker.metadata.quorum.change_voter(add=(request.voter_id, address))
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
        _check(broker, request.cluster_id, request.voter_directory_id)
        async with asyncio.timeout(broker.config.request_timeout_ms / 1000):
            voters = _voters(await broker.metadata.quorum.describe())
            if request.voter_id not in voters:
                problem = f"Cannot remove voter {request.voter_id} from the set of voters {sorted(voters)}."
                raise KafkaError(ErrorCode.VOTER_NOT_FOUND, problem)
            await broker.metadata.quorum.change_voter(remove=request.voter_id)
            await _committed(broker, request.voter_id, votes=False)
    except TimeoutError:
        late = "not committed in time; describe the quorum before you try again"
        return RemoveRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=late)
    except KafkaError as error:
        return RemoveRaftVoterResponse(error_code=error.code, error_message=shortened(error.message))
    return RemoveRaftVoterResponse()


def _check(broker: Broker, cluster_id: str | None, directory_id: bytes) -> None:
    """Check that the request means this cluster, and names no directory. Raises KafkaError."""
    if cluster_id is not None and cluster_id != broker.image.cluster_id:
        problem = f"Expected cluster ID {broker.image.cluster_id}, but got cluster ID {cluster_id}."
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, problem)
    if directory_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "voters have no directory ids here: leave the id at zero")


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
