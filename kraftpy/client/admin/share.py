"""The admin client's calls about share groups (KIP-932): the start offset of each partition.

A share group commits no offsets. Instead it has a start offset in each partition, and is done with everything before
it. A lag of None is unknown: the partition's leader has not reported yet what it handed out (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.client.admin.base import MISSING, AdminBase
from kraftpy.client.admin.messages import check, read_share_group
from kraftpy.client.admin.model import GroupDescription, ShareGroupOffset
from kraftpy.client.offsets import by_topic
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    describe_share_group_offsets,
    share_group_describe,
)
from kraftpy.types import TopicPartition


class ShareAdmin(AdminBase):
    """Admin calls that concern share groups only."""

    async def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ShareGroupOffset]:
        """Return a share group's start offsets: by default of all partitions it has ever read.

        A missing group has none.

        A partition whose start offset is not known yet is listed with None.
        """
        topics = None
        if partitions is not None:
            topics = [
                describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)
        request = describe_share_group_offsets.DescribeShareGroupOffsetsRequest(groups=[asked])

        async def attempt() -> dict[TopicPartition, ShareGroupOffset]:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, request)
            (group,) = answer.groups
            check(group.error_code, f"share group {group_id!r}", group.error_message)
            found = {}
            for topic in group.topics:
                for part in topic.partitions:
                    name = TopicPartition(topic.topic_name, part.partition_index)
                    check(part.error_code, f"start offset of {name}", part.error_message)
                    found[name] = ShareGroupOffset(
                        start_offset=None if part.start_offset < 0 else part.start_offset,
                        leader_epoch=part.leader_epoch,
                        lag=None if part.lag < 0 else part.lag,
                    )
            return found

        return await self._cluster.retry(attempt, group_id=group_id)

    async def alter_share_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a share group that has no members. Creates the group if it does not exist."""
        request = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[
                alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic,
                    partitions=[
                        alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(
                            partition_index=index, start_offset=offsets[TopicPartition(topic, index)]
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(offsets).items()
            ],
        )

        async def attempt() -> None:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.ALTER_SHARE_GROUP_OFFSETS, request)
            check(answer.error_code, f"start offsets of {group_id!r} not altered", answer.error_message)
            for topic in answer.responses:
                for part in topic.partitions:
                    what = f"start offset of {topic.topic_name}-{part.partition_index} not altered"
                    check(part.error_code, what, part.error_message)

        await self._retry_what_is_there(attempt, group_id, offsets)

    async def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Delete the start offsets of a share group without members; it then starts wherever its settings say."""
        request = delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[
                delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
                for topic in sorted(set(topics))
            ],
        )

        async def attempt() -> None:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.DELETE_SHARE_GROUP_OFFSETS, request)
            check(answer.error_code, f"start offsets of {group_id!r} not deleted", answer.error_message)
            for topic in answer.responses:
                check(topic.error_code, f"start offsets of {topic.topic_name} not deleted", topic.error_message)

        await self._cluster.retry(attempt, group_id=group_id, final=MISSING)

    async def _describe_share_group(self, group_id: str) -> GroupDescription | None:
        """Describe the group if the broker supports share groups and it is one, else return None."""
        request = share_group_describe.ShareGroupDescribeRequest(group_ids=[group_id])
        try:
            answer = await self._cluster.ask_coordinator(group_id, ApiKey.SHARE_GROUP_DESCRIBE, request)
        except KafkaError as failed:
            if failed.code is ErrorCode.UNSUPPORTED_VERSION:
                return None
            raise
        (group,) = answer.groups
        if ErrorCode.of(group.error_code) is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        check(group.error_code, f"group {group_id!r}", group.error_message)
        return read_share_group(group, await self._cluster.coordinator(group_id))
