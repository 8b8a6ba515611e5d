"""Unexpected errors in group coordinators cost a request, or at worst a reload, and nobody is stuck afterwards.

The same random histories as elsewhere, with errors planted at every step of a decision. `World` checks after each step
that the group contradicts itself nowhere and that nobody waits for nothing; when no more errors come up, the group
comes to rest as if there had been none.
"""

from __future__ import annotations

import random

import pytest
import test_consumer_histories
import test_migration_histories
import test_share_group_histories
import test_streams_histories
from planting import Garden, planted

HISTORIES = {
    "consumer": (test_consumer_histories.Members, {"t": 4, "u": 2}),
    "migration": (test_migration_histories.Mixed, {"t": 4, "u": 2}),
    "share": (test_share_group_histories.Members, {"t": 4, "u": 2}),
    "streams": (test_streams_histories.Workers, {"t": 4, "u": 2}),
}


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_group_goes_on_whatever_fails_in_its_decisions(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, topics = HISTORIES[kind]
    garden = Garden(monkeypatch, seed)
    world = planted(made, garden)(random.Random(seed))
    world.topics.become(topics)
    garden.is_armed = True
    group, alive = world.come_to_rest(250), world.alive()
    assert sum(garden.raised.values()) >= world.reloaded
    if group is None:
        return
    of_members = group.consumer or group.share or group.streams
    if of_members is not None:
        assert of_members.state == "Stable"
        assert {client.member_id for client in alive} <= set(of_members.members)
