"""What the simulated world breaks breaks, and what it mends is whole again."""

from __future__ import annotations

import pytest

from chaos import simulation
from chaos.history import Op
from chaos.nemesis import Fault, Kind
from chaos.simulation import Outcome


def story_of(
    kind: Kind, seed: int, minutes: float = 0.5, *, target: str = "one", lasts_ms: int = 8_000, **settings: str
) -> tuple[Outcome, list[tuple[float, str, str]]]:
    """A run with this fault alone, and what was told of it."""
    story: list[tuple[float, str, str]] = []
    fault = Fault(id=0, kind=kind, target=target, at_ms=10_000, lasts_ms=lasts_ms, settings=settings)
    outcome = simulation.run(seed, minutes, faults=[fault], trace=lambda *what: story.append(what))
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    return outcome, story


def said(story: list[tuple[float, str, str]], who: str, what: str) -> list[float]:
    return [seconds for seconds, each, text in story if each == who and what in text]


def notes(outcome: Outcome, f: str) -> list[Op]:
    return [op for op in outcome.ops if op.f == f]


def hit(outcome: Outcome) -> str:
    """The one node that the fault hit."""
    (node,) = notes(outcome, "fault")[0].value["nodes"]
    return f"node{node}"


def test_a_voter_whose_disk_is_full_tries_once_a_second_and_says_so_once_a_second() -> None:
    outcome, story = story_of(Kind.DISK_FULL, 101, lasts_ms=10_000)
    complaints = said(story, hit(outcome), "the metadata journal cannot be written")
    assert complaints, "the disk was not full for the quorum: another seed"
    assert len(complaints) <= 11
    assert said(story, hit(outcome), "the metadata journal is written again")


def test_a_failed_sync_ends_the_node_with_a_line_and_a_restart_brings_it_back() -> None:
    outcome, story = story_of(Kind.FSYNC_ERROR, 102)
    assert said(story, hit(outcome), "is not running")
    assert said(story, hit(outcome), "is ready (start 2)")


@pytest.mark.parametrize("of", ["active segment", "sealed segment"])
def test_a_damaged_copy_is_fetched_anew(of: str) -> None:
    for seed in range(102, 108):  # in some there is no such segment yet, or nobody reads it any more
        outcome, story = story_of(Kind.CORRUPTION, seed, of=of)
        node = hit(outcome).removeprefix("node")
        if any("was fetched anew" in text and f"on node {node} " in text for _, _, text in story):
            return
    pytest.fail("no damaged copy was found")


def test_a_damaged_journal_is_refused_and_the_node_comes_back_as_a_new_voter() -> None:
    outcome, story = story_of(Kind.CORRUPTION, 103, of="quorum journal")
    assert said(story, hit(outcome), "is not running")
    assert said(story, hit(outcome), "is ready (start 3)")
    assert said(story, "nemesis", "votes again")


def test_a_node_with_an_empty_disk_comes_back_as_a_new_voter() -> None:
    outcome, story = story_of(Kind.LOSE_DISK, 101)
    assert said(story, hit(outcome), "is ready (start 2)")
    assert said(story, "nemesis", "votes again")
    assert notes(outcome, "spared") == []


def test_a_voter_goes_and_comes_back() -> None:
    outcome, story = story_of(Kind.REMOVE_VOTER, 103)
    node = hit(outcome).removeprefix("node")
    (gone,), (back,) = (said(story, "nemesis", f"node {node} votes {what}") for what in ("no more", "again"))
    assert gone < back
    assert notes(outcome, "spared") == []


def test_a_coordinator_that_is_cut_off_tells_no_stale_offsets() -> None:
    """Committed offsets are told once followers have confirmed the leader: in this run some would be stale before."""
    fault = Fault(
        id=0,
        kind=Kind.PARTITION,
        target="coordinator of g",
        at_ms=8_000,
        lasts_ms=15_000,
        settings={"shape": "target"},
    )
    outcome = simulation.run(61, 0.5, faults=[fault], calls_per_second=10)
    (groups,) = [verdict for verdict in outcome.verdicts if verdict.checker == "groups"]
    assert groups.examined > 0
    assert (groups.counts, groups.allowed_counts) == ({}, {})
