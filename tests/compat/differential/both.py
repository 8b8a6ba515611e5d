"""One value of each cluster that is asked, and requests made of such values.

A request is written down as a dictionary, for any version: fields that a version lacks are left out, and those that it
wants and nobody names are empty. A `Both` may stand anywhere in it: each cluster is then sent its own value, such as
the id that it gave a topic. Where only kraftpy is asked, a `Both` has one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kraftpy.protocol.schema import REQUIRED, ZERO_UUID, Array, Field, Fixed, Nested, fields

Body = Mapping[str, Any]


class Both:
    """One value of each cluster. An attribute or item of it is again one of each; of None it is None."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    def __getattr__(self, name: str) -> Both:
        return Both(getattr(value, name, None) for value in self._values)

    def __getitem__(self, index: int) -> Both:
        return Both(value[index] if value else None for value in self._values)

    def __repr__(self) -> str:
        return f"Both{self._values}"


def each(both: Both) -> tuple[Any, ...]:
    """Return the values, that of the first cluster first."""
    return both._values


def resolve(value: Any, side: int) -> Any:
    """Return what `value` is for one cluster."""
    while isinstance(value, Both):
        value = each(value)[side]
    return value


def together(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` once for each cluster, with that cluster's arguments."""
    sides = next((len(each(argument)) for argument in arguments if isinstance(argument, Both)), 0)
    if not sides:
        return function(*arguments)
    return Both(function(*(resolve(argument, side) for argument in arguments)) for side in range(sides))


def build(kind: Any, body: Body, version: int, side: int) -> Any:
    """Return a message of `kind` as one cluster is sent it: the fields of `body` that this version has."""
    declared = fields(kind)
    if unknown := body.keys() - {field.name for field in declared}:
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {}
    for field in declared:
        if version in field.versions and field.name in body:
            values[field.name] = _value(field, resolve(body[field.name], side), version, side)
        elif field.default is REQUIRED:
            values[field.name] = _empty(field, version, side)
    return kind(**values)


def _value(field: Field, value: Any, version: int, side: int) -> Any:
    if isinstance(value, list):
        own = [resolve(each_value, side) for each_value in value]
        return own if field.struct is None else [build(field.struct, element, version, side) for element in own]
    if isinstance(value, Mapping) and field.struct is not None:
        return build(field.struct, value, version, side)
    return value


def _empty(field: Field, version: int, side: int) -> Any:
    match field.wire:
        case Array():
            return []
        case Nested():
            assert field.struct is not None
            return build(field.struct, {}, version, side)
        case Fixed(code="16s"):
            return ZERO_UUID
        case Fixed():
            return 0
        case wire:
            return "" if wire.name == "string" else b""
