"""The share group state APIs (83 to 87): translate between requests and commands, and between results and responses.

A request names share partitions of one group, by topic id and partition. Each becomes a command of its own, for the
coordinator of that share partition: `asked_of` takes a request apart, `request_of` rebuilds a request for some of its
share partitions, and `response_of` makes the response from the results.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kraftpy.groups.routing import partition_for_group
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, shortened
from kraftpy.protocol.messages import delete_share_group_state as delete
from kraftpy.protocol.messages import initialize_share_group_state as initialize
from kraftpy.protocol.messages import read_share_group_state as read
from kraftpy.protocol.messages import read_share_group_state_summary as summary
from kraftpy.protocol.messages import write_share_group_state as write
from kraftpy.share.batches import TELLABLE, DeliveryState, StateBatch
from kraftpy.share.events import Command, Delete, Initialize, Read, ReadSummary, Result, Write
from kraftpy.share.records import ShareKey
from kraftpy.types import TopicId

_TOPIC_ID_BYTES = 16


class _Messages(NamedTuple):
    """The response classes of one API."""

    response: type[Any]
    topic: type[Any]
    partition: type[Any]


_ANSWERS: Mapping[ApiKey, _Messages] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _Messages(
        initialize.InitializeShareGroupStateResponse, initialize.InitializeStateResult, initialize.PartitionResult
    ),
    ApiKey.READ_SHARE_GROUP_STATE: _Messages(
        read.ReadShareGroupStateResponse, read.ReadStateResult, read.PartitionResult
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: _Messages(
        write.WriteShareGroupStateResponse, write.WriteStateResult, write.PartitionResult
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: _Messages(
        delete.DeleteShareGroupStateResponse, delete.DeleteStateResult, delete.PartitionResult
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _Messages(
        summary.ReadShareGroupStateSummaryResponse, summary.ReadStateSummaryResult, summary.PartitionResult
    ),
}


def coordinator_key(key: ShareKey) -> str:
    """Return the key by which FindCoordinator looks for it: "group:topic id:partition", as in Kafka."""
    topic_id = urlsafe_b64encode(key.topic_id).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


def is_coordinator_key(text: str) -> bool:
    """Return whether the text is a share partition's coordinator key. The group id may contain colons."""
    group_id, topic_id, partition = ["", "", *text.rsplit(":", 2)][-3:]
    try:
        is_topic_id = len(urlsafe_b64decode(topic_id + "==")) == _TOPIC_ID_BYTES
    except ValueError:
        return False
    number = partition.removeprefix("-")  # Kafka accepts any integer, and checks later if the partition exists
    return bool(group_id) and is_topic_id and number.isascii() and number.isdecimal()


def state_partition(key: ShareKey, count: int) -> int:
    """Return which of `count` partitions of `__share_group_state` holds the share partition."""
    return partition_for_group(coordinator_key(key), count)


class Asked(NamedTuple):
    """One share partition's part of a request, and its command, or the error if the part is invalid."""

    key: ShareKey
    part: Any
    command: Command | Result


def asked_of(request: Any) -> list[Asked]:
    """Take a request apart into its share partitions, each once even if it is named twice."""
    found: dict[ShareKey, Asked] = {}
    for topic in request.topics:
        for part in topic.partitions:
            key = ShareKey(request.group_id, TopicId(topic.topic_id), part.partition)
            found[key] = Asked(key, part, _command(request, key, part))
    return list(found.values())


def request_of(request: Any, asked: Iterable[Asked]) -> Any:
    """Rebuild the request for these share partitions only."""
    topics: dict[bytes, Any] = {}
    kinds = {topic.topic_id: type(topic) for topic in request.topics}
    for each in asked:
        topic_id = each.key.topic_id
        if topic_id not in topics:
            topics[topic_id] = kinds[topic_id](topic_id=topic_id, partitions=[])
        topics[topic_id].partitions.append(each.part)
    return type(request)(group_id=request.group_id, topics=list(topics.values()))


def response_of(api_key: ApiKey, results: Mapping[ShareKey, Result]) -> Any:
    """Build the response from the results."""
    kinds = _ANSWERS[api_key]
    topics: dict[bytes, Any] = {}
    for key, result in results.items():
        if key.topic_id not in topics:
            topics[key.topic_id] = kinds.topic(topic_id=key.topic_id, partitions=[])
        topics[key.topic_id].partitions.append(_answered(api_key, kinds.partition, key.partition, result))
    return kinds.response(results=list(topics.values()))


def results_of(group_id: str, response: Any) -> dict[ShareKey, Result]:
    """Parse another broker's response."""
    return {
        ShareKey(group_id, TopicId(topic.topic_id), part.partition): _result(part)
        for topic in response.results
        for part in topic.partitions
    }


def _command(request: Any, key: ShareKey, part: Any) -> Command | Result:
    if not key.group_id or key.partition < 0:
        return _invalid("group id and partition must be given")
    match request:
        case initialize.InitializeShareGroupStateRequest():
            if part.start_offset < -1 or part.state_epoch < 0:
                return _invalid(f"invalid start offset {part.start_offset} or state epoch {part.state_epoch}")
            return Initialize(key=key, state_epoch=part.state_epoch, start_offset=part.start_offset)
        case read.ReadShareGroupStateRequest():
            return Read(key=key, leader_epoch=part.leader_epoch)
        case delete.DeleteShareGroupStateRequest():
            return Delete(key=key)
        case summary.ReadShareGroupStateSummaryRequest():
            return ReadSummary(key=key)
    return _write(key, part)


def _write(key: ShareKey, part: write.PartitionData) -> Command | Result:
    batches = []
    for each in part.state_batches:
        if each.delivery_state not in TELLABLE or not 0 <= each.first_offset <= each.last_offset:
            return _invalid(f"invalid state {each.delivery_state} of {each.first_offset} to {each.last_offset}")
        if each.delivery_count < 0:
            return _invalid(f"invalid delivery count {each.delivery_count}")
        state = DeliveryState(each.delivery_state)
        batches.append(StateBatch(each.first_offset, each.last_offset, state, each.delivery_count))
    if part.start_offset < -1:
        return _invalid(f"invalid start offset {part.start_offset}")
    return Write(
        key=key,
        state_epoch=part.state_epoch,
        leader_epoch=part.leader_epoch,
        start_offset=part.start_offset,
        delivery_complete_count=part.delivery_complete_count,
        batches=tuple(batches),
    )


def _invalid(message: str) -> Result:
    return Result(error_code=ErrorCode.INVALID_REQUEST, error_message=message)


def _answered(api_key: ApiKey, kind: type[Any], partition: int, result: Result) -> Any:
    answer = kind(partition=partition, error_code=result.error_code, error_message=shortened(result.error_message))
    if result.error_code != ErrorCode.NONE:
        return answer
    if api_key == ApiKey.READ_SHARE_GROUP_STATE:
        answer.state_epoch, answer.start_offset = result.state_epoch, result.start_offset
        answer.state_batches = [
            read.StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.state,
                delivery_count=each.delivery_count,
            )
            for each in result.batches
        ]
    elif api_key == ApiKey.READ_SHARE_GROUP_STATE_SUMMARY:
        answer.state_epoch, answer.leader_epoch = result.state_epoch, result.leader_epoch
        answer.start_offset = result.start_offset
        answer.delivery_complete_count = result.delivery_complete_count
    return answer


def _result(part: Any) -> Result:
    code = ErrorCode.of(part.error_code)
    match part:
        case read.PartitionResult():
            return Result(
                error_code=code,
                error_message=part.error_message,
                state_epoch=part.state_epoch,
                start_offset=part.start_offset,
                batches=tuple(
                    StateBatch(
                        each.first_offset, each.last_offset, DeliveryState(each.delivery_state), each.delivery_count
                    )
                    for each in part.state_batches
                ),
            )
        case summary.PartitionResult():
            return Result(
                error_code=code,
                error_message=part.error_message,
                state_epoch=part.state_epoch,
                leader_epoch=part.leader_epoch,
                start_offset=part.start_offset,
                delivery_complete_count=part.delivery_complete_count,
            )
    return Result(error_code=code, error_message=part.error_message)
