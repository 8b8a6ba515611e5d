"""Capabilities of a broker, one protocol each, for modules that are handed a broker and use little of it.

A module declares, at its top and for type checkers only, a protocol `Broker` that combines what it uses of one:

    class Broker(HasImage, HasSlices, Protocol): ...

`broker.broker` asserts that the real broker satisfies every one of them. The capabilities here need no wing of the
broker; those that do are in `handlers.services`.
"""

from __future__ import annotations

from typing import Protocol

from kraftpy.broker.slicing import Slices
from kraftpy.config import BrokerConfig
from kraftpy.metadata.image import Image
from kraftpy.ports import Clock
from kraftpy.types import BrokerId


class HasNodeId(Protocol):
    """Knows which node of the cluster it is."""

    @property
    def node_id(self) -> BrokerId:
        """This node's id."""


class HasConfig(Protocol):
    """Has this node's settings."""

    @property
    def config(self) -> BrokerConfig:
        """The settings this node was started with."""


class HasClock(Protocol):
    """Tells the time."""

    @property
    def clock(self) -> Clock:
        """The node's clock, which tests replace."""


class HasImage(Protocol):
    """Has the cluster's metadata."""

    @property
    def image(self) -> Image:
        """The metadata as of now. Look it up again after every await."""


class HasSlices(Protocol):
    """Can do long work without holding up the event loop."""

    @property
    def slices(self) -> Slices:
        """Pauses between pieces of long work, and a thread for what cannot be cut."""
