"""The `kafka.*` options of `format("kraftpy")`: which are used, which have no effect here, and which are refused.

They go to the client under Kafka's names. Options that Kafka has and this client does not use are accepted with a
warning. Options that would break a query, or promise something this client cannot keep, are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kraftpy.client.options import DEFAULT_RECEIVE_BYTES
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.option_values import SECURITY_PREFIXES, bootstrap_servers, choice, nearest, number, security_options

FORBIDDEN = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the reader commits no offsets",
    "interceptor.classes": "interceptors may break the query",
    "key.deserializer": "keys are always binary; cast them in the query",
    "key.serializer": "keys are always binary",
    "value.deserializer": "values are always binary; cast them in the query",
    "value.serializer": "values are always binary",
}
CLIENT_USED = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "client.rack",
        "default.api.timeout.ms",
        "fetch.max.wait.ms",
        "isolation.level",
        "max.partition.fetch.bytes",
        "receive.message.max.bytes",
        "request.timeout.ms",
    }
)
CLIENT_WITHOUT_EFFECT = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The `kafka.*` options that the client uses."""

    bootstrap_servers: str
    client_id: str
    client_rack: str
    """The rack as it was given; may contain `${env:NAME}`, which each process that reads fills in."""
    isolation_level: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    max_partition_fetch_bytes: int
    fetch_max_wait_ms: int
    receive_message_max_bytes: int
    security: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """The client options that secure connections, as pairs, including secrets."""


def check_client_name(name: str, plain: str) -> list[str]:
    """Return warnings about `kafka.<plain>`. Raises OptionError if it is unknown or refused."""
    if plain in FORBIDDEN:
        raise OptionError(f"option {name!r} is not supported: {FORBIDDEN[plain]}")
    if plain in CLIENT_USED or f"kafka.{plain}".startswith(SECURITY_PREFIXES):  # unknown ones are refused later
        return []
    if plain in CLIENT_WITHOUT_EFFECT:
        return [f"option kafka.{plain} is not used by this reader"]
    known = [f"kafka.{each}" for each in (*CLIENT_USED, *CLIENT_WITHOUT_EFFECT, "security.protocol")]
    raise OptionError(f"unknown option {name!r}{nearest(name, known)}")


def client_options(options: Mapping[str, str]) -> ClientOptions:
    """Parse options with lower-cased names. Raises OptionError."""
    return ClientOptions(
        bootstrap_servers=bootstrap_servers(options),
        client_id=options.get("kafka.client.id", "kraftpy-spark"),
        client_rack=options.get("kafka.client.rack", ""),
        isolation_level=_isolation_level(options),
        request_timeout_ms=number(options, "kafka.request.timeout.ms", 30_000, least=1),
        default_api_timeout_ms=number(options, "kafka.default.api.timeout.ms", 10_000, least=1),
        max_partition_fetch_bytes=number(options, "kafka.max.partition.fetch.bytes", 8 << 20, least=1),
        fetch_max_wait_ms=number(options, "kafka.fetch.max.wait.ms", 500, least=1),
        receive_message_max_bytes=number(
            options, "kafka.receive.message.max.bytes", DEFAULT_RECEIVE_BYTES, least=1_000
        ),
        security=security_options(options),
    )


def _isolation_level(options: Mapping[str, str]) -> str:
    """Read it under Spark's name or Kafka's; both may be given if they agree."""
    levels = ("read_uncommitted", "read_committed")
    given = {
        choice(options, name, levels, "read_uncommitted")
        for name in ("kafka.isolation.level", "isolation.level")
        if name in options
    }
    if len(given) > 1:
        raise OptionError("isolation.level: kafka.isolation.level has another value")
    return given.pop() if given else "read_uncommitted"
