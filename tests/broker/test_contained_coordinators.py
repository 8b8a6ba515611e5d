"""Unexpected errors around coordinators cost a request, or one partition for a moment; expressions cost little."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from kraftpy.broker import apis
from kraftpy.broker import coordinator_shards as shards
from kraftpy.broker.broker import Broker
from kraftpy.broker.handlers.transactions import list_transactions
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.request import RequestContext
from kraftpy.broker.runtime import SystemClock
from kraftpy.config import load
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.consumer.records import RegexKey, RegexValue, consumer_record
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.patterns import Pattern
from kraftpy.log.results import Origin
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.list_transactions import ListTransactionsRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.transactions import decisions
from kraftpy.transactions.events import InitProducerId

BOUND_SECONDS = 30.0
NESTED = "(((((){1000}){1000}){1000}){1000})"
NINES = "a{" + "9" * 5_000 + "}"


@pytest.fixture(params=["false", "true"], ids=["default", "flush.before.ack"])
def broker_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    @asynccontextmanager
    async def started() -> AsyncIterator[Broker]:
        given = [
            f"log.dirs={tmp_path}",
            "listeners=PLAINTEXT://127.0.0.1:0",
            f"kraftpy.flush.before.ack={request.param}",
        ]
        given += [f"{name}.replication.factor=1" for name in ("offsets.topic", "transaction.state.log")]
        given += ["offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1"]
        given += ["transaction.state.log.min.isr=1", "group.consumer.assignment.interval.ms=0"]
        config = load("", {}, given).config
        clock = SystemClock()
        async with asyncio.TaskGroup() as tasks:
            broker = Broker(config, clock, tasks)
            await broker.start()
            names = ["t", CONSUMER_OFFSETS, TRANSACTION_STATE]
            assert await auto_create_topics(names, broker.metadata, config, clock) == {}
            try:
                yield broker
            finally:
                assert await broker.stop()

    return started


def context(api_key: ApiKey = ApiKey.CONSUMER_GROUP_HEARTBEAT) -> RequestContext:
    return RequestContext(
        api_key=api_key, api_version=1, client_id="c", client_host="/127.0.0.1", listener="PLAINTEXT", connection=None
    )


async def beat(broker: Broker, member_id: str, *, group_id: str = "g", epoch: int = 0, regex: str | None = None) -> Any:
    message = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=1_000 if epoch == 0 else -1,
        subscribed_topic_names=["t"] if epoch == 0 else None,
        subscribed_topic_regex=regex,
        topic_partitions=[] if epoch == 0 else None,
    )
    async with asyncio.timeout(BOUND_SECONDS):
        return await broker.coordinators.ask(message, context())


async def commit(broker: Broker, group_id: str = "h") -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    message = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    async with asyncio.timeout(BOUND_SECONDS):
        answer: Any = await broker.coordinators.ask(message, context(ApiKey.OFFSET_COMMIT))
    return ErrorCode.of(answer.topics[0].partitions[0].error_code)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not is_so():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


def failing_once(error: Exception, original: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    errors: Iterator[Exception] = iter([error])

    def function(*arguments: Any, **named: Any) -> Any:
        planted = next(errors, None)
        if planted is not None and not after:
            raise planted
        result = original(*arguments, **named)
        if planted is not None:
            raise planted
        return result

    return function


# --- expressions (rows 2 and 6) -------------------------------------------------------------------


async def test_an_expression_that_is_too_large_is_refused_and_costs_nobody_anything(broker_of: Any) -> None:
    async with broker_of() as broker:
        assert (await beat(broker, "other")).error_code == ErrorCode.NONE
        refused = await beat(broker, "hostile", regex=NESTED)
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert len(refused.error_message) < 500
        request = ListTransactionsRequest(transactional_id_pattern=NESTED)
        async with asyncio.timeout(BOUND_SECONDS):
            listed = await list_transactions(broker, request, context(ApiKey.LIST_TRANSACTIONS))
        assert listed.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert (await beat(broker, "other", epoch=2)).error_code == ErrorCode.NONE
        assert broker.incidents.count == 0


async def test_a_repetition_of_5000_digits_leaves_the_group_to_the_others(broker_of: Any) -> None:
    async with broker_of() as broker:
        assert (await beat(broker, "other")).error_code == ErrorCode.NONE
        assert (await beat(broker, "hostile", regex=NINES)).error_code == ErrorCode.NONE
        assert (await beat(broker, "third")).error_code == ErrorCode.NONE
        assert broker.incidents.count == 0


async def test_many_names_are_matched_while_others_are_served(broker_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to ListTransactions is made in slices: the event loop comes around between two of them."""
    async with broker_of() as broker:
        machine = next(iter(broker.transactions._shards.values())).machine
        coordinator = broker.transactions
        names = [f"{number:05}" + "abcd" * 50 for number in range(300)]
        for name in names:
            command = InitProducerId(transactional_id=name, timeout_ms=1_000, producer_id=-1, producer_epoch=-1)
            assert (await coordinator.ask(command)).error_code is ErrorCode.NONE
        assert len(machine.transactions) == 300
        rounds = 0

        async def others() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        served = asyncio.create_task(others())
        request = ListTransactionsRequest(transactional_id_pattern="[0-9]{5}(?:a?b?c?d?){249}")
        listed = await list_transactions(broker, request, context(ApiKey.LIST_TRANSACTIONS))
        served.cancel()
        assert [each.transactional_id for each in listed.transaction_states] == names
        pattern = Pattern(request.transactional_id_pattern)
        slices = sum(pattern.units(name) for name in names) // 2_000
        assert rounds >= slices > 10


# --- errors in decisions --------------------------------------------------------------------------


async def test_an_error_in_a_decision_costs_its_request_and_the_group_goes_on(
    broker_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_of() as broker:
        assert (await beat(broker, "other")).error_code == ErrorCode.NONE
        error = RuntimeError("nobody expects it")
        monkeypatch.setattr(ConsumerProtocol, "_retarget", failing_once(error, ConsumerProtocol._retarget))
        assert (await beat(broker, "hostile")).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert broker.incidents.count == 1
        assert "nobody expects it" in broker.incidents.last[0].error
        assert (await beat(broker, "other", epoch=2)).error_code == ErrorCode.NONE
        assert (await beat(broker, "hostile")).error_code == ErrorCode.NONE
        assert (await beat(broker, "elsewhere", group_id="h")).error_code == ErrorCode.NONE
        assert "reloading" not in caplog.text
        assert "Traceback" not in caplog.text


async def test_of_requests_that_are_decided_together_only_one_fails(
    broker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of() as broker:
        take_in = ConsumerProtocol.take_in

        def failing(self: ConsumerProtocol, draft: Any, member_id: str, *arguments: Any) -> Any:
            result = take_in(self, draft, member_id, *arguments)
            if member_id == "hostile":
                raise RuntimeError("after it has put records on the draft")
            return result

        monkeypatch.setattr(ConsumerProtocol, "take_in", failing)
        members = ["a", "b", "hostile", "c", "d"]
        answers = await asyncio.gather(*(beat(broker, each) for each in members))
        codes = {member: ErrorCode.of(answer.error_code) for member, answer in zip(members, answers, strict=True)}
        assert codes == {**dict.fromkeys("abcd", ErrorCode.NONE), "hostile": ErrorCode.UNKNOWN_SERVER_ERROR}
        (shard,) = broker.coordinators._shards.values()
        assert set(shard.machine.groups["g"].kind.members) == set("abcd")
        shard.machine.validate()


async def test_an_error_that_leaves_the_machine_has_its_partition_loaded_again(
    broker_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_of() as broker:
        assert await commit(broker) is ErrorCode.NONE
        error = RuntimeError("in doubt")
        monkeypatch.setattr(GroupCoordinator, "_appended", failing_once(error, GroupCoordinator._appended))
        assert await commit(broker) in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_COORDINATOR)
        assert broker.incidents.count == 1
        await until(lambda: broker.coordinators.check_ready(0) is ErrorCode.NONE)
        assert await commit(broker) is ErrorCode.NONE
        (shard,) = broker.coordinators._shards.values()
        assert shard.machine.groups["h"].offsets
        lines = [record.getMessage() for record in caplog.records if record.name == shards.__name__]
        assert [line for line in lines if "reloading" in line] == [
            "__consumer_offsets-0: reloading in 0 s after an unexpected error"
        ]


async def test_a_partition_that_fails_again_and_again_is_loaded_after_pauses(
    broker_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_of() as broker:
        coordinators = broker.coordinators
        for number in range(10):
            await until(lambda: coordinators.check_ready(0) is ErrorCode.NONE)
            (shard,) = coordinators._shards.values()
            coordinators._fail(shard, "a test", RuntimeError("again"))
            assert await commit(broker) is ErrorCode.NOT_COORDINATOR
            if number:  # the first time it is loaded at once
                await until(lambda: not coordinators._shards)
                coordinators.follow_leadership(0)
                assert not coordinators._shards, "it is held back, whatever else happens to it"
                coordinators._held_back[0].cancel()
                coordinators._release(0)
        lines = [each.getMessage() for each in caplog.records if "reloading in" in each.getMessage()]
        pauses = [int(line.partition(" in ")[2].split()[0]) for line in lines]
        assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
        await until(lambda: coordinators.check_ready(0) is ErrorCode.NONE)
        assert await commit(broker) is ErrorCode.NONE


async def test_records_that_cannot_be_encoded_are_refused_and_nothing_waits(
    broker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of() as broker:
        coordinators = broker.coordinators
        monkeypatch.setattr(coordinators, "_encoded", failing_once(OverflowError("too large"), coordinators._encoded))
        assert await commit(broker) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await commit(broker) is ErrorCode.NONE
        assert broker.incidents.count == 1


async def test_an_append_whose_outcome_is_unknown_has_the_partition_loaded_again(broker_of: Any) -> None:
    async with broker_of() as broker:
        (shard,) = broker.coordinators._shards.values()
        reports = shard.replica.change_reports
        reports.sessions[cast("Any", object())] = None  # appends cannot be reported to it
        assert await commit(broker) in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_COORDINATOR)
        reports.sessions.clear()
        await until(lambda: broker.coordinators.check_ready(0) is ErrorCode.NONE)
        assert broker.incidents.count == 1
        (again,) = broker.coordinators._shards.values()
        assert again is not shard
        assert again.machine.groups["h"].offsets, "what was written is found"


# --- stored records -------------------------------------------------------------------------------


async def test_records_that_mean_nothing_are_passed_over_with_a_line(
    broker_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_of() as broker:
        assert await commit(broker) is ErrorCode.NONE
        (shard,) = broker.coordinators._shards.values()
        key, value = consumer_record(RegexKey("g", "("), RegexValue(topics=("t",), version=1, timestamp=1))
        junk = [(1, b"\x00\x01\x7f\xff", b"\xff" * 9, ()), (1, key, value, ()), (1, key[:3], value, ())]
        junk += [
            (1, key, b"\x00\x00\xff\xff\xff\xff\x0f", ()),
            (1, b"\x00\x02\xff\xff", b"\x00\x03" + b"\x7f" * 90, ()),
        ]
        now = broker.clock.now()
        shard.replica.append(encode_batch(junk * 100), Origin.COORDINATOR, now)
        replay, calls = GroupCoordinator.replay, iter(range(10_000))

        def failing(self: GroupCoordinator, *arguments: Any) -> None:
            if next(calls) == 40:
                raise RecursionError("nobody expects it")
            replay(self, *arguments)

        monkeypatch.setattr(GroupCoordinator, "replay", failing)
        broker.coordinators._load_again(shard)
        await until(lambda: broker.coordinators.check_ready(0) is ErrorCode.NONE)
        lines = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
        assert len(lines) == 2, lines
        assert "records or batches were skipped" in lines[1]
        assert await commit(broker) is ErrorCode.NONE
        assert (await beat(broker, "a")).error_code == ErrorCode.NONE, (
            "a stored expression that is broken matches nothing"
        )


# --- transactions ---------------------------------------------------------------------------------


async def test_an_error_in_a_transaction_costs_its_request(broker_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_of() as broker:
        command = InitProducerId(transactional_id="x", timeout_ms=1_000, producer_id=-1, producer_epoch=-1)
        monkeypatch.setattr(decisions, "init", failing_once(RuntimeError("nobody expects it"), decisions.init))
        async with asyncio.timeout(BOUND_SECONDS):
            assert (await broker.transactions.ask(command)).error_code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert (await broker.transactions.ask(command)).error_code is ErrorCode.NONE
        assert broker.incidents.count == 1


# --- any handler ----------------------------------------------------------------------------------


async def test_a_handler_that_fails_says_so_where_its_response_has_an_error(
    broker_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_of() as broker:

        async def failing(*_: Any) -> Any:
            raise RuntimeError("nobody expects it")

        for api_key, version, message in (
            (ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest()),
            (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, ConsumerGroupHeartbeatRequest(group_id="g", member_id="m")),
        ):
            route = apis._route(api_key)
            monkeypatch.setattr(route, "handler", failing)
            frame = bytearray(encode_request(api_key, version, 7, "c", message)[4:])
            response = await apis.answer(broker, frame, "/127.0.0.1", "PLAINTEXT")
            assert isinstance(response, bytes)
            assert b"\xff\xff" in response
        assert broker.incidents.count == 2
        caplog.set_level(logging.INFO)
        assert "Traceback" not in caplog.text
