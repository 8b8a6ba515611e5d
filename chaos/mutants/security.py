"""Mutants of authorization."""

from __future__ import annotations

from itertools import product
from typing import Any

from chaos.mutants.mutant import Mutant, quiet, replaced, rounds, set_to, three, wrapped
from chaos.nemesis import Kind
from chaos.workloads import security
from chaos.workloads.intrusions import PROBES
from kraftpy.broker.authorization import guards
from kraftpy.broker.security import authorizer, token_logins
from kraftpy.broker.security.authorizer import Authorizer
from kraftpy.protocol.apis import ApiKey
from kraftpy.quotas.limits import Limits
from kraftpy.security import acls
from kraftpy.security.acls import AclIndex, Operation, Permission, ResourceType, Verdict
from kraftpy.security.principal import Principal

_secured = three(workload="log", load=0.5, with_security=True)
_always_the_same_questions = (
    set_to(security, "INTRUSIONS", PROBES),
    set_to(security, "INTRUDER_PAUSE_SECONDS", 0.05),
)
"""The intruders repeat the same few requests: a broker can only have kept decisions that it has made before."""
_many_changes = set_to(security, "ADMINISTRATOR_PAUSE_SECONDS", 0.25)


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
        for who, at in product((str(principal), acls.ANYONE), (host, acls.WILDCARD)):
            for binding in of_pattern.get(who, {}).get(at, ()):
                if binding.permission == Permission.DENY:
                    if binding.operation in (operation, Operation.ALL):
                        return Verdict.DENIED
                elif binding.operation in (acls._ALLOWED_BY.get(operation) or (operation, Operation.ALL)):
                    return Verdict.ALLOWED
    return verdict


def _any_host(
    self: AclIndex, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
) -> Verdict:
    """Decide by the bindings of all hosts."""
    verdict = Verdict.NO_BINDING
    for of_pattern in self._covering(resource_type, name):
        verdict = Verdict.DENIED if verdict is Verdict.NO_BINDING else verdict
        for who in (str(principal), acls.ANYONE):
            for at in of_pattern.get(who, {}).values():
                for binding in at:
                    if binding.permission == Permission.DENY:
                        if binding.operation in (operation, Operation.ALL):
                            return Verdict.DENIED
                    elif binding.operation in (acls._ALLOWED_BY.get(operation) or (operation, Operation.ALL)):
                        verdict = Verdict.ALLOWED
    return verdict


def _never(token: Any, now_ms: int) -> bool:
    """Take no token for expired."""
    return False


def _no_limit_of_address(self: Limits, address: str, key: str) -> None:
    """Find no limit for any address."""


def _by_user(of_client: Any) -> Any:
    """Count the usage of a client id's quota for each user apart."""

    def found(self: Limits, user: str, client_id: str, key: str) -> Any:
        limit = of_client(self, user, client_id, key)
        return limit if limit is None else limit._replace(user=user)

    return found


def _no_limit(self: Limits, user: str, client_id: str, key: str) -> None:
    """Find no limit for any client."""


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
        patches=(replaced(AclIndex, "decide", _first_match), _many_changes),
    ),
    Mutant(
        name="quota-of-a-user-not-applied",
        breaks="quotas of users are stored and told, but no client is held to them",
        rule="KIP-13",
        shows=frozenset({"over-quota"}),
        directed=_secured,
        faults=quiet,
        patches=(replaced(Limits, "of_client", _no_limit),),
    ),
    Mutant(
        name="quota-of-a-client-id-not-shared",
        breaks="users with the same client id have its quota each, and not together",
        rule="KIP-55",
        shows=frozenset({"over-shared-quota"}),
        directed=_secured,
        faults=quiet,
        patches=(wrapped(Limits, "of_client", _by_user),),
    ),
    Mutant(
        name="quota-of-an-address-not-applied",
        breaks="quotas of addresses are stored and told, but connections are admitted at any rate",
        rule="KIP-612",
        shows=frozenset({"too-many-connections"}),
        directed=_secured,
        faults=quiet,
        patches=(replaced(Limits, "of_ip", _no_limit_of_address),),
    ),
    Mutant(
        name="expired-token-accepted",
        breaks="a delegation token lets its holder in for as long as it is stored, also after it has expired",
        rule="KIP-48",
        shows=frozenset({"ended-token", "ended-session"}),
        directed=_secured,
        faults=quiet,
        patches=(replaced(token_logins, "has_expired", _never),),
    ),
    Mutant(
        name="host-overlooked",
        breaks="a binding of one host counts for all hosts: what is allowed or denied elsewhere holds here as well",
        rule="KIP-11",
        shows=frozenset({"leaked", "unrefused", "still-in-force", "not-in-force"}),
        directed=_secured,
        faults=quiet,
        patches=(
            replaced(AclIndex, "decide", _any_host),
            _many_changes,
            set_to(security, "HOST_WEIGHTS", (1, 1, 4)),
        ),
    ),
)
