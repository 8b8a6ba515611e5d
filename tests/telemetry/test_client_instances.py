"""When a client instance may ask and push: the rules of Kafka's ClientMetricsManager."""

from __future__ import annotations

from itertools import count

import pytest

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.telemetry.instances import MAX_INSTANCES, MAX_SUBSCRIPTIONS, Instances, expiry_ms
from kraftpy.telemetry.subscriptions import Client

CLIENT = Client("", "app", None, None, None, None)
ID = bytes(15) + b"\x07"
INTERVAL = 1_000


@pytest.fixture
def instances() -> Instances:
    numbers = count(100)
    made = Instances(lambda: next(numbers).to_bytes(16, "big"))
    made.subscribe("s", {"metrics": "a.", "interval.ms": str(INTERVAL)})
    return made


def _ask(instances: Instances, now: int, instance_id: bytes = ID) -> int:
    """The subscription id, or raises."""
    return instances.ask(instance_id, CLIENT, "connection", now)[1].subscription_id


def _push(instances: Instances, now: int, subscription_id: int, **more: object) -> ErrorCode:
    given: dict[str, object] = {"is_terminating": False, "compression": 4, "size": 9, "most_bytes": 10, **more}
    instance_id = given.pop("instance_id", ID)
    try:
        instance = instances.push(
            instance_id,
            CLIENT,
            "connection",
            now,
            subscription_id=subscription_id,
            **given,  # type: ignore[arg-type]
        )
    except KafkaError as error:
        return error.code
    instances.pushed(instance, was_readable=True)
    return ErrorCode.NONE


def _asked(instances: Instances, now: int) -> ErrorCode:
    try:
        _ask(instances, now)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_new_client_gets_an_id(instances: Instances) -> None:
    first, requested = instances.ask(bytes(16), CLIENT, "connection", 0)
    second, _ = instances.ask(bytes(16), CLIENT, "other", 0)
    assert first != second
    assert requested.metrics == ("a.",)
    assert instances.ask(ID, CLIENT, "third", 0)[0] == ID


def test_asking_again_within_the_interval_is_too_early(instances: Instances) -> None:
    _ask(instances, 0)
    assert _asked(instances, INTERVAL - 1) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert _asked(instances, INTERVAL) == ErrorCode.NONE
    assert instances.counts.throttled == 1


def test_the_first_push_may_come_at_any_time_and_the_next_after_the_interval(instances: Instances) -> None:
    known = _ask(instances, 0)
    assert _push(instances, 500, known) == ErrorCode.NONE
    assert _push(instances, 1_499, known) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert _push(instances, 1_500, known) == ErrorCode.NONE
    assert _asked(instances, 2_000) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_last_push_may_come_early_but_nothing_after_it(instances: Instances) -> None:
    known = _ask(instances, 0)
    assert _push(instances, 500, known) == ErrorCode.NONE
    assert _push(instances, 600, known, is_terminating=True) == ErrorCode.NONE
    assert _push(instances, 5_000, known, is_terminating=True) == ErrorCode.INVALID_REQUEST
    assert _push(instances, 9_000, known) == ErrorCode.INVALID_REQUEST
    # As in Kafka, the refused push said that it was not the last.
    assert _push(instances, 10_000, known) == ErrorCode.NONE


def test_a_changed_subscription_is_told_at_once(instances: Instances) -> None:
    known = _ask(instances, 0)
    instances.subscribe("t", {"metrics": "b."})
    assert _push(instances, 10, known) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    changed = _ask(instances, 20)
    assert changed != known
    # As in Kafka, the interval counts from the push that was refused.
    assert _push(instances, 30, changed) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert _push(instances, 10 + INTERVAL, changed) == ErrorCode.NONE
    instances.subscribe("t", {})
    assert _push(instances, 2_000, changed) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert _ask(instances, 2_001) == known
    assert instances.counts.unknown_subscriptions == 2


def test_removing_what_is_not_there_changes_nothing(instances: Instances) -> None:
    known = _ask(instances, 0)
    instances.subscribe("no such", {})
    assert _push(instances, 10, known) == ErrorCode.NONE


def test_after_an_error_that_is_retried_at_once_it_may_ask(instances: Instances) -> None:
    known = _ask(instances, 0)
    assert _push(instances, 10, known, compression=5) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert _asked(instances, 20) == ErrorCode.NONE
    assert _asked(instances, 30) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_pushes_that_are_refused(instances: Instances) -> None:
    known = _ask(instances, 0)
    assert _push(instances, 10, known, size=11) == ErrorCode.TELEMETRY_TOO_LARGE
    assert _push(instances, 2_000, known, compression=-1) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert _push(instances, 4_000, known, compression=0) == ErrorCode.NONE
    for reserved in (bytes(16), bytes(15) + b"\x01"):
        assert _push(instances, 6_000, known, instance_id=reserved) == ErrorCode.INVALID_REQUEST


def test_an_instance_is_forgotten_with_its_connection_and_after_silence(instances: Instances) -> None:
    _ask(instances, 0)
    instances.disconnected("connection")
    assert len(instances) == 0
    assert _asked(instances, 1) == ErrorCode.NONE
    instances.expire(expiry_ms(INTERVAL))
    assert len(instances) == 1
    instances.expire(1 + expiry_ms(INTERVAL))
    assert len(instances) == 0
    assert expiry_ms(INTERVAL) == 60_000
    assert expiry_ms(100_000) == 300_000


def test_the_least_recently_heard_of_gives_way(instances: Instances) -> None:
    _ask(instances, 0)
    for number in range(MAX_INSTANCES - 1):
        _ask(instances, 0, (1_000 + number).to_bytes(16, "big"))
    assert _asked(instances, 1) == ErrorCode.THROTTLING_QUOTA_EXCEEDED  # still known, and heard of last now
    _ask(instances, 2, (7).to_bytes(8, "big") * 2)
    assert len(instances) == MAX_INSTANCES
    assert _asked(instances, 3) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    _ask(instances, 3, (1_000).to_bytes(16, "big"))  # was forgotten: it need not wait


def test_subscriptions_are_limited() -> None:
    instances = Instances(lambda: b"\x09" * 16)
    for number in range(MAX_SUBSCRIPTIONS):
        assert instances.subscribe(str(number), {"metrics": "a."}) is not None
    assert instances.subscribe("one more", {"metrics": "*"}) is None
    assert instances.subscribe("0", {"metrics": "b."}) is not None
    assert "*" not in instances.ask(ID, CLIENT, "c", 0)[1].metrics
