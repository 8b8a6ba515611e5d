"""The real ports: directories and files of the operating system, and its clocks.

Everything here is synchronous and may block; the broker calls what can block for long (`sync`, `delete` of a tree,
recovery) from a thread and the rest (page-cache reads and writes) from its event loop.

Files and directories are created for the user of this process alone.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kraftpy.ports import Buffer
from kraftpy.types import Millis

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""What is created is for the user of this process alone; what is there already keeps its modes."""
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's fallocate, which the os module has only in its portable form: that one changes the file's size."""
    if sys.platform != "linux":
        return None
    import ctypes  # here, for a broker whose logs stay small

    function = getattr(ctypes.CDLL(None), "fallocate64", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    allocate: Callable[[int, int, int, int], int] = function
    return allocate


class OsFile:
    """A file of the operating system, addressed by position (`pread`/`pwrite`)."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path | str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

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

    def reserve(self, position: int, length: int) -> None:
        """`fallocate` without a change of size. Where that cannot be done, a write will tell."""
        allocate = _fallocate()
        if allocate is not None:
            allocate(self._descriptor, _KEEP_SIZE, position, length)

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

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)  # thousands of these are held: a Path is many times as large
        try:
            os.mkdir(self._path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(self._path):
                raise
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            os.mkdir(self._path, DIRECTORY_MODE)

    @property
    def path(self) -> str:
        """Where it is."""
        return self._path

    def names(self) -> list[str]:
        """Every name in it, sorted."""
        return sorted(os.listdir(self._path))

    def exists(self, name: str) -> bool:
        """Whether `name` is there."""
        return os.path.exists(f"{self._path}/{name}")

    def open(self, name: str) -> OsFile:
        """Open for reading and writing; created empty where missing."""
        return OsFile(f"{self._path}/{name}")

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        with open(f"{self._path}/{name}", "rb", buffering=0) as file:
            return file.read()

    def replace(self, name: str, data: Buffer) -> None:
        """Write aside, sync, rename over, sync the directory."""
        temporary = f"{self._path}/{name}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, f"{self._path}/{name}")
        self.sync()

    def rename(self, old: str, new: str) -> None:
        """Rename within the directory."""
        os.rename(f"{self._path}/{old}", f"{self._path}/{new}")

    def delete(self, name: str) -> None:
        """Delete a file or a whole directory; missing is fine."""
        target = f"{self._path}/{name}"
        try:
            os.unlink(target)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # which of the two, POSIX leaves open
            if not os.path.isdir(target) or os.path.islink(target):
                raise
            shutil.rmtree(target)

    def renamed(self, name: str) -> None:
        """It was renamed within its parent: it is there from now on, for everybody who has it."""
        self._path = str(Path(self._path).with_name(name))

    def child(self, name: str) -> OsDirectory:
        """The directory `name` within, created where missing."""
        return OsDirectory(f"{self._path}/{name}")

    def sync(self) -> None:
        """`fsync` of the directory itself."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_files_limit() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class SystemClock:
    """The operating system's clocks."""

    def now(self) -> Millis:
        """Wall-clock milliseconds since the Unix epoch."""
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> Millis:
        """Milliseconds that never go back."""
        return Millis(time.monotonic_ns() // 1_000_000)
