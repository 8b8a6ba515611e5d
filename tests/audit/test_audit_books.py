"""The books: what is lost, what came twice, what is only late."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from kraftpy.audit.books import Books, Verdict, keep_books, order_of
from kraftpy.audit.counts import Tally
from kraftpy.audit.plot import draw

LONG_AGO = 10**12


def tallies(**tiers: dict[int, int] | list[int]) -> list[Tally]:
    """Counts of topic t by tier: of windows 0, 1, ... or of those named."""
    return [
        Tally(tier=tier, source="s", topic="t", window_ms=100, start_ms=window * 100, count=count, counted_at_ms=0)
        for tier, counts in tiers.items()
        for window, count in (counts.items() if isinstance(counts, dict) else enumerate(counts))
    ]


def differences(books: Books) -> list[tuple[str, int, int, str]]:
    return [
        (entry.tier, entry.start_ms // 100, entry.difference, entry.verdict.value)
        for entry in books.entries
        if entry.verdict is not Verdict.BALANCED
    ]


def kept(said: list[Tally], *, now_ms: int = LONG_AGO) -> Books:
    return keep_books(said, now_ms=now_ms, window_ms=100, grace_ms=300)


def test_what_balances() -> None:
    books = kept(tallies(producer=[5, 6, 7], log=[5, 6, 7], load=[5, 6, 7]))
    assert books.balance
    assert differences(books) == []
    assert [(each.tier, each.records, each.lag_ms) for each in books.totals] == [
        ("producer", 18, 0),
        ("log", 18, 0),
        ("load", 18, 0),
    ]


def test_each_difference_is_held_against_the_tier_before() -> None:
    books = kept(tallies(producer=[5, 6, 7], log=[5, 5, 7], load=[5, 5, 8]))
    assert differences(books) == [("log", 1, -1, "lost"), ("load", 2, 1, "duplicated")]
    assert [(each.tier, each.lost, each.duplicated) for each in books.totals] == [
        ("producer", 0, 0),
        ("log", 1, 0),
        ("load", 0, 1),
    ]
    assert not books.balance


def test_a_window_that_is_not_there_has_none() -> None:
    assert differences(kept(tallies(producer=[5, 6, 7], log={0: 5, 2: 7}))) == [("log", 1, -6, "lost")]


def test_a_tier_may_be_late() -> None:
    said = tallies(producer=[5, 6, 7], load=[5, 2])
    assert differences(kept(said, now_ms=400)) == [("load", 1, -4, "late"), ("load", 2, -7, "late")]
    assert kept(said, now_ms=400).balance
    assert kept(said, now_ms=400).totals[1].lag_ms == 100
    assert differences(kept(said, now_ms=500)) == [("load", 1, -4, "lost"), ("load", 2, -7, "late")]
    assert differences(kept(said)) == [("load", 1, -4, "lost"), ("load", 2, -7, "lost")]


def test_a_tier_that_went_on_is_not_late() -> None:
    said = tallies(producer=[5, 6, 7], load=[5, 2, 7])
    assert differences(kept(said, now_ms=301)) == [("load", 1, -4, "lost")]


def test_the_tier_before_may_be_the_late_one() -> None:
    said = tallies(producer=[5], log=[5, 6])
    assert differences(kept(said, now_ms=201)) == [("log", 1, 6, "late")]
    assert differences(kept(said)) == [("log", 1, 6, "duplicated")]


def test_sources_are_summed_and_other_windows_do_not_count() -> None:
    said = tallies(log=[3])
    said += [
        Tally(tier="log", source="other", topic="t", window_ms=100, start_ms=0, count=4, counted_at_ms=0),
        Tally(tier="log", source="other", topic="t", window_ms=50, start_ms=0, count=9, counted_at_ms=0),
    ]
    assert kept(said).totals[0].records == 7


def test_tiers_and_topics_can_be_named() -> None:
    said = tallies(a=[1], b=[2])
    assert keep_books(said, now_ms=LONG_AGO, window_ms=100, tiers=["b", "a"]).totals[1].lost == 1
    assert keep_books(said, now_ms=LONG_AGO, window_ms=100, topics=["u"]).entries == ()
    assert order_of(tallies(zebra=[1], load=[1], producer=[1], aardvark=[1])) == (
        "producer",
        "load",
        "aardvark",
        "zebra",
    )


def test_the_picture(tmp_path: Path) -> None:
    books = kept(tallies(producer=[5, 6, 7, 1], log=[5, 5, 8, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(books, tmp_path / "books.png")
    assert (tmp_path / "books.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(kept([]), tmp_path / "none.png")
