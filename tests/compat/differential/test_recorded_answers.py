"""A node of ours is asked what Apache Kafka was asked when `recorded_answers.xz` was made, and answers the same.

So is one with an authorizer, with `recorded_rights.xz`, and so are one with a secret for delegation tokens and one
without, with `recorded_tokens.xz` and `recorded_no_tokens.xz`.

The scenarios that are recorded are those in which nothing differs, differences that are documented apart. A scenario
that is not recorded yet is recorded by `make compat-kafka-record` once nothing differs in it.
"""

from __future__ import annotations

import json

import known_differences
import pytest
import recording
from differential import load_scenarios, replay
from outcomes import Outcomes
from scenario_table import SCENARIOS
from worlds import NO_TOKENS, RIGHTS, TOKENS

pytestmark = pytest.mark.timeout(600)  # the first test waits for all answers

load_scenarios()
SEED, KEPT = recording.read()
RIGHTS_SEED, RIGHTS_KEPT = recording.read(recording.FILES[RIGHTS])
TOKENS_SEED, TOKENS_KEPT = recording.read(recording.FILES[TOKENS])
NO_TOKENS_SEED, NO_TOKENS_KEPT = recording.read(recording.FILES[NO_TOKENS])


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return replay(KEPT, SEED, known_differences.read())[0]


@pytest.fixture(scope="module")
def outcomes_with_rights() -> Outcomes:
    return replay(RIGHTS_KEPT, RIGHTS_SEED, known_differences.read(), RIGHTS)[0]


@pytest.mark.parametrize("scenario", RIGHTS_KEPT)
def test_who_may_do_what_is_as_in_kafka(outcomes_with_rights: Outcomes, scenario: str) -> None:
    check(outcomes_with_rights, scenario, len(RIGHTS_KEPT[scenario]))


@pytest.fixture(scope="module")
def outcomes_with_tokens() -> Outcomes:
    return replay(TOKENS_KEPT, TOKENS_SEED, known_differences.read(), TOKENS)[0]


@pytest.mark.parametrize("scenario", TOKENS_KEPT)
def test_delegation_tokens_are_as_in_kafka(outcomes_with_tokens: Outcomes, scenario: str) -> None:
    check(outcomes_with_tokens, scenario, len(TOKENS_KEPT[scenario]))


def test_delegation_tokens_without_a_secret_are_as_in_kafka() -> None:
    outcomes = replay(NO_TOKENS_KEPT, NO_TOKENS_SEED, known_differences.read(), NO_TOKENS)[0]
    for scenario, kept in NO_TOKENS_KEPT.items():
        check(outcomes, scenario, len(kept))


@pytest.mark.parametrize("scenario", KEPT)
def test_answers_are_those_of_kafka(outcomes: Outcomes, scenario: str) -> None:
    check(outcomes, scenario, len(KEPT[scenario]))


def check(outcomes: Outcomes, scenario: str, asked: int) -> None:
    assert scenario not in outcomes.failed, outcomes.failed[scenario]
    found = [
        f"{kind.api} {kind.versions} {kind.case}: {kind.about} is {json.dumps(kind.here)}, not {json.dumps(kind.kafka)}"
        for kind in outcomes.kinds.values()
        if kind.scenario == scenario
    ]
    assert found == []
    assert outcomes.asked[scenario] == asked


def test_what_is_recorded_is_asked() -> None:
    assert set(KEPT) | set(RIGHTS_KEPT) | set(TOKENS_KEPT) | set(NO_TOKENS_KEPT) <= set(SCENARIOS)
    assert len(TOKENS_KEPT) == 6
    assert len(NO_TOKENS_KEPT) == 1
    assert sum(map(len, KEPT.values())) > 1000
    assert sum(map(len, RIGHTS_KEPT.values())) > 1000
