"""Tallies: what a source says, and what is no tally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.audit.counts import BadTally, Counter, Tally, latest, parse_tally

TALLIES = st.builds(
    Tally,
    tier=st.text(max_size=5),
    source=st.text(max_size=5),
    topic=st.text(max_size=5),
    window_ms=st.integers(1, 10**9),
    start_ms=st.integers(-1, 10**13),
    count=st.integers(0, 10**12),
    counted_at_ms=st.integers(0, 10**13),
)


@given(TALLIES)
def test_a_tally_survives_its_record(tally: Tally) -> None:
    assert parse_tally(tally.key(), tally.value()) == tally


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"[]", b"{}"),
        (b'["a","b","c",1,2]', None),
        (b'["a","b","c",1,2]', b'{"version":2,"count":1,"counted_at_ms":0}'),
        (b'["a","b","c",1,2]', b'{"version":1,"count":-1,"counted_at_ms":0}'),
        (b'["a","b","c",1,2]', b'{"version":1,"count":true,"counted_at_ms":0}'),
        (b'["a","b","c",0,2]', b'{"version":1,"count":1,"counted_at_ms":0}'),
        (b'["a",7,"c",1,2]', b'{"version":1,"count":1,"counted_at_ms":0}'),
        (b"\xff", b"\xff"),
    ],
)
def test_what_is_no_tally(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BadTally):
        parse_tally(key, value)


def test_a_counter_tells_what_changed() -> None:
    counter = Counter(tier="log", source="s", window_ms=100)
    for timestamp in (5, 99, 100, 250, -1):
        counter.add("t", timestamp)
    counter.add("u", 50, 7)
    told = [(tally.topic, tally.start_ms, tally.count) for tally in counter.changed(9)]
    assert told == [("t", -1, 1), ("t", 0, 2), ("t", 100, 1), ("t", 200, 1), ("u", 0, 7)]
    assert counter.changed(10) == []
    counter.add("t", 120)
    [tally] = counter.changed(11)
    assert (tally.start_ms, tally.count, tally.counted_at_ms) == (100, 2, 11)
    assert len(counter) == 5


def test_the_last_word_of_a_source_counts() -> None:
    counter = Counter(tier="log", source="s", window_ms=100)
    other = Counter(tier="log", source="other", window_ms=100)
    said = []
    for each in (counter, counter, other):
        each.add("t", 0)
        said += each.changed(1)
    assert sorted((tally.source, tally.count) for tally in latest(said)) == [("other", 1), ("s", 2)]


def test_a_window_has_a_length() -> None:
    with pytest.raises(ValueError, match="window_ms must be above 0"):
        Counter(tier="t", source="s", window_ms=0)
