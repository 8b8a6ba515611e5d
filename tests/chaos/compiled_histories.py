"""The simulation of the same seeds on this tree and on the compiled one: their histories are to be the same bytes.

    python tests/chaos/compiled_histories.py build/compiled [--first SEED] [--seeds N] [--minutes M]

`make compiled` makes the other tree. Methods of compiled classes cannot be replaced, so neither tree has any replaced.
The last line reads `N equal, N different`; the exit status is 1 if any differ, or if a run on either tree fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Compare seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", type=Path)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args()
    check_compiled(options.compiled)
    different = 0
    for seed in range(options.first, options.first + options.seeds):
        ours, theirs = (history(tree, seed, options.minutes) for tree in (ROOT, options.compiled))
        different += ours != theirs
        print(
            f"seed {seed}: {len(ours.splitlines())} operations, {'equal' if ours == theirs else 'different'}",
            flush=True,
        )
    print(f"{options.seeds - different} equal, {different} different")
    return 1 if different else 0


def check_compiled(tree: Path) -> None:
    """End with a message if a tree has no compiled modules."""
    if not any((tree / "kraftpy" / "log").glob("partition_log.*.so")):
        sys.exit(f"{tree} has no compiled modules: make compiled")


def history(tree: Path, seed: int, minutes: float) -> bytes:
    """Return the history of a seed simulated with that tree's modules. CalledProcessError if it comes to no good."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "chaos", "sim", "--replace-nothing", "--shrink", "0"]
        subprocess.run(
            [*command, "--seed", str(seed), "--minutes", f"{minutes:g}"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(tree.resolve())},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return (Path(directory) / f"seed-{seed}.jsonl").read_bytes()


if __name__ == "__main__":
    sys.exit(main())
