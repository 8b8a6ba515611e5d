"""Decisions about client quotas (KIP-546)."""

from __future__ import annotations

from kraftpy.metadata.decision import Decision
from kraftpy.metadata.image import Image
from kraftpy.metadata.quotas import AlterClientQuotas, ClientQuotaChanged
from kraftpy.quotas.entities import QuotaEntity


def alter_client_quotas(command: AlterClientQuotas, image: Image) -> Decision[None]:
    """Change quotas. Removing a quota that does not exist, or setting the value it has, changes nothing."""
    values: dict[tuple[QuotaEntity, str], float | None] = {}
    records = []
    for change in command.changes:
        place = change.entity, change.key
        before = values.get(place, image.quotas.values(change.entity).get(change.key))
        if change.value != before:
            records.append(ClientQuotaChanged(change=change))
        values[place] = change.value
    return Decision(records=tuple(records))
