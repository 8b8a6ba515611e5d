"""A node's disk: an ext4 image that is mounted, filled, frozen, shut down or lost, and has bits of its files flipped.

A file system that is shut down fails every operation with EIO. `AFTER_SYNC` writes everything first. `AT_ONCE` writes
nothing more; after the next mount, everything that had not reached the disk is gone, as after a power failure.

Everything here blocks, and needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from chaos.nemesis import NodeId
from chaos.replica_logs import Reading, read_node
from kraftpy.log import layout
from kraftpy.metadata import journal

DISK_BYTES: Final = 512 << 20
_MOMENT_SECONDS: Final = 0.02
_FREEZE, _THAW = 0xC0045877, 0xC0045878
_SHUTDOWN: Final = 0x8004587D
AFTER_SYNC, AT_ONCE = 0, 2


def tool(*command: str) -> str:
    """Return a command's output. Raises RuntimeError with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def unmount(path: Path) -> None:
    """Unmount, once no process has a file open there: those that had were killed."""
    deadline = time.monotonic() + 30
    while (done := subprocess.run(["umount", str(path)], capture_output=True, text=True)).returncode != 0:
        if "not mounted" in done.stderr or "no mount point" in done.stderr:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(done.stderr.strip())
        time.sleep(0.05)


def mounts_below(directory: Path) -> list[Path]:
    """Return what is mounted there."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return [Path(path) for path in mounts if path.startswith(f"{directory}/")]


def _control(path: Path, request: int, argument: int = 0) -> None:
    """Call an ioctl of the file system mounted there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, request, argument.to_bytes(4, sys.byteorder))
    finally:
        os.close(descriptor)


def thaw(path: Path) -> None:
    """Let the file system continue, if it is frozen."""
    with contextlib.suppress(OSError):
        _control(path, _THAW)


class Disk:
    """An ext4 image, mounted."""

    def __init__(self, image: Path, mounted: Path) -> None:
        self.image = image
        self.mounted = mounted
        self.is_shut_down = False
        self._slow: tuple[threading.Thread, threading.Event] | None = None

    @property
    def data(self) -> Path:
        """The node's log directory: not the root of the file system, which contains lost+found."""
        return self.mounted / "data"

    @property
    def _filler(self) -> Path:
        return self.mounted / "filler"

    def make(self) -> None:
        """Make an empty disk, and mount it."""
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(DISK_BYTES)
        tool("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        self.mounted.mkdir(parents=True, exist_ok=True)
        self._mount()
        self.data.mkdir()

    def _mount(self) -> None:
        tool("mount", "-o", "loop", str(self.image), str(self.mounted))
        self.is_shut_down = False

    def mount_again(self) -> None:
        """Mount it again after a shutdown; no process may have a file open there."""
        unmount(self.mounted)
        self._mount()

    def shut_down(self, how: int) -> None:
        """Make every operation on it fail from now on."""
        self.set_slow(0)
        _control(self.mounted, _SHUTDOWN, how)
        self.is_shut_down = True

    def fill(self) -> None:
        """Fill all free space."""
        with self._filler.open("ab") as file:
            step = 64 << 20
            while step >= 1 << 10:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                except OSError:
                    step //= 2

    def empty(self) -> None:
        """Free the space again."""
        if not self.is_shut_down:
            self._filler.unlink(missing_ok=True)

    def set_slow(self, delay_ms: int) -> None:
        """Make writes and syncs wait for this long at a time; 0 lets everything continue."""
        slow, self._slow = self._slow, None
        if slow is not None:
            thread, is_over = slow
            is_over.set()
            thread.join()
        if delay_ms and not self.is_shut_down:
            is_over = threading.Event()
            thread = threading.Thread(target=self._freeze, args=(delay_ms / 1000, is_over), daemon=True)
            self._slow = thread, is_over
            thread.start()

    def _freeze(self, seconds: float, is_over: threading.Event) -> None:
        while not is_over.is_set():
            try:
                _control(self.mounted, _FREEZE)
            except OSError:  # full, or shut down meanwhile
                return
            try:
                is_over.wait(seconds)
            finally:
                _control(self.mounted, _THAW)
            is_over.wait(_MOMENT_SECONDS)


def corruptible(data: Path, of: str) -> Iterator[Path]:
    """Return the files of that sort; for logs, non-empty ones of topics."""
    if of == "quorum journal":
        yield from (file for file in data.glob(f"**/{journal.JOURNAL}") if file.stat().st_size)
        return
    for directory in data.iterdir():
        if not directory.is_dir() or directory.name.startswith("__") or "." in directory.name:
            continue
        segments = sorted(directory.glob(f"*{layout.LOG}"))
        chosen = segments[-1:] if of == "active segment" else segments[:-1]
        yield from (file for file in chosen if file.stat().st_size)


def flip(file: Path, chance: Random) -> None:
    """Flip one bit on the disk: its page is not left in memory, where no disk would have changed it."""
    with file.open("r+b", buffering=0) as opened:
        at = chance.randrange(os.fstat(opened.fileno()).st_size)
        (byte,) = os.pread(opened.fileno(), 1, at)
        os.pwrite(opened.fileno(), bytes([byte ^ 1 << chance.randrange(8)]), at)
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _wrong(reading: Reading) -> str | None:
    """Also a leader epoch that falls: that field of a batch is in no checksum, and `kraftpy log verify` looks at it."""
    for (_, last, epoch, _), (base, _, next_epoch, _) in itertools.pairwise(reading.value["batches"]):
        if next_epoch < epoch:
            return f"leader epoch {next_epoch} at {base} follows {epoch} up to {last}"
    return reading.damage


def damaged(data: Path, node: NodeId) -> list[str]:
    """The partitions of which a batch is damaged: in two looks, since what is being written is not yet whole."""

    def look(keys: Sequence[str]) -> dict[str, str]:
        found = ((str(reading.value["key"]), _wrong(reading)) for reading in read_node(data, node, keys))
        return {key: wrong for key, wrong in found if wrong is not None}

    first = look([path.name for path in data.iterdir() if path.is_dir() and re.fullmatch(r"[a-z]\w*-\d+", path.name)])
    if not first:
        return []
    time.sleep(1.0)
    again = look(sorted(first))
    return [key for key in sorted(again) if again[key] == first[key]]
