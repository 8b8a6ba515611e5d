"""Kafka's command line tools against Apache Kafka and against kraftpy: do they print the same? `make compat-tools`.

    python tests/compat/tools/tools_suite.py                        all command lines; some ten minutes
    python tests/compat/tools/tools_suite.py --story topics         those of a story that needs no other; repeatable
    python tests/compat/tools/tools_suite.py --keep both.json       keep what both gave
    python tests/compat/tools/tools_suite.py --kept both.json       compare with what Kafka gave then, without it

Needs a JDK (17 to 23), Maven and a repository that has Apache Kafka. `command_lines.py` has good command lines and
bad ones, `secure_lines.py` those for clusters with SASL and an authorizer. Clusters of both, of three nodes each, are
given all stories in turn. The outputs are compared line by line after `evening.py` has made them even. Intended
differences are in documented.toml, with their reasons.

Prints each difference, and at last `N same, N documented, N different`. Exit status 1 if anything is different, or if a
documented difference no longer shows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from command_line import CommandLine  # noqa: E402
from command_lines import STORIES as OPEN_STORIES  # noqa: E402
from documented import Documented, differing_lines, read  # noqa: E402
from evening import even  # noqa: E402
from maven import JavaProject  # noqa: E402
from peer_clusters import Kind  # noqa: E402
from secure_lines import STORIES as SECURE_STORIES  # noqa: E402
from tool_clusters import running  # noqa: E402

Outputs = dict[str, list[list[str]]]

STORIES = OPEN_STORIES | SECURE_STORIES

BUILT = HERE.parents[2] / "build" / "compat-tools"


def tools_class_path() -> str:
    """Return the class path of Kafka's tools and of `Tools`. Maven fetches what it lacks."""
    project = JavaProject(BUILT, HERE / "pom.xml")
    project.compile([HERE / "Tools.java"])
    return project.path()


def outputs(kind: Kind, stories: list[str], path: str) -> Outputs:
    """Return what each command line of the stories prints, made even."""
    found: Outputs = {}
    for is_secure in (False, True):
        chosen = [story for story in stories if (story in SECURE_STORIES) == is_secure]
        if not chosen:
            continue
        with running(kind, path, is_secure=is_secure) as (cluster, jvm):
            for story in chosen:
                begun = time.monotonic()
                found[story] = [even(jvm.run(cluster, command), command, cluster) for command in STORIES[story]]
                seconds = time.monotonic() - begun
                print(f"{kind}: {len(found[story])} command lines of {story} in {seconds:.0f} s", flush=True)
    return found


class Tally:
    """Counts command lines by how they compare, and prints those that differ."""

    def __init__(self, documented: list[Documented]) -> None:
        self._documented = documented
        self.same = self.known = self.different = 0

    def compare(self, command: CommandLine, kafka: list[str], here: list[str]) -> None:
        differing = differing_lines(kafka, here)
        unexplained = []
        for line in differing:
            entry = next((each for each in self._documented if each.covers(command.line, line)), None)
            if entry is None:
                unexplained.append(line)
            else:
                entry.seen_in.add(command.line)
        if not differing:
            self.same += 1
        elif not unexplained:
            self.known += 1
        else:
            self.different += 1
            print(f"\n$ {command.line}")
            for line in unexplained:
                print(f"  {line}")

    def unseen(self) -> list[Documented]:
        """Return what is documented and was not seen."""
        return [each for each in self._documented if not each.seen_in]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--story", action="append", choices=list(STORIES), help="only this one; repeatable")
    parser.add_argument("--keep", type=Path, help="write what both gave to this file")
    parser.add_argument("--kept", type=Path, help="compare with this file instead of starting Kafka")
    chosen = parser.parse_args()
    path = tools_class_path()
    stories = chosen.story or list(STORIES)
    kafka: Outputs = json.loads(chosen.kept.read_text())["kafka"] if chosen.kept else outputs("kafka", stories, path)
    here = outputs("kraftpy", stories, path)
    if chosen.keep:
        chosen.keep.write_text(json.dumps({"kafka": kafka, "kraftpy": here}, indent=1))
    tally = Tally(read())
    for story in stories:
        for command, theirs, ours in zip(STORIES[story], kafka[story], here[story], strict=True):
            tally.compare(command, theirs, ours)
    unseen = [] if chosen.story else tally.unseen()
    for each in unseen:
        print(f"\ndocumented, but not seen: {', '.join(each.commands)}: {each.reason}")
    print(f"\n{tally.same} same, {tally.known} documented, {tally.different} different")
    return 1 if tally.different or unseen else 0


if __name__ == "__main__":
    sys.exit(main())
