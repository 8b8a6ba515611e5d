"""Capabilities of a broker, one protocol each, for modules that take a broker and use only a little of it.

Such a module declares its own protocol `Broker` at the top, for type checkers only, as a combination of capabilities:

    class Broker(HasImage, HasSlices, Protocol): ...

mypy verifies in `broker.handler_protocols` that the real broker satisfies each of them. The capabilities here depend on
no wing of the broker; those that do are in `handlers.services`.
"""

from __future__ import annotations

from typing import Protocol

from kraftpy.broker.slicing import Slices
from kraftpy.config import BrokerConfig
from kraftpy.metadata.image import Image
from kraftpy.ports import Clock
from kraftpy.types import BrokerId


class HasNodeId(Protocol):
    """Has a node id."""

    @property
    def node_id(self) -> BrokerId:
        """This node's id."""


class HasConfig(Protocol):
    """Has settings."""

    @property
    def config(self) -> BrokerConfig:
        """The settings now in force: those this node was started with, and dynamic ones."""


class HasClock(Protocol):
    """Has a clock."""

    @property
    def clock(self) -> Clock:
        """The wall clock and the monotonic clock; tests replace them."""


class HasImage(Protocol):
    """Has a copy of the cluster's metadata."""

    @property
    def image(self) -> Image:
        """The metadata as of now. Look it up again after every await."""


class HasSlices(Protocol):
    """Runs long work in slices, without blocking the event loop."""

    @property
    def slices(self) -> Slices:
        """Pauses for long work, and a thread for work that cannot be sliced."""
