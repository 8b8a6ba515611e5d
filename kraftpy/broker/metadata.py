"""The metadata log of this node: commands in, agreed decisions out, in order.

    submit(command) -> journal -> sync -> decide on the image -> replay -> tell the broker -> Decision

One task takes whatever has been submitted, makes it durable with one sync (in a thread), and applies it in order; a
decision is known only after its command is on disk. That is the order of a replicated log too, with the quorum's commit
in the sync's place. A command that changes nothing on the present image (it is refused, or only to be validated) is
answered at once and never written.

A full disk refuses commands (KAFKA_STORAGE_ERROR) and nothing else: the journal is read again when the next one comes,
because what was written of the last is not known; it may turn out to be decided after all, as after any lost answer.
Any other failure of the disk stops the broker: after a failed sync nobody knows what is on it.

Invariants: the image is exactly the replay of snapshot and journal; `submit` returns after the broker has acted on what
was decided (a created topic can be written to).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, overload

from kraftpy.metadata.commands import (
    AllocateProducerIds,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    RegisterBroker,
    SetConfigs,
    encode_command,
)
from kraftpy.metadata.controller import MetadataStateMachine, decide
from kraftpy.metadata.decision import BrokerResult, ConfigResult, Decision, ProducerIdBlock, TopicResult
from kraftpy.metadata.image import Image
from kraftpy.metadata.journal import MAX_ENTRY_BYTES, Journal
from kraftpy.metadata.records import Record
from kraftpy.ports import Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

SNAPSHOT_AFTER_ENTRIES = 10_000
_ONLY_TERM = 1
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Changed = Callable[[Sequence[Record]], Awaitable[None]]
"""Told what was decided, in order, before the one who asked is."""

_Submitted = tuple[bytes, "asyncio.Future[Decision[Any]]"]


class MetadataLog:
    """The commands of one node that is its own quorum."""

    def __init__(self, changed: Changed, tasks: asyncio.TaskGroup) -> None:
        self._changed = changed
        self._tasks = tasks
        self._machine = MetadataStateMachine()
        self._directory: Directory | None = None
        self._journal: Journal | None = None
        self._applied_index = 0
        self._snapshot_due_at = SNAPSHOT_AFTER_ENTRIES
        self._submitted: asyncio.Queue[_Submitted | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @property
    def image(self) -> Image:
        """The metadata as decided so far."""
        return self._machine.image

    async def start(self, directory: Directory) -> None:
        """Replay what was decided before. Raises JournalError, CodecError or OSError where the disk cannot be trusted
        or read."""
        self._directory = directory
        journal = Journal(directory)
        loaded = await asyncio.to_thread(journal.load)
        if loaded.snapshot is not None:
            self._machine.restore(loaded.snapshot.data)
        for entry in loaded.entries:
            self._machine.apply(entry.data)
        self._journal = journal
        self._applied_index = journal.last_index
        self._snapshot_due_at = journal.first_index + SNAPSHOT_AFTER_ENTRIES
        self._task = self._tasks.create_task(self._run(), name="metadata log")

    async def stop(self) -> None:
        """Apply what was submitted, and close the journal."""
        if self._task is not None:
            self._submitted.put_nowait(None)
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)
            self._journal = None

    @overload
    async def submit(
        self, command: CreateTopics | DeleteTopics | CreatePartitions
    ) -> Decision[tuple[TopicResult, ...]]: ...
    @overload
    async def submit(self, command: SetConfigs) -> Decision[tuple[ConfigResult, ...]]: ...
    @overload
    async def submit(self, command: RegisterBroker) -> Decision[BrokerResult]: ...
    @overload
    async def submit(self, command: AllocateProducerIds) -> Decision[ProducerIdBlock]: ...
    @overload
    async def submit(self, command: Command) -> Decision[Any]: ...
    async def submit(self, command: Command) -> Decision[Any]:
        """What the command comes to, once it is durable and acted upon.

        Raises KafkaError: KAFKA_STORAGE_ERROR where it could not be written (it may have been decided all the same),
        INVALID_REQUEST where it is too large.
        """
        expected = decide(command, self.image)
        if not expected.records and self._submitted.empty():
            return expected
        encoded = encode_command(command)
        if len(encoded) > MAX_ENTRY_BYTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a metadata command of {len(encoded)} bytes is too large")
        decided: asyncio.Future[Decision[Any]] = asyncio.get_running_loop().create_future()
        self._submitted.put_nowait((encoded, decided))
        return await decided

    # --- the one task --------------------------------------------------------------------------

    async def _run(self) -> None:
        is_running = True
        while is_running:
            taken = [await self._submitted.get()]
            while not self._submitted.empty():
                taken.append(self._submitted.get_nowait())
            batch = [submitted for submitted in taken if submitted is not None]
            is_running = len(batch) == len(taken)
            try:
                await self._write([command for command, _ in batch])
            except OSError as error:
                await self._refuse(batch, error)
                continue
            for command, decided in batch:
                decision = await self._apply(command)
                if not decided.done():
                    decided.set_result(decision)
            if self._applied_index >= self._snapshot_due_at:
                await self._save_snapshot()

    async def _write(self, commands: Sequence[bytes]) -> None:
        """Make the commands durable, in order. Raises OSError where the disk is full."""
        if not commands:
            return
        journal = self._journal or await self._reopen()
        for command in commands:
            journal.append(_ONLY_TERM, command)
        await asyncio.to_thread(journal.sync)

    async def _apply(self, command: bytes) -> Decision[Any]:
        decision = self._machine.apply(command)
        self._applied_index += 1
        if decision.records:
            await self._changed(decision.records)
        return decision

    async def _refuse(self, batch: Sequence[_Submitted], error: OSError) -> None:
        if error.errno not in _DISK_FULL:
            raise error
        logger.error("the metadata journal cannot be written: %s", error)
        await self._give_up_journal()
        for _, decided in batch:
            if not decided.done():
                reason = f"the metadata journal cannot be written: {error.strerror}"
                decided.set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    async def _give_up_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            await asyncio.to_thread(journal.close)  # it has failed: this only closes the file

    async def _reopen(self) -> Journal:
        """The journal as the disk has it, and what it has beyond our image taken in."""
        assert self._directory is not None
        journal = Journal(self._directory)
        loaded = await asyncio.to_thread(journal.load)
        for entry in loaded.entries:
            if entry.index > self._applied_index:
                await self._apply(entry.data)
        self._journal = journal
        return journal

    async def _save_snapshot(self) -> None:
        journal = self._journal
        assert journal is not None
        self._snapshot_due_at = self._applied_index + SNAPSHOT_AFTER_ENTRIES
        try:
            await asyncio.to_thread(journal.save_snapshot, self._applied_index, _ONLY_TERM, self._machine.snapshot())
        except OSError as error:
            await self._refuse((), error)
