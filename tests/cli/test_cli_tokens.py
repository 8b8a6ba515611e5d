"""`kraftpy token` at a listener with SASL: what it prints, and what it keeps to itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.testing import EmbeddedBroker
from kraftpy.testing.ports import HOST, ReservedPorts

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ReservedPorts() as ports:
        address = f"{HOST}:{ports.reserve()}"
        settings = {
            "listeners": f"SASL_PLAINTEXT://{address}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="a" user_bob="b";',
            "delegation.token.secret.key": "secret",
        }
        with EmbeddedBroker(settings=settings):
            yield address


@pytest.fixture
def alice(tmp_path: Path) -> str:
    return properties(tmp_path / "alice", "PLAIN", f'{PLAIN} required username="alice" password="a";')


def properties(path: Path, mechanism: str, jaas: str) -> str:
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def kraftpy(*arguments: str, at: str, config: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, [*arguments, "-b", at, "--command-config", config])


def test_a_token_is_made_gets_in_is_renewed_and_removed(server: str, alice: str, tmp_path: Path) -> None:
    created = kraftpy("token", "create", "--renewer", "User:bob", "--max-lifetime-ms", "50000", at=server, config=alice)
    assert created.exit_code == 0, created.output
    made = json.loads(created.stdout)
    token_id, password = made["token"], made.pop("password")
    assert (made["owner"], made["requester"], made["renewers"]) == ("User:alice", "User:alice", ["User:bob"])
    assert made["expires"] == made["expires_at_most"] == made["issued"] + 50_000
    listed = kraftpy("token", "list", "User:alice", at=server, config=alice)
    assert made in [json.loads(line) for line in listed.stdout.splitlines()]
    assert kraftpy("token", "list", "User:alice", "--format", "json", at=server, config=alice).stdout == listed.stdout
    table = kraftpy("token", "list", "User:alice", "--format", "table", at=server, config=alice)
    *heading, row = [line.split() for line in table.stdout.splitlines() if "token" in line or token_id in line]
    assert heading == [["token", "owner", "requester", "renewers", "issued", "expires", "most"]]
    assert row == [str(each) for each in {**made, "renewers": "User:bob"}.values()]
    assert password not in listed.output + table.output
    assert kraftpy("token", "list", "User:nobody", at=server, config=alice).stdout == ""
    jaas = f'{SCRAM} required username="{token_id}" password="{password}" tokenauth="true";'
    bearer = properties(tmp_path / "bearer", "SCRAM-SHA-512", jaas)
    assert kraftpy("topic", "list", at=server, config=bearer).exit_code == 0
    refused = kraftpy("token", "create", at=server, config=bearer)
    assert refused.exit_code == 1
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused.output
    bob = properties(tmp_path / "bob", "PLAIN", f'{PLAIN} required username="bob" password="b";')
    sooner = kraftpy("token", "expire", token_id, "--period-ms", "40000", at=server, config=bob)
    assert (sooner.exit_code, sooner.output.startswith(f"{token_id} expires at ")) == (0, True)
    later = kraftpy("token", "renew", token_id, at=server, config=bob)
    assert later.output == f"{token_id} expires at {made['expires_at_most']}\n"
    removed = kraftpy("token", "expire", token_id, at=server, config=bob)
    assert (removed.exit_code, removed.output) == (0, f"{token_id} is removed\n")
    gone = kraftpy("token", "renew", token_id, at=server, config=alice)
    assert gone.exit_code == 1
    assert f"there is no token {token_id}" in gone.output
    assert kraftpy("topic", "list", at=server, config=bearer).exit_code == 1


def test_principals_have_a_type(server: str, alice: str) -> None:
    found = kraftpy("token", "create", "--owner", "bob", at=server, config=alice)
    assert found.exit_code == 2
    assert "expected a string in format principalType:principalName but got bob" in " ".join(found.output.split())
    assert kraftpy("token", "list", "bob", at=server, config=alice).exit_code == 2
    owned = kraftpy("token", "create", "--owner", "User:bob", at=server, config=alice)
    assert json.loads(owned.stdout)["owner"] == "User:bob"
