"""A node whose clients want more descriptors than it may have: it lives, serves those it has, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_wire import (
    answer,
    ask,
    connect,
    create_topic,
    is_closed,
    produce_request,
    read_all,
    serves,
)

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.server_process import ServerProcess
from tests.waiting import eventually

BOUND_SECONDS = 60.0
FILES = 256
CONNECTIONS = 600
PARTITIONS = 100
LOG_BYTES = 8_000
"""The most that all this may log; a line for each connection would be many times as much."""


class Node:
    """A server that the kernel lets have few files open."""

    def __init__(self, directory: Path, open_files: int | None, *settings: str) -> None:
        overrides = [
            f"log.dirs={directory / 'data'}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions=2",
            "log.cleaner.backoff.ms=50",
            "socket.listen.backlog.size=1000",  # all may come at once
            *settings,
        ]
        self.process = ServerProcess(
            [part for override in overrides for part in ("--override", override)],
            log=directory / "server.log",
            open_files=open_files,
            own_session=False,
        )
        ready = self.process.wait_ready(time.monotonic() + BOUND_SECONDS)
        found = re.search(r"PLAINTEXT://(\S+:\d+)", ready)
        assert found is not None, ready
        self.bootstrap = found[1]

    @property
    def log_text(self) -> str:
        return self.process.log_text

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        return self.process.end(number, BOUND_SECONDS)


@contextlib.contextmanager
def running(directory: Path, open_files: int | None = FILES, *settings: str) -> Iterator[Node]:
    node = Node(directory, open_files, *settings)
    try:
        yield node
    finally:
        node.end(signal.SIGKILL)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def commit(connection: socket.socket, group: str, offset: int) -> None:
    """Commit an offset, once the coordinator is there."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    ask(connection, ApiKey.FIND_COORDINATOR, 4, find)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name="many", partitions=[partition])]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)

    def is_committed() -> bool:
        answered = ask(connection, ApiKey.OFFSET_COMMIT, 8, request)
        return bool(answered.topics[0].partitions[0].error_code == ErrorCode.NONE)

    eventually(is_committed, "an offset is committed")


def committed(bootstrap: str, group: str) -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    found: list[Any] = []

    def is_told() -> bool:
        with connect(bootstrap) as connection:
            answered = ask(connection, ApiKey.OFFSET_FETCH, 8, request).groups[0]
        found[:] = answered.topics
        return bool(answered.error_code == ErrorCode.NONE)

    eventually(is_told, "the coordinator is loaded")
    return int(found[0].partitions[0].committed_offset)


def produced(
    connection: socket.socket, topic: str, partition: int, value: bytes, *, key: bytes | None, acks: int
) -> int:
    """The error with which a batch of one record is answered."""
    batch = encode_batch([(now_ms(), key, value, ())])
    request = produce_request(topic, batch, partition=partition, acks=acks)
    answered = ask(connection, ApiKey.PRODUCE, 9, request)
    return int(answered.responses[0].partition_responses[0].error_code)


def work(connection: socket.socket, *, rounds: int = 2) -> None:
    """Everything that takes descriptors: new partitions, records, syncs, rolled segments, offsets, and the cleaner."""
    create_topic(connection, "many", PARTITIONS)
    create_topic(connection, "synced", 10, kraftpy_flush_before_ack="true", internal_segment_bytes="400")
    create_topic(connection, "table", cleanup_policy="compact", internal_segment_bytes="400", file_delete_delay_ms="0")
    for number in range(rounds):
        for partition in range(PARTITIONS):
            acks = 1 if partition % 2 else -1
            assert produced(connection, "many", partition, b"%d" % number, key=None, acks=acks) == ErrorCode.NONE
        commit(connection, "group", number + 1)
    for number in range(10):
        for partition in range(10):
            value = b"%d" % number + b" " * 100
            assert produced(connection, "synced", partition, value, key=None, acks=-1) == ErrorCode.NONE
    for number in range(100):  # 12,000 bytes of one key
        assert produced(connection, "table", 0, b"%d" % number + b" " * 50, key=b"k", acks=-1) == ErrorCode.NONE


def check_whole(bootstrap: str, *, rounds: int = 2) -> None:
    """Everything that `work` had acknowledged is there."""
    for partition in range(PARTITIONS):
        assert [value for _, value in read_all(bootstrap, "many", partition=partition)] == [b"0", b"1"][:rounds]
    for partition in range(10):
        values = [value for _, value in read_all(bootstrap, "synced", partition=partition)]
        assert values == [b"%d" % number + b" " * 100 for number in range(10)]
    assert read_all(bootstrap, "table")[-1] == (99, b"99" + b" " * 50)
    assert committed(bootstrap, "group") == rounds


def stored(directory: Path, topic: str) -> int:
    """Bytes of the first partition's segments."""
    total = 0
    for file in (directory / "data" / f"{topic}-0").glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            total += file.stat().st_size
    return total


def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        with connect(node.bootstrap) as early, contextlib.ExitStack() as stack:
            serves(node.bootstrap)
            crowd = [stack.enter_context(connect(node.bootstrap)) for _ in range(CONNECTIONS)]
            assert is_closed(crowd[-1]), "one too many is closed, not kept waiting"
            most = node.descriptors
            assert most < FILES - 80, "the rest is for files"
            work(early)
            eventually(lambda: stored(tmp_path, "table") < 4_000, "the cleaner has a process, and has cleaned")
            assert "open files leaves" in node.log_text, node.log_text
        eventually(lambda: node.descriptors < most, "connections are closed")
        serves(node.bootstrap)
        check_whole(node.bootstrap)
        assert node.end() == 0
        assert len(node.log_text) < LOG_BYTES, node.log_text
        assert "system resource" not in node.log_text
    with running(tmp_path) as node:
        check_whole(node.bootstrap)
        assert node.end() == 0


@contextlib.contextmanager
def none_left(node: Node) -> Iterator[None]:
    """Keep the process from opening anything, even if it closes files: the limit is below all its descriptors."""
    limits = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, limits)


def test_no_descriptor_at_all_for_a_while(tmp_path: Path) -> None:
    """With a limit below all its descriptors, a node can open no file, start no process and accept no connection."""
    with running(tmp_path, None) as node, connect(node.bootstrap) as early, connect(node.bootstrap) as other:
        create_topic(early, "many", PARTITIONS)
        create_topic(early, "synced", 2, kraftpy_flush_before_ack="true")
        commit(early, "group", 7)
        produced_before = [produced(early, "synced", each, b"before", key=None, acks=-1) for each in (0, 1)]
        assert produced_before == [ErrorCode.NONE] * 2
        with none_left(node):
            # One whose sync needs a handle of its own, a partition that has no file yet, and new partitions.
            batch = encode_batch([(now_ms(), None, b"waits", ())])
            waiting = encode_request(ApiKey.PRODUCE, 9, 7, "test", produce_request("synced", batch, acks=-1))
            early.sendall(waiting)
            eventually(lambda: "cannot sync the log for now" in node.log_text, "a sync was tried")
            assert produced(other, "many", 50, b"refused", key=None, acks=-1) == ErrorCode.KAFKA_STORAGE_ERROR
            made = CreateTopicsRequest(
                topics=[
                    CreatableTopic(name="later", num_partitions=20, replication_factor=1, assignments=[], configs=[])
                ],
                timeout_ms=60_000,
            )
            other.sendall(encode_request(ApiKey.CREATE_TOPICS, 7, 7, "test", made))
            late = [connect(node.bootstrap) for _ in range(20)]
            eventually(lambda: "accept() out of system resource" in node.log_text, "a connection was tried")
            eventually(lambda: f"cannot sync {tmp_path / 'data'} for now" in node.log_text, "partitions were tried")
        answered = answer(early, ApiKey.PRODUCE, 9)
        assert answered.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert answer(other, ApiKey.CREATE_TOPICS, 7).topics[0].error_code == ErrorCode.NONE
        for connection in late:
            connection.close()
        serves(node.bootstrap)
        assert produced(early, "many", 50, b"taken", key=None, acks=-1) == ErrorCode.NONE
        for partition in range(20):
            eventually(
                lambda partition=partition: (
                    produced(early, "later", partition, b"new", key=None, acks=-1) == ErrorCode.NONE
                ),  # type: ignore[misc]
                "new partitions are there",
            )
        commit(early, "group", 8)
        assert "Traceback" not in node.log_text, node.log_text
        assert "this node stops" not in node.log_text
        assert len(node.log_text) < LOG_BYTES, node.log_text
        assert node.end() == 0
    with running(tmp_path, None) as node:
        assert [value for _, value in read_all(node.bootstrap, "synced")] == [b"before", b"waits"]
        assert [value for _, value in read_all(node.bootstrap, "many", partition=50)] == [b"taken"]
        assert [value for _, value in read_all(node.bootstrap, "later", partition=19)] == [b"new"]
        assert committed(node.bootstrap, "group") == 8


@pytest.mark.parametrize("first", ["create", "delete", "commit"])
def test_a_stop_when_there_were_none(tmp_path: Path, first: str) -> None:
    """A node that can open nothing gets a request, and a stop right after it."""
    with running(tmp_path, None) as node, connect(node.bootstrap) as early:
        create_topic(early, "many", 10)
        commit(early, "group", 1)
        assert produced(early, "many", 0, b"kept", key=None, acks=-1) == ErrorCode.NONE
        with none_left(node):
            if first == "create":
                topic = CreatableTopic(name="t", num_partitions=5, replication_factor=1, assignments=[], configs=[])
                request: Any = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
                early.sendall(encode_request(ApiKey.CREATE_TOPICS, 7, 7, "test", request))
                eventually(lambda: f"cannot sync {tmp_path / 'data'} for now" in node.log_text, "it was tried")
            elif first == "delete":
                delete = DeleteTopicsRequest(topic_names=["many"], timeout_ms=5000)
                assert ask(early, ApiKey.DELETE_TOPICS, 5, delete).responses[0].error_code == ErrorCode.NONE
            else:
                commit(early, "group", 2)
        assert node.end() == 0, node.log_text
    with running(tmp_path, None) as node:
        if first == "delete":
            eventually(lambda: not list((tmp_path / "data").glob("many-*")), "its files are gone")
        else:
            assert [value for _, value in read_all(node.bootstrap, "many")] == [b"kept"]
            assert committed(node.bootstrap, "group") == (2 if first == "commit" else 1)
