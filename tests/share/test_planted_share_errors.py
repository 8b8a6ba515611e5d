"""Unexpected errors in a share coordinator cost a request, or at worst a reload; waiting requests are answered."""

from __future__ import annotations

from random import Random

import pytest
from garden import Garden, Place, Planted
from share_world import KEY, CoordinatorWorld

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share import coordinator
from kraftpy.share.batches import DeliveryState, StateBatch
from kraftpy.share.config import ShareCoordinatorConfig
from kraftpy.share.coordinator import ShareCoordinator
from kraftpy.share.events import Delete, Event, Initialize, Read, Reply, Request, Result, Survived, TopicsDeleted, Write

PLACES: tuple[Place, ...] = (
    *(
        (coordinator, name)
        for name in ("_refusal", "_result", "_updated", "_snapshot", "combine", "merge", "write_value")
    ),
    *((ShareCoordinator, name) for name in ("_record", "_changed", "_appended", "replay")),
)


class PlantedWorld(CoordinatorWorld):
    """The same, with a coordinator that meets errors."""

    def __init__(self, config: ShareCoordinatorConfig, garden: Garden) -> None:
        self.garden = garden
        self.survived = self.reloaded = 0
        super().__init__(config)

    def step(self, event: Event) -> None:
        try:
            with self.garden.stepping():
                effects = self.coordinator.step(event, self.now, self.now)
        except Planted:
            self._load_again(event)
        else:
            self.survived += sum(isinstance(effect, Survived) for effect in effects)
            self.take(effects)
        while self.held and not self.hold:
            self.appended()

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


@pytest.mark.parametrize("seed", range(8))
def test_a_coordinator_goes_on_whatever_fails_in_its_decisions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(f"planted {seed}")
    garden = Garden(monkeypatch, seed, PLACES, likelihood=0.02)
    world = PlantedWorld(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=2), garden)
    keys = [KEY._replace(partition=partition) for partition in range(3)]
    for turn in range(200):
        key = chance.choice(keys)
        world.hold = chance.random() < 0.5
        match chance.randrange(8):
            case 0:
                world.request(Initialize(key=key, state_epoch=turn, start_offset=0))
            case 1:
                world.request(Read(key=key, leader_epoch=1))
            case 2 if chance.random() < 0.2:
                world.request(Delete(key=key))
            case 3:
                world.tick(world.now + 300_000)
            case 4 if world.held:
                world.appended(ErrorCode.NOT_ENOUGH_REPLICAS)
            case 5 if chance.random() < 0.1:
                world.step(TopicsDeleted(topic_ids=frozenset((KEY.topic_id,))))
            case _:
                state = world.coordinator.states.get(key)
                batches = (StateBatch(turn, turn + 1, DeliveryState.ACKNOWLEDGED, 1),)
                epoch = 0 if state is None else state.state_epoch
                said = {"state_epoch": epoch, "leader_epoch": 1, "start_offset": 0, "delivery_complete_count": 0}
                world.request(Write(key=key, batches=batches, **said))
        world.check()
    garden.is_armed = world.hold = False
    while world.held:
        world.appended()
    world.check()
    assert garden.count >= world.survived + world.reloaded > 0
    for key in keys:
        asked = world.request(Initialize(key=key, state_epoch=1_000, start_offset=0))
        assert world.answers[asked].error_code is ErrorCode.NONE
