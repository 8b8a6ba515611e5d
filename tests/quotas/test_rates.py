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


def test_a_rate_below_the_limit_does_not_wait_and_a_spike_does() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    for second in range(10):
        rate.record(400, second * 1000)
        assert rate.wait_ms(500, second * 1000) == 0
    rate.record(2300, 10_500)  # 6300 in 10.5 s are 600 a second
    assert rate.measure(10_500) == pytest.approx(600)
    assert rate.wait_ms(500, 10_500) == 2100
    rate.record(0, 12_500)  # the first samples have left the window of 11 s
    assert rate.measure(12_500) == pytest.approx((400 * 8 + 2300) / 10.5, rel=0.01)
    for second in range(13, 24):
        rate.record(400, second * 1000)
    assert rate.wait_ms(500, 23_500) == 0


def test_percent_of_time() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    for second in range(10):
        rate.record(4, second * 1000)
        assert rate.wait_ms(10, second * 1000) == 0
    rate.record(67.1, 10_500)  # 107.1 in 10.5 s are 10.2 a second: 0.2 / 10 of 10.5 s
    assert rate.wait_ms(10, 10_500) == 210


def test_a_burst_is_averaged_over_the_whole_window_but_one_sample() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    rate.record(1000, 50_000)
    assert rate.measure(50_000) == pytest.approx(100)
    assert rate.wait_ms(100, 50_000) == 0
    assert rate.wait_ms(50, 50_000) == 10_000


def test_a_use_that_is_taken_back_has_no_effect() -> None:
    rate, other = Rate(SAMPLES, SAMPLE_MS), Rate(SAMPLES, SAMPLE_MS)
    for each in (rate, other):
        each.record(700, 0)
    rate.record(5000, 100)
    rate.record(-5000, 100)
    assert rate.measure(200) == other.measure(200)


def test_a_pause_forgets_everything() -> None:
    rate = Rate(SAMPLES, SAMPLE_MS)
    rate.record(10**9, 0)
    assert not rate.is_as_new(10_999)
    assert rate.is_as_new(11_000)
    assert rate.wait_ms(1, 11_000) == 0


def test_no_wait_is_longer_than_an_answer_can_tell() -> None:
    rate = Rate(1, 1)
    rate.record(2.0**62, 0)
    assert rate.wait_ms(1e-300, 0) == MOST_WAIT_MS


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 2_000)), min_size=1, max_size=100))
def test_a_client_that_waits_as_told_keeps_to_its_limit(requests: list[tuple[int, int]]) -> None:
    """Over any time, the limit and a burst of one window get through, and for each sample a sample more at most."""
    rate, limit, now, sent = Rate(SAMPLES, SAMPLE_MS), 1000.0, 0, 0
    for pause_ms, size in requests:
        now += pause_ms
        rate.record(size, now)
        sent += size
        now += rate.wait_ms(limit, now)
        assert sent <= limit * (now / 1000 + SAMPLES) * SAMPLES / (SAMPLES - 1)


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
