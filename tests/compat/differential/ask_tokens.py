"""Questions about delegation tokens (KIP-48, KIP-373): created, renewed, expired, described, used to log in.

Each scenario has its own users, so that the tokens which other scenarios leave behind are not seen. Lifetimes are told
to ten minutes; none is chosen near the middle between two of them.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from both import Both, resolve, together
from differ import Differ
from scenario_table import add_scenario
from side import ScramLogin, Side
from surroundings import wait
from worlds import NO_TOKENS, TOKENS

from kraftpy.protocol.errors import ErrorCode
from kraftpy.security.acls import Operation, Permission, ResourceType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.security.api_requests import EVERY_ACL

HOUR_MS = 3_600_000
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
APIS = ("create", "renew", "expire", "describe")
WRONG_HMACS = {"none": b"", "short": b"x", "wrong": bytes(64), "long": bytes(65)}


def _principal(text: str) -> dict[str, str]:
    kind, _, name = text.partition(":")
    return {"principal_type": kind, "principal_name": name}


def _creation(*renewers: str, lifetime_ms: int = -1, **owner: str | None) -> dict[str, Any]:
    return {"renewers": [_principal(each) for each in renewers], "max_lifetime_ms": lifetime_ms, **owner}


def _owner(text: str) -> dict[str, str]:
    kind, _, name = text.partition(":")
    return {"owner_principal_type": kind, "owner_principal_name": name}


def _body(api: str, hmac: Any) -> dict[str, Any]:
    """Return a request that every version can say."""
    return {
        "create": _creation(),
        "renew": {"hmac": hmac, "renew_period_ms": HOUR_MS},
        "expire": {"hmac": hmac, "expiry_time_period_ms": HOUR_MS},
        "describe": {"owners": None},
    }[api]


def _each_api(differ: Differ, note: str, hmac: Any, **how: Any) -> None:
    for api in APIS:
        # Brokers hear of a token soon after the controller has answered.
        differ.each_version(f"{api}_delegation_token", _body(api, hmac), note, eventually=api == "describe", **how)


def _created(differ: Differ, client: str, *renewers: str, **how: Any) -> Both:
    """Create a token, and wait until brokers and controller know it."""
    token = differ.ask("create_delegation_token", _creation(*renewers, **how), compare=False, client=client)
    differ.wait("the token is known", partial(_is_known, token))
    return token


def _code(side: Side, token: Both) -> ErrorCode:
    """Return what the controller says when the super user, who has no part in a token, wants to renew it."""
    body = {"hmac": token.hmac, "renew_period_ms": HOUR_MS}
    return ErrorCode(side.quiet("renew_delegation_token", body, 2).error_code)


def _is_known(token: Both, side: Side) -> bool:
    described = side.quiet("describe_delegation_token", {"owners": None}, 3)
    hmacs = {each.hmac for each in described.tokens}
    is_described = resolve(token.hmac, side.index) in hmacs
    return is_described and _code(side, token) is not ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def _has(code: ErrorCode, token: Both, side: Side) -> bool:
    return _code(side, token) is code


def _allow(differ: Differ, user: str, *rights: tuple[Operation, ResourceType, str]) -> None:
    """Let a user have these rights, and everybody no others."""
    for side in differ.sides:
        side.quiet("delete_acls", {"filters": [EVERY_ACL]}, 3)
        creations = [
            {
                "resource_type": int(kind),
                "resource_name": name,
                "resource_pattern_type": 3,
                "principal": f"User:{user}",
                "host": "*",
                "operation": int(operation),
                "permission_type": int(Permission.ALLOW),
            }
            for operation, kind, name in rights
        ]
        side.quiet("create_acls", {"creations": creations}, 3)
        wait(side, "the ACLs hold", partial(_has_acls, side, len(rights)))


def _has_acls(side: Side, count: int) -> bool:
    return len(side.quiet("describe_acls", EVERY_ACL, 3).resources) == count


def tokens_created(differ: Differ) -> None:
    """Renewers, lifetimes and owners, good and bad."""
    create = partial(differ.each_version, "create_delegation_token", client="alice")
    create(_creation(), "plain")
    for renewers in (["User:bob"], ["User:bob", "User:bob", "User:alice"], ["User:"], ["Group:bob"], [":bob"]):
        create(_creation(*renewers), f"renewers {renewers}")
    create(_creation("User:bob", "Group:bob"), "a group beside a user")
    for lifetime_ms in (0, 1, HOUR_MS, 7 * 24 * HOUR_MS, INT64_MAX, INT64_MIN):
        create(_creation(lifetime_ms=lifetime_ms), f"lifetime {lifetime_ms}")
    owners: Mapping[str, dict[str, Any]] = {
        "null": {"owner_principal_type": None, "owner_principal_name": None},
        "no name": _owner("User:"),
        "no type": {"owner_principal_type": None, "owner_principal_name": "alice"},
        **{text: _owner(text) for text in ("User:alice", "User:bob", "User:nobody", "Group:alice", ":alice", "User:*")},
    }
    for note, owner in owners.items():
        for client in ("alice", "admin"):
            create(_creation(**owner), f"{client} for {note}", versions=[3], client=client)
    create(_creation("Group:bob", **_owner("User:bob")), "for another one, with a bad renewer", versions=[3])
    _allow(differ, "alice", (Operation.CREATE_TOKENS, ResourceType.USER, "User:bob"))
    for owner_name in ("bob", "nobody"):
        note = f"with the right for bob, for {owner_name}"
        create(_creation("User:carol", **_owner(f"User:{owner_name}")), note, versions=[3])
    create(_creation("Group:bob", **_owner("User:bob")), "with the right, with a bad renewer", versions=[3])
    _allow(differ, "alice")


def tokens_renewed(differ: Differ) -> None:
    renew = partial(differ.each_version, "renew_delegation_token", client="alice")
    token = _created(differ, "alice", "User:bob")
    short = _created(differ, "alice", "User:bob", lifetime_ms=3 * HOUR_MS)
    for_bob = differ.ask("create_delegation_token", _creation(**_owner("User:bob")), client="admin", note="for bob")
    differ.wait("the token is known", partial(_is_known, for_bob))
    for note, hmac in WRONG_HMACS.items():
        renew({"hmac": hmac, "renew_period_ms": HOUR_MS}, f"a HMAC that is {note}")
    for client in ("alice", "bob", "mallory", "admin"):
        for period_ms in (HOUR_MS, 2 * 24 * HOUR_MS, 0, -1, INT64_MIN, INT64_MAX):
            renew({"hmac": token.hmac, "renew_period_ms": period_ms}, f"{client} for {period_ms}", client=client)
        renew({"hmac": for_bob.hmac, "renew_period_ms": HOUR_MS}, f"{client} bob's", client=client)
        renew({"hmac": short.hmac, "renew_period_ms": 24 * HOUR_MS}, f"{client} beyond its end", client=client)


def tokens_expired(differ: Differ) -> None:
    """Tokens that are given another end, that are removed, and that have come to theirs."""
    expire = partial(differ.each_version, "expire_delegation_token", client="alice")
    for note, hmac in WRONG_HMACS.items():
        expire({"hmac": hmac, "expiry_time_period_ms": HOUR_MS}, f"a HMAC that is {note}")
        expire({"hmac": hmac, "expiry_time_period_ms": -1}, f"at once, a HMAC that is {note}")
    token = _created(differ, "alice", "User:bob", lifetime_ms=24 * HOUR_MS)
    for client in ("alice", "bob", "mallory", "admin"):
        for period_ms in (HOUR_MS, 2 * 24 * HOUR_MS, INT64_MAX):
            body = {"hmac": token.hmac, "expiry_time_period_ms": period_ms}
            expire(body, f"{client} in {period_ms}", client=client)
    for client, period_ms in (("mallory", -1), ("admin", -1), ("alice", -1), ("bob", INT64_MIN)):
        removed = _created(differ, "alice", "User:bob")
        body = {"hmac": removed.hmac, "expiry_time_period_ms": period_ms}
        differ.ask("expire_delegation_token", body, client=client, note=f"{client} at once")
        if client in ("alice", "bob"):
            differ.wait("it is gone", partial(_has, ErrorCode.DELEGATION_TOKEN_NOT_FOUND, removed))
            _each_api(differ, f"after {client} has removed it", removed.hmac, client="mallory")
    for how in ("in 0", "by its lifetime"):
        over = _created(differ, "alice", "User:bob", lifetime_ms=-1 if how == "in 0" else 1)
        if how == "in 0":
            expire({"hmac": over.hmac, "expiry_time_period_ms": 0}, how, versions=[2])
        differ.wait("it is over", partial(_has, ErrorCode.DELEGATION_TOKEN_EXPIRED, over))
        for client in ("alice", "bob", "mallory"):
            for period_ms in (0, HOUR_MS):
                expire({"hmac": over.hmac, "expiry_time_period_ms": period_ms}, f"{client}, over {how}", client=client)
            body = {"hmac": over.hmac, "renew_period_ms": HOUR_MS}
            differ.each_version("renew_delegation_token", body, f"{client}, over {how}", client=client)
        body = {"owners": [_principal("User:alice")]}
        differ.ask("describe_delegation_token", body, client="mallory", note=f"over {how}", eventually=True)
        for client in ("mallory", "alice"):
            body = {"hmac": over.hmac, "expiry_time_period_ms": -1}
            differ.ask("expire_delegation_token", body, client=client, note=f"{client} at once, over {how}")


def tokens_described(differ: Differ) -> None:
    """The tokens that are seen: by their owner, requester and renewers, and with each right."""
    token = _created(differ, "dave", "User:erin")
    _allow(differ, "grace", (Operation.CREATE_TOKENS, ResourceType.USER, "User:frank"))
    other = differ.ask("create_delegation_token", _creation(**_owner("User:frank")), client="grace", note="for frank")
    differ.wait("the token is known", partial(_is_known, other))
    lists = (
        *(None, [], ["User:dave"], ["User:erin"], ["User:frank"], ["User:grace", "User:stranger"], ["Group:dave"]),
        *(["User:frank", "User:dave", "User:dave"], ["User:"], [":dave"]),
    )

    def describe(note: str, *clients: str, which: Any = lists) -> None:
        for client in clients:
            for owners in which:
                body = {"owners": None if owners is None else [_principal(each) for each in owners]}
                how = f"{client}{note}, of {owners}"
                differ.each_version("describe_delegation_token", body, how, client=client, eventually=True)

    describe("", "dave", "erin", "frank", "grace", "mallory")
    describe("", "admin", which=lists[1:])
    rights = {
        "on the token": (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "*"),
        "on its owner": (Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:dave"),
        "on its requester": (Operation.DESCRIBE_TOKENS, ResourceType.USER, "User:grace"),
        "to create": (Operation.CREATE_TOKENS, ResourceType.USER, "User:dave"),
    }
    for note, right in rights.items():
        _allow(differ, "mallory", right)
        describe(f" with the right {note}", "mallory", which=lists[1:] if note == "on the token" else lists)
    _allow(differ, "mallory")
    body = {"hmac": token.hmac, "expiry_time_period_ms": -1}
    differ.ask("expire_delegation_token", body, client="dave", note="at once")
    describe(", without the first", "dave", "erin")


def tokens_used(differ: Differ) -> None:
    """Logins by tokens, and what their bearers may ask."""
    token = _created(differ, "carol", "User:bob", lifetime_ms=2 * HOUR_MS)
    password = together(lambda hmac: b64encode(hmac).decode(), token.hmac)
    for mechanism in MECHANISMS:
        log_in = partial(differ.log_in, mechanism=mechanism, is_by_token=True)
        differ.wait("it can be used", partial(_can_be_used, token, password, mechanism))
        log_in("bearer", "a token", name=token.token_id, password=password)
        log_in("other", "a wrong password", name=token.token_id, password="wrong")
        log_in("other", "another's token", name="AAAAAAAAAAAAAAAAAAAAAA", password=password)
        log_in("other", "no id", name="carol", password=password)
        log_in("other", "said to be no token", name=token.token_id, password=password, is_by_token=False)
    topic = {"topics": [{"name": "by-token", "num_partitions": 1, "replication_factor": 1}], "validate_only": True}
    differ.ask("create_topics", topic, client="bearer", note="without the right")
    _allow(differ, "carol", (Operation.CREATE, ResourceType.TOPIC, "by-token"))
    differ.ask("create_topics", topic, client="bearer", note="with the right of its owner", eventually=True)
    _each_api(differ, "by a token", token.hmac, client="bearer")
    _each_api(differ, "by a token, with a wrong HMAC", bytes(64), client="bearer")
    differ.ask("create_delegation_token", _creation("Group:x"), client="bearer", note="a bad renewer")
    differ.ask("create_delegation_token", _creation(**_owner("User:bob")), client="bearer", note="for another one")
    _allow(differ, "carol")
    body = {"hmac": token.hmac, "expiry_time_period_ms": -1}
    differ.ask("expire_delegation_token", body, client="carol", note="at once")
    differ.wait("it is gone", partial(_has, ErrorCode.DELEGATION_TOKEN_NOT_FOUND, token))
    for mechanism in MECHANISMS:
        differ.wait("nobody gets in", partial(_cannot_be_used, token, password, mechanism))
        name = token.token_id
        differ.log_in("other", "removed", mechanism=mechanism, name=name, password=password, is_by_token=True)


def _can_be_used(token: Both, password: Both, mechanism: str, side: Side) -> bool:
    name, word = resolve(token.token_id, side.index), resolve(password, side.index)
    login = ScramLogin(mechanism=mechanism, name=name, password=word)
    return side.log_in("trial", login).startswith("NONE")


def _cannot_be_used(token: Both, password: Both, mechanism: str, side: Side) -> bool:
    return not _can_be_used(token, password, mechanism, side)


def tokens_in_clear(differ: Differ) -> None:
    """All four on a listener without logins, with a token that is there."""
    token = _created(differ, "alice", "User:ANONYMOUS")
    _each_api(differ, "in clear", token.hmac, client="clear")
    _each_api(differ, "in clear, with a wrong HMAC", bytes(64), client="clear")
    differ.ask("create_delegation_token", _creation("Group:x"), client="clear", note="a bad renewer")
    differ.ask("create_delegation_token", _creation(**_owner("User:bob")), client="clear", note="for another one")


def tokens_without_a_secret(differ: Differ) -> None:
    for client in ("alice", "admin", "clear"):
        _each_api(differ, f"of {client}", bytes(64), client=client)
        for owners in ([], ["User:alice"]):
            body = {"owners": [_principal(each) for each in owners]}
            differ.each_version("describe_delegation_token", body, f"of {client}, owners {owners}", client=client)
        for note, changes in {"for another one": _owner("User:bob"), "for a group": _owner("Group:bob")}.items():
            body = _creation(**changes)
            differ.ask("create_delegation_token", body, client=client, note=f"of {client} {note}")
        differ.each_version(
            "create_delegation_token", _creation("Group:x"), f"of {client}, a bad renewer", client=client
        )
    for mechanism in MECHANISMS:
        for by_token in (True, False):
            note = "a token" if by_token else "no token"
            differ.log_in("other", note, mechanism=mechanism, name="x" * 22, password="x", is_by_token=by_token)


for each in (tokens_created, tokens_renewed, tokens_expired, tokens_described, tokens_used, tokens_in_clear):
    add_scenario(each.__name__, each, world=TOKENS)
add_scenario(tokens_without_a_secret.__name__, tokens_without_a_secret, world=NO_TOKENS)
