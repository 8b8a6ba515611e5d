"""Questions about users of SCRAM (KIP-554) and about quotas (KIP-546, KIP-612): good requests and bad ones.

Quotas are of names that nobody has, or far above what these scenarios need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from differ import Differ
from scenario_table import scenario

SHA256, SHA512 = 1, 2
SALT, SALTED = b"salt" * 4, b"password" * 4
LARGE = 1e9


# --- users of SCRAM


def _upsertion(name: str, mechanism: int = SHA256, **more: Any) -> dict[str, Any]:
    usual = {"name": name, "mechanism": mechanism, "iterations": 4096, "salt": SALT, "salted_password": SALTED}
    return {**usual, **more}


def _deletion(name: str, mechanism: int = SHA256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def _alter(differ: Differ, note: str, deletions: Iterable[Any] = (), upsertions: Iterable[Any] = ()) -> None:
    body = {"deletions": list(deletions), "upsertions": list(upsertions)}
    differ.each_version("alter_user_scram_credentials", body, note)


def _users(differ: Differ, note: str, *names: str, every: bool = False) -> None:
    """Ask for these users; for all if there are none, as an empty list or, if `every`, as no list."""
    body = {"users": None if every else [{"name": name} for name in names]}
    differ.each_version("describe_user_scram_credentials", body, note, eventually=True)


@scenario
def scram_users(differ: Differ) -> None:
    """Users that are made, changed and removed; and each value that is not allowed, beside a good user."""
    _users(differ, "nobody yet", every=True)
    odd: Mapping[str, Mapping[str, Any]] = {
        **{f"mechanism {number}": {"mechanism": number} for number in (-1, 0, 3, 127)},
        **{f"{count} iterations": {"iterations": count} for count in (-1, 0, 1, 4095, 16_384, 16_385, 2**31 - 1)},
        "no salt": {"salt": b""},
        "a short salt": {"salt": b"x"},
        "a long salt": {"salt": bytes(1000)},
        "no salted password": {"salted_password": b""},
        "a short salted password": {"salted_password": b"x"},
        "two mistakes": {"mechanism": 0, "iterations": 1},
    }
    for number, (note, changes) in enumerate(odd.items()):
        _alter(differ, note, upsertions=[_upsertion(f"scram-odd-{number}", **changes), _upsertion("scram-good")])
        _users(differ, f"after {note}", f"scram-odd-{number}", "scram-good")
    for name in ("", " ", "é", "a,b=c", "a/b", "\0", "x" * 300):
        _alter(differ, f"a name: {name[:9]!r}", upsertions=[_upsertion(name)])
        _users(differ, f"a name: {name[:9]!r}", name)
    _alter(differ, "nothing")
    _users(differ, "all", every=True)
    _users(differ, "all, by an empty list")
    _users(differ, "twice", "scram-good", "scram-good", "scram-nobody")
    _users(differ, "unknown", "scram-nobody")
    names = [f"scram-odd-{number}" for number in range(len(odd))]
    for name in (*names, "scram-good", " ", "é", "a,b=c", "a/b", "\0", "x" * 300):
        _alter(differ, f"deletion of {name[:20]!r}", [_deletion(name)])
    _users(differ, "nobody any more", every=True)


@scenario
def scram_users_twice(differ: Differ) -> None:
    """The same user several times in one request, and both mechanisms of one."""
    name = "scram-twice"
    good = _upsertion("scram-beside")
    twice: Mapping[str, tuple[list[Any], list[Any]]] = {
        "the same upsertion": ([], [_upsertion(name), _upsertion(name)]),
        "both mechanisms": ([], [_upsertion(name), _upsertion(name, SHA512)]),
        "deletion and upsertion": ([_deletion(name)], [_upsertion(name)]),
        "deletion and upsertion of the other": ([_deletion(name, SHA512)], [_upsertion(name)]),
        "the same deletion": ([_deletion(name), _deletion(name)], []),
        "both deletions": ([_deletion(name), _deletion(name, SHA512)], []),
        "a bad one and a good one": ([], [_upsertion(name, iterations=1), _upsertion(name)]),
        "no name, twice": ([], [_upsertion(""), _upsertion("")]),
    }
    for note, (deletions, upsertions) in twice.items():
        _alter(differ, note, deletions, [*upsertions, good])
        _users(differ, f"after {note}", name, "scram-beside")
    for mechanism in (SHA256, SHA512):
        _alter(differ, f"mechanism {mechanism}", upsertions=[_upsertion(name, mechanism, iterations=8192 * mechanism)])
        _users(differ, f"with mechanism {mechanism}", name)
    for mechanism in (0, 3, SHA256, SHA256, SHA512, SHA512):
        _alter(differ, f"deletion of mechanism {mechanism}", [_deletion(name, mechanism)])
        _users(differ, f"without mechanism {mechanism}", name)
    _alter(differ, "no name", [_deletion("")])
    _alter(differ, "the last", [_deletion("scram-beside")])


# --- quotas


def _entity(*parts: tuple[str, str | None]) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in parts]


def _op(key: str, value: float | None) -> dict[str, Any]:
    return {"key": key, "value": 0.0 if value is None else value, "remove": value is None}


def _entry(parts: Iterable[tuple[str, str | None]], *ops: Mapping[str, Any]) -> dict[str, Any]:
    return {"entity": _entity(*parts), "ops": list(ops)}


def _set(differ: Differ, note: str, *entries: Mapping[str, Any], validate: bool = False) -> None:
    differ.each_version("alter_client_quotas", {"entries": list(entries), "validate_only": validate}, note)


def _quotas(differ: Differ, note: str, *parts: tuple[str, int, str | None], strict: bool = False) -> None:
    components = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in parts]
    body = {"components": components, "strict": strict}
    differ.each_version("describe_client_quotas", body, note, eventually=True)


KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
CONNECTIONS = "connection_creation_rate"
USER, CLIENT, IP = "user", "client-id", "ip"
GOOD = _entry([(USER, "quota-good")], _op(KEYS[0], LARGE))
ENTITIES: Mapping[str, list[tuple[str, str | None]]] = {
    "a user": [(USER, "quota-u")],
    "a client id": [(CLIENT, "quota-c")],
    "both": [(USER, "quota-u"), (CLIENT, "quota-c")],
    "both, in the other order": [(CLIENT, "quota-c"), (USER, "quota-u")],
    "a user and the default client id": [(USER, "quota-u"), (CLIENT, None)],
    "the default user and a client id": [(USER, None), (CLIENT, "quota-c")],
    "the default user": [(USER, None)],
    "the default client id": [(CLIENT, None)],
    "both defaults": [(USER, None), (CLIENT, None)],
    "odd names": [(USER, "é, =%\"'/"), (CLIENT, " ")],
    "an address": [(IP, "10.9.8.7")],
    "an address of IPv6": [(IP, "2001:db8::1")],
    "the default address": [(IP, None)],
}
BAD_ENTITIES: Mapping[str, list[tuple[str, str | None]]] = {
    "nothing": [],
    "no type": [("", "x")],
    "an unknown type": [("group", "x")],
    "a type in capitals": [("User", "x")],
    "two users": [(USER, "x"), (USER, "y")],
    "an address and a user": [(IP, "10.9.8.7"), (USER, "x")],
    "an address and a client id": [(IP, "10.9.8.7"), (CLIENT, "x")],
    "no name of a user": [(USER, "")],
    "no name of a client id": [(CLIENT, "")],
    "no address": [(IP, "")],
    "no good address": [(IP, "10.9.8.256")],
    "a network": [(IP, "10.9.8.0/24")],
    "spaces": [(IP, "not an address")],
}


@scenario
def quotas_of_entities(differ: Differ) -> None:
    """Each kind of entity, with every key and some value; and entities that there cannot be, beside a good one."""
    for note, parts in ENTITIES.items():
        keys = [CONNECTIONS] if parts[0][0] == IP else KEYS
        _set(differ, f"{note}, only checked", _entry(parts, *(_op(key, LARGE) for key in keys)), validate=True)
        _set(differ, note, _entry(parts, *(_op(key, LARGE) for key in keys)))
        _quotas(differ, f"{note} is there", *((kind, 1 if name is None else 0, name) for kind, name in parts))
        for key in (*KEYS, CONNECTIONS, "unknown", ""):
            _set(differ, f"{note}: {key!r}", _entry(parts, _op(key, LARGE)))
    for note, parts in BAD_ENTITIES.items():
        for key in (KEYS[0], CONNECTIONS):
            _set(differ, f"{note}: {key}", _entry(parts, _op(key, LARGE)), GOOD)
    _set(differ, "the second of two users, removed", _entry([(USER, "y")], _op(KEYS[0], None)))
    _quotas(differ, "all")
    for note, parts in ENTITIES.items():
        keys = [CONNECTIONS] if parts[0][0] == IP else KEYS
        _set(differ, f"{note}, removed", _entry(parts, *(_op(key, None) for key in keys)))
        _set(differ, f"{note}, removed again", _entry(parts, *(_op(key, None) for key in keys)))
    _set(differ, "the good one, removed", _entry([(USER, "quota-good")], _op(KEYS[0], None)))
    _quotas(differ, "none")


@scenario
def quotas_of_values(differ: Differ) -> None:
    """Values that a key may have and others; keys and entities given twice; requests of nothing."""
    user, address = partial(_entry, [(USER, "quota-v")]), partial(_entry, [(IP, "10.9.8.7")])
    for value in ("inf", "-inf", "nan"):
        for key in (*KEYS, CONNECTIONS):
            odd = _entry([(IP, "10.9.8.6") if key == CONNECTIONS else (USER, "quota-odd")], _op(key, float(value)))
            _set(differ, f"{key}={value}", odd)
            _set(differ, f"{key}={value}, removed", {**odd, "ops": [_op(key, None)]})
    for value in (0.0, -1.0, 0.5, 1.0, 1.5, 1e-9, LARGE, 2**31 - 1.0, 2**31 + 0.0, 2**53 + 0.0, 2**63 + 0.0, 1e308):
        for key in KEYS:
            _set(differ, f"{key}={value}", user(_op(key, value)))
        _set(differ, f"{CONNECTIONS}={value}", address(_op(CONNECTIONS, value)))
        _quotas(differ, f"after {value}", (USER, 0, "quota-v"))
        _quotas(differ, f"address after {value}", (IP, 0, "10.9.8.7"))
    _set(differ, "a key twice", user(_op(KEYS[0], 1.0), _op(KEYS[0], 2.0)))
    _set(differ, "set and removed", user(_op(KEYS[1], 1.0), _op(KEYS[1], None)))
    _quotas(differ, "after a key twice", (USER, 0, "quota-v"))
    twice = partial(_entry, [(USER, "quota-twice")])
    _set(differ, "an entity twice", twice(_op(KEYS[0], 3.0)), twice(_op(KEYS[1], 3.0)))
    _set(differ, "an entity twice, once bad", twice(_op(KEYS[0], 4.0)), twice(_op("unknown", 4.0)))
    _quotas(differ, "after an entity twice", (USER, 0, "quota-twice"))
    _set(differ, "an entity twice, removed", twice(_op(KEYS[0], None), _op(KEYS[1], None)))
    _set(differ, "a bad key beside a good one", user(_op(KEYS[2], 5.0), _op("unknown", 5.0)))
    _quotas(differ, "after a bad key", (USER, 0, "quota-v"))
    _set(differ, "nothing")
    _set(differ, "no key", user())
    _set(differ, "removed and unknown", user(_op("unknown", None)))
    _set(differ, "removed", user(*(_op(key, None) for key in KEYS)), address(_op(CONNECTIONS, None)))
    _quotas(differ, "none")


@scenario
def quotas_asked_for(differ: Differ) -> None:
    """Filters of each kind, strict and not, and some that there cannot be."""
    for note, parts in ENTITIES.items():
        _set(differ, note, _entry(parts, _op(CONNECTIONS if parts[0][0] == IP else KEYS[1], LARGE)))
    names = {USER: "quota-u", CLIENT: "quota-c", IP: "10.9.8.7"}
    filters: list[list[tuple[str, int, str | None]]] = [[]]
    for kind, name in names.items():
        filters += [[(kind, 0, name)], [(kind, 0, "nobody")], [(kind, 1, None)], [(kind, 2, None)]]
    for first in ((USER, 0, "quota-u"), (USER, 1, None), (USER, 2, None)):
        filters += [[first, second] for second in ((CLIENT, 0, "quota-c"), (CLIENT, 1, None), (CLIENT, 2, None))]
    filters += [[(USER, 0, None)], [(USER, 1, "quota-u")], [(USER, 2, "quota-u")], [(USER, 0, "")]]
    filters += [[(USER, match, None)] for match in (-1, 3, 127)]
    filters += [[("", 0, "x")], [("group", 0, "x")], [("User", 0, "x")], [("group", 2, None)]]
    filters += [
        [(USER, 2, None), (USER, 2, None)],
        [(IP, 2, None), (USER, 2, None)],
        [(IP, 2, None), (CLIENT, 2, None)],
    ]
    filters += [[(IP, 0, "no address")], [(IP, 0, "")], [(CLIENT, 0, "")]]
    for parts in filters:
        for strict in (False, True):
            _quotas(differ, f"{parts}{', strict' if strict else ''}", *parts, strict=strict)
    for note, entity in ENTITIES.items():
        _set(differ, f"{note}, removed", _entry(entity, _op(CONNECTIONS if entity[0][0] == IP else KEYS[1], None)))
