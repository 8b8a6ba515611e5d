"""A member of a share group, byte by byte: for tests of ShareFetch and ShareAcknowledge over the wire."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Container
from pathlib import Path
from typing import Any, ClassVar

from broker_wire import BOUND_SECONDS, ask, connect, say_to_be_a_broker

from kraftpy.broker.share.state_requests import coordinator_key
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import initialize_share_group_state as initialize
from kraftpy.protocol.messages import share_acknowledge as acknowledging
from kraftpy.protocol.messages import share_fetch as fetching
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.protocol.record_batch import iter_records, split_batches
from kraftpy.share.records import ShareKey
from kraftpy.types import TopicId

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
_GROUP = 32
_numbers = itertools.count(1)

Batches = list[tuple[int, int, list[int]]]
"""First offset, last offset, types."""


def begin(
    connection: socket.socket,
    group: str,
    topic_id: bytes,
    partition: int = 0,
    *,
    data: Path,
    is_alone: bool = True,
    start: int = 0,
    state_epoch: int = 1,
) -> None:
    """Initialize share state, as the group coordinator does for a group's first member; as the broker with `data`."""
    key = coordinator_key(ShareKey(group, TopicId(topic_id), partition))
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    part = initialize.PartitionData(partition=partition, state_epoch=state_epoch, start_offset=start)
    topic = initialize.InitializeStateData(topic_id=topic_id, partitions=[part])
    request = initialize.InitializeShareGroupStateRequest(group_id=group, topics=[topic])
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        found = ask(connection, ApiKey.FIND_COORDINATOR, 6, find).coordinators[0]
        code = found.error_code
        if code == ErrorCode.NONE:
            with connect(f"{found.host}:{found.port}") as coordinator:
                say_to_be_a_broker(coordinator, data, to=found.node_id, is_alone=is_alone)
                answered = ask(coordinator, ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, request)
            code = answered.results[0].partitions[0].error_code
            if code == ErrorCode.NONE:
                return
        assert time.monotonic() < deadline, ErrorCode.of(code)
        time.sleep(0.05)


def set_group(connection: socket.socket, group: str, **settings: str) -> None:
    """Give a group settings of its own (with underscores for dots)."""
    configs = [
        AlterableConfig(name=name.replace("_", "."), value=value, config_operation=0)
        for name, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=_GROUP, resource_name=group, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answered = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answered.responses[0].error_code == ErrorCode.NONE, answered


class Member:
    """One member with a share session on one broker."""

    there: ClassVar[list[Member]] = []
    """All sessions that were opened, to be closed in the end."""

    def __init__(self, bootstrap: str, group: str, topic_id: bytes, *partitions: int) -> None:
        self.group = group
        self.member_id = f"member-{next(_numbers)}"
        self.topic_id = topic_id
        self.partitions = partitions or (0,)
        self.epoch = 0
        self.connection = connect(bootstrap)
        self.there.append(self)

    def fetch(
        self, *, partition: int = 0, wait_ms: int = 0, acknowledge: Batches | None = None, version: int = 2, **more: Any
    ) -> Any:
        """The answer of a fetch for one partition; None if the answer does not mention it."""
        response = self.fetch_all(
            partition=partition, wait_ms=wait_ms, acknowledge=acknowledge, version=version, **more
        )
        assert response.error_code == ErrorCode.NONE, response
        parts = [part for topic in response.responses for part in topic.partitions]
        return next((part for part in parts if part.partition_index == partition), None)

    def fetch_all(
        self, *, partition: int = 0, wait_ms: int = 0, acknowledge: Batches | None = None, version: int = 2, **more: Any
    ) -> Any:
        """The whole answer of a fetch."""
        named = self.partitions if self.epoch == 0 else (partition,) if acknowledge else ()
        topics = [
            fetching.FetchTopic(
                topic_id=self.topic_id,
                partitions=[
                    fetching.FetchPartition(
                        partition_index=index,
                        acknowledgement_batches=batches(acknowledge or []) if index == partition else [],
                    )
                    for index in named
                ],
            )
        ]
        values: dict[str, Any] = {"max_bytes": 1 << 20, "max_records": 500, "batch_size": 500, "min_bytes": 1}
        request = fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=wait_ms,
            topics=topics if named else [],
            **{**values, **more},
        )
        response = ask(self.connection, ApiKey.SHARE_FETCH, version, request)
        if response.error_code == ErrorCode.NONE:
            self.epoch += 1
        return response

    def take(self, count: int, *, partition: int = 0, also: Container[int] = (), **more: Any) -> list[tuple[int, int]]:
        """Fetch until that many records are acquired: their offsets and how often each was delivered.

        An error of `also` is asked about again, as a client does.
        """
        taken: list[tuple[int, int]] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while len(taken) < count:
            assert time.monotonic() < deadline, taken
            part = self.fetch(partition=partition, wait_ms=500, **more)
            if part is None:
                continue
            known = part.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert known or part.error_code in also, part
            taken += acquired(part)
        return taken

    def acknowledge(self, said: Batches, *, partition: int = 0, version: int = 2, **more: Any) -> ErrorCode:
        """The outcome of an acknowledgement."""
        topic = acknowledging.AcknowledgeTopic(
            topic_id=self.topic_id,
            partitions=[
                acknowledging.AcknowledgePartition(partition_index=partition, acknowledgement_batches=batches(said))
            ],
        )
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.member_id, share_session_epoch=self.epoch, topics=[topic], **more
        )
        response = ask(self.connection, ApiKey.SHARE_ACKNOWLEDGE, version, request)
        if response.error_code != ErrorCode.NONE:
            return ErrorCode.of(response.error_code)
        self.epoch += 1
        return ErrorCode.of(response.responses[0].partitions[0].error_code)

    def close(self) -> None:
        """End the session as a member does that goes."""
        self.epoch = -1
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.member_id, share_session_epoch=-1, topics=[]
        )
        response = ask(self.connection, ApiKey.SHARE_ACKNOWLEDGE, 1, request)
        assert response.error_code == ErrorCode.NONE, response
        self.connection.close()

    def vanish(self) -> None:
        """Be gone without a word."""
        self.connection.close()


def batches(said: Batches) -> list[fetching.AcknowledgementBatch]:
    return [
        fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in said
    ]


def acquired(part: Any) -> list[tuple[int, int]]:
    """The offsets that were acquired, each with its delivery count; each has its record beside it."""
    there = {record.offset for _, batch in split_batches(part.records) for record in iter_records(batch)}
    found = [
        (offset, each.delivery_count)
        for each in part.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    ]
    assert {offset for offset, _ in found} <= there
    return found
