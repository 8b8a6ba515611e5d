"""Listeners with GSSAPI, in a Kerberos realm with a KDC: logins of other clients and ours, and refusals.

These tests are skipped unless a KDC and the library gssapi are installed (`kerberos_realm`); `make test-kerberos`
installs them. Brokers that log in to each other have their own cluster.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kerberos_realm import REALM, Realm, needs_a_realm, realm

from kraftpy.broker.startup import StartupError
from kraftpy.client import (
    Admin,
    BlockingAdmin,
    ErrorCode,
    KafkaError,
)
from kraftpy.client.kerberos import contexts_with
from kraftpy.client.properties import options_of
from kraftpy.client.security import Login
from kraftpy.config import BrokerConfig
from kraftpy.kerberos import Acceptor, Initiator, KerberosError
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.ports import HOST, ReservedPorts
from tests.security.listeners import (
    PLAIN_MODULE,
    listener_settings,
    open_connection,
    reason_not_to_start,
    replicate,
    round_trip_by_aiokafka,
    round_trip_by_kafka_python,
    round_trip_by_ours,
    secure_listeners,
)
from tests.security.wire import BOUND_SECONDS, Wire

pytestmark = needs_a_realm

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
SERVICE = f"kafka/{HOST}"
SESSION_MS = 1_300
RULES = "RULE:[2:$1;$2](.*;Admin)s/;Admin//L,DEFAULT"


def keytab_module(realm: Realm, owner: str, **more: str) -> str:
    options = {"useKeyTab": "true", "storeKey": "true", "keyTab": str(realm.keytab(owner)), "principal": owner}
    return f"{MODULE} required " + " ".join(f'{name}="{value}"' for name, value in {**options, **more}.items()) + ";"


class Served:
    """A broker whose clients have tickets: with rules, with one rule that few names fit, and with short sessions."""

    def __init__(self, realm: Realm, ports: ReservedPorts) -> None:
        self.realm = realm
        self.port = {name: ports.reserve() for name in ("sasl", "strict", "short")}
        module = keytab_module(realm, SERVICE, principal=f"{SERVICE}@{REALM}")
        self.settings = {
            **listener_settings(self.port, dict.fromkeys(self.port, "SASL_PLAINTEXT")),
            "inter.broker.listener.name": "SASL",
            "sasl.enabled.mechanisms": "GSSAPI,PLAIN",
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal.to.local.rules": RULES,
            **{f"listener.name.{name}.gssapi.sasl.jaas.config": module for name in self.port},
            **{
                f"listener.name.{name}.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_bob="b";'
                for name in self.port
            },
            "listener.name.strict.sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](b.*)",
            "listener.name.short.gssapi.connections.max.reauth.ms": str(SESSION_MS),
            "connection.failed.authentication.delay.ms": "0",
            "delegation.token.secret.key": "secret",
        }
        self.broker = EmbeddedBroker(settings=self.settings)

    def python(self) -> dict[str, Any]:
        """The options of kafka-python's and aiokafka's clients."""
        return {
            "bootstrap_servers": f"{HOST}:{self.port['sasl']}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "kafka",
        }

    def ours(self, name: str = "sasl", principal: str | None = None, **more: Any) -> dict[str, Any]:
        """The options of our clients, with the user's tickets or those of a keytab."""
        keytab = {} if principal is None else {"sasl_jaas_config": keytab_module(self.realm, principal)}
        return {**self.python(), "bootstrap_servers": f"{HOST}:{self.port[name]}", **keytab, **more}


@pytest.fixture(scope="module")
def running_realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        made.add(SERVICE, "alice", "bob", "Carol/Admin", "other/host")
        made.log_in("alice", "cache")
        yield made


@pytest.fixture(scope="module")
def served(running_realm: Realm) -> Iterator[Served]:
    with ReservedPorts() as ports:
        made = Served(running_realm, ports)
        with made.broker as running:
            yield made
            assert "Traceback" not in running.log_text


def test_kafka_python_gets_in(served: Served) -> None:
    round_trip_by_kafka_python(served.python(), "kafka-python")


async def test_aiokafka_gets_in(served: Served) -> None:
    await round_trip_by_aiokafka(served.python(), "aiokafka")


def test_kcat_gets_in(served: Served) -> None:
    """kcat is librdkafka with Cyrus SASL."""
    kcat = ["kcat", "-b", f"{HOST}:{served.port['sasl']}", "-t", "kcat"]
    for option in (
        "security.protocol=sasl_plaintext", "sasl.mechanism=GSSAPI", "sasl.kerberos.service.name=kafka",
        "sasl.kerberos.kinit.cmd=true",
    ):  # fmt: skip
        kcat += ["-X", option]
    subprocess.run([*kcat, "-P"], input=b"value", check=True, timeout=BOUND_SECONDS, stderr=subprocess.PIPE)
    found = subprocess.run(
        [*kcat, "-C", "-o", "beginning", "-c", "1", "-q"], check=True, timeout=BOUND_SECONDS, stdout=subprocess.PIPE
    )
    assert found.stdout == b"value\n"


@pytest.mark.parametrize("principal", [None, "bob"])
async def test_our_client_gets_in(served: Served, principal: str | None) -> None:
    await round_trip_by_ours(served.ours(principal=principal), f"ours-{principal}")


@pytest.mark.parametrize(
    ("principal", "name"), [(None, "alice"), ("bob", "bob"), ("Carol/Admin", "carol"), ("other/host", "other")]
)
def test_the_principal_is_the_short_name(served: Served, principal: str | None, name: str) -> None:
    with BlockingAdmin(**served.ours(principal=principal)) as admin:
        assert admin.create_delegation_token().owner == f"User:{name}"


def test_our_client_takes_the_tickets_of_a_cache(served: Served) -> None:
    cache = served.realm.log_in("bob", "bobs")
    options, ignored = options_of(
        {
            "bootstrap.servers": f"{HOST}:{served.port['sasl']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.kinit.cmd": "/usr/bin/kinit",
            "sasl.jaas.config": f'{MODULE} required useTicketCache=true ticketCache="{cache}" serviceName="kafka";',
        }
    )
    assert ignored == ["sasl.kerberos.kinit.cmd"]
    with BlockingAdmin(**options) as admin:
        assert admin.create_delegation_token().owner == "User:bob"


async def test_a_session_is_renewed(served: Served) -> None:
    login = Login(mechanism="GSSAPI", context=contexts_with("kafka", None, None))
    connection = await open_connection(served.port["short"], login)
    ends_at = time.monotonic() + 2.1 * SESSION_MS / 1000
    while time.monotonic() < ends_at:
        await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
    assert not connection.closed
    connection.close()


def refused(served: Served, name: str, principal: str | None, **more: Any) -> KafkaError:
    with pytest.raises(KafkaError) as failed, BlockingAdmin(**served.ours(name, principal, **more)) as admin:
        admin.list_topics()
    return failed.value


def test_a_principal_that_no_rule_fits_is_refused(served: Served) -> None:
    with BlockingAdmin(**served.ours("strict", "bob")) as admin:
        admin.list_topics()
    for principal in ("alice", "other/host"):
        failed = refused(served, "strict", principal)
        assert failed.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "invalid credentials with SASL mechanism GSSAPI" in str(failed)


def initiated(served: Served) -> Any:
    return Initiator(principal=None, keytab=None, cache=None).context("kafka", HOST)


def test_a_token_counts_once(served: Served) -> None:
    token = initiated(served).step(b"")
    with Wire.to(served.port["sasl"]) as first, Wire.to(served.port["sasl"]) as second:
        for wire, error in ((first, 0), (second, ErrorCode.SASL_AUTHENTICATION_FAILED)):
            assert wire.handshake("GSSAPI").error_code == 0
            answer = wire.token(token)
            assert answer.error_code == error
        assert "invalid credentials with SASL mechanism GSSAPI" in answer.error_message
        assert second.is_closed()


@pytest.mark.parametrize("version", [0, 1])
def test_the_layer_is_chosen_by_hand(served: Served, version: int) -> None:
    """In both forms of SASL: bare tokens, and tokens in requests."""
    context = initiated(served)
    with Wire.to(served.port["sasl"]) as wire:
        assert wire.handshake("GSSAPI", version).error_code == 0

        def say(token: bytes) -> bytes:
            if version:
                answer = wire.token(token)
                assert answer.error_code == 0
                return bytes(answer.auth_bytes)
            wire.send_frame(token)
            frame = wire.receive()
            assert frame is not None
            return frame

        token = context.step(say(context.step(b"")))
        assert token == b""
        assert context.unwrap(say(token)) == b"\x01\0\0\0"
        assert say(context.wrap(b"\x01\0\0\0" + f"alice@{REALM}".encode())) == b""
        assert wire.is_served()


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (b"\x02\0\xff\xff", "invalid credentials"),
        (b"\x01\0\0\0bob", "authorization id that is different"),
        (b"", "invalid credentials"),
    ],
)
def test_a_wrong_choice_is_refused(served: Served, choice: bytes, reason: str) -> None:
    context = initiated(served)
    with Wire.to(served.port["sasl"]) as wire:
        assert wire.handshake("GSSAPI").error_code == 0
        context.step(wire.token(context.step(b"")).auth_bytes)
        wire.token(b"")
        answer = wire.token(context.wrap(choice))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert reason in answer.error_message
        assert wire.is_closed()


@pytest.mark.parametrize("token", [b"", b"\0", b"alice\0alice\0secret", b"\x60\x82\x02" + b"x" * 500, b"x" * 200_000])
def test_bytes_that_are_no_token_are_refused(served: Served, token: bytes) -> None:
    with Wire.to(served.port["sasl"]) as wire:
        assert wire.handshake("GSSAPI").error_code == 0
        answer = wire.token(token)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "invalid credentials with SASL mechanism GSSAPI" in answer.error_message
        assert wire.is_closed()


def test_our_client_is_told_what_is_wrong(served: Served) -> None:
    no_service = refused(served, "sasl", "bob", sasl_kerberos_service_name="absent")
    assert no_service.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "absent" in str(no_service)
    no_tickets = f'{MODULE} required useTicketCache=true ticketCache="FILE:/nowhere";'
    failed = refused(served, "sasl", None, sasl_jaas_config=no_tickets)
    assert failed.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "GSSAPI: " in str(failed)


def test_a_broker_with_other_keys_is_found_out(served: Served, tmp_path: Path) -> None:
    """A ticket is for one service, and cannot be read without that service's key."""
    keys = Realm.keytab(served.realm, "other/host")
    token = initiated(served).step(b"")
    with pytest.raises(KerberosError):
        Acceptor(str(keys), f"{SERVICE}@{REALM}")
    with pytest.raises(KerberosError):
        Acceptor(str(keys), "other/host").context().step(token)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sasl_kerberos_service_name": None}, "sasl_kerberos_service_name must be given"),
        ({"sasl_jaas_config": f'{MODULE} required serviceName="other";'}, "sasl_kerberos_service_name is kafka, and"),
        ({"sasl_jaas_config": f'{MODULE} required useKeyTab=true keyTab="k";'}, "keyTab needs a principal"),
        ({"sasl_jaas_config": f'{PLAIN_MODULE} required username="a";'}, "is not a login module of GSSAPI"),
    ],
)
def test_wrong_options_are_named(more: dict[str, Any], message: str) -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "kafka"}
    with pytest.raises(ValueError, match=message):
        Admin(**{**options, **more})


SASL = "listener.name.sasl.gssapi.sasl.jaas.config"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({SASL: f'{MODULE} required useKeyTab=true keyTab="/nowhere" principal="kafka/host@{REALM}";'}, "/nowhere"),
        ({SASL: f"{MODULE} required useTicketCache=true;"}, "must have useKeyTab=true with keyTab and principal"),
        ({SASL: f'{PLAIN_MODULE} required username="a";'}, "is not a login module of GSSAPI"),
        ({"sasl.kerberos.service.name": ""}, "No serviceName defined in either JAAS or Kafka config"),
        ({"sasl.kerberos.principal.to.local.rules": "RULE:[1:$2]"}, "outside of the valid range 0 to 1"),
    ],
)
def test_what_cannot_be_used_ends_the_start(served: Served, settings: dict[str, str], message: str) -> None:
    with ReservedPorts() as ports:
        listener = f"SASL://{HOST}:{ports.reserve()}"
        kept = {name: value for name, value in served.settings.items() if not name.startswith("listener.name.s")}
        given = {**kept, "listeners": listener, SASL: served.settings[SASL], "sasl.enabled.mechanisms": "GSSAPI"}
        assert message in reason_not_to_start({**given, **settings})


def test_neither_end_starts_without_the_library(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    config = BrokerConfig.of(served.settings)
    with pytest.raises(StartupError, match=r"GSSAPI needs the library gssapi: install kraftpy\[kerberos\]"):
        secure_listeners(config)
    with pytest.raises(ValueError, match=r"GSSAPI needs the library gssapi: install kraftpy\[kerberos\]"):
        Admin(**served.ours())


def test_brokers_log_in_at_each_other(running_realm: Realm) -> None:
    module = keytab_module(running_realm, SERVICE, serviceName="kafka")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.replication.gssapi.sasl.jaas.config": module,
    }
    with Cluster(3, settings=settings) as cluster:
        replicate(cluster)


def test_a_kdc_that_does_not_answer_is_waited_for(
    running_realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is retriable, unlike that of a refused login."""
    with ReservedPorts() as ports:
        text = Path(running_realm.environment["KRB5_CONFIG"]).read_text()
        (tmp_path / "krb5.conf").write_text(text.replace(str(running_realm.port), str(ports.reserve())))
        monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
        keytab = str(running_realm.keytab("alice"))
        with pytest.raises(KerberosError) as failed:
            Initiator(principal="alice", keytab=keytab, cache=None).context("kafka", HOST)
    assert failed.value.is_transient
