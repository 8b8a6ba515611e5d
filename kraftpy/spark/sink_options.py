"""The options of writes to `format("kraftpy")`: the names and defaults of Spark's own Kafka sink, checked before use.

Names are case-insensitive; an unknown name is an error that suggests the nearest known one. `kafka.*` options go to the
producer under Kafka's names; options that Kafka has and this producer does not use are accepted with a warning.

Differences from Kafka's producer: `kafka.batch.size` is 512 KiB and `kafka.linger.ms` one second (a task has many
records at once; only slow rows wait that long), `kafka.transaction.timeout.ms` is 15 minutes (a batch is computed while
its transactions are open). The producer has one batch per partition in flight, so
`kafka.max.in.flight.requests.per.connection` has no effect, and records stay in order through retries. `delivery` is
our own: see `kraftpy.spark.sink_transactions` for `exactly_once`.

Left out: acks=0 (a sink that does not know what was written cannot confirm a batch).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kraftpy.audit.counts import DEFAULT_WINDOW_MS
from kraftpy.protocol.compression import Compression
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.option_values import (
    SECURITY_PREFIXES,
    bootstrap_servers,
    flag,
    nearest,
    number,
    optional_number,
    security_options,
)

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""A function from topic, key, value and the number of partitions to a partition."""

WRITE = frozenset(
    {"auditTier", "auditTopic", "auditWindowMs", "delivery", "includeHeaders", "topic", "transactionalIdPrefix"}
)
OF_SPARK = frozenset({"checkpointLocation", "queryName"})
"""Options that Spark itself passes to a sink besides the user's."""
FORBIDDEN = {
    "interceptor.classes": "interceptors may break the query",
    "key.serializer": "keys are strings or binary; cast them in the query",
    "transactional.id": "the sink makes one for each task; see transactionalIdPrefix",
    "value.serializer": "values are strings or binary; cast them in the query",
}
CLIENT_USED = frozenset(
    {
        "acks",
        "batch.size",
        "bootstrap.servers",
        "client.id",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.block.ms",
        "max.request.size",
        "partitioner.class",
        "partitioner.ignore.keys",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "transaction.timeout.ms",
    }
)
CLIENT_WITHOUT_EFFECT = frozenset(
    {
        "buffer.memory",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "max.in.flight.requests.per.connection",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
_ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"


class Delivery(Enum):
    """The guarantee for each row."""

    AT_LEAST_ONCE = "at_least_once"  # a task or batch that is run again writes its rows again
    EXACTLY_ONCE = "exactly_once"  # once for readers under read_committed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The `kafka.*` options that the producer uses. Times are in ms."""

    bootstrap_servers: str
    client_id: str
    acks: int
    idempotent: bool
    compression: Compression
    compression_level: int | None
    batch_size: int
    max_request_size: int
    linger_ms: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    transaction_timeout_ms: int
    security: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """The client options that secure connections, as pairs, including secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The audit's topic and tier, under which the number of written rows is reported."""

    topic: str
    tier: str
    window_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The checked options of one write. `partitioner` is a dotted name, or None for Kafka's default partitioner."""

    topic: str | None
    include_headers: bool | None
    delivery: Delivery
    transactional_id_prefix: str
    partitioner: str | None
    round_robin: bool
    ignore_keys: bool
    producer: ProducerSettings
    audit: AuditSettings | None
    warnings: tuple[str, ...]


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of `df.write.format("kraftpy")` and `writeStream`. Raises OptionError."""
    options = {name.lower(): value for name, value in given.items()}
    warnings = _check_names(given)
    delivery = _delivery(options)
    partitioner = options.get("kafka.partitioner.class")
    round_robin = partitioner == _ROUND_ROBIN
    if partitioner is not None and not round_robin:
        find_partitioner(partitioner)
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic: the name cannot be empty")
    prefix = options.get("transactionalidprefix", "kraftpy-spark").strip()
    if not prefix:
        raise OptionError("transactionalIdPrefix: an empty prefix would share transactional ids with anything")
    return WriteOptions(
        topic=topic.strip() if topic is not None else None,
        include_headers=flag(options, "includeHeaders", default=True) if "includeheaders" in options else None,
        delivery=delivery,
        transactional_id_prefix=prefix,
        partitioner=None if round_robin else partitioner,
        round_robin=round_robin,
        ignore_keys=flag(options, "kafka.partitioner.ignore.keys", default=False),
        producer=_producer_settings(options, delivery),
        audit=_audit_settings(options),
        warnings=tuple(warnings),
    )


def find_partitioner(dotted: str) -> Partitioner:
    """Return the Python function of that dotted name. Raises OptionError."""
    module, _, name = dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name) if module else None
    except (ImportError, AttributeError):
        found = None
    if not callable(found):
        raise OptionError(
            f"kafka.partitioner.class: {dotted!r} is neither {_ROUND_ROBIN} nor the dotted name of a Python function "
            "(topic, key, value, partitions) -> partition"
        )
    return found  # type: ignore[no-any-return]


def _check_names(given: Iterable[str]) -> list[str]:
    """Return warnings about names. Raises OptionError for an unknown or forbidden one."""
    known = {name.lower() for name in (*WRITE, *OF_SPARK)}
    warnings = []
    for name in sorted(given):
        lowered = name.lower()
        if lowered.startswith("kafka."):
            warnings += _check_client_name(name, lowered.removeprefix("kafka."))
        elif lowered == "path":
            raise OptionError("save() and start() take no path; name the topic with option topic")
        elif lowered not in known:
            all_names = [*WRITE, *(f"kafka.{each}" for each in CLIENT_USED)]
            raise OptionError(f"unknown option {name!r}{nearest(name, all_names)}")
    return warnings


def _check_client_name(name: str, plain: str) -> list[str]:
    if plain in FORBIDDEN:
        raise OptionError(f"option {name!r} is not supported: {FORBIDDEN[plain]}")
    if plain in CLIENT_USED or f"kafka.{plain}".startswith(SECURITY_PREFIXES):  # unknown ones are refused later
        return []
    if plain in CLIENT_WITHOUT_EFFECT:
        return [f"option kafka.{plain} is not used by this sink"]
    known = [f"kafka.{each}" for each in (*CLIENT_USED, *CLIENT_WITHOUT_EFFECT, "security.protocol")]
    raise OptionError(f"unknown option {name!r}{nearest(name, known)}")


def _delivery(options: Mapping[str, str]) -> Delivery:
    text = options.get("delivery", Delivery.AT_LEAST_ONCE.value).strip().lower()
    try:
        return Delivery(text)
    except ValueError:
        raise OptionError(f"delivery: {text!r} is neither at_least_once nor exactly_once") from None


def _audit_settings(options: Mapping[str, str]) -> AuditSettings | None:
    topic = options.get("audittopic", "").strip()
    if not topic:
        alone = next((name for name in ("auditTier", "auditWindowMs", "auditTopic") if name.lower() in options), None)
        if alone is not None:
            raise OptionError(f"{alone} needs auditTopic, the topic for the audit's counts")
        return None
    window_ms = number(options, "auditWindowMs", DEFAULT_WINDOW_MS, least=1)
    return AuditSettings(topic=topic, tier=options.get("audittier", "sink").strip(), window_ms=window_ms)


def _producer_settings(options: Mapping[str, str], delivery: Delivery) -> ProducerSettings:
    acks = options.get("kafka.acks", "all").strip().lower()
    if acks not in ("all", "-1", "1"):
        raise OptionError(f"kafka.acks: {acks!r} is neither all nor 1; without acknowledgements no batch could be done")
    acks_number = 1 if acks == "1" else -1
    idempotent = flag(options, "kafka.enable.idempotence", default=acks_number == -1)
    if idempotent and acks_number != -1:
        raise OptionError("kafka.enable.idempotence needs kafka.acks=all")
    if delivery is Delivery.EXACTLY_ONCE and not idempotent:
        raise OptionError("delivery=exactly_once needs kafka.acks=all and kafka.enable.idempotence=true")
    compression, level = _compression(options)
    settings = ProducerSettings(
        bootstrap_servers=bootstrap_servers(options),
        client_id=options.get("kafka.client.id", "kraftpy-spark"),
        acks=acks_number,
        idempotent=idempotent,
        compression=compression,
        compression_level=level,
        batch_size=number(options, "kafka.batch.size", 524_288, least=1),
        max_request_size=number(options, "kafka.max.request.size", 1_048_576, least=1),
        linger_ms=number(options, "kafka.linger.ms", 1_000, least=0),
        delivery_timeout_ms=number(options, "kafka.delivery.timeout.ms", 120_000, least=1),
        request_timeout_ms=number(options, "kafka.request.timeout.ms", 30_000, least=1),
        max_block_ms=number(options, "kafka.max.block.ms", 60_000, least=1),
        retry_backoff_ms=number(options, "kafka.retry.backoff.ms", 100, least=1),
        retry_backoff_max_ms=number(options, "kafka.retry.backoff.max.ms", 1_000, least=1),
        transaction_timeout_ms=number(options, "kafka.transaction.timeout.ms", 900_000, least=1),
        security=security_options(options),
    )
    if settings.delivery_timeout_ms < settings.request_timeout_ms:
        raise OptionError(
            f"kafka.delivery.timeout.ms ({settings.delivery_timeout_ms}) must be at least kafka.request.timeout.ms "
            f"({settings.request_timeout_ms})"
        )
    return settings


def _compression(options: Mapping[str, str]) -> tuple[Compression, int | None]:
    name = options.get("kafka.compression.type", "none").strip().lower()
    if name not in (each.name.lower() for each in Compression):
        raise OptionError(
            f"kafka.compression.type: {name!r} is not one of {', '.join(c.name.lower() for c in Compression)}"
        )
    level = None
    if name in ("gzip", "lz4", "zstd"):  # KIP-390
        level = optional_number(options, f"kafka.compression.{name}.level", least=-131_072)
    return Compression[name.upper()], level
