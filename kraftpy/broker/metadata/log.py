"""The metadata log of this node: commands in, agreed decisions out, in order, the same on every node.

    submit(command) -> submission [node, nonce, sequence, command] -> the quorum's leader -> committed
                    -> decided in apply, on every node alike -> the broker acts on it -> Decision

A submission is sent again, to the current leader, until it is applied on this node; it takes effect once. A change of
leader therefore costs a caller nothing but time. A node that votes takes part through `Voter`; any other follows
through `Observer`. A single node is a quorum of one: it answers a command that changes nothing on the current image
(one that is refused or only validated) at once, and never writes it.

A full disk makes a single node refuse commands (KAFKA_STORAGE_ERROR), and has no other effect. The next command reads
the journal again, because it is not known how much of the last one was written; that one may turn out to be decided, as
after any lost answer. Any other disk failure stops the broker: after a failed sync, the disk's contents are unknown.

Invariants: `image` only moves forward; after `follow_changes`, `changed` is called with every decision, in order, and
has acted on it before `submit` returns. The image may be ahead of the decisions passed to `changed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from kraftpy.broker.containment import Fatal, Tasks
from kraftpy.broker.metadata.quorum_description import (
    QuorumDescription,
    describe_quorum,
    read_description,
    write_description,
)
from kraftpy.broker.metadata.state_machine import Note, RecordingMachine
from kraftpy.broker.metadata.voter import Voter
from kraftpy.config import BrokerConfig
from kraftpy.config.quorum import parse_address
from kraftpy.config.settings import ConfigError
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
    SubmissionId,
    UpdateFeatures,
    encode_command,
    encode_submission,
)
from kraftpy.metadata.controller import decide
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
from kraftpy.metadata.journal import MAX_ENTRY_BYTES
from kraftpy.metadata.proposals import check_proposal
from kraftpy.metadata.records import Record
from kraftpy.ports import Clock, Directory
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.broker.metadata.observer import Observer
    from kraftpy.broker.metadata.transport import Links

logger = logging.getLogger(__name__)

MAX_COMMAND_BYTES = MAX_ENTRY_BYTES - 1024
"""Room for what a submission adds."""
_UNDER_WAY = 256
_MANY_RECORDS = 1_000
_RESEND_MS = 500
_CATCH_UP_SECONDS, _MOST_CATCH_UP_SECONDS = 1.0, 60.0
"""Pause before the broker tries again to act on the image after an unexpected error."""

Changed = Callable[[Sequence[Record] | None], Awaitable[None]]
"""Called with decided records, in order, before their submitters get the result; None after a whole new image."""
OnLeadership = Callable[[bool, int], None]
"""Called with whether this node is now the active controller, and the term."""


class _Changes(NamedTuple):
    """Notes that wait to be acted on, and how far the image was with them."""

    notes: list[Note]
    applied_index: int


@dataclass(slots=True)
class _Pending:
    """A submission in flight."""

    data: bytes
    decided: asyncio.Future[Decision[Any]]
    sent_ms: int | None = None


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
        self._changed = changed
        self._tasks = tasks
        self._links = links
        self._machine = RecordingMachine(self._unusable)
        self._replaying: RecordingMachine | None = None
        """A machine that replays the journal after the disk was full, until it catches up with `_machine`."""
        self._source: Voter | Observer | None = None
        self._nonce = os.urandom(16)
        self._sequences = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._room = asyncio.Semaphore(_UNDER_WAY)
        self._changes: asyncio.Queue[_Changes] = asyncio.Queue()
        self._is_following = False
        self._is_behind = False
        """The broker has not acted on the whole image, because of an unexpected error."""
        self._catch_up_seconds = _CATCH_UP_SECONDS
        self._applied_index = 0
        self._leader: tuple[int | None, int] = (None, -1)
        self._active_term: int | None = None
        """The term in which this node is the active controller."""
        self._on_leadership: list[OnLeadership] = []
        self._changed_event = asyncio.Event()
        self._standing: tuple[object, ...] = ()  # the leadership that was last published
        self._running: list[asyncio.Task[None]] = []
        self.acted_index = 0
        """The newest entry that the broker has acted on."""
        self.many_topics = asyncio.Lock()
        """Held for each part of a request with many topics (`topic_changes`), so that such requests alternate."""

    # --- state -------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The metadata decided so far."""
        return self._machine.state.image

    @property
    def leader_id(self) -> int | None:
        """The node that leads the quorum, as far as is known here."""
        return self._leader[0]

    @property
    def leader_epoch(self) -> int:
        """The quorum's term, which is the controller's epoch."""
        return self._leader[1]

    @property
    def is_leader(self) -> bool:
        """Whether this node is the active controller: it leads, and its image is up to date."""
        return self._active_term is not None

    @property
    def applied_index(self) -> int:
        """The newest entry that is in the image."""
        return self._applied_index

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
        """Replay the journal and join the quorum. Raises JournalError, CodecError or OSError if the disk cannot be
        trusted or read."""
        config, links = self._config, self._links
        if config.is_controller:
            voters = {voter.node_id: str(voter.address) for voter in config.controller_quorum_voters}
            self._source = Voter(
                node_id=config.node_id,
                voters=voters or {config.node_id: ""},
                election_timeout_ms=config.controller_quorum_election_timeout_ms,
                fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
                snapshot_after_bytes=config.metadata_log_max_record_bytes_between_snapshots,
                new_machine=self._new_machine,
                on_change=self._on_change,
                clock=self._clock,
                links=links,
                tasks=self._tasks,
            )
        else:
            from kraftpy.broker.metadata.observer import Observer  # imported here: a single node does not need it

            assert links is not None
            self._source = Observer(
                snapshot_after_bytes=config.metadata_log_max_record_bytes_between_snapshots,
                new_machine=self._new_machine,
                on_change=self._on_change,
                voters_are=self._voters_are,
                links=links,
                tasks=self._tasks,
            )
        await self._source.start(directory)
        if links is not None:
            links.receive("submit", self._submitted)
            links.serve("describe quorum", self._answer_describe)
            links.serve("change voter", self._answer_change_voter)
            links.on_connection(self._connection)
        for make, name in ((self._deliver, "metadata changes"), (self._resend, "metadata submissions")):
            self._running.append(self._tasks.keep_running(make, name=name))
        self._on_change()

    def follow_changes(self) -> Image:
        """Start calling `changed`, and return the current image, for which it is not called."""
        while not self._changes.empty():
            self._act(self._changes.get_nowait())
        self._is_following = True
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
            while not self._changes.empty():
                changes = self._changes.get_nowait()
                await self._tell(changes)
                self._act(changes)
            self._fail_pending(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops")

    def _new_machine(self) -> RecordingMachine:
        if self._source is None or self._applied_index == 0:
            self._machine = RecordingMachine(self._unusable)
            return self._machine
        self._replaying = RecordingMachine(self._unusable)
        return self._replaying

    def _unusable(self, index: int, reason: str) -> None:
        """Report an entry of the log that changed nothing on any node because it is not a command."""
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
        leader after `request.timeout.ms`, REQUEST_TIMED_OUT if there is no decision after that time (in all three cases
        it may still be decided), INVALID_REQUEST if it is too large.
        """
        if self._is_alone:
            if isinstance(self._source, Voter) and not await self._source.reopen():
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._source.why_nothing_is_written)
            expected = decide(command, self.image)
            if not expected.records and not self._pending:
                return expected
            if len(expected.records) > _MANY_RECORDS:
                await asyncio.sleep(0)  # a large topic: serve other requests before encoding and applying it
        encoded = encode_command(command)
        if len(encoded) > MAX_COMMAND_BYTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a metadata command of {len(encoded)} bytes is too large")
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000), self._room:
                return await self._decided(encoded)
        except TimeoutError:
            if self.leader_id is None:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata quorum has no leader") from None
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the metadata quorum has not decided in time") from None

    async def catch_up(self) -> None:
        """Return once this broker has acted on every decision made before the call. Raises KafkaError as `submit`.

        This submits a command that changes nothing.
        """
        await self.submit(SetConfigs(changes=(), time_ms=self._clock.now()))

    async def _decided(self, encoded: bytes) -> Decision[Any]:
        sequence = next(self._sequences)
        submission = SubmissionId(node_id=self._config.node_id, nonce=self._nonce, sequence=sequence)
        decided: asyncio.Future[Decision[Any]] = asyncio.get_running_loop().create_future()
        pending = self._pending[sequence] = _Pending(encode_submission(submission, encoded), decided)
        try:
            self._send(pending)
            return await decided
        finally:
            self._pending.pop(sequence, None)

    @property
    def _is_alone(self) -> bool:
        return self._config.is_own_quorum and (
            not isinstance(self._source, Voter) or self._source.quorum is None or len(self._source.quorum.voters) == 1
        )

    def _send(self, pending: _Pending) -> None:
        source = self._source
        assert source is not None
        pending.sent_ms = self._clock.monotonic_ms()
        leader = source.leader_id
        if not source.propose(pending.data) and leader not in (None, self._config.node_id) and self._links is not None:
            assert leader is not None
            self._links.send(leader, "submit", {"data": pending.data})

    async def _resend(self) -> None:
        """Resend submissions without a decision to the current leader."""
        while True:
            await asyncio.sleep(_RESEND_MS / 1000)
            now = self._clock.monotonic_ms()
            for pending in [*self._pending.values()]:
                if pending.sent_ms is None or now - pending.sent_ms >= _RESEND_MS:
                    self._send(pending)

    def _resend_all(self) -> None:
        for pending in [*self._pending.values()]:
            self._send(pending)

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
            self._resend_all()
        self._publish()

    def _fail_pending(self, error: ErrorCode, message: str) -> None:
        for pending in self._pending.values():
            if not pending.decided.done():
                pending.decided.set_exception(KafkaError(error, message))

    # --- what the quorum does ----------------------------------------------------------------

    def _on_change(self) -> None:
        """Pass a possible change of the quorum's state on to the tasks that act on it; never blocks or calls back."""
        source = self._source
        if source is None:
            return
        if isinstance(source, Voter) and source.quorum is None:
            self._set_active(False)
            if self._is_alone:
                self._fail_pending(ErrorCode.KAFKA_STORAGE_ERROR, source.why_nothing_is_written)
        else:
            self._take_changes(source.applied_index)
        leader = (source.leader_id, source.term)
        if leader != self._leader:
            self._leader = leader
            if leader[0] is not None:
                self._resend_all()
        self._set_active(source.is_active)
        standing = (leader, self._active_term)
        if standing != self._standing:
            self._standing = standing
            self._publish()

    def _publish(self) -> None:
        """Wake all waiters to check their conditions: progress, leadership and links may have changed."""
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
        if notes or applied_index != self.acted_index:
            self._changes.put_nowait(_Changes(notes, applied_index))

    def _set_active(self, is_active: bool) -> None:
        term = self._leader[1] if is_active else None
        if term == self._active_term:
            return
        self._active_term = term
        for callback in self._on_leadership:
            with self._tasks.incidents.contained("active controller"):
                callback(is_active, self._leader[1])

    async def _deliver(self) -> None:
        while True:
            changes = await self._next_changes()
            while not self._changes.empty():
                more = self._changes.get_nowait()
                changes = _Changes(changes.notes + more.notes, more.applied_index)
            await self._tell(changes)
            self._act(changes)

    async def _next_changes(self) -> _Changes:
        """Wait for the next decisions; if the broker is behind, wait only briefly, so that it can catch up."""
        if not self._is_behind:
            return await self._changes.get()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._catch_up_seconds):
                return await self._changes.get()
        return _Changes([], self._applied_index if self._changes.empty() else self.acted_index)

    async def _tell(self, changes: _Changes) -> None:
        """Let the broker act on the changes. After an unexpected error it acts on the whole image, until that succeeds.

        The image itself is current. Until the broker has caught up with it, submitters get an error that says so.
        """
        if not self._is_following:
            return
        is_whole = self._is_behind or any(applied is None for (applied,) in changes.notes)
        records = [record for (applied,) in changes.notes if applied for record in applied.decision.records]
        if not is_whole and not records:
            return
        if not is_whole and await self._try_to_act(records):
            return
        self._is_behind = not await self._try_to_act(None)
        pause = self._catch_up_seconds * 2 if self._is_behind else _CATCH_UP_SECONDS
        self._catch_up_seconds = min(pause, _MOST_CATCH_UP_SECONDS)

    async def _try_to_act(self, records: Sequence[Record] | None) -> bool:
        """Let the broker act on records, or on the whole image (None); return whether it did without an error."""
        try:
            await self._changed(records)
        except Fatal:
            raise
        except Exception as error:
            self._tasks.incidents.note("acting on changed metadata", error)
            return False
        return True

    def _act(self, changes: _Changes) -> None:
        """Resolve the submissions that these changes decide."""
        if not self._is_behind:
            self.acted_index = changes.applied_index
        for (applied,) in changes.notes:
            if applied is None or applied.submission is None or applied.submission.nonce != self._nonce:
                continue
            pending = self._pending.get(applied.submission.sequence)
            if pending is None or pending.decided.done():
                continue
            if applied.is_duplicate:  # its decision came within a snapshot
                pending.decided.set_exception(
                    KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "The request was decided, but this broker does not know its result.",
                    )
                )
            elif self._is_behind:
                pending.decided.set_exception(
                    KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        "The request was decided, but this broker could not act on it yet.",
                    )
                )
            else:
                pending.decided.set_result(applied.decision)
        self._publish()

    def _voters_are(self, voters: Mapping[int, str]) -> None:
        assert self._links is not None
        self._links.set_voters(
            {
                node_id: parse_address("voters", text)
                for node_id, text in voters.items()
                if text and _address_problem(text) is None
            }
        )

    # --- the quorum itself -------------------------------------------------------------------

    async def describe(self) -> QuorumDescription:
        """Describe the quorum as its leader sees it. Raises KafkaError: NOT_CONTROLLER if the leader is unreachable."""
        if not self.is_leader:
            return read_description(await self._ask_leader("describe quorum", {}))
        assert isinstance(self._source, Voter)
        return describe_quorum(self._source, self._clock)

    async def change_voter(self, *, add: tuple[int, str] | None = None, remove: int | None = None) -> None:
        """Add a voter (id and `host:port`) that has caught up, or remove one.

        Raises KafkaError: NOT_CONTROLLER if the leader is unreachable, INVALID_REQUEST with its reason if it refuses.
        """
        if add is not None and (problem := _address_problem(add[1])) is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
        if self.is_leader:
            assert isinstance(self._source, Voter)
            reason = await self._source.change_voter(add=add, remove=remove)
        else:
            body = {"add": None if add is None else list(add), "remove": remove}
            reason = (await self._ask_leader("change voter", body))["refused"]
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason)

    async def _ask_leader(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        leader = self.leader_id
        if leader is None or leader == self._config.node_id or self._links is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the metadata quorum has no leader")
        from kraftpy.broker.metadata.link_messages import LinkError

        try:
            return await self._links.request(leader, kind, body, self._config.request_timeout_ms)
        except LinkError as error:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, str(error)) from error

    async def _answer_describe(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        self._check_leading()
        return write_description(await self.describe())

    async def _answer_change_voter(self, peer: int, body: dict[str, Any]) -> dict[str, Any]:
        self._check_leading()
        assert isinstance(self._source, Voter)
        add = body["add"]
        if add is not None and (problem := _address_problem(add[1])) is not None:
            return {"refused": problem}
        reason = await self._source.change_voter(add=None if add is None else (add[0], add[1]), remove=body["remove"])
        return {"refused": reason}

    def _check_leading(self) -> None:
        if not self.is_leader:
            from kraftpy.broker.metadata.link_messages import LinkError

            raise LinkError("this node does not lead the metadata quorum")


def _address_problem(text: str) -> str | None:
    """Return an error message if a voter's address is malformed; None if it is valid."""
    try:
        parse_address("the voter's address", text)
    except ConfigError as error:
        return str(error)
    return None
