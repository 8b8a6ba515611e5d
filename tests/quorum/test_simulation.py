"""Some seeds of the simulation in every test run; `make sim` runs a thousand."""

from __future__ import annotations

import gc

import pytest
from simulation import OurNode, Outcome, kind_of, run_seed

from kraftpy.metadata.quorum import Message
from kraftpy.metadata.raft.follower import Follower


def run(kind: str, first: int, count: int, node: type[OurNode] | None = None) -> list[Outcome]:
    return [run_seed(kind, seed, node=node) for seed in range(first, first + count)]


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_ours_is_safe_and_converges(first: int) -> None:
    outcomes = run("ours", first, 6)
    assert [outcome for outcome in outcomes if outcome.failures] == []
    assert sum(outcome.acknowledged for outcome in outcomes) > 200


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_same_simulation_finds_the_stock_library_unsafe() -> None:
    outcomes = run("stock", 0, 8)
    unsafe = [outcome for outcome in outcomes if any(kind_of(failure) == "SAFETY" for failure in outcome.failures)]
    gc.collect()  # it leaves files open
    assert len(unsafe) >= 4


def test_a_seed_is_a_run() -> None:
    assert run_seed("ours", 5, steps=400) == run_seed("ours", 5, steps=400)


def test_it_finds_a_quorum_that_answers_before_its_disk_has_it() -> None:
    class Hasty(OurNode):
        def hold(self, message: Message) -> bool:
            return False

    assert any(run_seed("ours", seed, node=Hasty).failures for seed in range(30))


def test_it_finds_a_follower_that_drops_what_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = Follower._only_new_entries

    def without_fix(self: Follower, body: dict[str, object]) -> dict[str, object]:
        harmless = fixed(self, body)
        is_refused = self._answer.next_try is not None or body["prevLogIdx"] < self._state.log.first_index  # type: ignore[operator]
        return harmless if is_refused else body

    monkeypatch.setattr(Follower, "_only_new_entries", without_fix)
    assert any(run_seed("ours", seed).failures for seed in range(30))
