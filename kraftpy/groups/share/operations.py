"""What an administrator does to a share group without members: set or forget start offsets, delete it (KIP-932).

Each takes the share coordinators to do it, so it has two halves: `begin` says what is about to happen and what they are
to be asked, and once that is stored and they have been asked, `end` says what has become of it. If the group's
coordinator dies in between, the log tells its successor what may have happened.

In an alteration the group's epoch goes up, and with it the epoch of the partitions' state, lest a leader of a partition
that still works with the old offset write it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.events import Deletion, GroupResponse, Initialization, Request
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
"""The start offset that is found out when the partition is read, as the group's settings say."""
NOTHING_TO_DELETE = "There is no offset information to delete."


class Operation(ABC):
    """One request of an administrator, on one group."""

    def __init__(self, group_id: str, event: Request) -> None:
        self.group_id = group_id
        self.event = event

    @abstractmethod
    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Initialization | Deletion | None:
        """Put what is about to happen, and say what the share coordinators are asked; None where that is nothing."""

    @abstractmethod
    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """Put what has happened."""

    @property
    @abstractmethod
    def response(self) -> GroupResponse | None:
        """The answer; None where there is more to do before there is one."""


class Alteration(Operation):
    """Set start offsets. A group that is not there is made."""

    def __init__(self, event: Request, message: AlterShareGroupOffsetsRequest) -> None:
        super().__init__(message.group_id, event)
        self._message = message
        self._start_offsets: dict[TopicIdPartition, int] = {}
        self._partitions: dict[TopicIdPartition, AlterShareGroupOffsetsResponsePartition] = {}
        self._response = AlterShareGroupOffsetsResponse()

    @property
    def response(self) -> AlterShareGroupOffsetsResponse:
        """What came of each partition."""
        return self._response

    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Initialization | None:
        """The partitions that there are, are initialized anew."""
        for topic in self._message.topics:
            info = topics.topic(topic.topic_name)
            answer = AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
            if info is not None:
                answer.topic_id = info.topic_id
            for each in topic.partitions:
                told = AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
                answer.partitions.append(told)
                if info is None or not 0 <= each.partition_index < info.partition_count:
                    _refuse(told, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                elif each.start_offset < LOWEST_START_OFFSET:
                    _refuse(told, ErrorCode.INVALID_REQUEST, f"{each.start_offset} is no offset")
                else:
                    partition = TopicIdPartition(info.topic_id, each.partition_index)
                    self._start_offsets[partition] = each.start_offset
                    self._partitions[partition] = told
            self._response.responses.append(answer)
        if not self._start_offsets:
            return None
        group, wanted = draft.group, frozenset(self._start_offsets)
        value = ShareGroupValue(epoch=group.epoch + 1, metadata_hash=group.metadata_hash)
        draft.put(ShareGroupKey(self.group_id), value)
        draft.put_partitions(share_partitions.initializing(group.partitions, wanted, topics, timestamp))
        return Initialization(state_epoch=draft.group.epoch, start_offsets=self._start_offsets)

    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """Those that could be are initialized; the others are as they were, or are not."""
        refused = frozenset(each for each in self._start_offsets if each in failed)
        for each in refused:
            _refuse(self._partitions[each], failed[each])
        done = frozenset(self._start_offsets) - refused
        draft.put_partitions(share_partitions.asked(draft.group.partitions, done, refused))


class OffsetDeletion(Operation):
    """Forget the start offsets of topics: who reads them again begins as if never before."""

    def __init__(self, event: Request, message: DeleteShareGroupOffsetsRequest) -> None:
        super().__init__(message.group_id, event)
        self._names = list(dict.fromkeys(topic.topic_name for topic in message.topics))
        self._topics: dict[TopicId, DeleteShareGroupOffsetsResponseTopic] = {}
        self._response = DeleteShareGroupOffsetsResponse()

    @property
    def response(self) -> DeleteShareGroupOffsetsResponse:
        """What came of each topic."""
        return self._response

    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Deletion | None:
        """Whatever there is of these topics is about to go."""
        partitions = draft.group.partitions
        for name in self._names:
            info = topics.topic(name)
            answer = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
            self._response.responses.append(answer)
            if info is None:
                _refuse(answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif info.topic_id not in share_partitions.topic_ids(partitions):
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
        """Those that could be are forgotten, the others are still about to."""
        for each, error_code in sorted(failed.items()):
            _refuse(self._topics[each.topic_id], error_code)
        done = [topic_id for topic_id, answer in self._topics.items() if not answer.error_code]
        draft.put_partitions(share_partitions.deleted(draft.group.partitions, done))


class StateDeletion(Operation):
    """Have nothing left at the share coordinators of a group that is to be deleted."""

    def __init__(self, group_id: str, event: Request) -> None:
        super().__init__(group_id, event)
        assert isinstance(event.message, DeleteGroupsRequest)
        self.error_code = ErrorCode.NONE

    @property
    def response(self) -> None:
        """The group itself is deleted after this."""
        return None

    def begin(self, draft: ShareDraft, topics: Topics, timestamp: Millis) -> Deletion | None:
        """All of it is about to go."""
        partitions = draft.group.partitions
        topic_ids = share_partitions.topic_ids(partitions)
        if not topic_ids:
            return None
        doomed = share_partitions.to_delete(partitions, topic_ids, topics)
        draft.put_partitions(share_partitions.deleting(partitions, topic_ids))
        return Deletion(partitions=doomed)

    def end(self, draft: ShareDraft, failed: Failed) -> None:
        """It has gone, or what has not is still about to."""
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
