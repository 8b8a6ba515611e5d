"""Access control lists: which principals may perform which operations on which resources (KIP-11, KIP-290).

`AclIndex` holds bindings and decides as Kafka's StandardAuthorizer does: among the bindings whose pattern covers a
resource, one that denies wins over any that allow. ALLOW of READ, WRITE, DELETE or ALTER also allows DESCRIBE, and
ALLOW of ALTER_CONFIGS also allows DESCRIBE_CONFIGS; DENY implies nothing. If no binding covers the resource, the
verdict is NO_BINDING, and the caller decides (`allow.everyone.if.no.acl.found`).

Hosts are compared as addresses, not as text: "::ffff:10.0.0.1" is 10.0.0.1, and "::1" is "0:0:0:0:0:0:0:1".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.security.principal import USER, Principal, parse_principal

WILDCARD: Final = "*"
"""As the name of a literal pattern: all resources of the type. As a host: every host."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
ANYONE: Final = f"{USER}:{WILDCARD}"
"""The principal of bindings that apply to every principal, authenticated or not."""


class ResourceType(IntEnum):
    """Types of resources, by their codes in requests."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a pattern's name is compared with a resource's. MATCH is for filters: every pattern that covers the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations on resources, by their codes in requests."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether a binding allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation
OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
"""The operations that exist on each type of resource (KIP-430)."""

_ALLOWED_BY: Final[dict[int, frozenset[int]]] = {
    _O.DESCRIBE: frozenset({_O.ALL, _O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALL, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}


def operation_bits(operations: Iterable[Operation]) -> int:
    """Return operations as the bits of an `authorized_operations` field (KIP-430)."""
    return sum(1 << operation for operation in operations)


@frozen
class AclBinding:
    """One rule: a principal may, or may not, perform an operation on the resources that a pattern covers.

    Names and hosts are kept as its creator wrote them.
    """

    resource_type: int
    name: str
    pattern_type: int = PatternType.LITERAL
    principal: str
    host: str = WILDCARD
    operation: int
    permission: int = Permission.ALLOW

    def covers(self, name: str) -> bool:
        """Return whether the pattern covers a resource of this type with this name."""
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


@frozen
class AclFilter:
    """Selects bindings. None and ANY select all; MATCH selects the patterns that cover the name."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def selects(self, binding: AclBinding) -> bool:
        """Return whether a binding passes the filter."""
        if self.resource_type not in (ResourceType.ANY, binding.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if self.name is not None:
            is_match = self.pattern_type == PatternType.MATCH
            if not (binding.covers(self.name) if is_match else binding.name == self.name):
                return False
        return (
            self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )


class Verdict(Enum):
    """The answer of the bindings about one operation."""

    ALLOWED = "allowed"
    DENIED = "denied"
    """A binding denies the operation, or bindings cover the resource but none of them allows it."""
    NO_BINDING = "no binding"
    """No binding covers the resource, for any principal."""


_OfPattern = dict[str, dict[str, dict[AclBinding, None]]]
"""The bindings of one pattern, by their principals and the addresses of their hosts: few each, as operations are."""


class AclIndex:
    """The bindings of a cluster, indexed by resource, principal and host.

    A lookup takes one access for the name, one for the wildcard, and one for each distinct length of the prefixes of
    that resource type, no matter how many other principals and hosts have bindings there.
    """

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._bindings: dict[AclBinding, str] = {}
        """Every binding, with the address of its host."""
        self._literal: dict[tuple[int, str], _OfPattern] = {}
        self._prefixed: dict[tuple[int, str], _OfPattern] = {}
        self._lengths: dict[int, dict[int, int]] = {}
        """The number of prefixes of each length, by resource type."""
        for binding in bindings:
            self.add(binding)

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self._bindings)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._bindings

    def addressed(self) -> Iterable[tuple[AclBinding, str]]:
        """Return every binding with the address of its host, or the wildcard."""
        return self._bindings.items()

    def add(self, binding: AclBinding) -> bool:
        """Add a binding; return False if it exists already."""
        if binding in self._bindings:
            return False
        address = self._bindings[binding] = address_of(binding.host)
        key = (binding.resource_type, binding.name)
        is_prefixed = binding.pattern_type == PatternType.PREFIXED
        if is_prefixed and key not in self._prefixed:
            lengths = self._lengths.setdefault(binding.resource_type, {})
            lengths[len(binding.name)] = lengths.get(len(binding.name), 0) + 1
        of_pattern = (self._prefixed if is_prefixed else self._literal).setdefault(key, {})
        of_pattern.setdefault(binding.principal, {}).setdefault(address, {})[binding] = None
        return True

    def remove(self, binding: AclBinding) -> bool:
        """Remove a binding; return False if it does not exist."""
        if binding not in self._bindings:
            return False
        address = self._bindings.pop(binding)
        key = (binding.resource_type, binding.name)
        is_prefixed = binding.pattern_type == PatternType.PREFIXED
        patterns = self._prefixed if is_prefixed else self._literal
        of_principal = patterns[key][binding.principal]
        del of_principal[address][binding]
        if not of_principal[address]:
            del of_principal[address]
        if not of_principal:
            del patterns[key][binding.principal]
        if not patterns[key]:
            del patterns[key]
            if is_prefixed:
                lengths = self._lengths[binding.resource_type]
                lengths[len(binding.name)] -= 1
                if not lengths[len(binding.name)]:
                    del lengths[len(binding.name)]
        return True

    def _covering(self, resource_type: int, name: str) -> Iterator[_OfPattern]:
        """Yield the bindings of each pattern that covers a resource."""
        literal, prefixed = self._literal, self._prefixed
        if (found := literal.get((resource_type, name))) is not None:
            yield found
        if name != WILDCARD and (found := literal.get((resource_type, WILDCARD))) is not None:
            yield found
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name) and (found := prefixed.get((resource_type, name[:length]))) is not None:
                yield found

    def decide(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Verdict:
        """Decide whether a principal at a host (an address, as `address_of` returns it) may perform an operation."""
        who, hosts = (str(principal), ANYONE), (host, WILDCARD)
        allowing = _ALLOWED_BY.get(operation) or (operation, Operation.ALL)
        denying = (operation, Operation.ALL)
        verdict = Verdict.NO_BINDING
        for of_pattern in self._covering(resource_type, name):
            if verdict is Verdict.NO_BINDING:
                verdict = Verdict.DENIED
            for each in who:
                of_principal = of_pattern.get(each)
                if of_principal is None:
                    continue
                for at in hosts:
                    for binding in of_principal.get(at, ()):
                        if binding.permission == Permission.DENY:
                            if binding.operation in denying:
                                return Verdict.DENIED
                        elif binding.operation in allowing:
                            verdict = Verdict.ALLOWED
        return verdict

    def allows_on_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> Verdict:
        """Decide whether the principal may perform the operation on some possible resource of the type (KIP-679).

        An allowed pattern counts unless the same literal, or a prefix of its name, is denied. As in Kafka, no other
        operation implies this one here. NO_BINDING means that no binding covers all resources of the type.
        """
        who = (str(principal), ANYONE)
        allowed: list[AclBinding] = []
        denied_names: set[str] = set()
        denied_prefixes = _Patterns()
        is_all_allowed = False
        for binding, address in self._bindings.items():
            if binding.resource_type != resource_type or binding.operation not in (operation, Operation.ALL):
                continue
            if binding.principal not in who or address not in (host, WILDCARD):
                continue
            is_literal = binding.pattern_type == PatternType.LITERAL
            if binding.permission == Permission.DENY:
                if is_literal and binding.name == WILDCARD:
                    return Verdict.DENIED
                if is_literal:
                    denied_names.add(binding.name)
                else:
                    denied_prefixes.add(binding)
            elif is_literal and binding.name == WILDCARD:
                is_all_allowed = True
            else:
                allowed.append(binding)
        if is_all_allowed:
            return Verdict.ALLOWED
        for binding in allowed:
            if binding.pattern_type == PatternType.LITERAL and binding.name in denied_names:
                continue
            if not denied_prefixes.cover(binding.name):
                return Verdict.ALLOWED
        return Verdict.DENIED if (resource_type, WILDCARD) in self._literal else Verdict.NO_BINDING


class Allowed:
    """The resources of one type on which a principal at a host may perform an operation: quick for many lookups."""

    def __init__(
        self,
        index: AclIndex,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        *,
        without_acl: bool,
    ) -> None:
        """`without_acl` says whether the operation is allowed on resources that no binding covers."""
        who = (str(principal), ANYONE)
        allowing = _ALLOWED_BY.get(operation) or (operation, Operation.ALL)
        self._allowing, self._denying, self._covering = _Patterns(), _Patterns(), _Patterns()
        self._without_acl = without_acl
        for binding, address in index.addressed():
            if binding.resource_type != resource_type:
                continue
            self._covering.add(binding)
            if binding.principal not in who or address not in (host, WILDCARD):
                continue
            if binding.permission == Permission.DENY:
                if binding.operation in (operation, Operation.ALL):
                    self._denying.add(binding)
            elif binding.operation in allowing:
                self._allowing.add(binding)

    def __contains__(self, name: str) -> bool:
        if self._denying.cover(name):
            return False
        return self._allowing.cover(name) or (self._without_acl and not self._covering.cover(name))


class _Patterns:
    """A set of patterns; `cover` tells whether one of them covers a name."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._prefixes: set[str] = set()
        self._lengths: set[int] = set()

    def add(self, binding: AclBinding) -> None:
        if binding.pattern_type == PatternType.PREFIXED:
            self._prefixes.add(binding.name)
            self._lengths.add(len(binding.name))
        else:
            self._names.add(binding.name)

    def cover(self, name: str) -> bool:
        if WILDCARD in self._names or name in self._names:
            return True
        return any(name[:length] in self._prefixes for length in self._lengths if length <= len(name))


@lru_cache(maxsize=1024)
def address_of(host: str) -> str:
    """Return an address in the form in which addresses are compared; any other text is returned unchanged."""
    import ipaddress  # here: a node without an authorizer does not need it

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def is_address(host: str) -> bool:
    """Return whether a text is an IP address."""
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_super_users(text: str) -> frozenset[Principal]:
    """Parse `super.users`: principals separated by semicolons, since names may contain commas. Raises ValueError."""
    return frozenset(parse_principal(each.strip()) for each in text.split(";") if each.strip())
