"""`Cluster(security=...)`: who gets in, who does not, and that faults and restarts work as in any cluster.

Each kind of security is its own cluster.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from kraftpy.client import (
    AclBinding,
    AclOperation,
    AclResource,
    Admin,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    TopicPartition,
)
from kraftpy.config.sources import parse_properties
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(120)]

USERS = {"alice": 'secret "of" alice\\', "bob": "secret, =of bob é"}
BOUND_SECONDS = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(security="sasl_ssl", users=USERS, keep_on_failure=True) as made:
        yield made
        for node in made.nodes:
            assert "Traceback" not in made.logs(node)
            assert not any(password in made.logs(node) for password in USERS.values())


@pytest.mark.parametrize("user", USERS)
async def test_users_get_in_by_our_client_and_by_confluent_s(cluster: Cluster, user: str) -> None:
    async with Producer(**cluster.client_options(user)) as producer:
        await (await producer.send(f"of-{user}", b"value"))
    given = cluster.client_options(user)
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": given["bootstrap_servers"],
            "security.protocol": given["security_protocol"],
            "ssl.ca.location": given["ssl_truststore_location"],
            "sasl.mechanism": given["sasl_mechanism"],
            "sasl.username": given["sasl_username"],
            "sasl.password": given["sasl_password"],
            "group.id": user,
            "auto.offset.reset": "earliest",
        }
    )
    theirs.subscribe([f"of-{user}"])
    message = theirs.poll(BOUND_SECONDS)
    theirs.close()
    assert message is not None
    assert message.value() == b"value"


async def test_nobody_else_gets_in(cluster: Cluster) -> None:
    with pytest.raises(KafkaError) as refused:
        async with Admin(**{**cluster.client_options("alice"), "sasl_password": USERS["bob"]}) as admin:
            await admin.list_topics()
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_killed_node_lets_its_users_in_again(cluster: Cluster) -> None:
    leader = cluster.quorum_leader()
    assert leader is not None
    cluster.kill(leader)
    async with Admin(**cluster.client_options()) as admin:
        assert set(await admin.describe_scram_users()) == set(USERS)
    cluster.start(leader)
    cluster.wait_in_sync()
    options = cluster.client_options("bob") | {"bootstrap_servers": cluster.address(leader)}
    async with Admin(**options) as admin:
        assert set(await admin.describe_scram_users()) == set(USERS)


def test_properties_are_kafka_s(cluster: Cluster) -> None:
    found = cluster.client_properties("alice")
    assert found["security.protocol"] == "SASL_SSL"
    assert found["bootstrap.servers"] == cluster.bootstrap_servers
    escaped = found["sasl.jaas.config"].replace("\\", "\\\\")
    assert parse_properties(f"sasl.jaas.config={escaped}")["sasl.jaas.config"] == found["sasl.jaas.config"]
    keys = cluster.directory / "security" / "keys.pem"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600


async def test_data_and_users_of_a_given_directory_stay(tmp_path: Path) -> None:
    for number in range(2):
        with Cluster(
            brokers=1, controllers=1, security="sasl_plaintext", users={"carol": "secret of carol"}, directory=tmp_path
        ) as cluster:
            async with Producer(**cluster.client_options()) as producer:
                delivery = await (await producer.send("kept", b"value"))
                assert delivery.offset == number


async def test_tls_alone_asks_for_no_login() -> None:
    async with Cluster(brokers=1, security="ssl") as cluster, Admin(**cluster.client_options()) as admin:
        assert await admin.list_topics() == []


async def test_users_may_do_what_acls_allow(tmp_path: Path) -> None:
    topic = {"resource_type": AclResource.TOPIC, "name": "events"}
    acls = [
        AclBinding(**topic, principal="User:alice", operation=AclOperation.WRITE),
        AclBinding(**topic, principal="User:bob", operation=AclOperation.READ),
    ]
    users = USERS | {"root": "secret of root"}
    for _ in range(2):  # the second time with the data, and the ACLs, of the first
        cluster = Cluster(
            security="sasl_plaintext", users=users, acls=acls, settings={"super.users": "User:root"}, directory=tmp_path
        )
        async with cluster:
            async with Admin(**cluster.client_options("root")) as admin:
                if "events" not in await admin.list_topics():
                    await admin.create_topics([NewTopic(name="events", num_partitions=1, replication_factor=3)])
                assert set(await admin.describe_acls()) == set(acls)
            async with Producer(**cluster.client_options("alice")) as producer:
                delivery = await (await producer.send("events", b"value"))
            async with Consumer(**cluster.client_options("bob"), auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("events", 0)])
                consumer.seek(TopicPartition("events", 0), delivery.offset)
                assert (await anext(consumer)).value == b"value"
            async with Producer(**cluster.client_options("bob"), enable_idempotence=False) as producer:
                with pytest.raises(KafkaError) as refused:
                    await (await producer.send("events", b"value"))
                assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_what_does_not_fit_is_refused_at_once() -> None:
    for arguments, message in (
        ({"security": "tls"}, "security must be one of ssl, sasl_plaintext, sasl_ssl, not 'tls'"),
        ({"security": "sasl_ssl"}, "needs users"),
        ({"security": "ssl", "users": USERS}, "has no users"),
        ({"users": USERS}, "users need security"),
        ({"acls": []}, "acls need security"),
        ({"security": "ssl", "acls": []}, "has no users, so that ACLs could not tell clients apart"),
    ):
        with pytest.raises(ValueError, match=message):
            Cluster(**arguments)  # type: ignore[arg-type]
