"""Truncation checks after each change of leader: does a partition's log still have the records read from it?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.client.consumer.fetcher import Fetcher
from kraftpy.client.consumer.metrics import ConsumerMetrics
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.client.options import ConsumerOptions
from kraftpy.types import TopicPartition

NAME = TopicPartition("t", 0)


class _Leader:
    """Answers that the epoch asked about ends at 95; records are handed out while it is asked."""

    def __init__(self, reader: PartitionReader, moves_to: tuple[int, int] | None) -> None:
        self._reader = reader
        self._moves_to = moves_to
        self.asked: list[int] = []

    async def request(self, key: object, request: Any) -> Any:
        self.asked.append(request.topics[0].partitions[0].leader_epoch)
        if self._moves_to is not None:
            self._reader.position, self._reader.leader_epoch = self._moves_to
        part = SimpleNamespace(partition=0, error_code=0, leader_epoch=0, end_offset=95)
        return SimpleNamespace(topics=[SimpleNamespace(topic="t", partitions=[part])])


async def _checked(position: int, moves_to: tuple[int, int] | None) -> PartitionReader:
    async def connect(node_id: int) -> _Leader:
        return leader

    metadata = SimpleNamespace(partition=lambda name: SimpleNamespace(leader_epoch=3))
    cluster: Any = SimpleNamespace(metadata=metadata, connect=connect, want=lambda topics: None)
    options = ConsumerOptions()
    fetcher = Fetcher(cluster, options, None, lambda: None, ConsumerMetrics("test", tuple))
    fetcher.add([NAME])
    reader = fetcher.readers[NAME]
    reader.seek(position, 0)
    leader = _Leader(reader, moves_to)
    await fetcher._check_at(1, [reader])
    assert leader.asked == [0]
    return reader


async def test_what_is_there_is_read_on() -> None:
    reader = await _checked(95, None)
    assert (reader.position, reader.checked_epoch) == (95, 3)


async def test_what_is_gone_is_gone_back_behind(caplog: pytest.LogCaptureFixture) -> None:
    reader = await _checked(96, None)
    assert reader.position == 95
    assert "was truncated" in caplog.text


async def test_records_of_later_epochs_that_were_handed_out_meanwhile_are_no_truncation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = await _checked(90, (317, 2))
    assert (reader.position, reader.leader_epoch) == (317, 2)
    assert reader.checked_epoch < 3, "it is asked again, of where it stands now"
    assert "was truncated" not in caplog.text


class _Cluster:
    """Metadata that name the broker with the epoch's number as the leader; brokers can be connected to at once."""

    def __init__(self) -> None:
        self.epoch = 4
        self.refreshes = 0
        self.connected_to: list[int] = []
        self.topics = {"t": SimpleNamespace(topic_id=bytes(16))}
        self.metadata = self
        self.nodes: dict[int, object] = {}
        self.tasks = SimpleNamespace(spawn=lambda coroutine, name: coroutine.close())
        self.runtime = SimpleNamespace(monotonic_ms=lambda: 1000.0)

    def want(self, topics: object) -> None:
        """Metadata have it."""

    def partition(self, name: TopicPartition) -> Any:
        return SimpleNamespace(leader=self.epoch, leader_epoch=self.epoch)

    def request_refresh(self) -> None:
        self.refreshes += 1

    def connected(self, node_id: int) -> None:
        self.connected_to.append(node_id)


def _reading(place: int, epoch: int) -> tuple[Fetcher, _Cluster, PartitionReader]:
    cluster: Any = _Cluster()
    options = ConsumerOptions(fetch_max_bytes=1000, max_partition_fetch_bytes=1000)
    fetcher = Fetcher(cluster, options, None, lambda: None, ConsumerMetrics("test", tuple))
    fetcher.add([NAME])
    reader = fetcher.readers[NAME]
    reader.seek(place, epoch)
    return fetcher, cluster, reader


async def test_a_leader_of_an_epoch_before_the_committed_offset_is_not_asked() -> None:
    """It does not know yet that it leads no more, and would say that there is no such offset: all is read again."""
    fetcher, cluster, reader = _reading(106, 5)
    fetcher._fetch_ready()
    assert (cluster.connected_to, cluster.refreshes) == ([], 1)
    cluster.epoch, reader.retry_at_ms = 5, 0.0
    fetcher._fetch_ready()
    assert cluster.connected_to == [5]


async def test_a_topic_made_anew_while_it_is_read_is_read_on() -> None:
    fetcher, cluster, _ = _reading(106, 4)
    fetcher._fetch_ready()
    cluster.epoch = 0
    fetcher._fetch_ready()
    assert cluster.connected_to == [4, 0]
    assert cluster.refreshes == 0
