"""A long poll at the leader ends for a partition that is new, on the connection that there is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lone_replicas import follow, lone_fetchers, lone_replica
from replicating import running, until

from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.replication.fetchers import _Fetcher
from kraftpy.broker.runtime import SystemClock
from kraftpy.client.connection import Connection
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.fetch import FetchRequest, FetchResponse
from kraftpy.protocol.messages.list_offsets import ListOffsetsResponse
from kraftpy.replication.fetch_plan import PartitionKey
from kraftpy.types import BrokerId, TopicId


class _Leader:
    """A leader that never has any records: every Fetch waits until another request arrives, as `replica_fetch` does."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[FetchRequest] = asyncio.Queue()
        self.sent: list[ApiKey] = []
        self.is_closed = False
        self._poll: asyncio.Future[Any]

    def version(self, *_: object, **__: object) -> int:
        return 17

    def send(self, key: ApiKey, request: Any, version: int) -> asyncio.Future[Any]:
        self.sent.append(key)
        answer = asyncio.get_running_loop().create_future()
        if key is ApiKey.FETCH:
            self._poll = answer
            self.begun.put_nowait(request)
        else:
            self._poll.set_result(FetchResponse(session_id=7, responses=[]))
            answer.set_result(ListOffsetsResponse())
        return answer

    def close(self) -> None:
        self.is_closed = True


def _named(request: FetchRequest) -> list[int]:
    return [partition.partition for topic in request.topics for partition in topic.partitions]


async def test_a_new_partition_is_in_the_next_request_on_the_same_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = _Leader()
    connected: list[str] = []

    async def connect(*address: Any, client_id: str, **options: Any) -> Any:
        connected.append(client_id)
        return leader

    monkeypatch.setattr(Connection, "open", connect)
    topic_id = TopicId(b"1" * 16)
    incidents = Incidents(Complaints())
    async with asyncio.TaskGroup() as group:
        owner = lone_fetchers(Tasks(group, incidents), SystemClock())
        fetcher = _Fetcher(owner, (BrokerId(2), "", 0))

        def add(key: PartitionKey) -> None:
            fetcher.add(key, follow(lone_replica("t", key.partition, topic_id=key.topic_id)))

        add(PartitionKey(topic_id, 0))
        running = asyncio.create_task(fetcher._run())
        assert _named(await asyncio.wait_for(leader.begun.get(), 10)) == [0]
        for number in (10, 20, 30):
            for new in (number, number + 1):  # one request ends the poll for both
                add(PartitionKey(topic_id, new))
            passing = PartitionKey(TopicId(b"2" * 16), number)
            add(passing)
            fetcher.forget(passing)
            assert _named(await asyncio.wait_for(leader.begun.get(), 10)) == [number, number + 1]
        assert leader.sent == [ApiKey.FETCH, *[ApiKey.LIST_OFFSETS, ApiKey.FETCH] * 3]
        assert connected == ["broker-1-fetcher"]
        assert not leader.is_closed
        running.cancel()
    assert incidents.count == 0
    assert "cannot fetch" not in caplog.text


async def test_acks_of_all_for_a_new_topic_wait_for_no_long_poll_and_no_new_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower's polls last for an hour here, so that only the second request can end one."""
    opened: list[str] = []
    known = Connection.open

    async def noted(*arguments: Any, **options: Any) -> Connection:
        opened.append(options["client_id"])
        return await known(*arguments, **options)

    monkeypatch.setattr(Connection, "open", noted)
    async with running(
        tmp_path,
        1,
        2,
        replica_fetch_wait_max_ms="3600000",
        replica_socket_timeout_ms="3700000",
        replica_lag_time_max_ms="3700000",
    ) as cluster:
        await cluster.create("first", (1, 2))
        assert (await cluster.nodes[1].produce("first", b"one")).error_code == 0
        for number in range(5):
            topic = f"new-{number}"
            await cluster.create(topic, (1, 2))
            assert (await cluster.nodes[1].produce(topic, b"one")).error_code == 0
        await until(lambda: cluster.replica(2, "new-4").log_end_offset == 1)
        assert opened.count("broker-2-fetcher") == 1
