"""The plan of what to fetch, against the broker's own fetch sessions (KIP-227, rule 47)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.broker.replication.fetch_sessions import FetchSessions
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kraftpy.replication.fetch_plan import FetchLimits, FetchPlan, PartitionKey
from kraftpy.replication.follower import DivergingEpoch, FetchPosition
from kraftpy.types import BrokerId, Millis, TopicId

LIMITS = FetchLimits()
NOW = Millis(1_000)


def key(number: int) -> PartitionKey:
    return PartitionKey(TopicId(bytes([number % 3]) * 16), number)


def at(offset: int, leader_epoch: int = 1) -> FetchPosition:
    return FetchPosition(offset=offset, last_fetched_epoch=0, leader_epoch=leader_epoch, log_start_offset=0)


def plan_of(count: int) -> FetchPlan:
    plan = FetchPlan(replica_id=BrokerId(2), broker_epoch=7)
    for number in range(count):
        plan.set(key(number), at(0))
    return plan


def named(request: FetchRequest | None) -> list[tuple[int, int]]:
    assert request is not None
    return sorted((p.partition, p.fetch_offset) for topic in request.topics for p in topic.partitions)


def forgotten(request: FetchRequest | None) -> list[int]:
    assert request is not None
    return sorted(number for topic in request.forgotten_topics_data for number in topic.partitions)


def answer(session_id: int, *numbers: int, error: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    return FetchResponse(
        error_code=error,
        session_id=session_id,
        responses=[
            FetchableTopicResponse(topic_id=key(n).topic_id, partitions=[PartitionData(partition_index=n)])
            for n in numbers
        ],
    )


def test_a_session_begins_with_everything_and_goes_on_with_what_changed() -> None:
    plan = plan_of(4)
    request = plan.request(LIMITS)
    assert request is not None
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 7)
    assert (request.max_bytes, request.min_bytes, request.max_wait_ms) == (10 << 20, 1, 500)
    assert named(request) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert request.topics[0].partitions[0].partition_max_bytes == 1 << 20
    fetched = plan.handle_response(answer(99, 1, 2))
    assert [(found.key, found.asked) for found in fetched] == [(key(1), at(0)), (key(2), at(0))]
    plan.set(key(1), at(5))
    plan.set(key(2), at(0))  # nothing new
    plan.set(key(9), at(3))
    plan.forget(key(3))
    request = plan.request(LIMITS, 20)
    assert request is not None
    assert (request.session_id, request.session_epoch, request.max_wait_ms) == (99, 1, 20)
    assert named(request) == [(1, 5), (9, 3)]
    assert forgotten(request) == [3]
    assert plan.handle_response(answer(99)) == []
    request = plan.request(LIMITS)
    assert request is not None
    assert (request.session_epoch, request.topics, request.forgotten_topics_data) == (2, [], [])


def test_many_partitions_are_named_in_several_requests_that_do_not_wait() -> None:
    limits = FetchLimits(most_named=3)
    plan = plan_of(8)
    told = []
    for epoch in range(3):
        request = plan.request(limits)
        assert request is not None
        assert request.session_epoch == epoch
        told.append((named(request), request.max_wait_ms))
        first = named(request)[0][0]
        assert [found.key for found in plan.handle_response(answer(99, first, 7))] == [
            key(number) for number in ([first] if epoch < 2 else [first, 7])
        ], "an answer about what was not named is of no use"
    assert told == [([(0, 0), (1, 0), (2, 0)], 0), ([(3, 0), (4, 0), (5, 0)], 0), ([(6, 0), (7, 0)], 500)]
    for number in range(4):
        plan.forget(key(number))
    request = plan.request(limits)
    assert request is not None
    assert (forgotten(request), request.max_wait_ms) == ([0, 1, 2], 0)
    plan.lost()
    request = plan.request(limits)
    assert request is not None
    assert (named(request), request.session_epoch) == ([(4, 0), (5, 0), (6, 0)], 0)


def test_without_a_session_everything_is_named_at_once() -> None:
    limits = FetchLimits(most_named=3)
    plan = plan_of(5)
    assert len(named(plan.request(limits))) == 3
    plan.handle_response(answer(0, 1))
    for _ in range(2):
        request = plan.request(limits)
        assert request is not None
        assert len(named(request)) == 5
        assert (request.session_epoch, request.max_wait_ms) == (0, 500)
        assert len(plan.handle_response(answer(0, 0, 4))) == 2
    plan.request(limits)
    plan.handle_response(answer(5))
    plan.set(key(1), at(1))
    assert named(plan.request(limits)) == [(1, 1)]


def test_what_was_changed_and_changed_back_is_not_named() -> None:
    plan = plan_of(2)
    plan.request(LIMITS)
    plan.handle_response(answer(1))
    plan.set(key(0), at(9))
    plan.set(key(0), at(0))
    plan.set(key(7), at(1))
    plan.forget(key(7))
    request = plan.request(LIMITS)
    assert named(request) == []
    assert forgotten(request) == []


def test_what_was_forgotten_and_is_wanted_again_is_named() -> None:
    """The leader has sent what there is from that position on; if it could not be used, it must be asked again."""
    plan = plan_of(1)
    plan.request(LIMITS)
    plan.handle_response(answer(99, 0))
    plan.forget(key(0))
    assert plan.request(LIMITS) is None
    plan.set(key(0), at(0))
    request = plan.request(LIMITS)
    assert named(request) == [(0, 0)]
    assert forgotten(request) == []


def test_an_answer_for_what_moved_meanwhile_or_is_not_wanted_is_left_out() -> None:
    plan = plan_of(3)
    plan.request(LIMITS)
    plan.set(key(0), at(4, leader_epoch=2))
    plan.forget(key(1))
    assert [found.key for found in plan.handle_response(answer(1, 0, 1, 2, 8))] == [key(2)]
    assert named(plan.request(LIMITS)) == [(0, 4)]


def test_no_session_to_be_had_names_everything_every_time() -> None:
    plan = plan_of(2)
    for _ in range(3):
        request = plan.request(LIMITS)
        assert request is not None
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert len(named(request)) == 2
        assert len(plan.handle_response(answer(0, 0, 1))) == 2


@pytest.mark.parametrize(
    ("error", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 5)],
)
def test_session_errors_begin_anew(error: ErrorCode, session_id: int) -> None:
    """They name the old session if there is one, so that the leader can drop it."""
    plan = plan_of(2)
    plan.request(LIMITS)
    plan.handle_response(answer(5))
    plan.set(key(0), at(1))
    plan.request(LIMITS)
    assert plan.handle_response(answer(0, error=error)) == []
    request = plan.request(LIMITS)
    assert request is not None
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert named(request) == [(0, 1), (1, 0)]


def test_other_errors_are_the_callers() -> None:
    plan = plan_of(1)
    plan.request(LIMITS)
    with pytest.raises(KafkaError) as refused:
        plan.handle_response(answer(0, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert len(named(plan.request(LIMITS))) == 1


def test_a_lost_answer_begins_anew() -> None:
    plan = plan_of(2)
    plan.request(LIMITS)
    plan.handle_response(answer(5))
    plan.request(LIMITS)
    with pytest.raises(RuntimeError):
        plan.request(LIMITS)
    plan.lost()
    request = plan.request(LIMITS)
    assert request is not None
    assert (request.session_id, request.session_epoch, len(named(request))) == (5, 0, 2)


def test_the_sessions_epoch_wraps_to_one() -> None:
    plan = plan_of(1)
    plan.request(LIMITS)
    plan.handle_response(answer(5))
    plan._epoch = 2**31 - 1
    request = plan.request(LIMITS)
    assert request is not None
    assert request.session_epoch == 2**31 - 1
    plan.handle_response(answer(5))
    request = plan.request(LIMITS)
    assert request is not None
    assert request.session_epoch == 1


def test_another_size_limit_is_told_for_every_partition() -> None:
    plan = plan_of(3)
    plan.request(LIMITS)
    plan.handle_response(answer(5))
    plan.request(LIMITS)
    plan.handle_response(answer(5))
    request = plan.request(FetchLimits(partition_max_bytes=7))
    assert len(named(request)) == 3


def test_nothing_to_fetch_is_no_request() -> None:
    plan = plan_of(1)
    plan.request(LIMITS)
    plan.handle_response(answer(5))
    plan.forget(key(0))
    assert plan.request(LIMITS) is None
    plan.set(key(1), at(0))
    request = plan.request(LIMITS)
    assert (named(request), forgotten(request)) == ([(1, 0)], [0])


def test_what_an_answer_says_arrives() -> None:
    plan = plan_of(1)
    plan.request(LIMITS)
    data = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        high_watermark=9,
        log_start_offset=2,
        diverging_epoch=EpochEndOffset(epoch=3, end_offset=4),
        records=None,
    )
    response = FetchResponse(responses=[FetchableTopicResponse(topic_id=key(0).topic_id, partitions=[data])])
    (found,) = plan.handle_response(response)
    said = found.answer
    assert (said.high_watermark, said.log_start_offset, bytes(said.records)) == (9, 2, b"")
    assert said.diverging_epoch == DivergingEpoch(3, 4)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_leaders_session_always_holds_what_is_wanted(rng: Random) -> None:
    """After any sequence of sets, omissions, losses and evictions, an answered request was about what is wanted."""
    sessions = FetchSessions(2, lambda: rng.randrange(1, 1 << 30))
    plan = FetchPlan(replica_id=BrokerId(2), broker_epoch=7)
    wanted: dict[PartitionKey, FetchPosition] = {}
    for _ in range(rng.randrange(1, 40)):
        for _ in range(rng.randrange(4)):
            partition = key(rng.randrange(6))
            if rng.random() < 0.6:
                wanted[partition] = at(rng.randrange(4), rng.randrange(2))
                plan.set(partition, wanted[partition])
            else:
                wanted.pop(partition, None)
                plan.forget(partition)
        request = plan.request(LIMITS)
        if request is None:
            assert not wanted
            continue
        if rng.random() < 0.1:
            plan.lost()  # before it came there
            continue
        if rng.random() < 0.1:
            sessions = FetchSessions(2, lambda: rng.randrange(1, 1 << 30))  # the leader has been restarted
        try:
            context = sessions.open(request, 17, NOW)
        except KafkaError as refused:
            fetched = plan.handle_response(FetchResponse(error_code=refused.code))
            assert fetched == []
            continue
        held = {
            PartitionKey(p.topic_id, p.partition): (p.fetch_offset, p.current_leader_epoch) for p in context.partitions
        }
        assert held == {partition: (p.offset, p.leader_epoch) for partition, p in wanted.items()}
        if rng.random() < 0.1:
            plan.lost()  # on the way back
            continue
        chosen = [partition for partition in held if rng.random() < 0.5]
        said = [
            FetchableTopicResponse(
                topic_id=partition.topic_id, partitions=[PartitionData(partition_index=partition.partition)]
            )
            for partition in chosen
        ]
        fetched = plan.handle_response(FetchResponse(session_id=context.session_id, responses=said))
        assert [found.key for found in fetched] == chosen
        assert all(found.asked == wanted[found.key] for found in fetched)
