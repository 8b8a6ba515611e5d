"""Distributions, pages in both formats, and the catalogue."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from kraftpy.metrics import catalogue
from kraftpy.metrics.catalogue import CATALOGUE, Kind
from kraftpy.metrics.error_counts import count_errors, counter
from kraftpy.metrics.families import END, OPEN_METRICS, PROMETHEUS, Page, labels
from kraftpy.metrics.histograms import Histogram, bucket_of, upper_bound
from kraftpy.metrics.request_times import (
    ALL_MEASURED,
    MEASURED_EVERY,
    UNKNOWN_VERSION,
    CountedRequests,
    RequestTimes,
    Timing,
    name_of,
)
from kraftpy.metrics.traffic import Traffic
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsResponse
from kraftpy.protocol.messages.metadata import MetadataResponse
from kraftpy.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse


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


class _Served:
    """A connection, as far as counting needs one."""

    def __init__(self) -> None:
        self.arrived_at = 0.0
        self.counted: CountedRequests | None = None
        self.timing: Timing | None = None

    async def serve(self, times: RequestTimes, frame: bytearray, *, is_follower: bool = False) -> None:
        await times.counted(frame, self, _nothing())
        if is_follower:
            assert self.counted is not None
            self.counted.note_follower(self)
        if self.timing is not None:
            self.timing.sent(1e6, 0.25)
            self.timing = None


async def test_versions_that_are_not_served_share_one_counter() -> None:
    times, served = RequestTimes(), _Served()
    for version in (*range(1000), 65535):
        await served.serve(times, frame(ApiKey.API_VERSIONS, version))
    for key in (999, 32000, 40000):
        await served.serve(times, frame(key, 0))
    found = {each.name: each.versions for each in times.all()}
    api = APIS[ApiKey.API_VERSIONS]
    assert set(found["ApiVersions"]) == {*range(api.first, api.last + 1), UNKNOWN_VERSION}
    assert sum(found["ApiVersions"].values()) == 1001
    assert found["Unknown"] == {UNKNOWN_VERSION: 3}


async def test_a_frame_too_short_for_a_request_is_left_to_its_decoder() -> None:
    times, served = RequestTimes(), _Served()
    for length in range(4):
        await served.serve(times, bytearray(length))
    assert times.all() == []
    assert served.counted is None


async def test_a_fetch_counts_as_a_consumer_s_or_a_follower_s_besides() -> None:
    times, served = RequestTimes(), _Served()
    for is_follower in (False, True, True):
        await served.serve(times, frame(ApiKey.FETCH, 12), is_follower=is_follower)
    found = {each.name: each for each in times.all()}
    counts = {name: (each.total.count, each.versions[12]) for name, each in found.items()}
    assert counts == {"Fetch": (3, 3), "FetchConsumer": (1, 1), "FetchFollower": (2, 2)}
    assert found["Fetch"].throttle.total == 750_000


async def test_all_requests_are_counted_and_some_measured_for_the_others() -> None:
    times, served = RequestTimes(), _Served()
    for _ in range(1600):
        await served.serve(times, frame(ApiKey.PRODUCE, 9))
    (produce,) = times.all()
    assert produce.versions == {9: 1600}
    measured = (1600 - ALL_MEASURED) // MEASURED_EVERY
    assert produce.total.count == ALL_MEASURED + measured * MEASURED_EVERY == 1600
    assert produce.total.total == 1600 * 10**12  # each took as long


def test_every_error_code_of_an_answer_is_counted() -> None:
    errors: dict[int, int] = defaultdict(int)
    partitions = [PartitionProduceResponse(index=0, base_offset=0, error_code=code) for code in (0, 0, 3)]
    answer = ProduceResponse(responses=[TopicProduceResponse(name="a", partition_responses=partitions)])
    count_errors(answer, errors)
    assert errors == {0: 2, 3: 1}
    count_errors(ApiVersionsResponse(error_code=35, api_keys=[]), errors)
    count_errors(MetadataResponse(brokers=[], topics=[]), errors)
    count_errors(None, errors)
    assert errors == {0: 4, 3: 1, 35: 1}


@pytest.mark.parametrize("key", APIS)
def test_codes_can_be_counted_in_every_answer(key: int) -> None:
    counter(APIS[key].response)


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
