"""Administrative operations on share groups without members: set or delete start offsets, delete the group (KIP-932).

The share coordinators carry out each operation, so it has two halves. `begin` records the intent and says what to ask
them; once that is stored and they have answered, `end` records the outcome. If the group's coordinator fails in
between, the log tells its successor what may have happened.

An alteration increases the group epoch, and with it the epoch of the partitions' state, so that a partition leader that
still works with the old offset cannot write it back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.events import Deletion, GroupResponse, Initialization, Request
from kraftpy.groups.member_epochs import next_epoch
from kraftpy.groups.share import partitions as share_partitions
from kraftpy.groups.share.group import ShareDraft
from kraftpy.groups.share.records import ShareGroupKey, ShareGroupValue
from kraftpy.groups.topics import Topics
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from kraftpy.types import Millis, TopicId

Failed = Mapping[TopicIdPartition, ErrorCode]

LOWEST_START_OFFSET = -1
"""The start offset that is determined when the partition is read, from the group's settings."""
NOTHING_TO_DELETE = "There is no offset information to delete."


class Operation(ABC):
    """One administrator's request about one group."""

    def __init__(self, group_id: str, event: Request) -> None:
        self.group_id = group_id
        self.event = event
        self.size = 0
        """The number of topics and partitions in the request. If there are very many topics, their partitions do not
        count."""

    @abstractmethod
    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Initialization | Deletion | None:
        """Record the intent and return what to ask the share coordinators; None if there is nothing to ask."""

    @abstractmethod
    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """Record the outcome."""

    @property
    @abstractmethod
    def response(self) -> GroupResponse | None:
        """The response; None if more must be done first."""


class Alteration(Operation):
    """Set start offsets. A missing group is created."""

    def __init__(self, event: Request, message: AlterShareGroupOffsetsRequest) -> None:
        super().__init__(message.group_id, event)
        self._message = message
        topics = len(message.topics)
        is_long = topics > UNITS_AT_ONCE
        self.size = topics if is_long else topics + sum(len(topic.partitions) for topic in message.topics)
        self._start_offsets: dict[TopicIdPartition, int] = {}
        self._partitions: dict[TopicIdPartition, AlterShareGroupOffsetsResponsePartition] = {}
        self._response = AlterShareGroupOffsetsResponse()

    @property
    def response(self) -> AlterShareGroupOffsetsResponse:
        """The result for each partition."""
        return self._response

    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Initialization | None:
        """Initialize again those partitions that exist."""
        answers: dict[str, AlterShareGroupOffsetsResponseTopic] = {}
        for topic in self._message.topics:
            info = topics.topic(topic.topic_name)
            if info is None and not topic.partitions:
                continue
            answer = answers.setdefault(
                topic.topic_name, AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
            )
            if info is not None:
                answer.topic_id = info.topic_id
            for each in topic.partitions:
                result = AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
                answer.partitions.append(result)
                if info is None or not 0 <= each.partition_index < info.partition_count:
                    _refuse(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                elif each.start_offset < LOWEST_START_OFFSET:
                    _refuse(result, ErrorCode.INVALID_REQUEST, f"{each.start_offset} is not a valid offset.")
                else:
                    partition = TopicIdPartition(info.topic_id, each.partition_index)
                    self._start_offsets[partition] = each.start_offset
                    self._partitions[partition] = result
        self._response.responses = list(answers.values())
        if not self._start_offsets:
            return None
        group, wanted = draft.group, frozenset(self._start_offsets)
        value = ShareGroupValue(epoch=next_epoch(group.epoch), metadata_hash=group.metadata_hash)
        draft.put(ShareGroupKey(self.group_id), value)
        draft.put_partitions(share_partitions.initializing(group.partitions, wanted, topics, timestamp))
        return Initialization(state_epoch=draft.group.epoch, start_offsets=self._start_offsets)

    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """Mark as initialized those that succeeded; the others keep their state, or stay without."""
        refused = frozenset(each for each in self._start_offsets if each in failed)
        for each in refused:
            _refuse(self._partitions[each], failed[each])
        done = frozenset(self._start_offsets) - refused
        draft.put_partitions(share_partitions.asked(draft.group.partitions, done, refused))


class OffsetDeletion(Operation):
    """Delete the start offsets of topics: readers start over as if for the first time."""

    def __init__(self, event: Request, message: DeleteShareGroupOffsetsRequest) -> None:
        super().__init__(message.group_id, event)
        self._message = message
        self.size = len(message.topics)
        self._topics: dict[TopicId, DeleteShareGroupOffsetsResponseTopic] = {}
        self._response = DeleteShareGroupOffsetsResponse()

    @property
    def response(self) -> DeleteShareGroupOffsetsResponse:
        """The result for each topic."""
        return self._response

    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Deletion | None:
        """Mark all partitions of these topics as being deleted."""
        partitions = draft.group.partitions
        known = frozenset(share_partitions.topic_ids(partitions))
        for name in dict.fromkeys(topic.topic_name for topic in self._message.topics):
            info = topics.topic(name)
            answer = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
            self._response.responses.append(answer)
            if info is None:
                _refuse(answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif info.topic_id not in known:
                _refuse(answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOTHING_TO_DELETE)
            else:
                answer.topic_id = info.topic_id
                self._topics[info.topic_id] = answer
        if not self._topics:
            return None
        doomed = share_partitions.to_delete(partitions, self._topics, topics)
        draft.put_partitions(share_partitions.deleting(partitions, self._topics))
        return Deletion(partitions=doomed)

    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """Forget those that were deleted; the others stay marked."""
        for each, error_code in sorted(failed.items()):
            _refuse(self._topics[each.topic_id], error_code)
        done = [topic_id for topic_id, answer in self._topics.items() if not answer.error_code]
        draft.put_partitions(share_partitions.deleted(draft.group.partitions, done))


class StateDeletion(Operation):
    """Delete a group's state at the share coordinators before the group itself is deleted."""

    def __init__(self, group_id: str, event: Request) -> None:
        super().__init__(group_id, event)
        assert isinstance(event.message, DeleteGroupsRequest)
        self.error_code = ErrorCode.NONE

    @property
    def response(self) -> None:
        """None: the group itself is deleted after this."""
        return None

    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Deletion | None:
        """Mark everything as being deleted."""
        partitions = draft.group.partitions
        topic_ids = share_partitions.topic_ids(partitions)
        if not topic_ids:
            return None
        doomed = share_partitions.to_delete(partitions, topic_ids, topics)
        draft.put_partitions(share_partitions.deleting(partitions, topic_ids))
        return Deletion(partitions=doomed)

    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """Forget what was deleted; the rest stays marked."""
        remaining = {each.topic_id for each in failed}
        if failed:
            self.error_code = failed[min(failed)]
        partitions = draft.group.partitions
        gone = [each for each in share_partitions.topic_ids(partitions) if each not in remaining]
        draft.put_partitions(share_partitions.deleted(partitions, gone))


def _refuse(
    answer: AlterShareGroupOffsetsResponsePartition | DeleteShareGroupOffsetsResponseTopic,
    error_code: ErrorCode,
    text: str | None = None,
) -> None:
    answer.error_code = error_code
    answer.error_message = text or error_code.meaning
