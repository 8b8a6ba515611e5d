"""Deletes the committed offsets of topics that were deleted from the cluster, in pieces.

All groups are looked through for each deletion, about `OFFSETS_AT_ONCE` offsets or `offsets.TOMBSTONES_AT_ONCE`
tombstones at a time. The first piece is done at once, each further one at a tick of its own, so that other requests are
served in between.

Invariant: no offset that was committed after the deletion is deleted. Until a deletion is done, commits for its topics
(another topic may have the name by then) are refused with UNKNOWN_TOPIC_OR_PARTITION, after which clients try again.

Share groups have no offsets; `share.changes` makes them forget the topics.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from kraftpy.groups import offsets
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import TopicsDeleted
from kraftpy.groups.group import Group
from kraftpy.groups.restoration import in_order
from kraftpy.groups.share.changes import ShareChangeQueue
from kraftpy.groups.step import Step
from kraftpy.types import Millis, TopicId, TopicPartition

TOPICS_KEY: Final = Key("", "topics")
OFFSETS_AT_ONCE: Final = 10_000
_SOON_MS: Final = 1


@dataclass(slots=True, kw_only=True)
class _Pass:
    """One pass over all groups."""

    topics: frozenset[str]
    topic_ids: frozenset[TopicId]
    groups: list[str]
    """The groups that were not looked at, in reverse order."""
    pieces: deque[tuple[str, list[TopicPartition]]] = field(default_factory=deque)
    """Offsets that were found and are not deleted yet, by group."""


class DeletedTopics:
    """Topics whose offsets are being deleted in one partition of `__consumer_offsets`."""

    def __init__(self, groups: dict[str, Group], deadlines: Deadlines, shares: ShareChangeQueue) -> None:
        self._groups = groups
        self._deadlines = deadlines
        self._shares = shares
        self._is_loaded = False
        self._early: list[TopicsDeleted] = []
        """Deletions while the groups are still loading: offsets may still be about to be replayed."""
        self._passes: deque[_Pass] = deque()

    def loaded(self, step: Step) -> None:
        """Begin with what was deleted while the groups were loading."""
        self._is_loaded = True
        early, self._early = self._early, []
        for event in early:
            self.deleted(event, step)

    def deleted(self, event: TopicsDeleted, step: Step) -> None:
        """Delete the offsets of topics that were deleted, and their state in share groups."""
        if not self._is_loaded:
            self._early.append(event)
            return
        groups = in_order(self._groups)[::-1]
        ids = frozenset(event.topic_ids)
        self._passes.append(_Pass(topics=frozenset(event.topics), topic_ids=ids, groups=groups))
        if len(self._passes) == 1:
            self.go_on(step)

    def is_pending(self, topic: str) -> bool:
        """Return True if offsets of a deleted topic of this name may not be deleted yet."""
        return any(topic in each.topics for each in self._passes)

    def go_on(self, step: Step) -> None:
        """Do the next piece of work."""
        current = self._passes[0] if self._passes else None
        if current is None:
            return
        looked_at = deleted = 0
        while current.groups or current.pieces:
            if current.pieces:
                group_id, piece = current.pieces[0]
                if deleted and deleted + len(piece) > offsets.TOMBSTONES_AT_ONCE:
                    break
                current.pieces.popleft()
                deleted += len(piece)
                if group_id in self._groups:
                    self._delete(self._groups[group_id], piece, step)
            elif looked_at >= OFFSETS_AT_ONCE:
                break
            else:
                looked_at += self._look_at(current, step)
        if not current.groups and not current.pieces:
            self._passes.popleft()
        if self._passes:
            self._deadlines.set(TOPICS_KEY, Millis(step.now + _SOON_MS))

    def _look_at(self, current: _Pass, step: Step) -> int:
        """Find the next group's offsets of the topics. Returns how many offsets were looked at."""
        group = self._groups.get(current.groups.pop())
        if group is None:
            return 1
        self._shares.topics_deleted(group, current.topic_ids, step)
        found = offsets.known(group, current.topics)
        current.pieces.extend((group.group_id, piece) for piece in offsets.pieces(group, found))
        return 1 + len(group.offsets)

    def _delete(self, group: Group, piece: list[TopicPartition], step: Step) -> None:
        left = [each for each in piece if offsets.is_known(group, each)]
        if left:
            offsets.expire(group, left, step)

    def expected_deadlines(self) -> tuple[Key, ...]:
        """The deadline of the next piece, if there is one."""
        return (TOPICS_KEY,) if self._passes else ()
