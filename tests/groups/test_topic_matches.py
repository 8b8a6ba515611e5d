"""Expressions are resolved to a cluster's topics: completely, in slices of work, within bounded memory."""

from __future__ import annotations

import random
import re

import pytest

from kraftpy.groups.patterns import Pattern, PatternError
from kraftpy.groups.topic_matches import DEBT_UNITS, REFILL_MS, SLICE_UNITS, TopicMatches
from kraftpy.types import Millis
from tests.groups.topics_now import TopicsNow

COSTLY = "(?:a?b?c?d?){249}"


class Clocked:
    """Matches of topics, with time that passes only when it has to."""

    def __init__(self, names: list[str], max_bytes: int = 1 << 20) -> None:
        self.topics = TopicsNow()
        self.topics.become(dict.fromkeys(names, 1))
        self.matches = TopicMatches(self.topics, max_bytes)
        self.now = 0
        self.matches.advance(Millis(0))

    def resolve(self, regex: str) -> tuple[tuple[str, ...], int]:
        """The topics it matches, and how many slices that took."""
        slices = 1
        while (found := self.matches.resolve(regex)) is None:
            assert slices < 10_000
            self.now += REFILL_MS
            self.matches.advance(Millis(self.now))
            slices += 1
        return found, slices


def test_an_ordinary_expression_is_known_at_once() -> None:
    clocked = Clocked([f"orders-{number}" for number in range(500)] + ["other"])
    found, slices = clocked.resolve("orders-.*")
    assert (len(found), slices) == (500, 1)


def test_many_topics_take_several_slices_and_none_is_left_out() -> None:
    names = [f"t{number:05}" for number in range(3 * SLICE_UNITS)]
    found, slices = Clocked(names).resolve("t.*[05]")
    assert found == tuple(name for name in names if name[-1] in "05")
    assert slices > 2


def test_a_costly_expression_spends_no_more_than_a_slice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked = Clocked(["".join(random.Random(each).choices("abcd", k=249)) for each in range(60)])
    pattern = Pattern(COSTLY)
    most = max(pattern.units(name) for name in clocked.topics.names())
    looked_at: list[str] = []
    matches = Pattern.matches
    monkeypatch.setattr(Pattern, "matches", lambda self, name: looked_at.append(name) or matches(self, name))
    while clocked.matches.resolve(COSTLY) is None:
        assert sum(pattern.units(name) for name in looked_at) <= SLICE_UNITS + most
        assert looked_at
        looked_at.clear()
        assert clocked.matches.resolve(COSTLY) is None, "nothing is left until time has passed"
        assert not looked_at
        clocked.now += REFILL_MS
        clocked.matches.advance(Millis(clocked.now))


def test_expressions_of_all_groups_share_one_allowance() -> None:
    clocked = Clocked([f"t{number}" for number in range(SLICE_UNITS)])
    assert clocked.matches.resolve("t1.*") is None
    assert clocked.matches.resolve("t2.*") is None
    clocked.resolve("t1.*")
    clocked.resolve("t2.*")


def test_an_answer_that_takes_the_whole_allowance_keeps_no_other_from_being_found() -> None:
    """Its members ask for it before the others do, each time."""
    many = 20 * SLICE_UNITS + 20
    clocked = Clocked([f"t{number}" for number in range(many)], max_bytes=1 << 24)
    assert len(clocked.resolve("t.*")[0]) == many
    for _ in range(3 * many // SLICE_UNITS):
        clocked.now += REFILL_MS
        clocked.matches.advance(Millis(clocked.now))
        assert len(clocked.matches.resolve("t.*") or ()) == many
        if (found := clocked.matches.resolve("t[0-9]+")) is not None:
            break
    assert len(found or ()) == many


def test_a_new_topic_is_the_only_one_that_is_looked_at_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(100)]
    clocked = Clocked(names)
    clocked.resolve("t.*")
    looked_at: list[str] = []
    monkeypatch.setattr(Pattern, "matches", lambda _, name: looked_at.append(name) or True)
    clocked.topics.become(dict.fromkeys([*names, "fresh"], 1))
    found, _ = clocked.resolve("t.*")
    assert looked_at == ["fresh"]
    assert found == tuple(sorted([*names, "fresh"]))


def test_topics_that_come_and_go_are_matched_as_they_are() -> None:
    dice = random.Random(5)
    clocked = Clocked([])
    regexes = ["a.*", ".*b", "[ac]+", "x|ab|ba"]
    for _ in range(600):
        names = {"".join(dice.choices("abc", k=dice.randint(1, 4))) for _ in range(dice.randint(0, 40))}
        clocked.topics.become(dict.fromkeys(sorted(names), 1))
        regex = dice.choice(regexes)
        found, _ = clocked.resolve(regex)
        assert found == tuple(sorted(name for name in names if re.fullmatch(regex, name)))


def test_numbers_of_topics_that_are_gone_are_not_kept_for_ever() -> None:
    clocked = Clocked([])
    for number in range(5_000):
        clocked.topics.become({f"t{number}": 1})
        assert clocked.resolve(".*")[0] == (f"t{number}",)
    assert len(clocked.matches._names) <= 1_100


def test_what_is_remembered_stays_within_its_bytes() -> None:
    names = ["t" * 240 + f"{number:05}" for number in range(60)]
    clocked = Clocked(names, max_bytes=200_000)
    for number in range(1_000):
        found, _ = clocked.resolve(f"(?:{'|'.join('abcdefgh'[number % 8] * 9 for _ in range(90))}|t.*){{1}}|{number}")
        assert len(found) == 60
        assert clocked.matches._bytes <= 200_000
        kept = sum(entry.size_bytes + len(regex) for regex, entry in clocked.matches._entries.items())
        assert clocked.matches._bytes == kept
    assert 0 < len(clocked.matches._entries) < 200
    assert len(clocked.matches._patterns) <= 16


def test_one_answer_that_is_larger_than_all_that_may_be_kept_is_given_all_the_same() -> None:
    clocked = Clocked([f"t{number}" for number in range(1_000)], max_bytes=100)
    assert len(clocked.resolve(".*")[0]) == 1_000
    assert len(clocked.resolve("t1.*")[0]) == 111


def test_a_stored_expression_that_cannot_be_compiled_matches_nothing_and_is_told_once() -> None:
    clocked = Clocked(["t"])
    assert clocked.resolve("(")[0] == clocked.resolve("(")[0] == ()
    (line,) = clocked.matches.take_broken()
    assert "'('" in line
    assert clocked.matches.take_broken() == []


def test_clients_that_have_too_much_compiled_are_told_to_come_back() -> None:
    clocked = Clocked([])
    compiled = 0
    while not clocked.matches.is_overdrawn:
        with pytest.raises(PatternError):
            clocked.matches.check(f"\\pL{{{900 + compiled}}}")
        compiled += 1
        assert compiled < DEBT_UNITS
    clocked.matches.advance(Millis(REFILL_MS))
    assert not clocked.matches.is_overdrawn
