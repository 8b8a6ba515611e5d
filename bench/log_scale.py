"""Compare the cost of appends and reads in a log of 10 MB and in one of many GB.

One partition's log on real files, default segments (1 GiB) and index intervals, batches of 4 KiB. The log is appended
to until it reaches each size. At each size, a number of appends, reads at the end, reads of 64 KiB anywhere and
look-ups by time are measured call by call. The output is p50 and p99 in microseconds, and the ratios of the last size
to the first. The p99 includes rolls of segments and the kernel's own pauses. In the large log, most reads go to sealed
segments, whose indexes are looked up in files, and to memory that no processor cache holds. Controls show the share of
that: a plain pread of as many bytes at random places, with the least CRC that their check needs, alternates with the
read, so that both meet cold memory equally often.

Run: python -m bench.log_scale [GIB] [--directory DIR]     (default 2; 10 needs that much disk)
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from kraftpy.broker.runtime import OsDirectory
from kraftpy.config.topic import TopicConfig
from kraftpy.log.partition_log import PartitionLog
from kraftpy.log.time_search import search_timestamp
from kraftpy.log.work import finish
from kraftpy.ports import File
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import Millis

START = Millis(1_700_000_000_000)
BATCH_BYTES = 4096
READ_BYTES = 64 * 1024
SAMPLES = 2000
SMALL_BYTES = 100 * 1024 * 1024
UNIT = "us"


def _batches() -> list[bytes]:
    """Yield batches of about 4 KiB, 38 records each, a millisecond apart."""
    rng = random.Random(1)
    return [
        encode_batch([(START + number, b"%08d" % number, rng.randbytes(90), ()) for number in range(38)])
        for _ in range(8)
    ]


class Scale:
    """A log that grows, and the cost of its calls at each size."""

    def __init__(self, directory: Path) -> None:
        self.batches = _batches()
        self.now = START
        self.appended = 0
        topic = TopicConfig(message_timestamp_type="LogAppendTime")
        self.bases: list[int] = []
        self.files: list[File] = []
        self.log = PartitionLog.open(OsDirectory(directory), topic, now=START, clean=True)

    def append(self) -> None:
        """Append the next batch, a millisecond later."""
        self.appended += 1
        self.now = Millis(self.now + 1)
        rolled = self.log.append(bytearray(self.batches[self.appended % 8]), leader_epoch=0, now=self.now).rolled
        if rolled:
            self.log.flush()

    def grow(self, size: int) -> None:
        """Append until the log is that large; store sealed segments on the way, as a broker does."""
        while self.log.segments.size_bytes < size:
            for _ in range(256):
                self.append()

    def sample(self, *calls: Callable[[int], Any], samples: int = SAMPLES) -> list[tuple[float, float]]:
        """Return p50 and p99, in microseconds, of calls with random offsets of the log.

        They run one after the other, each with its own offsets, so that no call warms the memory of another.
        """
        rng = random.Random(2)
        taken: list[list[float]] = [[] for _ in calls]
        for _ in range(samples):
            for call, figures in zip(calls, taken, strict=True):
                offset = rng.randrange(self.log.log_end_offset)
                before = time.perf_counter_ns()
                call(offset)
                figures.append((time.perf_counter_ns() - before) / 1000)
        return [(statistics.median(each), statistics.quantiles(each, n=100)[98]) for each in taken]

    def pread(self, offset: int, length: int) -> None:
        """Read and check as many bytes near the offset's place, with the kernel and the CRC alone."""
        number = bisect_right(self.bases, offset) - 1
        position = (offset - self.bases[number]) * BATCH_BYTES // 38
        crc32c(self.files[number].read(position, length))

    def measure(self) -> dict[str, tuple[float, float]]:
        """Return p50 and p99 of each call at the present size."""
        log, read_on = self.log, [self.log.log_end_offset]
        segments = log.segments
        self.bases, self.files = [each.base_offset for each in segments], [each.log.get() for each in segments]

        def read_tail(_: int) -> None:
            read_on[0] = log.read(read_on[0], READ_BYTES).next_offset

        figures: dict[str, tuple[float, float]] = {}
        (figures["append 4 KiB"],) = self.sample(lambda _: self.append())
        (figures["read on, 64 KiB"],) = self.sample(read_tail, samples=SAMPLES * BATCH_BYTES // READ_BYTES)
        span, end = self.now - START, log.log_end_offset
        figures["read anywhere, 64 KiB"], figures["  control: pread and CRC of 64 KiB"] = self.sample(
            lambda offset: log.read(offset, READ_BYTES), lambda offset: self.pread(offset, READ_BYTES)
        )
        figures["find a time"], figures["  control: pread and CRC of a batch"] = self.sample(
            lambda offset: finish(search_timestamp(log, START + offset * span // end)),
            lambda offset: self.pread(offset, BATCH_BYTES),
        )
        return figures


def run(gib: float = 2.0, directory: Path | None = None) -> dict[str, dict[str, tuple[float, float]]]:
    """Return (p50, p99) in microseconds by size and call. `directory` must be on the disk to be measured."""
    place = Path(tempfile.mkdtemp(prefix="kraftpy-log-scale-", dir=directory))
    try:
        scale = Scale(place)
        figures = {}
        for size in sorted({SMALL_BYTES, 1 << 30, int(gib * 2**30)}):
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
    print(f"{'us per call, p50 / p99':<36}" + "".join(f"{size:>20}" for size in sizes) + f"{'ratios':>14}")
    for call in figures[sizes[0]]:
        cells = [figures[size][call] for size in sizes]
        ratios = " / ".join(f"{last / first:.2f}" for first, last in zip(cells[0], cells[-1], strict=True))
        print(f"{call:<36}" + "".join(f"{f'{p50:.1f} / {p99:.1f}':>20}" for p50, p99 in cells) + f"{ratios:>14}")


if __name__ == "__main__":
    main()
