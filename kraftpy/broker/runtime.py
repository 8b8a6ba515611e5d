"""The real ports: directories and files of the operating system, and its clocks.

Everything here is synchronous and may block; the broker calls what can block for long (`sync`, `delete` of a tree,
recovery) from a thread and the rest (page-cache reads and writes) from its event loop.

Files come before connections: a node keeps a few descriptors in reserve (`keep_spare_descriptors`), which it gives up
for its files, one by one, when the process may open no more, and takes back as files are closed.

Files and directories are created for the user of this process alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from kraftpy.ports import Buffer
from kraftpy.types import Millis

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Modes of new files and directories: for the user of this process alone. Existing ones keep their modes."""
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_READ_BYTES = 4096
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

T = TypeVar("T")


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


class _Spares:
    """Descriptors held for nothing, so that a file can be opened when the process may have no more of them."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._wanted = 0
        self._lock = threading.Lock()

    def keep(self, count: int) -> None:
        """Hold so many from now on. Raises OSError."""
        self._wanted = count
        with self._lock:
            while len(self._held) < count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while len(self._held) > count:
                os.close(self._held.pop())

    def open(self, path: Path | str, flags: int) -> int:
        """`os.open`; where no descriptor is left, with one of those held."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
        return self._instead(lambda: os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def close(self, descriptor: int) -> None:
        """`os.close`, and hold again what was given up."""
        os.close(descriptor)
        if len(self._held) < self._wanted:
            self._take_back()

    def run(self, call: Callable[[], T]) -> T:
        """A call that opens and closes descriptors of its own, and may be repeated."""
        try:
            return call()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
        try:
            return self._instead(call)
        finally:
            self._take_back()

    def _instead(self, call: Callable[[], T]) -> T:
        """Give up one after the other until the call finds enough: another thread may take what is given up."""
        while True:
            with self._lock:
                spare = self._held.pop() if self._held else -1
            if spare >= 0:
                os.close(spare)
            try:
                return call()
            except OSError as error:
                if spare < 0 or error.errno not in _NO_DESCRIPTORS:
                    raise

    def _take_back(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # else with the next file that is closed
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


_spares = _Spares()


def keep_spare_descriptors(count: int) -> None:
    """Hold so many descriptors in reserve for files, in this process. Raises OSError."""
    _spares.keep(count)


class OsFile:
    """A file of the operating system, addressed by position (`pread`/`pwrite`)."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path | str) -> None:
        self._descriptor = _spares.open(path, os.O_RDWR | os.O_CREAT)

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
            _spares.close(self._descriptor)
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
        return sorted(_spares.run(lambda: os.listdir(self._path)))

    def exists(self, name: str) -> bool:
        """Whether `name` is there."""
        return os.path.exists(f"{self._path}/{name}")

    def open(self, name: str) -> OsFile:
        """Open for reading and writing; created empty where missing."""
        return OsFile(f"{self._path}/{name}")

    def read(self, name: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        descriptor = _spares.open(f"{self._path}/{name}", os.O_RDONLY)
        try:
            parts = []
            while data := os.read(descriptor, max(_READ_BYTES, os.fstat(descriptor).st_size)):
                parts.append(data)
            return b"".join(parts)
        finally:
            _spares.close(descriptor)

    def replace(self, name: str, data: Buffer) -> None:
        """Write aside, sync, rename over, sync the directory, for which it is opened before anything is changed."""
        temporary = f"{self._path}/{name}.tmp"
        directory = _spares.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            descriptor = _spares.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                _spares.close(descriptor)
            os.rename(temporary, f"{self._path}/{name}")
            self.sync(directory)
        finally:
            _spares.close(directory)

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
            _spares.run(lambda: shutil.rmtree(target))

    def renamed(self, name: str) -> None:
        """It was renamed within its parent: it is there from now on, for everybody who has it."""
        self._path = str(Path(self._path).with_name(name))

    def child(self, name: str) -> OsDirectory:
        """The directory `name` within, created where missing."""
        return OsDirectory(f"{self._path}/{name}")

    def sync(self, opened: int = -1) -> None:
        """`fsync` of the directory itself; `opened`: a descriptor of it, if there is one."""
        if opened >= 0:
            os.fsync(opened)
            return
        descriptor = _spares.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            _spares.close(descriptor)


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
