"""`kraftpy config`: the settings of each kind of resource are listed, described and altered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.testing import EmbeddedBroker


def config(*arguments: str, at: EmbeddedBroker) -> Result:
    return CliRunner().invoke(cli, ["config", *arguments, "-b", at.bootstrap])


def described(*arguments: str, at: EmbeddedBroker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in config("describe", *arguments, at=at).output.splitlines()]


def done(*arguments: str, at: EmbeddedBroker) -> str:
    result = config(*arguments, at=at)
    assert result.exit_code == 0, result.output
    return result.output


def row(resource: str, setting: str, value: str, source: str) -> dict[str, Any]:
    return {
        "resource": resource,
        "setting": setting,
        "value": value,
        "source": source,
        "read_only": False,
        "sensitive": False,
    }


@pytest.mark.parametrize(
    ("resource", "setting", "value", "source"),
    [
        ("topic:settings", "retention.ms", "60000", "dynamic_topic_config"),
        ("broker:1", "log.segment.delete.delay.ms", "60001", "dynamic_broker_config"),
        ("brokers", "log.cleaner.backoff.ms", "15001", "dynamic_default_broker_config"),
        ("group:settings", "consumer.session.timeout.ms", "50000", "dynamic_group_config"),
        ("logger:1", "kraftpy.broker.upkeep", "ERROR", "dynamic_broker_logger_config"),
        ("client-metrics:settings", "interval.ms", "1000", "dynamic_client_metrics_config"),
    ],
)
def test_settings_of_each_kind(
    kraftpy_server: EmbeddedBroker, resource: str, setting: str, value: str, source: str
) -> None:
    at = kraftpy_server
    CliRunner().invoke(cli, ["topic", "create", "settings", "--if-not-exists", "-b", at.bootstrap])
    expected = row(resource, setting, value, source)
    before = described(resource, "--setting", setting, at=at)
    change = ("alter", resource, "--config", f"{setting}={value}")
    assert done(*change, "--dry-run", at=at) == f"{resource} can be altered\n"
    assert described(resource, "--setting", setting, at=at) == before
    assert done(*change, at=at) == f"altered {resource}\n"
    assert described(resource, "--setting", setting, at=at) == [expected]
    assert expected in described(resource, at=at)
    assert resource in [*done("list", at=at).splitlines(), "brokers"]
    assert done("alter", resource, "--delete-config", setting, at=at) == f"altered {resource}\n"
    assert described(resource, "--setting", setting, at=at) == before


def test_lists_synonyms_and_documentation(kraftpy_server: EmbeddedBroker) -> None:
    at = kraftpy_server
    CliRunner().invoke(cli, ["topic", "create", "listed", "-b", at.bootstrap])
    done("alter", "topic:listed", "--append", "cleanup.policy=compact", at=at)
    done("alter", "topic:listed", "--subtract", "cleanup.policy=delete", at=at)
    arguments = ("topic:listed", "-s", "cleanup.policy", "--synonyms", "--documentation")
    (found,) = described(*arguments, at=at)
    assert found["synonyms"] == [
        "dynamic_topic_config:cleanup.policy=compact",
        "default_config:log.cleanup.policy=delete",
    ]
    assert found["documentation"]
    (unused,) = described("broker:1", "-s", "background.threads", "--documentation", at=at)
    assert unused["documentation"] == "Threads for odd jobs. (No effect in this broker.)"
    assert "cleanup.policy" in {each["setting"] for each in described("topic:listed", at=at)}
    assert "retention.ms" not in {each["setting"] for each in described("topic:listed", at=at)}
    assert len(described("topic:listed", "--all", at=at)) > 30
    table = config("describe", "topic:listed", "--format", "table", at=at).output
    assert "dynamic topic" in table
    kinds = done("list", "--kind", "topic", "--kind", "broker", at=at).splitlines()
    assert {"topic:listed", "broker:1"} <= set(kinds)
    assert not [each for each in kinds if not each.startswith(("topic:", "broker:"))]
    assert "logger:1" in done("list", at=at).splitlines()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("describe", "orders"), 2, "'orders' is neither KIND:NAME"),
        (("describe", "queue:x"), 2, "'queue:x' is neither KIND:NAME"),
        (("alter", "broker:one", "-c", "a=b"), 2, "a node is named by its number"),
        (("alter", "brokers"), 2, "nothing to change"),
        (("alter", "brokers", "-c", "a=b", "-d", "a"), 2, "a is to be changed in two ways"),
        (("alter", "brokers", "--append", "a"), 2, "'a' is not NAME=VALUE"),
        (("alter", "brokers", "-c", "node.id=2"), 1, "Cannot update these configs dynamically: [node.id]"),
        (("alter", "logger:1", "-c", "root=LOUD"), 1, "is not a supported log level"),
        (("describe", "broker:7"), 1, "broker 7 is unknown; those that run are 1"),
        (("alter", "broker:7", "-c", "log.retention.ms=1"), 1, "broker 7 is unknown; those that run are 1"),
        (("describe", "logger:7"), 1, "broker 7 is unknown; those that run are 1"),
        (("describe", "topic:missing"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_wrong_commands_are_one_line(
    kraftpy_server: EmbeddedBroker, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = config(*arguments, at=kraftpy_server)
    assert result.exit_code == status
    assert message in result.output
