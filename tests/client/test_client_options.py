from __future__ import annotations

import pytest

from kraftpy.client.options import ClientOptions, ConsumerOptions, ProducerOptions, parse_bootstrap


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (ClientOptions, {"bootstrap_servers": "nohost"}, "bootstrap_servers"),
        (ClientOptions, {"bootstrap_servers": "host:99999"}, "bootstrap_servers"),
        (ClientOptions, {"bootstrap_servers": ""}, "bootstrap_servers"),
        (ClientOptions, {"client_id": ""}, "client_id"),
        (ClientOptions, {"security_protocol": "TLS"}, "security_protocol"),
        (ClientOptions, {"request_timeout_ms": 0}, "request_timeout_ms"),
        (ClientOptions, {"retry_backoff_ms": "100"}, "retry_backoff_ms"),
        (ProducerOptions, {"acks": 2}, "acks"),
        (ProducerOptions, {"compression_type": "brotli"}, "compression_type"),
        (ProducerOptions, {"batch_size": 1.5}, "batch_size"),
        (ProducerOptions, {"linger_ms": -1}, "linger_ms"),
        (ProducerOptions, {"acks": 1, "enable_idempotence": True}, "enable_idempotence"),
        (ProducerOptions, {"retries": 0, "enable_idempotence": True}, "enable_idempotence"),
        (ProducerOptions, {"delivery_timeout_ms": 10}, "delivery_timeout_ms"),
        (ProducerOptions, {"transactional_id": ""}, "transactional_id"),
        (ProducerOptions, {"transactional_id": "t", "acks": 1}, "transactional_id"),
        (ProducerOptions, {"transactional_id": "t", "enable_idempotence": False}, "transactional_id"),
        (ProducerOptions, {"transaction_timeout_ms": 0}, "transaction_timeout_ms"),
        (ConsumerOptions, {"group_id": ""}, "group_id"),
        (ConsumerOptions, {"auto_offset_reset": "middle"}, "auto_offset_reset"),
        (ConsumerOptions, {"isolation_level": "serializable"}, "isolation_level"),
        (ConsumerOptions, {"partition_assignment_strategy": "range"}, "partition_assignment_strategy"),
        (ConsumerOptions, {"partition_assignment_strategy": ["best"]}, "partition_assignment_strategy"),
        (ConsumerOptions, {"max_poll_records": 0}, "max_poll_records"),
        (ConsumerOptions, {"enable_auto_commit": 1}, "enable_auto_commit"),
        (ConsumerOptions, {"group_id": "g", "heartbeat_interval_ms": 60_000}, "heartbeat_interval_ms"),
    ],
)
def test_a_bad_option_is_named(kind: type[ClientOptions], options: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        kind(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "idempotent"),
    [
        ({}, True),
        ({"acks": "all"}, True),
        ({"acks": 1}, False),
        ({"acks": 0}, False),
        ({"retries": 0}, False),
        ({"max_in_flight_requests_per_connection": 6}, False),
        ({"enable_idempotence": False}, False),
    ],
)
def test_idempotence_is_on_unless_something_rules_it_out(options: dict[str, object], idempotent: bool) -> None:
    assert ProducerOptions(**options).idempotent is idempotent  # type: ignore[arg-type]


def test_an_unknown_option_is_refused_by_name() -> None:
    from kraftpy.client import Producer

    with pytest.raises(TypeError, match="linger"):
        Producer(linger=5)


def test_bootstrap_servers() -> None:
    assert parse_bootstrap("a:1, b:2,") == (("a", 1), ("b", 2))
    assert parse_bootstrap(["[::1]:9092"]) == (("::1", 9092),)


def test_using_one_part_of_the_client_does_not_load_the_others() -> None:
    import subprocess
    import sys

    code = (
        "import sys, kraftpy.client.connection\n"
        "names = ['producer', 'consumer', 'admin', 'columns']\n"
        "bad = [name for name in names if 'kraftpy.client.' + name in sys.modules or 'numpy' in sys.modules]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
