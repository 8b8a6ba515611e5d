"""`kraftpy group explain` by a principal that lacks rights to look, on its own cluster with SASL and ACLs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kraftpy.cli import cli
from kraftpy.client import (
    AclBinding,
    AclOperation,
    AclResource,
    BlockingAdmin,
    BlockingProducer,
    NewTopic,
    TopicPartition,
)
from kraftpy.testing import Cluster

USERS = {"root": "root's", "stranger": "stranger's", "looker": "looker's"}
GROUP = "billing"


def _allowing(user: str, operation: AclOperation, resource: AclResource, name: str) -> AclBinding:
    return AclBinding(resource_type=resource, name=name, principal=f"User:{user}", operation=operation)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with a group that lags in `orders`, and has a transaction's marker before it in `paid`.

    The stranger may describe `orders`, and the looker the group too; the looker may read `paid` alone.
    """
    acls = [
        _allowing("stranger", AclOperation.DESCRIBE, AclResource.TOPIC, "orders"),
        _allowing("looker", AclOperation.DESCRIBE, AclResource.TOPIC, "orders"),
        _allowing("looker", AclOperation.READ, AclResource.TOPIC, "paid"),
        _allowing("looker", AclOperation.DESCRIBE, AclResource.GROUP, GROUP),
    ]
    settings = {"super.users": "User:root", "offsets.topic.num.partitions": "1"}
    with Cluster(brokers=1, security="sasl_plaintext", users=USERS, acls=acls, settings=settings) as made:
        options = made.client_options("root")
        with BlockingAdmin(**options) as admin:
            admin.create_topics([NewTopic(name="orders", num_partitions=2), NewTopic(name="paid", num_partitions=1)])
            with BlockingProducer(**options) as producer:
                for partition in (0, 1):
                    producer.send("orders", b"value", partition=partition)
            with BlockingProducer(**options, transactional_id="payer") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("paid", b"value")
                producer.commit_transaction()
            at = {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0, TopicPartition("paid", 0): 1}
            admin.alter_group_offsets(GROUP, at)
        yield made


def told(cluster: Cluster, directory: Path, user: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """A command about groups as a user runs it: its exit status, and its rows."""
    file = directory / f"{user}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in cluster.client_properties(user).items()))
    words = ["group", *arguments, "--format", "json", "--command-config", str(file)]
    result = CliRunner().invoke(cli, words, env={"KRAFTPY_BOOTSTRAP_SERVERS": cluster.bootstrap_servers})
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert not result.stderr
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def explained(cluster: Cluster, directory: Path, user: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    return told(cluster, directory, user, "explain", GROUP, "--watch", "0", *options)


def test_a_stranger_may_not_look_at_the_group(cluster: Cluster, tmp_path: Path) -> None:
    status, rows = explained(cluster, tmp_path, "stranger")
    assert (status, [row["cause"] for row in rows]) == (1, ["not-allowed-to-look"])
    assert rows[0]["stops"] is True
    assert (
        f"the principal that asks may not look at group {GROUP}: GROUP_AUTHORIZATION_FAILED" in rows[0]["explanation"]
    )


def test_a_right_to_describe_is_enough(cluster: Cluster, tmp_path: Path) -> None:
    """The looker may not read `orders`, so offsets alone tell the lag there; in `paid` the marker is no record."""
    status, rows = explained(cluster, tmp_path, "looker")
    assert (status, [row["cause"] for row in rows]) == (1, ["no-members"])
    assert rows[0]["explanation"].endswith("; 2 offsets to be read")
    status, rows = told(cluster, tmp_path, "looker", "describe", GROUP)
    lags = [(row["topic"], row["partition"], row["lag"], row["lag_ms"]) for row in rows]
    assert (status, lags) == (0, [("orders", 0, 1, None), ("orders", 1, 1, None), ("paid", 0, 0, 0)])


def test_rights_cannot_be_told_by_those_who_may_not_see_acls(cluster: Cluster, tmp_path: Path) -> None:
    """The looker sees the group, but not whether its members may read: that is a warning beside the real cause."""
    status, rows = explained(cluster, tmp_path, "looker", "--principal", "User:app")
    assert (status, {row["cause"]: row["stops"] for row in rows}) == (
        1,
        {"no-members": True, "not-allowed-to-look": False},
    )
    said = rows[-1]["explanation"]
    assert said == "the principal that asks may not see ACLs, so it is not known which rights User:app has"
    _, rows = explained(cluster, tmp_path, "root", "--principal", "User:app")
    assert [row["cause"] for row in rows] == ["no-right", "no-right", "no-right", "no-members"]  # the group, two topics
