"""Unexpected errors in group coordinators cost a request, or at worst a reload, and no client gets stuck afterwards."""

from __future__ import annotations

import random

import pytest
import test_consumer_histories
import test_group_histories
import test_migration_histories
import test_share_group_histories
import test_streams_histories
from garden import Garden
from planting import PLACES, planted

from kraftpy.groups.config import GroupConfig
from kraftpy.types import Millis

HISTORIES = {
    "consumer": (test_consumer_histories.Members, {"t": 4, "u": 2}),
    "migration": (test_migration_histories.Mixed, {"t": 4, "u": 2}),
    "share": (test_share_group_histories.Members, {"t": 4, "u": 2}),
    "streams": (test_streams_histories.Workers, {"t": 4, "u": 2}),
}


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_group_goes_on_whatever_fails_in_its_decisions(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, topics = HISTORIES[kind]
    garden = Garden(monkeypatch, seed, PLACES, likelihood=0.004)
    world = planted(made, garden)(random.Random(seed))
    world.topics.become(topics)
    for _ in range(250):
        world.happen()
    world.settle()
    world.check_replay()
    assert garden.count >= world.survived + world.reloaded > 0
    group = world.coordinator.groups.get("g")
    of_members = None if group is None else group.durable_kind()
    if of_members is not None and of_members.members:
        assert of_members.state == "Stable"
        assert {client.member_id for client in world.alive()} <= set(of_members.members)


@pytest.mark.parametrize("seed", range(10))
def test_a_classic_group_goes_on_whatever_fails_in_its_decisions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, garden = random.Random(seed), Garden(monkeypatch, seed, PLACES, likelihood=0.03)
    config = GroupConfig(offsets_retention_minutes=1, offsets_retention_check_interval_ms=20_000)
    clients = planted(test_group_histories.Clients, garden)(config)
    clients.now = Millis(1)
    for _ in range(250):
        clients.move([dice.randrange(2**16) for _ in range(14)])
    garden.is_armed = False
    clients.finish()
    assert garden.count >= clients.survived + clients.reloaded > 0
