"""A structure-aware fuzz of whole nodes: one line repeats a run.

    python tests/fuzz/fuzz.py --requests 50000 --nodes 1 --seed 7 [--flush-before-ack] [--judge-latency]
    python tests/fuzz/fuzz.py --seed 7 --from 4096 --to 4200        those requests alone
    python tests/fuzz/fuzz.py --seed 7 --from 4096 --to 4200 --shrink hang    fewest plots that still do it

Each request is a function of the seed and an index (`plots`); ids that nodes give out are put in. A run has rounds of
`ROUND` requests, each against new nodes; a round that kills a node, or makes it hang, ends there, and the next begins
behind it. During a round an honest client (`honest`) must be served, and the nodes' memory and the size of their logs
are watched. After it, memory must be back; no group and no transaction may be stuck; everything acknowledged must be
readable; the nodes must stop in bounded time while clients continue to send requests, start again with strangers at
their links, and still have everything; and their logs must hold no traceback, no incident and nothing that a client
wrote (`verdicts`).

The bounds are wide because a machine may be slow: nothing here judges speed except `--judge-latency`. It judges the
answers of the honest client, which a busy machine delays too, and the steps of each node's event loop: none may take
more than `STEP_MS` of the CPU time of its thread (`loop_probe`), which no other process adds to.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import link_frames
import verdicts
from attack import Attack
from broker_wire import connect
from plots import PLOT
from verdicts import Finding, Step
from world import SECRET, World

from kraftpy.config import Address
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.testing.server_process import BrokerDied

ROUND = 50_000
HANG_SECONDS = 12.0
"""How long a request of the honest client may remain unanswered."""
MOST_MB = 2500.0
"""Memory at which a node is ended, before the machine suffers."""
BACK_MB = 600.0
"""How much more memory than before the attack a node may have 10 seconds after it."""
BACK_SECONDS = 10.0
STOP_SECONDS = 25.0
MOST_CROWD = 1200
P99_MS, STEP_MS = 100.0, 50.0
"""Judged with `--judge-latency` alone."""
_MOST_BROKEN = 40
_STEPS_SAID = 10


class Honest:
    """The honest client's process."""

    def __init__(self, brokers: list[Address], file: Path) -> None:
        self.file = file
        self.file.touch()
        self.oldest = 0.0
        self.name = ""
        self.result: dict[str, Any] = {}
        script = Path(__file__).with_name("honest.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), ",".join(map(str, brokers)), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "operations" in said:
                self.result = said["operations"]
            else:
                self.oldest, self.name = said["oldest"], said["name"]

    def stop(self) -> dict[str, Any]:
        """End it, and return its report on its requests."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write("stop\n")
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self.result


class Round:
    """Nodes, and the attack on them from one index to another."""

    def __init__(
        self, options: argparse.Namespace, first: int, end: int, left_out: frozenset[int] = frozenset()
    ) -> None:
        self.options = options
        self.first, self.end, self.left_out = first, end, left_out
        self.findings: list[Finding] = []
        self.next = end
        self.figures: dict[str, Any] = {}
        self.steps: list[Step] = []
        """Long steps of the nodes' event loops during the attack, longest first."""
        self.outcomes: Counter[str] = Counter()
        self.sent = 0
        self._peak_mb = self._longest = 0.0

    def run(self, directory: Path, *, is_trial: bool = False) -> None:
        """Attack; then, unless it is a trial or a node is down, look after the world."""
        world = World(
            directory,
            nodes=self.options.nodes,
            flush_before_ack=self.options.flush_before_ack,
            measures_steps=self.options.judge_latency or self.options.name_steps,
        )
        try:
            world.open()
            before_mb = world.resident_mb()
            honest = Honest(world.brokers, directory / "acknowledged")
            started = time.monotonic()
            try:
                is_whole = asyncio.run(self._attack(world, honest))
            finally:
                seconds = time.monotonic() - started
                served = honest.stop()
                self.steps = verdicts.long_steps(world.steps_directory, started, time.monotonic())
            self.figures = {"requests": self.sent, "seconds": round(seconds, 1), "honest": served}
            self.figures |= {"before_mb": round(before_mb), "peak_mb": round(self._peak_mb)}
            if is_whole:
                self._judge_service(served)
                if not is_trial:
                    self._afterwards(world, honest.file, before_mb)
            elif not is_trial:
                self._start_again(world)
            self.figures["log_bytes"] = world.log_bytes()
            for node, text in world.logs().items():
                for found in verdicts.in_log(text, self.sent):
                    self._find(found._replace(detail=f"node {node}: {found.detail}"))
        except (BrokerDied, OSError, EOFError, AssertionError) as error:
            self._find(Finding("world", f"{type(error).__name__}", str(error)[-3000:]))
            for node, text in world.logs().items():
                for found in verdicts.in_log(text, self.sent):
                    self._find(found._replace(detail=f"node {node}: {found.detail}"))
        finally:
            with contextlib.suppress(BrokerDied):
                world.close()

    def _find(self, finding: Finding) -> None:
        if finding[:2] not in [each[:2] for each in self.findings]:
            self.findings.append(finding)

    # --- during the attack -----------------------------------------------------------------------------------------

    async def _attack(self, world: World, honest: Honest) -> bool:
        """Run the attack; return True if it reached its end."""
        attack = Attack(
            seed=self.options.seed,
            first=self.first,
            end=self.end,
            brokers=world.brokers,
            for_brokers=world.for_brokers,
            controllers=world.controllers,
            secret=SECRET,
            most_crowd=self.options.most_crowd,
            topic_ids=world.topic_ids,
            homes=world.homes,
            left_out=self.left_out,
        )
        running = asyncio.create_task(attack.run())
        broken = ""
        while not running.done() and not broken:
            await asyncio.wait([running], timeout=0.25)
            broken = self._broken(world, honest)
        for _ in range(8):  # the last requests have their effect, too
            if not broken:
                await asyncio.sleep(0.25)
                broken = self._broken(world, honest)
        began = time.monotonic() - honest.oldest if broken.startswith("hang") else time.monotonic()
        suspects = attack.suspects(began - 2.0, began + 0.3)
        stack = _stack(world.pids()) if broken else ""
        attack.should_stop = True
        if not running.done():
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        self.sent, self.outcomes = attack.sent, attack.outcomes
        for cause, said in attack.problems.items():
            self._find(Finding("answer", cause, said))
        if not broken:
            return True
        kind, _, cause = broken.partition(": ")
        self._find(Finding(kind, cause, f"not answered: {suspects[:40]}{stack}"))
        self.next = min(self.end, attack.next)
        return False

    def _broken(self, world: World, honest: Honest) -> str:
        if died := world.died():
            said = world.cluster.logs(died[0]).strip().splitlines()
            return f"death: a node ended by itself: {verdicts._shape(said[-1]) if said else ''}"
        megabytes = world.resident_mb()
        self._peak_mb = max(self._peak_mb, megabytes)
        if megabytes > MOST_MB:
            return f"memory: a node has more than {MOST_MB:g} MB"
        self._longest = max(self._longest, honest.oldest)
        if honest.oldest > self.options.hang_seconds:
            return f"hang: the honest client is not answered for {self.options.hang_seconds:g} s"
        return ""

    def _judge_service(self, served: dict[str, Any]) -> None:
        if not served:
            self._find(Finding("honest", "it said nothing"))
        for name, each in served.items():
            for error in each["errors"]:
                self._find(Finding("honest", f"{name}: {error}"))
            if not each["count"]:
                self._find(Finding("honest", f"{name} never succeeded", str(each)))
            if self.options.judge_latency and each["p99"] > P99_MS:
                self._find(Finding("latency", f"p99 of {name} is {each['p99']} ms"))
        if self.options.judge_latency:
            for step in self.steps:
                if step.cpu_ms > STEP_MS:
                    self._find(Finding("stall", step.cause, str(step)))

    # --- after it --------------------------------------------------------------------------------------------------

    def _start_again(self, world: World) -> None:
        """After a death or a hang: kill, start, and see whether that helps."""
        world.kill()
        for node in world.died():
            with contextlib.suppress(BrokerDied, AssertionError):
                world.cluster.wait_ended(node)
        try:
            world.start()
            time.sleep(2)
        except BrokerDied as error:
            self._find(Finding("no restart", "a node does not start again on what it has", str(error)[-1500:]))
            return
        if died := world.died():
            self._find(
                Finding("no restart", "a node dies again once it has started", world.cluster.logs(died[0])[-1500:])
            )

    def _afterwards(self, world: World, acknowledged: Path, before_mb: float) -> None:
        deadline = time.monotonic() + BACK_SECONDS
        while world.resident_mb() > before_mb + BACK_MB and time.monotonic() < deadline:
            time.sleep(0.2)
        self.figures["after_mb"] = round(world.resident_mb())
        if world.resident_mb() > before_mb + BACK_MB:
            self._find(
                Finding("memory", "it is not back", f"{before_mb:.0f} MB before, {world.resident_mb():.0f} after")
            )
        self.findings += verdicts.stuck(world)
        self.findings += verdicts.lost(world, acknowledged)
        if world.nodes > 1:
            self.findings += verdicts.posed(world)
        self._stop(world)
        if world.nodes > 1:
            self._strangers_first(world)
        world.start()
        self.findings += verdicts.lost(world, acknowledged)

    def _stop(self, world: World) -> None:
        """Stop the nodes one after the other, while clients ask and do not read."""
        asking = [_ask_on(address) for address in world.brokers for _ in range(10)]
        late: list[str] = []
        pids = world.pids()
        looking = threading.Timer(STOP_SECONDS, lambda: late.append(_stack(pids)))
        looking.start()
        try:
            seconds = world.stop()
        except BrokerDied as error:
            self._find(Finding("slow stop", "a node does not stop", f"{error}{''.join(late)}"))
            world.kill()
            return
        finally:
            looking.cancel()
            for connection in asking:
                connection.close()
        self.figures["stop_seconds"] = round(seconds, 1)
        if seconds > STOP_SECONDS:
            self._find(
                Finding("slow stop", f"it takes more than {STOP_SECONDS:g} s", f"{seconds:.1f} s{''.join(late)}")
            )

    def _strangers_first(self, world: World) -> None:
        """A voter that knows no peer yet, and those who say hello to it meanwhile."""
        node = world.cluster.nodes[0]
        world.start_alone(node)
        chance = Random(f"{self.options.seed}/strangers")
        address, said = world.controllers[node], 0
        deadline = time.monotonic() + 5.0
        while said < 60 and time.monotonic() < deadline and world.cluster.is_running(node):
            with contextlib.suppress(OSError), connect(str(address), 0.05) as connection:
                connection.sendall(link_frames.hello(chance))
                said += 1
                connection.recv(1000)
            time.sleep(0.01)
        time.sleep(0.5)
        if not world.cluster.is_running(node):
            text = world.cluster.logs(node).strip().splitlines()
            self._find(Finding("death", "of a voter to which strangers said hello", text[-1] if text else ""))
            with contextlib.suppress(BrokerDied):
                world.cluster.wait_ended(node)


def _stack(pids: dict[int, int]) -> str:
    """Return the stacks of the nodes, if py-spy is installed."""
    if (spy := shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/bin")) is None:
        return ""
    said = ""
    for node, pid in pids.items():
        command = [spy, "dump", "--nonblocking", "--pid", str(pid)]  # a node may be stopped, and would never be dumped
        try:
            dumped = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            continue
        main = dumped.stdout.partition('"MainThread"')[2].partition("\nThread")[0]
        if main:
            said += f"\n    node {node}:\n" + "\n".join(main.splitlines()[1:12])
    return said


def _ask_on(address: Address) -> Any:
    """Keep sixty requests in flight on a connection whose answers are not read."""
    connection = connect(str(address))
    connection.sendall(encode_request(ApiKey.METADATA, 9, 1, "odd", MetadataRequest(topics=None)) * 60)
    return connection


# --- the command ---------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> list[Finding]:
    """Run all rounds. Return the findings, one for each cause."""
    found: dict[tuple[str, str], Finding] = {}
    first, broken = options.first, 0
    while first < options.end and broken < _MOST_BROKEN:
        end = min(options.end, (first // ROUND + 1) * ROUND)
        one = Round(options, first, end)
        directory = Path(tempfile.mkdtemp(prefix="kraftpy-fuzz-"))
        try:
            one.run(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        print(f"{first} to {one.next}: {_said(one)}", flush=True)
        for finding in one.findings:
            if finding[:2] not in found or finding.kind in ("death", "hang", "memory"):
                found[finding[:2]] = finding
                print(f"FOUND between {first} and {one.next}: {finding}", flush=True)
                print(f"    again: {_command(options, first, one.next)}", flush=True)
        broken += one.next < end
        first = one.next
    return list(found.values())


def _said(one: Round) -> str:
    figures = dict(one.figures)
    served = figures.pop("honest", {})
    rate = figures.get("requests", 0) / max(figures.get("seconds", 1), 0.1)
    lines = [f"{figures}, {rate:.0f} requests/s; {dict(one.outcomes.most_common(12))}"]
    for name, each in served.items():
        lines.append(f"    {name}: {each['count']} times, p50 {each['p50']} p99 {each['p99']} max {each['max']} ms")
        if each["errors"] or each["retries"]:
            lines[-1] += f"; errors {each['errors']}, retries {each['retries']}"
    lines += [f"    step of {each}" for each in one.steps[:_STEPS_SAID]]
    return "\n".join(lines)


def _command(options: argparse.Namespace, first: int, end: int) -> str:
    flags = " --flush-before-ack" if options.flush_before_ack else ""
    flags += " --judge-latency" if options.judge_latency else ""
    return f"python tests/fuzz/fuzz.py --seed {options.seed} --nodes {options.nodes}{flags} --from {first} --to {end}"


def shrink(options: argparse.Namespace) -> list[int]:
    """The fewest plots found, by halving, that still give a finding with these words; printed as it goes."""
    plots = list(range(options.first // PLOT, -(-options.end // PLOT)))

    def fails(kept: list[int]) -> bool:
        left_out = frozenset(range(options.first // PLOT, -(-options.end // PLOT))) - frozenset(kept)
        one = Round(options, options.first, options.end, left_out)
        directory = Path(tempfile.mkdtemp(prefix="kraftpy-fuzz-"))
        try:
            one.run(directory, is_trial=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        hit = any(options.shrink in str(finding) for finding in one.findings)
        print(f"{len(kept)} plots: {'yes' if hit else 'no'}", flush=True)
        return hit

    if not fails(plots):
        print("it does not happen again")
        return []
    pieces = 2
    while len(plots) > 1:
        size = -(-len(plots) // pieces)
        chunks = [plots[at : at + size] for at in range(0, len(plots), size)]
        for chunk in chunks:
            rest = [each for each in plots if each not in chunk]
            if len(chunks) > 2 or len(chunk) < len(plots):
                if fails(chunk):
                    plots, pieces = chunk, 2
                    break
                if len(chunks) > 2 and fails(rest):
                    plots, pieces = rest, max(pieces - 1, 2)
                    break
        else:
            if size == 1:
                break
            pieces = min(len(plots), 2 * pieces)
    print(f"plots {plots}: indexes {[(each * PLOT, each * PLOT + PLOT) for each in plots]}")
    return plots


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--flush-before-ack", action="store_true")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="end", type=int)
    parser.add_argument("--shrink", help="words of a finding")
    parser.add_argument("--judge-latency", action="store_true")
    parser.add_argument("--name-steps", action="store_true", help="say what long steps of the event loops do")
    parser.add_argument("--hang-seconds", type=float, default=HANG_SECONDS)
    parser.add_argument("--most-crowd", type=int, default=MOST_CROWD)
    options = parser.parse_args(arguments)
    options.end = options.first + options.requests if options.end is None else options.end
    return options


def main() -> int:
    options = parsed()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * options.most_crowd:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * options.most_crowd, hard), hard))
    print(_command(options, options.first, options.end), flush=True)
    if options.shrink:
        return 1 if shrink(options) else 0
    found = run(options)
    print(f"{len(found)} findings" if found else "nothing found")
    for finding in found:
        print(f"- {finding.kind}: {finding.cause}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
