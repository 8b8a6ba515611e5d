"""The metadata log of this node: commands in, agreed decisions out, in order.

    submit(command) -> journal -> sync -> decide on the image -> replay -> tell the broker -> Decision

One task takes whatever has been submitted, makes it durable with one sync (in a thread), and applies it in order; a
decision is known only after its command is on disk. That is the order of a replicated log too, with the quorum's commit
in the sync's place. A command that changes nothing on the present image (it is refused, or only to be validated) is
answered at once and never written.

Invariants: the image is exactly the replay of snapshot and journal; `submit` returns after the broker has acted on what
was decided (a created topic can be written to).
"""

from __future__ import annotations

import asyncio
import contextlib
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
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.records import Record
from kraftpy.ports import Directory

SNAPSHOT_AFTER_ENTRIES = 10_000
_ONLY_TERM = 1

Changed = Callable[[Sequence[Record]], Awaitable[None]]
"""Told what was decided, in order, before the one who asked is."""

_Submitted = tuple[bytes, "asyncio.Future[Decision[Any]]"]


class MetadataLog:
    """The commands of one node that is its own quorum."""

    def __init__(self, changed: Changed, tasks: asyncio.TaskGroup) -> None:
        self._changed = changed
        self._tasks = tasks
        self._machine = MetadataStateMachine()
        self._journal: Journal | None = None
        self._applied_index = 0
        self._submitted: asyncio.Queue[_Submitted | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @property
    def image(self) -> Image:
        """The metadata as decided so far."""
        return self._machine.image

    async def start(self, directory: Directory) -> None:
        """Replay what was decided before. Raises JournalError where the disk cannot be trusted."""
        journal = Journal(directory)
        loaded = await asyncio.to_thread(journal.load)
        if loaded.snapshot is not None:
            self._machine.restore(loaded.snapshot.data)
        for entry in loaded.entries:
            self._machine.apply(entry.data)
        self._journal = journal
        self._applied_index = journal.last_index
        self._task = self._tasks.create_task(self._run(journal), name="metadata log")

    async def stop(self) -> None:
        """Apply what was submitted, and close the journal."""
        if self._task is not None and self._journal is not None:
            self._submitted.put_nowait(None)
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await asyncio.to_thread(self._journal.close)

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
        """What the command comes to, once it is durable and acted upon."""
        expected = decide(command, self.image)
        if not expected.records and self._submitted.empty():
            return expected
        decided: asyncio.Future[Decision[Any]] = asyncio.get_running_loop().create_future()
        self._submitted.put_nowait((encode_command(command), decided))
        return await decided

    async def _run(self, journal: Journal) -> None:
        while True:
            taken = [await self._submitted.get()]
            while not self._submitted.empty():
                taken.append(self._submitted.get_nowait())
            batch = [submitted for submitted in taken if submitted is not None]
            for command, _ in batch:
                journal.append(_ONLY_TERM, command)
            await asyncio.to_thread(journal.sync)
            for command, decided in batch:
                decision = self._machine.apply(command)
                self._applied_index += 1
                if decision.records:
                    await self._changed(decision.records)
                if not decided.done():
                    decided.set_result(decision)
            if len(batch) < len(taken):
                return
            if self._applied_index - journal.first_index >= SNAPSHOT_AFTER_ENTRIES:
                snapshot = self._machine.snapshot()
                await asyncio.to_thread(journal.save_snapshot, self._applied_index, _ONLY_TERM, snapshot)
