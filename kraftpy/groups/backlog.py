"""The work of a coordinator that no request waits for and that may be large: done in pieces, one per tick.

    offsets that have expired                        `expiry`
    offsets of deleted topics                        `topic_deletion`
    offsets of groups that are being deleted         `deletion`
    offsets of transactions that have ended          `transactional_offsets`

A small amount is done at once, in the step that brings it. Otherwise a deadline, a millisecond later, stands for each
next piece, and other requests are served in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.deletion import DELETION, Deletions
from kraftpy.groups.expiry import EXPIRY_KEY, Expiry
from kraftpy.groups.group import Group
from kraftpy.groups.step import Step
from kraftpy.groups.topic_deletion import TOPICS_KEY, DeletedTopics
from kraftpy.groups.transactional_offsets import PendingOffsets
from kraftpy.types import Millis

ENDED_KEY: Final = Key("", "ended")
ENDED_AT_ONCE: Final = 10_000
"""How many offsets of ended transactions are committed or dropped before other requests are served."""
_SOON_MS: Final = 1


class Backlog:
    """The work that is left to do in pieces."""

    def __init__(
        self,
        groups: dict[str, Group],
        deadlines: Deadlines,
        expiry: Expiry,
        topics: DeletedTopics,
        deletions: Deletions,
        pending_offsets: PendingOffsets,
        changed: Callable[[str], None],
    ) -> None:
        """`changed` is called with the id of each group whose offsets a transaction has changed."""
        self._groups = groups
        self._deadlines = deadlines
        self._expiry = expiry
        self._topics = topics
        self._deletions = deletions
        self._pending_offsets = pending_offsets
        self._changed = changed

    def begin(self, step: Step) -> None:
        """Set the deadlines of a coordinator that was just loaded."""
        self._expiry.arm(step)
        if self._pending_offsets.has_ended:
            self._set(ENDED_KEY, step)
        self._topics.loaded(step)

    def end_transactions(self) -> bool:
        """Do a piece of what ended transactions have left to do; return True if there is more.

        The offsets of a transaction in one group are committed or dropped together, however many they are.
        """
        done = 0
        while done < ENDED_AT_ONCE and (ended := self._pending_offsets.end_one(self._groups)) is not None:
            group_id, count = ended
            done += 1 + count
            self._changed(group_id)
        return self._pending_offsets.has_ended

    def transaction_ended(self, step: Step) -> None:
        """Do the first piece of the work that follows the end of a transaction, or the next one."""
        if self.end_transactions():
            self._set(ENDED_KEY, step)

    def is_for(self, key: Key) -> bool:
        """Return True if a deadline stands for a piece of this work."""
        return key in (EXPIRY_KEY, TOPICS_KEY, ENDED_KEY) or key.kind == DELETION

    def go_on(self, key: Key, step: Step) -> None:
        """Do the piece that is due."""
        if key == EXPIRY_KEY:
            self._expiry.look(step)
        elif key == TOPICS_KEY:
            self._topics.go_on(step)
        elif key == ENDED_KEY:
            self.transaction_ended(step)
        else:
            self._deletions.go_on(key, step)

    def _set(self, key: Key, step: Step) -> None:
        self._deadlines.set(key, Millis(step.now + _SOON_MS))

    def expected_deadlines(self) -> set[Key]:
        """The deadlines of pieces that belong to no single group. For tests and simulations."""
        ended = {ENDED_KEY} if self._pending_offsets.has_ended else set()
        return {EXPIRY_KEY, *self._topics.expected_deadlines(), *ended}
