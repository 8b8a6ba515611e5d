"""Settings of any content and size: refused when they are set, or harmless; and survived if they were stored before.

Row by row: each setting of a topic and of a group is given each of many hostile values, then the topic or the group is
used, while the node's own loops (retention, flushes, compaction) run as often as they can.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from broker_wire import (
    BOUND_SECONDS,
    StartBroker,
    ask,
    connect,
    create_topic,
    fetch,
    produce,
    produce_values,
    read_all,
    serves,
)
from share_wire import Member, acquired, begin, set_group

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.directories import METADATA_DIRECTORY
from kraftpy.config import BROKER_SETTINGS, TOPIC_SETTINGS
from kraftpy.config.dynamic import DYNAMIC_SETTINGS
from kraftpy.config.group import GROUP_SETTINGS
from kraftpy.config.settings import ConfigType
from kraftpy.metadata import quorum_messages
from kraftpy.metadata.commands import ConfigChange, ConfigOperation, ConfigResourceType, SetConfigs
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import alter_configs as replacing
from kraftpy.protocol.messages import incremental_alter_configs as altering
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.types import Millis

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
LONG = "by_duration:P" + "9" * 400 + "D"
DURATIONS = [LONG, "by_duration:P" + "9" * 5_000 + "D", f"by_duration:P{2**63}D", "by_duration:P106751991167301D"]
EXTREMES = [
    str(number)
    for bound in (0, 1, 14, 1 << 15, 1 << 31, 1 << 32, 1 << 63, 1 << 64)
    for number in (bound - 1, bound, -bound)
]
HOSTILE = [
    *EXTREMES,
    "9" * 400,
    "9" * 5_000,
    "-" + "9" * 400,
    "٣",
    "1_000",
    "0x10",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "1e-400",
    "",
    " ",
    "\n1",
    "1\n2",
    "a\x1b[31m\nERROR forged",
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    "((((a{1000}){1000}){1000})",
    "x" * 32_767,
    ",".join(f"{number}:{number}" for number in range(3_000)),
    ",".join(["٣:٣"] * 3),
    "*,*",
    "delete,compact",
    "compact",
    "true",
    "FALSE",
    "LogAppendTime",
    "earliest",
    "read_committed",
    "gzip",
    *DURATIONS,
    "by_duration:P106751991167300D",
    "by_duration:PT0.999999999S",
]
BUSY = {
    "log.retention.check.interval.ms": "10",
    "log.initial.task.delay.ms": "1",
    "log.flush.scheduler.interval.ms": "10",
    "log.cleaner.backoff.ms": "10",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "replica.high.watermark.checkpoint.interval.ms": "50",
    "replica.lag.time.max.ms": "600",
    "offsets.topic.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
}
COMPACTED = {
    "cleanup_policy": "compact,delete",
    "min_cleanable_dirty_ratio": "0",
    "segment_ms": "1",
    "max_compaction_lag_ms": "9223372036854775807",
}
"""Compacted as soon as there is anything to compact."""


def change(connection: Any, kind: int, resource: str, name: str, value: str | None, operation: int = SET) -> ErrorCode:
    return changes(connection, kind, [resource], name, value, operation)[0]


def changes(
    connection: Any, kind: int, resources: Sequence[str], name: str, value: str | None, operation: int = SET
) -> list[ErrorCode]:
    """Make the same change to each of these resources, in one request."""
    config = altering.AlterableConfig(name=name, value=value, config_operation=operation)
    named = [
        altering.AlterConfigsResource(resource_type=kind, resource_name=each, configs=[config]) for each in resources
    ]
    request = altering.IncrementalAlterConfigsRequest(resources=named, validate_only=False)
    answered = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return [ErrorCode.of(each.error_code) for each in answered]


def replace(connection: Any, kind: int, resource: str, **configs: str) -> Any:
    named = replacing.AlterConfigsResource(
        resource_type=kind,
        resource_name=resource,
        configs=[replacing.AlterableConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()],
    )
    request = replacing.AlterConfigsRequest(resources=[named], validate_only=False)
    return ask(connection, ApiKey.ALTER_CONFIGS, 2, request).responses[0]


def create(connection: Any, name: str, setting: str, value: str) -> ErrorCode:
    configs = [CreatableTopicConfig(name=setting, value=value)]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs)
    answered = ask(connection, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
    return ErrorCode.of(answered.topics[0].error_code)


def use_topic(connection: Any, name: str) -> None:
    """Produce and read; a legal setting may have the broker refuse either, and never hang or end."""
    for value in (b"value" * 20, None):
        produce(connection, name, encode_batch([(time.time_ns() // 1_000_000, b"key", value, ())]))
        fetch(connection, name, 0)


def plant(broker: EmbeddedBroker, *changes: tuple[ConfigResourceType, str, str, str]) -> None:
    """Write settings into a stopped node's metadata as an earlier version accepted them."""
    journal = Journal(OsDirectory(broker.data_dir / "logs").child(METADATA_DIRECTORY))
    journal.load()
    command = SetConfigs(
        changes=tuple(
            ConfigChange(
                resource_type=kind, resource_name=resource, operations=(ConfigOperation(name=name, value=value),)
            )
            for kind, resource, name, value in changes
        ),
        time_ms=Millis(0),
    )
    submission = SubmissionId(node_id=1, nonce=os.urandom(16), sequence=0)
    journal.append(journal.last_term, quorum_messages.COMMAND + encode_submission(submission, command))
    journal.sync()
    journal.close()


def first_of(broker: EmbeddedBroker, group: str, topic_id: bytes, *, count: int) -> list[tuple[int, int]]:
    with connect(broker.bootstrap) as connection:
        begin(connection, group, topic_id, data=broker.data_dir / "logs", start=-1)
    member = Member(broker.bootstrap, group, topic_id)
    try:
        return member.take(count)
    finally:
        member.vanish()
        Member.there.remove(member)


def test_a_duration_beyond_any_number_is_refused(start_broker: StartBroker) -> None:
    """Row 1 of the attacks, when the setting is made."""
    broker = start_broker(settings=BUSY)
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "t", retention_ms="-1")  # the records are old
        produce_values(connection, "t", b"a", b"b")
        for value in DURATIONS:
            assert change(connection, GROUP, "g", "share.auto.offset.reset", value) is ErrorCode.INVALID_CONFIG
            answered = replace(connection, GROUP, "g", share_auto_offset_reset=value)
            assert answered.error_code == ErrorCode.INVALID_CONFIG
            assert "share.auto.offset.reset" in answered.error_message
            assert len(answered.error_message) < 1000
        set_group(connection, "g", share_auto_offset_reset="by_duration:P106751991167300D")
    assert first_of(broker, "g", topic_id, count=2) == [(0, 1), (1, 1)], "longer ago than there was time"


def test_a_duration_that_an_earlier_version_stored_is_survived(start_broker: StartBroker) -> None:
    """Row 1 of the attacks, when the setting is read: the group has the default, the node lives, and logs it once."""
    broker = start_broker(settings=BUSY)
    with connect(broker.bootstrap) as connection:
        topic_id = create_topic(connection, "t", retention_ms="-1")  # the records are old
        produce_values(connection, "t", b"a", b"b")
    assert broker.stop() == 0
    plant(broker, *((ConfigResourceType.GROUP, f"g{n}", "share.auto.offset.reset", v) for n, v in enumerate(DURATIONS)))
    for _ in range(2):
        broker.start()
        for number in range(len(DURATIONS)):
            with connect(broker.bootstrap) as connection:
                begin(connection, f"g{number}", topic_id, data=broker.data_dir / "logs", start=-1)
            member = Member(broker.bootstrap, f"g{number}", topic_id)
            assert acquired(member.fetch(wait_ms=100)) == [], "from the latest on, as by default"
            member.close()
            Member.there.remove(member)
        serves(broker.bootstrap)
        assert broker.stop() == 0
    lines = [line for line in broker.log_text.splitlines() if "share.auto.offset.reset" in line]
    assert len(lines) == 2 * len(DURATIONS), "one for each group and run"
    assert all("ignoring an invalid stored setting" in line and "'g" in line for line in lines)
    broker.start()
    with connect(broker.bootstrap) as connection:
        for number in range(len(DURATIONS)):
            assert change(connection, GROUP, f"g{number}", "share.auto.offset.reset", None, DELETE) is ErrorCode.NONE
        set_group(connection, "g0", share_auto_offset_reset="earliest")


def test_settings_of_topics_that_cannot_be_used_together_are_survived(start_broker: StartBroker) -> None:
    """The settings come from an earlier version, or conflict with other settings of the broker."""
    broker = start_broker(settings={**BUSY, "log.cleaner.max.compaction.lag.ms": "1000"})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "t", retention_ms="-1")
        produce_values(connection, "t", b"a")
        assert change(connection, TOPIC, "t", "min.compaction.lag.ms", "5000") is ErrorCode.INVALID_CONFIG
        assert change(connection, TOPIC, "t", "internal.segment.bytes", "0") is ErrorCode.INVALID_CONFIG
        assert create(connection, "u", "min.compaction.lag.ms", "5000") is ErrorCode.INVALID_CONFIG
    assert broker.stop() == 0
    plant(broker, (ConfigResourceType.TOPIC, "t", "min.compaction.lag.ms", "5000"))
    broker.start()
    with connect(broker.bootstrap) as connection:
        produce_values(connection, "t", b"b")
        assert change(connection, TOPIC, "t", "retention.bytes", "1000000") is ErrorCode.INVALID_CONFIG, "as a whole"
        assert change(connection, TOPIC, "t", "min.compaction.lag.ms", None, DELETE) is ErrorCode.NONE
        assert change(connection, TOPIC, "t", "retention.bytes", "1000000") is ErrorCode.NONE
    assert [value for _, value in read_all(broker.bootstrap, "t")] == [b"a", b"b"]
    assert "topic t: stored settings are not used" in broker.log_text


@pytest.mark.parametrize("setting", sorted(TOPIC_SETTINGS))
def test_any_value_of_a_topics_setting(busy: EmbeddedBroker, setting: str) -> None:
    taken = 0
    with connect(busy.bootstrap) as connection:
        topic = f"t-{setting.replace('.', '-')}"
        create_topic(connection, topic, **COMPACTED)
        for number, value in enumerate(HOSTILE):
            outcome = change(connection, TOPIC, topic, setting, value)
            assert outcome in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG), value
            if TOPIC_SETTINGS[setting].type is ConfigType.LIST:
                assert change(connection, TOPIC, topic, setting, value, APPEND) in (
                    ErrorCode.NONE,
                    ErrorCode.INVALID_CONFIG,
                )
                assert change(connection, TOPIC, topic, setting, value, SUBTRACT) in (
                    ErrorCode.NONE,
                    ErrorCode.INVALID_CONFIG,
                )
            if outcome is ErrorCode.NONE:
                taken += 1
                use_topic(connection, topic)
            assert create(connection, f"{topic}-{number}", setting, value) is outcome, value
            if outcome is ErrorCode.NONE:
                use_topic(connection, f"{topic}-{number}")
        assert change(connection, TOPIC, topic, setting, None, DELETE) is ErrorCode.NONE
    assert taken, "some are legal, and nothing was tested where none is"
    serves(busy.bootstrap)


@pytest.mark.parametrize("setting", sorted(GROUP_SETTINGS))
def test_any_value_of_a_groups_setting(busy: EmbeddedBroker, setting: str) -> None:
    group = f"g-{setting}"
    with connect(busy.bootstrap) as connection:
        topic_id = create_topic(connection, f"of-{setting.replace('.', '-')}")
        begin(connection, group, topic_id, data=busy.data_dir / "logs", start=-1)
        member = Member(busy.bootstrap, group, topic_id)
        for number, value in enumerate(HOSTILE):
            assert change(connection, GROUP, group, setting, value) in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG), value
            member.fetch(wait_ms=0)
            heartbeat = ConsumerGroupHeartbeatRequest(
                group_id=f"{group}-consumers",
                member_id=f"m{number % 3}",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["nothing"],
                topic_partitions=[],
            )
            change(connection, GROUP, f"{group}-consumers", setting, value)
            ask(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, heartbeat)
        member.close()
        Member.there.remove(member)
    serves(busy.bootstrap)


@pytest.mark.parametrize("setting", sorted(DYNAMIC_SETTINGS))
def test_any_value_of_a_brokers_setting(busy: EmbeddedBroker, setting: str) -> None:
    with connect(busy.bootstrap) as connection:
        topic = f"beside-{setting.replace('.', '-')}"
        create_topic(connection, topic, leader_replication_throttled_replicas="*")
        for value in HOSTILE:
            outcomes = changes(connection, BROKER, ["", "1"], setting, value)
            assert len(outcomes) == 2
            assert {*outcomes} <= {ErrorCode.NONE, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}
            if ErrorCode.NONE in outcomes:
                use_topic(connection, topic)
        change(connection, BROKER, "1", setting, None, DELETE)
        use_topic(connection, topic)
        change(connection, BROKER, "", setting, None, DELETE)
        use_topic(connection, topic)
    serves(busy.bootstrap)


def test_the_shortest_intervals_leave_clients_their_turn(start_broker: StartBroker) -> None:
    """An interval of 0 is legal in most settings; a loop that never pauses would never answer a client again."""
    least = {}
    for name, setting in BROKER_SETTINGS.items():
        if name.endswith((".interval.ms", ".backoff.ms", ".delay.ms", ".idle.ms")) and "heartbeat" not in name:
            floor = setting.allowed.partition("..")[0]
            least[name] = floor if floor and ".." in setting.allowed else "0"
    assert {"log.cleaner.backoff.ms", "log.flush.scheduler.interval.ms", "connections.max.idle.ms"} <= least.keys()
    del least["connections.max.idle.ms"]  # closes what this test talks through
    broker = start_broker(settings={**BUSY, **least})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "clean", cleanup_policy="compact")
        use_topic(connection, "clean")
    serves(broker.bootstrap)


def test_idle_connections_that_may_not_idle_leave_others_their_turn(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"connections.max.idle.ms": "0"})
    assert broker.stop() == 0


def test_a_list_grows_to_the_longest_value_and_no_further(busy: EmbeddedBroker) -> None:
    setting = "leader.replication.throttled.replicas"
    with connect(busy.bootstrap) as connection:
        create_topic(connection, "grows")
        for part in range(4):
            entries = ",".join(f"{number}:{part}" for number in range(1_000, 2_300))  # 9,099 characters
            expected = ErrorCode.NONE if part < 3 else ErrorCode.INVALID_CONFIG
            assert change(connection, TOPIC, "grows", setting, entries, APPEND) is expected
        use_topic(connection, "grows")
        assert change(connection, TOPIC, "grows", setting, "1000:0", SUBTRACT) is ErrorCode.NONE


@pytest.mark.parametrize("delete_retention_ms", ["0", "1", str((1 << 63) - 1)])
@pytest.mark.parametrize("jitter_ms", ["0", str((1 << 63) - 1)])
def test_extremes_of_compaction(busy: EmbeddedBroker, delete_retention_ms: str, jitter_ms: str) -> None:
    """The log is compacted, no matter how long its tombstones are kept."""
    topic = f"compacted-{delete_retention_ms}-{jitter_ms}"
    settings = {**COMPACTED, "delete_retention_ms": delete_retention_ms, "segment_jitter_ms": jitter_ms}
    with connect(busy.bootstrap) as connection:
        create_topic(connection, topic, **settings)
        began_ms = time.time_ns() // 1_000_000
        for number in range(10):  # each in a segment of its own
            value = None if number % 2 else b"value"
            batch = encode_batch([(began_ms + 10 * number, b"key", value, ())])
            assert produce(connection, topic, batch).error_code == ErrorCode.NONE
        deadline = time.monotonic() + BOUND_SECONDS
        while len([value for _, value in read_all(busy.bootstrap, topic) if value is not None]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    serves(busy.bootstrap)


def test_names_of_settings_and_resources_are_bounded(busy: EmbeddedBroker) -> None:
    with connect(busy.bootstrap) as connection:
        create_topic(connection, "names")
        for name in ("x" * 32_000, "retention.ms\n", "", "kraftpy.quorum.secret"):
            for kind, resource in ((TOPIC, "names"), (GROUP, "names"), (BROKER, "1"), (BROKER, "")):
                error = ErrorCode.INVALID_REQUEST if kind == BROKER else ErrorCode.INVALID_CONFIG  # as in Kafka
                assert change(connection, kind, resource, name, "1") is error
        for resource in ("x" * 32_000, "9" * 32_000, "-1", "٣"):
            assert change(connection, BROKER, resource, "leader.replication.throttled.rate", "1") is not ErrorCode.NONE
    serves(busy.bootstrap)


def test_what_all_settings_take_together_is_bounded(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"kraftpy.max.configs.bytes": "20000"})
    with connect(broker.bootstrap) as connection:
        create_topic(connection, "t", retention_ms="60000")
        outcomes = [
            change(connection, GROUP, f"group-{number}", "share.isolation.level", "read_committed")
            for number in range(200)
        ]
        refused = outcomes.index(ErrorCode.POLICY_VIOLATION)
        assert set(outcomes[:refused]) == {ErrorCode.NONE}
        assert set(outcomes[refused:]) == {ErrorCode.POLICY_VIOLATION}
        assert 50 < refused < 150
        assert create(connection, "u", "retention.ms", "1") is ErrorCode.POLICY_VIOLATION
        assert change(connection, GROUP, "group-0", "share.isolation.level", "read_committed") is ErrorCode.NONE
        assert change(connection, GROUP, "group-0", "share.isolation.level", None, DELETE) is ErrorCode.NONE
        assert change(connection, GROUP, "another", "share.isolation.level", "read_committed") is ErrorCode.NONE
        assert change(connection, GROUP, "another-1", "share.isolation.level", "read_committed") is not ErrorCode.NONE
    broker.stop()
    broker.start()
    with connect(broker.bootstrap) as connection:
        assert change(connection, GROUP, "another-1", "share.isolation.level", "read_committed") is not ErrorCode.NONE


def test_many_changes_are_decided_in_several_commands(busy: EmbeddedBroker) -> None:
    """Each in its place, the bad ones refused, and one that comes twice refused each time."""
    with connect(busy.bootstrap) as connection:
        names = [f"many-{number}" for number in range(250)] + ["many-7"]
        resources = [
            altering.AlterConfigsResource(
                resource_type=GROUP,
                resource_name=name,
                configs=[
                    altering.AlterableConfig(
                        name="share.isolation.level",
                        value="x" if name.endswith("9") else "read_committed",
                        config_operation=SET,
                    )
                ],
            )
            for name in names
        ]
        request = altering.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        answered = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert [each.resource_name for each in answered] == names
    for each in answered:
        expected = ErrorCode.INVALID_CONFIG if each.resource_name.endswith("9") else ErrorCode.NONE
        assert each.error_code == (ErrorCode.INVALID_REQUEST if each.resource_name == "many-7" else expected)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node whose own loops run as often as they can."""
    directory: Path = tmp_path_factory.mktemp("busy")
    with EmbeddedBroker(directory, settings=BUSY) as broker:
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.log_text, broker.log_text
