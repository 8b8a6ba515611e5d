"""Handle long requests about groups in pieces (`groups.request_pieces`), and serve other clients in between.

A connection is served one request at a time, so nothing else from the same client comes between the pieces. Requests of
other clients may: each piece is checked independently, as if it were a request of its own.

A short request is a single piece, which costs it only a look at its size.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kraftpy.groups.request_pieces import MOST_UNITS, joined, naming_all, pieces
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasCoordinators
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasSlices

    class Broker(HasCoordinators, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


B = TypeVar("B", bound="Broker")
Handle = Callable[[B, Any, "RequestContext"], Awaitable[Any]]


async def in_pieces(broker: B, request: Any, context: RequestContext, handle: Handle[B]) -> Any:
    """Return the answer of `handle` to the whole request."""
    answers: list[Any] = []
    for piece, units in pieces(request, broker.coordinators.size_of):
        if answers or units >= MOST_UNITS // 2 or context.is_long:
            await broker.slices.breathe(units)
        answers.append(await handle(broker, piece, context))
    return joined(answers) if len(answers) == 1 else await broker.slices.apart(joined, answers)


async def fetched(broker: Broker, request: OffsetFetchRequest, context: RequestContext) -> Any:
    """Answer an OffsetFetch by names; even the answer for all offsets of one large group is made in pieces."""
    is_of_one = len(request.groups) == 1 or not request.groups
    asked: Any = request.groups[0] if request.groups else request
    if is_of_one and asked.topics is None and broker.coordinators.size_of(asked.group_id) > MOST_UNITS:
        partitions = broker.coordinators.committed(asked.group_id)
        request = await broker.slices.apart(naming_all, request, partitions)
        return await in_pieces(broker, request, context, ask)
    return await ask(broker, request, context)


async def ask(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Return the coordinators' answer, each coordinator's part in one step."""
    return await broker.coordinators.ask(request, context)
