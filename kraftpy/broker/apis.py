"""The path from a request frame to its response, through the handler that `handlers.table` names for its API.

An API that is not in the table is not advertised. A request for one, or for a version outside its range, closes the
connection, as in Kafka: there is no response to encode. ApiVersions is the exception: an unsupported version of it is
answered in version 0, so that a newer client can step down (KIP-511).

An unexpected error in a handler costs its request. It is recorded as an incident, and the client receives
UNKNOWN_SERVER_ERROR if the response has an error code of its own; otherwise the connection is closed.

If there is an authorizer, the API's guard is called in place of the handler (`authorization.guards`).

Handlers are imported when the first request for them arrives, which keeps them out of the startup time.

Limit: a request may have at most `MAX_REQUEST_ELEMENTS` array elements, all levels together (`_MOST_ELEMENTS` for some
APIs). A request beyond it closes its connection. One with more than `LONG_ELEMENTS` is decoded in a thread, and its
handler works in slices (`slicing`), so that no other client waits for it; a response with more is encoded in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from kraftpy.broker.broker_proof import who_asks
from kraftpy.broker.connection import Connection
from kraftpy.broker.encoded_answers import Encoded
from kraftpy.broker.handlers.services import HasMetadata, HasProof
from kraftpy.broker.handlers.table import HANDLERS
from kraftpy.broker.request import RequestContext
from kraftpy.broker.response_writer import LONG_BYTES, Part, Response
from kraftpy.broker.rights import ALL_RIGHTS
from kraftpy.broker.services import HasConfig, HasSlices
from kraftpy.protocol.apis import APIS, Api, ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError, TooManyElements
from kraftpy.protocol.frames import (
    RequestHeader,
    around_body,
    decode_request_header,
    encode_response,
    encode_response_parts,
)
from kraftpy.protocol.schema import Array, Struct, decode, fields

if TYPE_CHECKING:
    from kraftpy.broker.authorization.guards import Guard
    from kraftpy.broker.containment import Tasks
    from kraftpy.broker.quotas.clients import ClientQuotaManager, Meter
    from kraftpy.broker.security.authorizer import Authorizer
    from kraftpy.metrics.registry import NodeMetrics


class Broker(HasConfig, HasMetadata, HasProof, HasSlices, Protocol):
    """The part of a broker needed here; each handler's module declares its own."""

    @property
    def metrics(self) -> NodeMetrics:
        """Counts requests, if there are metrics."""

    @property
    def tasks(self) -> Tasks:
        """Counts unexpected errors as incidents."""

    @property
    def authorizer(self) -> Authorizer | None:
        """The authorizer; None if every client may do everything."""

    @property
    def client_quotas(self) -> ClientQuotaManager:
        """The enforcement of client quotas."""


MAX_REQUEST_ELEMENTS: Final = 50_000
"""Five times the partitions that one request may create. The costliest requests take some 20 us for each."""
LONG_ELEMENTS: Final = 1_000
"""The most elements decoded, handled or encoded on the loop without a pause: about 10 ms, 20 ms for the costliest."""
_LONG_FRAME_BYTES: Final = 4 << 20
"""A request other than Produce that is longer than this is decoded in a thread, however few elements it has."""
_MOST_ELEMENTS: dict[int, int] = {
    ApiKey.DESCRIBE_GROUPS: 10_000,
    ApiKey.DELETE_GROUPS: 10_000,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 10_000,
    ApiKey.SHARE_GROUP_DESCRIBE: 10_000,
    ApiKey.STREAMS_GROUP_DESCRIBE: 10_000,
    ApiKey.FIND_COORDINATOR: 10_000,
}
"""Lower limits for APIs that one coordinator handles all at once; no client needs `MAX_REQUEST_ELEMENTS` for these."""

_LONG_FETCH: Final = 32
"""Fetch responses with more topics than this have their elements counted."""
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)  # a plain int: looking up enum members is slow


Handler = Callable[[Any, Any, RequestContext], Awaitable[Any]]
"""Turns a broker and a decoded request into the response message, or None if no response is due (acks=0).

The broker is untyped here: mypy verifies at the end of `broker.broker` that it has what each handler needs.
"""


class _Route:
    """Everything needed to answer one API, looked up once."""

    __slots__ = ("api", "handler", "may_be_long", "request")

    def __init__(self, api: Api, request: type[Any], handler: Handler, may_be_long: bool) -> None:
        self.api = api
        self.request = request
        self.handler = handler
        self.may_be_long = may_be_long
        """The response is a list of structs, so it may be too long to encode in one go."""


_routes: Final[dict[int, _Route]] = {}


def load(key: int) -> None:
    """Import the handler and the messages of an API before its first request."""
    _route(key)


def _route(key: int) -> _Route:
    """Import the handler of an API. Raises ProtocolError if the API is not served."""
    if key not in HANDLERS:
        raise ProtocolError(f"API {key} is not served")
    module, _, name = HANDLERS[key].partition(":")
    handler: Handler = getattr(import_module(f"kraftpy.broker.handlers.{module}"), name)
    api = APIS[key]
    may_be_long = key not in (_PRODUCE, _FETCH) and any(
        isinstance(field.wire, Array) and field.struct is not None for field in fields(cast("type", api.response))
    )
    route = _routes[key] = _Route(api, api.request, handler, may_be_long)
    return route


def answer(
    broker: Broker, frame: bytearray, client_host: str, listener: str, connection: Connection | None = None
) -> Awaitable[Response | None]:
    """Return the whole response to one request frame. Raises ProtocolError if the connection must be closed."""
    if connection is None or not broker.client_quotas.in_use:
        work = _answer(broker, frame, client_host, listener, connection, None)
    else:
        meter = broker.client_quotas.meter()
        work = meter.run(_answer(broker, frame, client_host, listener, connection, meter))
    if connection is None or broker.metrics.requests is None:
        return work
    return broker.metrics.requests.counted(frame, connection, work)


async def _answer(
    broker: Broker,
    frame: bytearray,
    client_host: str,
    listener: str,
    connection: Connection | None,
    meter: Meter | None,
) -> Response | None:
    header, body = decode_request_header(frame)
    api_key, version, correlation_id = header.api_key, header.api_version, header.correlation_id
    route = _routes.get(api_key) or _route(api_key)
    api, may_be_long = route.api, route.may_be_long
    if not api.first <= version <= api.last:
        if api_key == ApiKey.API_VERSIONS:
            return await _step_down(header)
        raise ProtocolError(f"{api.key.name} version {version} is not served; {api.first} to {api.last} are")
    is_long = len(frame) > _LONG_FRAME_BYTES and api_key != _PRODUCE
    request: Any = None
    if not is_long:
        # librdkafka's Metadata request for all topics has three trailing bytes, which Kafka accepts too.
        try:
            request = decode(route.request, body, version, max_elements=LONG_ELEMENTS, exact=False)
        except TooManyElements:
            is_long = True
    if is_long:
        request = await broker.slices.apart(_decode_long, route.request, body, version, api_key)
    context = RequestContext(
        api_key=api.key,
        api_version=version,
        client_id=header.client_id or "",
        client_host=client_host,
        listener=listener,
        connection=connection,
        is_long=is_long,
    )
    guard = None
    if broker.authorizer is not None and connection is not None:
        guard = await _guard(broker, broker.authorizer, context)
    if meter is not None:
        context.quota = meter.of(context)
    try:
        if guard is None:
            response = await route.handler(broker, request, context)
        else:
            response = await guard(broker, request, context, route.handler)
    except KafkaError as error:  # an error that the response has no field for
        raise ProtocolError(f"{api.key.name}: {error}") from error
    except ProtocolError:
        raise
    except Exception as error:
        broker.tasks.survive(f"{api.key.name} of {client_host}", error, kind=api.key.name)
        refusal = _refusal(api, header)
        if refusal is None:
            raise ProtocolError(f"{api.key.name}: an unexpected error, which the response cannot carry") from error
        return refusal
    if meter is not None:
        response = meter.settle(response, len(frame))
    if connection is not None and (counted := connection.counted) is not None:
        counted.count_errors(response)
    if response is None:
        return None
    if api_key == _FETCH:
        if is_long or (len(response.responses) > _LONG_FETCH and _elements(response, LONG_ELEMENTS) >= LONG_ELEMENTS):
            return await broker.slices.apart(_encode_fetch, api_key, version, correlation_id, response)
        return _encode_fetch(api_key, version, correlation_id, response)
    if may_be_long and type(response) is Encoded:
        return cast("list[Part]", around_body(api_key, version, correlation_id, response.body))
    if is_long or (may_be_long and _elements(response, LONG_ELEMENTS) >= LONG_ELEMENTS):
        return await broker.slices.apart(encode_response, api_key, version, correlation_id, response)
    return encode_response(api_key, version, correlation_id, response)


async def _guard(broker: Broker, authorizer: Authorizer, context: RequestContext) -> Guard | None:
    """Set the rights of the request's sender; return the guard of its API, if it has one.

    Brokers may do everything on the inter-broker listener.
    """
    from kraftpy.broker.authorization.guards import guard_of  # here: only used with an authorizer

    is_from_broker = (
        context.connection is not None
        and context.connection.broker_claim != ""
        and context.listener == broker.config.inter_broker_listener
        and await who_asks(broker, context) is not None
    )
    if is_from_broker:
        return None
    context.rights = authorizer.rights_of(context)
    return guard_of(context.api_key) if context.rights is not ALL_RIGHTS else None


def _refusal(api: Api, header: RequestHeader) -> bytes | None:
    """Return UNKNOWN_SERVER_ERROR as a response, or None if this version of it has no error code of its own."""

    def encoded(error_code: ErrorCode) -> bytes:
        response = api.response(error_code=error_code)
        return encode_response(header.api_key, header.api_version, header.correlation_id, response)

    try:
        refusal = encoded(ErrorCode.UNKNOWN_SERVER_ERROR)
        return None if refusal == encoded(ErrorCode.NONE) else refusal
    except Exception:  # there is no such field, or not in this version
        return None


def _decode_long(request_class: type[Any], body: memoryview, version: int, api_key: int) -> Any:
    most = _MOST_ELEMENTS.get(api_key, MAX_REQUEST_ELEMENTS)
    request = decode(request_class, body, version, max_elements=most, exact=False)
    if len(body) > _LONG_FRAME_BYTES:
        _hash_texts(request)
    return request


def _hash_texts(value: object) -> None:
    """Hash every text of a request, which keeps its hash: the event loop will look some of them up in dictionaries."""
    if isinstance(value, str):
        hash(value)
    elif isinstance(value, list):
        for each in value:
            _hash_texts(each)
    elif isinstance(value, Struct):
        for field in fields(cast("type", type(value))):
            _hash_texts(getattr(value, field.name))


def _encode_fetch(api_key: int, version: int, correlation_id: int, response: Any) -> list[Part]:
    return cast("list[Part]", encode_response_parts(api_key, version, correlation_id, response, LONG_BYTES))


def _elements(message: Struct, enough: int) -> int:
    """Count a message's list elements, all levels together, and stop counting at `enough`."""
    count = 0
    for name, has_lists in _lists(cast("type", type(message))):
        value: list[Any] | None = getattr(message, name)
        if value:
            count += len(value)
            if count >= enough:
                return count
            if has_lists:
                for each in value:
                    count += _elements(each, enough - count)
                    if count >= enough:
                        return count
    return count


@cache
def _lists(kind: type) -> tuple[tuple[str, bool], ...]:
    """Return the list fields of a message, each with whether its elements contain lists themselves."""
    lists = [field for field in fields(kind) if isinstance(field.wire, Array)]
    return tuple((field.name, field.struct is not None and bool(_lists(field.struct))) for field in lists)


async def _step_down(header: RequestHeader) -> bytes:
    """Answer a client newer than this broker: error 35 and its versions of this API, readable for every client."""
    from kraftpy.broker.handlers.cluster import unsupported_api_versions

    return encode_response(ApiKey.API_VERSIONS, header.api_version, header.correlation_id, unsupported_api_versions())
