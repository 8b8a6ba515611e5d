"""InitializeShareGroupState (83), Read (84), Write (85), Delete (86) and ReadShareGroupStateSummary (87), KIP-932.

They come from other brokers: from group coordinators and from the leaders of partitions. Each share partition that is
named succeeds or fails by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kraftpy.broker.share_apis import asked_of, response_of

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker
    from kraftpy.broker.request import RequestContext


async def answer(broker: Broker, request: Any, context: RequestContext) -> Any:
    """Ask the coordinators that are here."""
    return response_of(context.api_key, await broker.share_states.answer_here(asked_of(request)))
