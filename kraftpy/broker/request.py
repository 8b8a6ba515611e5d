"""What a handler is told of a request besides the message itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kraftpy.protocol.apis import ApiKey

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """Who asks, in which version, and where they came in."""

    api_key: ApiKey
    api_version: int
    client_id: str
    client_host: str
    listener: str
    connection: Connection | None = None
    """What it came by: None for what a broker asks itself."""
    is_long: bool = False
    """It names so many things that the work on them has to be done in slices (`broker.slices`)."""
