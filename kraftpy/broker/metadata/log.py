"""The metadata log of this node: commands in, agreed decisions out, in order, the same on every node.

    submit(command) -> PendingSubmissions -> the quorum's leader -> committed
                    -> decided in `apply`, on every node alike -> ChangePublisher: the broker acts on it -> Decision

A command is wrapped once for each of its readers: with its schema (`encode_command`) for the state machine, with its
submission (`encode_submission`) for the check of duplicates, with its kind for the quorum (`quorum_messages`), and with
a checksum for the journal.

A node that votes takes part through `Voter`; any other follows through `Observer`. A single node is a quorum of one: it
answers a command that changes nothing on the current image (one that is refused or only validated) at once, and never
writes it.

A full disk makes a single node refuse commands (KAFKA_STORAGE_ERROR), and has no other effect. The next command reads
the journal again, because it is not known how much of the last one was written; that one may turn out to be decided, as
after any lost answer. Any other disk failure stops the broker: after a failed sync, the disk's contents are unknown.

Invariants: `image` only moves forward; after `follow_changes`, `changed` is called with every decision, in order, and
has acted on it before `submit` returns. The image may be ahead of the decisions passed to `changed`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from kraftpy.broker.containment import Tasks
from kraftpy.broker.metadata.change_publisher import Changed, ChangePublisher
from kraftpy.broker.metadata.configured_voters import addresses_of, first_voters
from kraftpy.broker.metadata.pending_submissions import PendingSubmissions
from kraftpy.broker.metadata.quorum_admin import QuorumAdmin, TopicDefaults
from kraftpy.broker.metadata.state_machine import Note, RecordingMachine
from kraftpy.broker.metadata.voter import Voter
from kraftpy.broker.startup import StartupError
from kraftpy.broker.storage.bootstrap import read_bootstrap
from kraftpy.config import BrokerConfig
from kraftpy.config.quorum import UNFORMATTED
from kraftpy.metadata.codec import CodecError
from kraftpy.metadata.commands import (
    AllocateProducerIds,
    AlterReassignments,
    ChangeBroker,
    ChangePartitions,
    ChangeReplicas,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    RegisterBroker,
    SetConfigs,
    UpdateFeatures,
    encode_command,
)
from kraftpy.metadata.controller import decide
from kraftpy.metadata.credentials import ScramChange
from kraftpy.metadata.decision import (
    BrokerResult,
    ConfigResult,
    Decision,
    ElectionResult,
    FeatureResult,
    PartitionResult,
    ProducerIdBlock,
    ReassignmentResult,
    TopicResult,
)
from kraftpy.metadata.image import Image
from kraftpy.metadata.journal import MAX_ENTRY_BYTES, Entry
from kraftpy.metadata.proposals import check_proposal
from kraftpy.metadata.voters import VoterSet
from kraftpy.ports import Clock, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.schema import ZERO_UUID
from kraftpy.security.scram import ScramCredential

if TYPE_CHECKING:
    from kraftpy.broker.metadata.early_credentials import EarlyCredentials
    from kraftpy.broker.metadata.observer import Observer
    from kraftpy.broker.metadata.transport import Links
    from kraftpy.metrics.histograms import Histogram

MAX_COMMAND_BYTES = MAX_ENTRY_BYTES - 1024
"""Room for what a submission adds."""
_MANY_RECORDS = 1_000

OnLeadership = Callable[[bool, int], None]
"""Called with whether this node is now the active controller, and the term."""


class MetadataLog:
    """This node's copy of the metadata log, and the way to submit commands to it.

    `links` is None for a node that no other can reach; it is its own quorum.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        changed: Changed,
        tasks: Tasks,
        links: Links | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._tasks = tasks
        self._links = links
        self._linked_voters: VoterSet | None = None
        """The voters that `links` has."""
        self._machine = RecordingMachine(self._unusable)
        self._replaying: RecordingMachine | None = None
        """A machine that replays the journal after the disk was full, until it catches up with `_machine`."""
        self._source: Voter | Observer | None = None
        self._submissions = PendingSubmissions(config.node_id, clock, self._send)
        self._publisher = ChangePublisher(
            changed,
            lambda applied, is_acted_on: self._submissions.resolve(applied, is_acted_on=is_acted_on),
            self._wake_waiters,
            tasks.incidents,
        )
        self._applied_index = 0
        self.latency: Histogram | None = None
        """Microseconds from the submission of a command here to its decision; None if there are no metrics."""
        self.unusable_entries = 0
        self._leader: tuple[int | None, int] = (None, -1)
        self._active_term: int | None = None
        """The term in which this node is the active controller."""
        self._on_leadership: list[OnLeadership] = []
        self._changed_event = asyncio.Event()
        self._last_leadership: tuple[object, ...] = ()
        """The leadership that waiters were last woken for."""
        self._running: list[asyncio.Task[None]] = []
        self.quorum = QuorumAdmin(
            config.node_id,
            config.request_timeout_ms,
            clock,
            links,
            TopicDefaults(config.num_partitions, config.default_replication_factor),
            leading=lambda: self._source if self.is_leader and isinstance(self._source, Voter) else None,
            leader_id=lambda: self.leader_id,
        )
        """The administration of the quorum itself."""
        self._early: EarlyCredentials | None = None
        self.initial_credentials: tuple[ScramChange, ...] = ()
        """The credentials that a new cluster begins with."""
        self.many_topics = asyncio.Lock()
        """Held for each part of a request with many topics (`topic_changes`), so that such requests alternate."""

    # --- state -------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The metadata decided so far."""
        return self._machine.state.image

    @property
    def source(self) -> Voter | Observer | None:
        """The node's part in the quorum; None before the start."""
        return self._source

    @property
    def leader_id(self) -> int | None:
        """The node that leads the quorum, if known here."""
        return self._leader[0]

    @property
    def leader_epoch(self) -> int:
        """The controller's epoch: the term of the newest known leader; -1 if none is known, or on a full disk."""
        return self._leader[1]

    @property
    def voters(self) -> Mapping[int, str]:
        """The quorum's voters known here, each with its `host:port`, which is empty if the voter has no address."""
        source = self._source
        if isinstance(source, Voter):
            return {} if source.quorum is None else source.quorum.voters
        return {} if source is None else source.voters

    @property
    def is_leader(self) -> bool:
        """True if this node is the active controller: it leads, and its image is up to date."""
        return self._active_term is not None

    @property
    def applied_index(self) -> int:
        """The newest entry that is in the image."""
        return self._applied_index

    @property
    def acted_index(self) -> int:
        """The newest entry that the broker has acted on."""
        return self._publisher.acted_index

    def credential_of(self, name: str, mechanism: int) -> ScramCredential | None:
        """Return a user's credential on controller listeners, where nodes log in before the metadata are up to date."""
        if self._early is None:
            return self.image.credentials.of(name, mechanism)
        has_leader = self.leader_id is not None
        return self._early.of(name, mechanism, self.image, has_leader=has_leader, applied_index=self._applied_index)

    def on_leadership(self, callback: OnLeadership) -> None:
        """Register a callback for when this node becomes or stops being the active controller."""
        self._on_leadership.append(callback)

    async def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition on this log is true, and return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not condition():
                    changed = self._changed_event
                    await changed.wait()
        return condition()

    # --- start and stop ----------------------------------------------------------------------

    async def start(self, directory: Directory) -> None:
        """Replay the journal and join the quorum.

        Raises JournalError, CodecError or OSError if the disk cannot be trusted or read, StartupError if a controller
        was not given any voters.
        """
        config, links, voters = self._config, self._links, None
        if config.is_controller:
            self.initial_credentials = await asyncio.to_thread(read_bootstrap, directory)
            voters = await asyncio.to_thread(first_voters, config, directory)
            directory_id = self.quorum.own_directory_id()
            self._source = Voter(
                node_id=config.node_id,
                voters=VoterSet({}) if voters is None else voters,
                directory_id=None if directory_id == ZERO_UUID else directory_id,
                election_timeout_ms=config.controller_quorum_election_timeout_ms,
                fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
                snapshot_after_bytes=config.metadata_log_max_record_bytes_between_snapshots,
                new_machine=self._new_machine,
                on_change=self._on_change,
                clock=self._clock,
                links=links,
                tasks=self._tasks,
                on_loaded=self._loaded,
            )
        else:
            from kraftpy.broker.metadata.observer import Observer  # imported here: a single node does not need it

            assert links is not None
            self._source = Observer(
                snapshot_after_bytes=config.metadata_log_max_record_bytes_between_snapshots,
                new_machine=self._new_machine,
                on_change=self._on_change,
                set_voters=self._set_voters,
                links=links,
                tasks=self._tasks,
            )
        await self._source.start(directory)
        if config.is_controller and voters is None and not self.voters:
            raise StartupError(f"log.dirs: {directory.path}: {UNFORMATTED} See `kraftpy format --help`.")
        if links is not None:
            links.receive("submit", self._submitted)
            self.quorum.serve(links)
            links.on_connection(self._connection)
        publish, resend = self._publisher.run, self._submissions.send_overdue
        for make, name in ((publish, "metadata changes"), (resend, "metadata submissions")):
            self._running.append(self._tasks.keep_running(make, name=name))
        self._on_change()

    def _loaded(self, entries: Sequence[Entry]) -> None:
        if self.image.cluster_id is not None:
            self.initial_credentials = ()  # the cluster is not new
        security = self._config.controller_security
        if security is not None and security.sasl is not None and not {*security.sasl.mechanisms} <= {"PLAIN"}:
            from kraftpy.broker.metadata.early_credentials import EarlyCredentials  # here: most quorums do not need it

            self._early = EarlyCredentials(self.initial_credentials, self.image, entries)

    def follow_changes(self) -> Image:
        """Start calling `changed`, and return the current image, for which it is not called."""
        self._publisher.start_publishing()
        return self.image

    async def stop(self) -> None:
        """Hand over leadership, act on pending decisions, and close the journal. Raises OSError."""
        if self._source is None:
            return
        try:
            await self._source.stop()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._publisher.finish()
            self._submissions.fail_all(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops")

    def _new_machine(self) -> RecordingMachine:
        if self._source is None or self._applied_index == 0:
            self._machine = RecordingMachine(self._unusable)
            return self._machine
        self._replaying = RecordingMachine(self._unusable)
        return self._replaying

    def _unusable(self, index: int, reason: str) -> None:
        """Report an entry of the log that changed nothing on any node because it is not a command."""
        self.unusable_entries += 1
        self._tasks.incidents.note(f"entry {index} of the metadata log", ValueError(reason), kind="metadata log")

    # --- submitting --------------------------------------------------------------------------

    @overload
    async def submit(
        self, command: CreateTopics | DeleteTopics | CreatePartitions
    ) -> Decision[tuple[TopicResult, ...]]: ...
    @overload
    async def submit(self, command: SetConfigs) -> Decision[tuple[ConfigResult, ...]]: ...
    @overload
    async def submit(self, command: RegisterBroker | ChangeBroker) -> Decision[BrokerResult]: ...
    @overload
    async def submit(self, command: AllocateProducerIds) -> Decision[ProducerIdBlock]: ...
    @overload
    async def submit(self, command: ChangePartitions | ChangeReplicas) -> Decision[tuple[PartitionResult, ...]]: ...
    @overload
    async def submit(self, command: ElectLeaders) -> Decision[tuple[ElectionResult, ...]]: ...
    @overload
    async def submit(self, command: AlterReassignments) -> Decision[tuple[ReassignmentResult, ...]]: ...
    @overload
    async def submit(self, command: UpdateFeatures) -> Decision[tuple[FeatureResult, ...]]: ...
    @overload
    async def submit(self, command: Command) -> Decision[Any]: ...
    async def submit(self, command: Command) -> Decision[Any]:
        """Submit a command and return its decision, once it is committed and this broker has acted on it.

        Raises KafkaError: KAFKA_STORAGE_ERROR if a single node could not write it, NOT_CONTROLLER if the quorum has no
        leader after `request.timeout.ms`, REQUEST_TIMED_OUT if there is no decision after that time or the node stops
        (in all these cases it may still be decided), INVALID_REQUEST if it is too large.
        """
        if self._is_alone:
            if isinstance(self._source, Voter) and not await self._source.reopen():
                raise self._source.refusal
            expected = decide(command, self.image)
            if not expected.records and not self._submissions:
                return expected
            if len(expected.records) > _MANY_RECORDS:
                await asyncio.sleep(0)  # a large topic: serve other requests before encoding and applying it
        encoded = encode_command(command)
        if len(encoded) > MAX_COMMAND_BYTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a metadata command of {len(encoded)} bytes is too large")
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000):
                if self.latency is None:
                    return await self._submissions.decided(encoded)
                began_ms = self._clock.monotonic_ms()
                decision = await self._submissions.decided(encoded)
                self.latency.record(1000 * (self._clock.monotonic_ms() - began_ms))
                return decision
        except TimeoutError:
            if self.leader_id is None:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata quorum has no leader") from None
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the metadata quorum has not decided in time") from None

    async def catch_up(self) -> None:
        """Return once this broker has acted on every decision made before the call. Raises KafkaError as `submit`.

        This submits a command that changes nothing.
        """
        await self.submit(SetConfigs(changes=(), time_ms=self._clock.now()))

    @property
    def _is_alone(self) -> bool:
        return self._config.is_own_quorum and isinstance(self._source, Voter) and self._source.is_alone

    def _send(self, submission: bytes) -> None:
        """Append a submission if this node leads; else send it to the leader, if there is one."""
        source = self._source
        assert source is not None
        leader = source.leader_id
        if not source.propose(submission) and leader not in (None, self._config.node_id) and self._links is not None:
            assert leader is not None
            self._links.send(leader, "submit", {"data": submission})

    def _submitted(self, peer: int, body: dict[str, Any]) -> None:
        if self._source is None or self._source.leader_id != self._config.node_id:
            return
        try:
            check_proposal(body["data"], peer)
        except CodecError as error:
            assert self._links is not None
            self._links.refuse_body(peer, error)
        else:
            self._source.propose(body["data"])

    def _connection(self, peer: int, is_up: bool) -> None:
        if is_up and peer == self.leader_id:
            self._submissions.send_all()
        self._wake_waiters()

    # --- what the quorum does ----------------------------------------------------------------

    def _on_change(self) -> None:
        """Pass a possible change of the quorum's state on to the tasks that act on it; never blocks or calls back."""
        source = self._source
        if source is None:
            return
        if isinstance(source, Voter) and source.quorum is None:
            self._set_active(False)
            if self._is_alone:
                self._submissions.fail_all(source.refusal.code, source.refusal.message)
        else:
            self._take_changes(source.applied_index)
            if isinstance(source, Voter):
                self._follow_voters(source)
        leader = (source.leader_id, source.term)
        if leader[0] is None and source.term >= 0:
            # A term without a leader has no controller, and may get lost: a full disk cannot store it.
            leader = (None, self._leader[1])
        if leader != self._leader:
            self._leader = leader
            if leader[0] is not None:
                self._submissions.send_all()
        self._set_active(source.is_active)
        leadership = (leader, self._active_term)
        if leadership != self._last_leadership:
            self._last_leadership = leadership
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake all that wait to check their conditions: progress, leadership and links may have changed."""
        changed, self._changed_event = self._changed_event, asyncio.Event()
        changed.set()

    def _take_changes(self, applied_index: int) -> None:
        notes: list[Note] = []
        if self._replaying is not None:
            if applied_index < self._applied_index:
                return
            coming, self._replaying = self._replaying, None
            notes = [Note(None), *self._machine.take()]
            self._machine = coming
        notes += self._machine.take()
        self._applied_index = applied_index
        self._publisher.add(notes, applied_index)

    def _set_active(self, is_active: bool) -> None:
        term = self._leader[1] if is_active else None
        if term == self._active_term:
            return
        self._active_term = term
        for callback in self._on_leadership:
            with self._tasks.incidents.contained("active controller"):
                callback(is_active, self._leader[1])

    def follows_voters(self, voters: VoterSet) -> bool:
        """Return whether this controller connects to the voters in the log; to those of `controller.quorum.voters`
        otherwise."""
        config = self._config
        return bool(voters.directories) or not (config.controller_quorum_voters or config.is_own_quorum)

    def _follow_voters(self, voter: Voter) -> None:
        """Connect to the voters in the log when they have changed."""
        assert voter.quorum is not None
        voters = voter.quorum.voter_set
        if voters is self._linked_voters or self._links is None or not self.follows_voters(voters):
            return
        self._linked_voters = voters
        self._set_voters(voters.addresses, is_voter=voter.quorum.is_voter)

    def _set_voters(self, voters: Mapping[int, str], *, is_voter: bool | None = None) -> None:
        """Connect to the voters that the quorum has now."""
        assert self._links is not None
        self._links.set_voters(addresses_of(voters), is_voter=is_voter)
