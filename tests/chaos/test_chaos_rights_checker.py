"""The checker of rights: the smallest history with each anomaly, and histories that look alike and are right."""

from __future__ import annotations

from typing import Any

import pytest
from planted import Line, assert_caught, done, judged, named_by

from chaos.checkers import rights

Parts = list[list[Line]]

ADMIN, USER, AUDIT = 0, 1, 9


def binding(operation: str, name: str = "t", permission: str = "ALLOW", **changes: str) -> dict[str, str]:
    return {
        "type": "TOPIC",
        "pattern": "LITERAL",
        "name": name,
        "principal": "User:a",
        "operation": operation,
        "permission": permission,
        **changes,
    }


def change(f: str, what: dict[str, str], kind: str = "ok", process: int = ADMIN) -> list[Line]:
    return done(process, kind, f, what)


def attempt(
    *seen: tuple[str, str],
    needs: tuple[str, str, str] | None = None,
    errors: tuple[str, ...] = (),
    user: str = "a",
    **extra: Any,
) -> list[Line]:
    value = {"user": user, "needs": [list(needs)] if needs else [], "errors": list(errors)}
    return done(USER, "ok", "attempt", {**value, "seen": [list(each) for each in seen]}, **extra)


def survey(*acls: dict[str, str], final: bool = True, **changes: Any) -> list[Line]:
    found = {"users": [], "quotas": [], "made": [], "protected": {}, **changes}
    return done(AUDIT, "ok", "survey", {"acls": list(acls), **found}, **({"final": True} if final else {}))


def password(text: str | None, kind: str = "ok", **extra: Any) -> list[Line]:
    return done(ADMIN, kind, "password", {"user": "r", "password": text}, **extra)


def log_in(text: str | None, accepted: bool, user: str | None = "r", **extra: Any) -> list[Line]:
    return done(USER, "ok", "login", {"user": user, "password": text, "accepted": accepted}, **extra)


def quota(value: float | None, kind: str = "ok", process: int = ADMIN) -> list[Line]:
    return done(process, kind, "quota", {"user": "a", "key": "rate", "value": value})


REFUSED = ("TOPIC_AUTHORIZATION_FAILED",)
READ = ("READ", "TOPIC", "t")
DESCRIBE = ("DESCRIBE", "TOPIC", "t")
ALLOW, DENY = binding("READ"), binding("ALL", permission="DENY")
PREFIXED_DENY = binding("ALL", permission="DENY", pattern="PREFIXED", principal="User:*")
HERE, THERE = binding("READ", host="10.0.0.1"), binding("READ", host="10.0.0.2")
HOSTS: list[Line] = [("administrator", "info", "hosts", {"a": "10.0.0.1", "b": "10.0.0.2"})]
FIXED: list[Line] = [("administrator", "info", "plain-users", {"a": "right"})]

WRONG: dict[str, tuple[str, Parts]] = {
    "a topic is told without any right": ("leaked", [attempt(("topic", "t"))]),
    "a topic is told before the right": ("leaked", [attempt(("topic", "t")), change("grant", ALLOW)]),
    "a record is told to who may only describe": (
        "leaked",
        [change("grant", binding("DESCRIBE")), attempt(("record", "t"))],
    ),
    "a topic is told to somebody else": ("leaked", [change("grant", ALLOW), attempt(("topic", "t"), user="b")]),
    "another topic is told": ("leaked", [change("grant", ALLOW), attempt(("topic", "tt"))]),
    "a group is told by a right on topics": ("leaked", [change("grant", ALLOW), attempt(("group", "t"))]),
    "a user with credentials is told": ("leaked", [change("grant", binding("ALL", "*")), attempt(("user", "r"))]),
    "a record is told although it is denied": (
        "leaked",
        [change("grant", DENY), change("grant", ALLOW), attempt(("record", "t"))],
    ),
    "a record is told although a prefix is denied to all": (
        "leaked",
        [change("grant", PREFIXED_DENY), change("grant", ALLOW), attempt(("record", "t"))],
    ),
    "the right is taken back before the denial": (
        "leaked",
        [
            *[change("grant", DENY), change("grant", ALLOW), change("revoke", ALLOW), change("revoke", DENY)],
            attempt(("record", "t")),
        ],
    ),
    "a record is told at another host": ("leaked", [HOSTS, change("grant", THERE), attempt(("record", "t"))]),
    "a record is told although it is denied at this host": (
        "leaked",
        [
            *[HOSTS, change("grant", binding("ALL", permission="DENY", host="10.0.0.1")), change("grant", ALLOW)],
            attempt(("record", "t")),
        ],
    ),
    "a right of another host holds in the end": (
        "still-in-force",
        [
            *[HOSTS, change("grant", HERE), change("revoke", HERE), change("grant", THERE)],
            *[survey(THERE), attempt(needs=READ, final=True)],
        ],
    ),
    "a request is carried out": ("unrefused", [attempt(needs=READ)]),
    "an error tells that there is no such topic": (
        "unrefused",
        [attempt(needs=READ, errors=("UNKNOWN_TOPIC_OR_PARTITION",))],
    ),
    "a group is told by a broker that does not coordinate it": (
        "unrefused",
        [attempt(needs=("READ", "GROUP", "g"), errors=("NOT_COORDINATOR",))],
    ),
    "one error of several is another broker's": (
        "unrefused",
        [attempt(needs=READ, errors=("NOT_COORDINATOR", "UNKNOWN_TOPIC_OR_PARTITION"))],
    ),
    "another right is there": ("unrefused", [change("grant", binding("DESCRIBE")), attempt(needs=READ)]),
    "a right on topics for the cluster": (
        "unrefused",
        [change("grant", binding("ALL", "*")), attempt(needs=("ALTER", "CLUSTER", "kafka-cluster"))],
    ),
    "a password that was never set": ("let-in", [password("x"), log_in("y", True)]),
    "a password that is set later": ("let-in", [log_in("x", True), password("x")]),
    "an old password in the end": (
        "let-in",
        [password("x"), password("y", final=True), log_in("x", True, final=True)],
    ),
    "no login": ("let-in", [log_in(None, True, user=None)]),
    "a wrong password of a fixed user": ("let-in", [FIXED, log_in("wrong", True, user="a")]),
    "a fixed user is refused": ("shut-out", [FIXED, log_in("right", False, user="a")]),
    "the last password is refused in the end": (
        "shut-out",
        [password("x", final=True), log_in("x", False, final=True)],
    ),
    "an intruder created a topic": ("changed", [survey(final=False), survey(made=["intruder"])]),
    "offsets differ": (
        "changed",
        [survey(final=False, protected={"t": {"offsets": [0, 5]}}), survey(protected={"t": {"offsets": [1, 5]}})],
    ),
    "a right is not in force": (
        "not-in-force",
        [change("grant", ALLOW), survey(ALLOW), attempt(needs=READ, errors=REFUSED, final=True)],
    ),
    "a right that was taken back is still in force": (
        "still-in-force",
        [change("grant", ALLOW), change("revoke", ALLOW), survey(), attempt(needs=READ, final=True)],
    ),
    "a denial is not in force": (
        "still-in-force",
        [change("grant", ALLOW), change("grant", DENY), survey(ALLOW, DENY), attempt(needs=READ, final=True)],
    ),
    "a binding that nobody made": ("wrong-bindings", [survey(ALLOW)]),
    "a binding that was revoked": ("wrong-bindings", [change("grant", ALLOW), change("revoke", ALLOW), survey(ALLOW)]),
    "a binding is gone": ("wrong-bindings", [change("grant", ALLOW), survey()]),
    "a password that nobody set is there": ("wrong-credentials", [survey(users=["intruder"])]),
    "a password is gone": ("wrong-credentials", [password("x", final=True), survey()]),
    "an old quota": ("wrong-quotas", [quota(1.0), quota(2.0), survey(quotas=[["a", "rate", 1.0]])]),
    "a quota that nobody set": ("wrong-quotas", [survey(quotas=[["intruder", "rate", 1.0]])]),
    "a quota is gone": ("wrong-quotas", [quota(1.0), survey()]),
}

RIGHT: dict[str, Parts] = {
    "a broker that does not coordinate the group looks at no topics": [
        attempt(needs=READ, errors=("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"))
    ],
    "a record is told by the right of this host": [HOSTS, change("grant", HERE), attempt(("record", "t"), needs=READ)],
    "a denial of another host denies nothing here": [
        *[HOSTS, change("grant", binding("ALL", permission="DENY", host="10.0.0.2")), change("grant", ALLOW)],
        attempt(("record", "t"), needs=READ),
    ],
    "a topic is told after the right": [change("grant", ALLOW), attempt(("topic", "t"), ("record", "t"), needs=READ)],
    "the right has no answer": [change("grant", ALLOW, "info"), attempt(("record", "t"), needs=READ)],
    "the right was taken back, and the broker lags": [
        *[change("grant", ALLOW), change("revoke", ALLOW)],
        attempt(("record", "t"), needs=READ),
    ],
    "the denial came after the right, and the broker lags": [
        *[change("grant", ALLOW), change("grant", DENY)],
        attempt(("record", "t"), needs=READ),
    ],
    "the denial was taken back": [
        *[change("grant", DENY), change("grant", ALLOW), change("revoke", DENY)],
        attempt(("record", "t"), needs=READ),
    ],
    "the end of the denial has no answer": [
        *[change("grant", DENY), change("revoke", DENY, "info"), change("grant", ALLOW, process=2)],
        attempt(("record", "t"), needs=READ),
    ],
    "a denial of another operation": [
        *[change("grant", binding("WRITE", permission="DENY")), change("grant", ALLOW)],
        attempt(("record", "t"), needs=DESCRIBE),
    ],
    "everybody has the right, on all topics": [
        change("grant", binding("ALL", "*", principal="User:*")),
        attempt(("record", "t"), user="b", needs=READ),
    ],
    "a prefix": [change("grant", binding("READ", "", pattern="PREFIXED")), attempt(("record", "t"), needs=READ)],
    "refused without a right": [attempt(needs=READ, errors=REFUSED)],
    "refused with a right that was taken back": [
        *[change("grant", ALLOW), change("revoke", ALLOW), survey()],
        attempt(needs=READ, errors=REFUSED, final=True),
    ],
    "another error with the right": [
        *[change("grant", ALLOW), survey(ALLOW)],
        attempt(needs=READ, errors=("NOT_LEADER_OR_FOLLOWER",), final=True),
    ],
    "reading implies describing": [
        *[change("grant", ALLOW), survey(ALLOW)],
        attempt(needs=DESCRIBE, final=True),
    ],
    "a binding with an unknown fate, there": [change("grant", ALLOW, "info"), survey(ALLOW)],
    "a binding with an unknown fate, not there": [change("grant", ALLOW, "info"), survey()],
    "an earlier password, while nodes are apart": [password("x"), password("y"), log_in("x", True)],
    "the newest password, where it has not arrived": [password("x"), log_in("x", False)],
    "no login, no answer": [log_in(None, False, user=None)],
    "fixed users": [FIXED, log_in("right", True, user="a"), log_in("wrong", False, user="a")],
    "a quota of an unknown fate": [quota(1.0), quota(2.0, "info"), survey(quotas=[["a", "rate", 2.0]])],
    "a quota that was removed": [quota(1.0), quota(None), survey()],
}


@pytest.mark.parametrize("name", WRONG)
def test_the_smallest_history_with_an_anomaly_has_it_and_no_other(name: str) -> None:
    anomaly, parts = WRONG[name]
    assert_caught(rights, anomaly, [*parts, attempt(errors=REFUSED)])


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_alike_and_is_right_passes(name: str) -> None:
    verdict = judged(rights.check, *RIGHT[name])
    assert dict(verdict.counts) == {}, [each.text for each in verdict.anomalies]


def test_every_anomaly_of_the_table_has_a_history() -> None:
    assert named_by(rights) == {anomaly for anomaly, _ in WRONG.values()}
