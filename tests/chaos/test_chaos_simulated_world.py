"""The simulated world: its faults break what they should, and its repairs make it whole again."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from random import Random
from typing import Any

import pytest

from chaos import simulation
from chaos.history import Op, Type
from chaos.nemesis import Fault, FaultSkipped, Kind
from chaos.simulation import Outcome
from chaos.worlds.breaking import SimulatedWorld
from chaos.worlds.loop import Process, SimulatedLoop, collect_quietly
from chaos.worlds.simulated import SimulatedCluster, simulated_cluster
from kraftpy.client.connection import Connection
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.protocol.apis import ApiKey
from kraftpy.types import BrokerId, TopicPartition


def story_of(
    kind: Kind, seed: int, minutes: float = 0.5, *, target: str = "one", lasts_ms: int = 8_000, **settings: str
) -> tuple[Outcome, list[tuple[float, str, str]]]:
    """Return the story of a run with this fault alone."""
    story: list[tuple[float, str, str]] = []
    fault = Fault(id=0, kind=kind, target=target, at_ms=10_000, lasts_ms=lasts_ms, settings=settings)
    outcome = simulation.run(
        seed,
        minutes,
        calls_per_second=6.0,
        calm_seconds=10.0,
        faults=[fault],
        trace=lambda *what: story.append(what),
    )
    assert outcome.problems == []
    assert {verdict.checker: dict(verdict.counts) for verdict in outcome.verdicts if not verdict.valid} == {}
    return outcome, story


def said(story: list[tuple[float, str, str]], who: str, what: str) -> list[float]:
    return [seconds for seconds, each, text in story if each == who and what in text]


def notes(outcome: Outcome, f: str) -> list[Op]:
    return [op for op in outcome.ops if op.f == f]


def hit(outcome: Outcome) -> str:
    """The one node that the fault hit."""
    (node,) = notes(outcome, "fault")[0].value["nodes"]
    return f"node{node}"


def test_a_voter_whose_disk_is_full_tries_once_a_second_and_says_so_once_a_second() -> None:
    outcome, story = story_of(Kind.DISK_FULL, 101, lasts_ms=10_000)
    complaints = said(story, hit(outcome), "the metadata journal cannot be written")
    assert complaints, "the disk was not full for the quorum: another seed"
    assert len(complaints) <= 11
    assert said(story, hit(outcome), "the metadata journal is writable again")


def test_a_failed_sync_ends_the_node_with_a_line_and_a_restart_brings_it_back() -> None:
    outcome, story = story_of(Kind.FSYNC_ERROR, 102)
    assert said(story, hit(outcome), "is not running")
    assert said(story, hit(outcome), "is ready (start 2)")


@pytest.mark.parametrize("of", ["active segment", "sealed segment"])
def test_a_damaged_copy_is_fetched_anew(of: str) -> None:
    for seed in range(103, 109):  # in some there is no such segment yet, or no client reads it any more
        outcome, story = story_of(Kind.CORRUPTION, seed, of=of)
        node = hit(outcome).removeprefix("node")
        if any("was fetched anew" in text and f"on node {node} " in text for _, _, text in story):
            return
    pytest.fail("no damaged copy was found")


def test_a_damaged_journal_is_refused_and_the_node_comes_back_as_a_new_voter() -> None:
    outcome, story = story_of(Kind.CORRUPTION, 103, of="quorum journal")
    assert said(story, hit(outcome), "is not running")
    assert said(story, hit(outcome), "is ready (start 3)")
    assert said(story, "nemesis", "votes again")


def test_a_node_with_an_empty_disk_comes_back_as_a_new_voter() -> None:
    outcome, story = story_of(Kind.LOSE_DISK, 101)
    assert said(story, hit(outcome), "is ready (start 2)")
    assert said(story, "nemesis", "votes again")
    assert notes(outcome, "spared") == []


def test_a_voter_goes_and_comes_back() -> None:
    outcome, story = story_of(Kind.REMOVE_VOTER, 103)
    node = hit(outcome).removeprefix("node")
    (gone,), (back,) = (said(story, "nemesis", f"node {node} votes {what}") for what in ("no more", "again"))
    assert gone < back
    assert notes(outcome, "spared") == []


def test_a_coordinator_that_is_cut_off_tells_no_stale_offsets() -> None:
    """Committed offsets are returned only once followers have confirmed the leader: here some would be stale before."""
    fault = Fault(
        id=0,
        kind=Kind.PARTITION,
        target="coordinator of g",
        at_ms=8_000,
        lasts_ms=15_000,
        settings={"shape": "target"},
    )
    outcome = simulation.run(61, 0.5, faults=[fault], calls_per_second=10, calm_seconds=10.0)
    (groups,) = [verdict for verdict in outcome.verdicts if verdict.checker == "groups"]
    assert groups.examined > 0
    assert (groups.counts, groups.allowed_counts) == ({}, {})


def test_a_leader_that_waits_for_one_follower_does_not_hurry_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is silent, and the coordinator waits for its word: the other follower has given its own, and may rest."""
    fetches: Counter[tuple[int, int]] = Counter()
    known = Connection.send

    def counted(self: Connection, key: ApiKey, request: Any, *version: Any, **how: Any) -> asyncio.Future[Any]:
        if key is ApiKey.FETCH and request.replica_state.replica_id >= 0:
            fetches[int(asyncio.get_running_loop().time()), request.replica_state.replica_id] += 1
        return known(self, key, request, *version, **how)

    monkeypatch.setattr(Connection, "send", counted)
    fault = Fault(id=0, kind=Kind.PAUSE, target="one", at_ms=8_000, lasts_ms=6_000, settings={})
    outcome = simulation.run(61, 0.4, faults=[fault], calls_per_second=10, calm_seconds=10.0)
    assert outcome.problems == []
    assert any(op.f == "committed" and op.type is Type.OK for op in outcome.ops), "nobody asked for a confirmation"
    assert 0 < max(fetches.values()) < 300, "as often as the network lets it, it would be more than a thousand"


def test_who_does_the_same_again_and_again_is_said_to_spin() -> None:
    loop = SimulatedLoop(1)
    busy, calm = Process(loop, "busy", "busy", "1"), Process(loop, "calm", "calm", "2")
    for process in (busy, calm):
        process.most_callbacks = process.callbacks_left = 100

    async def turn(times: int, seconds: float) -> None:
        for _ in range(times):
            await asyncio.sleep(seconds)

    tasks = [busy.run(turn(300, 0.001), name="eager"), calm.run(turn(150, 0.02), name="patient")]
    loop.run_for(5.0)
    assert all(task.done() for task in tasks)
    ((second, who, callbacks, what),) = loop.spins
    assert (second, who, what) == (0, "busy", "eager")
    assert callbacks > 300


@pytest.mark.parametrize(("appends", "is_spin"), [(True, False), (False, True)])
def test_a_node_that_appends_all_the_time_gets_on(appends: bool, is_spin: bool) -> None:
    """A node that fetches everything again, a batch at a time, is at work; one that only repeats itself spins."""
    cluster = SimulatedCluster(1)
    node = cluster.nodes[1]
    node.process = process = Process(cluster.loop, "node1", "node1", "1")
    process.most_callbacks = process.callbacks_left = 100
    file = node.disk.root.open("0.log" if appends else "0.index")

    async def work() -> None:
        for batch in range(200):
            file.write(batch, b"x")
            await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)

    task = process.run(work(), name="fetcher")
    cluster.loop.run_for(2.0)
    assert task.done()
    spins = [(second, who, what) for second, who, _, what in cluster.loop.spins]
    assert spins == ([(0, "node1", "fetcher")] if is_spin else [])


@pytest.mark.parametrize(("gets_on", "spinning"), [(True, []), (False, ["client", "node1"])])
def test_who_reads_from_the_beginning_gets_on(gets_on: bool, spinning: list[str]) -> None:
    """Reader and leader, a small batch at a time, make progress; a reader that gets the same every time spins."""
    cluster = SimulatedCluster(1)
    client, _ = cluster.client("client")
    node = Process(cluster.loop, "node1", "node1", "1")
    cluster.nodes[1].process = node
    for process in (client, node):
        process.most_callbacks = process.callbacks_left = 100
    reader = PartitionReader(TopicPartition("t", 0))

    async def read() -> None:
        for offset in range(200):
            reader.fetch_offset = offset if gets_on else offset % 10
            cluster.fetched(reader, 1)
            await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)

    async def serve() -> None:
        for _ in range(200):
            await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)

    tasks = [client.run(read(), name="fetcher"), node.run(serve(), name="connection")]
    cluster.loop.run_for(2.5)
    assert all(task.done() for task in tasks)
    assert sorted(who for _, who, _, _ in cluster.loop.spins) == spinning


def test_what_never_began_goes_quietly(recwarn: pytest.WarningsRecorder) -> None:
    """A node that is killed at the very instant at which it is started."""
    loop = SimulatedLoop(1)
    process = Process(loop, "node", "node", "1")
    began = []

    async def main() -> None:
        began.append(1)

    process.run(main(), name="main")
    process.die()
    loop.run_for(1.0)
    loop.close()
    gc.collect()
    assert began == []
    assert [str(warning.message) for warning in recwarn] == []


def test_what_waited_while_a_process_was_paused_is_no_spin() -> None:
    loop = SimulatedLoop(1)
    process = Process(loop, "node", "node", "1")
    process.most_callbacks = process.callbacks_left = 100
    done: list[int] = []
    process.pause()
    for number in range(500):
        process.call_soon(done.append, number)
    loop.run_for(2.5)
    process.resume()
    loop.run_for(2.5)
    assert done == list(range(500))
    assert loop.spins == []


def test_a_partition_that_left_a_node_and_came_back_is_read_as_another_replica() -> None:
    outcome = simulation.run(101, 1.0, faults=[])
    found: dict[tuple[int, str, int], list[Op]] = {}
    of: dict[int, set[tuple[int, str, int]]] = {}
    for op in outcome.ops:
        if op.f == "watermarks" and op.type is Type.OK:
            place = (op.value["node"], op.value["key"], op.extra["incarnation"])
            found.setdefault(place, []).append(op)
            of.setdefault(op.extra["replica"], set()).add(place)
    assert [places for places in of.values() if len(places) > 1] == []
    came_back = [place for place, ops in found.items() if len({op.extra["replica"] for op in ops}) > 1]
    assert came_back, "nothing left its node and came back: another seed"
    for place in came_back:
        numbers = [op.extra["replica"] for op in found[place]]
        assert numbers == sorted(numbers), "one that was gone was read again"


def test_a_node_that_waits_for_its_cluster_ends_when_it_is_asked_to() -> None:
    with simulated_cluster(1, brokers=3) as cluster:
        node = cluster.nodes[1]
        node.start()  # alone: it is no majority
        cluster.loop.run_for(5.0)
        assert node.is_running
        assert not node.is_ready
        node.stop()
        cluster.loop.run_until(lambda: not node.is_running, at_most_seconds=10.0)
        assert not node.is_running
        assert node.exits == []


def test_nobody_is_killed_while_the_controller_counts_on_who_has_lost_data() -> None:
    refused, runs_on, is_killed = _killed_beside_who_has_lost_data()
    collect_quietly()
    assert refused == "the controller does not know yet what node 2 has lost"
    assert runs_on
    assert is_killed


def _killed_beside_who_has_lost_data() -> tuple[str, bool, bool]:
    """Why the kill was spared at first, whether the node ran on, and whether it could be killed later."""
    with simulated_cluster(2, brokers=3) as cluster:
        nodes, loop = cluster.nodes, cluster.loop
        for node in nodes.values():
            node.start()
        assert loop.run_until(lambda: all(node.is_ready for node in nodes.values()), at_most_seconds=60.0)
        world = SimulatedWorld(cluster, Random(1))
        process, _ = cluster.client("nemesis")

        async def harm() -> str:
            await world.lose_unsynced(2)
            try:
                await world.kill(3)
            except FaultSkipped as spared:
                return str(spared)
            return "it was not"

        def is_fenced(fenced: bool) -> bool:
            images = [node.broker.image for node in nodes.values() if node.is_ready and node.broker is not None]
            found = [image.broker(BrokerId(2)) for image in images]
            return all(each is not None and each.fenced is fenced for each in found)

        assert loop.run_until(lambda: is_fenced(False), at_most_seconds=20.0), "a broker begins fenced"
        harmed = process.run(harm(), name="harm")
        loop.run_until(harmed.done, at_most_seconds=1.0)
        runs_on = nodes[3].is_running
        assert loop.run_until(lambda: is_fenced(True), at_most_seconds=20.0)
        killed = process.run(world.kill(3), name="kill")
        loop.run_until(killed.done, at_most_seconds=1.0)
        return harmed.result(), runs_on, not nodes[3].is_running


def test_an_unexpected_error_that_a_node_survived_is_a_problem_of_the_run() -> None:
    """However the node ended afterwards: nothing excuses it."""
    with simulated_cluster(1, brokers=1) as cluster:
        node = cluster.nodes[1]
        node.start()
        assert cluster.loop.run_until(lambda: node.is_ready, at_most_seconds=60.0)
        assert node.survived == []
        assert node.broker is not None
        node.broker.incidents.note("group g", KeyError("x"))
        node.kill()
        node.start()
        assert cluster.loop.run_until(lambda: node.is_ready, at_most_seconds=60.0)
        assert len(node.survived) == 1
        assert node.survived[0].startswith("group g: KeyError")
        assert node.exits == []
    collect_quietly()
