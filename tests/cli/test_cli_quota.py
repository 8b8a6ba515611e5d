"""`kraftpy quota`: quotas are set, listed and removed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.testing import EmbeddedBroker


def quota(*arguments: str, at: EmbeddedBroker) -> Result:
    return CliRunner().invoke(cli, ["quota", *arguments, "-b", at.bootstrap])


def listed(*arguments: str, at: EmbeddedBroker) -> list[object]:
    return [json.loads(line) for line in quota("list", *arguments, at=at).output.splitlines()]


def test_quotas_are_set_listed_and_removed(kraftpy_server: EmbeddedBroker) -> None:
    of_cora = ("--user", "cora")
    made = quota("set", "producer_byte_rate=1048576", "request_percentage=12.5", *of_cora, at=kraftpy_server)
    assert (made.exit_code, made.output) == (
        0,
        "user cora has producer_byte_rate=1048576, request_percentage=12.5\n",
    )
    both = ("--user", "cora", "--client-id-default")
    assert quota("set", "consumer_byte_rate=5", *both, at=kraftpy_server).exit_code == 0
    expected = [
        {"user": "cora", "quota": "producer_byte_rate", "value": 1048576},
        {"user": "cora", "quota": "request_percentage", "value": 12.5},
    ]
    shared = {"user": "cora", "client_id": None, "quota": "consumer_byte_rate", "value": 5}
    found = listed(*of_cora, at=kraftpy_server)
    assert len(found) == 3
    assert all(each in found for each in (*expected, shared))
    assert listed("--client-id-default", at=kraftpy_server) == [shared]
    table = quota("list", *both, "--format", "table", at=kraftpy_server).output
    assert "<default>" in table
    assert "consumer_byte_rate" in table
    removed = quota("remove", "request_percentage", *of_cora, at=kraftpy_server)
    assert removed.output == "user cora has no request_percentage any more\n"
    assert quota("remove", *of_cora, at=kraftpy_server).output == "user cora has no producer_byte_rate any more\n"
    assert listed(*of_cora, at=kraftpy_server) == [shared]
    gone = quota("remove", *of_cora, at=kraftpy_server)
    assert (gone.exit_code, gone.output) == (1, "kraftpy: user cora has no quotas\n")
    missing = quota("remove", "request_percentage", *both, at=kraftpy_server)
    assert missing.output == "kraftpy: user cora, client-id <default> has no request_percentage\n"
    assert quota("remove", *both, at=kraftpy_server).exit_code == 0
    assert listed(*of_cora, at=kraftpy_server) == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("set", "producer_byte_rate=1"), 2, "name an entity"),
        (("set", "producer_byte_rate=1", "--user", "a", "--user-default"), 2, "exclude each other"),
        (("set", "producer_byte_rate", "--user", "a"), 2, "is not of the form QUOTA=NUMBER"),
        (("set", "producer_byte_rate=fast", "--user", "a"), 2, "is not of the form QUOTA=NUMBER"),
        (("set", "producer_byte_rate=0.5", "--user", "a"), 1, "producer_byte_rate cannot be a fractional value."),
        (("set", "nonsense=1", "--user", "a"), 1, "Invalid configuration key nonsense"),
        (("set", "connection_creation_rate=1", "--ip", "no.host.invalid"), 1, "not a valid IP or resolvable host"),
        (("set", "connection_creation_rate=1", "--ip", "::1", "--user", "a"), 1, "Invalid quota entity combination"),
    ],
)
def test_what_is_refused(kraftpy_server: EmbeddedBroker, arguments: tuple[str, ...], status: int, message: str) -> None:
    refused = quota(*arguments, at=kraftpy_server)
    assert refused.exit_code == status, refused.output
    assert message in refused.output
    assert quota("list", at=kraftpy_server).exit_code == 0
