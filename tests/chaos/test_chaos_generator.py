"""Workloads as data: what they ask for, and in what proportions, follows from the seed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from planted import done, history

from chaos.generator import (
    Call,
    Calls,
    FinalPolls,
    GroupCalls,
    KeyPool,
    LogCalls,
    LogOptions,
    PipelineCalls,
    QueueCalls,
    TopicCalls,
)
from chaos.history import Op


def take(calls: Calls, count: int, processes: int = 5) -> list[Call]:
    found = [calls.call(number % processes) for number in range(count)]
    return [call for call in found if call is not None]


@pytest.mark.parametrize("make", [LogCalls, GroupCalls, QueueCalls, TopicCalls, PipelineCalls])
def test_calls_are_their_seed_s(make: Any) -> None:
    assert take(make(1), 500) == take(make(1), 500)
    assert take(make(1), 500) != take(make(2), 500)


def test_no_value_is_sent_to_a_key_twice() -> None:
    calls = take(LogCalls(1, LogOptions(transactions=True)), 5000)
    sent = Counter((m[1], m[2]) for call in calls if call.f in ("send", "txn") for m in call.value if m[0] == "send")
    assert len(sent) > 3000
    assert set(sent.values()) == {1}


def test_operations_are_named_by_what_they_do() -> None:
    calls = take(LogCalls(1, LogOptions(transactions=True)), 3000)
    for call in calls:
        kinds = {micro[0] for micro in call.value}
        if call.f in ("send", "poll"):
            assert kinds == {call.f}
        elif call.f == "txn":
            assert kinds == {"send", "poll"}
            assert 2 <= len(call.value) <= 4
    assert {call.f for call in calls} == {"send", "poll", "txn", "assign"}
    assert {len(call.value) for call in take(LogCalls(1), 500) if call.f in ("send", "poll")} == {1}


def test_a_client_begins_with_an_assignment_and_gets_another_now_and_then() -> None:
    calls = LogCalls(1, LogOptions(via="subscribe"))
    assert [call.f for call in take(calls, 5)] == ["subscribe"] * 5
    later = [call.f for call in take(calls, 6400)].count("subscribe")
    assert 60 < later < 150, "about one in 64, and the seed says how many"


def test_half_of_the_writes_go_to_the_first_key_and_full_keys_make_room() -> None:
    pool = KeyPool(random.Random(1), size=4, most_writes=100)
    counts = Counter(pool.send()[1] for _ in range(1000))
    assert max(counts.values()) == 100
    assert len(counts) > 10
    assert len(pool.names()) == 4
    wide = KeyPool(random.Random(3), size=10, most_writes=10**6)
    shares = Counter(wide.pick() for _ in range(4000))
    assert 1800 < shares[0] < 2200
    assert 850 < shares[1] < 1150


def test_keys_with_unpolled_records_are_assigned_at_times() -> None:
    calls = LogCalls(1, LogOptions(assignment_chance=1.0))
    take(calls, 5)
    for op in history(*done(0, "ok", "send", [["send", "far-0", [7, 1]]])).completions:
        calls.observe(op)
    assigned = [call for call in take(calls, 60) if "far-0" in call.value]
    assert 10 < len(assigned) < 30
    for op in history(*done(0, "ok", "poll", [["poll", {"far-0": [[7, 1]]}]])).completions:
        calls.observe(op)
    assert not [call for call in take(calls, 60) if "far-0" in call.value]


def polled(process: int, *offsets: int) -> Op:
    lines = done(process, "ok", "poll", [["poll", {"x-0": [[offset, offset] for offset in offsets]}]])
    return history(*lines).completions[0]


def test_in_the_end_a_new_client_reads_everything_from_the_start() -> None:
    calls = FinalPolls({"x-0": 5}, old=[0, 1])
    assert calls.call(0) == Call(f="crash")
    assert calls.call(1) == Call(f="crash")
    assert calls.call(2) == Call(f="assign", value=["x-0"], extra={"seek_to_beginning": True})
    assert calls.call(2) == Call(f="poll", value=[["poll"]], extra={"final": True})
    calls.observe(polled(2, 0, 3))
    assert calls.call(2) is not None
    calls.observe(polled(2, 5))
    assert calls.call(2) is None


def test_final_polls_that_take_long_are_begun_again() -> None:
    calls = FinalPolls({"x-0": 5}, old=[])
    asked = take(calls, FinalPolls.MOST_POLLS + 3, processes=1)
    assert [call.f for call in asked[:2]] == ["assign", "poll"]
    assert asked[-1] == Call(f="crash")
    again = calls.call(7)
    assert again is not None
    assert again.f == "assign"


def test_consumers_go_on_until_nothing_comes() -> None:
    calls = QueueCalls(1)
    calls.stop_sending()
    assert calls.call(0) is None
    empty = history(*done(1, "ok", "acquire", {"group": "q", "records": []})).completions[0]
    for _ in range(QueueCalls.MOST_EMPTY):
        assert calls.call(1) == Call(f="acquire", value={"group": "q"})
        calls.observe(empty)
    assert calls.call(1) is None


def test_a_member_hurries_while_it_drains_and_finds_something() -> None:
    calls = QueueCalls(1)
    found = history(*done(1, "ok", "acquire", {"group": "q", "records": [["t0-0", 3, "v", 1]]})).completions[0]
    empty = history(*done(1, "ok", "acquire", {"group": "q", "records": []})).completions[0]
    calls.observe(found)
    assert not calls.hurries(1)
    calls.stop_sending()
    assert not calls.hurries(1)
    calls.observe(found)
    assert calls.hurries(1)
    assert not calls.hurries(3)
    calls.observe(empty)
    assert not calls.hurries(1)


def test_what_was_acquired_is_acknowledged_and_what_was_polled_committed() -> None:
    calls = QueueCalls(1)
    acquired = done(1, "ok", "acquire", {"group": "q", "records": [["t0-0", 3, "v", 1]]})
    calls.observe(history(*acquired).completions[0])
    call = calls.call(1)
    assert call is not None
    assert (call.f, call.value["records"][0][:2]) == ("acknowledge", ["t0-0", 3])
    groups = GroupCalls(1)
    take(groups, 3)
    groups.observe(polled(0, 4, 5))
    assert groups.call(0) == Call(f="commit", value={"group": "g", "offsets": {"x-0": 6}})
