"""Three nodes that log in to each other with tokens (OAUTHBEARER) or tickets (GSSAPI), in a quorum and to replicate.

The sessions are short: every link and every connection between brokers has to renew its own (KIP-368).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kerberos_realm import REALM, Realm, needs_a_realm, realm

from kraftpy.broker.metadata.link_login import prove
from kraftpy.broker.metadata.link_messages import LinkError
from kraftpy.client import Admin, NewTopic
from kraftpy.client.security import Login
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.testing import Cluster
from tests.security.certificates import HOST, Certificates
from tests.security.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.security.listeners import replicate
from tests.security.node_links import ask_as_a_node
from tests.security.tokens import AUDIENCE, ISSUER, Issuer
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(180)]

LISTENERS = ("controller", "replication")
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KEYTAB_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
TOKEN_SECONDS = 5
SESSION_MS = 2_000
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
}


class ShortTokens(IdentityProvider):
    """Grants tokens that soon expire."""

    def granted(self) -> bytes:
        token = self.issuer.token(sub=CLIENT_ID, exp=int(time.time()) + TOKEN_SECONDS)
        return json.dumps({"access_token": token, "token_type": "Bearer"}).encode()

    def count(self, scope: str) -> int:
        """The number of tokens granted with a scope."""
        return sum(form.get("scope") == [scope] for form in self.forms)


def token_settings(url: str) -> dict[str, str]:
    """The settings of nodes that verify and get tokens; the scope says for which listener a token is."""
    keys, endpoint = f"{url}/keys", f"{url}/token"
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        ALLOWED: f"{keys},{endpoint}",
    }
    return settings | {
        f"listener.name.{name}.oauthbearer.sasl.oauthbearer.{key}": value
        for name in LISTENERS
        for key, value in {
            "token.endpoint.url": endpoint,
            "client.credentials.client.id": CLIENT_ID,
            "client.credentials.client.secret": CLIENT_SECRET,
            "scope": name,
        }.items()
    }


@pytest.fixture(scope="module")
def provider(certificates: Certificates) -> Iterator[ShortTokens]:
    made = ShortTokens(Issuer())
    made.shown_keys = ("rsa",)
    with made:
        yield made


@pytest.fixture(scope="module")
def by_tokens(provider: ShortTokens) -> Iterator[Cluster]:
    settings = {**GUARDED, **token_settings(provider.url), "super.users": f"User:{CLIENT_ID};User:ANONYMOUS"}
    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        yield cluster
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node)
            assert CLIENT_SECRET not in cluster.logs(node)


async def add_topic(cluster: Cluster, name: str) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=3)])


async def survives_losses(cluster: Cluster) -> None:
    """Nodes come and go, at last all of them."""
    await add_topic(cluster, "before")
    cluster.kill(1)
    await add_topic(cluster, "between")
    cluster.start(1)
    cluster.wait_in_sync()
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        cluster.start(node, wait=False)
    cluster.wait_ready()
    async with Admin(bootstrap_servers=cluster.address(1)) as admin:
        assert {"before", "between"} <= set(await admin.list_topics())


def test_tokens_are_renewed_while_nodes_replicate(by_tokens: Cluster, provider: ShortTokens) -> None:
    replicate(by_tokens)
    before = {name: provider.count(name) for name in LISTENERS}
    assert min(before.values()) >= len(by_tokens.nodes)
    more = 2 * len(by_tokens.nodes)
    eventually(lambda: all(provider.count(name) >= before[name] + more for name in LISTENERS))
    by_tokens.wait_in_sync()


async def test_nodes_with_tokens_survive_losses(by_tokens: Cluster) -> None:
    await survives_losses(by_tokens)


async def test_a_node_with_a_forged_token_is_refused(by_tokens: Cluster, provider: ShortTokens) -> None:
    async with ask_as_a_node(by_tokens, 2) as ask:
        forged = Login(mechanism="OAUTHBEARER", token=lambda: Issuer().token(sub=CLIENT_ID))
        with pytest.raises(LinkError, match=r"cannot log in by OAUTHBEARER: .*the broker refused the token"):
            await prove(forged, HOST, ask)
    async with ask_as_a_node(by_tokens, 2) as ask:
        right = Login(mechanism="OAUTHBEARER", token=lambda: provider.issuer.token(sub="anyone"))
        assert await prove(right, HOST, ask) > 0
    assert "Failed authentication with" in by_tokens.logs(2)


# --- tickets ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running_realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        made.add(f"kafka/{HOST}", "mallory")
        yield made


@pytest.fixture(scope="module")
def by_tickets(running_realm: Realm) -> Iterator[Cluster]:
    service = f"kafka/{HOST}"
    module = (
        f'{KEYTAB_MODULE} required useKeyTab=true storeKey=true keyTab="{running_realm.keytab(service)}" '
        f'principal="{service}@{REALM}";'
    )
    settings = {
        **GUARDED,
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "super.users": "User:kafka;User:ANONYMOUS",
        "connections.max.reauth.ms": str(SESSION_MS),
        **{f"listener.name.{name}.gssapi.sasl.jaas.config": module for name in LISTENERS},
    }
    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        yield cluster
        for node in cluster.nodes:
            assert "Traceback" not in cluster.logs(node)


@needs_a_realm
async def test_tickets_are_shown_again_while_nodes_replicate(by_tickets: Cluster) -> None:
    ends_at = time.monotonic() + 2.5 * SESSION_MS / 1000
    replicate(by_tickets)
    number = 0
    while time.monotonic() < ends_at:
        number += 1
        await add_topic(by_tickets, f"topic-{number}")
    by_tickets.wait_in_sync()


@needs_a_realm
async def test_nodes_with_tickets_survive_losses(by_tickets: Cluster) -> None:
    await survives_losses(by_tickets)


@needs_a_realm
async def test_a_node_with_another_service_s_ticket_is_refused(by_tickets: Cluster, running_realm: Realm) -> None:
    from kraftpy.client.kerberos import contexts_with

    contexts = contexts_with("kafka", "mallory", str(running_realm.keytab("mallory")))
    async with ask_as_a_node(by_tickets, 2) as ask:
        lifetime_ms = await prove(Login(mechanism="GSSAPI", context=contexts), HOST, ask)
        assert lifetime_ms == SESSION_MS, "a proved name; it has no rights, which the link finds out"
    async with ask_as_a_node(by_tickets, 2) as ask:
        wrong = Login(mechanism="GSSAPI", context=lambda host: contexts("elsewhere"))
        with pytest.raises(LinkError, match="cannot log in by GSSAPI"):
            await prove(wrong, HOST, ask)


# --- settings -----------------------------------------------------------------------------------------

QUORUM = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": f"1@{HOST}:9093,2@{HOST}:9095",
    "controller.listener.names": "CONTROLLER",
    "listeners": f"REPLICATION://{HOST}:9092,CONTROLLER://{HOST}:9093",
    "inter.broker.listener.name": "REPLICATION",
    "listener.security.protocol.map": "REPLICATION:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
}
ELSEWHERE = {
    "process.roles": "broker",
    "node.id": "9",
    "controller.quorum.bootstrap.servers": f"{HOST}:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": f"PLAINTEXT://{HOST}:9092",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
}


def settings_with(**changes: str | None) -> dict[str, str]:
    """The settings of a node with tokens; `changes` are of the controllers' listener, and None removes one."""
    given: dict[str, Any] = {**QUORUM, **token_settings("http://id.example")}
    for name, text in changes.items():
        given[f"listener.name.controller.oauthbearer.sasl.oauthbearer.{name.replace('_', '.')}"] = text
    return {name: text for name, text in given.items() if text is not None}


def test_a_source_of_tokens_is_complete() -> None:
    config = BrokerConfig.of(settings_with())
    security = config.controller_security
    assert security is not None
    assert security.sasl is not None
    source = security.sasl.tokens
    assert source is not None
    assert (source.client_id, source.secret, source.scope) == (CLIENT_ID, CLIENT_SECRET, "controller")
    assert CLIENT_SECRET not in repr(config.secured)
    where = "listener.name.controller.oauthbearer.sasl.oauthbearer"
    for changes, message in (
        ({"token_endpoint_url": None}, f"{where}.token.endpoint.url is not set: this node logs in to others"),
        ({"token_endpoint_url": "https://elsewhere.example/token"}, "is not allowed: it is not in .*allowed.urls"),
        ({"token_endpoint_url": "file:///etc/token"}, "is not allowed: it is not in .*allowed.files"),
        ({"token_endpoint_url": "ldap://a/token"}, "is not allowed: expected a URL that begins with https, http"),
        ({"client_credentials_client_id": None}, f"{where}.client.credentials.client.id is not set"),
        ({"client_credentials_client_secret": None}, f"{where}.client.credentials.client.secret is not set"),
        ({"jwt_retriever_class": "com.example.Own"}, f"{where}.jwt.retriever.class=com.example.Own is not supported"),
        (
            {"jwt_retriever_class": "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever"},
            "FileJwtRetriever does not fit",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            BrokerConfig.of(settings_with(**changes))


def test_a_node_may_show_an_assertion() -> None:
    """The files that it names have to be allowed, like those of URLs."""
    retriever = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
    given = settings_with(jwt_retriever_class=retriever, assertion_private_key_file="/key", assertion_claim_sub="n")
    with pytest.raises(ConfigError, match="the file /key of an assertion is not allowed"):
        BrokerConfig.of(given)
    security = BrokerConfig.of({**given, ALLOWED.replace("urls", "files"): "/key"}).controller_security
    assert security is not None
    assert security.sasl is not None
    source = security.sasl.tokens
    assert source is not None
    assert source.assertion is not None
    assert (source.assertion.key_file, source.assertion.claims, source.secret) == ("/key", (("sub", "n"),), "")
    assert source.is_for_assertion


def test_a_node_may_show_an_assertion_in_place_of_its_secret() -> None:
    """By the default class, once the issuer claim is set (KIP-1258)."""
    given = settings_with(assertion_private_key_file="/key", assertion_claim_iss="n")
    with pytest.raises(ConfigError, match="the file /key of an assertion is not allowed"):
        BrokerConfig.of(given)
    security = BrokerConfig.of({**given, ALLOWED.replace("urls", "files"): "/key"}).controller_security
    assert security is not None
    assert security.sasl is not None
    source = security.sasl.tokens
    assert source is not None
    assert source.assertion is not None
    assert (source.client_id, source.secret, source.assertion.claims) == (CLIENT_ID, "", (("iss", "n"),))
    assert not source.is_for_assertion


def test_the_login_module_may_hold_the_credentials() -> None:
    """The form before KIP-1139."""
    options = f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="older" ssl.truststore.location="/ca.pem"'
    given = settings_with(client_credentials_client_id=None, client_credentials_client_secret=None, scope=None)
    given["listener.name.controller.oauthbearer.sasl.jaas.config"] = f"{MODULE} required {options};"
    security = BrokerConfig.of(given).controller_security
    assert security is not None
    assert security.sasl is not None
    source = security.sasl.tokens
    assert source is not None
    assert (source.client_id, source.secret, source.scope) == (CLIENT_ID, CLIENT_SECRET, "older")
    assert source.trusted == "/ca.pem"


def test_a_node_without_the_listener_needs_only_its_own_credentials() -> None:
    """A broker that only calls controllers verifies nothing there, so it needs no keys, issuer or audience."""
    where = "listener.name.controller.oauthbearer.sasl.oauthbearer"
    given = {
        **ELSEWHERE,
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        f"{where}.token.endpoint.url": "https://id.example/token",
        f"{where}.client.credentials.client.id": CLIENT_ID,
        f"{where}.client.credentials.client.secret": CLIENT_SECRET,
        ALLOWED: "https://id.example/token",
    }
    security = BrokerConfig.of(given).controller_security
    assert security is not None
    assert security.sasl is not None
    assert security.sasl.oauthbearer is None
    assert security.sasl.tokens is not None
    tickets = {**ELSEWHERE, "sasl.mechanism.controller.protocol": "GSSAPI"}
    with pytest.raises(ConfigError, match=r"gssapi\.sasl\.jaas\.config lacks the keytab with which this node logs in"):
        BrokerConfig.of(tickets)
