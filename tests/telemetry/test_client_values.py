"""Metrics that clients push are read, kept and shown."""

from __future__ import annotations

import random

import pytest
from otlp_messages import CUMULATIVE, HISTOGRAM, attribute, counter, gauge, message, number, part, point, varint

from kraftpy.telemetry.otlp import MAX_POINTS, MAX_TEXT, Malformed, Point, read, with_resource
from kraftpy.telemetry.store import MOST_SAMPLES, ClientValues, shown_name

pytest.importorskip("prometheus_client")

ONE, TWO = b"1" * 16, b"2" * 16
ROOM = 1 << 20


def _shown(store: ClientValues) -> dict[str, float]:
    """Samples by name and labels, in Prometheus' text form."""
    found = {}
    for family in store.collect():
        for sample in family.samples:
            labels = ",".join(f"{key}={text}" for key, text in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_gauges_and_sums_are_read() -> None:
    data = message(
        [
            gauge("a.b", point(1.5, {"topic": "t", "partition": 3}), point(2.0), description="What it is."),
            counter("c.total", point(-7, {"is": True, "of": 0.5})),
            counter("d", point(1.0), temporality=CUMULATIVE, is_monotonic=False),
        ],
        {"group_id": "g", "topic": "overridden"},
    )
    assert read(data).points == [
        Point("a.b", "What it is.", "", (("group_id", "g"), ("partition", "3"), ("topic", "t")), 1.5, False, False),
        Point("a.b", "What it is.", "", (("group_id", "g"), ("topic", "overridden")), 2.0, False, False),
        Point(
            "c.total",
            "",
            "",
            (("group_id", "g"), ("is", "true"), ("of", "0.5"), ("topic", "overridden")),
            -7,
            True,
            True,
        ),
        Point("d", "", "", (("group_id", "g"), ("topic", "overridden")), 1.0, False, False),
    ]


def test_other_kinds_are_counted_and_unknown_fields_skipped() -> None:
    histogram = part(1, "h") + part(HISTOGRAM, part(1, b""))
    unknown = (
        part(1, "x") + part(99, b"abc") + number(98, 5) + varint(97 << 3 | 5) + b"1234" + part(5, part(1, point(1)))
    )
    found = read(message([histogram, unknown]))
    assert found.left_out == 1
    assert [each.name for each in found.points] == ["x"]
    assert read(b"") == ([], 0)


def test_long_texts_are_cut_and_attributes_limited() -> None:
    many = {f"a{number}": "v" for number in range(100)}
    (found,) = read(message([gauge("n" * 1_000, point(1.0, many | {"k": "é" * 1_000}))])).points
    assert found.name == "n" * MAX_TEXT
    assert len(found.attributes) == 32


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0b",
        b"\xff" * 20,
        b"\x02\x00",
        b"\x09abc",
        b"\x0d\x01",
        part(1, part(2, part(2, b"\x2a\xff"))),
        message([gauge("a", *[point(1.0)] * (MAX_POINTS + 1))]),
        part(1, part(2, part(2, b""))) * 70_000,
    ],
)
def test_what_is_no_such_message_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read(data)


def test_any_bytes_yield_points_or_are_malformed() -> None:
    chance = random.Random(3)
    sound = message([gauge("a", point(1.0, {"b": "c"})), counter("d", point(2))], {"e": 1})
    for _ in range(5_000):
        broken = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            read(broken[: chance.randrange(len(broken) + 1)])
            with_resource(bytes(broken), {"x": "y"})
        except Malformed:
            pass


def test_attributes_are_added_to_each_resource() -> None:
    data = message([gauge("a", point(1.0))], {"own": "1"}) + message([gauge("b", point(2.0))])
    assert [(each.name, dict(each.attributes)) for each in read(with_resource(data, {"id": "x"})).points] == [
        ("a", {"own": "1", "id": "x"}),
        ("b", {"id": "x"}),
    ]
    assert attribute("id", "x") in with_resource(data, {"id": "x"})


def test_growth_is_added_up_and_gauges_are_replaced() -> None:
    store = ClientValues(ROOM)
    for growth, lag in ((3, 10.0), (4, 20.0)):
        data = message(
            [counter("org.apache.kafka.producer.record.send.total", point(growth)), gauge("lag", point(lag))]
        )
        store.keep(ONE, {"client_id": "a"}, read(data).points, 0, 100)
    assert _shown(store) == {
        "kafka_client_producer_record_send_total{client_id=a}": 7,
        "kafka_client_lag{client_id=a}": 20,
    }
    store.keep(ONE, {"client_id": "a"}, [], 0, 100)
    assert _shown(store) == {"kafka_client_producer_record_send_total{client_id=a}": 7}


def test_totals_are_taken_as_they_are() -> None:
    store = ClientValues(ROOM)
    for total in (3, 4):
        points = read(message([counter("c", point(total), temporality=CUMULATIVE)])).points
        store.keep(ONE, {}, points, 0, 100)
    assert _shown(store) == {"kafka_client_c_total{}": 4}


def test_clients_are_told_apart_and_expire() -> None:
    store = ClientValues(ROOM)
    points = read(message([gauge("a", point(1.0))])).points
    store.keep(ONE, {"client_instance_id": "one"}, points, 0, 100)
    store.keep(TWO, {"client_instance_id": "two"}, points, 50, 100)
    assert len(_shown(store)) == 2
    store.expire(100)
    assert _shown(store) == {"kafka_client_a{client_instance_id=two}": 1}
    store.expire(150)
    assert store.held_bytes == len(store) == 0


def test_memory_is_bounded() -> None:
    store = ClientValues(100_000)
    points = read(message([gauge(f"m{number}", point(1.0)) for number in range(100)])).points
    for client in range(10):
        store.keep(bytes([client]) * 16, {"client_id": str(client)}, points, 0, 100)
    assert 0 < store.held_bytes <= 100_000
    assert {label for label in _shown(store) if label.startswith("kafka_client_m1{")} == {
        "kafka_client_m1{client_id=8}",
        "kafka_client_m1{client_id=9}",
    }
    assert len(ClientValues(0)) == 0


def test_counters_of_one_client_do_not_pile_up() -> None:
    store = ClientValues(64 << 20)
    for push in range(3):
        points = [Point(f"c{push}.{number}", "", "", (), 1.0, True, True) for number in range(MAX_POINTS // 2)]
        store.keep(ONE, {}, points, 0, 100)
    assert len(_shown(store)) == MAX_POINTS


def test_what_clients_name_things_harms_nothing() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    store = ClientValues(ROOM)
    points = read(
        message(
            [
                gauge(
                    'kraftpy_up{x="1"} 1\n', point(1.0, {"1\n": '"\n', "client_id": "forged", "a-b": "1", "a.b": "2"})
                ),
                counter("kraftpy_up.x.1.1", point(2)),
                gauge("ü", point(float("nan"))),
            ]
        )
    ).points
    store.keep(ONE, {"client_id": "true"}, points, 0, 100)
    registry = prometheus.CollectorRegistry()
    registry.register(store)
    text = prometheus.generate_latest(registry).decode()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.startswith("kafka_client_") for line in samples), samples
    assert 'client_id="true"' in samples[0]
    assert "forged" not in text


def test_one_name_has_a_bounded_number_of_values() -> None:
    store = ClientValues(64 << 20)
    for client in range(3):
        points = [Point("a", "", "", (("n", str(each)),), 1.0, False, False) for each in range(MOST_SAMPLES // 2)]
        store.keep(bytes([client]) * 16, {"client_id": str(client)}, points, 0, 100)
    shown = _shown(store)
    assert len(shown) == MOST_SAMPLES
    assert store.left_out == MOST_SAMPLES // 2
    assert not any("client_id=0" in name for name in shown)  # it pushed first
    store.expire(100)
    assert _shown(store) == {}
    assert not store._families


def test_names_are_shown_without_the_common_part() -> None:
    assert (
        shown_name("org.apache.kafka.consumer.fetch.manager.records.lag")
        == "kafka_client_consumer_fetch_manager_records_lag"
    )
    assert shown_name("my-metric.a") == "kafka_client_my_metric_a"
