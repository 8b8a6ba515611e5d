"""Options as people write them, and the messages about wrong ones."""

from __future__ import annotations

import pytest

from kraftpy.spark import lookup
from kraftpy.spark.offsets import (
    Assign,
    AtOffsets,
    AtTimestamps,
    ByDuration,
    Committed,
    Earliest,
    Latest,
    OptionError,
    Subscribe,
    SubscribePattern,
)
from kraftpy.spark.options import (
    ReadOptions,
    StreamOptions,
    parse_any_options,
    parse_read_options,
    parse_stream_options,
)
from kraftpy.types import TopicPartition

LEAST = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "t"}


def parse(**options: str) -> ReadOptions:
    return parse_read_options({**LEAST, **{name.replace("__", "."): value for name, value in options.items()}})


def test_the_defaults_are_those_of_sparks_own_batch_source() -> None:
    options = parse()
    assert options.subscription == Subscribe(topics=("t",))
    assert (options.starting, options.ending) == (Earliest(), Latest())
    assert options.fail_on_data_loss is True
    assert options.include_headers is False
    assert (options.min_partitions, options.max_partitions, options.max_records_per_partition) == (None, None, None)
    assert (options.poll_timeout_ms, options.offset_retries, options.offset_retry_interval_ms) == (120_000, 3, 10)
    assert options.client.bootstrap_servers == "broker:9092"
    assert options.client.isolation_level == "read_uncommitted"
    assert options.warnings == ()


@pytest.mark.parametrize(
    ("given", "rack"), [("east", "east"), ("${env:RACK}", "west"), ("r-${env:RACK}", "r-west"), ("${env:NONE}", "")]
)
def test_each_process_that_reads_fills_in_its_rack(monkeypatch: pytest.MonkeyPatch, given: str, rack: str) -> None:
    made: dict[str, object] = {}
    monkeypatch.setattr(lookup, "RangeReader", lambda *_, **options: made.update(options))
    monkeypatch.setenv("RACK", "west")
    monkeypatch.delenv("NONE", raising=False)
    options = parse(kafka__client__rack=given)
    assert (options.client.client_rack, options.warnings) == (given, ())
    lookup.connect(options.client, timeout_ms=1_000)
    assert made["client_rack"] == rack


def test_names_are_case_insensitive() -> None:
    options = parse_read_options(
        {
            "KAFKA.Bootstrap.Servers": "h:1",
            "SUBSCRIBEPATTERN": "a.*",
            "failondataloss": "FALSE",
            "IncludeHeaders": "true",
        }
    )
    assert options.subscription == SubscribePattern(pattern="a.*")
    assert options.fail_on_data_loss is False
    assert options.include_headers is True


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscibe", "subscribe"),
        ("failOnDataloss2", "failOnDataLoss"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.isolation.levels", "kafka.isolation.level"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest_known_one(given: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option {given!r}; did you mean {nearest!r}"):
        parse_read_options({**LEAST, given: "x"})


def test_a_name_like_no_other_is_an_error_without_a_guess() -> None:
    with pytest.raises(OptionError, match=r"^unknown option 'qqq'$"):
        parse_read_options({**LEAST, "qqq": "x"})


@pytest.mark.parametrize(
    "name",
    [
        "kafka.auto.offset.reset",
        "kafka.key.deserializer",
        "kafka.value.deserializer",
        "kafka.key.serializer",
        "kafka.value.serializer",
        "kafka.enable.auto.commit",
        "kafka.interceptor.classes",
        "kafka.Auto.Offset.Reset",
    ],
)
def test_what_would_break_a_query_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"is not supported"):
        parse_read_options({**LEAST, name: "x"})


def test_security_is_checked_at_once_and_no_secret_is_shown() -> None:
    with pytest.raises(OptionError, match=r"sasl_username and sasl_password must be given"):
        parse(kafka__security__protocol="SASL_PLAINTEXT")
    with pytest.raises(OptionError, match=r"No such file"):
        parse(
            kafka__security__protocol="SSL",
            kafka__ssl__truststore__type="PEM",
            kafka__ssl__truststore__location="/none",
        )
    with pytest.raises(OptionError, match=r"only PEM is"):
        parse(kafka__security__protocol="SSL", kafka__ssl__truststore__type="JKS")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    found = parse(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config=f'{module} required username="u" password="hidden";',
    )
    assert "hidden" in str(found.client.security)
    assert "hidden" not in repr(found)
    assert parse(kafka__security__protocol="plaintext").warnings == ()


def test_what_has_no_effect_is_said() -> None:
    warnings = parse(maxOffsetsPerTrigger="5", kafka__group__id="g", groupIdPrefix="p").warnings
    assert len(warnings) == 3
    assert "maxOffsetsPerTrigger" in " ".join(warnings)
    assert "kafka.group.id" in " ".join(warnings)


@pytest.mark.parametrize("given", [{}, {"subscribe": "a", "assign": '{"a": [0]}'}])
def test_exactly_one_way_to_name_topics(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", **given})


def test_topics_and_partitions() -> None:
    assert parse(subscribe=" a, b ,,c").subscription == Subscribe(topics=("a", "b", "c"))
    assigned = parse_read_options({"kafka.bootstrap.servers": "h:1", "assign": '{"t": [2, 0]}'}).subscription
    assert assigned == Assign(partitions=(TopicPartition("t", 0), TopicPartition("t", 2)))


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "{}", '{"t": 1}', '{"t": []}', '{"t": ["0"]}', '{"t": [-1]}', '{"t": [true]}']
)
def test_a_malformed_assignment_names_the_option(text: str) -> None:
    with pytest.raises(OptionError, match=r"^assign: "):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "assign": text})


def test_a_malformed_pattern_or_subscription() -> None:
    with pytest.raises(OptionError, match="not a regular expression"):
        parse_read_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("})
    with pytest.raises(OptionError, match="no topic"):
        parse(subscribe=" , ")


@pytest.mark.parametrize("servers", ["", "host", "host:", ":9092", "host:0", "host:70000", "a:1,b"])
def test_servers_are_host_and_port(servers: str) -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        parse(kafka__bootstrap__servers=servers)


def test_several_servers_and_ipv6() -> None:
    assert parse(kafka__bootstrap__servers="a:1, [::1]:2").client.bootstrap_servers == "a:1, [::1]:2"


def test_offsets_as_json() -> None:
    options = parse(startingOffsets='{"t": {"0": 5, "1": -2}}', endingOffsets='{"t": {"0": -1, "1": 7}}')
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert options.starting == AtOffsets(option="startingOffsets", offsets={first: 5, second: -2})
    assert options.ending == AtOffsets(option="endingOffsets", offsets={first: -1, second: 7})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"t": {"0": -1}}'),
        ("startingOffsets", '{"t": {"0": -3}}'),
        ("startingOffsets", '{"t": {"zero": 1}}'),
        ("startingOffsets", '{"t": {"0": 1.5}}'),
        ("startingOffsets", '{"t": 3}'),
        ("startingOffsets", "newest"),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t": {"0": -2}}'),
        ("endingOffsets", "{}"),
        ("startingTimestamp", "-1"),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestamp", '{"t": {"0": -1}}'),
        ("endingOffsetsByTimestamp", "soon"),
        ("startingOffsetsByTimestampStrategy", "first"),
        ("failOnDataLoss", "yes"),
        ("minPartitions", "0"),
        ("maxRecordsPerPartition", "-4"),
        ("maxPartitions", "two"),
        ("kafkaConsumer.pollTimeoutMs", "0"),
        ("fetchOffset.numRetries", "-1"),
        ("kafka.isolation.level", "serializable"),
        ("kafka.request.timeout.ms", "x"),
    ],
)
def test_a_bad_value_names_its_option(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: "):
        parse_read_options({**LEAST, name: value})


def test_a_single_timestamp_comes_before_one_each_comes_before_offsets() -> None:
    each, offsets = '{"t": {"0": 20}}', '{"t": {"0": 1}}'
    everything = parse(startingTimestamp="10", startingOffsetsByTimestamp=each, startingOffsets=offsets)
    assert everything.starting == AtTimestamps(option="startingTimestamp", timestamps=10, latest_if_none=False)
    without = parse(
        startingOffsetsByTimestamp=each, startingOffsets=offsets, startingOffsetsByTimestampStrategy="latest"
    )
    where = TopicPartition("t", 0)
    assert without.starting == AtTimestamps(
        option="startingOffsetsByTimestamp", timestamps={where: 20}, latest_if_none=True
    )
    ending = parse(endingTimestamp="10", endingOffsets=offsets).ending
    assert ending == AtTimestamps(option="endingTimestamp", timestamps=10, latest_if_none=True)


def test_limits_that_contradict_each_other() -> None:
    with pytest.raises(OptionError, match="above maxPartitions"):
        parse(minPartitions="5", maxPartitions="4")


def test_a_path_is_no_topic() -> None:
    with pytest.raises(OptionError, match=r"load\(\) takes no path"):
        parse(path="t")


# Streams -------------------------------------------------------------------------------------------------------------


def parse_stream(**options: str) -> StreamOptions:
    return parse_stream_options({**LEAST, **{name.replace("__", "."): value for name, value in options.items()}})


def test_the_defaults_of_a_stream_are_those_of_sparks_own() -> None:
    options = parse_stream()
    assert options.read.starting == Latest()
    assert options.read.fail_on_data_loss is True
    assert (options.max_offsets, options.min_offsets, options.max_bytes, options.commit_group) == (None,) * 4
    assert options.max_delay_ms == 15 * 60_000
    assert options.read.warnings == ()


def test_a_stream_may_start_at_latest() -> None:
    assert parse_stream(startingOffsets="latest").read.starting == Latest()
    offsets = AtOffsets(option="startingOffsets", offsets={TopicPartition("t", 0): -1})
    assert parse_stream(startingOffsets='{"t": {"0": -1}}').read.starting == offsets


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' is not supported: a stream has no end"):
        parse_stream(**{name: "latest"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("minOffsetsPerTrigger", "many"),
        ("maxBytesPerTrigger", "1k"),
        ("maxTriggerDelay", "15"),
        ("commitGroupId", " "),
        ("startingOffsets", "-10 fortnights"),
        ("startingTimestamp", "-1 moon"),
        ("isolation.level", "serializable"),
    ],
)
def test_a_bad_value_of_a_stream_names_its_option(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}: "):
        parse_stream_options({**LEAST, "minOffsetsPerTrigger": "1", name: value})


def test_limits_of_a_stream_that_contradict_each_other() -> None:
    with pytest.raises(OptionError, match="above maxOffsetsPerTrigger"):
        parse_stream(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")
    with pytest.raises(OptionError, match="maxTriggerDelay: it says how long minOffsetsPerTrigger may wait"):
        parse_stream(maxTriggerDelay="5m")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("-10 minutes", 600_000), ("-1h", 3_600_000), ("-2 Days", 172_800_000), ("-90s", 90_000), ("-5 ms", 5)],
)
def test_times_that_count_from_now(text: str, milliseconds: int) -> None:
    assert parse_stream(startingOffsets=text).read.starting == ByDuration(
        option="startingOffsets", milliseconds=milliseconds
    )
    assert parse(startingTimestamp=text).starting == ByDuration(option="startingTimestamp", milliseconds=milliseconds)
    assert parse(endingTimestamp=text).ending == ByDuration(option="endingTimestamp", milliseconds=milliseconds)


def test_committed_is_by_the_commit_group_before_the_client_s() -> None:
    both = parse_stream(startingOffsets="committed", commitGroupId="a", kafka__group__id="b")
    assert both.read.starting == Committed(group_id="a")
    batch = parse(startingOffsets="committed", kafka__group__id="b")
    assert batch.starting == Committed(group_id="b")
    assert batch.warnings == ()
    with pytest.raises(OptionError, match="needs a group"):
        parse(startingOffsets="committed")


def test_the_isolation_level_goes_by_two_names() -> None:
    assert parse(isolation__level="read_committed").client.isolation_level == "read_committed"
    assert parse(isolation__level="READ_COMMITTED", kafka__isolation__level="read_committed").warnings == ()
    with pytest.raises(OptionError, match=r"^isolation\.level: kafka\.isolation\.level has another value"):
        parse(isolation__level="read_committed", kafka__isolation__level="read_uncommitted")


def test_offsets_with_topic_ids_are_taken_from_a_stream_s_progress() -> None:
    text = '{"t": {"0": 5}, "#topicIds": {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}}'
    position = AtOffsets(option="startingOffsets", offsets={TopicPartition("t", 0): 5})
    assert parse_stream(startingOffsets=text).read.starting == position


def test_what_nobody_knows_yet_to_be_a_batch_or_a_stream() -> None:
    assert parse_any_options({**LEAST, "endingOffsets": "latest"}).starting == Earliest()
    assert parse_any_options({**LEAST, "startingOffsets": "latest"}).starting == Latest()
    with pytest.raises(OptionError, match=r"^maxOffsetsPerTrigger: "):
        parse_any_options({**LEAST, "startingOffsets": "latest", "maxOffsetsPerTrigger": "x"})
    with pytest.raises(OptionError, match=r"^endingOffsets: "):
        parse_any_options({**LEAST, "endingOffsets": "earliest"})


def test_filters_are_pushed_into_batches_only() -> None:
    assert parse(pushdown="true").warnings == ()
    with pytest.raises(OptionError, match=r"^pushdown: 'maybe' is neither"):
        parse(pushdown="maybe")
    [warning] = parse_stream(pushdown="true").read.warnings
    assert "pushdown has no effect on a stream" in warning
