"""Mutants: each breaks the product and nothing for longer than it should."""

from __future__ import annotations

import pytest

from chaos.mutants import MUTANTS
from chaos.mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_replaces_what_it_names_and_puts_it_back(mutant: Mutant) -> None:
    before = [vars(patch.owner)[patch.name] for patch in mutant.patches]
    with mutant.applied():
        meanwhile = [vars(patch.owner)[patch.name] for patch in mutant.patches]
    assert all(one is not other for one, other in zip(before, meanwhile, strict=True))
    assert [vars(patch.owner)[patch.name] for patch in mutant.patches] == before


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
