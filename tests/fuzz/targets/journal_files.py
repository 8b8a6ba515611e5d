"""A node's metadata journal as a start finds it: journal, snapshot and vote, each of them any bytes.

It loads, or is refused with a JournalError or CodecError, which end the start with a message; nothing else comes of it.
A journal that loads is applied, and can be appended to.
"""

from __future__ import annotations

from collections.abc import Iterator

from targets import commands_applied

from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.journal import JOURNAL, SNAPSHOT, VOTE, Journal, JournalError
from kraftpy.metadata.quorum_messages import (
    BadMessageError,
    command_in,
    entry_of,
    pack_snapshot,
    unpack_snapshot,
    voters_in,
)
from kraftpy.testing.memory_files import MemoryDirectory, MemoryDisk

ALLOWED = (JournalError, CodecError, BadMessageError)
MORE_BYTES = 2 << 20
_NAMES = (JOURNAL, SNAPSHOT, VOTE)


def one(data: bytes) -> None:
    """Try one input. It chooses files of a sound journal, and the changes to them."""
    if len(data) < 4:
        return
    directory = MemoryDisk().root
    for name, content in _SOUND.items():
        directory.replace(name, content)
    name = _NAMES[data[0] % 3]
    old = _SOUND[name]
    at = int.from_bytes(data[2:4], "big") % (len(old) + 1)
    match data[1] % 4:
        case 0:
            directory.replace(name, data[4:])
        case 1:
            directory.replace(name, old[:at] + data[4:])
        case 2:
            directory.replace(name, old[:at] + data[4:] + old[at:])
        case _:
            directory.replace(name, old[:at] + data[4:] + old[at + len(data) - 4 :])
    journal = Journal(directory)
    loaded = journal.load()
    machine = MetadataStateMachine()
    if loaded.snapshot is not None:
        machine.restore(unpack_snapshot(loaded.snapshot.data).state)
    last = loaded.snapshot.index if loaded.snapshot is not None else 0
    for entry in loaded.entries:
        assert entry.index == last + 1, "an entry is missing"
        last = entry.index
        voters_in(entry_of(entry.data))
        command = command_in(entry_of(entry.data))
        if command is not None:
            machine.apply(entry.index, entry.term, command)
    journal.close()


def _files() -> dict[str, bytes]:
    """A journal with a snapshot, some entries, and a vote."""
    directory = MemoryDisk().root
    journal = Journal(directory)
    journal.load()
    machine = MetadataStateMachine()
    for number, command in enumerate((*commands_applied.FIRST, *commands_applied.MORE), 1):
        data = commands_applied.encode_command(command)
        machine.apply(number, 1, data)
        journal.append(1, b"\0" + data)
        if number == len(commands_applied.FIRST):
            journal.sync()
            journal.save_snapshot(number, 1, pack_snapshot(0, {1: "h:1"}, machine.snapshot()))
    journal.note_vote(1, "1")
    journal.sync()
    journal.close()
    return _read(directory)


def _read(directory: MemoryDirectory) -> dict[str, bytes]:
    return {name: directory.read(name) if directory.exists(name) else b"" for name in _NAMES}


def seeds() -> Iterator[tuple[str, bytes]]:
    """Each file cut, emptied, and with bytes changed."""
    for number, name in enumerate(_NAMES):
        yield f"{name}-empty", bytes((number, 0, 0, 0))
        yield f"{name}-whole", bytes((number, 0, 0, 0)) + _SOUND[name]
        for at in (0, 9, 40, 60, len(_SOUND[name]) // 2, max(len(_SOUND[name]) - 3, 0)):
            place = at.to_bytes(2, "big")
            yield f"{name}-cut-{at}", bytes((number, 1)) + place
            yield f"{name}-changed-{at}", bytes((number, 3)) + place + b"\xff"


_SOUND = _files()
