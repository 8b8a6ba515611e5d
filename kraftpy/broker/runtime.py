"""The real ports: directories and files of the operating system, and its clocks.

Everything here is synchronous and may block. The broker calls what can block for long (`sync`, `delete` of a tree,
recovery) from a thread, and the rest (page-cache reads and writes) from its event loop.

Files come before connections: a node keeps a few descriptors in reserve (`keep_spare_descriptors`), gives them up for
its files, one by one, when the process may open no more, and takes them back as files are closed.

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
    """Return Linux's fallocate; the os module has only the portable form, which changes the file's size."""
    if sys.platform != "linux":
        return None
    import ctypes  # imported here for the sake of a broker whose logs stay small

    function = getattr(ctypes.CDLL(None), "fallocate64", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    allocate: Callable[[int, int, int, int], int] = function
    return allocate


class _SpareDescriptors:
    """Descriptors held in reserve, so that a file can be opened when the process may have no more of them."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._wanted = 0
        self._lock = threading.Lock()

    def keep(self, count: int) -> None:
        """Keep `count` descriptors in reserve from now on. Raises OSError."""
        self._wanted = count
        with self._lock:
            while len(self._held) < count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while len(self._held) > count:
                os.close(self._held.pop())

    def open(self, path: Path | str, flags: int) -> int:
        """Do what `os.open` does, giving up a spare descriptor if none is left."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
        return self._instead(lambda: os.open(path, flags | os.O_CLOEXEC, FILE_MODE))

    def close(self, descriptor: int) -> None:
        """Do what `os.close` does, and restore the reserve."""
        os.close(descriptor)
        if len(self._held) < self._wanted:
            self._take_back()

    def run(self, call: Callable[[], T]) -> T:
        """Run a call that opens and closes descriptors itself and may be repeated."""
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
        """Give up one spare after another until the call succeeds: another thread may take one that is freed."""
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
        with self._lock, contextlib.suppress(OSError):  # retried when the next file is closed
            while len(self._held) < self._wanted:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


_spares = _SpareDescriptors()


def keep_spare_descriptors(count: int) -> None:
    """Keep `count` descriptors of this process in reserve for files. Raises OSError."""
    _spares.keep(count)


class OsFile:
    """A file of the operating system, addressed by position (`pread`/`pwrite`)."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path | str) -> None:
        self._descriptor = _spares.open(path, os.O_RDWR | os.O_CREAT)

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`."""
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
        """Write all of `data` at `position`."""
        written = os.pwrite(self._descriptor, data, position)
        if written == len(data):
            return
        rest = memoryview(data)
        while written < len(rest):  # a disk that fills up writes a part first, then raises ENOSPC
            written += os.pwrite(self._descriptor, rest[written:], position + written)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Shorten or extend the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def reserve(self, position: int, length: int) -> None:
        """Reserve space like `fallocate`, without changing the size. If that fails, a later write reports it."""
        allocate = _fallocate()
        if allocate is not None:
            allocate(self._descriptor, _KEEP_SIZE, position, length)

    def sync(self) -> None:
        """`fdatasync`: the bytes and the size, not the access times."""
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor, for a transfer that bypasses this process."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor, once."""
        if self._descriptor >= 0:
            _spares.close(self._descriptor)
            self._descriptor = -1


class OsDirectory:
    """A directory of the operating system, created if missing."""

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
        """The directory's path."""
        return self._path

    def names(self) -> list[str]:
        """Return every name in the directory, sorted."""
        return sorted(_spares.run(lambda: os.listdir(self._path)))

    def exists(self, name: str) -> bool:
        """Return whether the directory contains `name`."""
        return os.path.exists(f"{self._path}/{name}")

    def open(self, name: str) -> OsFile:
        """Open a file for reading and writing, creating it empty if missing."""
        return OsFile(f"{self._path}/{name}")

    def read(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        descriptor = _spares.open(f"{self._path}/{name}", os.O_RDONLY)
        try:
            parts = []
            while data := os.read(descriptor, max(_READ_BYTES, os.fstat(descriptor).st_size)):
                parts.append(data)
            return b"".join(parts)
        finally:
            _spares.close(descriptor)

    def replace(self, name: str, data: Buffer) -> None:
        """Replace a file atomically: write aside, sync, rename over, sync the directory.

        The directory is opened first, so that running out of descriptors changes nothing.
        """
        temporary = f"{self._path}/{name}.tmp"
        directory = _spares.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            descriptor = _spares.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                rest = memoryview(data)
                while rest:
                    written = os.write(descriptor, rest)
                    rest = rest[written:]
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
        """Delete a file or a whole directory; does nothing if it is missing."""
        target = f"{self._path}/{name}"
        try:
            os.unlink(target)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # POSIX leaves open which of the two it is
            if not os.path.isdir(target) or os.path.islink(target):
                raise
            _spares.run(lambda: shutil.rmtree(target))

    def renamed(self, name: str) -> None:
        """Follow a rename of this directory within its parent, for every holder of this object."""
        self._path = str(Path(self._path).with_name(name))

    def child(self, name: str) -> OsDirectory:
        """Open the subdirectory `name`, creating it if missing."""
        return OsDirectory(f"{self._path}/{name}")

    def sync(self, opened: int = -1) -> None:
        """Sync the directory itself (`fsync`); `opened` is an open descriptor of it, if there is one."""
        if opened >= 0:
            os.fsync(opened)
            return
        descriptor = _spares.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            _spares.close(descriptor)


def open_files_limit() -> int:
    """Return how many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class SystemClock:
    """The operating system's clocks."""

    def now(self) -> Millis:
        """Return wall-clock milliseconds since the Unix epoch."""
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> Millis:
        """Return milliseconds that never go back."""
        return Millis(time.monotonic_ns() // 1_000_000)
