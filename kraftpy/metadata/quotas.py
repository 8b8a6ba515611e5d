"""Client quotas in the metadata (KIP-546): their commands and records, and the quotas of an image.

The broker that submits a command checks it before (`quotas.entities`); the decision only leaves out changes without
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kraftpy.frozen import frozen
from kraftpy.quotas.entities import EntityPart, QuotaEntity
from kraftpy.quotas.limits import Limits, order
from kraftpy.types import Millis

_OVERHEAD_BYTES: Final = 512
"""The memory of an entity with one quota, without names."""
_VALUE_BYTES: Final = 128


@frozen
class QuotaPart:
    """One part of an entity: its type, and a name or None for the default."""

    entity_type: str
    name: str | None = None


@frozen
class QuotaChange:
    """An entity's new quota for a key; None removes it. The parts are sorted by type."""

    parts: tuple[QuotaPart, ...]
    key: str
    value: float | None = None

    @property
    def entity(self) -> QuotaEntity:
        """The entity that the quota is set for."""
        return QuotaEntity(tuple(EntityPart(part.entity_type, part.name) for part in self.parts))


@frozen
class AlterClientQuotas:
    """Change quotas, all or none."""

    changes: tuple[QuotaChange, ...]
    time_ms: Millis


@frozen
class ClientQuotaChanged:
    """An entity has a new quota for a key, or none any more."""

    change: QuotaChange


def quota_change(entity: QuotaEntity, key: str, value: float | None) -> QuotaChange:
    """Return the change that sets an entity's quota, or removes it."""
    parts = tuple(QuotaPart(entity_type=part.entity_type, name=part.name) for part in entity.parts)
    return QuotaChange(parts=parts, key=key, value=value)


class ClientQuotas:
    """The quotas of an image."""

    def __init__(self, changes: tuple[QuotaChange, ...] = ()) -> None:
        self.limits = Limits()
        self.bytes = 0
        """Estimated memory of all quotas."""
        for change in changes:
            self.replay(change)

    def entities(self) -> list[QuotaEntity]:
        """Return every entity that has quotas, in a fixed order."""
        return self.limits.entities()

    def values(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return an entity's quotas by key; empty if it has none."""
        return self.limits.values(entity)

    def replay(self, change: QuotaChange) -> None:
        """Apply a decided change."""
        entity = change.entity
        self.bytes -= quota_bytes(entity, len(self.limits.values(entity)))
        self.limits.set(entity, change.key, change.value)
        self.bytes += quota_bytes(entity, len(self.limits.values(entity)))

    def saved(self) -> tuple[QuotaChange, ...]:
        """Return the changes that lead to these quotas, in a fixed order."""
        return self.capture()()

    def capture(self) -> Callable[[], tuple[QuotaChange, ...]]:
        """Capture the quotas; the returned function does what `saved` does, in any thread and at any time."""
        copied = self.limits.copied()

        def saved() -> tuple[QuotaChange, ...]:
            return tuple(
                quota_change(entity, key, value)
                for entity in sorted(copied, key=order)
                for key, value in sorted(copied[entity].items())
            )

        return saved


def quota_bytes(entity: QuotaEntity, keys: int) -> int:
    """Estimate the memory of an entity with this many quotas."""
    if not keys:
        return 0
    return _OVERHEAD_BYTES + keys * _VALUE_BYTES + sum(len(part.name or "") for part in entity.parts)
