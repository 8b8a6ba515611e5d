"""Disk faults in the process of a test's node: slow, full and broken disks.

An fsync is that of a file, of a directory, or of a file that is replaced (which is one of each). The faults replace the
methods of `broker.runtime` that do these.

A full disk has no room for new files or for writes beyond a file's end; overwriting, reading, deleting and syncing work
as usual.

Left out: the process that compacts (`broker.storage.cleaning_worker`), whose disk always works.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import Any

from kraftpy.broker.runtime import OsDirectory, OsFile
from kraftpy.ports import Buffer
from kraftpy.testing.misbehaviour import InForce
from kraftpy.testing.rules import Hit, Rule, claim

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""The object, the name of its method, and a function that wraps the original."""


def replacements(in_force: InForce, what: str) -> Iterable[Replacement]:
    """Return the replacements to make while there are rules about "syncs", or about "room"."""
    return _syncs(in_force) if what == "syncs" else _room(in_force)


def _syncs(in_force: InForce) -> Iterable[Replacement]:
    def synced(path_of: Callable[[Any], str]) -> Callable[[Any], Any]:
        def made_of(original: Callable[..., None]) -> Callable[..., None]:
            def sync(self: Any, *opened: int) -> None:
                _sync(in_force, path_of(self))
                original(self, *opened)

            return sync

        return made_of

    yield OsFile, "sync", synced(_path)
    yield OsDirectory, "sync", synced(lambda directory: str(directory.path))

    def replacing(original: Callable[[OsDirectory, str, Buffer], None]) -> Callable[[OsDirectory, str, Buffer], None]:
        def replace(self: OsDirectory, name: str, data: Buffer) -> None:
            path = f"{self.path}/{name}"
            _need_room(in_force, path)
            _sync(in_force, path)
            original(self, name, data)

        return replace

    yield OsDirectory, "replace", replacing


def _room(in_force: InForce) -> Iterable[Replacement]:
    def writing(original: Callable[[OsFile, int, Buffer], None]) -> Callable[[OsFile, int, Buffer], None]:
        def write(self: OsFile, position: int, data: Buffer) -> None:
            if position + len(data) > self.size():
                _need_room(in_force, _path(self))
            original(self, position, data)

        return write

    def opening(original: Callable[[OsDirectory, str], OsFile]) -> Callable[[OsDirectory, str], OsFile]:
        def opened(self: OsDirectory, name: str) -> OsFile:
            if not self.exists(name):
                _need_room(in_force, f"{self.path}/{name}")
            return original(self, name)

        return opened

    def entering(original: Callable[[OsDirectory, str], OsDirectory]) -> Callable[[OsDirectory, str], OsDirectory]:
        def child(self: OsDirectory, name: str) -> OsDirectory:
            if not self.exists(name):
                _need_room(in_force, f"{self.path}/{name}")
            return original(self, name)

        return child

    yield OsFile, "write", writing
    yield OsDirectory, "open", opening
    yield OsDirectory, "child", entering


def _path(file: OsFile) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file.fileno()}")
    except OSError:
        return ""


def _sync(in_force: InForce, path: str) -> None:
    for rule in in_force.rules:
        if rule.kind in ("sync", "eio") and _is_about(rule, path) and claim(rule, _hit(in_force, path)):
            if rule.kind == "eio":
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            in_force.block_until_gone(rule, rule.seconds)


def _need_room(in_force: InForce, path: str) -> None:
    for rule in in_force.rules:
        if rule.kind == "full" and _is_about(rule, path) and claim(rule, _hit(in_force, path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _hit(in_force: InForce, path: str) -> Hit:
    return Hit(node=in_force.node, what=path)


def _is_about(rule: Rule, path: str) -> bool:
    """Return whether the rule covers the path. A topic's directories are named like `topic-0`."""
    if rule.topic is None:
        return True
    for part in path.split("/"):
        name, _, number = part.rpartition("-")
        if name == rule.topic and number.isdigit():
            return True
    return False
