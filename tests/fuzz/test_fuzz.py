"""Fifty thousand requests of the fuzz against four worlds, with two seeds: what `fuzz` finds fails, with the line that
repeats it. And the fuzz itself: a seed is a run, the words reach what they are for, a node that is broken is noticed.

One seed is always the same; the other is of this version of the product, as in `chaos sim --fresh`: the same for who
looks into a failure, another with each change.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import batches
import fuzz
import hostile
import plots
import pytest
import verdicts
from hostile import Plot
from world import World

from chaos.ledger import version
from chaos.seeds import fresh_seeds
from kraftpy.broker.handlers.table import served
from kraftpy.protocol.apis import APIS

SCRIPT = Path(__file__).with_name("fuzz.py")
FIXED = 1
OWN = fresh_seeds(1, version()).start
WORLDS = {
    "one node": ("--nodes", "1", "--requests", "22000", "--seed", str(FIXED)),
    "one node that syncs first": ("--nodes", "1", "--flush-before-ack", "--requests", "10000", "--seed", str(OWN)),
    "three nodes": ("--nodes", "3", "--requests", "12000", "--seed", str(OWN)),
    "three nodes that sync first": ("--nodes", "3", "--flush-before-ack", "--requests", "6000", "--seed", str(FIXED)),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", WORLDS)
def test_no_request_harms_a_node_or_its_other_clients(world: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *WORLDS[world]], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


def _asked(seed: int, numbers: range) -> Iterator[plots.Ask]:
    for number in numbers:
        kind, chance = plots.kind_of(seed, number)
        plot = Plot(chance)
        if kind in ("frames", "unread", "link", "crowd"):
            continue
        for index in range(number * plots.PLOT, (number + 1) * plots.PLOT):
            yield plots.request(seed, index, kind, plot, {"odd": b"i" * 16})


def test_a_seed_and_an_index_are_a_request() -> None:
    first = [each.frame for each in _asked(5, range(200))]
    assert first == [each.frame for each in _asked(5, range(200))]
    assert first != [each.frame for each in _asked(6, range(200))]
    assert [each.frame for each in _asked(5, range(100, 200))] == first[-len([*_asked(5, range(100, 200))]) :]
    assert plots.frame(5, 7) == plots.frame(5, 7)


def test_every_api_is_asked_in_every_version() -> None:
    every = {(key, version) for key in served() for version in range(APIS[key].first, APIS[key].last + 1)}
    seen = {(each.key, each.version) for each in _asked(FIXED, range(1500))}
    assert every - seen == set()


def test_what_an_attack_is_made_of_is_among_the_words() -> None:
    """Rows of the first attack are reached: hostile durations for groups, expressions, heavy batches, long arrays."""
    frames = b"".join(each.frame for each in _asked(FIXED, range(1500)))
    for words in (
        b"by_duration:P" + b"9" * 400,
        b"(((((){1000}){1000}",
        b"a{" + b"9" * 5000,
        f"\n{hostile.FORGED}".encode(),
    ):
        assert words in frames, words


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000])
def test_tiny_records_are_those_made_one_by_one(count: int) -> None:
    assert batches.tiny_records(count) == b"".join(batches.record(each, value=None) for each in range(count))


def test_what_is_wrong_in_a_log_is_found() -> None:
    traceback = "Traceback (most recent call last):\n  File \"/x/kraftpy/a.py\", line 5, in f\n    y\nKeyError: 'z'\n"
    incident = "2026 ERROR kraftpy.broker.containment: group g: unexpected error: ValueError: 7 (f in a.py:5)\n"
    found = verdicts.in_log(f"2026 INFO fine\n{traceback}{incident}\n{hostile.FORGED}\nan \x1b escape\n", 10)
    assert sorted(each.kind for each in found) == ["control characters", "forged line", "incident", "traceback"]
    indented = "".join(f"    {line}\n" for line in traceback.splitlines())
    assert [each[:2] for each in verdicts.in_log(f"2026 ERROR failed\n{indented}", 10)] == [
        each[:2] for each in verdicts.in_log(traceback, 10)
    ]
    assert [each.kind for each in verdicts.in_log("a line\n" * 200_000, 10)] == ["log flood"]
    assert [each.kind for each in verdicts.in_log("INFO group " + "x" * 5000, 10)] == ["long line"]
    assert verdicts.in_log("2026 INFO fine\n" * 100, 10) == []


@pytest.mark.parametrize(("what", "kind"), [("pause", "hang"), ("kill", "death")])
def test_a_node_that_hangs_or_dies_is_found(
    what: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(World):
        def open(self) -> None:
            super().open()
            harm = self.cluster.pause if what == "pause" else self._end
            threading.Timer(2.0, harm, [1]).start()

        def _end(self, node: int) -> None:
            self.cluster._started(node).send(9)  # type: ignore[arg-type]

    monkeypatch.setattr(fuzz, "World", Broken)
    options = fuzz.parsed(["--seed", "1", "--requests", "1000000", "--hang-seconds", "3"])
    one = fuzz.Round(options, 0, options.end)
    one.run(tmp_path, is_trial=True)
    assert kind in [each.kind for each in one.findings], one.findings
    assert one.next < options.end


def test_a_finding_is_shrunk_to_the_plots_that_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted:
        def __init__(self, options: argparse.Namespace, first: int, end: int, left_out: frozenset[int]) -> None:
            kept = set(range(first // plots.PLOT, end // plots.PLOT)) - left_out
            self.findings = [verdicts.Finding("hang", "planted")] if {7, 31} <= kept else []

        def run(self, directory: Path, *, is_trial: bool) -> None:
            assert is_trial

    monkeypatch.setattr(fuzz, "Round", Planted)
    assert fuzz.shrink(fuzz.parsed(["--from", "0", "--to", "320", "--shrink", "hang"])) == [7, 31]
    assert fuzz.shrink(fuzz.parsed(["--from", "0", "--to", "320", "--shrink", "another"])) == []


_NODE = """
import asyncio, sys, time
sys.orig_argv.append("kraftpy.testing.node")
import sitecustomize, importlib
importlib.reload(sitecustomize)

def busy():
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        sum(range(100))

async def run():
    loop = asyncio.get_running_loop()
    loop.call_soon(time.sleep, 0.3)
    await asyncio.sleep(0.01)
    loop.call_soon(busy)
    await asyncio.sleep(0.01)

print(time.monotonic())
asyncio.run(run())
"""


def test_a_step_is_judged_by_its_own_cpu_time_and_named(tmp_path: Path) -> None:
    probe = Path(__file__).with_name("loop_probe")
    environment = {**os.environ, "PYTHONPATH": str(probe), "KRAFTPY_LOOP_PROBE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _NODE], env=environment, capture_output=True, text=True, check=True)
    (step,) = verdicts.long_steps(tmp_path, float(done.stdout), float("inf"))
    assert step.cpu_ms >= 100
    assert step.cause.startswith("busy "), step
    assert verdicts.long_steps(tmp_path, 0.0, float(done.stdout)) == []


def test_the_cause_of_a_step_is_the_same_for_the_same_code() -> None:
    one = verdicts.Step(60.0, 70.0, ["replace (dataclasses.py:3) < f (kraftpy/a.py:5) < g (kraftpy/b.py:9)"])
    other = verdicts.Step(80.0, 80.0, ["f (kraftpy/a.py:7) < g (kraftpy/b.py:11)", "h (x.py:1)"])
    assert one.cause == other.cause == "f (kraftpy/a.py)"
    assert verdicts.Step(60.0, 70.0, []).cause


def test_a_node_measures_its_steps_when_latency_is_judged(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=1, flush_before_ack=False, measures_steps=True)
    try:
        world.open()
        assert [file.stem for file in world.steps_directory.iterdir()] == [str(world.pids()[1])]
    finally:
        world.close()
