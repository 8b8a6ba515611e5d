"""Distributions, pages in both formats, and the catalogue."""

from __future__ import annotations

import random

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from kraftpy.metrics import catalogue
from kraftpy.metrics.catalogue import CATALOGUE, Kind
from kraftpy.metrics.families import END, OPEN_METRICS, PROMETHEUS, Page, labels
from kraftpy.metrics.histograms import Histogram, bucket_of, upper_bound
from kraftpy.metrics.request_times import UNKNOWN_VERSION, RequestTimes, name_of
from kraftpy.metrics.traffic import Traffic
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode


@pytest.mark.parametrize("value", [*range(40), *(2**n + d for n in range(6, 40) for d in (-1, 0, 1))])
def test_a_bucket_holds_its_value_and_is_at_most_an_eighth_wide(value: int) -> None:
    bucket = bucket_of(value)
    assert value <= upper_bound(bucket) <= value + value // 8
    assert bucket == 0 or upper_bound(bucket - 1) < value


def test_quantiles_are_of_the_last_two_windows_and_counts_of_all() -> None:
    histogram = Histogram()
    values = list(range(1, 1001))
    random.Random(1).shuffle(values)
    for value in values:
        histogram.record(value)
    for quantile, true in ((0.5, 500), (0.99, 990), (0.999, 999), (1.0, 1000)):
        (found,) = histogram.quantiles((quantile,))
        assert true <= found <= true * 1.125
    histogram.begin_window()
    histogram.record(5)
    assert histogram.quantiles((0.5,))[0] >= 500
    histogram.begin_window()
    assert histogram.quantiles((0.5, 1.0)) == [5, 5]
    histogram.begin_window()
    assert histogram.quantiles((0.5,)) == [0]
    assert (histogram.count, histogram.total) == (1001, 500_505)


def test_odd_durations_are_counted() -> None:
    histogram = Histogram()
    for value in (-3, 0, 1 << 60):
        histogram.record(value)
    assert histogram.count == 3
    assert histogram.quantiles((0.1, 1.0)) == [0, (1 << 40) - 1]


ODD = 'a"b\\c\nd{}é\ud800'


@pytest.mark.parametrize(("content_type", "parse"), [(PROMETHEUS, parse_prometheus), (OPEN_METRICS, parse_openmetrics)])
def test_a_page_is_what_the_parsers_of_prometheus_read(content_type: str, parse: object) -> None:
    page = Page()
    page.add("kafka_log_log_size", 4096, labels(topic=ODD, partition=0))
    page.add("kafka_server_brokertopicmetrics_bytesin_total", 7)
    page.add("kafka_server_brokertopicmetrics_bytesin_total", 5, labels(topic="a"))
    page.summary(
        "kafka_network_requestmetrics_totaltimems", labels(request="Fetch"), {"0.50": 1.5, "0.999": 9}, 3, 12.5
    )
    page.alias("kafka_server_raftmetrics_current_leader", "kafka_server_raft_metrics_current_leader")
    text = "".join(page.texts(content_type)) + (END if content_type == OPEN_METRICS else "")
    families = {family.name: family for family in parse(text)}  # type: ignore[operator]
    (size,) = families["kafka_log_log_size"].samples
    assert size.labels == {"topic": ODD.replace("\ud800", "?"), "partition": "0"}
    assert families["kafka_server_brokertopicmetrics_bytesin"].type == "counter"
    assert [each.value for each in families["kafka_server_brokertopicmetrics_bytesin"].samples] == [7, 5]
    times = families["kafka_network_requestmetrics_totaltimems"]
    assert times.type == "summary"
    assert {each.name.rsplit("_", 1)[-1]: each.value for each in times.samples[2:]} == {"count": 3, "sum": 12.5}
    assert len(families) == 3  # a family without samples is not shown


def test_a_metric_that_is_not_in_the_catalogue_cannot_be_shown() -> None:
    with pytest.raises(KeyError):
        Page().family("kafka_nothing")


@pytest.mark.parametrize(
    "table", ["a gauge\n    A.\na gauge\n    A.\n", "a_total gauge\n    A.\n", "a counter\n    A.\n", "a gauge\n"]
)
def test_a_wrong_table_is_noticed(table: str) -> None:
    with pytest.raises(ValueError, match="a"):
        catalogue.parse(table)


def test_meanings_are_sentences() -> None:
    for name, meaning in CATALOGUE.items():
        for text in filter(None, (meaning.text, meaning.worry)):
            assert text.endswith("."), name
            assert not text[0].islower() or text.startswith("failed is"), name
        assert meaning.kind is not Kind.HISTOGRAM


def frame(key: int, version: int) -> bytearray:
    return bytearray(key.to_bytes(2, "big") + version.to_bytes(2, "big"))


async def _nothing() -> None:
    return None


async def test_versions_that_are_not_served_share_one_counter() -> None:
    times = RequestTimes()
    for version in (*range(1000), 65535):
        timing = times.timing(frame(ApiKey.API_VERSIONS, version), 0.0, _nothing())
        await timing
        timing.sent(1e9, 0.0)
    (found,) = times.all()
    served = APIS[ApiKey.API_VERSIONS]
    assert set(found.versions) == {*range(served.first, served.last + 1), UNKNOWN_VERSION}
    assert sum(found.versions.values()) == 1001


async def test_a_fetch_counts_as_a_consumer_s_or_a_follower_s_besides() -> None:
    times = RequestTimes()
    for is_follower in (False, True, True):
        timing = times.timing(frame(ApiKey.FETCH, 12), 0.0, _nothing())
        await timing
        timing.is_follower = is_follower
        timing.sent(1e6, 0.25)
    found = {each.name: each for each in times.all()}
    assert {name: each.total.count for name, each in found.items()} == {
        "Fetch": 3,
        "FetchConsumer": 1,
        "FetchFollower": 2,
    }
    assert found["Fetch"].throttle.total == 750_000


def test_apis_have_kafka_s_names() -> None:
    names = [name_of(key) for key in (ApiKey.PRODUCE, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN)]
    assert names == ["Produce", "OffsetForLeaderEpoch", "AddPartitionsToTxn"]


def test_totals_of_topics_never_go_back() -> None:
    traffic = Traffic()
    first = traffic.opened("a")
    assert traffic.opened("a") is first
    first.bytes_in += 10
    traffic.closed("a")
    assert traffic.topics.keys() == {"a"}
    traffic.closed("a")
    assert not traffic.topics
    assert traffic.total("bytes_in") == 10
    traffic.opened("a").bytes_in += 5
    assert traffic.total("bytes_in") == 15


def test_refusals_that_stale_clients_cause_are_no_failures() -> None:
    traffic = Traffic()
    topic = traffic.opened("a")
    for code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE):
        traffic.produced(topic, code, 100)
    traffic.produced(topic, ErrorCode.NOT_ENOUGH_REPLICAS, 100)
    traffic.produced(None, ErrorCode.NOT_LEADER_OR_FOLLOWER, 100)
    assert (topic.produce_requests, topic.failed_produce_requests, topic.bytes_rejected) == (4, 1, 100)
    assert traffic.unknown_produce_requests == 1
