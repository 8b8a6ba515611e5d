"""Listeners with SASL: logins of other clients and ours with every mechanism, sessions, and refusals.

Brokers that log in to each other, and one that is stopped or cannot start, have their own cluster.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import aiokafka
import aiokafka.helpers
import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from kraftpy.client import Admin, KafkaError
from kraftpy.client.connection import TlsFailed
from kraftpy.client.ranges.cluster import BlockingCluster
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS as MECHANISMS_OF_SCRAM
from kraftpy.security.scram import ScramClient, salted_password
from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import (
    PLAIN_MODULE,
    SCRAM_MODULE,
    add_users,
    listener_settings,
    produce_for,
    reason_not_to_start,
    replicate,
    round_trip_by_aiokafka,
    round_trip_by_confluent,
    round_trip_by_kafka_python,
    round_trip_by_ours,
)
from tests.security.wire import BOUND_SECONDS, PASSWORD, Wire
from tests.waiting import sleep_until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
REAUTHENTICATE_MS = 1_500
DELAY_MS = 300


class Secured:
    """A broker with SASL in clear text, over TLS, and with sessions that end; and a plain listener to set it up."""

    def __init__(self, certificates: Certificates, ports: ReservedPorts) -> None:
        self.certificates = certificates
        protocols = {"plain": "PLAINTEXT", "clear": "SASL_PLAINTEXT", "tls": "SASL_SSL", "short": "SASL_PLAINTEXT"}
        self.port = {name: ports.reserve() for name in protocols}
        users = f'{PLAIN_MODULE} required user_alice="{PASSWORD}" user_bob="bob\'s";'
        self.broker = EmbeddedBroker(
            settings={
                **listener_settings(self.port, protocols),
                "inter.broker.listener.name": "PLAIN",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                **{f"listener.name.{name}.plain.sasl.jaas.config": users for name in ("clear", "tls", "short")},
                "listener.name.short.connections.max.reauth.ms": str(REAUTHENTICATE_MS),
                "connection.failed.authentication.delay.ms": str(DELAY_MS),
                "sasl.server.max.receive.size": "10000",
                **certificates.settings(),
            }
        )

    def address(self, name: str) -> str:
        return f"{HOST}:{self.port[name]}"

    def options(self, name: str, mechanism: str, username: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
        """The options of confluent's clients."""
        protocol = "sasl_ssl" if name == "tls" else "sasl_plaintext"
        return {
            "bootstrap.servers": self.address(name),
            "security.protocol": protocol,
            "ssl.ca.location": str(self.certificates.trusted),
            "sasl.mechanism": mechanism,
            "sasl.username": username,
            "sasl.password": password,
        }

    def python_options(self, name: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        """The options of kafka-python's and aiokafka's clients, without TLS's."""
        return {
            "bootstrap_servers": self.address(name),
            "security_protocol": "SASL_SSL" if name == "tls" else "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }

    def our_options(self, name: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address(name),
            "security_protocol": "SASL_SSL" if name == "tls" else "SASL_PLAINTEXT",
            "ssl_truststore_location": str(self.certificates.trusted) if name == "tls" else None,
            "sasl_mechanism": mechanism,
            "sasl_username": "alice",
            "sasl_password": password,
        }


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> Iterator[Secured]:
    with ReservedPorts() as ports:
        made = Secured(certificates, ports)
        with made.broker as running:
            add_users(made.address("plain"), "alice")
            yield made
            assert "Traceback" not in running.log_text
            assert PASSWORD not in running.log_text


def topic_of(name: str, mechanism: str, library: str) -> str:
    return f"{library}-{name}-{mechanism.lower()}"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["clear", "tls"])
def test_confluent_gets_in(secured: Secured, name: str, mechanism: str) -> None:
    options, topic = secured.options(name, mechanism), topic_of(name, mechanism, "confluent")
    round_trip_by_confluent(options, topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["clear", "tls"])
def test_kafka_python_gets_in(secured: Secured, name: str, mechanism: str) -> None:
    options, topic = secured.python_options(name, mechanism), topic_of(name, mechanism, "kafka-python")
    options["ssl_cafile"] = str(secured.certificates.trusted)
    round_trip_by_kafka_python(options, topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["clear", "tls"])
async def test_aiokafka_gets_in(secured: Secured, name: str, mechanism: str) -> None:
    options, topic = secured.python_options(name, mechanism), topic_of(name, mechanism, "aiokafka")
    if name == "tls":
        options["ssl_context"] = aiokafka.helpers.create_ssl_context(cafile=str(secured.certificates.trusted))
    await round_trip_by_aiokafka(options, topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["clear", "tls"])
async def test_our_client_gets_in(secured: Secured, name: str, mechanism: str) -> None:
    options, topic = secured.our_options(name, mechanism), topic_of(name, mechanism, "ours")
    await round_trip_by_ours(options, topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_our_client_is_told_why_it_is_refused(secured: Secured, mechanism: str) -> None:
    with pytest.raises(KafkaError) as refused:
        async with Admin(**secured.our_options("tls", mechanism, "wrong")) as admin:
            await admin.list_topics()
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "wrong" not in str(refused.value).replace("wrong password", "")


async def test_our_client_trusts_no_other_authority_and_no_other_host(
    secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It is refused before a password is sent."""
    other = Certificates(tmp_path_factory.mktemp("other"))
    elsewhere = secured.our_options("tls", "PLAIN")
    elsewhere["bootstrap_servers"] = elsewhere["bootstrap_servers"].replace(HOST, "localhost")
    for options in ({**secured.our_options("tls", "PLAIN"), "ssl_truststore_location": str(other.trusted)}, elsewhere):
        with pytest.raises(TlsFailed, match="certificate verify failed"):
            async with Admin(**options) as admin:
                await admin.list_topics()
        with pytest.raises(TlsFailed, match="certificate verify failed"), BlockingCluster(**options) as cluster:
            cluster.topics(["any"])  # at once: with another error it would ask until its time is up


async def test_our_client_takes_any_host_if_names_are_not_checked(
    secured: Secured, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """But no other authority: `ssl.endpoint.identification.algorithm` is empty."""
    elsewhere = {**secured.our_options("tls", "PLAIN"), "ssl_endpoint_identification_algorithm": ""}
    elsewhere["bootstrap_servers"] = elsewhere["bootstrap_servers"].replace(HOST, "localhost")
    async with Admin(**elsewhere) as admin:
        await admin.list_topics()
    with BlockingCluster(**elsewhere) as cluster:
        assert not cluster.topics([])
    elsewhere["ssl_truststore_location"] = str(Certificates(tmp_path_factory.mktemp("other")).trusted)
    with pytest.raises(TlsFailed, match="certificate verify failed"):
        async with Admin(**elsewhere) as admin:
            await admin.list_topics()


def test_nothing_is_served_before_a_client_is_known(secured: Secured) -> None:
    for key, version, message in [
        (ApiKey.METADATA, 12, MetadataRequest(topics=None)),
        (ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=plain_message("alice", PASSWORD))),
    ]:
        with Wire.to(secured.port["clear"]) as wire:
            wire.send(key, version, message)
            assert wire.is_closed()
    with Wire.to(secured.port["clear"]) as wire:
        assert wire.handshake("PLAIN").error_code == 0
        wire.send(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        frame = wire.receive()
        assert frame is None or b"confluent" not in frame
        assert wire.is_closed()


def test_requests_sent_along_with_a_handshake_wait_for_its_end(secured: Secured) -> None:
    with Wire.to(secured.port["clear"]) as wire:
        wire.send(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        wire.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=plain_message("alice", PASSWORD)))
        wire.send(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        assert [wire.receive() is not None for _ in range(3)] == [True, True, True]
    with Wire.to(secured.port["clear"]) as wire:
        wire.send(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        wire.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=plain_message("alice", "wrong")))
        wire.send(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        assert [wire.receive() is not None for _ in range(3)] == [True, True, False]


def test_the_versions_are_told_once(secured: Secured) -> None:
    with Wire.to(secured.port["clear"]) as wire:
        wire.send(ApiKey.API_VERSIONS, 4, ApiVersionsRequest(client_software_name="-", client_software_version="1"))
        assert wire.receive() is not None  # refused, and may be asked again
        software = {"client_software_name": "test", "client_software_version": "1"}
        wire.send(ApiKey.API_VERSIONS, 4, ApiVersionsRequest(**software))
        assert wire.receive() is not None
        wire.send(ApiKey.API_VERSIONS, 4, ApiVersionsRequest(**software))
        assert wire.is_closed()


def test_an_unknown_mechanism_is_refused_with_those_there_are(secured: Secured) -> None:
    with Wire.to(secured.port["clear"]) as wire:
        answer = wire.handshake("GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == list(MECHANISMS)
        assert wire.is_closed()


@pytest.mark.parametrize(
    "token",
    [
        plain_message("alice", "wrong"),
        plain_message("nobody", PASSWORD),
        plain_message("alice", ""),
        plain_message("", PASSWORD),
        b"bob\0alice\0" + PASSWORD.encode(),
        b"alice\0" + PASSWORD.encode(),
        b"\0\0\0\0",
        b"",
        b"\xff\0\xff\0\xff",
    ],
)
def test_a_failure_is_told_after_a_while_and_ends_the_connection(secured: Secured, token: bytes) -> None:
    with Wire.to(secured.port["clear"]) as wire:
        assert wire.handshake("PLAIN").error_code == 0
        began = time.monotonic()
        answer = wire.token(token)
        assert time.monotonic() - began >= DELAY_MS / 1000 * 0.9
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message.startswith("Authentication failed")
        assert PASSWORD not in answer.error_message
        assert wire.is_closed()


def test_wrong_passwords_and_unknown_names_are_answered_alike(secured: Secured) -> None:
    for mechanism in MECHANISMS[1:]:
        told = {scram_failure(secured, mechanism, name) for name in ("alice", "nobody", "nobody")}
        assert len(told) == 1, told


def scram_failure(secured: Secured, mechanism: str, name: str) -> tuple[int, str, int]:
    """The error, its message, and the iterations that a wrong password gets."""
    with Wire.to(secured.port["clear"]) as wire:
        assert wire.handshake(mechanism).error_code == 0
        challenge = wire.token(f"n,,n={name},r=abc".encode()).auth_bytes.decode()
        parts = dict(part.split("=", 1) for part in challenge.split(","))
        answer = wire.token(f"c=biws,r={parts['r']},p=AAAA".encode())
        return answer.error_code, answer.error_message, int(parts["i"])


def test_bare_tokens_of_old_clients(secured: Secured) -> None:
    for password, is_right in ((PASSWORD, True), ("wrong", False)):
        with Wire.to(secured.port["clear"]) as wire:
            assert wire.handshake("PLAIN", version=0).error_code == 0
            wire.send_frame(plain_message("alice", password))
            assert wire.receive() == (b"" if is_right else None)
            if is_right:
                assert wire.is_served()


def test_each_older_version_of_authentication_is_served(secured: Secured) -> None:
    """Version 0 does not tell how long a session lasts; it ends nevertheless, as with Kafka."""
    with Wire.to(secured.port["short"]) as oldest, Wire.to(secured.port["short"]) as newer:
        for version, wire, lifetime_ms in ((0, oldest, 0), (1, newer, REAUTHENTICATE_MS)):
            assert wire.handshake("PLAIN").error_code == 0
            answer = wire.token(plain_message("alice", PASSWORD), version)
            assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", lifetime_ms)
            assert wire.is_served()
        sleep_until(time.monotonic() + REAUTHENTICATE_MS / 1000)
        assert not oldest.is_served()
        assert not newer.is_served()
    for version in (0, 1):
        with Wire.to(secured.port["clear"]) as wire:
            assert wire.handshake("PLAIN").error_code == 0
            answer = wire.token(plain_message("alice", "wrong"), version)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "Authentication failed: Invalid username or password"
            assert wire.is_closed()
        with Wire.to(secured.port["clear"]) as wire:
            assert wire.handshake("SCRAM-SHA-256").error_code == 0
            client = ScramClient(MECHANISMS_OF_SCRAM["SCRAM-SHA-256"], "alice", "clients")
            salt, iterations = client.challenged(wire.token(client.first(), version).auth_bytes)
            salted = salted_password(client.mechanism, PASSWORD, salt, iterations)
            client.verify(wire.token(client.final(salted), version).auth_bytes)
            assert wire.is_served()


def test_requests_before_authentication_are_short(secured: Secured) -> None:
    with Wire.to(secured.port["clear"]) as wire:
        wire.socket.sendall((10_001).to_bytes(4, "big"))
        assert wire.is_closed()
    with Wire.to(secured.port["clear"]) as wire:
        assert wire.log_in().error_code == 0
        wire.send(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        assert wire.receive() is not None
        with contextlib.suppress(OSError):
            wire.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=bytes(20_000)))
        assert wire.receive() is not None  # it is long enough for a known client


def test_a_second_authentication_is_refused_without_a_session_that_ends(secured: Secured) -> None:
    with Wire.to(secured.port["clear"]) as wire:
        assert wire.log_in().session_lifetime_ms == 0
        assert wire.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.token(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.is_served()


def test_a_session_ends_unless_it_is_renewed(secured: Secured) -> None:
    with Wire.to(secured.port["short"]) as wire, Wire.to(secured.port["short"]) as forgetful:
        assert forgetful.log_in().session_lifetime_ms == REAUTHENTICATE_MS
        began = time.monotonic()
        assert wire.log_in().session_lifetime_ms == REAUTHENTICATE_MS
        assert wire.is_served()
        for _ in range(2):
            sleep_until(began + REAUTHENTICATE_MS / 1000 * 0.8)
            began = time.monotonic()
            assert wire.log_in().session_lifetime_ms == REAUTHENTICATE_MS
            assert wire.is_served()
        assert not forgetful.is_served()


@pytest.mark.parametrize(
    ("name", "password", "mechanism", "message"),
    [
        ("bob", "bob's", "PLAIN", "Cannot change principals during re-authentication from User.alice: User.bob"),
        ("alice", "wrong", "PLAIN", "Authentication failed: Invalid username or password"),
        (
            "alice",
            PASSWORD,
            "SCRAM-SHA-256",
            "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism "
            "'PLAIN'",
        ),
    ],
)
def test_a_session_is_renewed_by_the_same_user_and_mechanism(
    secured: Secured, name: str, password: str, mechanism: str, message: str
) -> None:
    with Wire.to(secured.port["short"]) as wire:
        assert wire.log_in().error_code == 0
        assert wire.handshake(mechanism).error_code == 0
        answer = wire.token(plain_message(name, password))
        assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)
        assert wire.is_closed()


def test_a_session_is_renewed_once_a_second_at_most(secured: Secured) -> None:
    with Wire.to(secured.port["short"]) as wire:
        assert wire.log_in().error_code == 0
        assert wire.log_in().error_code == 0
        assert wire.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_confluent_goes_on_beyond_the_end_of_a_session(secured: Secured) -> None:
    produce_for(3 * REAUTHENTICATE_MS / 1000, secured.options("short", "SCRAM-SHA-256"), "renewed")


def test_credentials_are_described_altered_and_deleted(secured: Secured) -> None:
    admin = AdminClient(secured.options("tls", "SCRAM-SHA-512"))
    add_users(secured.address("plain"), "carol", password="first")
    described = admin.describe_user_scram_credentials(["carol"])["carol"].result(BOUND_SECONDS)
    told = [(info.mechanism, info.iterations) for info in described.scram_credential_infos]
    assert told == [(ScramMechanism.SCRAM_SHA_256, 4096), (ScramMechanism.SCRAM_SHA_512, 4096)]
    everybody = admin.describe_user_scram_credentials().result(BOUND_SECONDS)
    assert {"alice", "carol"} <= set(everybody)
    assert can_list(secured, "carol", "first")
    add_users(secured.address("plain"), "carol", password="second")
    assert not can_list(secured, "carol", "first")
    assert can_list(secured, "carol", "second")
    deletion = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["carol"].result(BOUND_SECONDS)
    assert not can_list(secured, "carol", "second")
    with pytest.raises(confluent_kafka.KafkaException) as again:
        admin.alter_user_scram_credentials([deletion])["carol"].result(BOUND_SECONDS)
    assert again.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND
    assert again.value.args[0].str() == "Attempt to delete a user credential that does not exist"


def can_list(secured: Secured, name: str, password: str) -> bool:
    options = {**secured.options("clear", "SCRAM-SHA-256", name, password), "log_level": 0}
    try:
        return bool(AdminClient(options).list_topics(timeout=3).brokers)
    except confluent_kafka.KafkaException:
        return False


def test_credentials_survive_a_restart_and_a_snapshot(tmp_path: Any) -> None:
    with ReservedPorts() as ports:
        plain, sasl = ports.reserve(), ports.reserve()
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "metadata.log.max.record.bytes.between.snapshots": "1",
        }
        options = {
            "bootstrap.servers": f"{HOST}:{sasl}",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "dora",
            "sasl.password": "d",
        }
        for number in range(2):
            with EmbeddedBroker(tmp_path, settings=settings):
                if number == 0:
                    add_users(f"{HOST}:{plain}", "dora", password="d")
                assert AdminClient(options).list_topics(timeout=BOUND_SECONDS).brokers


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_brokers_log_in_at_each_other(certificates: Certificates, mechanism: str) -> None:
    """SCRAM credentials are in the metadata, which brokers get over their links before they log in to each other."""
    own = 'username="broker" password="b"'
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    users = 'user_broker="b"' if mechanism == "PLAIN" else ""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": mechanism,
        f"listener.name.replication.{mechanism.lower()}.sasl.jaas.config": f"{module} required {own} {users};",
        **certificates.settings(),
    }
    with Cluster(3, settings=settings) as cluster:
        if mechanism != "PLAIN":
            add_users(cluster.bootstrap_servers, "broker", password="b")
        replicate(cluster)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(BOUND_SECONDS)  # its coordinator asks leaders of other brokers
        producer.begin_transaction()
        for number in range(3):
            producer.produce("replicated", b"y", partition=number)
        producer.commit_transaction(BOUND_SECONDS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "listener.name.sasl_ssl.plain.sasl.jaas.config is not set"),
        (
            {"listener.name.sasl_ssl.plain.sasl.jaas.config": "com.evil.Module required;"},
            "com.evil.Module is not supported",
        ),
        (
            {"listener.name.sasl_ssl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required a=b c=d"},
            "the login module does not end with ';'",
        ),
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "DIGEST-MD5 is not supported on SASL_SSL"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "listener.name.sasl_ssl.gssapi.sasl.jaas.config is not set"),
        ({"sasl.enabled.mechanisms": ""}, "SASL_SSL is SASL_SSL, but has no mechanism"),
    ],
)
def test_what_cannot_be_used_ends_the_start(certificates: Certificates, settings: dict[str, str], message: str) -> None:
    with ReservedPorts() as ports:
        given = {
            "listeners": f"SASL_SSL://{HOST}:{ports.reserve()}",
            "sasl.enabled.mechanisms": "PLAIN",
            **certificates.settings(),
            **settings,
        }
        assert message in reason_not_to_start(given)
