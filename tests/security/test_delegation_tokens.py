"""Delegation tokens: which clients get one on which listener, and what its bearer may do until it expires (KIP-48).

The broker without a secret, and the one that is restarted, have their own clusters.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftpy.client import Admin, BlockingAdmin, ErrorCode, KafkaError
from kraftpy.client.admin.tokens import DelegationToken
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from kraftpy.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
)
from kraftpy.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
)
from kraftpy.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from kraftpy.security import delegation_tokens as rules
from kraftpy.security.scram import MECHANISMS as SCRAM
from kraftpy.security.scram import ScramClient, salted_password
from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from tests.security.certificates import HOST, Certificates
from tests.security.listeners import PLAIN_MODULE, SCRAM_MODULE, add_users, listener_settings, round_trip_by_ours
from tests.security.wire import BOUND_SECONDS, PASSWORD, Wire
from tests.waiting import eventually

SECRET = "the secret of all nodes"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
DAY_MS = 86_400_000
INT64_MAX = 2**63 - 1


class Served:
    """A broker with one listener of each kind."""

    def __init__(self, certificates: Certificates, ports: ReservedPorts) -> None:
        protocols = {"plain": "PLAINTEXT", "sasl": "SASL_PLAINTEXT", "tls": "SSL"}
        self.port = {name: ports.reserve() for name in protocols}
        users = f'{PLAIN_MODULE} required user_alice="{PASSWORD}" user_bob="b" user_mallory="m";'
        self.certificates = certificates
        self.broker = EmbeddedBroker(
            settings={
                **listener_settings(self.port, protocols),
                "inter.broker.listener.name": "PLAIN",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.sasl.plain.sasl.jaas.config": users,
                "listener.name.tls.ssl.client.auth": "requested",
                "delegation.token.secret.key": SECRET,
                "delegation.token.expiry.check.interval.ms": "300",
                **certificates.settings(),
            }
        )

    def options(self, user: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
        return login(self.port["sasl"], user, password)

    def by_token(self, token: DelegationToken, mechanism: str = MECHANISMS[0]) -> dict[str, Any]:
        return token_login(self.port["sasl"], token.token_id, token.password, mechanism)


def login(port: int, user: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": f"{HOST}:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": password,
    }


def token_login(port: int, token_id: str, password: str, mechanism: str = MECHANISMS[0]) -> dict[str, Any]:
    return {
        "bootstrap_servers": f"{HOST}:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_jaas_config": f'{SCRAM_MODULE} required username="{token_id}" password="{password}" tokenauth="true";',
    }


@pytest.fixture(scope="module")
def served(certificates: Certificates) -> Iterator[Served]:
    with ReservedPorts() as ports:
        made = Served(certificates, ports)
        with made.broker as running:
            add_users(f"{HOST}:{made.port['plain']}", "alice")
            yield made
            assert "Traceback" not in running.log_text
            assert SECRET not in running.log_text


def refusal(of: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return of.value.code


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_token_gets_its_bearer_in(served: Served, mechanism: str) -> None:
    async with Admin(**served.options()) as admin:
        token = await admin.create_delegation_token(renewers=["User:bob"])
        assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ("User:bob",))
        assert token.expiry_ms - token.issue_ms == DAY_MS
        assert token.max_ms - token.issue_ms == 7 * DAY_MS
        assert token in await admin.describe_delegation_tokens()
        assert await admin.describe_delegation_tokens(["User:nobody"]) == []
        assert await admin.describe_delegation_tokens([]) == []
    await round_trip_by_ours(served.by_token(token, mechanism), f"by-token-{mechanism.lower()}")
    log = served.broker.log_text
    assert token.password not in log
    assert token.hmac.hex() not in log
    assert token.password not in repr(token)


async def test_a_bearer_gets_no_tokens(served: Served) -> None:
    """Otherwise a stolen token could be replaced by new ones before it expires, without end."""
    async with Admin(**served.options()) as admin:
        token = await admin.create_delegation_token()
    async with Admin(**served.by_token(token)) as bearer:
        for asked in (
            bearer.create_delegation_token(),
            bearer.describe_delegation_tokens(),
            bearer.renew_delegation_token(token.hmac),
            bearer.expire_delegation_token(token.hmac),
        ):
            with pytest.raises(KafkaError) as refused:
                await asked
            assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert isinstance(await bearer.list_topics(), list)


async def test_nobody_in_particular_gets_tokens(served: Served) -> None:
    trusted = str(served.certificates.trusted)
    clear = {"bootstrap_servers": f"{HOST}:{served.port['plain']}"}
    anonymous = {
        "bootstrap_servers": f"{HOST}:{served.port['tls']}",
        "security_protocol": "SSL",
        "ssl_truststore_location": trusted,
    }
    for options in (clear, anonymous):
        async with Admin(**options) as admin:
            for asked in (
                admin.create_delegation_token(),
                admin.create_delegation_token(renewers=["Group:g"]),
                admin.describe_delegation_tokens(),
                admin.renew_delegation_token(b"x"),
                admin.expire_delegation_token(b"x"),
            ):
                with pytest.raises(KafkaError) as refused:
                    await asked
                assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    keys = str(served.certificates.issue("carol", "carol", common_name="carol"))
    async with Admin(**anonymous, ssl_keystore_location=keys) as known:
        token = await known.create_delegation_token()
        assert token.owner.startswith("User:CN=carol")


async def test_owner_and_renewers_renew_and_expire_a_token(served: Served) -> None:
    async with (
        Admin(**served.options()) as alice,
        Admin(**served.options("bob", "b")) as bob,
        Admin(**served.options("mallory", "m")) as mallory,
    ):
        token = await alice.create_delegation_token(renewers=["User:bob"], max_lifetime_ms=2 * DAY_MS)
        assert token.max_ms == token.issue_ms + 2 * DAY_MS
        sooner = await bob.expire_delegation_token(token.hmac, 5_000)
        assert 5_000 <= sooner - token.issue_ms < 5_000 + BOUND_SECONDS * 1000
        again = await bob.renew_delegation_token(token.hmac)
        assert DAY_MS <= again - token.issue_ms < DAY_MS + BOUND_SECONDS * 1000
        assert await alice.expire_delegation_token(token.hmac, INT64_MAX) == token.max_ms
        for asked in (
            mallory.renew_delegation_token(token.hmac),
            mallory.expire_delegation_token(token.hmac, 0),
            mallory.expire_delegation_token(token.hmac, -1),
        ):
            with pytest.raises(KafkaError) as refused:
                await asked
            assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        for unknown in (b"", token.hmac[:-1], rules.token_hmac("another", token.token_id)):
            for asked in (alice.renew_delegation_token(unknown), alice.expire_delegation_token(unknown)):
                with pytest.raises(KafkaError) as refused:
                    await asked
                assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        before = int(time.time() * 1000)
        assert before <= await alice.expire_delegation_token(token.hmac) <= int(time.time() * 1000)
        assert token.token_id not in [each.token_id for each in await alice.describe_delegation_tokens()]
        with pytest.raises(KafkaError) as refused:
            await alice.renew_delegation_token(token.hmac)
        assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


async def test_a_token_for_somebody_else_belongs_to_them(served: Served) -> None:
    async with Admin(**served.options("bob", "b")) as bob:
        token = await bob.create_delegation_token(owner="User:alice")
        assert (token.owner, token.requester) == ("User:alice", "User:bob")
        with pytest.raises(KafkaError) as refused:
            await bob.renew_delegation_token(token.hmac)
        assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert token in await bob.describe_delegation_tokens(["User:alice"])


@pytest.mark.parametrize("wrong", [{"renewers": ["User:bob", "Group:g"]}, {"owner": "Group:alice"}])
async def test_owners_and_renewers_are_users(served: Served, wrong: dict[str, Any]) -> None:
    async with Admin(**served.options()) as admin:
        with pytest.raises(KafkaError) as refused:
            await admin.create_delegation_token(**wrong)
        assert refusal(refused) is ErrorCode.INVALID_PRINCIPAL_TYPE


CREATE = ApiKey.CREATE_DELEGATION_TOKEN


def test_what_refusals_carry(served: Served) -> None:
    """The times in a refusal are -1 if the broker refuses, and 0 if the controller does."""
    renewers = [CreatableRenewers(principal_type="Group", principal_name="g")]
    wanted = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
    with Wire.to(served.port["sasl"]) as wire:
        assert wire.log_in().error_code == 0
        answer = wire.ask(CREATE, 3, wanted)
        assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        assert (answer.principal_name, answer.token_requester_principal_name) == ("alice", "alice")
        times = answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms
        assert (*times, answer.token_id, answer.hmac) == (-1, -1, -1, "", b"")
        renewal = RenewDelegationTokenRequest(hmac=b"", renew_period_ms=-1)
        answer = wire.ask(ApiKey.RENEW_DELEGATION_TOKEN, 1, renewal)
        assert (answer.error_code, answer.expiry_timestamp_ms) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    with Wire.to(served.port["plain"]) as wire:
        renewal = RenewDelegationTokenRequest(hmac=b"", renew_period_ms=-1)
        answer = wire.ask(ApiKey.RENEW_DELEGATION_TOKEN, 2, renewal)
        refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert (answer.error_code, answer.expiry_timestamp_ms) == (refused, -1)
        expiry = ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=-1)
        answer = wire.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, expiry)
        assert (answer.error_code, answer.expiry_timestamp_ms) == (refused, -1)


def by_hand(wire: Wire, token: DelegationToken, *, is_by_token: bool = True) -> Any:
    """Log in on a connection; return the last answer."""
    mechanism = SCRAM[MECHANISMS[0]]
    assert wire.handshake(mechanism.name).error_code == 0
    client = ScramClient(mechanism, token.token_id if is_by_token else "alice", "clients", is_by_token=is_by_token)
    salt, iterations = client.challenged(wire.token(client.first()).auth_bytes)
    password = token.password if is_by_token else PASSWORD
    return wire.token(client.final(salted_password(mechanism, password, salt, iterations)))


def test_a_session_ends_with_its_token(served: Served) -> None:
    with BlockingAdmin(**served.options()) as admin:
        token = admin.create_delegation_token(max_lifetime_ms=2_500)
        with Wire.to(served.port["sasl"]) as wire, Wire.to(served.port["sasl"]) as owner:
            lifetime_ms = by_hand(wire, token).session_lifetime_ms
            assert 0 < lifetime_ms <= 2_500
            assert wire.is_served()
            assert by_hand(owner, token).error_code == 0
            time.sleep(1.0)  # a session is renewed once a second at most
            assert by_hand(owner, token, is_by_token=False).session_lifetime_ms == 0
            time.sleep(max(0.0, token.expiry_ms / 1000 - time.time()) + 0.01)  # sessions end by the clock
            assert not wire.is_served()
            assert owner.is_served()  # it has proved to be the owner by a password since
            request = DescribeDelegationTokenRequest(owners=[])
            answer = owner.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, request)
            assert answer.error_code == ErrorCode.NONE
        with Wire.to(served.port["sasl"]) as late:
            answer = by_hand(late, token)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "invalid credentials with SASL mechanism" in answer.error_message
            assert late.is_closed()
        deadline = time.monotonic() + BOUND_SECONDS
        while token.token_id in [each.token_id for each in admin.describe_delegation_tokens()]:
            assert time.monotonic() < deadline, "the controller does not remove what has expired"


def test_a_removed_token_is_good_for_nothing(served: Served) -> None:
    with BlockingAdmin(**served.options()) as admin:
        token = admin.create_delegation_token()
        with Wire.to(served.port["sasl"]) as wire:
            assert by_hand(wire, token).error_code == 0
            assert wire.is_served()
            admin.expire_delegation_token(token.hmac)
            assert not wire.is_served()
        with Wire.to(served.port["sasl"]) as wire:
            assert by_hand(wire, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def single(port: int, **settings: str) -> dict[str, str]:
    return {
        "listeners": f"SASL_PLAINTEXT://{HOST}:{port}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="{PASSWORD}";',
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def test_tokens_survive_a_restart_and_a_snapshot_and_end_with_the_secret(tmp_path: Path) -> None:
    with ReservedPorts() as ports:
        port = ports.reserve()
        more = {"metadata_log_max_record_bytes_between_snapshots": "1"}
        settings = single(port, delegation_token_secret_key=SECRET, **more)
        with EmbeddedBroker(tmp_path, settings=settings), BlockingAdmin(**login(port)) as admin:
            token = admin.create_delegation_token(renewers=["User:bob"])
        with EmbeddedBroker(tmp_path, settings=settings), BlockingAdmin(**login(port)) as admin:
            assert admin.describe_delegation_tokens() == [token]
            with BlockingAdmin(**token_login(port, token.token_id, token.password)) as bearer:
                assert bearer.list_topics() == []
        settings = single(port, delegation_token_secret_key="another", **more)
        with EmbeddedBroker(tmp_path, settings=settings), BlockingAdmin(**login(port)) as admin:
            with pytest.raises(KafkaError) as refused:
                admin.renew_delegation_token(token.hmac)
            assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
            assert_refused(port, token, "invalid credentials")
        with EmbeddedBroker(tmp_path, settings=single(port, **more)), BlockingAdmin(**login(port)) as admin:
            for ask in (
                admin.create_delegation_token,
                admin.describe_delegation_tokens,
                lambda: admin.describe_delegation_tokens([]),
                lambda: admin.renew_delegation_token(token.hmac),
                lambda: admin.expire_delegation_token(token.hmac),
            ):
                with pytest.raises(KafkaError) as refused:
                    ask()
                assert refusal(refused) is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            assert_refused(port, token, "delegation tokens are not enabled")


def assert_refused(port: int, token: DelegationToken, why: str) -> None:
    login_by_token = token_login(port, token.token_id, token.password)
    with pytest.raises(KafkaError, match=why) as refused, BlockingAdmin(**login_by_token) as bearer:
        bearer.list_topics()
    assert refusal(refused) is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_every_broker_knows_the_tokens_of_a_cluster() -> None:
    """Clients reach them at the brokers' own listener, which has SASL here."""
    users = f'{PLAIN_MODULE} required username="broker" password="b" user_broker="b" user_alice="{PASSWORD}";'
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.replication.plain.sasl.jaas.config": users,
        "delegation.token.secret.key": SECRET,
        "delegation.token.expiry.check.interval.ms": "300",
    }
    with Cluster(3, settings=settings, can_partition=False) as cluster:
        ports = [cluster._wiring.ports[node].brokers for node in (1, 2, 3)]
        with BlockingAdmin(**login(ports[0])) as admin:
            token = admin.create_delegation_token()
            brief = admin.create_delegation_token(max_lifetime_ms=100)
        for port in ports:
            eventually(lambda port=port: has_only(port, token, not_any_more=brief))
            with Wire.to(port) as wire:
                assert by_hand(wire, token).error_code == 0
                assert wire.is_served()
        with BlockingAdmin(**login(ports[2])) as admin:
            admin.expire_delegation_token(token.hmac)
        for port in ports:
            eventually(lambda port=port: is_refused(port, token))


def has_only(port: int, token: DelegationToken, *, not_any_more: DelegationToken) -> bool:
    with BlockingAdmin(**login(port)) as admin:
        found = admin.describe_delegation_tokens()
    return token in found and not_any_more not in found


def is_refused(port: int, token: DelegationToken) -> bool:
    with Wire.to(port) as wire:
        return bool(by_hand(wire, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED)


def test_tokens_leave_room_for_settings(tmp_path: Path) -> None:
    with ReservedPorts() as ports:
        port = ports.reserve()
        settings = single(port, delegation_token_secret_key=SECRET, kraftpy_max_configs_bytes="8000")
        with EmbeddedBroker(tmp_path, settings=settings), BlockingAdmin(**login(port)) as admin:
            with contextlib.suppress(KafkaError):
                for _ in range(20):
                    admin.create_delegation_token()
            made = admin.describe_delegation_tokens()
            assert 0 < len(made) < 20
            with pytest.raises(KafkaError) as refused:
                admin.create_delegation_token()
            assert refusal(refused) is ErrorCode.POLICY_VIOLATION
            admin.set_scram_password("dora", "d")
            admin.expire_delegation_token(made[0].hmac)
            admin.create_delegation_token()
