"""A voter: the loop around `metadata.quorum` and its journal; it serves followers and observers.

    messages, link changes, time, proposals -> Quorum -> messages, applied commands
                                                 | journal: one thread, which syncs and saves snapshots

A message that promises something must not leave before that is on disk (`after_sync`): it waits for the next sync, and
is dropped if its link was replaced meanwhile. Nothing else waits for the disk: votes are requested and entries sent
while a sync runs.

Observers request the committed entries after their newest one (`follow`). They are answered as soon as there are new
ones or the leader changes, and get a snapshot if the entries are no longer in the journal.

A node first tells each peer the id of its metadata directory (`directory`). If the quorum tells disks apart, Raft takes
a peer for the server with that directory; a peer that tells none is no voter there.

While the disk is full, or the process is out of file descriptors, this node is silent, so that the others continue
without it. A quorum of one refuses commands meanwhile. Any other disk failure stops the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kraftpy.broker.containment import DirectoryFailed, Fatal, Tasks
from kraftpy.broker.threads import Threads
from kraftpy.broker.waiting import Waiter
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.journal import Entry, Journal, JournalError, Snapshot
from kraftpy.metadata.quorum import Quorum
from kraftpy.metadata.quorum_messages import BadMessageError, plain_voters
from kraftpy.metadata.raft.library import QuorumStoppedError
from kraftpy.metadata.raft.membership import LEADER_ITSELF
from kraftpy.metadata.raft.state import Message, StateMachine
from kraftpy.metadata.voters import VoterSet, node_of, server_number
from kraftpy.ports import Clock, Directory, Failure, failure_of
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.broker.metadata.transport import Links

logger = logging.getLogger(__name__)

FOLLOW_WAIT_MS = 500
"""The longest that an observer's request waits for new entries or a new leader."""
FOLLOW_BYTES = 1 << 20
_REOPEN_MS = 1000
_RESIGN_SECONDS = 2.0


class _Session:
    """One connection to a peer: the id of the peer's directory, if it told one, and the server it is to Raft."""

    __slots__ = ("directory_id", "server")

    def __init__(self, server: int) -> None:
        self.directory_id: bytes | None = None
        self.server = server


_Held = tuple[Message, _Session]


def is_transient(error: OSError) -> bool:
    """Return whether the failure is temporary: the journal is intact and can be written again later."""
    return failure_of(error, is_sync=True) in (Failure.FULL, Failure.RESOURCES)


def journal_failed(error: OSError) -> DirectoryFailed:
    """Return the error that stops a node, voter or observer, whose journal failed: its contents are unknown."""
    return DirectoryFailed(f"the metadata journal cannot be written: {error.strerror or error}; this node stops")


def _outcome_of(decode: Callable[[], Callable[[], None]]) -> Callable[[], None] | Exception:
    """Decode a snapshot; return how to install it, or why it is refused."""
    try:
        return decode()
    except Exception as error:
        return error


class Voter:
    """One node's participation in the quorum. `on_change` is called after every step."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: VoterSet | Mapping[int, str],
        election_timeout_ms: int,
        fetch_timeout_ms: int,
        snapshot_after_bytes: int,
        new_machine: Callable[[], StateMachine],
        on_change: Callable[[], None],
        clock: Clock,
        links: Links | None,
        tasks: Tasks,
        on_loaded: Callable[[Sequence[Entry]], None] | None = None,
        directory_id: bytes | None = None,
    ) -> None:
        """`on_loaded` is called once, with the journal's entries after the snapshot, which the machine has restored.

        `voters` count as long as the log sets none. `directory_id` is that of this node's metadata directory.
        """
        self._on_loaded = on_loaded
        self._node_id = node_id
        self.directory_id = directory_id
        self._voters = VoterSet.of(voters)
        self._election_timeout_ms = election_timeout_ms
        self._fetch_timeout_ms = fetch_timeout_ms
        self._snapshot_after_bytes = snapshot_after_bytes
        self._new_machine = new_machine
        self._on_change = on_change
        self._clock = clock
        self._links = links
        self._tasks = tasks
        self._directory: Directory | None = None
        self._journal: Journal | None = None
        self._quorum: Quorum | None = None
        self._disk = Threads(1, thread_name_prefix="metadata-journal")
        self._inbox: deque[Callable[[Quorum, int], object]] = deque()
        self._wake = Waiter()
        self._disk_wanted = asyncio.Event()
        self._held: list[_Held] = []
        self._is_syncing = False
        self._disk_trouble = ""
        """While the disk is full: a description of the failure."""
        self._reopen_at_ms = 0
        """While the disk is full: the earliest time of the next attempt; messages from peers do not advance it."""
        self._sessions: dict[int, _Session] = {}
        """For each connected peer its session, which is another one with each connection."""
        self._has_directories = self._voters.has_directories
        """True if peers are known to Raft by their directories, too."""
        self.is_alone = False
        """True if this node was the only voter when it last took part in the quorum."""
        self._changed: asyncio.Event = asyncio.Event()
        """Set and replaced whenever observers may have something new to receive."""
        self._last_state: object = None
        """The state when waiters were last woken."""
        self._running: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self.observers: dict[int, tuple[int, int, int]] = {}
        """For each observer that asked here lately: its newest entry, when it asked, when it was last caught up."""

    # --- state -------------------------------------------------------------------------------

    @property
    def quorum(self) -> Quorum | None:
        """The quorum's state machine; None while the disk is full."""
        return self._quorum

    @property
    def journal(self) -> Journal | None:
        """The journal, to be looked at; None while the disk is full."""
        return self._journal

    @property
    def has_disk_trouble(self) -> bool:
        """True while the disk is full, so that this node takes no part in the quorum."""
        return bool(self._disk_trouble)

    @property
    def refusal(self) -> KafkaError:
        """Why `quorum` is None, as the answer to a command."""
        if self._disk_trouble:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._disk_trouble)
        if self._is_stopping:
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller is shutting down.")
        return KafkaError(ErrorCode.NOT_CONTROLLER, "this node has not started yet")

    @property
    def leader_id(self) -> int | None:
        """The leader's id, if known here."""
        return None if self._quorum is None else self._quorum.leader_id

    @property
    def term(self) -> int:
        """The newest term known here."""
        return -1 if self._quorum is None else self._quorum.term

    @property
    def is_active(self) -> bool:
        """True if this node leads and its image is up to date."""
        return self._quorum is not None and self._quorum.is_active

    @property
    def applied_index(self) -> int:
        """The newest entry in the image; a snapshot from the leader counts before it is on disk."""
        if self._quorum is None:
            return 0
        received = self._quorum.received_snapshot
        return self._quorum.applied_index if received is None else received.index

    # --- start and stop ----------------------------------------------------------------------

    async def start(self, directory: Directory) -> None:
        """Open the journal and join the quorum. Raises JournalError, CodecError or OSError."""
        self._directory = directory
        await self._open()
        if self._links is not None:
            self._links.receive("raft", self._received)
            self._links.receive("directory", self._told_directory)
            self._links.on_connection(self._connection)
            self._links.serve("follow", self._follow)
        for task in (self._run(), self._run_disk()):
            self._running.append(self._tasks.create_task(task, name="metadata quorum"))

    async def stop(self) -> None:
        """Hand over leadership if another voter is connected, and close the journal. Raises OSError."""
        if self._quorum is not None and self._quorum.is_leader and self._may_hand_over(self._quorum):
            self._enqueue(lambda quorum, _: quorum.resign())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESIGN_SECONDS):
                    while self.leader_id in (None, self._node_id) and self._may_hand_over(self._quorum):
                        changed = self._changed
                        await changed.wait()
        self._is_stopping = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._quorum = None
        self._wake_all()
        journal, self._journal = self._journal, None
        if journal is not None:
            await self._in_disk_thread(journal.close)
        self._disk.shutdown()

    def _may_hand_over(self, quorum: Quorum | None) -> bool:
        return quorum is not None and any(voter in self._sessions for voter in quorum.voters)

    async def _open(self) -> None:
        assert self._directory is not None
        journal = Journal(self._directory)
        loaded = await self._in_disk_thread(journal.load)
        self._journal = journal
        self._quorum = Quorum(
            node_id=self._node_id,
            voters=self._voters,
            directory_id=self.directory_id,
            journal=journal,
            loaded=loaded,
            machine=self._new_machine(),
            rng=random.SystemRandom(),
            now_ms=self._clock.monotonic_ms(),
            election_timeout_ms=self._election_timeout_ms,
            fetch_timeout_ms=self._fetch_timeout_ms,
            snapshot_after_bytes=self._snapshot_after_bytes,
        )
        if self._on_loaded is not None:
            self._on_loaded(loaded.entries)
            self._on_loaded = None
        now = self._clock.monotonic_ms()
        self._follow_voters(self._quorum)
        for peer, session in self._sessions.items():
            self._connect(peer, session, self._quorum, now)
        self._wake.wake()

    async def _in_disk_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, function, *arguments)

    # --- inputs ------------------------------------------------------------------------------

    def propose(self, data: bytes) -> bool:
        """Append a command if this node leads; return whether it did. The command may never be committed."""
        if self._quorum is None or not self._quorum.is_leader:
            return False
        try:
            is_taken = self._quorum.propose(data) is not None
        except QuorumStoppedError:
            if not self._is_journal_failing:
                raise
            return False
        self._wake.wake()
        return is_taken

    async def change_voter(
        self, *, add: tuple[int, str] | None = None, remove: int | None = None, directory_id: bytes | None = None
    ) -> str | None:
        """Add or remove one voter, and wait until that is committed. Return None, or the reason for a failure.

        `directory_id` is that of the node to add, or must be that of the voter to remove; None stands for any voter's.
        If this node is to remove itself, it hands its leadership over, and returns `LEADER_ITSELF`.
        """
        if (quorum := self._quorum) is None:
            return "the disk of this node is full"
        added = None if add is None else add[0]
        reason = quorum.why_no_change(add=added, remove=remove, directory_id=directory_id)
        if reason == LEADER_ITSELF:
            self._enqueue(lambda quorum, _: quorum.resign())
        if reason is not None:
            return reason
        try:
            entry = quorum.change_voter(add=add, remove=remove, directory_id=directory_id)
        except QuorumStoppedError:
            if not self._is_journal_failing:
                raise
            return "the disk of this node is full"
        if entry is None:
            return "the voters cannot be changed now"
        self._wake.wake()
        index, term = entry
        while quorum.commit_index < index:
            if quorum is not self._quorum:
                return "this node left the quorum: it is not known whether the voters changed"
            if quorum.term != term or not quorum.is_leader:
                return "the leader changed: it is not known whether the voters did"
            changed = self._changed
            await changed.wait()
        return None

    def _enqueue(self, process: Callable[[Quorum, int], object]) -> None:
        self._inbox.append(process)
        self._wake.wake()

    def _received(self, peer: int, body: dict[str, Any]) -> None:
        session = self._sessions.get(peer)

        def receive(quorum: Quorum, now: int) -> None:
            if session is not None and self._sessions.get(peer) is session:
                try:
                    quorum.receive(session.server, body, now)
                except BadMessageError as error:
                    assert self._links is not None
                    self._links.refuse_body(peer, error)

        self._enqueue(receive)

    def _told_directory(self, peer: int, body: dict[str, Any]) -> None:
        """Take a peer for the server with the directory that it has told, from its next message on."""
        session = self._sessions.get(peer)
        if session is not None:
            session.directory_id = body["id"]
            self._enqueue(lambda quorum, now: self._identify(quorum, peer, session, now))

    def _connect(self, peer: int, session: _Session, quorum: Quorum, now: int) -> None:
        session.server = self._server_of(peer, session)
        quorum.connected(session.server, now)

    def _identify(self, quorum: Quorum, peer: int, session: _Session, now: int) -> None:
        server = self._server_of(peer, session)
        if self._sessions.get(peer) is session and session.server != server:
            quorum.disconnected(session.server, now)
            session.server = server
            quorum.connected(server, now)

    def _server_of(self, peer: int, session: _Session) -> int:
        return server_number(peer, session.directory_id if self._has_directories else None)

    def _follow_voters(self, quorum: Quorum) -> None:
        """Notice from the voters how this quorum tells servers apart."""
        self._has_directories = quorum.voter_set.has_directories
        self.is_alone = quorum.is_voter and len(quorum.voter_set.addresses) == 1

    def _connection(self, peer: int, is_up: bool) -> None:
        if is_up:
            session = self._sessions[peer] = _Session(peer)
            if self.directory_id is not None and self._links is not None:
                self._links.send(peer, "directory", {"id": self.directory_id})
            self._enqueue(functools.partial(self._connect, peer, session))
        elif (gone := self._sessions.pop(peer, None)) is not None:
            self.observers.pop(peer, None)
            self._enqueue(lambda quorum, now: quorum.disconnected(gone.server, now))

    # --- the loop ----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            now = self._clock.monotonic_ms()
            quorum = self._quorum
            until = self._reopen_at_ms if quorum is None else quorum.next_tick_ms(now)
            pause = (until - now) / 1000
            if pause > 0 and not self._inbox:
                await self._wake.wait_until(asyncio.get_running_loop().time() + pause)
            else:
                await asyncio.sleep(0)
            self._wake.clear()
            if self._quorum is None:
                self._inbox.clear()
                if self._clock.monotonic_ms() >= self._reopen_at_ms:
                    self._reopen_at_ms = self._clock.monotonic_ms() + _REOPEN_MS
                    if self._links is not None:
                        await self._try_to_reopen()
                continue
            try:
                self._step(self._quorum)
            except OSError as error:
                raise journal_failed(error) from error
            except QuorumStoppedError as error:
                if not self._is_journal_failing:
                    raise Fatal(str(error)) from error
                while self._quorum is quorum:  # `_run_disk` closes it, or ends this node
                    changed = self._changed
                    await changed.wait()

    @property
    def _is_journal_failing(self) -> bool:
        """True if the journal has failed in its thread and refuses writes; `_run_disk` handles that soon."""
        return self._journal is not None and self._journal.has_failed

    def _step(self, quorum: Quorum) -> None:
        now = self._clock.monotonic_ms()
        while self._inbox:
            process = self._inbox.popleft()
            process(quorum, now)
        quorum.tick(now)
        had_directories = self._has_directories
        self._follow_voters(quorum)
        if self._has_directories != had_directories:
            for peer, session in [*self._sessions.items()]:
                self._identify(quorum, peer, session, now)
        self._send(quorum)
        if (
            quorum.needs_sync
            or quorum.snapshot_due
            or quorum.snapshot_wanted
            or quorum.snapshot_to_decode is not None
            or quorum.received_snapshot is not None
        ):
            self._disk_wanted.set()
        self._publish()

    def _publish(self) -> None:
        self._on_change()
        quorum = self._quorum
        state = (
            None
            if quorum is None
            else (quorum, quorum.applied_index, quorum.commit_index, quorum.leader_id, quorum.term, len(self._sessions))
        )
        if state == self._last_state:
            return  # most steps are ticks, which change nothing
        self._last_state = state
        self._wake_all()

    def _wake_all(self) -> None:
        """Wake all tasks that wait for a change of the quorum."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _send(self, quorum: Quorum) -> None:
        for message in quorum.take_messages():
            session = self._sessions.get(node_of(message.peer))
            if session is None or session.server != message.peer:
                continue
            if message.after_sync and (self._held or self._is_syncing or quorum.needs_sync):
                self._held.append((message, session))
                self._disk_wanted.set()
            elif self._links is not None:
                self._links.send(node_of(message.peer), "raft", message.body)

    def _send_held(self, held: list[_Held]) -> None:
        for message, session in held:
            peer = node_of(message.peer)
            if self._links is not None and self._sessions.get(peer) is session and session.server == message.peer:
                self._links.send(peer, "raft", message.body)

    async def _run_disk(self) -> None:
        """Run the disk's work: syncs and snapshots, one after the other."""
        while True:
            await self._disk_wanted.wait()
            self._disk_wanted.clear()
            quorum, journal = self._quorum, self._journal
            if quorum is None or journal is None:
                continue
            try:
                await self._sync(quorum, journal)
                await self._save_snapshots(quorum, journal)
            except OSError as error:
                if not is_transient(error):
                    raise journal_failed(error) from error
                await self._leave_quorum(error)
            except (JournalError, CodecError) as error:  # the journal was damaged since it was last read
                raise DirectoryFailed(f"log.dirs: {error}") from error
            except QuorumStoppedError as error:
                raise Fatal(str(error)) from error

    async def _sync(self, quorum: Quorum, journal: Journal) -> None:
        self._send(quorum)
        held, self._held = self._held, []
        self._is_syncing = True
        try:
            durable_index = await self._in_disk_thread(journal.sync)
        finally:
            self._is_syncing = False
        quorum.synced(durable_index)
        self._send_held(held)
        self._wake.wake()
        self._publish()

    async def _save_snapshots(self, quorum: Quorum, journal: Journal) -> None:
        """Do what snapshots need of a thread: those of many partitions take a tenth of a second to encode or decode."""
        if (decode := quorum.snapshot_to_decode) is not None:
            quorum.snapshot_decoded(await self._in_disk_thread(_outcome_of, decode))
            self._wake.wake()
        if quorum.snapshot_wanted:
            captured = quorum.capture_snapshot()
            data = await self._in_disk_thread(captured.encode)
            quorum.snapshot_encoded(Snapshot(index=captured.index, term=captured.term, data=data))
            self._wake.wake()
            self._wake_all()
        received = quorum.received_snapshot
        if received is not None:
            await self._in_disk_thread(journal.save_snapshot, received.index, received.term, received.data)
            quorum.snapshot_installed()
            self._wake.wake()
        elif quorum.snapshot_due:
            captured = quorum.begin_snapshot()
            await self._in_disk_thread(lambda: journal.save_snapshot(captured.index, captured.term, captured.encode()))
            quorum.snapshot_saved(captured.index)
            self._wake.wake()

    # --- a full disk -------------------------------------------------------------------------

    async def _leave_quorum(self, error: OSError) -> None:
        """Be silent until the journal can be written again."""
        logger.error("the metadata journal cannot be written: %s", error)
        self._disk_trouble = f"the metadata journal cannot be written: {error.strerror or error}"
        journal, self._journal = self._journal, None
        self._quorum = None
        self._reopen_at_ms = self._clock.monotonic_ms() + _REOPEN_MS
        self._held.clear()
        if journal is not None:
            await self._in_disk_thread(journal.close)  # the journal has failed: this only closes the file
        if self._links is not None:
            for peer in [*self._sessions]:
                self._links.disconnect(peer)  # so that peers look for another leader at once
        self._publish()

    async def reopen(self) -> bool:
        """Try to rejoin the quorum after the disk was full; return whether that worked."""
        if self._quorum is not None or self._is_stopping:
            return self._quorum is not None
        try:
            await self._open()
        except OSError as error:
            if not is_transient(error):
                raise journal_failed(error) from error
            return False
        except (JournalError, CodecError) as error:  # damaged since it was last read
            raise DirectoryFailed(f"log.dirs: {error}") from error
        self._disk_trouble = ""
        return True

    async def _try_to_reopen(self) -> None:
        if await self.reopen():
            logger.warning("the metadata journal is writable again")

    # --- observers ---------------------------------------------------------------------------

    async def _follow(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        """Answer an observer with committed entries after its newest one, and the leader, once one of them is new."""
        after, known = body["after"], (body["leader"], body["term"])
        now = self._clock.monotonic_ms()
        caught_up_ms = now if after >= self.applied_index else self.observers.get(peer, (0, 0, -1))[2]
        self.observers[peer] = (after, now, caught_up_ms)
        deadline = asyncio.get_running_loop().time() + FOLLOW_WAIT_MS / 1000
        while True:
            quorum, changed = self._quorum, self._changed
            if quorum is not None:
                leader = -1 if quorum.leader_id is None else quorum.leader_id
                if quorum.applied_index > after or known != (leader, quorum.term):
                    break
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                quorum = self._quorum
                break
        answer: dict[str, Any] = {"leader": -1, "term": -1, "applied": after, "voters": [], "entries": []}
        if quorum is None:
            return answer
        answer["leader"] = -1 if quorum.leader_id is None else quorum.leader_id
        answer["term"], answer["applied"] = quorum.term, quorum.applied_index
        answer["voters"] = plain_voters(quorum.voter_set)
        entries = quorum.committed_after(after, FOLLOW_BYTES) if after <= quorum.applied_index else []
        if entries is None:
            snapshot = await self._snapshot_for_observer(quorum)
            if snapshot is not None:
                answer["snapshot"] = [snapshot.index, snapshot.term, snapshot.data]
        else:
            answer["entries"] = [[entry.index, entry.term, entry.data] for entry in entries]
        return answer

    async def _snapshot_for_observer(self, quorum: Quorum) -> Snapshot | None:
        """Return a snapshot once it is encoded; None if that takes so long that the observer had better ask again."""
        try:
            async with asyncio.timeout(FOLLOW_WAIT_MS / 1000):
                while (snapshot := quorum.snapshot_for()) is None and quorum is self._quorum:
                    self._disk_wanted.set()
                    changed = self._changed
                    await changed.wait()
        except TimeoutError:
            return None
        return snapshot
