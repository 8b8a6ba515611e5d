"""Logs in JSON, lines for slow requests and for stalls of the event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from broker_wire import BOUND_SECONDS, StartBroker, ask, connect, create_topic

from kraftpy.broker import stalls
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.log_lines import JsonFormatter, log_handler
from kraftpy.broker.quotas.clients import ClientQuotaManager
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.slicing import UNITS_PER_ITERATION, Slices
from kraftpy.broker.slow_requests import SlowRequests, _place
from kraftpy.broker.stalls import StallWatch, watched
from kraftpy.config import load
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.quotas.limits import Limits
from kraftpy.security.principal import Principal


def _record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    found: Any = None
    if error:
        try:
            raise ValueError("broken\n{}")
        except ValueError:
            found = sys.exc_info()
    record = logging.LogRecord("kraftpy.a", logging.WARNING, "f.py", 1, message, arguments, found)
    record.created = 1_700_000_000.0125
    return record


def test_a_record_is_one_object_on_one_line() -> None:
    line = JsonFormatter(7).format(_record('%s "quoted"\n\x1b[2J', "é\u2028"))
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.012Z",
        "level": "WARNING",
        "logger": "kraftpy.a",
        "node": 7,
        "message": 'é\u2028 "quoted"\n\x1b[2J',
    }


def test_a_traceback_is_a_field() -> None:
    line = JsonFormatter(7).format(_record("failed", error=True))
    assert "\n" not in line
    exception = json.loads(line)["exception"]
    assert exception.startswith("Traceback")
    assert exception.endswith("ValueError: broken\n{}")


def test_long_and_wrong_messages_are_shown_all_the_same() -> None:
    assert len(JsonFormatter(7).format(_record("x" * 100_000))) < 3_000
    assert json.loads(JsonFormatter(7).format(_record("%d", "no number")))["message"] == "%d"


def test_the_handler_limits_lines_in_json_too() -> None:
    assert isinstance(log_handler("json", 1).formatter, JsonFormatter)
    assert len(log_handler("json", 1).filters) == 1


def test_all_that_a_node_says_is_json(tmp_path: Path) -> None:
    def lines(*overrides: str) -> tuple[int, list[dict[str, Any]]]:
        words = [each for override in overrides for each in ("--override", override)]
        command = [sys.executable, "-m", "kraftpy", "server", "--override", "kraftpy.log.format=json", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
        return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]

    status, found = lines(f"log.dirs={tmp_path}/a", "listeners=PLAINTEXT://256.0.0.1:0", "num.io.threads=3")
    assert status == 2
    assert [each["level"] for each in found] == ["WARNING", "INFO", "CRITICAL"], found
    assert found[-1]["message"].startswith("listeners: ")
    assert {each["node"] for each in found} == {1}


def test_errors_of_a_running_node_are_json(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"kraftpy.log.format": "json"})
    with connect(broker.bootstrap) as connection:
        connection.sendall(b"\xff" * 8)
        assert connection.recv(1) == b""
    broker.stop()
    found = [json.loads(line) for line in broker.log_text.splitlines()]
    assert [each for each in found if each["logger"] == "kraftpy.broker.connection" and "closed" in each["message"]]


# Slow requests


class _Peer:
    client_host = "/10.0.0.7"
    principal = Principal("User", "anna")


def _frame(key: ApiKey, version: int, request: Any) -> bytearray:
    return bytearray(encode_request(key, version, 1, "app", request)[4:])


METADATA = _frame(ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name="a")] * 3))


async def _inner(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "answer"


async def _handled(seconds: float) -> str:
    return await _inner(seconds)


async def test_a_slow_request_is_logged_with_where_its_time_went(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests(50, Complaints())
    peer: Any = _Peer()
    assert await slow.watched(_handled(0.0), METADATA, peer) == "answer"
    assert caplog.text == ""
    for _ in range(3):
        assert await slow.watched(_handled(0.06), METADATA, peer) == "answer"
    (record,) = caplog.records  # one line per API and host in a minute
    message = record.getMessage()
    assert message.startswith("slow request: METADATA 12 of User:anna, client app at /10.0.0.7, 3 topics: "), message
    assert message.endswith(" ms in a wait")  # the functions of this test are not of the package


async def test_waits_are_seen_through_the_meter_of_a_quota(caplog: pytest.LogCaptureFixture) -> None:
    async def sliced() -> None:
        slices = Slices()
        await slices.apart(time.sleep, 0.06)

    peer: Any = _Peer()
    config = load("", {}, ["log.dirs=/nowhere"]).config
    meter = ClientQuotaManager(config, SystemClock(), Limits).meter()
    await SlowRequests(30, Complaints()).watched(meter.run(sliced()), METADATA, peer)
    assert caplog.text.rstrip().endswith("ms in Meter.run > Slices.apart")


async def test_a_wait_is_ascribed_to_what_is_awaited_now() -> None:
    """A compiled coroutine refers to all that it has awaited; its loop awaits the first of them again."""
    slices, complaints = Slices(), Complaints()
    slices._spend(UNITS_PER_ITERATION)
    async with asyncio.TaskGroup() as group:
        work = Tasks(group, Incidents(complaints))._again_and_again(lambda: slices.breathe(1), "work")
        places = []
        for _ in range(3):
            work.send(None).set_exception(ValueError("it failed"))
            places.append(_place(work))
            work.send(None).set_result(None)
            places.append(_place(work))
        work.close()
    assert places == ["Tasks._again_and_again > Slices.breathe", "Tasks._again_and_again"] * 3


async def test_errors_and_cancellations_pass_through(caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests(0, Complaints())
    peer: Any = _Peer()

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("it failed")

    async def watching(work: Any) -> Any:
        return await slow.watched(work, METADATA, peer)

    with pytest.raises(ValueError, match="it failed"):
        await watching(failing())
    task = asyncio.ensure_future(watching(_inner(1_000.0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(caplog.records) == 1


async def test_without_the_setting_nothing_is_measured() -> None:
    work = _inner(0.0)
    peer: Any = _Peer()
    assert SlowRequests(-1, Complaints()).watched(work, METADATA, peer) is work
    await work


@pytest.mark.parametrize(
    ("frame", "is_logged"),
    [
        (_frame(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=5_000, min_bytes=1, topics=[])), False),
        (_frame(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=10, min_bytes=1, topics=[])), True),
        (
            _frame(
                ApiKey.JOIN_GROUP,
                5,
                JoinGroupRequest(
                    group_id="g",
                    session_timeout_ms=10_000,
                    member_id="",
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="r", metadata=b"")],
                ),
            ),
            False,
        ),
        (bytearray(b"\0"), False),
    ],
)
async def test_waits_that_were_asked_for_do_not_count(
    frame: bytearray, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    peer: Any = _Peer()
    await SlowRequests(30, Complaints()).watched(_inner(0.06), frame, peer)
    assert bool(caplog.records) is is_logged


def test_a_node_logs_its_slow_requests(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"kraftpy.slow.request.ms": "0"})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "t")
        ask(
            connection,
            ApiKey.FETCH,
            12,
            FetchRequest(
                max_wait_ms=1,
                min_bytes=1,
                topics=[
                    FetchTopic(
                        topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=9)]
                    )
                ],
            ),
        )
    broker.stop()
    lines = [line for line in broker.log_text.splitlines() if "slow request: " in line]
    (created,) = [line for line in lines if "CREATE_TOPICS" in line]
    assert "of User:ANONYMOUS, client test at /127.0.0.1, 1 topics: " in created
    assert " ms in create_topics > " in created or " ms in _answer > create_topics" in created, created


# Stalls


def _stalled(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def _until_logged(caplog: pytest.LogCaptureFixture, text: str) -> str:
    async with asyncio.timeout(BOUND_SECONDS):
        while text not in caplog.text:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
    return caplog.text


async def test_a_stall_is_logged_with_what_ran(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):  # another process may have had the processor, which is no stall
        caplog.clear()
        with watched(0.05):
            await asyncio.sleep(0.02)
            _stalled(0.5)
            await asyncio.sleep(0.1)
        if "is stalled" in caplog.text:
            break
    assert "the event loop is stalled for" in caplog.text
    assert "_stalled (broker/test_logs_for_programs.py:" in caplog.text
    assert " < test_a_stall_is_logged_with_what_ran (" in caplog.text
    assert "the event loop has stalled for" in caplog.text


async def test_a_blocked_loop_is_a_stall_too(caplog: pytest.LogCaptureFixture) -> None:
    with watched(0.05):
        await asyncio.sleep(0.02)
        threading.Event().wait(0.5)
        await _until_logged(caplog, "the event loop has stalled for")
    assert "Event.wait" in caplog.text


async def test_a_loop_that_waits_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    with watched(0.3):
        await asyncio.sleep(0.5)
    assert caplog.text == ""


async def test_stalls_of_one_place_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = StallWatch(0.05)
    assert watch._may_log("a", 0.0)
    assert not watch._may_log("a", 59.0)
    assert watch._may_log("a", 61.0)
    assert [watch._may_log(str(number), 62.0) for number in range(20)].count(True) == stalls.LINES_PER_MINUTE - 1


async def test_nothing_is_watched_without_the_setting() -> None:
    before = threading.active_count()
    with watched(0):
        assert threading.active_count() == before
