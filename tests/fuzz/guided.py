"""The coverage-guided fuzz of one target with atheris, which the extra `fuzz` installs.

    python tests/fuzz/guided.py regexes --seconds 3600
    python tests/fuzz/guided.py --write-seeds          the corpus of every target, from its legal inputs

An input that breaks a target is kept in `found/` of the present directory, and belongs in the corpus once the bug is
fixed. Inputs in `open/` beside the corpus are known and wait for a fix. Without atheris, `tests/fuzz/test_corpus.py`
still replays the corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

CORPUS = HERE / "corpus"
MOST_INPUT_BYTES = 8192
SECONDS_OF_ONE = 10
"""An input that takes longer is a finding, in a guided run."""
MOST_MB = 2048


def names() -> list[str]:
    """Every target."""
    return sorted(path.stem for path in (HERE / "targets").glob("*.py"))


def target(name: str) -> ModuleType:
    """The module of a target."""
    return importlib.import_module(f"targets.{name}")


def survives(module: ModuleType, data: bytes) -> None:
    """Run a target on an input; what it allows is no error."""
    with contextlib.suppress(*module.ALLOWED):
        module.one(data)


def write_seeds() -> None:
    """Write the corpus of every target."""
    for name in names():
        directory = CORPUS / name
        directory.mkdir(parents=True, exist_ok=True)
        for label, data in target(name).seeds():
            (directory / label).write_bytes(data[:MOST_INPUT_BYTES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", choices=names())
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--found", type=Path, default=Path("found"))
    parser.add_argument("--write-seeds", action="store_true")
    options = parser.parse_args()
    if options.write_seeds:
        write_seeds()
        return
    import atheris

    with atheris.instrument_imports(include=["kraftpy", "targets"]):
        module = target(options.target)
    options.found.mkdir(parents=True, exist_ok=True)
    grown = options.found / "grown" / options.target
    grown.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0],
        str(grown),
        str(CORPUS / options.target),
        f"-max_total_time={options.seconds}",
        f"-timeout={SECONDS_OF_ONE}",
        f"-rss_limit_mb={MOST_MB}",
        f"-max_len={MOST_INPUT_BYTES}",
        f"-artifact_prefix={options.found}/{options.target}-",
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, lambda data: survives(module, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
