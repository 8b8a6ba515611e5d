"""Options of a write: all are checked, and an unknown one is reported with the one it may have meant."""

from __future__ import annotations

import pytest

from kraftpy.protocol.compression import Compression
from kraftpy.spark.offsets import OptionError
from kraftpy.spark.sink_options import AuditSettings, Delivery, find_partitioner, parse_write_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def one_for_all(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
    return partitions - 1


def test_defaults() -> None:
    options = parse_write_options(SERVERS)
    assert (options.topic, options.include_headers, options.delivery) == (None, None, Delivery.AT_LEAST_ONCE)
    assert (options.producer.acks, options.producer.idempotent) == (-1, True)
    assert options.producer.compression is Compression.NONE
    assert not options.warnings


def test_names_without_regard_to_case() -> None:
    options = parse_write_options({"KAFKA.Bootstrap.Servers": "h:1", "TOPIC": " t ", "DELIVERY": "Exactly_Once"})
    assert (options.topic, options.delivery, options.producer.bootstrap_servers) == ("t", Delivery.EXACTLY_ONCE, "h:1")


def test_values_reach_the_producer() -> None:
    options = parse_write_options(
        {
            **SERVERS,
            "includeHeaders": "false",
            "kafka.acks": "1",
            "kafka.batch.size": "1000",
            "kafka.client.id": "me",
            "kafka.compression.type": "zstd",
            "kafka.compression.zstd.level": "9",
            "kafka.compression.gzip.level": "1",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.request.timeout.ms": "4000",
            "kafka.linger.ms": "12",
            "kafka.max.block.ms": "3000",
            "kafka.max.request.size": "2000",
            "kafka.retry.backoff.ms": "7",
            "kafka.retry.backoff.max.ms": "70",
            "kafka.transaction.timeout.ms": "60000",
            "kafka.partitioner.ignore.keys": "true",
        }
    )
    producer = options.producer
    assert (options.include_headers, options.ignore_keys) == (False, True)
    assert (producer.acks, producer.idempotent, producer.batch_size, producer.client_id) == (1, False, 1000, "me")
    assert (producer.compression, producer.compression_level) == (Compression.ZSTD, 9)
    assert (producer.delivery_timeout_ms, producer.request_timeout_ms, producer.max_block_ms) == (5000, 4000, 3000)
    assert producer.linger_ms == 12
    assert (producer.max_request_size, producer.transaction_timeout_ms) == (2000, 60_000)
    assert (producer.retry_backoff_ms, producer.retry_backoff_max_ms) == (7, 70)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "t"}, r"unknown option 'topik'; did you mean 'topic'\?"),
        ({"includeHeader": "true"}, r"did you mean 'includeHeaders'\?"),
        ({"kafka.batchsize": "1"}, r"did you mean 'kafka.batch.size'\?"),
        ({"kafka.key.serializer": "x"}, r"not supported: keys are strings or binary"),
        ({"kafka.transactional.id": "x"}, r"see transactionalIdPrefix"),
        ({"kafka.sasl.mechanismus": "PLAIN"}, r"kafka.sasl.mechanismus is not supported"),
        ({"kafka.security.protocol": "TLS"}, r"security_protocol must be one of PLAINTEXT, SSL"),
        ({"path": "/t"}, r"take no path"),
        ({"topic": " "}, r"topic: the name cannot be empty"),
        ({"delivery": "once"}, r"delivery: 'once' is neither"),
        ({"delivery": "exactly_once", "kafka.acks": "1"}, r"delivery=exactly_once needs kafka.acks=all"),
        ({"kafka.acks": "0"}, r"kafka.acks: '0' is neither all nor 1"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, r"kafka.enable.idempotence needs kafka.acks=all"),
        ({"kafka.compression.type": "brotli"}, r"one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.batch.size": "0"}, r"kafka.batch.size: '0' is not a whole number of at least 1"),
        ({"kafka.delivery.timeout.ms": "1"}, r"must be at least kafka.request.timeout.ms"),
        ({"kafka.partitioner.class": "no.such.function"}, r"kafka.partitioner.class: 'no.such.function' is neither"),
        ({"includeHeaders": "yes"}, r"includeHeaders: 'yes' is neither true nor false"),
        ({"auditTier": "sink"}, r"auditTier needs auditTopic"),
        ({"auditTopic": "audit", "auditWindowMs": "0"}, r"auditWindowMs: '0' is not"),
        ({"transactionalIdPrefix": ""}, r"transactionalIdPrefix: an empty prefix"),
        ({"kafka.bootstrap.servers": "h"}, r"kafka.bootstrap.servers: 'h' is not host:port"),
    ],
)
def test_what_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_write_options({**SERVERS, **options})


def test_the_audit() -> None:
    assert parse_write_options(SERVERS).audit is None
    audit = parse_write_options({**SERVERS, "auditTopic": "audit"}).audit
    assert audit == AuditSettings(topic="audit", tier="sink", window_ms=600_000)
    named = {"auditTopic": "a", "auditTier": "spark", "auditWindowMs": "1000"}
    assert parse_write_options({**SERVERS, **named}).audit == AuditSettings(topic="a", tier="spark", window_ms=1000)


def test_bootstrap_servers_are_needed() -> None:
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers is required"):
        parse_write_options({"topic": "t"})


def test_what_has_no_effect_is_said() -> None:
    options = parse_write_options({**SERVERS, "kafka.retries": "5", "checkpointLocation": "/c"})
    assert options.warnings == ("option kafka.retries is not used by this sink",)


def test_partitioners() -> None:
    dotted = f"{__name__}.one_for_all"
    assert parse_write_options({**SERVERS, "kafka.partitioner.class": dotted}).partitioner == dotted
    assert find_partitioner(dotted)("t", None, None, 3) == 2
    options = parse_write_options(
        {**SERVERS, "kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
    )
    assert (options.partitioner, options.round_robin) == (None, True)
