"""Finds the quota that limits a client, and the clients that share it.

There are eight levels, the most specific first: user and client id; user and default client id; user; default user and
client id; default user and default client id; default user; client id; default client id. Each key is looked up
separately, and the first level with a value above 0 applies (KIP-55). If no level has one, there is no limit.

A limit on a user and client id is shared by the connections of that pair; a limit on a user by all of its clients; a
limit on a client id by all users of that id. Each broker enforces a limit separately.

An IP address has its own limit or the default.

Left out: classes of `client.quota.callback.class`. A client without a client id counts as one whose id is empty, and
gets the quotas of default client ids; in Kafka it has no quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kraftpy.quotas.entities import CLIENT_ID, IP, USER, EntityPart, QuotaEntity

_NOTHING: Final[Mapping[str, float]] = {}


class Limit(NamedTuple):
    """A client's limit for one key, and the clients whose usage counts towards it."""

    value: float
    user: str | None
    """The user whose usage counts; None if that of all users of the client id counts."""
    client_id: str | None
    """The client id whose usage counts; None if that of all clients of the user counts."""


class Limits:
    """The quotas of all entities. `changes` counts alterations: a limit found before the last one may be outdated."""

    def __init__(self) -> None:
        self._values: dict[QuotaEntity, dict[str, float]] = {}
        self._clients: dict[tuple[EntityPart, ...], dict[str, float]] = {}
        self._ips: dict[str | None, dict[str, float]] = {}
        self.changes = 0
        self.of_clients = False
        """True if some user or client id has a quota."""
        self.of_ips = False
        """True if some IP address has a quota."""

    def values(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return an entity's quotas by key; empty if it has none."""
        return self._values.get(entity, _NOTHING)

    def entities(self) -> list[QuotaEntity]:
        """Return every entity that has quotas, in a fixed order."""
        return sorted(self._values, key=order)

    def copied(self) -> dict[QuotaEntity, dict[str, float]]:
        """Return a copy of the quotas of every entity."""
        return {entity: dict(values) for entity, values in self._values.items()}

    def set(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        """Give an entity a quota; None removes it."""
        values = self._values.setdefault(entity, {})
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        self.changes += 1
        is_of_ip = entity.has(IP)
        if not values:
            del self._values[entity]
            self._ips.pop(entity.name(IP), None) if is_of_ip else self._clients.pop(entity.parts, None)
        elif is_of_ip:
            self._ips[entity.name(IP)] = values
        else:
            self._clients[entity.parts] = values
        self.of_clients, self.of_ips = bool(self._clients), bool(self._ips)

    def of_client(self, user: str, client_id: str, key: str) -> Limit | None:
        """Return the limit of a client for a key; None if it has none."""
        named_user, any_user = EntityPart(USER, user), EntityPart(USER, None)
        named, default = EntityPart(CLIENT_ID, client_id), EntityPart(CLIENT_ID, None)
        levels: tuple[tuple[tuple[EntityPart, ...], str | None, str | None], ...] = (
            ((named, named_user), user, client_id),
            ((default, named_user), user, client_id),
            ((named_user,), user, None),
            ((named, any_user), user, client_id),
            ((default, any_user), user, client_id),
            ((any_user,), user, None),
            ((named,), None, client_id),
            ((default,), None, client_id),
        )
        for parts, counted_user, counted_client in levels:
            value = self._clients.get(parts, _NOTHING).get(key)
            if value is not None and value > 0:
                return Limit(value, counted_user, counted_client)
        return None

    def of_ip(self, address: str, key: str) -> float | None:
        """Return the limit of an IP address, in the form in which its quota was set; None if it has none."""
        for name in (address, None):
            value = self._ips.get(name, _NOTHING).get(key)
            if value is not None and value > 0:
                return value
        return None

    def ips(self) -> list[str]:
        """Return the addresses and hosts that have a quota of their own, sorted."""
        return sorted(name for name in self._ips if name is not None)


def order(entity: QuotaEntity) -> list[tuple[str, bool, str]]:
    """Return a key by which entities are sorted."""
    return [(part.entity_type, part.name is not None, part.name or "") for part in entity.parts]
