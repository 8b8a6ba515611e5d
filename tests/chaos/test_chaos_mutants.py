"""Mutants: each breaks the product, for no longer than it should, and some are caught again at their seeds."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.drawing import draw
from chaos.mutants import MUTANTS, suite
from chaos.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
RUN_AGAIN = ("log-not-synced", "recovered-to-recovery-point")
"""Mutants that nearly every seed catches which draws what they need: a change of the product moves what a seed does."""
_SEEDS, _SECONDS = 4, 280


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_replaces_what_it_names_and_puts_it_back(mutant: Mutant) -> None:
    before = [vars(patch.owner)[patch.name] for patch in mutant.patches]
    with mutant.applied():
        meanwhile = [vars(patch.owner)[patch.name] for patch in mutant.patches]
    assert all(one is not other for one, other in zip(before, meanwhile, strict=True))
    assert [vars(patch.owner)[patch.name] for patch in mutant.patches] == before


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_what_a_mutant_puts_in_place_is_called_as_the_original_is(mutant: Mutant) -> None:
    """The product's functions change: one that is called otherwise by now would fail, which breaks no rule."""

    def named(function: object) -> list[str] | None:
        if not callable(function) or inspect.isbuiltin(function) or inspect.ismethoddescriptor(function):
            return None  # a property, or unknown, or compiled
        parameters = inspect.signature(function).parameters.values()
        is_open = any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters)
        return None if is_open else [each.name for each in parameters]

    before = [named(getattr(patch.owner, patch.name)) for patch in mutant.patches]
    with mutant.applied():
        meanwhile = [named(getattr(patch.owner, patch.name)) for patch in mutant.patches]
    for one, other in zip(before, meanwhile, strict=True):
        assert one is None or other is None or len(one) == len(other), (one, other)


def test_a_mutant_is_undone_when_its_run_fails() -> None:
    mutant = MUTANTS["acknowledged-at-once"]
    (patch,) = mutant.patches
    before = vars(patch.owner)[patch.name]
    with pytest.raises(RuntimeError), mutant.applied():
        raise RuntimeError("the run")
    assert vars(patch.owner)[patch.name] is before


def test_mutants_say_what_they_break() -> None:
    assert len(MUTANTS) >= 18
    for mutant in MUTANTS.values():
        assert mutant.shows
        assert len(mutant.breaks) > 30


def test_the_table_is_made_of_what_was_found_and_has_no_mutant_that_is_no_more() -> None:
    caught = suite.read_caught()
    assert caught.keys() <= MUTANTS.keys()
    for each in caught.values():
        assert set(each.by) <= MUTANTS[each.mutant].shows
    assert suite.TABLE.read_text(encoding="utf-8") == suite.as_markdown([*caught.values()])


def test_seeds_are_those_that_draw_what_a_mutant_needs() -> None:
    for seed in suite.seeds_for("offsets-not-replayed", 10, 5):
        assert seed >= 10
        assert draw(seed).workload == "groups"
    assert [seed for seed in (1, 2) if seed in suite.seeds_for("sequences-ignored", 1, 2)] == [1, 2]


def in_its_own_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A seed means the same only with the same hashes of strings."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


@pytest.mark.timeout(_SECONDS + 10)
@pytest.mark.parametrize("name", RUN_AGAIN)
def test_a_mutant_is_caught_at_its_seed_or_soon_after(name: str) -> None:
    caught = suite.read_caught()[name]
    arguments = ["--seeds", str(_SEEDS), "--minutes", str(caught.minutes), "--jobs", "1", "--no-write"]
    again = in_its_own_process("-m", "chaos", "mutants", "--name", name, "--first", str(caught.seed), *arguments)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{name}: caught by " in again.stdout


@pytest.mark.timeout(_SECONDS + 10)
def test_the_same_seeds_are_clean_without_the_mutants() -> None:
    runs = [(name, each.seed, each.minutes) for name, each in suite.read_caught().items() if name in RUN_AGAIN]
    script = (
        "from chaos.mutants.suite import run_unbroken, anomalies\n"
        f"print([anomalies(run_unbroken(*run)) for run in {runs}])"
    )
    clean = in_its_own_process("-c", script)
    assert clean.stdout.strip() == str([set() for _ in runs]), clean.stdout + clean.stderr
