"""Rates, token buckets and connection rates, with times that the tests give: the vectors are Kafka's own."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.quotas.buckets import TokenBucket
from kraftpy.quotas.connections import ConnectionRates, Verdict
from kraftpy.quotas.rates import MOST_WAIT_MS, Rate

SAMPLES, SAMPLE_MS = 11, 1000


def test_a_client_below_its_limit_does_not_wait_and_one_beyond_its_burst_does() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    for second in range(60):
        rate.record(400, 500, second * 1000)
        assert rate.wait_ms(500, second * 1000) == 0
    rate.record(5300, 500, 60_000)  # a burst of 500 for 10 s, and 300 more
    assert rate.wait_ms(500, 60_000) == 600
    assert rate.wait_ms(500, 60_400) == 200
    assert rate.wait_ms(500, 60_600) == 0


@pytest.mark.parametrize(
    ("amount", "limit", "wait_ms"),
    [(1000, 100, 0), (1000, 50, 10_000), (6300, 600, 500), (107.1, 10, 710), (10**9, 1000, 999_990_000)],
)
def test_a_first_burst_waits_as_in_kafka(amount: float, limit: float, wait_ms: int) -> None:
    """There, (O - T) / T * W for the rate O over the window W of all samples but one, and the limit T."""
    rate = Rate(SAMPLES, SAMPLE_MS)
    rate.record(amount, limit, 50_000)
    assert rate.wait_ms(limit, 50_000) == wait_ms == round((amount / 10 - limit) / limit * 10_000) or wait_ms == 0


def test_a_use_that_is_taken_back_has_no_effect() -> None:
    rate, other = Rate(SAMPLES, SAMPLE_MS), Rate(SAMPLES, SAMPLE_MS)
    for each in (rate, other):
        each.record(1700, 100, 0)
    rate.record(5000, 100, 100)
    rate.record(-5000, 100, 100)
    assert rate.wait_ms(100, 200) == other.wait_ms(100, 200) == 6_800


def test_what_was_used_is_forgotten_at_the_rate() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    assert rate.is_as_new(0)
    rate.record(1500, 100, 0)
    assert not rate.is_as_new(14_999)
    assert rate.is_as_new(15_000)
    assert rate.wait_ms(100, 15_000) == 0


def test_a_quota_that_forgives_makes_nobody_wait_for_more_than_a_window_after_the_end() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    for second in range(100):
        rate.record(10_000, 10, second * 1000, forgives=True)
    assert rate.wait_ms(10, 99_000) == 10_000
    assert rate.wait_ms(10, 109_000) == 0
    assert not rate.is_as_new(109_000)


def test_a_changed_limit_applies_to_what_was_used_before() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    rate.record(5000, 1000, 0)
    assert rate.wait_ms(1000, 0) == 0
    assert rate.wait_ms(100, 0) == 40_000
    assert rate.wait_ms(1000, 0) == 0


def test_no_wait_is_longer_than_an_answer_can_tell() -> None:
    rate = Rate(1, 1)
    rate.record(2.0**62, 1e-300, 0)
    assert rate.wait_ms(1e-300, 0) == MOST_WAIT_MS


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 2_000)), min_size=1, max_size=100))
def test_a_client_that_waits_as_told_keeps_to_its_limit(requests: list[tuple[int, int]]) -> None:
    """Over any time, the limit, a burst and the last request get through."""
    rate, limit, now, sent = Rate(SAMPLES, SAMPLE_MS), 1000.0, 0, 0
    for pause_ms, size in requests:
        now += pause_ms
        rate.record(size, limit, now)
        sent += size
        assert sent <= limit * (now / 1000 + SAMPLES - 1) + size
        now += rate.wait_ms(limit, now)


@pytest.mark.parametrize("size", [1, 100, 1_000])
@pytest.mark.parametrize("request_ms", [0, 1, 9])
def test_a_client_that_wants_more_gets_its_limit_evenly(size: int, request_ms: int) -> None:
    """Within 5 % over any 30 seconds, once its burst is over (or its requests alone take that long)."""
    rate, limit, now, sent = Rate(SAMPLES, SAMPLE_MS), 1000.0, 0, [(0, 0)]
    used_up_at = None
    while now < 120_000:
        now += request_ms
        rate.record(size, limit, now)
        sent.append((now, size))
        wait_ms = rate.wait_ms(limit, now)
        used_up_at = now if used_up_at is None and wait_ms else used_up_at
        now += wait_ms
    if used_up_at is None:
        assert size / max(request_ms, 1) <= limit / 1000, "it does not want more"
        return
    for begin in range(used_up_at, 90_000, 1_000):
        within = sum(amount for at, amount in sent if begin < at <= begin + 30_000)
        assert within == pytest.approx(limit * 30, rel=0.05)


def test_tokens() -> None:
    bucket = TokenBucket(SAMPLES, SAMPLE_MS)
    assert bucket.tokens(10, 5_000) == 110  # a burst of 10 for 11 s
    bucket.take(90, 10, 5_000)
    assert (bucket.tokens(10, 5_000), bucket.wait_ms(10, 5_000)) == (20, 0)
    bucket.take(90, 10, 5_000)
    assert (bucket.tokens(10, 5_000), bucket.wait_ms(10, 5_000)) == (-70, 7_000)
    assert bucket.wait_ms(10, 10_000) == 2_000
    assert bucket.wait_ms(10, 12_000) == 0
    assert bucket.tokens(10, 100_000) == 110
    bucket.take(-50, 10, 100_000)
    assert bucket.tokens(10, 100_000) == 110
    assert bucket.is_as_new(100_000)
    bucket.take(1, 10, 100_000)
    assert not bucket.is_as_new(100_000)
    assert bucket.is_as_new(100_100)


def test_a_changed_rate_applies_to_the_tokens_that_are_left() -> None:
    bucket = TokenBucket(SAMPLES, SAMPLE_MS)
    bucket.take(100, 10, 0)
    assert bucket.tokens(10, 0) == 10
    assert bucket.tokens(0.5, 0) == 5.5
    assert bucket.tokens(100, 1_000) == 105.5


def arrive(
    rates: ConnectionRates,
    now: int,
    *,
    address: str = "a",
    of_broker: float | None = None,
    of_listener: float | None = None,
    of_address: float | None = None,
) -> Verdict:
    return rates.arrive("L", address, now, of_broker=of_broker, of_listener=of_listener, of_address=of_address)


def test_connections_beyond_the_rate_of_a_broker_wait_in_a_queue() -> None:
    rates = ConnectionRates(SAMPLES, SAMPLE_MS)
    for _ in range(20):
        assert arrive(rates, 0, of_broker=2) == (0, False)
    waits = [arrive(rates, 0, of_broker=2) for _ in range(3)]
    assert not any(verdict.is_refused for verdict in waits)
    assert waits[0].wait_ms == 500  # 21 in 10 s: 0.1 / 2 of 10 s
    assert waits == sorted(waits)
    assert waits[2].wait_ms > waits[1].wait_ms > waits[0].wait_ms
    assert all(second.wait_ms - first.wait_ms <= SAMPLE_MS for first, second in itertools.pairwise(waits))
    assert arrive(rates, 60_000, of_broker=2) == (0, False)


@pytest.mark.parametrize(("of_broker", "of_listener"), [(10, None), (None, 10), (10, 200)])
def test_a_flood_of_connections_is_let_in_at_the_limit(of_broker: float | None, of_listener: float | None) -> None:
    rates = ConnectionRates(SAMPLES, SAMPLE_MS)
    let_in = [arrive(rates, 0, of_broker=of_broker, of_listener=of_listener).wait_ms for _ in range(1000)]
    assert let_in == sorted(let_in)
    within_a_minute = sum(1 for at in let_in if at < 60_000)
    assert 600 <= within_a_minute <= 10 * (60 + SAMPLES)


def test_connections_beyond_the_rate_of_an_address_are_refused_and_do_not_count() -> None:
    rates = ConnectionRates(SAMPLES, SAMPLE_MS)
    for _ in range(10):
        assert arrive(rates, 0, of_address=1) == (0, False)
    for _ in range(100):
        assert arrive(rates, 0, of_address=1) == (1000, True)
    assert arrive(rates, 0, address="b", of_address=1) == (0, False)
    assert arrive(rates, 12_100, of_address=1) == (0, False)


def test_a_crowd_of_addresses_takes_bounded_memory() -> None:
    rates = ConnectionRates(SAMPLES, SAMPLE_MS, most_addresses=8)
    for number in range(100):
        arrive(rates, number, address=str(number), of_address=1)
        assert len(rates._addresses) <= 8
