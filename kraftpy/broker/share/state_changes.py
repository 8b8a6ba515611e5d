"""A group coordinator's requests to share coordinators (KIP-932): initialize, delete or summarize partition states."""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.broker.share.coordinator_client import ShareStates
from kraftpy.broker.share.state_requests import results_of
from kraftpy.groups.assignment import Assignment, TopicIdPartition, by_topic
from kraftpy.groups.events import Deletion, Initialization
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import delete_share_group_state as delete
from kraftpy.protocol.messages import initialize_share_group_state as initialize
from kraftpy.protocol.messages import read_share_group_state_summary as summary
from kraftpy.share.events import NO_EPOCH, Result


async def change_state(
    states: ShareStates, group_id: str, change: Initialization | Deletion
) -> dict[TopicIdPartition, ErrorCode]:
    """Carry out a change; return the error codes of the partitions for which it failed."""
    match change:
        case Initialization():
            response = await states.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, _initialization(group_id, change))
        case Deletion():
            response = await states.ask(ApiKey.DELETE_SHARE_GROUP_STATE, _deletion(group_id, change))
    results = _by_partition(group_id, response)
    return {each: result.error_code for each, result in results.items() if result.error_code != ErrorCode.NONE}


async def summaries(states: ShareStates, group_id: str, partitions: Assignment) -> Mapping[TopicIdPartition, Result]:
    """Return how far each partition has come, or the error."""
    request = summary.ReadShareGroupStateSummaryRequest(
        group_id=group_id,
        topics=[
            summary.ReadStateSummaryData(
                topic_id=topic_id,
                partitions=[summary.PartitionData(partition=number, leader_epoch=NO_EPOCH) for number in numbers],
            )
            for topic_id, numbers in by_topic(partitions)
        ],
    )
    return _by_partition(group_id, await states.ask(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, request))


def _by_partition(group_id: str, response: object) -> dict[TopicIdPartition, Result]:
    return {
        TopicIdPartition(key.topic_id, key.partition): result for key, result in results_of(group_id, response).items()
    }


def _initialization(group_id: str, change: Initialization) -> initialize.InitializeShareGroupStateRequest:
    return initialize.InitializeShareGroupStateRequest(
        group_id=group_id,
        topics=[
            initialize.InitializeStateData(
                topic_id=topic_id,
                partitions=[
                    initialize.PartitionData(
                        partition=number,
                        state_epoch=change.state_epoch,
                        start_offset=change.start_offsets[TopicIdPartition(topic_id, number)],
                    )
                    for number in numbers
                ],
            )
            for topic_id, numbers in by_topic(frozenset(change.start_offsets))
        ],
    )


def _deletion(group_id: str, change: Deletion) -> delete.DeleteShareGroupStateRequest:
    return delete.DeleteShareGroupStateRequest(
        group_id=group_id,
        topics=[
            delete.DeleteStateData(
                topic_id=topic_id, partitions=[delete.PartitionData(partition=number) for number in numbers]
            )
            for topic_id, numbers in by_topic(change.partitions)
        ],
    )
