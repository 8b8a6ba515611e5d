"""Every input that the guided fuzz begins with, or has found, is survived again, within bounds on work and memory."""

from __future__ import annotations

import importlib.util

import bounds
import guided
import pytest


@pytest.mark.parametrize("name", guided.names())
def test_inputs_are_survived_in_bounds(name: str) -> None:
    module = guided.target(name)
    inputs = sorted((guided.CORPUS / name).iterdir())
    assert inputs, "a target has a corpus"
    guided.survives(module, inputs[0].read_bytes())  # imports and compilation happen once, and are no input's work
    wrong = []
    for path in inputs:
        data = path.read_bytes()
        try:
            bounds.bounded(lambda taken: guided.survives(module, taken), data, getattr(module, "MORE_BYTES", 0))
        except (Exception, bounds.TooMuch) as error:
            wrong.append(f"{path.name}: {type(error).__name__}: {error}"[:300])
    assert wrong == []


@pytest.mark.parametrize("name", guided.names())
def test_the_corpus_holds_what_a_target_begins_with(name: str) -> None:
    kept = {path.name: path.read_bytes() for path in (guided.CORPUS / name).iterdir()}
    made = {label: data[: guided.MOST_INPUT_BYTES] for label, data in guided.target(name).seeds()}
    assert made.keys() <= kept.keys(), "python tests/fuzz/guided.py --write-seeds"


def test_a_target_that_costs_too_much_is_noticed() -> None:
    with pytest.raises(bounds.TooMuch, match="calls"):
        bounds.bounded(lambda data: [len(data) for _ in range(10_000_000)] and None, b"x")
    with pytest.raises(bounds.TooMuch, match="memory"):
        bounds.bounded(lambda data: len(bytes(50_000_000)) and None, b"x")


def test_atheris_is_asked_for_by_its_extra_alone() -> None:
    """The replay needs nothing but the package: guided runs import atheris when they begin."""
    assert "atheris" not in vars(guided)
    assert importlib.util.find_spec("kraftpy") is not None
