"""The metrics that a client is asked for. The ids and orders were computed by Java, with Kafka's own classes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kraftpy.config.client_metrics import MAX_PATTERNS, check_client_metrics
from kraftpy.config.settings import ConfigError
from kraftpy.telemetry.subscriptions import (
    Client,
    Subscription,
    java_set_order,
    requested_of,
    subscription_id_of,
)

MANY = [f"m.{number * number * 7919}.x" for number in range(40)]
CLIENT = Client("AAAA", "app-1", "apache-kafka-java", "4.3.1", "10.0.0.7", "50000")
ID = (9).to_bytes(8, "big") * 2


def _id(most: int, least: int) -> bytes:
    return (most % (1 << 64)).to_bytes(8, "big") + (least % (1 << 64)).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("metrics", "interval_ms", "instance_id", "expected"),
    [
        ([], 300_000, _id(1, 2), -725132323),
        (["*"], 100, _id(-5, 77 << 33), 899611711),
        (
            [
                "org.apache.kafka.producer.",
                "org.apache.kafka.consumer.fetch",
                "a",
                "b",
                "Aa",
                "BB",
                "org.apache.kafka.client.producer.partition.queue.",
            ],
            60_000,
            _id(0x1234567890ABCDEF, 0xFEDCBA0987654321),
            -1514510673,
        ),
        (MANY, 5_000, _id(0x7FFFFFFFFFFFFFFF, 3), -663638162),
        (MANY[:11], 1, ID, -200094112),
        (MANY[:12], 1, ID, 914869579),
        (MANY[:13], 1, ID, 1333324904),
        (MANY[:14], 1, ID, -458958612),
    ],
)
def test_the_id_is_kafka_s(metrics: list[str], interval_ms: int, instance_id: bytes, expected: int) -> None:
    order = java_set_order(java_set_order(metrics, is_copy=True))
    assert subscription_id_of(order, interval_ms, instance_id) == expected


def test_all_matching_subscriptions_count() -> None:
    subscriptions = {
        "slow": Subscription({"metrics": "a.,b.", "interval.ms": "60000"}),
        "fast": Subscription({"metrics": "b.,c.", "interval.ms": "1000", "match": "client_id=app-.*"}),
        "others": Subscription({"metrics": "*", "interval.ms": "100", "match": "client_id=app"}),
    }
    requested = requested_of(CLIENT, ID, subscriptions)
    assert sorted(requested.metrics) == ["a.", "b.", "c."]
    assert requested.interval_ms == 1_000
    subscriptions["all"] = Subscription({"metrics": "*"})
    assert requested_of(CLIENT, ID, subscriptions).metrics == ("*",)


def test_without_a_subscription_nothing_is_asked_for_and_rarely() -> None:
    assert requested_of(CLIENT, ID, {})[:2] == ((), 300_000)


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("", True),
        ("client_instance_id=A+", True),
        ("client_id=app-1, client_software_name=apache-kafka-java,client_software_version=4\\..*", True),
        ("client_id=app", False),
        ("client_id=app-1,client_software_version=5.*", False),
        ("client_source_address=10\\.0\\..*,client_source_port=50+", True),
        ("client_id=x,client_id=app-1", True),  # as in Kafka, the last one counts
        ("client_id=(?!x).*", False),  # RE2 does not know lookahead: nothing matches
    ],
)
def test_expressions_match_whole_values(match: str, matches: bool) -> None:
    assert Subscription({"match": match}).matches(CLIENT) is matches


def test_what_is_not_known_matches_nothing() -> None:
    unknown = Client("AAAA", None, None, None, None, None)
    assert not Subscription({"match": "client_id=.*"}).matches(unknown)
    assert Subscription({"match": "client_instance_id=.*"}).matches(unknown)


def test_a_hostile_expression_takes_linear_time() -> None:
    subscription = Subscription({"match": "client_id=(a+)+$"})
    assert not subscription.matches(CLIENT._replace(client_id="a" * 250 + "!"))


@pytest.mark.parametrize(
    "match", ["client_id", "client_id=", "client_name=x", "client_id=[", "client_id=a=b", "client_id=(?!a)b"]
)
def test_patterns_that_cannot_be_used_are_refused(match: str) -> None:
    with pytest.raises(ConfigError, match="Illegal client matching pattern"):
        check_client_metrics({"match": match})


def test_patterns_are_limited() -> None:
    patterns = [f"client_id=a{number}" for number in range(MAX_PATTERNS + 1)]
    check_client_metrics({"match": ",".join(patterns[:-1])})
    with pytest.raises(ConfigError, match="more than 60 patterns"):
        check_client_metrics({"match": ",".join(patterns)})


def test_ids_differ_by_client() -> None:
    ids = [requested_of(CLIENT, bytes(15) + bytes([number]), {}).subscription_id for number in range(9)]
    assert all(one != other for one, other in pairwise(ids))
