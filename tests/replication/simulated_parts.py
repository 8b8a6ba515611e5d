"""Small pieces of the simulation's nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kraftpy.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from simulated_node import Node


class Violation(AssertionError):
    """A guarantee was broken."""


class PowerLoss(Exception):
    """A node has died in the middle of a disk operation."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"node {node.id} lost its power")
        self.node = node


class View:
    """A node's log as its follower sees it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def log_start_offset(self) -> int:
        return self._node.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._node.log.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self._node.log.epochs.latest

    @property
    def high_watermark(self) -> int:
        return self._node.high_watermark

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return self._node.log.end_offset_for_epoch(leader_epoch)


class Waiter:
    """An acks=all append that is not committed yet."""

    def __init__(self, leader_epoch: int, base: int, last: int, answer: Callable[[ErrorCode, int], None]) -> None:
        self.leader_epoch = leader_epoch
        self.base_offset = base
        self.last_offset = last
        self.answer = answer
