"""InitializeShareGroupState (83), Read (84), Write (85), Delete (86) and ReadShareGroupStateSummary (87), KIP-932.

These come from other brokers, as group coordinators or partition leaders; a peer that has not proved to be a broker
(`broker_proof`) is refused. Each share partition in a request succeeds or fails independently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.broker_proof import who_asks
from kraftpy.broker.share.state_requests import response_of
from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.events import Result

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasMetadata, HasProof, HasShareStates
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasSlices

    class Broker(HasMetadata, HasProof, HasShareStates, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


async def answer(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Have the coordinators of this broker answer, if the peer is a broker."""
    is_broker = await who_asks(broker, context) is not None
    asked = await broker.share_states.asked_of(request)
    if is_broker:
        results = await broker.share_states.answer_here(asked)
    else:
        results = {each.key: Result(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED) for each in asked}
    if context.is_long:
        return await broker.slices.apart(response_of, context.api_key, results)
    return response_of(context.api_key, results)
