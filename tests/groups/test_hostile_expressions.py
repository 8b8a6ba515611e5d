"""Members that subscribe by costly expressions: what they cost the coordinator is counted, in work and in memory."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest
from group_world import World

from kraftpy.groups.consumer import changes as consumer_turns
from kraftpy.groups.consumer.changes import REGEXES
from kraftpy.groups.deadlines import Key
from kraftpy.groups.patterns import Pattern
from kraftpy.groups.topic_matches import REFILL_MS, SLICE_UNITS
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

STATES = 950
"""The number of optional characters in the attack, each of which is a state that is alive after every step."""


def beat(
    world: World, member_id: str, regex: str | None = None, *, epoch: int = 0, group_id: str = "g"
) -> tuple[ErrorCode, int]:
    """The answer's error and member epoch."""
    message = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=1_000 if epoch == 0 else -1,
        subscribed_topic_names=[] if epoch == 0 else None,
        subscribed_topic_regex=regex,
        topic_partitions=[] if epoch == 0 else None,
    )
    answer = world.answers[world.request(message, 1, member_id)]
    return ErrorCode.of(answer.error_code), answer.member_epoch


def resident_bytes() -> int:
    """The memory that the process uses now; if the system does not tell, the most it has used."""
    told = Path("/proc/self/statm")
    if told.exists():
        return int(told.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_legal_expressions_of_many_members_take_little_memory() -> None:
    world = World()
    world.topics.become({"".join(random.Random(each).choices("abcdefgh", k=249)): 1 for each in range(60)})
    assert beat(world, "first", "[a-h]*")[0] is ErrorCode.NONE
    before = resident_bytes()
    for number in range(40):
        world.tick(world.now + 1_000)
        regex = f"(?:[a-h]?){{{STATES - number}}}"
        assert beat(world, f"m{number}", regex)[0] is ErrorCode.NONE
    assert len(world.coordinator.groups["g"].kind.members) == 41
    assert resident_bytes() - before < 60 << 20


def test_a_member_is_let_in_at_once_and_its_topics_follow_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    names = [f"t{number:05}" for number in range(4 * SLICE_UNITS)]
    world.topics.become(dict.fromkeys(names, 1))
    looked_at: list[str] = []
    matches = Pattern.matches
    monkeypatch.setattr(Pattern, "matches", lambda self, name: looked_at.append(name) or matches(self, name))
    assert beat(world, "a", "t.*") == (ErrorCode.NONE, 1), "there is nothing to assign yet"
    group = world.coordinator.groups["g"].kind
    assert group.regexes["t.*"].topics == ()
    assert Key("g", REGEXES) in world.coordinator._deadlines
    rounds = 0
    while Key("g", REGEXES) in world.coordinator._deadlines:
        assert len(looked_at) <= SLICE_UNITS
        looked_at.clear()
        world.tick(world.coordinator.next_deadline())
        rounds += 1
        assert rounds < 100
    group = world.coordinator.groups["g"].kind
    assert rounds >= 4
    assert group.regexes["t.*"].topics == tuple(names)
    assert beat(world, "a", epoch=1) == (ErrorCode.NONE, 2)
    assert len(world.coordinator.groups["g"].kind.target("a")) == len(names)


def test_what_was_matched_before_holds_until_a_change_has_been_looked_at() -> None:
    world = World()
    names = [f"t{number:05}" for number in range(SLICE_UNITS // 2)]
    world.topics.become(dict.fromkeys(names, 1))
    beat(world, "a", "t.*")
    world.tick(world.now + REFILL_MS)
    epoch = beat(world, "a", epoch=2)[1]
    assert len(world.coordinator.groups["g"].kind.target("a")) == len(names)
    more = [f"t{number:05}" for number in range(5 * SLICE_UNITS)]
    world.topics.become(dict.fromkeys(more, 1))
    epoch = beat(world, "a", epoch=epoch)[1]
    assert len(world.coordinator.groups["g"].kind.target("a")) == len(names), "nothing is taken away meanwhile"
    for _ in range(40):
        world.tick(world.now + REFILL_MS)
        epoch = beat(world, "a", epoch=epoch)[1]
    assert len(world.coordinator.groups["g"].kind.target("a")) == len(more)


def test_no_group_is_looked_up_for_the_slices_of_all_others() -> None:
    """Many groups with new expressions share what may be spent: one step looks at no more than a slice."""
    world = World()
    world.topics.become({f"t{number:05}": 1 for number in range(SLICE_UNITS // 2)})
    for number in range(50):
        assert beat(world, "a", f"t.*{number}", group_id=f"g{number}")[0] is ErrorCode.NONE
    pending = [key for key in world.coordinator._deadlines.all() if key.kind == REGEXES]
    assert len(pending) > 40
    rounds = 0
    while any(key.kind == REGEXES for key in world.coordinator._deadlines.all()):
        world.tick(world.now + REFILL_MS)
        rounds += 1
        assert rounds < 500
    assert rounds >= 20
    assert all(group.kind.regexes for group in world.coordinator.groups.values())


def test_a_stored_expression_that_cannot_be_compiled_any_more_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.topics.become({"t": 1})
    assert beat(world, "a", "t|(?:t)") == (ErrorCode.NONE, 2)
    assert world.coordinator.groups["g"].kind.regexes["t|(?:t)"].topics == ("t",)
    notes: list[str] = []
    monkeypatch.setattr(world, "happened", lambda effect: notes.append(getattr(effect, "text", "")))
    log = [(key.replace(b"t|(?:t)", b"t|(?:t("), value) for key, value in world.log]
    world.flushed = [(key, value and value.replace(b"t|(?:t)", b"t|(?:t(")) for key, value in log]
    world.added = {}
    world.reload()
    assert beat(world, "a", epoch=2)[0] is ErrorCode.NONE
    assert world.coordinator.groups["g"].kind.epoch == 3, "its topics have changed: there are none"
    assert world.coordinator.groups["g"].kind.regexes["t|(?:t("].topics == ()
    assert len([text for text in notes if "does not compile and matches nothing" in text]) == 1
    assert beat(world, "b", "(") == (ErrorCode.INVALID_REGULAR_EXPRESSION, 0)
    assert consumer_turns.AGAIN_MS == REFILL_MS
