"""Authorizes requests like Kafka's StandardAuthorizer (KIP-801), by the ACLs in this broker's metadata.

A change of ACLs takes effect on this broker as soon as its image has it: every change drops the cached decisions.
Super users may do everything. If no ACL covers a resource, `allow.everyone.if.no.acl.found` decides.

Audit: refusals and allowed administrative operations are logged as lines of JSON at level INFO by the logger
`kafka.authorizer.logger` (`audit`); everything else that is allowed is logged at DEBUG. Names come from clients, so
they are escaped. A request has at most `MOST_LINES` of these lines; the last one of a request that would have more says
so.

Limit: at most `_MOST_KEPT` decisions are cached, in at most some `_MOST_KEPT_BYTES`, and none about names longer than
any topic's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import TYPE_CHECKING, Final, NamedTuple

from kraftpy.broker.request import RequestContext
from kraftpy.broker.rights import ALL_RIGHTS, Rights
from kraftpy.broker.security.audit import NAME
from kraftpy.broker.waiting import Watch, wake_in_slices
from kraftpy.config import BrokerConfig
from kraftpy.metadata.acls import AclChanged, Acls
from kraftpy.metadata.records import Record
from kraftpy.protocol.errors import shortened
from kraftpy.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Allowed,
    Operation,
    ResourceType,
    Verdict,
    address_of,
    operation_bits,
    parse_super_users,
)
from kraftpy.security.principal import Principal

if TYPE_CHECKING:
    from kraftpy.groups.events import TopicRights

audit = logging.getLogger(NAME)

MOST_LINES: Final = 1_000
"""The most lines about one request in the audit log: it may name tens of thousands of resources."""
_MOST_KEPT: Final = 50_000
_MOST_KEPT_BYTES: Final = 32 << 20
_KEPT_BYTES: Final = 250
"""The memory of a decision that is kept, without the names in it."""
_LONGEST_KEPT: Final = 249
_ADMINISTRATIVE: Final = frozenset(
    {
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CREATE_TOKENS,
    }
)

_Question = tuple[Principal, str, Operation, ResourceType, str | None]
"""Principal, address, operation, type of resource, and name; None stands for any resource of the type."""


def authorizer_of(config: BrokerConfig, acls: Callable[[], Acls]) -> Authorizer | None:
    """Return the authorizer that the settings name, or None."""
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        acls,
        super_users=parse_super_users(config.super_users),
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )


class Authorizer:
    """The authorizer of one broker."""

    def __init__(
        self,
        acls: Callable[[], Acls],
        *,
        super_users: frozenset[Principal],
        allow_everyone_if_no_acl_found: bool,
    ) -> None:
        self._acls = acls
        self._super_users = super_users
        self._without_acl = allow_everyone_if_no_acl_found
        self.watches: dict[Watch, None] = {}
        """The waiting requests to wake when ACLs have changed."""
        self._kept: dict[_Question, bool] = {}
        self._kept_bytes = 0
        self._kept_of: tuple[Acls, int] | None = None
        """The ACLs, and their number of changes, that the cached decisions are based on."""

    def follow(self, records: Sequence[Record] | None) -> None:
        """Wake waiting requests if ACLs may have changed; `records` is None if anything may have changed."""
        if records is None or any(type(record) is AclChanged for record in records):
            wake_in_slices(list(self.watches))

    def rights_of(self, context: RequestContext) -> Rights:
        """Return the rights of a request's sender."""
        if context.principal in self._super_users:
            return ALL_RIGHTS if not audit.isEnabledFor(logging.INFO) else _Granted(context)
        return _Limited(self, context)

    def is_allowed(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Decide whether a principal at an address (`address_of`) may perform an operation."""
        question = (principal, host, operation, resource_type, name)
        kept = self._kept_now()
        known = kept.get(question)
        if known is None:
            verdict = self._acls().index.decide(principal, host, operation, resource_type, name)
            known = self._without_acl if verdict is Verdict.NO_BINDING else verdict is Verdict.ALLOWED
            if len(name) <= _LONGEST_KEPT:
                self._keep(question, known)
        return known

    def may_act_for_cluster(self, principal: Principal, host: str) -> bool:
        """Decide whether a principal at an address may be a node of the cluster.

        A controller that has just started knows its super users, but no ACLs before it has found the quorum.
        """
        if principal in self._super_users:
            return True
        return self.is_allowed(
            principal, address_of(host), Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
        )

    def allowed(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> Allowed:
        """Return the resources on which a principal may perform the operation now: quick for many lookups."""
        index = self._acls().index
        return Allowed(index, principal, host, operation, resource_type, without_acl=self._without_acl)

    def is_allowed_on_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Decide whether a principal may perform the operation on some resource of the type."""
        question = (principal, host, operation, resource_type, None)
        kept = self._kept_now()
        known = kept.get(question)
        if known is None:
            verdict = self._acls().index.allows_on_any(principal, host, operation, resource_type)
            known = self._without_acl if verdict is Verdict.NO_BINDING else verdict is Verdict.ALLOWED
            self._keep(question, known)
        return known

    def _keep(self, question: _Question, known: bool) -> None:
        principal, _, _, _, name = question
        self._kept[question] = known
        self._kept_bytes += _KEPT_BYTES + getsizeof(principal.name) + getsizeof(name)

    def _kept_now(self) -> dict[_Question, bool]:
        """Return the cached decisions that are still valid, with room for one more."""
        acls = self._acls()
        if self._kept_of is None or self._kept_of[0] is not acls or self._kept_of[1] != acls.changes:
            self._forget()
            self._kept_of = (acls, acls.changes)
        elif len(self._kept) >= _MOST_KEPT or self._kept_bytes >= _MOST_KEPT_BYTES:
            self._forget()
        return self._kept

    def _forget(self) -> None:
        self._kept = {}
        self._kept_bytes = 0


class _OfTopics(NamedTuple):
    """A principal's rights to topics. Refers to no request or connection, so that groups may keep it."""

    authorizer: Authorizer
    principal: Principal
    host: str

    def visible(self) -> Callable[[str], bool]:
        allowed = self.authorizer.allowed(self.principal, self.host, Operation.DESCRIBE, ResourceType.TOPIC)
        return allowed.__contains__

    def may_create(self, topic: str) -> bool:
        may, asked = self.authorizer.is_allowed, (self.principal, self.host, Operation.CREATE)
        return may(*asked, ResourceType.CLUSTER, CLUSTER_NAME) or may(*asked, ResourceType.TOPIC, topic)


class _Audited:
    """Writes what is decided about one request to the audit log."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._lines = 0

    def _note(self, level: int, verdict: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        if level > logging.DEBUG:
            self._lines += 1
            if self._lines > MOST_LINES:
                return
        context = self._context
        line: dict[str, str | bool | None] = {
            "decision": verdict,
            "principal": shortened(str(context.principal)),
            "host": context.client_host.removeprefix("/"),
            "listener": context.listener,
            "operation": operation.name,
            "resource_type": resource_type.name,
            "resource": shortened(name),
            "request": context.api_key.name,
            "client_id": shortened(context.client_id),
        }
        if self._lines == MOST_LINES:
            line["is_truncated"] = True
        audit.log(level, "%s", json.dumps(line))


class _Granted(_Audited):
    """The rights of a super user, with an audit log of administrative operations."""

    are_unlimited = True
    of_topics = None

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self.watches: dict[Watch, None] = {}

    def allows(
        self, operation: Operation, resource_type: ResourceType, name: str, *, is_asked_for: bool = True
    ) -> bool:
        if is_asked_for and (operation in _ADMINISTRATIVE or audit.isEnabledFor(logging.DEBUG)):
            level = logging.INFO if operation in _ADMINISTRATIVE else logging.DEBUG
            self._note(level, "ALLOWED", operation, resource_type, name)
        return True

    def allows_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        return True

    def operations(self, resource_type: ResourceType, name: str) -> int:
        return ALL_RIGHTS.operations(resource_type, name)


class _Limited(_Audited):
    """The rights of a principal, by the current ACLs."""

    are_unlimited = False

    def __init__(self, authorizer: Authorizer, context: RequestContext) -> None:
        super().__init__(context)
        self._authorizer = authorizer
        self._principal = context.principal
        self._host = address_of(context.client_host.removeprefix("/"))
        self.watches = authorizer.watches

    @property
    def of_topics(self) -> TopicRights:
        return _OfTopics(self._authorizer, self._principal, self._host)

    def allows(
        self, operation: Operation, resource_type: ResourceType, name: str, *, is_asked_for: bool = True
    ) -> bool:
        allowed = self._authorizer.is_allowed(self._principal, self._host, operation, resource_type, name)
        if is_asked_for:
            if not allowed:
                self._note(logging.INFO, "DENIED", operation, resource_type, name)
            elif operation in _ADMINISTRATIVE:
                self._note(logging.INFO, "ALLOWED", operation, resource_type, name)
            elif audit.isEnabledFor(logging.DEBUG):
                self._note(logging.DEBUG, "ALLOWED", operation, resource_type, name)
        return allowed

    def allows_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        allowed = self._authorizer.is_allowed_on_any(self._principal, self._host, operation, resource_type)
        if not allowed:
            self._note(logging.INFO, "DENIED", operation, resource_type, "*")
        return allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        return operation_bits(
            operation
            for operation in OPERATIONS[resource_type]
            if self.allows(operation, resource_type, name, is_asked_for=False)
        )
