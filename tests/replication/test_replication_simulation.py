"""Seeds of the simulation, few enough for every run, and that its oracle sees a rule that is switched off.

More: `make sim`, or `python tests/replication/replication_simulation.py --seeds 5000`.
"""

from __future__ import annotations

import pytest
from replication_simulation import run
from simulated_parts import Violation


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_three_replicas(first: int) -> None:
    for seed in range(first, first + 10):
        run(seed)


def test_five_replicas() -> None:
    for seed in range(1000, 1008):
        run(seed, replicas=5)


FAST_RESTARTS: dict[str, object] = {
    "min_insync_replicas": 2,
    "slow": 0.3,
    "restarts_ms": [1, 5, 20],
    "pauses_ms": [50, 200],
    "weights": [0, 4, 0, 0, 1, 2, 0, 0, 0, 0],
}
MANY_LEADERS: dict[str, object] = {
    "slow": 0.1,
    "restarts_ms": [1, 30, 300],
    "pauses_ms": [50, 200, 600],
    "weights": [1, 0, 1, 1, 1, 4, 0, 0, 0, 0],
}


@pytest.mark.parametrize(
    ("rule", "near", "weather"),
    [
        ("truncate by epochs", 82, {}),
        ("maximal isr", 25, {}),
        ("acks of the isr", 21, {}),
        ("min isr holds the high watermark", 46, {}),
        ("late answers", 105, {}),
        ("broker epochs", 133, FAST_RESTARTS),
        ("epoch start", 53, MANY_LEADERS),
    ],
)
def test_the_oracle_sees_that_a_rule_is_missing(rule: str, near: int, weather: dict[str, object]) -> None:
    """`near` is a seed whose run did; the search begins there.

    The other two rules have tests of their own: `test_late_batches` and `leader_proposals.script`.
    """
    for seed in range(near, near + 150):
        try:
            run(seed, without=frozenset({rule}), weather=weather)
        except Violation:
            return
    pytest.fail(f"nothing noticed that {rule!r} was off")
