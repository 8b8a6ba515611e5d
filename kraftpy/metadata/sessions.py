"""The active controller's view of live brokers: when to fence one, when to unfence it, when it may shut down.

    heartbeats, connections, time -> Sessions -> [ChangeBroker | BalanceLeaders, ...], HeartbeatReply

This state is volatile: every controller starts with a fresh one, and publishes its conclusions through commands that
carry its term. A broker is alive while it sends heartbeats with its registration's epoch within the session timeout
(KIP-631) and stays connected. A killed process loses its connection at once, so a connection lost for longer than the
grace counts as death. A broker that reconnects, whether or not it is fenced by then, must send a heartbeat first, since
it may be another process with an empty disk.

A new controller gives every broker a fresh session. A broker counts as dead after `first_contact_ms` if the controller
never had a connection to it, after twice that if it is connected but silent, and after the grace if its connection was
lost just before. A broker is unfenced when it has applied the log up to its own registration and wants to be unfenced.
A broker that wants to stop is put into controlled shutdown by a command. It is fenced when every active broker has
applied that command and therefore knows that this one no longer leads (guarantees, rule 21), and may stop once that is
decided: if its node is the active controller, no controller could decide it afterwards, and clients would be sent to it
until its session ended. Any partition that it still leads has no other possible leader, and has none from then on.

The caller passes in every heartbeat, connection and disconnection, calls `tick` at `next_deadline` and after each
heartbeat, and proposes the commands that `tick` returns. It also makes sure that a broker sends a heartbeat as soon as
it connects to a new controller, and as soon as it has applied the start of another broker's controlled shutdown.

Connections are tracked by inactive controllers too. `now` comes from one monotonic clock. A command moves at most
`PARTITIONS_AT_ONCE` partitions; after one that was decided in part, the caller calls `decided_in_part`, and the next
tick proposes the rest, or the way back if the broker has returned meanwhile. A tick looks at each broker once, and at
partitions only when balancing is due. Otherwise a proposal is repeated only if the image still differs after
`RETRY_MS`.

Left out: failed log directories of a broker (KIP-858). A broker reports itself what they cost, and whether all are
cordoned (`upkeep.directory_reports`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.frozen import frozen
from kraftpy.metadata.commands import PARTITIONS_AT_ONCE, BalanceLeaders, ChangeBroker, Command
from kraftpy.metadata.image import Broker, Image
from kraftpy.metadata.partitions import is_balanced
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, Millis

RETRY_MS = 1_000
FIRST_CONTACT_MS = 1_000


@frozen
class HeartbeatReply:
    """The controller's reply to a broker's heartbeat (KIP-631)."""

    error: ErrorCode = ErrorCode.NONE
    is_caught_up: bool = False
    """It has applied the log up to its own registration."""
    is_fenced: bool = True
    should_shut_down: bool = False
    """It asked to shut down, and now may."""


@dataclass(slots=True, kw_only=True)
class _Session:
    """The state reported under one registration of a broker, which `broker_epoch` identifies."""

    broker_epoch: int
    heard_at: int
    """The time of the last heartbeat, or when the wait for one began."""
    applied_index: int = -1
    has_reported: bool = False
    wants_fence: bool = False
    wants_shutdown: bool = False
    may_stop: bool = False
    proposed: tuple[bool, bool] | None = None
    """The proposed values of fenced and in_controlled_shutdown."""
    proposed_at: int = 0


class Sessions:
    """Tracks which brokers are alive, as the controller sees it."""

    def __init__(
        self,
        *,
        session_timeout_ms: int = 9_000,
        disconnect_grace_ms: int = 100,
        first_contact_ms: int = FIRST_CONTACT_MS,
        balance_interval_ms: int | None = None,
        imbalance_percentage: int = 10,
    ) -> None:
        """`balance_interval_ms` None never balances leaders (`auto.leader.rebalance.enable=false`)."""
        self._session_timeout_ms = session_timeout_ms
        self._grace_ms = disconnect_grace_ms
        self._first_contact_ms = max(first_contact_ms, disconnect_grace_ms)
        self._balance_interval_ms = balance_interval_ms
        self._imbalance_percentage = imbalance_percentage
        self._term: int | None = None
        self._sessions: dict[BrokerId, _Session] = {}
        self._connected: set[BrokerId] = set()
        self._gone_at: dict[BrokerId, int] = {}
        """The time when a broker without a connection, or without a heartbeat on a new one, counts as dead."""
        self._balance_at = 0
        self._deadline: int | None = None

    @property
    def is_active(self) -> bool:
        """True if this node's controller is the active one."""
        return self._term is not None

    # -- inputs

    def activate(self, image: Image, term: int, now: int) -> None:
        """Start a term: this node now leads the quorum."""
        self._term = term
        self._sessions = {}
        for broker in image.brokers():
            self._session(broker, now)
            self._begin_to_watch(broker.broker_id, now)
        self._balance_at = now + (self._balance_interval_ms or 0)
        self._deadline = now

    def _begin_to_watch(self, broker_id: BrokerId, now: int) -> None:
        """Set a deadline for a broker's first heartbeat in this term.

        A broker that was lost just now keeps its deadline. Others get time to connect, or if already connected, to send
        a heartbeat: it may be a process that has yet to register, as after a restart of the whole cluster.
        """
        gone_at = self._gone_at.pop(broker_id, None)
        if broker_id in self._connected:
            self._gone_at[broker_id] = now + 2 * self._first_contact_ms
            return
        was_lost_just_now = gone_at is not None and gone_at > now - self._first_contact_ms
        self._gone_at[broker_id] = gone_at if gone_at and was_lost_just_now else now + self._first_contact_ms

    def deactivate(self) -> None:
        """End the term: this node no longer leads the quorum."""
        self._term = None
        self._sessions = {}
        self._deadline = None

    def connected(self, broker_id: BrokerId, now: int) -> None:
        """Note that the broker connected to this node; its own broker counts as connected from the start."""
        self._connected.add(broker_id)
        if broker_id in self._gone_at:
            self._gone_at[broker_id] = now + self._first_contact_ms

    def disconnected(self, broker_id: BrokerId, now: int) -> None:
        """Note that the broker's last connection to this node was lost."""
        self._connected.discard(broker_id)
        self._gone_at[broker_id] = now + self._grace_ms
        self._due(now + self._grace_ms)

    def heartbeat(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: int,
        applied_index: int,
        wants_fence: bool,
        wants_shutdown: bool,
        image: Image,
        now: int,
    ) -> HeartbeatReply:
        """Process a broker's heartbeat: how far it has applied the log, and which state it wants.

        NOT_CONTROLLER if this controller is not active; BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH if the broker
        must register (again).
        """
        if self._term is None:
            return HeartbeatReply(error=ErrorCode.NOT_CONTROLLER)
        broker = image.broker(broker_id)
        if broker is None:
            return HeartbeatReply(error=ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.broker_epoch != broker_epoch:
            return HeartbeatReply(error=ErrorCode.STALE_BROKER_EPOCH)
        session = self._session(broker, now)
        session.heard_at = now
        session.applied_index = max(session.applied_index, applied_index)
        session.has_reported = True
        session.wants_fence, session.wants_shutdown = wants_fence, wants_shutdown
        if broker_id in self._connected:
            self._gone_at.pop(broker_id, None)
        session.may_stop = session.may_stop or self._may_stop(broker, session, image)
        self._due(now)
        return HeartbeatReply(
            is_caught_up=session.applied_index >= broker.registered_index,
            is_fenced=broker.fenced,
            should_shut_down=session.may_stop and broker.fenced,
        )

    def decided_in_part(self, broker_id: BrokerId, now: int) -> None:
        """Note that a proposal about the broker was decided, and that more of its partitions are left."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.proposed = None
            self._due(now)

    # -- outputs

    def tick(self, image: Image, now: int) -> list[Command]:
        """Return the commands to propose now."""
        self._deadline = None
        if self._term is None:
            return []
        commands: list[Command] = []
        brokers = image.brokers()
        for broker in brokers:
            session = self._session(broker, now)
            fenced, is_stopping = self._wanted(broker, session, now)
            if self._is_done(broker, session, fenced=fenced, is_stopping=is_stopping):
                session.proposed = None
                self._wait_for(broker, session)
                continue
            if session.proposed == (fenced, is_stopping) and now < session.proposed_at + RETRY_MS:
                self._due(session.proposed_at + RETRY_MS)
                continue
            session.proposed, session.proposed_at = (fenced, is_stopping), now
            self._due(now + RETRY_MS)
            commands.append(
                ChangeBroker(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.broker_epoch,
                    fenced=fenced,
                    in_controlled_shutdown=is_stopping,
                    controller_epoch=self._term,
                    max_partitions=PARTITIONS_AT_ONCE,
                    time_ms=Millis(now),
                )
            )
        self._forget_unregistered(image)
        commands += self._balancing(image, now, self._term)
        return commands

    def next_deadline(self) -> int | None:
        """Return the time by which to call `tick` again; None if there is nothing to do until the next input."""
        return self._deadline

    # -- parts

    def _session(self, broker: Broker, now: int) -> _Session:
        """Return the session of this registration; a new one if the broker has registered again."""
        session = self._sessions.get(broker.broker_id)
        if session is None or session.broker_epoch != broker.broker_epoch:
            session = _Session(broker_epoch=broker.broker_epoch, heard_at=now)
            self._sessions[broker.broker_id] = session
        return session

    def _wanted(self, broker: Broker, session: _Session, now: int) -> tuple[bool, bool]:
        """Return the desired state of the broker: (fenced, in controlled shutdown)."""
        is_stopping = broker.in_controlled_shutdown
        if self._is_gone(broker.broker_id, session, now) or session.may_stop:
            return True, is_stopping
        if not session.has_reported or (broker.fenced and broker.broker_id in self._gone_at):
            return broker.fenced, is_stopping  # a connection alone proves nothing: it may belong to another process
        if session.wants_fence:
            return True, is_stopping
        if broker.fenced:
            may_work = session.applied_index >= broker.registered_index and not session.wants_shutdown
            return not may_work or is_stopping, is_stopping
        return False, is_stopping or session.wants_shutdown

    def _is_done(self, broker: Broker, session: _Session, *, fenced: bool, is_stopping: bool) -> bool:
        """Return whether the broker is in the desired state. In a new term, one that is leaving or returning is left
        alone until it has reported or is gone."""
        if (fenced, is_stopping) != (broker.fenced, broker.in_controlled_shutdown):
            return False
        return not session.has_reported or not (broker.is_leaving or broker.is_returning)

    def _is_gone(self, broker_id: BrokerId, session: _Session, now: int) -> bool:
        gone_at = self._gone_at.get(broker_id)
        return (gone_at is not None and now >= gone_at) or now >= session.heard_at + self._session_timeout_ms

    def _may_stop(self, broker: Broker, session: _Session, image: Image) -> bool:
        """Return whether a broker may stop: every active broker knows that it no longer leads."""
        if not session.wants_shutdown:
            return False
        if broker.fenced:
            return True
        return broker.in_controlled_shutdown and all(
            self._applied(other) >= broker.shutdown_index for other in image.active_brokers()
        )

    def _applied(self, broker: Broker) -> int:
        session = self._sessions.get(broker.broker_id)
        return session.applied_index if session and session.broker_epoch == broker.broker_epoch else -1

    def _wait_for(self, broker: Broker, session: _Session) -> None:
        if broker.fenced:
            return
        self._due(session.heard_at + self._session_timeout_ms)
        if broker.broker_id in self._gone_at:
            self._due(self._gone_at[broker.broker_id])

    def _due(self, at: int) -> None:
        if self._term is not None and (self._deadline is None or at < self._deadline):
            self._deadline = at

    def _forget_unregistered(self, image: Image) -> None:
        for broker_id in [broker_id for broker_id in self._sessions if image.broker(broker_id) is None]:
            del self._sessions[broker_id]

    def _balancing(self, image: Image, now: int, term: int) -> list[Command]:
        if self._balance_interval_ms is None:
            return []
        if now < self._balance_at:
            self._due(self._balance_at)
            return []
        self._balance_at = now + self._balance_interval_ms
        self._due(self._balance_at)
        if is_balanced(image, self._imbalance_percentage):
            return []
        return [
            BalanceLeaders(imbalance_percentage=self._imbalance_percentage, controller_epoch=term, time_ms=Millis(now))
        ]
