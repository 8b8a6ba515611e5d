"""Describes large groups apart from the coordinator, from copies of them.

A copy is cheap, because it shares all objects that do not change in place. The answer is as of the time of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, assert_never

from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.consumer import queries as consumer_queries
from kraftpy.groups.consumer.protocol import ConsumerProtocol
from kraftpy.groups.events import Compute, Computed, GroupResponse, Request
from kraftpy.groups.group import Group
from kraftpy.groups.routing import refuse
from kraftpy.groups.share import queries as share_queries
from kraftpy.groups.share.protocol import ShareProtocol
from kraftpy.groups.step import Step
from kraftpy.groups.streams import queries as streams_queries
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.streams.protocol import StreamsProtocol
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest

DescribeRequest = ConsumerGroupDescribeRequest | ShareGroupDescribeRequest | StreamsGroupDescribeRequest
Describe = Callable[[Mapping[str, Group]], GroupResponse]

_FIRST_TOKEN: Final = -(1 << 62)
"""A number far from all other tokens."""


class Descriptions:
    """The descriptions that one coordinator is asked for."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        consumers: ConsumerProtocol,
        shares: ShareProtocol,
        streams: StreamsProtocol,
    ) -> None:
        self._groups = groups
        self._consumers = consumers
        self._shares = shares
        self._streams = streams
        self._last_token = _FIRST_TOKEN
        self._asked: dict[int, Request] = {}

    def request(self, event: Request, message: DescribeRequest, step: Step) -> None:
        """Answer a request, at once if its groups are small."""
        named = {name: group for name in message.group_ids if (group := self._groups.get(name)) is not None}
        describe = self._describing(message, named)
        if sum(group.size for group in named.values()) <= UNITS_AT_ONCE:
            step.reply(event.request_id, describe(named))
            return
        copies = {name: group.snapshot() for name, group in named.items()}
        self._last_token += 1
        self._asked[self._last_token] = event
        step.effects.append(Compute(group_id="", token=self._last_token, function=lambda: describe(copies)))

    def _describing(self, message: DescribeRequest, named: Mapping[str, Group]) -> Describe:
        """Return a function that describes the given groups; it may be called in a thread."""
        match message:
            case ConsumerGroupDescribeRequest():
                return lambda groups: consumer_queries.describe(message, groups, self._consumers)
            case ShareGroupDescribeRequest():
                return lambda groups: share_queries.describe(message, groups, self._shares)
            case StreamsGroupDescribeRequest():
                kinds = [group.kind for group in named.values() if isinstance(group.kind, StreamsGroup)]
                configured = {kind.group_id: self._streams.configured(kind) for kind in kinds}  # resolves expressions
                return lambda groups: streams_queries.describe(message, groups, configured)
            case _:
                assert_never(message)

    def computed(self, event: Computed, step: Step) -> bool:
        """Answer the request with this result; return False if the event is about something else."""
        request = self._asked.pop(event.token, None)
        if request is None:
            return False
        answer = event.result
        if event.error is not None:
            step.survived(type(request.message).__name__, "", event.error)
            answer = refuse(request.message, request.api_version, ErrorCode.UNKNOWN_SERVER_ERROR)
        step.reply(request.request_id, answer)
        return True

    def waiting(self) -> list[Request]:
        """Return the requests that wait for a description."""
        return list(self._asked.values())
