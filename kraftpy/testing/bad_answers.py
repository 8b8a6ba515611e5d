"""Request faults in the process of a test's node: requests are dropped, delayed, held or answered with errors.

They replace `broker.apis.answer`, which serves every request of a client or another broker; messages between voters and
observers of the quorum go elsewhere. A connection's requests are served one after the other, so one that is held up
holds up those behind it.

An answer with an error has the shape that the API gives it: the request's topics and partitions, each with the code,
and the code at the top if there is a field for it.

Left out: if a client's connection was cut and has closed meanwhile, only the first of the requests it sent ahead
arrives in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker import apis
from kraftpy.broker.response_writer import Response
from kraftpy.log.results import LogSlice
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import KafkaError, ProtocolError
from kraftpy.protocol.frames import RequestHeader, decode_request_header, decode_response_header, encode_response
from kraftpy.protocol.schema import (
    REQUIRED,
    ZERO_UUID,
    Array,
    Field,
    Fixed,
    Nested,
    Sized,
    Struct,
    array,
    bytestring,
    decode,
    fields,
    records,
)
from kraftpy.testing.misbehaviour import REQUESTS, InForce
from kraftpy.testing.rules import CLIENT_ID, Hit, Rule, claim

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.broker.services import HasConfig

    class Broker(apis.Broker, HasConfig, Protocol):
        """The part of a broker needed to answer and to tell brokers from clients."""

        @property
        def links(self) -> object | None:
            """The links to the other nodes; None on a node that is alone."""


Answer = Callable[["Broker", bytearray, str, str, "Connection | None"], Awaitable[Response | None]]


class Dropped(ProtocolError):
    """Raised to close the connection."""


def replacements(in_force: InForce, what: str) -> Iterable[tuple[Any, str, Callable[[Any], Any]]]:
    """Return the replacements to make while there are rules about "requests"."""
    assert what == "requests"
    late: set[asyncio.Task[None]] = set()

    def made_of(original: Answer) -> Answer:
        async def answer(
            broker: Broker, frame: bytearray, client_host: str, listener: str, connection: Connection | None = None
        ) -> Response | None:
            header, body = decode_request_header(frame)
            is_between_brokers = broker.links is not None and listener == broker.config.inter_broker_listener
            sender = "brokers" if is_between_brokers else "clients"
            if header.client_id == CLIENT_ID:
                return await original(broker, frame, client_host, listener, connection)

            def rules(*, is_response: bool) -> Iterable[Rule]:
                for rule in in_force.rules:
                    if rule.is_response is is_response and _is_about(rule, header, sender):
                        yield rule

            async def arrives_late() -> None:
                with contextlib.suppress(KafkaError, ProtocolError):
                    _release(await original(broker, frame, client_host, listener, connection))

            for rule in rules(is_response=False):
                try:
                    await _wait(in_force, rule, header)
                except asyncio.CancelledError:
                    if rule.kind == "cut":
                        task = asyncio.create_task(_afterwards(in_force, rule, arrives_late), name="cut off")
                        late.add(task)
                        task.add_done_callback(late.discard)
                    raise
                if rule.kind == "fail" and _claimed(in_force, rule, header):
                    return failed(header, body, rule.error)
            response = await original(broker, frame, client_host, listener, connection)
            try:
                for rule in rules(is_response=True):
                    await _wait(in_force, rule, header)
                    if rule.kind == "fail" and response is not None and _claimed(in_force, rule, header):
                        _release(response)
                        response = spoilt(header, body, response, rule.error)
            except BaseException:
                _release(response)
                raise
            return response

        return answer

    yield apis, "answer", made_of


def _is_about(rule: Rule, header: RequestHeader, sender: str) -> bool:
    return (
        rule.kind in REQUESTS
        and rule.api in (None, header.api_key)
        and rule.sender in ("all", sender)
        and rule.client_id in (None, header.client_id)
    )


def _claimed(in_force: InForce, rule: Rule, header: RequestHeader) -> bool:
    return claim(rule, Hit(node=in_force.node, what=_name(header.api_key), client_id=header.client_id or ""))


def _name(key: int) -> str:
    return APIS[key].key.name if key in APIS else str(key)


async def _wait(in_force: InForce, rule: Rule, header: RequestHeader) -> None:
    """Let the rule's time pass. Raises Dropped."""
    if rule.kind == "fail" or not _claimed(in_force, rule, header):
        return
    if rule.kind == "drop":
        what = "the answer of a" if rule.is_response else "a"
        raise Dropped(f"a test drops {what} {_name(header.api_key)} request")
    await in_force.until_gone(rule, rule.seconds)


async def _afterwards(in_force: InForce, rule: Rule, arrives: Callable[[], Awaitable[None]]) -> None:
    await in_force.until_gone(rule)
    await arrives()


def _release(response: Response | None) -> None:
    """Release files that were waiting to be sent."""
    if isinstance(response, list):
        for piece in response:
            if isinstance(piece, LogSlice):
                piece.release()


# Answers with errors.


_ERRORS = ("error_code", "partition_error_code")
"""The names of error fields."""


def can_fail(key: ApiKey) -> bool:
    """Return whether the API's answer has a field for an error."""
    return _has_error(APIS[key].response)


def _has_error(kind: type) -> bool:
    return any(
        field.name in _ERRORS or (field.struct is not None and _has_error(field.struct)) for field in fields(kind)
    )


def failed(header: RequestHeader, body: memoryview, error: int) -> bytes | None:
    """Return the answer to a request that had no effect; None if the request gets none."""
    api = APIS[header.api_key]
    request = decode(api.request, body, header.api_version, exact=False)
    if header.api_key == ApiKey.PRODUCE and request.acks == 0:
        return None
    response = _shaped(api.response, request, header.api_version)
    _spoil(response, header.api_version, error)
    return encode_response(header.api_key, header.api_version, header.correlation_id, response)


def spoilt(header: RequestHeader, body: memoryview, response: Response, error: int) -> bytes | None:
    """Return an answer with its error replaced."""
    if isinstance(response, list):  # a Fetch with an error carries no records
        return failed(header, body, error)
    api = APIS[header.api_key]
    _, answered = decode_response_header(header.api_key, header.api_version, memoryview(response)[4:])
    message = decode(api.response, answered, header.api_version)
    for part in message.topics if header.api_key == ApiKey.METADATA else [message]:
        _spoil(part, header.api_version, error)
    return encode_response(header.api_key, header.api_version, header.correlation_id, message)


def _spoil(value: Any, version: int, error: int) -> None:
    kind: type = type(value)
    for field in fields(kind):
        if version not in field.versions:
            continue
        if field.name in _ERRORS:
            setattr(value, field.name, error)
        elif field.struct is not None and _has_error(field.struct):
            inner = getattr(value, field.name)
            for each in inner if isinstance(inner, list) else [inner]:
                if each is not None:
                    _spoil(each, version, error)


_OTHER_WORDS = {
    "partition_index": "partition",
    "index": "partition",
    "topic": "name",
    "name": "topic",
    "group_id": "key",
}
"""An answer's field names, if the request uses another name."""


def _shaped(kind: type, asked: Any, version: int) -> Any:
    """Build an answer, or part of one, about what was asked: names from the request, everything else empty."""
    known = {name: getattr(asked, name) for name in asked.__slots__} if isinstance(asked, Struct) else {}
    values: dict[str, Any] = {}
    is_named = bool(known)
    for field in fields(kind):
        word = field.name if field.name in known else _OTHER_WORDS.get(field.name)
        if version not in field.versions and field.default is not REQUIRED:
            continue
        if field.wire == array:
            if field.struct is not None and _has_error(field.struct):
                values[field.name] = [_shaped(field.struct, each, version) for each in _asked_for(field.name, known)]
        elif field.name not in _ERRORS and word in known and isinstance(known[word], type(_empty(field))):
            values[field.name] = known[word]
        elif field.name not in _ERRORS and not is_named and isinstance(asked, type(_empty(field))):
            values[field.name] = asked  # in the request, this is a list of names or numbers
            is_named = True
        elif field.default is REQUIRED or (field.default is None and version not in field.nullable):
            values[field.name] = _empty(field)
    return kind(**values)


def _asked_for(name: str, known: dict[str, Any]) -> list[Any]:
    """Return the list in a request that corresponds to a list in its answer."""
    return known.get(name) or next((value for value in known.values() if isinstance(value, list) and value), [])


def _empty(field: Field) -> Any:
    if field.wire in (records, bytestring):
        return b""
    match field.wire:
        case Fixed(code="16s"):
            return ZERO_UUID
        case Fixed(code="?"):
            return False
        case Fixed():
            return -1
        case Sized():
            return ""
        case Array():
            return []
        case Nested():
            assert field.struct is not None
            return field.struct()
