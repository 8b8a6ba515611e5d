"""Whether an append and a read cost the same in a log of 10 MB and in one of many GB.

One partition's log on real files, default segments (1 GiB) and index intervals, batches of 4 KiB. The log is appended
to until it has each size; there a window of appends, of reads at the end, of reads of 64 KiB anywhere, and of look-ups
by time is measured call by call. Printed are median and mean in microseconds, and the ratio of the medians of the last
size to the first. The mean includes rolls of segments and the kernel's own pauses. In the large log most reads go to
sealed segments, whose indexes are looked up in files, and to memory that no processor cache holds; a plain pread of as
many bytes shows the share of the latter.

Run: python -m bench.log_scale [GIB] [--directory DIR]     (default 2; 10 needs that much disk)
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kraftpy.broker.runtime import OsDirectory
from kraftpy.config.topic import TopicConfig
from kraftpy.log.partition_log import PartitionLog
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import Millis

START = Millis(1_700_000_000_000)
BATCH_BYTES = 4096
READ_BYTES = 64 * 1024
SAMPLES = 2000
SMALL_BYTES = 10 * 1024 * 1024
UNIT = "us"


def _batches() -> list[bytes]:
    """Batches of about 4 KiB, 38 records each, a millisecond apart."""
    rng = random.Random(1)
    return [
        encode_batch([(START + number, b"%08d" % number, rng.randbytes(90), ()) for number in range(38)])
        for _ in range(8)
    ]


class Scale:
    """A log that grows, and what its calls cost at each size."""

    def __init__(self, directory: Path) -> None:
        self.batches = _batches()
        self.now = START
        self.appended = 0
        topic = TopicConfig(message_timestamp_type="LogAppendTime")
        self.log = PartitionLog.open(OsDirectory(directory), topic, now=START, clean=True)

    def append(self) -> None:
        """The next batch, a millisecond later."""
        self.appended += 1
        self.now = Millis(self.now + 1)
        rolled = self.log.append(bytearray(self.batches[self.appended % 8]), leader_epoch=0, now=self.now).rolled
        if rolled:
            self.log.flush()

    def grow(self, size: int) -> None:
        """Append until the log is that large, storing what is sealed on the way as a broker does."""
        while self.log.size_bytes < size:
            for _ in range(256):
                self.append()

    def sample(self, call: Callable[[int], Any], samples: int = SAMPLES) -> tuple[float, float]:
        """Median and mean microseconds of a call, which is given a random offset of the log."""
        rng = random.Random(2)
        taken = []
        for _ in range(samples):
            offset = rng.randrange(self.log.log_end_offset)
            before = time.perf_counter_ns()
            call(offset)
            taken.append((time.perf_counter_ns() - before) / 1000)
        return statistics.median(taken), statistics.fmean(taken)

    def pread(self, offset: int) -> bytes:
        """What the kernel alone takes for as many bytes, about where the offset lies."""
        segment = next(each for each in reversed(self.log.segments) if each.base_offset <= offset)
        return segment.log.get().read((offset - segment.base_offset) * BATCH_BYTES // 38, READ_BYTES)

    def measure(self) -> dict[str, tuple[float, float]]:
        """What each call costs now."""
        log, read_on = self.log, [self.log.log_end_offset]

        def read_tail(_: int) -> None:
            read_on[0] = log.read(read_on[0], READ_BYTES).next_offset

        figures = {"append 4 KiB": self.sample(lambda _: self.append())}
        figures["read on, 64 KiB"] = self.sample(read_tail, samples=SAMPLES * BATCH_BYTES // READ_BYTES)
        figures["  plain pread, 64 KiB"] = self.sample(self.pread)
        figures["read anywhere, 64 KiB"] = self.sample(lambda offset: log.read(offset, READ_BYTES))
        span = self.now - START
        end = log.log_end_offset
        figures["find a time"] = self.sample(
            lambda offset: log.offset_for_timestamp(START + offset * span // end), samples=SAMPLES // 4
        )
        return figures


def run(gib: float = 2.0, directory: Path | None = None) -> dict[str, dict[str, tuple[float, float]]]:
    """(median, mean) microseconds per call by size and call. `directory` must be on the disk that is meant."""
    place = Path(tempfile.mkdtemp(prefix="kraftpy-log-scale-", dir=directory))
    try:
        scale = Scale(place)
        figures = {}
        for size in sorted({SMALL_BYTES, 10 * SMALL_BYTES, int(gib * 2**30)}):
            scale.grow(size)
            figures[_text(size)] = scale.measure()
        scale.log.release()
        return figures
    finally:
        shutil.rmtree(place)


def _text(size: int) -> str:
    return f"{size / 2**30:.4g} GiB" if size >= 2**30 else f"{size / 2**20:.4g} MiB"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("gib", nargs="?", type=float, default=2.0, help="size of the large log")
    parser.add_argument("--directory", type=Path, default=None, help="where to put it")
    arguments = parser.parse_args()
    figures = run(arguments.gib, arguments.directory)
    sizes = list(figures)
    print(f"{'us per call, median (mean)':<26}" + "".join(f"{size:>20}" for size in sizes) + f"{'ratio':>8}")
    for call in figures[sizes[0]]:
        cells = [figures[size][call] for size in sizes]
        ratio = cells[-1][0] / cells[0][0]
        print(
            f"{call:<26}" + "".join(f"{f'{median:.1f} ({mean:.1f})':>20}" for median, mean in cells) + f"{ratio:>8.2f}"
        )


if __name__ == "__main__":
    main()
