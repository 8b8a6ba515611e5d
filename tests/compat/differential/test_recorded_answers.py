"""A node of ours is asked what Apache Kafka was asked when `recorded_answers.xz` was made, and answers the same.

So is one with an authorizer, with `recorded_rights.xz`.

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
from worlds import RIGHTS

pytestmark = pytest.mark.timeout(600)  # the first test waits for all answers

load_scenarios()
SEED, KEPT = recording.read()
RIGHTS_SEED, RIGHTS_KEPT = recording.read(recording.FILES[RIGHTS])


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return replay(KEPT, SEED, known_differences.read())[0]


@pytest.fixture(scope="module")
def outcomes_with_rights() -> Outcomes:
    return replay(RIGHTS_KEPT, RIGHTS_SEED, known_differences.read(), RIGHTS)[0]


@pytest.mark.parametrize("scenario", RIGHTS_KEPT)
def test_who_may_do_what_is_as_in_kafka(outcomes_with_rights: Outcomes, scenario: str) -> None:
    check(outcomes_with_rights, scenario, len(RIGHTS_KEPT[scenario]))


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
    assert set(KEPT) | set(RIGHTS_KEPT) <= set(SCENARIOS)
    assert sum(map(len, KEPT.values())) > 1000
    assert sum(map(len, RIGHTS_KEPT.values())) > 1000
