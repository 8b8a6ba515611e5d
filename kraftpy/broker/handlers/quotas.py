"""Describe- and AlterClientQuotas (48, 49), KIP-546.

Quotas are in the metadata. Entities that a request names twice, or with an invalid change, are refused; the others are
changed all the same. Many are changed in parts of `AT_ONCE`, so that no node is busy with them for long. Quotas share
the limit of all settings (`config_room`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from kraftpy.broker.quotas.hosts import resolves
from kraftpy.metadata.quotas import AlterClientQuotas, QuotaChange, quota_bytes, quota_change
from kraftpy.protocol.errors import ErrorCode, KafkaError, shortened
from kraftpy.protocol.messages import describe_client_quotas as describing
from kraftpy.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    EntryResult,
)
from kraftpy.quotas.entities import (
    IP,
    InvalidQuota,
    QuotaEntity,
    QuotaFilter,
    UnsupportedType,
    check_ops,
    check_value,
    entity_of,
)

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasConfigRoom, HasMetadata
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasClock, HasImage, HasSlices

    class Broker(HasClock, HasConfigRoom, HasImage, HasMetadata, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


AT_ONCE = 500
"""The most entities in one command: some 10 ms on every node."""


async def describe_client_quotas(
    broker: Broker, request: describing.DescribeClientQuotasRequest, context: RequestContext
) -> describing.DescribeClientQuotasResponse:
    """Return the entities that match the filter, with their quotas."""
    try:
        components = ((each.entity_type, each.match_type, each.match) for each in request.components)
        wanted = QuotaFilter(components, strict=request.strict)
    except UnsupportedType as error:
        return _not_described(ErrorCode.UNSUPPORTED_VERSION, error)
    except InvalidQuota as error:
        return _not_described(ErrorCode.INVALID_REQUEST, error)
    response = describing.DescribeClientQuotasResponse(error_message="", entries=[])  # as in Kafka
    quotas = broker.image.quotas
    assert response.entries is not None
    async for entities in broker.slices.pieces(quotas.entities()):
        for entity in entities:
            values = quotas.values(entity)  # empty if they were removed meanwhile
            if values and wanted.matches(entity):
                response.entries.append(
                    describing.EntryData(
                        entity=[
                            describing.EntityData(entity_type=part.entity_type, entity_name=part.name)
                            for part in entity.parts
                        ],
                        values=[describing.ValueData(key=key, value=value) for key, value in sorted(values.items())],
                    )
                )
    return response


def _not_described(code: ErrorCode, error: ValueError) -> describing.DescribeClientQuotasResponse:
    return describing.DescribeClientQuotasResponse(error_code=code, error_message=shortened(str(error)))


async def alter_client_quotas(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Set and remove quotas, or only check that they may be changed (`validate_only`)."""
    times_named = Counter(_place(entry) for entry in request.entries)
    results: dict[object, EntryResult] = {}
    sound: list[tuple[EntryResult, QuotaEntity, list[QuotaChange]]] = []
    async for entries in broker.slices.pieces(request.entries):
        for entry in entries:
            place = _place(entry)
            result = results[place] = EntryResult(entity=entry.entity)
            try:
                if times_named[place] > 1:
                    raise InvalidQuota(f"Ignoring duplicate entity {_shown(entry)}")
                sound.append((result, *await _checked(entry)))
            except InvalidQuota as error:
                result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, shortened(str(error))
    if not request.validate_only:
        for start in range(0, len(sound), AT_ONCE):
            await _alter(broker, sound[start : start + AT_ONCE])
    return AlterClientQuotasResponse(entries=list(results.values()))


async def _alter(broker: Broker, sound: list[tuple[EntryResult, QuotaEntity, list[QuotaChange]]]) -> None:
    """Change quotas that were checked before; put an error into their results if that fails."""
    changes = tuple(change for _, _, of_entity in sound for change in of_entity)
    if not changes:
        return
    added = sum(
        quota_bytes(entity, sum(change.value is not None for change in of_entity)) for _, entity, of_entity in sound
    )
    try:
        with broker.config_room.held(added):
            decision = await broker.metadata.submit(AlterClientQuotas(changes=changes, time_ms=broker.clock.now()))
        if decision.error:
            raise KafkaError(decision.error, decision.message or "the quotas were not changed")
    except KafkaError as error:
        for result, _, _ in sound:
            result.error_code, result.error_message = error.code, shortened(error.message)


async def _checked(entry: EntryData) -> tuple[QuotaEntity, list[QuotaChange]]:
    """Return an entity and the changes of its quotas. Raises InvalidQuota."""
    try:
        ops = check_ops((op.key, None if op.remove else op.value) for op in entry.ops)
    except InvalidQuota:  # as in Kafka, the message is that of an entity named twice
        raise InvalidQuota(f"Ignoring duplicate entity {_shown(entry)}") from None
    entity = entity_of([(part.entity_type, part.entity_name) for part in entry.entity])
    host = entity.name(IP)
    if host is not None and not await resolves(host):
        raise InvalidQuota(f"{host} is not a valid IP or resolvable host.")
    for key, value in ops.items():
        if value is not None:
            check_value(entity, key, value)
    return entity, [quota_change(entity, key, value) for key, value in ops.items()]


def _place(entry: EntryData) -> object:
    """Return a key that identifies an entity within a request, valid or not."""
    return tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=str))


def _shown(entry: EntryData) -> str:
    """Return an entity in the form of Kafka's messages."""
    names = {part.entity_type: part.entity_name for part in entry.entity}
    shown = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in names.items())
    return f"ClientQuotaEntity(entries={{{shown}}})"
