"""Users see, change and become only what their rights allow, and in the end every broker decides by the last ACLs.

    leaked              an answer showed a user something that no binding can have let this user see by then
    unrefused           a request was carried out, although it needs a right that the user cannot have had by then
    let-in              a login was accepted with a password that the user cannot have had by then, or a request
                        without any login was answered
    shut-out            a login was refused, although its password was the only one that the user can have had
    changed             in the end, something is changed that only the administrator may change
    not-in-force        in the end, a broker refused a request that the remaining bindings allow
    still-in-force      in the end, a broker allowed a request that the remaining bindings do not
    wrong-bindings      in the end, there is a binding that cannot be there, or one that must be there is missing
    wrong-credentials   the same for users with credentials
    wrong-quotas        the same for quotas

Read from: `grant` and `revoke` {type, pattern, name, principal, operation, permission, host}; `attempt` {user, needs:
[[operation, type, name], ...], errors, seen: [[kind, name], ...]}; `password` {user, password}, null to delete it;
`quota` {user, key, value}; `login` {user, password, accepted}; `survey` {acls, users, quotas, made, protected}, of
which the last, `final`, is compared with the first; the notes `plain-users`, with passwords that never change, and
`hosts`, with the address of each user.

A broker may lag behind, so a right that the user had at any time before an answer explains it. A change without an
answer may take effect at any later time, or never. A binding that denies counts from its acknowledgement until a
request to revoke it is sent. In the end (`final`), all brokers have caught up, and changes without an answer have taken
effect or never will.

Left out: credentials that anyone but an administrator changes. Whether quotas hold is in `rates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.history import History, Op, Type

NAME = "rights"

Right = tuple[str, str, str]
"""Operation, type and name of a resource."""

_IMPLIED: Final = {
    "DESCRIBE": ("DESCRIBE", "READ", "WRITE", "DELETE", "ALTER"),
    "DESCRIBE_CONFIGS": ("DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
}
_TO_SEE: Final = {"topic": ("DESCRIBE", "TOPIC"), "record": ("READ", "TOPIC"), "group": ("DESCRIBE", "GROUP")}
_CLUSTER: Final = ("DESCRIBE", "CLUSTER", "kafka-cluster")
_REFUSAL: Final = "AUTHORIZATION_FAILED"
_ELSEWHERE: Final = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""A broker that does not coordinate the group carries out nothing. It may say so before it looks at the topics."""
_NEVER: Final = 1 << 62
_EVERYWHERE: Final = "*"


@dataclass(slots=True)
class _Binding:
    """A binding, and the requests that grant and revoke it, in order."""

    fields: Mapping[str, str]
    grants: list[tuple[int, int, bool]] = field(default_factory=list)
    """The index of each request, the index of its completion, and True if the change was acknowledged."""
    revokes: list[tuple[int, int, bool]] = field(default_factory=list)

    def covers(self, user: str, host: str, right: Right) -> bool:
        """Return whether the binding is about this user at this host, and this right."""
        operation, kind, name = right
        fields = self.fields
        if fields["principal"] not in (f"User:{user}", "User:*") or fields["type"] != kind:
            return False
        if fields.get("host", _EVERYWHERE) not in (_EVERYWHERE, host):
            return False
        is_there = name.startswith(fields["name"]) if fields["pattern"] == "PREFIXED" else fields["name"] in (name, "*")
        return is_there and fields["operation"] in ("ALL", *self._operations(operation))

    def _operations(self, operation: str) -> Sequence[str]:
        return _IMPLIED.get(operation, (operation,)) if self.allows else (operation,)

    @property
    def allows(self) -> bool:
        return self.fields["permission"] == "ALLOW"

    def may_be_there(self, index: int) -> bool:
        """Return whether the binding may exist at this place of the history."""
        for asked, answered, is_sure in self.grants:
            if asked > index:
                continue
            if not is_sure or not any(
                began > answered and ended <= index for began, ended, is_done in self.revokes if is_done
            ):
                return True
        return False

    def must_be_there(self, index: int) -> bool:
        """Return whether the binding exists at this point of the history, however unanswered requests ended."""
        if any(asked <= index and not is_sure for asked, _, is_sure in self.revokes):
            return False
        granted = max((asked for asked, answered, is_sure in self.grants if is_sure and answered <= index), default=-1)
        return granted >= 0 and not any(granted < asked <= index for asked, _, _ in self.revokes)


class _Bindings:
    """Every binding of a history, and the first moment at which a user may have had a right."""

    def __init__(self, history: History) -> None:
        self._bindings: dict[tuple[str, ...], _Binding] = {}
        self._earliest: dict[tuple[str, Right], int] = {}
        self.hosts: dict[str, str] = {}
        """The address of each user."""
        for note in history.notes("hosts"):
            self.hosts |= note.value
        for op in history.completed("grant", "revoke"):
            if op.type is Type.FAIL:
                continue
            binding = self._bindings.setdefault(_key(op.value), _Binding(op.value))
            changes = binding.grants if op.f == "grant" else binding.revokes
            changes.append((history.invocation(op).index, op.index, op.type is Type.OK))

    def earliest(self, user: str, right: Right) -> int:
        """Return the first place of the history at which the user may have had the right."""
        question = (user, right)
        if question not in self._earliest:
            self._earliest[question] = self._search(user, right)
        return self._earliest[question]

    def _search(self, user: str, right: Right) -> int:
        host = self.hosts.get(user, "")
        about = [each for each in self._bindings.values() if each.covers(user, host, right)]
        allowing = [each for each in about if each.allows]
        denying = [each for each in about if not each.allows]
        moments = {asked for each in allowing for asked, _, _ in each.grants}
        moments |= {asked for each in denying for asked, _, _ in each.revokes}
        for moment in sorted(moments):
            is_allowed = any(each.may_be_there(moment) for each in allowing)
            if is_allowed and not any(each.must_be_there(moment) for each in denying):
                return moment
        return _NEVER

    def judge(self, findings: Findings, survey: Op) -> None:
        """Compare the bindings of a survey with those that were granted and revoked."""
        found = {_key(acl): acl for acl in survey.value["acls"]}
        for key, acl in found.items():
            if key not in self._bindings or not self._bindings[key].may_be_there(survey.index):
                text = f"a binding exists that was never made, or was revoked: {_text(acl)}"
                findings.add("wrong-bindings", text, (survey,), binding=dict(acl))
        for key, binding in self._bindings.items():
            if key not in found and binding.must_be_there(survey.index):
                text = f"a binding is missing that was made and not revoked: {_text(binding.fields)}"
                findings.add("wrong-bindings", text, (survey,), binding=dict(binding.fields))


def check(history: History, options: Options) -> Verdict:
    """Judge the attempts and logins of users, and the last survey."""
    findings = Findings(NAME, options)
    bindings = _Bindings(history)
    surveys = [op for op in history.completed("survey") if op.type is Type.OK]
    last = next((op for op in reversed(surveys) if op.extra.get("final")), None)
    for op in history.completed("attempt"):
        if op.type is not Type.OK:
            continue
        findings.verdict.examined += 1
        _judge_attempt(findings, bindings, op)
        if op.extra.get("final") and last is not None:
            _judge_in_the_end(findings, op, last, bindings.hosts)
    _judge_logins(findings, history)
    if last is not None:
        bindings.judge(findings, last)
        _judge_changes(findings, surveys[0], last)
        _judge_credentials(findings, history, last)
        _judge_quotas(findings, history, last)
    return findings.verdict


def _judge_attempt(findings: Findings, bindings: _Bindings, op: Op) -> None:
    user, where = op.value["user"], f"{op.value.get('api')} at {op.value.get('node')}"
    for kind, name in op.value["seen"]:
        right = (*_TO_SEE[kind], name) if kind in _TO_SEE else _CLUSTER
        if bindings.earliest(user, right) > op.index:
            text = f"{where} showed {user} {kind} {name!r}, which {user} was never allowed to see"
            findings.add("leaked", text, (op,), user=user, kind=kind, resource=name)
    if _is_refused(op):
        return
    is_elsewhere = bool(op.value["errors"]) and _ELSEWHERE.issuperset(op.value["errors"])
    for operation, kind, name in op.value["needs"]:
        if is_elsewhere and kind == "TOPIC":
            continue
        if bindings.earliest(user, (operation, kind, name)) > op.index:
            text = f"{where} was not refused, though {user} never had {operation} on {kind} {name!r}"
            findings.add("unrefused", text, (op,), user=user, right=[operation, kind, name], errors=op.value["errors"])
            break


def _judge_in_the_end(findings: Findings, op: Op, survey: Op, hosts: Mapping[str, str]) -> None:
    """Judge a request that needs one right, once all brokers have caught up."""
    user, ((operation, kind, name),) = op.value["user"], op.value["needs"]
    is_allowed = _decide(survey.value["acls"], user, hosts.get(user, ""), (operation, kind, name))
    if is_allowed is not _is_refused(op):
        return
    right = f"{operation} on {kind} {name!r}"
    where = f"{op.value.get('api')} at {op.value.get('node')}"
    if is_allowed:
        findings.add("not-in-force", f"{where} refused {user}, who has {right}", (survey, op), user=user)
    else:
        text = f"{where} did not refuse {user}, who no longer has {right}"
        findings.add("still-in-force", text, (survey, op), user=user)


def _is_refused(op: Op) -> bool:
    return any(error.endswith(_REFUSAL) for error in op.value["errors"])


def _decide(acls: Iterable[Mapping[str, str]], user: str, host: str, right: Right) -> bool:
    about = [binding for binding in map(_Binding, acls) if binding.covers(user, host, right)]
    return any(each.allows for each in about) and all(each.allows for each in about)


def _judge_logins(findings: Findings, history: History) -> None:
    fixed: dict[str, str] = {}
    for note in history.notes("plain-users"):
        fixed |= note.value
    since: dict[tuple[str, str], int] = {}
    """When each password may first have been a user's."""
    for op in history.completed("password"):
        place = (op.value["user"], op.value["password"])
        since[place] = min(since.get(place, _NEVER), history.invocation(op).index)
    final = {op.value["user"]: op for op in history.completed("password") if op.extra.get("final")}
    for op in history.completed("login"):
        if op.type is not Type.OK:
            continue
        findings.verdict.examined += 1
        user, password, is_accepted = op.value["user"], op.value["password"], op.value["accepted"]
        last = final.get(user) if op.extra.get("final") else None
        if user is None:
            if is_accepted:
                node = op.value.get("node")
                findings.add("let-in", f"{node} answered a request without a login", (op,), node=node)
        elif user in fixed:
            is_right = password == fixed[user]
            _judge_login(findings, op, may=is_right, must=is_right)
        elif last is not None and last.type is Type.OK:
            is_right = password == last.value["password"]
            _judge_login(findings, op, may=is_right, must=is_right)
        else:
            _judge_login(findings, op, may=since.get((user, password), _NEVER) < op.index, must=False)


def _judge_login(findings: Findings, op: Op, *, may: bool, must: bool) -> None:
    user, node = op.value["user"], op.value.get("node")
    if op.value["accepted"] and not may:
        text = f"{node} let {user} in with a wrong password"
        findings.add("let-in", text, (op,), user=user, password=op.value["password"])
    elif must and not op.value["accepted"]:
        text = f"{node} refused {user} with the right password"
        findings.add("shut-out", text, (op,), user=user, password=op.value["password"])


def _judge_changes(findings: Findings, first: Op, last: Op) -> None:
    for topic in last.value["made"]:
        findings.add("changed", f"an intruder created topic {topic!r}", (last,), topic=topic)
    for name, before in first.value["protected"].items():
        after = last.value["protected"].get(name)
        if after != before:
            text = f"{name} was {before}, and is {after}"
            findings.add("changed", text, (first, last), resource=name, before=before, after=after)


def _judge_credentials(findings: Findings, history: History, survey: Op) -> None:
    final = {op.value["user"] for op in history.completed("password") if op.type is not Type.FAIL}
    kept = {op.value["user"] for op in history.completed("password") if op.extra.get("final") and op.type is Type.OK}
    users = set(survey.value["users"])
    for user in sorted(users - final):
        findings.add("wrong-credentials", f"{user} has a password that was never set", (survey,), user=user)
    for user in sorted(kept - users):
        findings.add("wrong-credentials", f"{user} has lost its password", (survey,), user=user)


def _judge_quotas(findings: Findings, history: History, survey: Op) -> None:
    possible: dict[tuple[str, str], list[float | None]] = {}
    """Values that a quota may have: that of the last acknowledged change, and those of changes without an answer."""
    unsure: dict[tuple[str, str], list[float | None]] = {}
    for op in history.completed("quota"):
        place = (op.value["user"], op.value["key"])
        if op.type is Type.OK:
            possible[place] = [op.value["value"]]
        elif op.type is Type.INFO:
            unsure.setdefault(place, []).append(op.value["value"])
    found = {(user, key): value for user, key, value in survey.value["quotas"]}
    for place in sorted({*possible, *unsure, *found}, key=str):
        values = [*possible.get(place, [None]), *unsure.get(place, [])]
        if found.get(place) not in values:
            user, key = place
            text = f"{key} of {user} is {found.get(place)}, and should be {' or '.join(map(str, values))}"
            findings.add("wrong-quotas", text, (survey,), user=user, key=key)


def _key(binding: Mapping[str, str]) -> tuple[str, ...]:
    fields = ("type", "pattern", "name", "principal", "operation", "permission")
    return (*(binding[name] for name in fields), binding.get("host", _EVERYWHERE))


def _text(binding: Mapping[str, str]) -> str:
    fields = ("permission", "principal", "operation", "type", "pattern", "name")
    return f"{' '.join(binding[name] for name in fields)} from {binding.get('host', _EVERYWHERE)}"
