"""An observer: a node that does not vote, follows the committed log of any voter, and keeps its own journal.

It asks the leader, if known and connected, or otherwise one voter after another, for the entries after its newest one.
Voters send only committed entries, so an observer never has to truncate. Its journal serves a quick start, and the time
when no voter is reachable; if the disk is full, the observer continues without one.

A malformed answer is not applied, and the next voter is asked. An entry written by a newer version ends this node
(`Fatal`), since its image would no longer match the others'.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kraftpy.broker.containment import Fatal, Tasks
from kraftpy.broker.metadata.voter import FOLLOW_WAIT_MS, is_transient, journal_failed
from kraftpy.broker.threads import Threads
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import NewerSchemaError
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.quorum import SNAPSHOT_AFTER_ENTRIES
from kraftpy.metadata.quorum_messages import (
    BadMessageError,
    command_in,
    pack_snapshot,
    read_voters,
    unpack_snapshot,
)
from kraftpy.metadata.raft.state import UNITS_PER_TICK, StateMachine
from kraftpy.metadata.voters import VoterSet
from kraftpy.ports import Directory

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05
_ANSWER_MS = 2_000


class Observer:
    """One node's copy of the committed log. `on_change` is called after every change."""

    def __init__(
        self,
        *,
        snapshot_after_bytes: int,
        new_machine: Callable[[], StateMachine],
        on_change: Callable[[], None],
        set_voters: Callable[[Mapping[int, str]], None],
        links: Links,
        tasks: Tasks,
    ) -> None:
        self._snapshot_after_bytes = snapshot_after_bytes
        self._machine = new_machine()
        self._on_change = on_change
        self._set_voters = set_voters
        self._links = links
        self._tasks = tasks
        self._journal: Journal | None = None
        self._disk = Threads(1, thread_name_prefix="metadata-journal")
        self._snapshot_due_at = SNAPSHOT_AFTER_ENTRIES
        self._applied_bytes = 0  # since the snapshot
        self._last_term = 0
        self._voter_set = VoterSet({})
        self._running: asyncio.Task[None] | None = None
        self.leader_id: int | None = None
        self.term = -1
        self.applied_index = 0
        self.is_current = False
        """True if this observer has caught up with a voter's newest entry since it started."""

    @property
    def journal(self) -> Journal | None:
        """The journal, to be looked at; None before the start."""
        return self._journal

    @property
    def voters(self) -> Mapping[int, str]:
        """The voters, each with its `host:port`, as of the last answer; empty before the first."""
        return self._voter_set.addresses

    @property
    def is_active(self) -> bool:
        """False: an observer never leads."""
        return False

    def propose(self, data: bytes) -> bool:
        """Return False: an observer never leads, so it appends no command."""
        return False

    async def start(self, directory: Directory) -> None:
        """Replay the journal, and start following. Raises JournalError, CodecError or OSError."""
        journal = Journal(directory)
        loaded = await self._in_disk_thread(journal.load)
        if loaded.snapshot is not None:
            self._machine.decode(unpack_snapshot(loaded.snapshot.data).state)()
            self.applied_index, self._last_term = loaded.snapshot.index, loaded.snapshot.term
        for entry in loaded.entries:
            self._apply(entry.index, entry.term, entry.data)
        self._journal = journal
        self._snapshot_due_at = journal.first_index + SNAPSHOT_AFTER_ENTRIES
        self._running = self._tasks.create_task(self._run(), name="metadata observer")

    async def stop(self) -> None:
        """Stop following, and close the journal. Raises OSError."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        journal, self._journal = self._journal, None
        if journal is not None:
            await self._in_disk_thread(journal.close)
        self._disk.shutdown()

    async def _in_disk_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, function, *arguments)

    async def _run(self) -> None:
        from kraftpy.broker.metadata.link_messages import LinkError

        tried: set[int] = set()  # voters that did not answer or knew no leader, since one last named a leader
        while True:
            voter = self._voter_to_ask(tried)
            if voter is None:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            leader = -1 if self.leader_id is None else self.leader_id
            body = {"after": self.applied_index, "leader": leader, "term": self.term}
            try:
                answer = await self._links.request(voter, "follow", body, FOLLOW_WAIT_MS + _ANSWER_MS)
            except LinkError as error:
                logger.debug("%s", error)
                if voter == self.leader_id:
                    self.leader_id = None
                    self._on_change()
                tried.add(voter)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if answer["term"] < max(self.term, 0):
                self.leader_id = None  # it is behind the voter that was asked before: ask others
                tried.add(voter)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if answer["leader"] < 0:
                tried.add(voter)
            else:
                if answer["leader"] in tried:  # it did not answer or does not lead: the voter asked may be behind
                    await asyncio.sleep(_PAUSE_SECONDS)
                tried.clear()
            try:
                await self._accept(answer)
            except NewerSchemaError as error:
                raise Fatal(str(error)) from error
            except (BadMessageError, CodecError) as error:
                self._links.refuse_body(voter, error)
                tried.add(voter)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _voter_to_ask(self, tried: set[int]) -> int | None:
        """Return the leader, or else the next voter to ask, since a voter with a full disk does not know the leader."""
        if self.leader_id is not None and self._links.is_connected(self.leader_id):
            return self.leader_id
        connected = [peer for peer in self._links.peers if not self.voters or peer in self.voters]
        for peer in connected:
            if peer not in tried:
                return peer
        tried.clear()
        return connected[0] if connected else None

    async def _accept(self, answer: dict[str, Any]) -> None:
        if "snapshot" in answer:
            index, term, data = answer["snapshot"]
            if index > self.applied_index:
                replace_state = await asyncio.to_thread(self._machine.decode, unpack_snapshot(data).state)
                replace_state()
                self.applied_index, self._last_term = index, term
                await self._on_disk(lambda journal: journal.save_snapshot(index, term, data))
                self._snapshot_due_at, self._applied_bytes = index + SNAPSHOT_AFTER_ENTRIES, 0
        units = 0
        for index, term, data in answer["entries"]:
            if index == self.applied_index + 1:
                if term < self._last_term:
                    raise BadMessageError(f"entry {index} of term {term} follows one of term {self._last_term}")
                if self._journal is not None:
                    self._journal.append(term, data)
                units += self._apply(index, term, data)
                if units >= UNITS_PER_TICK:
                    units = 0
                    await asyncio.sleep(0)
        voters = read_voters(answer["voters"]) if answer["voters"] else self._voter_set
        if voters != self._voter_set:
            self._voter_set = voters
            self._set_voters(voters.addresses)
        self.leader_id = None if answer["leader"] < 0 else answer["leader"]
        self.term = answer["term"]
        if self.leader_id is not None and self.applied_index >= answer["applied"]:
            self.is_current = True
        self._on_change()
        if answer["entries"]:
            await self._on_disk(lambda journal: journal.sync())
            if self.applied_index >= self._snapshot_due_at or self._applied_bytes >= self._snapshot_after_bytes:
                self._snapshot_due_at, self._applied_bytes = self.applied_index + SNAPSHOT_AFTER_ENTRIES, 0
                index, term, voters = self.applied_index, self._last_term, self._voter_set
                encode = self._machine.capture()
                await self._on_disk(
                    lambda journal: journal.save_snapshot(index, term, pack_snapshot(index, voters, encode()))
                )

    def _apply(self, index: int, term: int, data: bytes) -> int:
        """Apply an entry; return the units of work that it took."""
        units = 0
        command = command_in(data)
        if command is not None:
            try:
                units = self._machine.apply(index, term, command) or 0
            except CodecError:
                raise
            except Exception as error:
                raise Fatal(f"entry {index} of the metadata log could not be applied: {error!r}") from error
            self._applied_bytes += len(command)
        self.applied_index, self._last_term = index, term
        return units

    async def _on_disk(self, write: Callable[[Journal], object]) -> None:
        journal = self._journal
        if journal is None:
            return
        try:
            await self._in_disk_thread(write, journal)
        except OSError as error:
            if not is_transient(error):
                raise journal_failed(error) from error
            logger.error("the metadata will not be stored on this disk until the next start: %s", error)
            self._journal = None
            await self._in_disk_thread(journal.close)
