"""Mutants of authorization."""

from __future__ import annotations

from typing import Any

from chaos.mutants.mutant import Mutant, quiet, replaced, rounds, set_to, three, wrapped
from chaos.nemesis import Kind
from chaos.workloads import security
from chaos.workloads.intrusions import PROBES
from kraftpy.broker.authorization import guards
from kraftpy.broker.security import authorizer
from kraftpy.broker.security.authorizer import Authorizer
from kraftpy.protocol.apis import ApiKey
from kraftpy.security import acls
from kraftpy.security.acls import AclIndex, Operation, Permission, ResourceType, Verdict
from kraftpy.security.principal import Principal

_secured = three(workload="log", load=0.5, with_security=True)
_always_the_same_questions = (
    set_to(security, "INTRUSIONS", PROBES),
    set_to(security, "INTRUDER_PAUSE_SECONDS", 0.05),
)
"""The intruders repeat the same few requests: a broker can only have kept decisions that it has made before."""


def _without_one(guard_of: Any) -> Any:
    """Find no guard for an API that has a handler."""

    def found(key: int) -> Any:
        return None if key == ApiKey.DELETE_RECORDS else guard_of(key)

    return found


def _kept_for_good(self: Authorizer) -> dict[Any, bool]:
    """Return the decisions kept so far, and forget them only when there is no room for one more."""
    if len(self._kept) >= authorizer._MOST_KEPT:
        self._kept.clear()
    return self._kept


def _first_match(
    self: AclIndex, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
) -> Verdict:
    """Decide by the first binding that covers the resource."""
    verdict = Verdict.NO_BINDING
    for of_pattern in self._covering(resource_type, name):
        verdict = Verdict.DENIED
        for each in (str(principal), acls.ANYONE):
            for binding in of_pattern.get(each, ()):
                if not acls._is_host(binding.host, host):
                    continue
                if binding.permission == Permission.DENY:
                    if binding.operation in (operation, Operation.ALL):
                        return Verdict.DENIED
                elif binding.operation in (acls._ALLOWED_BY.get(operation) or (operation, Operation.ALL)):
                    return Verdict.ALLOWED
    return verdict


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="guard-forgotten",
        breaks="an API has a handler and no guard: any user may delete the records of any topic",
        rule="KIP-11",
        shows=frozenset({"unrefused", "changed"}),
        directed=_secured,
        faults=quiet,
        patches=(wrapped(guards, "guard_of", _without_one),),
    ),
    Mutant(
        name="decisions-kept",
        breaks="a broker keeps its decisions when bindings change: a right that was revoked still holds",
        rule="KIP-801",
        shows=frozenset({"still-in-force", "not-in-force"}),
        directed=_secured,
        # One broker at a time stands still while bindings change, and must act on the changes when it is back.
        faults=rounds((0, Kind.PAUSE, "node a", 4_000, {}), nodes="a", every_ms=10_000),
        patches=(replaced(Authorizer, "_kept_now", _kept_for_good), *_always_the_same_questions),
    ),
    Mutant(
        name="denial-overlooked",
        breaks="the first binding that covers a resource decides: another one that denies is overlooked",
        rule="KIP-801",
        shows=frozenset({"leaked", "unrefused", "still-in-force"}),
        directed=_secured,
        faults=quiet,
        patches=(replaced(AclIndex, "decide", _first_match),),
    ),
)
