"""Measures, inside a node of the fuzz, what each step of its event loop costs, and names the code that ran.

Python imports this module at its start if the directory is on PYTHONPATH. In a process that is a test's node, and if
`KRAFTPY_LOOP_PROBE` names a directory, every callback of the main thread's event loop is measured. One that takes
`LEAST_MS` of CPU time of its own thread is written, as a line of JSON, to a file of that directory: when it began (on
the monotonic clock), its CPU and wall time, and the stacks that a second thread saw it in.

CPU time is what the product answers for: a step that waits for the machine or for another thread takes wall time alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

LEAST_MS = 20.0
VARIABLE = "KRAFTPY_LOOP_PROBE"
_SAMPLE_SECONDS = 0.005
_FRAMES = 12
_STACKS = 3


class Probe:
    """Measures the callbacks of one thread's event loop."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._thread_id = threading.get_ident()
        self._step = 0
        """The number of the callback that runs; 0 between callbacks."""
        self._steps = 0
        self._seen: tuple[int, Counter[str]] = (0, Counter())
        """A callback that was seen running, and its stacks."""

    def measured(self, run: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return `Handle._run` with the measurement around it."""

        def measured_run(handle: Any) -> None:
            if threading.get_ident() != self._thread_id:
                return run(handle)
            self._steps += 1
            self._step = self._steps
            began, cpu = time.monotonic(), time.thread_time()
            try:
                return run(handle)
            finally:
                cpu_ms = (time.thread_time() - cpu) * 1000
                step, self._step = self._step, 0
                if cpu_ms >= LEAST_MS:
                    self._write(step, began, cpu_ms)

        return measured_run

    def _write(self, step: int, began: float, cpu_ms: float) -> None:
        seen, stacks = self._seen
        line = {
            "began": began,
            "cpu_ms": round(cpu_ms, 1),
            "wall_ms": round((time.monotonic() - began) * 1000, 1),
            "stacks": [stack for stack, _ in stacks.most_common(_STACKS)] if seen == step else [],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def sample(self) -> None:
        """Look at the thread's stack again and again, while a callback runs. Never returns."""
        before = 0
        while True:
            time.sleep(_SAMPLE_SECONDS)
            step = self._step
            if step and step == before:  # it has lasted for a whole interval
                frame = sys._current_frames().get(self._thread_id)
                if step == self._step:
                    if self._seen[0] != step:
                        self._seen = (step, Counter())
                    self._seen[1][_stack_of(frame)] += 1
                del frame
            before = step


def _stack_of(frame: FrameType | None) -> str:
    """Describe a stack, innermost frame first, down to the callback."""
    found = []
    while frame is not None and frame.f_code.co_name != "measured_run" and len(found) < _FRAMES:
        name = frame.f_code.co_filename.rpartition("/site-packages/")[2]
        name = name[name.find("kraftpy/") :] if "kraftpy/" in name else name.rpartition("/")[2]
        found.append(f"{frame.f_code.co_name} ({name}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(found)


def install(directory: Path) -> None:
    """Measure this thread's event loops from now on."""
    from asyncio import events

    probe = Probe((directory / f"{os.getpid()}.json").open("a"))
    events.Handle._run = probe.measured(events.Handle._run)  # type: ignore[assignment]
    threading.Thread(target=probe.sample, name="loop probe", daemon=True).start()


if os.environ.get(VARIABLE) and "kraftpy.testing.node" in sys.orig_argv:
    install(Path(os.environ[VARIABLE]))
