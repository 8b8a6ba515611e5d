"""Errors planted in the decisions of group coordinators (`garden`).

The world around a coordinator (`planted`) does what the shell does: if an error leaves the machine, all unanswered
requests get an error, and the partition is loaded again.
"""

from __future__ import annotations

from typing import Any

from garden import Garden, Place, Planted
from group_world import World

from kraftpy.groups import offsets
from kraftpy.groups import transactional_offsets as transactional
from kraftpy.groups.change_queue import ChangeQueue
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.classic.membership import Membership
from kraftpy.groups.classic.rebalance import Rebalance
from kraftpy.groups.consumer import migration
from kraftpy.groups.consumer.changes import ConsumerChangeQueue
from kraftpy.groups.consumer.classic_members import ClassicMembers
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.deletion import Deletions
from kraftpy.groups.drafts import AnyDraft
from kraftpy.groups.events import Effect, Event, Reply, Request, Survived
from kraftpy.groups.routing import refuse
from kraftpy.groups.share import partitions as share_partitions
from kraftpy.groups.share.changes import ShareChangeQueue
from kraftpy.groups.share.operations import Alteration, OffsetDeletion, StateDeletion
from kraftpy.groups.share.protocol import ShareProtocol
from kraftpy.groups.streams.changes import StreamsChangeQueue
from kraftpy.groups.streams.protocol import StreamsProtocol
from kraftpy.protocol.errors import ErrorCode

PLACES: tuple[Place, ...] = (
    *((ConsumerProtocol, name) for name in ("heartbeat", "_check", "take_in", "_admit", "_refresh", "_retarget")),
    *((ConsumerProtocol, name) for name in ("remove", "_leave", "look_at_topics", "_look_up_regexes")),
    *((ShareProtocol, name) for name in ("heartbeat", "_initialize", "remove")),
    *((StreamsProtocol, name) for name in ("heartbeat", "_refresh", "_retarget", "remove", "_remember", "_answer")),
    *((ClassicMembers, name) for name in ("join", "sync", "heartbeat", "leave")),
    *((Membership, name) for name in ("join", "sync", "heartbeat", "leave", "_add", "_update", "_rejoin_static")),
    *((Rebalance, name) for name in ("add", "touch", "drop", "prepare", "complete_join", "store_assignment")),
    *((Rebalance, name) for name in ("assignment_stored", "session_is_over", "join_time_is_up", "react_to_departure")),
    *((ConsumerChangeQueue, name) for name in ("_answer", "_on_due", "_ends", "_on_stored", "_purpose")),
    *((ShareChangeQueue, name) for name in ("_answer", "_on_due", "_begin", "_end", "_purpose", "_on_answered")),
    *((StreamsChangeQueue, name) for name in ("_answer", "_on_due", "_on_stored", "_purpose")),
    *((operation, name) for operation in (Alteration, OffsetDeletion, StateDeletion) for name in ("begin", "end")),
    *((Deletions, name) for name in ("request", "bury", "stored", "go_on", "piece_stored")),
    *((ClassicGroup, name) for name in ("become", "add", "remove", "select_protocol", "to_value")),
    (AnyDraft, "put"),
    (ChangeQueue, "stored"),
    (ConsumerChangeQueue, "_reply"),
    (GroupCoordinator, "_appended"),
    (GroupCoordinator, "_due"),
    (GroupCoordinator, "_request"),
    (migration, "upgrade"),
    (migration, "downgrade"),
    (share_partitions, "asked"),
    (share_partitions, "initializing"),
    (offsets, "commit"),
    (offsets, "delete"),
    (offsets, "expired"),
    (transactional, "commit"),
)


def planted(world_class: type[World], garden: Garden) -> type[World]:
    """Return the world with a coordinator that meets errors."""

    class PlantedWorld(world_class):  # type: ignore[misc,valid-type]
        survived = 0
        reloaded = 0

        def step(self, event: Event) -> list[Effect]:
            try:
                effects = self._stepped(event)
            except Planted:
                self._load_again(event)
                effects = []
            self.go_on()
            return effects

        def _stepped(self, event: Event) -> list[Effect]:
            with garden.stepping():
                effects: list[Effect] = self.coordinator.step(event, self.now)
            self.survived += sum(isinstance(effect, Survived) for effect in effects)
            self.take(effects)
            return effects

        def check(self) -> None:
            self.coordinator.validate = self._validate  # type: ignore[method-assign]
            super().check()

        def _validate(self) -> None:
            self.coordinator._invariants.check(*self.coordinator._backlog.expected_deadlines(), may_dangle=True)

        def _load_again(self, event: Event) -> None:
            """Load the partition again, as `Shards` does."""
            self.reloaded += 1
            if isinstance(event, Request):
                self._refuse(event, ErrorCode.UNKNOWN_SERVER_ERROR)
            replies = [each for each in self.coordinator.unload() if isinstance(each, Reply)]
            for reply in {each.request_id: each for each in replies}.values():
                if reply.request_id not in self.answers:
                    self.take([reply], alive=False)
            for request_id in sorted(self.waiting_outside()):
                self._refuse(self.requests[request_id], ErrorCode.NOT_COORDINATOR)
            self.coordinator.unload = lambda: []  # type: ignore[method-assign]
            getattr(self, "protocols", {}).clear()
            self.reload()

        def _refuse(self, request: Request, error_code: ErrorCode) -> None:
            if request.request_id not in self.answers:
                self.answers[request.request_id] = refuse(request.message, request.api_version, error_code)

        def _heard(self, client: Any, answer: Any) -> None:
            if answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
                client.reports = True
            else:
                super()._heard(client, answer)

        def heard(self, client: Any, answer: Any) -> None:
            if answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
                client.must_join = True
            else:
                super().heard(client, answer)

        def settle(self, *arguments: Any) -> None:
            if not arguments:  # with some it is a move like any other
                garden.is_armed = False
            super().settle(*arguments)

    return PlantedWorld
