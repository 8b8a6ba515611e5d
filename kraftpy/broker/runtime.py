"""The real ports: directories and files of the operating system, and its clocks.

Everything here is synchronous and may block; the broker calls what can block for long (`sync`, `delete` of a tree,
recovery) from a thread and the rest (page-cache reads and writes) from its event loop.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from kraftpy.ports import Buffer
from kraftpy.types import Millis


class OsFile:
    """A file of the operating system, addressed by position (`pread`/`pwrite`)."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`."""
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        done = len(data)
        while done < length and (data := os.pread(self._descriptor, length - done, position + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def write(self, position: int, data: Buffer) -> None:
        """All of `data` at `position`."""
        written = os.pwrite(self._descriptor, data, position)
        if written == len(data):
            return
        rest = memoryview(data)
        while written < len(rest):  # a disk that fills up writes a part first, then raises ENOSPC
            written += os.pwrite(self._descriptor, rest[written:], position + written)

    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """`fdatasync`: the bytes and the size, not the access times."""
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, for a transfer that never enters this process."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor, once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsDirectory:
    """A directory of the operating system, created where missing."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True)

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self._path)

    def names(self) -> list[str]:
        """Every name in it, sorted."""
        return sorted(os.listdir(self._path))

    def exists(self, name: str) -> bool:
        """Whether `name` is there."""
        return (self._path / name).exists()

    def open(self, name: str) -> OsFile:
        """Open for reading and writing; created empty where missing."""
        return OsFile(self._path / name)

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        return (self._path / name).read_bytes()

    def replace(self, name: str, data: Buffer) -> None:
        """Write aside, sync, rename over, sync the directory."""
        temporary = self._path / f"{name}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, self._path / name)
        self.sync()

    def rename(self, old: str, new: str) -> None:
        """Rename within the directory."""
        os.rename(self._path / old, self._path / new)

    def delete(self, name: str) -> None:
        """Delete a file or a whole directory; missing is fine."""
        target = self._path / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def child(self, name: str) -> OsDirectory:
        """The directory `name` within, created where missing."""
        return OsDirectory(self._path / name)

    def sync(self) -> None:
        """`fsync` of the directory itself."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class SystemClock:
    """The operating system's clocks."""

    def now(self) -> Millis:
        """Wall-clock milliseconds since the Unix epoch."""
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> Millis:
        """Milliseconds that never go back."""
        return Millis(time.monotonic_ns() // 1_000_000)
