"""Questions about settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from typing import Any

from differ import Differ
from scenario_table import scenario

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Operations. Any other, as -1 or 4, costs Kafka its controller for a second."""

TOPIC_NAMES = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    delete.retention.ms file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas
    index.interval.bytes leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms message.timestamp.before.max.ms
    message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
    remote.copy.disabled.on.delete remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable
    retention.bytes retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms
    unclean.leader.election.enable internal.segment.bytes diskless.enable errors.deadletterqueue.group.enable
    message.downconversion.enable message.format.version message.timestamp.difference.max.ms
"""
VALUES = (
    *("", " ", "0", "1", "-1", "-2", "abc", "true", "false", "TRUE", "none", "1.5", "0.5", "-0.1", "1e3", "2147483647"),
    *("2147483648", "9223372036854775807", "9223372036854775808", "delete", "compact", "compact,delete"),
    *("delete,compact", "delete,", ",delete", "delete,foo", "delete delete", "gzip", "producer", "uncompressed"),
    *("snappy", "CreateTime", "LogAppendTime", "createtime", "*", "0:1", "0:1,", "0:x", "1:", ":1", "a:b", "13", "-8"),
    *("22", "23", "17", "18", "10", "9", "1024", "1048576", " 5 ", "5 ", "null", "1,2", "é"),
)
GROUP_NAMES = """
    consumer.session.timeout.ms consumer.heartbeat.interval.ms consumer.assignment.interval.ms
    share.session.timeout.ms share.heartbeat.interval.ms share.record.lock.duration.ms share.delivery.count.limit
    share.partition.max.record.locks share.auto.offset.reset share.isolation.level share.renew.acknowledge.enable
    share.assignment.interval.ms streams.session.timeout.ms streams.heartbeat.interval.ms
    streams.num.standby.replicas streams.initial.rebalance.delay.ms streams.num.warmup.replicas
    streams.task.offset.interval.ms errors.deadletterqueue.topic.name no.such
"""
METRICS_NAMES = "metrics interval.ms match no.such"
OTHER_VALUES = (
    *("", "0", "1", "-1", "5", "10", "100", "1000", "5000", "15000", "30000", "45000", "60000", "61000", "100000"),
    *("3600001", "2147483648", "abc", "true", "earliest", "latest", "by_duration:PT1H", "by_duration:1"),
    *("by_duration:-PT1H", "read_committed", "READ_COMMITTED", "org.apache", "*", "client_id=a", "client_id=["),
    *("foo=bar", "client_id"),
)
BROKER_NAMES = """
    log.retention.ms log.retention.minutes log.retention.hours log.segment.bytes message.max.bytes num.io.threads
    num.network.threads num.replica.fetchers background.threads log.cleaner.threads log.cleaner.dedupe.buffer.size
    min.insync.replicas unclean.leader.election.enable leader.replication.throttled.rate
    follower.replication.throttled.rate replica.alter.log.dirs.io.max.bytes.per.second max.connections
    max.connections.per.ip max.connections.per.ip.overrides max.connection.creation.rate listeners
    advertised.listeners node.id broker.id log.dirs process.roles num.partitions auto.create.topics.enable
    default.replication.factor compression.type log.cleanup.policy metric.reporters principal.builder.class
    ssl.keystore.location listener.name.plaintext.ssl.keystore.location sasl.enabled.mechanisms
    offsets.topic.num.partitions group.max.session.timeout.ms group.consumer.session.timeout.ms no.such.config
    remote.log.manager.copy.max.bytes.per.second transaction.partition.verification.enable
    producer.id.expiration.ms transaction.two.phase.commit.enable log.message.timestamp.type cordoned.log.dirs
    log.roll.ms log.roll.hours log.flush.interval.messages log.index.size.max.bytes log.preallocate
    group.coordinator.rebalance.protocols share.fetch.purgatory.purge.interval.requests log.roll.jitter.ms
    log.local.retention.ms log.cleaner.min.cleanable.ratio group.share.assignment.interval.ms
    listener.name.plaintext.max.connections listener.name.plaintext.max.connection.creation.rate
    listener.name.other.max.connections
"""


def altered(kind: int, name: str, *configs: tuple[str, int, str | None], validate: bool = True) -> dict[str, Any]:
    """Return a request of IncrementalAlterConfigs for one resource."""
    told = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in configs]
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": told}], "validate_only": validate}


def described(kind: int, name: str, keys: list[str] | None, **more: Any) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return {"resources": [resource], **more}


# Describing


@scenario
def describe_configs_of_odd_resources(differ: Differ) -> None:
    differ.create("dc", 1, {"retention.ms": "1000"})
    for kind in (-1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 127):
        for name in ("dc", "", "1", "2", "-1", "x", "no.such", "sp ace", "a" * 250, "01", "+1"):
            for version in (1, 4):
                body = described(kind, name, ["retention.ms", "no.such.key"])
                differ.ask("describe_configs", body, version, note=f"type {kind} name {name[:10]!r}")


@scenario
def resources_of_an_unknown_type(differ: Differ) -> None:
    """Name one beside others, which is no reason to refuse these."""
    differ.create("ut", 1)
    names = [(3, "ut"), (TOPIC, "ut"), (TOPIC, "no.such"), (TOPIC, "sp ace"), (GROUP, "g")]
    keys = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in names]
    differ.each_version("describe_configs", {"resources": keys}, "beside an unknown type")
    for api in ("alter_configs", "incremental_alter_configs"):
        config = {"name": "retention.ms" if api == "alter_configs" else "no.such", "value": "5"}
        resources = [{"resource_type": kind, "resource_name": name, "configs": [config]} for kind, name in names]
        differ.each_version(api, {"resources": resources, "validate_only": True}, "beside an unknown type")


def describe_all(differ: Differ, kind: int, name: str) -> None:
    """Ask for all settings of a resource, with and without their sources, and for none."""
    for version in range(1, 5):
        note = f"type {kind} {name!r}"
        with_all = described(kind, name, None, include_synonyms=True, include_documentation=True)
        differ.ask("describe_configs", with_all, version, note=f"all of {note}")
        differ.ask("describe_configs", described(kind, name, None), version, note=f"all of {note}, no synonyms")
        differ.ask("describe_configs", described(kind, name, []), version, note=f"empty list of {note}")


@scenario
def describe_configs_of_topics(differ: Differ) -> None:
    differ.create("dt", 1, {"retention.ms": "1000"})
    describe_all(differ, TOPIC, "dt")
    full = {"include_synonyms": True, "include_documentation": True}
    twice = [{"resource_type": TOPIC, "resource_name": "dt", "configuration_keys": None}] * 2
    differ.each_version("describe_configs", {"resources": twice, **full}, "resource twice")
    differ.each_version("describe_configs", {"resources": []}, "none")


@scenario
def describe_configs_of_internal_topics(differ: Differ) -> None:
    for name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
        body = described(TOPIC, name, None, include_synonyms=True, include_documentation=True)
        differ.each_version("describe_configs", body, name)


@scenario
def describe_configs_of_brokers(differ: Differ) -> None:
    describe_all(differ, BROKER, "1")
    describe_all(differ, BROKER, "")


@scenario
def describe_configs_of_groups(differ: Differ) -> None:
    describe_all(differ, GROUP, "some-group")


@scenario
def describe_configs_of_client_metrics(differ: Differ) -> None:
    describe_all(differ, METRICS, "some-metrics")


@scenario
def describe_configs_of_loggers(differ: Differ) -> None:
    describe_all(differ, LOGGER, "1")


@scenario
def config_resources(differ: Differ) -> None:
    differ.ask("list_config_resources", {}, 0)
    for kinds in ([], [2], [4], [8], [16], [32], [0], [1], [3], [64], [-1], [2, 2], [16, 32], [2, 99]):
        differ.ask("list_config_resources", {"resource_types": kinds}, 1, note=str(kinds))


# Values


@scenario
def values_of_topic_settings(differ: Differ) -> None:
    differ.create("ac", 1)
    for name in TOPIC_NAMES.split():
        for value in VALUES:
            body = altered(TOPIC, "ac", (name, SET, value))
            differ.ask("incremental_alter_configs", body, 1, note=f"{name}={value}")


@scenario
def lists_of_topic_settings(differ: Differ) -> None:
    differ.create("al", 1)
    for name in [*TOPIC_NAMES.split(), "no.such", ""]:
        for operation in (DELETE, APPEND, SUBTRACT):
            for value in (None, "", "delete", "compact", "1:1", "*"):
                body = altered(TOPIC, "al", (name, operation, value))
                differ.ask("incremental_alter_configs", body, 1, note=f"{name} operation {operation} {value}")
        differ.ask("incremental_alter_configs", altered(TOPIC, "al", (name, SET, None)), 1, note=f"{name} set null")


@scenario
def lists_that_change(differ: Differ) -> None:
    differ.create("an", 1)
    policies: tuple[tuple[int, str | None], ...] = (
        *((SET, "delete"), (APPEND, "compact"), (APPEND, "compact"), (SUBTRACT, "delete"), (SUBTRACT, "delete")),
        *((SUBTRACT, "compact"), (APPEND, "delete"), (APPEND, "compact,delete"), (SUBTRACT, "compact,delete")),
        *((DELETE, None), (DELETE, "x")),
    )
    throttled: tuple[tuple[int, str | None], ...] = (
        *((APPEND, "0:1"), (APPEND, "1:1,2:1"), (SUBTRACT, "1:1"), (SUBTRACT, "*"), (APPEND, "*"), (DELETE, None)),
    )
    for name, steps, versions in (
        ("cleanup.policy", policies, (0, 1)),
        ("leader.replication.throttled.replicas", throttled, (1,)),
    ):
        for operation, value in steps:
            for version in versions:
                note = f"{name} operation {operation} {value}"
                body = altered(TOPIC, "an", (name, operation, value), validate=False)
                differ.ask("incremental_alter_configs", body, version, note=note)
                body = described(TOPIC, "an", [name], include_synonyms=True)
                differ.ask("describe_configs", body, 4, note=f"after {note}", eventually=True)


def _alteration(differ: Differ, api: str, *, validate: bool) -> None:
    """Ask to alter settings of two topics, and look at both after each request."""

    def made(name: str, *configs: tuple[str, str | None]) -> dict[str, Any]:
        told = [{"name": key, "config_operation": SET, "value": value} for key, value in configs]
        if api == "alter_configs":
            told = [{"name": key, "value": value} for key, value in configs]
        return {"resource_type": TOPIC, "resource_name": name, "configs": told}

    cases = {
        "one": [made("aa", ("retention.ms", "77"))],
        "key twice": [made("aa", ("retention.ms", "78"), ("retention.ms", "79"))],
        "resource twice": [made("aa", ("retention.ms", "80")), made("aa", ("segment.ms", "81"))],
        "good and bad": [made("aa", ("retention.ms", "80")), made("ab", ("retention.ms", "bad"))],
        "half good": [made("aa", ("retention.ms", "82"), ("segment.ms", "bad"))],
        "unknown topic": [made("no.such", ("retention.ms", "80"))],
        "empty topic": [made("", ("retention.ms", "80"))],
        "bad topic name": [made("sp ace", ("retention.ms", "80"))],
        "no configs": [made("aa")],
        "no resources": [],
        "null value": [made("aa", ("retention.ms", None))],
        "empty name": [made("aa", ("", "1"))],
        "unknown name": [made("aa", ("no.such", "1"))],
        "several": [made("aa", ("cleanup.policy", "compact"), ("min.insync.replicas", "3"))],
    }
    differ.create("aa", 1)
    differ.create("ab", 1)
    both = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None} for name in ("aa", "ab")]
    for note, resources in cases.items():
        differ.each_version(api, {"resources": resources, "validate_only": validate}, note)
        body = {"resources": both, "include_synonyms": True}
        differ.ask("describe_configs", body, 4, note=f"then {note}", eventually=True)


@scenario
def alter_configs(differ: Differ) -> None:
    _alteration(differ, "alter_configs", validate=False)


@scenario
def alter_configs_validated(differ: Differ) -> None:
    _alteration(differ, "alter_configs", validate=True)


@scenario
def incremental_alter_configs(differ: Differ) -> None:
    _alteration(differ, "incremental_alter_configs", validate=False)


@scenario
def incremental_alter_configs_validated(differ: Differ) -> None:
    _alteration(differ, "incremental_alter_configs", validate=True)


@scenario
def alter_configs_of_odd_resources(differ: Differ) -> None:
    for api in ("alter_configs", "incremental_alter_configs"):
        for kind in (0, 1, 3, 4, 8, 16, 32, 64, -1):
            for name in ("", "1", "2", "x", "g"):
                config: dict[str, Any] = {"name": "retention.ms", "value": "5"}
                if api == "incremental_alter_configs":
                    config["config_operation"] = SET
                resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
                body = {"resources": [resource], "validate_only": True}
                differ.each_version(api, body, f"type {kind} {name!r} retention.ms")


def _values_of(differ: Differ, kind: int, resource: str, names: str) -> None:
    for name in names.split():
        for value in OTHER_VALUES:
            body = altered(kind, resource, (name, SET, value))
            differ.ask("incremental_alter_configs", body, 1, note=f"{name}={value}")


@scenario
def values_of_group_settings(differ: Differ) -> None:
    _values_of(differ, GROUP, "grp", GROUP_NAMES)


@scenario
def values_of_client_metrics(differ: Differ) -> None:
    _values_of(differ, METRICS, "met", METRICS_NAMES)


@scenario
def values_of_broker_settings(differ: Differ) -> None:
    for node in ("", "1"):
        for name in BROKER_NAMES.split():
            for value in ("1", "10000", "0", "-1", "100000", "abc", "true", "delete", "gzip", ""):
                body = altered(BROKER, node, (name, SET, value))
                differ.ask("incremental_alter_configs", body, 1, note=f"{node!r} {name}={value}")
            body = altered(BROKER, node, (name, DELETE, None))
            differ.ask("incremental_alter_configs", body, 1, note=f"{node!r} {name} deleted")


@scenario
def lists_of_broker_settings(differ: Differ) -> None:
    for name in ("log.cleanup.policy", "log.retention.ms", "background.threads", "no.such", "ssl.cipher.suites"):
        for operation in (APPEND, SUBTRACT):
            for value in ("compact", "delete", "burn", "compact,delete"):
                body = altered(BROKER, "", (name, operation, value))
                differ.ask("incremental_alter_configs", body, 1, note=f"{name} operation {operation} {value}")
    for operation, value in ((APPEND, "compact"), (SUBTRACT, "delete"), (APPEND, "compact"), (DELETE, None)):
        body = altered(BROKER, "", ("log.cleanup.policy", operation, value), validate=False)
        differ.ask("incremental_alter_configs", body, 1, note=f"operation {operation} {value}")
        body = described(BROKER, "", ["log.cleanup.policy"], include_synonyms=True)
        differ.ask("describe_configs", body, 4, note=f"after operation {operation} {value}", eventually=True)


@scenario
def levels_of_loggers(differ: Differ) -> None:
    for level in ("INFO", "DEBUG", "nope", ""):
        for logger in ("root", "kafka.server.KafkaApis", "no.such.logger", ""):
            for operation in (SET, DELETE, APPEND):
                body = altered(LOGGER, "1", (logger, operation, level))
                differ.ask("incremental_alter_configs", body, 1, note=f"logger {logger} {operation} {level}")


def _set_and_delete(differ: Differ, kind: int, name: str, configs: dict[str, str]) -> None:
    """Set each, look, delete each, look."""
    steps: dict[str, list[tuple[str, int, str | None]]] = {
        "set": [(key, SET, value) for key, value in configs.items()],
        "delete": [(key, DELETE, None) for key in configs],
    }
    for step, told in steps.items():
        for config in told:
            body = altered(kind, name, config, validate=False)
            differ.ask("incremental_alter_configs", body, 1, note=f"{step} {config[0]}")
        differ.ask("list_config_resources", {"resource_types": []}, 1, note=f"after {step}", eventually=True)
        body = described(kind, name, list(configs), include_synonyms=True)
        differ.ask("describe_configs", body, 4, note=f"after {step}", eventually=True)


@scenario
def settings_of_a_group(differ: Differ) -> None:
    configs = {"consumer.session.timeout.ms": "50000", "share.auto.offset.reset": "earliest"}
    _set_and_delete(differ, GROUP, "grp2", configs)


@scenario
def settings_of_client_metrics(differ: Differ) -> None:
    _set_and_delete(differ, METRICS, "met2", {"interval.ms": "1000", "metrics": "a,b", "match": "client_id=x"})


@scenario
def settings_of_all_brokers(differ: Differ) -> None:
    _set_and_delete(differ, BROKER, "", {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})


@scenario
def settings_of_a_broker(differ: Differ) -> None:
    _set_and_delete(differ, BROKER, "1", {"leader.replication.throttled.rate": "1000000"})
