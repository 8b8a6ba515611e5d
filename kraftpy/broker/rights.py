"""The rights of a request's sender, as handlers ask for them.

Without an authorizer, all senders have `ALL_RIGHTS`; with one, only brokers that have proved their identity do, and the
rights of clients are those of a principal at a host (`security.authorizer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kraftpy.security.acls import OPERATIONS, Operation, ResourceType, operation_bits

if TYPE_CHECKING:
    from kraftpy.broker.waiting import Watch
    from kraftpy.groups.events import TopicRights


class Rights(Protocol):
    """The rights of one sender. Ask again after every await: rights may change while a request waits."""

    @property
    def are_unlimited(self) -> bool:
        """True if everything is allowed, now and for the rest of the request."""

    def allows(
        self, operation: Operation, resource_type: ResourceType, name: str, *, is_asked_for: bool = True
    ) -> bool:
        """Return whether an operation on a resource is allowed.

        A refusal is written to the audit log if the client asked for the resource (`is_asked_for`), and not if a list
        merely leaves it out.
        """

    @property
    def watches(self) -> dict[Watch, None]:
        """The waiting requests to wake when rights may have changed."""

    def allows_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the operation is allowed on some resource of the type (KIP-679)."""

    @property
    def of_topics(self) -> TopicRights | None:
        """The sender's rights to topics, for a group that it is a member of; None if they are unlimited."""

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations allowed on a resource, as bits of an `authorized_operations` field (KIP-430)."""


ASK_UNITS: Final = 5
"""The cost of asking for one right, in units of `slicing`: a refusal is a line of the audit log."""
OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The value of an `authorized_operations` field that the client did not ask for."""
_ALL_OPERATIONS: Final = {kind: operation_bits(operations) for kind, operations in OPERATIONS.items()}


class _AllRights:
    """Unlimited rights: those of brokers, and without an authorizer of all clients."""

    are_unlimited = True
    of_topics = None

    def __init__(self) -> None:
        self.watches: dict[Watch, None] = {}

    def allows(
        self, operation: Operation, resource_type: ResourceType, name: str, *, is_asked_for: bool = True
    ) -> bool:
        return True

    def allows_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        return True

    def operations(self, resource_type: ResourceType, name: str) -> int:
        return _ALL_OPERATIONS[resource_type]


ALL_RIGHTS: Final[Rights] = _AllRights()
