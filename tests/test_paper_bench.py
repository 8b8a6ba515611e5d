"""The paper's bench reads what each load tool prints, draws it, and makes a page of it; no system is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.paper import LINES, RESULTS, Measured, draw, written
from bench.paper_figures import figure
from bench.paper_reports import Report, Run, artemis, kafka_consumer, kafka_producer, points, rabbitmq
from bench.paper_systems import BATCH_BYTES, SIZE

PRODUCER = """\
1 records sent, 0.5 records/sec (0.00 MB/sec), 1990.0 ms avg latency, 1990.0 ms max latency.
5836 records sent, 22446.2 records/sec (4.28 MB/sec), 252.3 ms avg latency, 342.0 ms max latency.
5914 records sent, 23656.0 records/sec (4.51 MB/sec), 402.3 ms avg latency, 516.0 ms max latency.
20000 records sent, 5000.000000 records/sec (0.95 MB/sec), 305.42 ms avg latency, 2818.00 ms max latency, 281 ms 50th, \
596 ms 95th, 644 ms 99th, 647 ms 99.9th.

Metric Name                                                                                : Value
producer-metrics:batch-size-avg:{client-id=perf-producer-client}                            : 10433.427
producer-metrics:records-per-request-avg:{client-id=perf-producer-client}                   : 49.628
producer-topic-metrics:record-send-total:{client-id=perf-producer-client, topic=b50}        : 20000.000
"""

CONSUMER = """\
time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-11-29 19:01:27:910, 0, 0.0002, 0.0001, 1, 0.2810, 3238, 321, 0.0006, 3.1153
2026-11-29 19:01:28:167, 0, 0.5648, 2.1968, 2961, 11517.5097, 0, 257, 2.1968, 11517.5097
2026-11-29 19:01:28:951, 0, 3.5288, 3.1135, 18501, 16323.5294, 0, 272, 3.1135, 16323.5294

Metric Name                                                                                : Value
consumer-fetch-manager-metrics:records-consumed-total:{client-id=perf-consumer-client}      : 20000.000
consumer-fetch-manager-metrics:records-consumed-total:{client-id=perf-consumer-client, topic=b1} : 20000.000
"""

PERF_TEST = """\
id: paper, starting producer #0
id: paper, starting producer #0, channel #0
id: paper, time 1.016 s, sent: 6633 msg/s
id: paper, time 2.016 s, sent: 5363 msg/s
test stopped (Producer reached message limit)
id: paper, sending rate avg: 5000 msg/s
id: paper, receiving rate avg: 0 msg/s
"""

PERF_TEST_TABLE = """\
id,time (s),published (msg/s),returned (msg/s),confirmed (msg/s),nacked (msg/s),received (msg/s)
paper,1.000,6633,,,,
paper,2.500,5000,,,,
"""

ARTEMIS = """\
[
{"sampleType":"interval","warmup":false,"time":1000000,"sent":160,"delayed":0,"completed":100,"sendTime":{"count":150}},
{"sampleType":"interval","warmup":false,"time":1001500,"sent":267,"delayed":0,"completed":266,"sendTime":{"count":450}},
{"sampleType":"summary","time":1002548,"result":"success","totalSent":1000,"totalBlocked":0,"totalCompleted":1000}
]"""

ARTEMIS_RECEIVED = """\
[
{"sampleType":"interval","warmup":false,"time":1000000,"received":2000,"transferTime":{"count":2400}},
{"sampleType":"summary","time":1001500,"result":"success","totalReceived":4000}
]"""


def test_kafka_s_producer_tells_its_mean_and_the_size_of_its_batches() -> None:
    run = kafka_producer(PRODUCER)
    assert run.messages == 20_000
    assert run.rate == pytest.approx(5000)
    assert run.batch == 49.628
    assert [each.messages for each in run.reports] == [1, 5836, 5914]
    assert [each.seconds for each in run.reports] == pytest.approx([2.0, 0.26, 0.25], rel=1e-4)


def test_kafka_s_producer_that_breaks_off_has_no_figures() -> None:
    with pytest.raises(ValueError, match="without its summary"):
        kafka_producer(PRODUCER[: PRODUCER.index("20000 records")])


def test_joining_the_group_is_not_counted_for_kafka_s_consumer() -> None:
    run = kafka_consumer(CONSUMER, 20_000)
    assert run.reports == (Report(1, 0.321), Report(2960, 0.257), Report(15_540, 0.272))
    assert run.rate == pytest.approx(18_501 / 0.85)


def test_kafka_s_consumer_that_misses_messages_has_no_figures() -> None:
    with pytest.raises(ValueError, match="20000 of 20001 messages"):
        kafka_consumer(CONSUMER, 20_001)


def test_a_run_that_is_over_before_the_first_report_has_no_figures() -> None:
    rows = [line for line in CONSUMER.splitlines() if not line.startswith("2026")]
    with pytest.raises(ValueError, match="use more messages"):
        kafka_consumer("\n".join(rows), 20_000)


def test_rabbitmq_s_mean_is_of_all_messages() -> None:
    run = rabbitmq(PERF_TEST, PERF_TEST_TABLE, "published", 20_000)
    assert (run.messages, run.seconds) == (20_000, 4.0)
    assert run.reports == (Report(6633, 1.0), Report(7500, 1.5))


def test_rabbitmq_s_tool_that_is_stopped_otherwise_has_no_figures() -> None:
    with pytest.raises(ValueError, match="did not reach"):
        rabbitmq(PERF_TEST.replace("Producer reached message limit", "Reached time limit"), "", "published", 20_000)


def test_artemis_counts_up_to_its_last_full_report() -> None:
    run = artemis(ARTEMIS, 1000)
    assert run.reports == (Report(150, 1.5), Report(450, 1.5))
    assert run.rate == 200
    assert artemis(ARTEMIS_RECEIVED, 4000).reports == (Report(2400, 1.2),)


@pytest.mark.parametrize(
    "results", [ARTEMIS.replace("success", "fail"), ARTEMIS.replace('"totalCompleted":1000', '"totalCompleted":999')]
)
def test_an_artemis_run_that_fails_has_no_figures(results: str) -> None:
    with pytest.raises(ValueError, match="ended with"):
        artemis(results, 1000)


def test_reports_that_have_too_few_messages_are_joined() -> None:
    reports = [Report(1, 2.0), Report(99, 0.5), Report(1000, 0.5), Report(10, 1.0)]
    assert points(reports, 200, 100) == [(0.02, 40.0), (0.22, 2000.0)]


def test_a_batch_has_room_for_its_records_and_no_more() -> None:
    header, least, most = 61, SIZE + 9, SIZE + 10
    assert header + 50 * most <= BATCH_BYTES[50] < header + 51 * least


def test_figures_name_every_line_and_are_the_same_each_time() -> None:
    lines = {name: [(1.0, 10.0 * place), (2.0, 12.0 * place)] for place, name in enumerate(LINES, 1)}
    drawn = figure("Producer", "MB produced", lines)
    assert drawn == figure("Producer", "MB produced", lines)
    assert all(f">{text}</text>" in drawn for text in [*LINES, "MB produced", "messages a second"])


def _made() -> dict[str, Measured]:
    run = Run(messages=20_000, seconds=2.0, reports=(Report(10_000, 1.0), Report(10_000, 1.0)))
    return {name: Measured(unwaited=run, waited=run, consumed=run) for name in LINES}


def test_the_page_has_a_row_of_each_line_and_its_figures(tmp_path: Path) -> None:
    versions = {"Apache Kafka": "4.3.1", "RabbitMQ": "3.10.8", "PerfTest": "2.22.1", "ActiveMQ Artemis": "2.40.0"}
    page = written(["time", "processor"], 1.5, 20_000, _made(), versions)
    assert "20,000 messages of 200 bytes a run" in page
    for name in LINES:
        assert f"| {name} | 1.0 | **10,000** | 2.0 | 10,000 |" in page
        assert f"| {name} | **10,000** | 2.0 |" in page
    draw(tmp_path / RESULTS.name, 20_000, _made())
    named = re.findall(r"!\[.*\]\((.*)\)", page)
    assert sorted(named) == sorted(path.name for path in tmp_path.iterdir())
