"""The admin client's calls about client quotas (KIP-546).

An entity is a mapping of types to names: "user", "client-id", both, or "ip"; a name of None stands for the default.
The keys are Kafka's: `producer_byte_rate` and `consumer_byte_rate` in bytes per second, `request_percentage` in percent
of a thread's time, `controller_mutation_rate` in partitions per second; for IPs, `connection_creation_rate` per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kraftpy.client.admin.base import AdminBase
from kraftpy.client.admin.messages import check
from kraftpy.client.admin.model import ClientQuota
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages import alter_client_quotas as altering
from kraftpy.protocol.messages import describe_client_quotas as describing
from kraftpy.quotas.entities import MatchType


class QuotaAdmin(AdminBase):
    """Admin calls about client quotas."""

    async def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None, *, types: Iterable[str] = (), strict: bool = False
    ) -> list[ClientQuota]:
        """Return the entities with quotas that match: all by default.

        `entity` holds names that an entity must have, and `types` types that it must have with any name; `strict`
        excludes entities that have parts of other types too.
        """
        components = [
            describing.ComponentData(
                entity_type=kind, match_type=MatchType.DEFAULT if name is None else MatchType.EXACT, match=name
            )
            for kind, name in (entity or {}).items()
        ]
        components += [describing.ComponentData(entity_type=kind, match_type=MatchType.SPECIFIED) for kind in types]
        request = describing.DescribeClientQuotasRequest(components=components, strict=strict)
        answer = await self._ask(None, ApiKey.DESCRIBE_CLIENT_QUOTAS, request, _check_description)
        return [
            ClientQuota(
                entity={part.entity_type: part.entity_name for part in entry.entity},
                values={value.key: value.value for value in entry.values},
            )
            for entry in answer.entries or ()
        ]

    async def alter_client_quotas(
        self, entity: Mapping[str, str | None], values: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set an entity's quotas by key; None removes one. Its other quotas stay.

        Raises KafkaError (INVALID_REQUEST) if the entity, a key or a value is not allowed; then nothing changes.
        """
        entry = altering.EntryData(
            entity=[altering.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[
                altering.OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                for key, value in values.items()
            ],
        )
        request = altering.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
        answer = await self._ask_controller(ApiKey.ALTER_CLIENT_QUOTAS, request)
        for result in answer.entries:
            shown = ", ".join(f"{part.entity_type} {part.entity_name or '<default>'}" for part in result.entity)
            check(result.error_code, f"quotas of {shown}", result.error_message)


def _check_description(answer: Any) -> None:
    check(answer.error_code, "quotas", answer.error_message)
