"""Quota entities, quota keys, and the rules for changing quotas (KIP-546).

A quota is set for an entity: a user, a client id, both together, or an IP address. A name of None stands for the
default, which applies to every name of that type without a quota of its own. Messages are Kafka's.

Left out: resolving host names, which is I/O (`broker.quotas.hosts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_FRACTION: Final = 1e-6
"""A number counts as whole if it is off by no more than this."""


class _Kind(NamedTuple):
    """The greatest value of a key, its name in messages, and whether values are whole numbers."""

    greatest: float
    name: str
    is_whole: bool


_DOUBLE = _Kind(math.inf, "a DOUBLE", False)
_LONG = _Kind(float(2**63 - 1), "a LONG", True)
_INT = _Kind(float(2**31 - 1), "an INT", True)

CLIENT_KEYS: Final = {
    PRODUCER_BYTE_RATE: _LONG,
    CONSUMER_BYTE_RATE: _LONG,
    REQUEST_PERCENTAGE: _DOUBLE,
    CONTROLLER_MUTATION_RATE: _DOUBLE,
}
"""The keys of users and client ids."""
IP_KEYS: Final = {CONNECTION_CREATION_RATE: _INT}
"""The keys of IP addresses."""


class EntityPart(NamedTuple):
    """One part of an entity: its type, and a name or None for the default."""

    entity_type: str
    name: str | None


class QuotaEntity(NamedTuple):
    """A valid entity: its parts, sorted by type. Make it with `entity_of`."""

    parts: tuple[EntityPart, ...]

    def has(self, entity_type: str) -> bool:
        """Return whether the entity has a part of this type."""
        return any(part.entity_type == entity_type for part in self.parts)

    def name(self, entity_type: str) -> str | None:
        """Return the name of the part of this type; None if it is the default, or there is no such part."""
        return next((part.name for part in self.parts if part.entity_type == entity_type), None)

    def __str__(self) -> str:
        names = (f"{part.entity_type}={'<default>' if part.name is None else part.name}" for part in self.parts)
        return ", ".join(names)


class InvalidQuota(ValueError):
    """An entity, key or value breaks a rule; the message is for the client (INVALID_REQUEST)."""


class UnsupportedType(ValueError):
    """A filter names a type of entity that does not exist (UNSUPPORTED_VERSION)."""


def entity_of(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of these types and names. Raises InvalidQuota."""
    if not parts:
        raise InvalidQuota("Invalid empty client quota entity")
    found: dict[str, str | None] = {}
    for entity_type, name in parts:
        if entity_type in found:
            raise InvalidQuota(f"Invalid client quota entity, duplicate entity entry {entity_type}")
        if entity_type not in ENTITY_TYPES:
            raise InvalidQuota(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise InvalidQuota(f"Empty {entity_type} not supported")
        found[entity_type] = name
    if IP in found and len(found) > 1:
        raise InvalidQuota(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )  # as Kafka spells it
    return QuotaEntity(tuple(EntityPart(each, found[each]) for each in sorted(found)))


def check_value(entity: QuotaEntity, key: str, value: float) -> None:
    """Check that the entity may have this value for a key. Raises InvalidQuota."""
    kind = (IP_KEYS if entity.has(IP) else CLIENT_KEYS).get(key)
    if kind is None:
        raise InvalidQuota(f"Invalid configuration key {key}")
    if not value > 0:
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    if value > kind.greatest:
        raise InvalidQuota(f"Proposed value for {key} is too large for {kind.name}.")
    if kind.is_whole and abs(math.fmod(value, 1.0)) > _FRACTION:
        raise InvalidQuota(f"{key} cannot be a fractional value.")
    if math.isinf(value):  # Kafka stores it; to have no limit, remove the quota
        raise InvalidQuota(f"Proposed value for {key} is too large for a DOUBLE.")


def check_ops(ops: Iterable[tuple[str, float | None]]) -> dict[str, float | None]:
    """Return the new value of each key, None for no quota. Raises InvalidQuota for a duplicate key."""
    found: dict[str, float | None] = {}
    for key, value in ops:
        if key in found:
            raise InvalidQuota(f"Duplicate quota key {key}")
        found[key] = value
    return found


class MatchType:
    """How a component of a filter matches names, with the numbers on the wire."""

    EXACT: Final = 0
    DEFAULT: Final = 1
    SPECIFIED: Final = 2


class QuotaFilter:
    """A filter for entities: all of its components have to match. Raises InvalidQuota and UnsupportedType.

    A component is a type of entity, a match type, and, for EXACT only, the name to match. `strict` excludes entities
    that have other parts too.
    """

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        self._names: dict[str, str | None] = {}
        self._any: list[str] = []
        self._strict = strict
        for entity_type, match_type, match in components:
            if not entity_type:
                raise InvalidQuota("Invalid empty entity type.")
            if entity_type in self._names or entity_type in self._any:
                raise InvalidQuota(f"Entity type {entity_type} cannot appear more than once in the filter.")
            if entity_type not in ENTITY_TYPES:
                raise UnsupportedType(f"Unsupported entity type {entity_type}")
            self._add(entity_type, match_type, match)
        types = {*self._names, *self._any}
        if IP in types and len(types) > 1:
            raise InvalidQuota(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def _add(self, entity_type: str, match_type: int, match: str | None) -> None:
        if match_type == MatchType.EXACT:
            if match is None:
                raise InvalidQuota("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            self._names[entity_type] = match
        elif match_type == MatchType.DEFAULT:
            if match is not None:
                raise InvalidQuota("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            self._names[entity_type] = None
        elif match_type == MatchType.SPECIFIED:
            if match is not None:
                raise InvalidQuota("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            self._any.append(entity_type)
        else:
            raise InvalidQuota(f"Unknown match type {match_type}")

    def matches(self, entity: QuotaEntity) -> bool:
        """Return whether an entity passes the filter."""
        if self._strict and len(entity.parts) != len(self._names) + len(self._any):
            return False
        if not all(entity.has(each) for each in (*self._names, *self._any)):
            return False
        return all(entity.name(each) == name for each, name in self._names.items())
