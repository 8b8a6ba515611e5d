"""The metadata quorum: Raft by pysyncobj, hardened, without its sockets, threads, clock, files and pickles.

    Quorum: inputs (tick, connected, disconnected, receive, propose) -> messages, entries applied to the state machine
      raft.node.Raft: one server, in parts after the paper's sections
      raft.library: pysyncobj's roles, votes, terms, log matching, commit and apply; each override closes a defect
      raft.log: the library's journal interface over ours

The broker's loop, on one event loop:

    feed inputs -> take_messages() -> send those without after_sync
                -> if needs_sync: await to_thread(journal.sync), then synced(its result) -> send the rest -> repeat

A message with `after_sync` may leave only if `needs_sync` was false when it was taken, or after a sync that began later
has returned. Syncs and snapshots run one at a time; inputs may arrive meanwhile.

Snapshots are encoded, decoded and written in threads. Our own: if `snapshot_due`, `begin_snapshot()`, its `encode`,
`journal.save_snapshot`, `snapshot_saved(index)`. For followers: if `snapshot_wanted`, `capture_snapshot()`, its
`encode`, `snapshot_encoded(...)`. A leader's: if `snapshot_to_decode` is not None, call it, then `snapshot_decoded`
with its result or exception; once `received_snapshot` is not None, the machine has restored it; then call
`journal.save_snapshot`, with no other use of the journal meanwhile, and `snapshot_installed()`. Entries and
snapshots are in the log's encoding: read them with `command_in(entry.data)` and `unpack_snapshot(data)` of
`quorum_messages`.

Invariants:
* An entry, a term or a vote is on disk before it is answered, and a leader's own entry before it counts for the commit.
* No entry that may be committed is ever dropped: the log is truncated only where terms conflict, and never at or below
  the commit index (that would mean a broken quorum, and stops this node).
* An exception from the machine stops this node for good: every later input raises `QuorumStoppedError`.
* A node that is not among the voters of its own log never campaigns. It asks for entries as a learner; once it has
  caught up, the leader may add it. Voters change one at a time. The voters are those of the newest such entry in the
  log, committed or not, so truncation reverts a change. Voters that were configured and never changed are not logged;
  with directory ids, the first leader logs them.
* A server of a quorum with directory ids is a voter only with the directory of the entry: one whose disk was replaced
  is a learner, and neither its votes nor its acknowledgements count as the voter's. A peer is therefore a number that
  stands for node and directory (`VoterSet.number_of`); the server itself is its node id.
* A campaign is preceded by a poll that changes no term, and a node that hears from a leader does not vote; so a node
  that returns from a partition deposes no leader. A node that loses its connection to the leader polls within 50 to
  200 ms.

Left out: the library's forwarding, callbacks and code versions (commands are proposed on the leader, as bytes, and
their submitter watches for them in `apply`), reads without a log entry, and learners that outlive their connection.
See docs/explanation/raft-library.md for each defect of the library; D1 and the like are its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kraftpy.frozen import frozen
from kraftpy.metadata import quorum_messages as messages
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.journal import MAX_ENTRY_BYTES, Entry, Journal, Loaded, Snapshot
from kraftpy.metadata.quorum_messages import BadMessageError, unpack_snapshot
from kraftpy.metadata.raft.library import NOW_S, QuorumStoppedError
from kraftpy.metadata.raft.log import RaftLog
from kraftpy.metadata.raft.node import Raft
from kraftpy.metadata.raft.snapshots import Captured
from kraftpy.metadata.raft.state import BATCH_BYTES, CHUNK_BYTES, Chance, Message, RaftSettings, StateMachine
from kraftpy.metadata.voters import VoterSet, directory_of, node_of

SNAPSHOT_AFTER_ENTRIES = 10_000
SNAPSHOT_AFTER_BYTES = 20 << 20
MAX_UNCOMMITTED_BYTES = 2 * MAX_ENTRY_BYTES


@frozen
class VoterProgress:
    """A node's progress as the leader knows it. Times are by the caller's clock; -1 means never."""

    id: int
    """The node's id."""
    log_end_index: int
    """The newest entry on its disk."""
    last_contact_ms: int
    last_caught_up_ms: int
    is_voter: bool
    directory_id: bytes | None = None
    """The id of the node's directory, if the quorum tells disks apart."""


class Quorum:
    """One node of the quorum. Times are milliseconds of a monotonic clock."""

    def __init__(
        self, *, node_id: int, voters: VoterSet | Mapping[int, str], journal: Journal, loaded: Loaded,
        machine: StateMachine, rng: Chance, now_ms: int, directory_id: bytes | None = None,
        election_timeout_ms: int = 1000, fetch_timeout_ms: int = 2000,
        snapshot_after_entries: int = SNAPSHOT_AFTER_ENTRIES, snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
        batch_bytes: int = BATCH_BYTES, chunk_bytes: int = CHUNK_BYTES,
    ) -> None:  # fmt: skip
        """Restore the machine from the loaded snapshot; its exceptions propagate. Entries are applied once they are
        known to be committed.

        `voters` count as long as the log sets none; `directory_id` is this node's own.
        """
        snapshot = loaded.snapshot
        base_index, base_term = (snapshot.index, snapshot.term) if snapshot else (0, 0)
        log = RaftLog(journal, base_index, base_term, VoterSet.of(voters), node_id=node_id, directory_id=directory_id)
        self._directory_id = directory_id
        if snapshot is not None:
            contents = unpack_snapshot(snapshot.data)
            machine.decode(contents.state)()
            log.set_snapshot_voters(contents)
        for entry in loaded.entries:
            log.load((messages.entry_of(entry.data), entry.index, entry.term))
        self._journal = journal
        self._failure: QuorumStoppedError | None = None
        self._is_settled = False  # advancing again at the same time would change nothing
        token = NOW_S.set(now_ms / 1000)
        try:
            self._raft = Raft(
                node_id=node_id,
                log=log,
                machine=machine,
                chance=rng,
                now_ms=now_ms,
                settings=RaftSettings(
                    election_timeout_ms=election_timeout_ms,
                    fetch_timeout_ms=fetch_timeout_ms,
                    snapshot_after_entries=snapshot_after_entries,
                    snapshot_after_bytes=snapshot_after_bytes,
                    batch_bytes=batch_bytes,
                    chunk_bytes=chunk_bytes,
                ),
            )
        finally:
            NOW_S.reset(token)
        self._state = self._raft.state

    @contextmanager
    def _input(self, now_ms: int | None = None, *, advances: bool = True) -> Iterator[Raft]:
        """Process one input at a given time; if it fails, every later input is refused."""
        if self._failure is not None:
            raise self._failure
        raft, state = self._raft, self._state
        if now_ms is not None and now_ms > state.now_ms:
            state.now_ms = now_ms
        token = NOW_S.set(state.now_ms / 1000)
        self._is_settled = False
        try:
            yield raft
            raft.membership.follow_log()
            if advances:
                self._advance()
                raft.membership.follow_log()
        except BadMessageError:
            raise
        except QuorumStoppedError as error:
            self._failure = error
            raise
        except Exception as error:
            what = str(error) if isinstance(error, CodecError) else repr(error)
            self._failure = QuorumStoppedError(f"the metadata quorum has failed on this node: {what}")
            raise self._failure from error
        finally:
            NOW_S.reset(token)

    def _advance(self) -> None:
        before = self._raft.progress_mark()
        self._raft.advance()
        self._is_settled = self._raft.progress_mark() == before

    # -- inputs

    def tick(self, now_ms: int) -> None:
        """Advance the time. Call this no later than `next_tick_ms`.

        Between two ticks only so many committed entries are applied; let others run before the next one.
        """
        is_settled = self._is_settled and not self._raft.has_more_to_apply
        if is_settled and now_ms <= self._state.now_ms and self._failure is None:
            return
        self._raft.begin_tick()
        with self._input(now_ms):
            pass

    def connected(self, peer: int, now_ms: int) -> None:
        """Note a connection to a peer, ordered and lossless until `disconnected`; it replaces an older one."""
        with self._input(now_ms) as raft:
            raft.connect(peer)

    def disconnected(self, peer: int, now_ms: int) -> None:
        """Note the end of a connection; messages not yet taken for it are dropped."""
        with self._input(now_ms) as raft:
            raft.disconnect(peer)

    def receive(self, peer: int, body: dict[str, Any], now_ms: int) -> None:
        """Process a peer's message. Raises BadMessageError, a ValueError, for one that no correct peer sends."""
        read = messages.read_body(body)
        with self._input(now_ms) as raft:
            if peer in self._state.connected_peers:
                raft.receive(peer, read)

    def propose(self, data: bytes) -> tuple[int, int] | None:
        """Append a command on the leader; return its index and term, to watch for in `apply`.

        Returns None if this node does not lead, or too much is waiting to be committed.
        """
        if len(data) >= MAX_ENTRY_BYTES:
            raise ValueError(f"a metadata command of {len(data)} bytes is too large")
        if not self.is_leader or self._raft.leader.uncommitted_bytes + len(data) > MAX_UNCOMMITTED_BYTES:
            return None
        with self._input(advances=False) as raft:  # it is not on any disk yet, so nothing can be committed now
            return raft.leader.append(messages.COMMAND + data)

    def why_no_change(
        self, *, add: int | None = None, remove: int | None = None, directory_id: bytes | None = None
    ) -> str | None:
        """Return the reason for which `change_voter` would return None; None if it would not."""
        return self._raft.membership.why_no_change(add, remove, directory_id)

    def change_voter(
        self, *, add: tuple[int, str] | None = None, remove: int | None = None, directory_id: bytes | None = None
    ) -> tuple[int, int] | None:
        """Add a voter that has caught up, or remove one. Return the entry's index and term; None if that is refused.

        `directory_id` is that of the node to add, or must be that of the voter to remove; None stands for any voter's.
        """
        added = None if add is None else add[0]
        if self._raft.membership.why_no_change(added, remove, directory_id) is not None:
            return None
        changed = self.voter_set
        if add is not None:
            changed = changed.with_voter(*add, directory_id)
        if remove is not None:
            changed = changed.without(remove)
        with self._input() as raft:
            return raft.leader.append(messages.voters_entry(changed))

    def resign(self) -> None:
        """Start handing over leadership before a clean stop. It is done when `is_leader` becomes False."""
        with self._input() as raft:
            raft.leader.resign()

    # -- outputs

    def take_messages(self) -> list[Message]:
        """Return the messages to send, in order for each peer."""
        is_settled = self._is_settled
        with self._input(advances=False) as raft:
            if not is_settled:
                self._advance()
            raft.send_due()
        return self._raft.take_outbox()

    @property
    def needs_sync(self) -> bool:
        """True if `journal.sync` has something to do, or is running."""
        return self._journal.is_dirty

    def synced(self, durable_index: int) -> None:
        """Note the index that `journal.sync` returned: entries may now be committed, and are applied."""
        with self._input():
            pass

    def next_tick_ms(self, now_ms: int) -> int:
        """Return the latest time, by the caller's clock, to call `tick`."""
        state, leader = self._state, self._raft.leader
        if self._raft.has_more_to_apply:
            return now_ms
        latest = now_ms + 1000
        if state.is_leader:
            peers = leader.followers.keys() & state.connected_peers
            times = [leader.followers[peer].heartbeat_due_ms for peer in peers]
            if leader.resigning_until_ms is not None:
                times.append(leader.resigning_until_ms)
            return max(now_ms, min([latest, *times]))
        deadline_s = state.library.election_deadline_s
        due_ms = int(deadline_s * 1000)
        while due_ms / 1000 <= deadline_s:  # as it is compared: 130.605 * 1000 is less than 130605
            due_ms += 1
        return max(now_ms, min(latest, due_ms))

    # -- state

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self._state.id

    @property
    def leader_id(self) -> int | None:
        """The leader's node id, if known here."""
        leader = self._state.leader
        return None if leader is None else node_of(leader)

    @property
    def term(self) -> int:
        """The newest term known here."""
        return self._state.current_term

    @property
    def is_leader(self) -> bool:
        """True if this node leads and accepts commands; it may not know yet that another was elected."""
        return self._failure is None and self._state.is_leader and self._raft.leader.resigning_until_ms is None

    @property
    def is_active(self) -> bool:
        """True if this node leads and has applied everything of earlier terms."""
        first = self._state.library.first_index_of_term
        return self.is_leader and first is not None and self.applied_index >= first

    @property
    def commit_index(self) -> int:
        """The newest entry known to be committed."""
        return self._state.commit_index

    @property
    def applied_index(self) -> int:
        """The newest entry applied to the machine."""
        return self._state.last_applied

    @property
    def last_index(self) -> int:
        """The newest entry here."""
        return self._state.log.last_index

    @property
    def voters(self) -> Mapping[int, str]:
        """The voters' node ids and their endpoints, by the newest entry that sets them."""
        return dict(self._state.log.voting.voters.addresses)

    @property
    def voter_set(self) -> VoterSet:
        """The voters by the newest entry that sets them; another object after each change."""
        return self._state.log.voting.voters

    @property
    def is_voter(self) -> bool:
        """True if this node has a vote."""
        return self._state.is_voter

    @property
    def connected_peers(self) -> frozenset[int]:
        """The numbers of the connected peers."""
        return frozenset(self._state.connected_peers)

    def committed_after(self, index: int, max_bytes: int) -> list[Entry] | None:
        """Return applied entries after `index`, at least one if there is one; None if a snapshot is needed."""
        log, applied = self._state.log, self.applied_index
        if index < log.first_index:
            return None
        found: list[Entry] = []
        size = 0
        for data, entry_index, term in log.entries[index + 1 - log.first_index : applied + 1 - log.first_index]:
            size += len(data)
            if found and size > max_bytes:
                break
            found.append(Entry(index=entry_index, term=term, data=data))
        return found

    def snapshot_for(self) -> Snapshot | None:
        """Return a snapshot for a node that is behind; `committed_after` its index continues from there.

        Returns None if there is none yet; `snapshot_wanted` is then true.
        """
        return self._raft.snapshots.for_followers()

    def progress(self) -> list[VoterProgress]:
        """Return each node's progress, this one first; only a leader knows that of others."""
        state, voters = self._state, self._state.voters()
        own = VoterProgress(
            id=state.id, log_end_index=self._journal.durable_index, last_contact_ms=state.now_ms,
            last_caught_up_ms=state.now_ms, is_voter=state.id in voters,
            directory_id=self._directory_id if self.voter_set.directories else None,
        )  # fmt: skip
        return [
            own,
            *(
                VoterProgress(
                    id=node_of(peer), log_end_index=state.library.match_index(peer),
                    last_contact_ms=follower.last_contact_ms, last_caught_up_ms=follower.last_caught_up_ms,
                    is_voter=peer in voters, directory_id=directory_of(peer),
                )
                for peer, follower in sorted(self._raft.leader.followers.items())
            ),
        ]  # fmt: skip

    # -- snapshots

    @property
    def snapshot_due(self) -> bool:
        """True if the log has grown enough since the last snapshot, and one can be taken now."""
        return self._raft.snapshots.is_due

    def begin_snapshot(self) -> Captured:
        """Capture a snapshot for `journal.save_snapshot`. Raises ValueError if none can be taken now."""
        return self._raft.snapshots.begin()

    def snapshot_saved(self, index: int) -> None:
        """Note that the snapshot is on disk: the entries before it are no longer needed."""
        self._raft.snapshots.saved(index)

    @property
    def snapshot_wanted(self) -> bool:
        """True if nodes that are behind wait for a snapshot."""
        return self._raft.snapshots.is_wanted

    def capture_snapshot(self) -> Captured:
        """Capture the snapshot that is wanted."""
        return self._raft.snapshots.capture()

    def snapshot_encoded(self, snapshot: Snapshot) -> None:
        """Take the snapshot that was wanted, encoded, and send it to those that wait for it."""
        with self._input() as raft:
            raft.snapshots.encoded(snapshot)
            raft.leader.snapshot_encoded()

    @property
    def snapshot_to_decode(self) -> Callable[[], Callable[[], None]] | None:
        """A function that decodes a leader's complete snapshot, in any thread, if there is one."""
        return self._raft.follower.to_decode

    def snapshot_decoded(self, outcome: Callable[[], None] | Exception) -> None:
        """Take the result of `snapshot_to_decode`, or its exception."""
        with self._input() as raft:
            raft.follower.decoded(outcome)

    @property
    def received_snapshot(self) -> Snapshot | None:
        """A leader's snapshot that was checked and restored, and must be saved now."""
        return None if self._raft.snapshots.is_saving else self._state.installing

    def snapshot_installed(self) -> None:
        """Note that the received snapshot is on disk."""
        with self._input() as raft:
            raft.snapshot_installed()
