"""Unexpected errors in a transaction coordinator cost a request, or at worst a reload; every transaction still ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from garden import Garden, Place, Planted
from test_transaction_histories import History

from kraftpy.protocol.errors import ErrorCode
from kraftpy.transactions import coordinator, decisions
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.transactions.events import Effect, Event, Reply, Request, Result, Survived
from kraftpy.transactions.transaction import AT_REST

PLACES: tuple[Place, ...] = (
    *((decisions, name) for name in ("init", "add", "end", "verify", "complete", "fence")),
    (coordinator, "follow"),
    (TransactionCoordinator, "_decide"),
    (TransactionCoordinator, "_complete"),
    (TransactionCoordinator, "_appended"),
    (TransactionCoordinator, "_markers_written"),
    (TransactionCoordinator, "replay"),
    (TransactionCoordinator, "_apply"),
)


class PlantedHistory(History):
    """The same, with a coordinator that meets errors."""

    def __init__(self, seed: int, garden: Garden) -> None:
        self.garden = garden
        self.survived = self.reloaded = 0
        super().__init__(seed)

    def step(self, event: Event) -> list[Effect]:
        try:
            with self.garden.stepping():
                effects = self.coordinator.step(event, self.now, self.now)
        except Planted:
            self._load_again(event)
            effects = []
        self.survived += sum(isinstance(effect, Survived) for effect in effects)
        self.take(effects)
        while self.held and not self.hold:
            self.appended(self.held[0].token)
        return effects

    def _load_again(self, event: Event) -> None:
        """As `Shards` does it."""
        self.reloaded += 1
        if isinstance(event, Request):
            self.answers[event.request_id] = Result(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        self.take([each for each in self.coordinator.unload() if isinstance(each, Reply)])
        for request_id in self.requests.keys() - self.answers.keys():
            self.answers[request_id] = Result(error_code=ErrorCode.NOT_COORDINATOR)
        self.coordinator.unload = lambda: []  # type: ignore[method-assign]
        self.reload()

    def heal(self) -> None:
        self.garden.is_armed = False
        super().heal()


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("seed", range(30))
def test_every_transaction_ends_whatever_fails_in_its_decisions(seed: int, patch: pytest.MonkeyPatch) -> None:
    garden = Garden(patch, seed, PLACES, likelihood=0.03)
    history = PlantedHistory(seed, garden)
    for _ in range(200):
        history.act()
    history.heal()
    assert garden.count >= history.survived + history.reloaded > 0
    for name, value in history.coordinator.durable().items():
        assert value.state in AT_REST, (name, value)
    assert history.requests.keys() == history.answers.keys(), "everybody is answered"
    history.check()
