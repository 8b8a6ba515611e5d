"""ACL bindings in the metadata (KIP-140, KIP-801): their commands and records, and the bindings of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.security.acls import AclBinding, AclFilter, AclIndex
from kraftpy.types import Millis

_OVERHEAD_BYTES: Final = 1_000
"""The memory of a binding without its texts: the object, and its entries in three dictionaries."""


@frozen
class CreateAcls:
    """Add bindings; those that exist already are left as they are."""

    bindings: tuple[AclBinding, ...]
    time_ms: Millis


@frozen
class DeleteAcls:
    """Remove every binding that one of the filters selects."""

    filters: tuple[AclFilter, ...]
    time_ms: Millis


@frozen
class AclChanged:
    """A binding was added or removed."""

    binding: AclBinding
    is_removed: bool = False


@frozen
class DeletedAcls:
    """The bindings that one filter of a `DeleteAcls` selected; a binding may appear for several filters."""

    bindings: tuple[AclBinding, ...] = ()


class Acls:
    """The bindings of an image."""

    def __init__(self, bindings: tuple[AclBinding, ...] = ()) -> None:
        self.index = AclIndex()
        self.bytes = 0
        """Estimated memory of all bindings."""
        self.changes = 0
        """The number of changes so far: decisions from before the last one may be outdated."""
        for binding in bindings:
            self.replay(AclChanged(binding=binding))

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self.index)

    def replay(self, record: AclChanged) -> None:
        """Apply a decided change."""
        change = self.index.remove if record.is_removed else self.index.add
        if change(record.binding):
            self.bytes += acl_bytes(record.binding) * (-1 if record.is_removed else 1)
        self.changes += 1

    def saved(self) -> tuple[AclBinding, ...]:
        """Return the bindings, in the order of their creation."""
        return tuple(self.index)


def acl_bytes(binding: AclBinding) -> int:
    """Estimate the memory of a binding."""
    return _OVERHEAD_BYTES + len(binding.name) + len(binding.principal) + len(binding.host)
