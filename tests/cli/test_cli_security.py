"""The command line at a listener with SASL: `--command-config`, and users. Its own cluster has users that change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import HOST, ReservedPorts

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """A plain listener, and one with SCRAM."""
    with ReservedPorts() as ports:
        plain, sasl = ports.reserve(), ports.reserve()
        listeners = f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl}"
        settings = {"listeners": listeners, "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}
        with EmbeddedBroker(settings=settings):
            yield f"{HOST}:{plain}", f"{HOST}:{sasl}"


def kraftpy(*arguments: str, at: str, given: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(cli, [*arguments, "-b", at], input=given)


def properties(directory: Path, password: str, **more: str) -> str:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{MODULE} required username="dora" password="{password}";',
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def commands_of(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command under a group, with the words that call it."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands_of(found, *path, name)


def test_each_command_that_connects_takes_a_client_s_settings() -> None:
    """A command without `--command-config` could not log in at a cluster with SASL."""
    options = {path: {word for each in found.params for word in each.opts} for path, found in commands_of(cli)}
    connecting = {path for path, words in options.items() if "--bootstrap-server" in words}
    assert {"topic list", "consume", "ping", "acl add", "quota set", "token create"} <= connecting
    assert {path for path in connecting if "--command-config" not in options[path]} == set()


def test_a_user_is_made_gets_in_and_is_removed(servers: tuple[str, str], tmp_path: Path) -> None:
    plain, sasl = servers
    assert kraftpy("user", "list", at=plain).output == ""
    (tmp_path / "password").write_text("a b=c\n")
    made = kraftpy("user", "set", "dora", "--password-file", str(tmp_path / "password"), at=plain)
    assert made.exit_code == 0, made.output
    assert [json.loads(line) for line in kraftpy("user", "list", "dora", at=plain).output.splitlines()] == [
        {"user": "dora", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": "dora", "mechanism": "SCRAM-SHA-512", "iterations": 4096},
    ]
    as_json = kraftpy("user", "list", "dora", "--format", "json", at=plain).output
    assert as_json.splitlines()[0] == '{"user":"dora","mechanism":"SCRAM-SHA-256","iterations":4096}'
    table = kraftpy("user", "list", "dora", "--format", "table", at=plain).output
    assert [line.split() for line in table.splitlines()] == [
        ["user", "mechanism", "iterations"],
        ["dora", "SCRAM-SHA-256", "4096"],
        ["dora", "SCRAM-SHA-512", "4096"],
    ]
    config = ("--command-config", properties(tmp_path, "a b=c"))
    for command in (
        ("topic", "create", "of-dora", *config),
        ("topic", "describe", "of-dora", *config),
        ("ping", *config),
        ("cluster", "status", *config),
        ("group", "list", *config),
        ("txn", "list", *config),
    ):
        assert kraftpy(*command, at=sasl).exit_code == 0, command
    (tmp_path / "records").write_text("value\n")
    produced = kraftpy("produce", "of-dora", str(tmp_path / "records"), *config, at=sasl)
    assert produced.exit_code == 0, produced.output
    consumed = kraftpy("consume", "of-dora", "--from-beginning", "--json", *config, at=sasl)
    assert json.loads(consumed.stdout)["value"] == "value"
    wrong = kraftpy("topic", "list", "--command-config", properties(tmp_path, "wrong"), at=sasl)
    assert wrong.exit_code == 1
    assert "SASL_AUTHENTICATION_FAILED" in wrong.output
    assert kraftpy("user", "set", "dora", "--mechanism", "SCRAM-SHA-512", at=plain, given="other").exit_code == 0
    assert kraftpy("topic", "list", *config, at=sasl).exit_code == 1
    assert kraftpy("user", "remove", "dora", at=plain).exit_code == 0
    gone = kraftpy("user", "remove", "dora", at=plain)
    assert gone.exit_code == 1
    assert "Attempt to describe a user credential that does not exist: dora" in gone.output


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ssl_truststore_type": "JKS"}, "ssl.truststore.type=JKS is not supported: only PEM is"),
        ({"ssl_truststore_password": "x"}, "a PEM store has no password"),
        ({"ssl_truststore_location": "/x"}, "without ssl.truststore.type=PEM"),
        ({"request_timeout_ms": "soon"}, "request.timeout.ms must be a number"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(
    servers: tuple[str, str], tmp_path: Path, more: dict[str, str], message: str
) -> None:
    config = properties(tmp_path, "x", **more)
    found = kraftpy("topic", "list", "--command-config", config, at=servers[1])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


def test_what_a_command_does_not_use_is_named(servers: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("group.id=g\nclient.id=mine\n")
    found = kraftpy("topic", "list", "--command-config", str(path), at=servers[0])
    assert found.exit_code == 0
    assert "group.id: not used by this command" in found.output
    assert kraftpy("topic", "list", "--command-config", str(tmp_path / "none"), at=servers[0]).exit_code == 2


@pytest.mark.parametrize("given", ["", "\n", "x" * 5_000, "\udcff"])
def test_a_password_that_is_none_is_refused(servers: tuple[str, str], tmp_path: Path, given: str) -> None:
    path = tmp_path / "password"
    path.write_bytes(given.encode("utf-8", "surrogateescape"))
    assert kraftpy("user", "set", "nobody", "--password-file", str(path), at=servers[0]).exit_code == 1
    assert "nobody" not in kraftpy("user", "list", at=servers[0]).output
