"""Questions that name a thing twice, or name nothing: for each API, each list of a random request, in every version.

The random requests themselves name each thing once. Here an element of each of their lists is repeated, beside itself
and behind all others, and each list is emptied, so that topics without partitions and groups without topics come up in
every API that can say it. A second set puts odd text into each string.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from ask_the_wire import NOTE_SECONDS, READERS, WRITERS
from both import build
from differ import Differ
from of_kafka import APIS
from random_requests import FIRST_WITHOUT_CREATION, Pool, make_pool, random_request
from scenario_table import add_scenario

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.schema import Array, Sized, fields

BODIES = 2
"""The random requests of each version whose lists are repeated."""
TRIES = 40
ELSEWHERE = {ApiKey.PRODUCE, ApiKey.JOIN_GROUP}
"""APIs of which the scenarios written by hand ask this: what they do depends on what was asked before."""
ODD_TEXTS = (
    *("\0", "a\0b", "\n", " ", "é", "\U0001f600", "\u202e", "..", "a/b", "a" * 249, "a" * 250, "__share_group_state"),
)
OF_CONTENTS = {ApiKey.DELETE_TOPICS, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH}
"""APIs that are not asked about the last of these: that topic must not be deleted, and its records differ in each."""
CORRELATION = 7
NOT_UTF_8 = (b"\xff\xfe\xfd\xfc", b"a\xc3(b", b"\xed\xa0\x80c")
"""Four bytes each that are no UTF-8: bytes that never occur, one that is cut short, half of a pair of surrogates."""
PLACEHOLDER = "odd8"

Path = tuple[str | int, ...]


def _lists(body: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of a request's lists that are not empty; only the first element of each is searched."""
    if isinstance(body, dict):
        for name, value in body.items():
            yield from _lists(value, (*path, name))
    elif isinstance(body, list) and body:
        yield path
        yield from _lists(body[0], (*path, 0))


def _strings(kind: Any, body: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the paths of a request's strings."""
    for field in fields(kind):
        value = body.get(field.name)
        place = (*path, field.name)
        if isinstance(value, list) and value:
            if isinstance(value[0], str):
                yield (*place, 0)
            elif isinstance(value[0], dict):
                yield from _strings(field.struct, value[0], (*place, 0))
        elif isinstance(value, dict):
            yield from _strings(field.struct, value, place)
        elif isinstance(value, str) and isinstance(field.wire, Sized) and field.wire.name == "string":
            yield place


def _changed(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return the request with another value at one place."""
    made = _copy(body)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(element) for name, element in value.items()}
    return [_copy(element) for element in value] if isinstance(value, list) else value


def _at(body: Any, path: Path) -> Any:
    for step in path:
        body = body[step]
    return body


def _told(path: Path) -> str:
    return ".".join(str(step) for step in path if step != 0)


def _full_request(key: ApiKey, version: int, rng: Random, pool: Pool) -> dict[str, Any]:
    """Return the random request, of some, that has something in most lists."""
    tries = [random_request(key, APIS[key].request, version, rng, pool) for _ in range(TRIES)]
    return max(tries, key=lambda body: sum(1 for _ in _lists(body)))


def _ask(differ: Differ, key: ApiKey, version: int, body: dict[str, Any], note: str) -> None:
    try:
        differ.ask(key.name, body, version, note=note, seconds=NOTE_SECONDS, client="repeated")
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise


def _repeated(key: ApiKey, differ: Differ) -> None:
    rng = Random(f"{differ.seed} repeated {key.name}")
    api = APIS[key]
    pool = make_pool(differ, f"twice.{api.name}")
    for version in range(api.first, api.last + 1):
        for _ in range(BODIES):
            body = _full_request(key, version, rng, pool)
            for path in list(_lists(body)):
                found = _at(body, path)
                for note, elements in {
                    "twice": [found[0], *found],
                    "again at the end": [*found, *found[:1]],
                    "empty": [],
                }.items():
                    _ask(differ, key, version, _changed(body, path, elements), f"{_told(path)} {note}")


def _odd_texts(key: ApiKey, differ: Differ) -> None:
    rng = Random(f"{differ.seed} texts {key.name}")
    api = APIS[key]
    pool = make_pool(differ, f"text.{api.name}")
    first = FIRST_WITHOUT_CREATION if key == ApiKey.METADATA else api.first
    for version in sorted({first, api.last}):
        body = _full_request(key, version, rng, pool)
        for path in list(_strings(api.request, body)):
            for text in ODD_TEXTS if key not in OF_CONTENTS else ODD_TEXTS[:-1]:
                _ask(differ, key, version, _changed(body, path, text), f"{_told(path)} {text[:20]!r}")
            changed = _changed(body, path, PLACEHOLDER)
            try:
                requests = [build(api.request, changed, version, side.index) for side in differ.sides]
            except KafkaError:
                continue
            whole = [encode_request(key, version, CORRELATION, "c", each)[4:] for each in requests]
            for odd in NOT_UTF_8:
                frames = [each.replace(PLACEHOLDER.encode(), odd) for each in whole]
                differ.ask_bytes(key, frames, f"{_told(path)} {odd!r}", version=version, seconds=NOTE_SECONDS)


def _wires(kind: Any) -> Iterator[Any]:
    """Yield what a message consists of, with what its parts consist of."""
    for field in fields(kind):
        yield field.wire
        if isinstance(field.wire, Array) and field.wire.element is not None:
            yield field.wire.element
        if field.struct is not None:
            yield from _wires(field.struct)


for _key in (*READERS, *WRITERS):
    _wires_of_request = list(_wires(APIS[_key].request))
    if _key not in ELSEWHERE and any(isinstance(wire, Array) for wire in _wires_of_request):
        add_scenario(f"repeated_{APIS[_key].name}", partial(_repeated, _key))
    if _key not in ELSEWHERE and any(isinstance(wire, Sized) and wire.name == "string" for wire in _wires_of_request):
        add_scenario(f"odd_texts_{APIS[_key].name}", partial(_odd_texts, _key))
