"""Handle long requests about groups in pieces (`groups.request_pieces`), and serve other clients in between.

A connection is served one request at a time, so nothing else from the same client comes between the pieces. Requests of
other clients may: each piece is checked independently, as if it were a request of its own.

A short request is a single piece, which costs it only a look at its size.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kraftpy.groups.request_pieces import MOST_UNITS, as_often_as_named, joined, naming_all, pieces
from kraftpy.protocol.errors import ErrorCode
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


async def described(
    broker: B, request: Any, context: RequestContext, handle: Handle[B], group: Callable[..., Any] | None = None
) -> Any:
    """Describe groups, each as often as the request names it.

    If `group`, which makes a description, is given, an empty group id is invalid; otherwise it is like any other id.
    """
    field = "groups" if hasattr(request, "groups") else "group_ids"
    names: list[str] = getattr(request, field)
    setattr(request, field, [name for name in dict.fromkeys(names) if name or group is None])
    answer = await in_pieces(broker, request, context, handle)

    def all_of_them() -> list[Any]:
        found = {each.group_id: each for each in answer.groups}
        if group is not None:
            found[""] = group(group_id="", error_code=ErrorCode.INVALID_GROUP_ID)
        return as_often_as_named(names, found)

    answer.groups = await broker.slices.apart(all_of_them) if context.is_long else all_of_them()
    return answer


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
