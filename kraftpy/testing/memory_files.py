"""Files and directories in memory, on a disk that can lose, tear, refuse and damage: the `Directory` and `File` ports
for tests.

A write is visible at once and durable only after `sync`, a name only after its directory's `sync`, as `kraftpy.ports`
says. `MemoryDisk.crash` is a power loss: random numbers decide what survives of everything that was not synced. Handles
from before it raise. The same seed gives the same disk.

* `Loss.EVERYTHING`: nothing that was not synced survives.
* `Loss.PREFIX`: of each file, its first un-synced writes survive, the last of them in part (torn).
* `Loss.SECTORS`: each 512-byte sector of each un-synced write survives or not, independently; holes read as zeros.
* `Loss.REORDERED`: each sector of a file, and its size, is as it was at some moment since the last sync, independently;
  and of a directory's changes any may survive without those before.
* `Loss.NOTHING`: the process died, the machine did not.

Names survive as a prefix of their directory's changes, in order, and each directory has a prefix of its own; with
EVERYTHING none, with NOTHING all of them. With REORDERED a change survives independently, except that it needs the
earlier changes of the same name (a rename has two names, and is whole or not at all). Together, these are harsher than
any single file system: ext4 and XFS commit one journal in order, so that names survive as a prefix of all changes, and
a sync of anything commits what came before it; btrfs moves single files and names ahead of that order through its log
tree. The broker may rely only on what POSIX promises of a sync: a file's own bytes and size, a directory's own names.

A sync that failed loses what it should have synced, even if a later one succeeds, as on Linux.

Left out: hard links, renames from one directory to another (the port has none), access rights.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Final

from kraftpy.ports import Buffer

_SECTOR_BYTES: Final = 512


class Loss(Enum):
    """The effect of a crash on changes that were not synced."""

    EVERYTHING = "everything"
    PREFIX = "prefix"
    SECTORS = "sectors"
    REORDERED = "reordered"
    NOTHING = "nothing"


_Change = tuple[int, bytes | None]  # a write at a position, or (None) a truncation to that size


class _Content:
    """A file: its bytes now, its bytes on the platter, and the changes between them."""

    __slots__ = ("changes", "data", "durable")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.changes: list[_Change] = []

    def apply(self, change: _Change) -> None:
        _apply(self.data, change)
        self.changes.append(change)

    def sync(self) -> None:
        done = len(self.changes)  # other threads may write during the sync: that is not synced
        for change in self.changes[:done]:
            _apply(self.durable, change)
        del self.changes[:done]

    def crash(self, loss: Loss, random: Random) -> None:
        if loss is Loss.NOTHING:
            return
        if loss is Loss.PREFIX and self.changes:
            kept = random.randrange(len(self.changes) + 1)
            for change in self.changes[:kept]:
                _apply(self.durable, change)
            if kept < len(self.changes):
                position, data = self.changes[kept]
                if data:
                    _apply(self.durable, (position, data[: random.randrange(len(data))]))
        elif loss is Loss.SECTORS:
            for position, data in self.changes:
                if data is None:
                    if random.random() < 0.5:
                        _apply(self.durable, (position, None))
                    continue
                at = 0
                while at < len(data):  # sectors are those of the file, not of the write
                    end = min(len(data), at + _SECTOR_BYTES - (position + at) % _SECTOR_BYTES)
                    if random.random() < 0.5:
                        _apply(self.durable, (position + at, data[at:end]))
                    at = end
        elif loss is Loss.REORDERED and self.changes:
            self.durable = _reordered(self.durable, self.changes, random)
        self.data = bytearray(self.durable)
        self.changes.clear()


def _reordered(durable: bytearray, changes: list[_Change], random: Random) -> bytearray:
    """Return a file whose sectors and size are each as they were at some moment, before the changes or after any."""
    newest = len(changes)
    share = random.choice([0.0, 0.5, 0.9, 1.0])  # how much of it the disk had already written

    def moment() -> int:
        return newest if random.random() < share else random.randrange(newest + 1)

    ends = [len(durable)]
    for position, written in changes:
        ends.append(position if written is None else max(ends[-1], position + len(written)))
    size = ends[moment()]
    sectors: dict[int, list[int]] = {}
    for start in range(0, max(ends), _SECTOR_BYTES):
        sectors.setdefault(moment(), []).append(start)
    result, state = bytearray(max(ends)), bytearray(durable)
    for number in range(newest + 1):
        if number:
            _apply(state, changes[number - 1])
        for start in sectors.get(number, ()):
            part = state[start : start + _SECTOR_BYTES]
            result[start : start + len(part)] = part
    return result[:size]


def _apply(data: bytearray, change: _Change) -> None:
    position, written = change
    if written is None:
        if position < len(data):
            del data[position:]
        else:
            data.extend(bytes(position - len(data)))
        return
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(written)] = written


_Names = dict[str, "_Content | _Folder | None"]  # the names that a change affected: to a node, or to nothing (None)


class _Folder:
    """A directory: its names now and on the platter, and the changes in between."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Content | _Folder] = {}
        self.durable: dict[str, _Content | _Folder] = {}
        self.changes: list[_Names] = []

    def changed(self, *names: str) -> None:
        """Record one change that affects these names together."""
        self.changes.append({name: self.names.get(name) for name in names})

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def crash(self, loss: Loss, random: Random) -> None:
        if loss in (Loss.PREFIX, Loss.SECTORS) and self.changes:
            for change in self.changes[: random.randrange(len(self.changes) + 1)]:
                self._survived(change)
        elif loss is Loss.REORDERED and self.changes:
            share = random.choice([0.2, 0.5, 0.8, 1.0])
            lost: set[str] = set()
            for change in self.changes:
                if random.random() < share and lost.isdisjoint(change):
                    self._survived(change)
                else:
                    lost.update(change)
        if loss is not Loss.NOTHING:
            self.names = dict(self.durable)
            self.changes.clear()
        for _, node in sorted(self.names.items()):
            node.crash(loss, random)

    def _survived(self, change: _Names) -> None:
        for name, node in change.items():
            if node is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = node


class _Fault:
    __slots__ = ("count", "error", "name", "operation", "skip")

    def __init__(self, operation: str, error: int, name: str, skip: int, count: int) -> None:
        self.operation = operation
        self.error = error
        self.name = name
        self.skip = skip
        self.count = count


class MemoryDisk:
    """A disk. `root` is its only entry point; make directories with `root.child`."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """Writes beyond it end part-way with ENOSPC. None: unlimited."""
        self.generation = 0
        self.syncs = 0
        self.bytes_read: Counter[str] = Counter()
        """The bytes read through the port, by path."""
        self.on_operation: Callable[[str, str], None] | None = None
        """Called with operation and path before each operation; an exception it raises becomes the operation's."""
        self._used_bytes = 0
        self._faults: list[_Fault] = []
        self._root = _Folder()

    @property
    def used_bytes(self) -> int:
        """The bytes that count against `capacity_bytes`."""
        return self._used_bytes

    @property
    def root(self) -> MemoryDirectory:
        """The root directory, as it is since the last crash."""
        return MemoryDirectory(self, self._root, "")

    def fail(self, operation: str, error: int = errno.EIO, *, name: str = "", skip: int = 0, count: int = 1) -> None:
        """Make the next `count` operations after `skip` fail, of those on a path that ends in `name`.

        `operation` is `write`, `sync`, `open`, `rename` and so on. A failing write leaves half of its bytes.
        """
        self._faults.append(_Fault(operation, error, name, skip, count))

    def heal(self) -> None:
        """Forget all faults that have not happened yet."""
        self._faults.clear()

    def crash(self, random: Random, loss: Loss | None = None) -> None:
        """Lose power. Without `loss`, `random` chooses one that loses something."""
        self.generation += 1
        self._faults.clear()
        if loss is None:
            loss = random.choice([Loss.PREFIX, Loss.SECTORS, Loss.EVERYTHING, Loss.REORDERED])
        self._root.crash(loss, random)
        self._used_bytes = _size(self._root)

    def damage(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of one byte of a file, on the platter and in the cache alike."""
        folder: _Content | _Folder = self._root
        for part in path.strip("/").split("/"):
            if not isinstance(folder, _Folder):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            folder = folder.names[part]
        if isinstance(folder, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        folder.sync()
        folder.data[position] ^= mask
        folder.durable[position] ^= mask

    # --- for the handles ---

    def check(self, operation: str, path: str, generation: int) -> None:
        """Raise if the handle is from before a crash, or a fault is due."""
        if generation != self.generation:
            raise OSError(errno.EIO, "the machine has crashed since", path)
        if self.on_operation is not None:
            self.on_operation(operation, path)
        for fault in self._faults:
            if fault.operation == operation and path.endswith(fault.name):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.count -= 1
                if fault.count <= 0:
                    self._faults.remove(fault)
                raise OSError(fault.error, os.strerror(fault.error), path)

    def room_for(self, more_bytes: int) -> int:
        """Return how many of that many more bytes there is room for; they count as used."""
        if self.capacity_bytes is not None:
            more_bytes = min(more_bytes, max(0, self.capacity_bytes - self._used_bytes))
        self._used_bytes += more_bytes
        return more_bytes

    def freed(self, node: _Content | _Folder) -> None:
        """Release the space of a file or directory that has lost its name."""
        self._used_bytes -= _size(node)


def _size(node: _Content | _Folder) -> int:
    if isinstance(node, _Content):
        return len(node.data)
    return sum(_size(child) for child in node.names.values())


class MemoryFile:
    """An open file on a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, content: _Content, path: str) -> None:
        self._disk = disk
        self._content = content
        self._path = path
        self._generation = disk.generation
        self._is_closed = False

    def _check(self, operation: str) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        self._disk.check(operation, self._path, self._generation)

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`."""
        self._check("read")
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        data = bytes(self._content.data[position : position + length])
        self._disk.bytes_read[self._path] += len(data)
        return data

    def write(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`; on failure, a part of it."""
        written = bytes(data)
        try:
            self._check("write")
        except OSError:
            if not self._is_closed and self._generation == self._disk.generation and len(written) > 1:
                self._content.apply((position, written[: len(written) // 2]))
            raise
        more = max(0, position + len(written) - len(self._content.data))
        room = self._disk.room_for(more)
        if room < more:
            part = written[: len(written) - (more - room)]
            if part:
                self._content.apply((position, part))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._content.apply((position, written))

    def size(self) -> int:
        """Return the file's size in bytes."""
        self._check("size")
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""
        self._check("truncate")
        self._disk.room_for(size - len(self._content.data))
        self._content.apply((size, None))

    def reserve(self, position: int, length: int) -> None:
        """Do nothing: memory has no extents."""

    def sync(self) -> None:
        """Make writes durable. If the sync fails, they are lost."""
        try:
            self._check("sync")
        except OSError:
            self._content.changes.clear()
            raise
        self._disk.syncs += 1
        self._content.sync()

    def close(self) -> None:
        """Close the file, once."""
        self._is_closed = True


class MemoryDirectory:
    """A directory on a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, folder: _Folder, path: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = path
        self._generation = disk.generation

    def _check(self, operation: str, name: str = "") -> None:
        if "/" in name or name in (".", ".."):
            raise ValueError(f"{name!r} is not a plain name")
        self._disk.check(operation, f"{self._path}/{name}" if name else self.path, self._generation)

    @property
    def path(self) -> str:
        """The directory's path."""
        return self._path or "/"

    def names(self) -> list[str]:
        """Return every name in the directory, sorted."""
        self._check("names")
        return sorted(self._folder.names)

    def exists(self, name: str) -> bool:
        """Return whether `name` exists."""
        self._check("exists", name)
        return name in self._folder.names

    def open(self, name: str) -> MemoryFile:
        """Open for reading and writing, creating an empty file if it is missing."""
        self._check("open", name)
        content = self._folder.names.get(name)
        if content is None:
            content = self._folder.names[name] = _Content()
            self._folder.changed(name)
        return MemoryFile(self._disk, self._file(content, name), f"{self._path}/{name}")

    def _file(self, node: _Content | _Folder, name: str) -> _Content:
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), f"{self._path}/{name}")
        return node

    def _missing(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self._path}/{name}")

    def read(self, name: str) -> bytes:
        """Return the whole file. Raises FileNotFoundError."""
        self._check("read", name)
        node = self._folder.names.get(name)
        if node is None:
            raise self._missing(name)
        data = bytes(self._file(node, name).data)
        self._disk.bytes_read[f"{self._path}/{name}"] += len(data)
        return data

    def replace(self, name: str, data: Buffer) -> None:
        """Make `name` hold exactly `data`, atomically and durably.

        Two operations for `on_operation`: `replace` before anything, `replaced` when the directory has to be synced.
        """
        self._check("replace", name)
        if self._disk.room_for(len(data)) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self._path}/{name}")
        self._drop(name)
        self._folder.names[name] = _Content(bytes(data))
        self._folder.changed(name)
        self._check("replaced", name)
        self._disk.syncs += 1
        self._folder.sync()

    def rename(self, old: str, new: str) -> None:
        """Rename within this directory, replacing any file called `new`."""
        self._check("rename", old)
        if old not in self._folder.names:
            raise self._missing(old)
        node = self._folder.names.pop(old)
        self._drop(new)
        self._folder.names[new] = node
        self._folder.changed(old, new)

    def delete(self, name: str) -> None:
        """Delete a file or a whole directory; it may be missing."""
        self._check("delete", name)
        if name in self._folder.names:
            self._drop(name)
            self._folder.changed(name)

    def _drop(self, name: str) -> None:
        node = self._folder.names.pop(name, None)
        if node is not None:
            self._disk.freed(node)

    def child(self, name: str) -> MemoryDirectory:
        """Return the directory `name` within this one, creating it if it is missing."""
        self._check("child", name)
        node = self._folder.names.get(name)
        if node is None:
            node = self._folder.names[name] = _Folder()
            self._folder.changed(name)
        if not isinstance(node, _Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), f"{self._path}/{name}")
        return MemoryDirectory(self._disk, node, f"{self._path}/{name}")

    def sync(self) -> None:
        """Make creations, renames and deletions durable."""
        self._check("sync")
        self._disk.syncs += 1
        self._folder.sync()
