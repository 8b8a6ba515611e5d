"""Quotas of authenticated users, over SASL and TLS; and replication, which no quota slows.

The test of replication has its own cluster, with quotas for every user.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from kraftpy.client import BlockingAdmin
from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import PLAIN_MODULE

BOUND_SECONDS = 30.0
PASSWORD = "secret"


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "SASL_SSL"])
def servers(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[tuple[str, str, str]]:
    """A plain listener to administer, and one with SASL in clear text or over TLS, and its protocol."""
    with ReservedPorts() as ports:
        plain, sasl = ports.reserve(), ports.reserve()
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},{request.param}://{HOST}:{sasl}",
            "sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{request.param.lower()}.plain.sasl.jaas.config": (
                f'{PLAIN_MODULE} required user_alice="{PASSWORD}" user_bob="{PASSWORD}";'
            ),
        }
        if request.param == "SASL_SSL":
            settings |= certificates.settings()
        with EmbeddedBroker(settings=settings):
            yield f"{HOST}:{plain}", f"{HOST}:{sasl}", request.param


def produce(servers: tuple[str, str, str], certificates: Certificates, user: str) -> list[float]:
    """Produce one record as a user with a client id that others use too; return the throttle times of the answers."""
    _, address, protocol = servers
    told: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "client.id": "shared",
            "security.protocol": protocol,
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(certificates.trusted),
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    producer.produce("t", bytes(1000))
    assert producer.flush(BOUND_SECONDS) == 0
    return told


def test_a_quota_of_a_user_is_not_that_of_another(servers: tuple[str, str, str], certificates: Certificates) -> None:
    with BlockingAdmin(bootstrap_servers=servers[0]) as admin:
        admin.alter_client_quotas({"user": "alice"}, {"request_percentage": 0.0001})
    assert not any(produce(servers, certificates, "bob"))
    assert any(produce(servers, certificates, "alice"))
    with BlockingAdmin(bootstrap_servers=servers[0]) as admin:
        admin.alter_client_quotas({"user": "alice"}, {"request_percentage": None})
    assert not any(produce(servers, certificates, "alice"))


def test_followers_are_not_held_to_quotas_of_clients() -> None:
    """If a follower were throttled, each of its fetches would take a second, and these records a minute."""
    settings = {"replica.lag.time.max.ms": "600000"}  # so that no leader continues without a follower
    with Cluster(can_partition=False, settings=settings, keep_on_failure=True) as cluster:
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.alter_client_quotas({"user": "ANONYMOUS", "client-id": "free"}, {"request_percentage": 1e6})
            admin.alter_client_quotas({"user": None}, {"consumer_byte_rate": 1, "request_percentage": 1e-9})
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "free", "acks": "all", "linger.ms": 0}
        )
        errors: list[object] = []
        give_up_at = time.monotonic() + BOUND_SECONDS
        for _ in range(60):
            producer.produce("t", bytes(10_000), partition=0, on_delivery=lambda error, _: errors.append(error))
            assert producer.flush(give_up_at - time.monotonic()) == 0
        assert errors == [None] * 60
