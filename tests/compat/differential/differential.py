"""Asks Apache Kafka and kraftpy the same questions, and compares the answers field by field: `make compat-kafka`.

    python tests/compat/differential/differential.py --nodes 1 --seed 1          all of it; Kafka takes some minutes
    python tests/compat/differential/differential.py --only 'fetch.*,produce_.*' the scenarios of these names
    python tests/compat/differential/differential.py --show FILE [--api FETCH]   print what a run has found
    python tests/compat/differential/differential.py --record                    keep what Kafka answered, for the tests

Needs a JDK, Maven and a repository that has Apache Kafka. The scenarios (`ask_*.py`) ask every API in every version,
with good and bad input. Intended differences are in docs/answers.toml, with their reasons. A run ends with a line
"N equal, N documented, N different", and with status 1 if anything is different; above it stand the entries of that
file which nothing has shown. Each kind of difference is a line of JSON in the report; `--show` prints each once.

`--record` keeps the answers of those scenarios of one node that have no difference, if kraftpy alone gives the same
answers to them once more; with `--only`, the others stay recorded as they are. The tests then ask kraftpy alone
(`test_recorded_answers.py`).
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import known_differences  # noqa: E402
import recording  # noqa: E402
import reports  # noqa: E402
from differ import Differ  # noqa: E402
from known_differences import Known, KnownDifferences  # noqa: E402
from outcomes import Outcomes  # noqa: E402
from peer_clusters import Kind, running  # noqa: E402
from scenario_table import SCENARIOS, Scenario  # noqa: E402
from surroundings import make_ready  # noqa: E402
from worlds import LISTENERS, OPEN, SETTINGS  # noqa: E402

RECORDED_SECONDS = 2.0
"""A scenario that takes kraftpy alone longer than this is not recorded: the tests have to be quick."""
PATIENCE = ("broker.session.timeout.ms", "60000")
"""On a machine that stalls, Kafka's controller would fence its only broker: all epochs of leaders would differ then."""


def load_scenarios() -> None:
    for file in sorted(HERE.glob("ask_*.py")):
        importlib.import_module(file.stem)


def chosen(only: str, nodes: int, world: str) -> list[Scenario]:
    """Return the scenarios for this number of nodes in this world whose names match one of the patterns."""
    load_scenarios()
    patterns = only.split(",")
    found = [each for each in SCENARIOS.values() if each.nodes == nodes and each.world == world]
    return [each for each in found if not only or any(re.fullmatch(pattern, each.name) for pattern in patterns)]


def compare(options: argparse.Namespace, scenarios: list[Scenario]) -> tuple[Outcomes, dict[str, list[recording.Kept]]]:
    """Ask both; return what was found, and what Kafka answered in each scenario."""
    outcomes = Outcomes(KnownDifferences(known_differences.read()))
    kept: dict[str, list[recording.Kept]] = {}
    extra = {**SETTINGS[options.world], **dict(setting.split("=", 1) for setting in options.extra)}
    if options.nodes == 1 and not options.record:
        extra.setdefault(*PATIENCE)
    kinds: tuple[Kind, ...] = ("kafka", "kraftpy")
    with ExitStack() as stack:
        listeners = LISTENERS.get(options.world, {})
        clusters = [stack.enter_context(running(kind, options.nodes, extra, listeners)) for kind in kinds]
        differ = Differ(clusters, outcomes, options.seed, options.world)
        stack.callback(differ.close)
        for side in differ.sides:
            make_ready(side)
        for scenario in scenarios:
            began = time.monotonic()
            differ.run(scenario)
            kept[scenario.name] = differ.kept
            asked, different = outcomes.asked[scenario.name], outcomes.differing_scenarios[scenario.name]
            seconds = time.monotonic() - began
            print(f"{scenario.name}: {asked} asked, {different} different, {seconds:.1f} s", flush=True)
        for kind, cluster in zip(kinds, clusters, strict=True):
            for node in range(1, options.nodes + 1):
                (options.report.parent / f"{kind}-{node}.out").write_text(cluster.output(node), encoding="utf-8")
    return outcomes, kept


def record(outcomes: Outcomes, kept: dict[str, list[recording.Kept]], seed: int, world: str) -> None:
    """Keep the scenarios without a difference that kraftpy alone answers the same way, and soon enough.

    Scenarios that were not asked stay as they are recorded, if it was with the same seed.
    """
    same = {name: answers for name, answers in kept.items() if not outcomes.differing_scenarios[name]}
    same = {name: answers for name, answers in same.items() if name not in outcomes.failed and answers}
    again, seconds = replay(same, seed, outcomes.known.entries, world)
    file = recording.FILES[world]
    before, recorded = recording.read(file) if file.exists() else (seed, {})
    stays = {name: answers for name, answers in recorded.items() if before == seed and name not in kept}
    for name, answers in same.items():
        if name in again.failed or again.differing_scenarios[name]:
            print(f"not recorded, for kraftpy alone answers otherwise: {name}")
        elif seconds[name] > RECORDED_SECONDS:
            print(f"not recorded, for it takes {seconds[name]:.1f} s: {name}")
        else:
            stays[name] = answers
    stays = {name: stays[name] for name in SCENARIOS if name in stays}
    recording.write(stays, seed=seed, path=file)
    left_out = sorted(set(kept) - set(same))
    print(f"not recorded, for it differs: {', '.join(left_out) or 'nothing'}")
    number = sum(map(len, stays.values()))
    size, total = file.stat().st_size, sum(seconds.values())
    print(
        f"recorded: {len(stays)} of {len(SCENARIOS)} scenarios, {number} answers, {size} bytes; asked in {total:.0f} s"
    )


def replay(
    kept: dict[str, list[recording.Kept]], seed: int, known: Sequence[Known], world: str = OPEN
) -> tuple[Outcomes, dict[str, float]]:
    """Ask a node of kraftpy what was recorded; return what was found, and how long each scenario took."""
    load_scenarios()
    outcomes = Outcomes(KnownDifferences(known))
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        cluster = running("kraftpy", 1, SETTINGS[world], LISTENERS.get(world, {}))
        differ = Differ([stack.enter_context(cluster)], outcomes, seed, world)
        stack.callback(differ.close)
        make_ready(differ.sides[0])
        for name, answers in kept.items():
            began = time.monotonic()
            differ.run(SCENARIOS[name], answers)
            seconds[name] = time.monotonic() - began
    return outcomes, seconds


def finish(outcomes: Outcomes, options: argparse.Namespace, *, is_whole: bool) -> int:
    """Print what was found, and return the exit status."""
    for line in outcomes.table():
        print(line)
    for name, trace in outcomes.failed.items():
        print(f"{name} could not be asked: {trace}")
    if is_whole:
        for entry in outcomes.known.unused(options.nodes, options.world):
            print(f"nothing shows this entry of {known_differences.FILE.name}: {entry}")
    print(
        f"{len(outcomes.kinds)} kinds of difference in {options.report}, "
        f"{outcomes.words.total()} messages in other words"
    )
    print(outcomes.totals())
    return 1 if outcomes.has_differences() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--world", default=OPEN, choices=tuple(SETTINGS), help="of the clusters, and of the scenarios")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names of scenarios, as regular expressions between commas")
    parser.add_argument("--report", type=Path, default=Path("build/compat-kafka.jsonl"))
    parser.add_argument("--extra", action="append", default=[], help="a setting of both brokers, as name=value")
    parser.add_argument("--record", action="store_true", help="keep what Kafka answers to one node's scenarios")
    reports.add_options(parser)
    options = parser.parse_args()
    if options.record and options.nodes != 1:
        parser.error("only the scenarios of one node are recorded")
    if options.show:
        reports.show(options)
        return 0
    options.report.parent.mkdir(parents=True, exist_ok=True)
    outcomes, kept = compare(options, chosen(options.only, options.nodes, options.world))
    outcomes.write(options.report)
    reports.write_words(outcomes, options.report.with_suffix(".words"))
    if options.record:
        record(outcomes, kept, options.seed, options.world)
    return finish(outcomes, options, is_whole=not options.only)


if __name__ == "__main__":
    sys.exit(main())
