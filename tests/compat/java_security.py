"""Delegation tokens (KIP-48), OAUTHBEARER and GSSAPI in the hands of Apache Kafka's own tools. Part of `make compat`.

    python tests/compat/java_security.py       exit status 1 if anything is not as it should be

Needs a JDK, Maven and a repository that has Apache Kafka. `kafka-delegation-tokens` has a token made, shown, renewed
and removed by its owner and by a renewer; in between, the console producer and consumer log in with it, by both
mechanisms. By OAUTHBEARER they log in with tokens that Kafka's client gets from a token endpoint (KIP-768), and by
GSSAPI with tickets of a KDC (`kerberos_realm` says what that needs).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from compat.maven import JavaProject  # noqa: E402
from kerberos_realm import REALM, Realm, realm  # noqa: E402

from kraftpy.testing.cluster import EmbeddedBroker  # noqa: E402
from kraftpy.testing.ports import HOST, ReservedPorts  # noqa: E402
from tests.security.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider  # noqa: E402
from tests.security.tokens import AUDIENCE, ISSUER, Issuer  # noqa: E402

TOOLS = "org.apache.kafka.tools."
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer."
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
SERVICE = "kafka/localhost"
"""The broker's principal: Java's client asks what name the broker's address has."""
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
BOUND_SECONDS = 120.0
LIGHT = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Tools:
    """Kafka's tools, run against one broker, and the files they get."""

    def __init__(self, scratch: Path, address: str, allowed_url: str, krb5_conf: str) -> None:
        self._scratch = scratch
        self._java = ["java", *LIGHT, f"-D{ALLOWED}={allowed_url}", f"-Djava.security.krb5.conf={krb5_conf}"]
        self._address = address
        self._path = JavaProject(scratch / "jars", HERE / "tools" / "pom.xml").path()
        self.found: list[str] = []
        """The checks that failed."""

    def properties(self, name: str, mechanism: str, jaas: str, more: dict[str, str] | None = None) -> str:
        """Write a file with a client's settings; return its path."""
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        settings |= more or {}
        path = self._scratch / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        return str(path)

    def run(self, tool: str, *arguments: str, given: str = "") -> tuple[int, str]:
        """Run a tool; return its exit status and its output."""
        words = [*self._java, "-cp", self._path, TOOLS + tool, "--bootstrap-server", self._address, *arguments]
        done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
        return done.returncode, done.stdout + done.stderr

    def tokens(self, config: str, *arguments: str) -> str:
        """Run `kafka-delegation-tokens`."""
        return self.run("DelegationTokenCommand", *arguments, "--command-config", config)[1]

    def check(self, what: str, is_right: bool, shown: str) -> None:
        """Note what is wrong."""
        print(f"{'ok   ' if is_right else 'WRONG'} {what}")
        if not is_right:
            self.found.append(f"{what}: {shown}")


def check_tokens(tools: Tools) -> None:
    """One token's life."""
    alice = tools.properties("alice", "PLAIN", f'{PLAIN} required username="alice" password="a";')
    bob = tools.properties("bob", "PLAIN", f'{PLAIN} required username="bob" password="b";')
    mallory = tools.properties("mallory", "PLAIN", f'{PLAIN} required username="mallory" password="m";')
    created = tools.tokens(alice, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    row = re.search(r"^(\S{22})\s+(\S{88})\s+User:alice\s+User:alice\s+\[?User:bob\]?\s", created, re.MULTILINE)
    tools.check("a token is created", row is not None, created)
    if row is None:
        return
    token_id, hmac = row[1], row[2]
    described = tools.tokens(alice, "--describe", "--owner-principal", "User:alice")
    tools.check("its owner sees it", token_id in described and hmac in described, described)
    described = tools.tokens(alice, "--describe", "--owner-principal", "User:nobody")
    tools.check("others' tokens are others'", "number of tokens : 0" in described, described)
    renewed = tools.tokens(bob, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    tools.check("its renewer renews it", "Completed renew operation" in renewed, renewed)
    refused = tools.tokens(mallory, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    tools.check("nobody else does", "DelegationTokenOwnerMismatchException" in refused, refused)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        jaas = f'{SCRAM} required username="{token_id}" password="{hmac}" tokenauth="true";'
        bearer = tools.properties(mechanism, mechanism, jaas)
        check_bearer(tools, bearer, mechanism)
        refused = tools.tokens(bearer, "--create", "--max-life-time-period", "-1")
        tools.check("a bearer gets no tokens", "UnsupportedByAuthenticationException" in refused, refused)
    expired = tools.tokens(bob, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    tools.check("it is removed", "Completed expire operation" in expired, expired)
    gone = tools.tokens(alice, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    tools.check("it is gone", "DelegationTokenNotFoundException" in gone, gone)
    bearer = tools.properties("late", "SCRAM-SHA-256", jaas)
    late = tools.tokens(bearer, "--describe")
    tools.check("its bearer is refused", "SaslAuthenticationException" in late, late)


def check_bearer(tools: Tools, config: str, mechanism: str) -> None:
    """A client that logs in by a mechanism produces and consumes."""
    topic = f"by-{mechanism.lower()}"
    status, shown = tools.run("ConsoleProducer", "--topic", topic, "--command-config", config, given="one\ntwo\n")
    tools.check(f"the console producer gets in by {mechanism}", status == 0, shown)
    status, shown = tools.run(
        "consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "2",
        "--timeout-ms", "30000", "--command-config", config,
    )  # fmt: skip
    is_right = status == 0 and "one\ntwo\n" in shown and "Processed a total of 2 messages" in shown
    tools.check(f"the console consumer gets in by {mechanism}", is_right, shown)


def check_oauthbearer(tools: Tools, provider: IdentityProvider) -> None:
    """Kafka's client gets a token for a secret, and what it may do is its subject's."""
    more = {
        "sasl.login.callback.handler.class": f"{OAUTHBEARER}OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.jwt.retriever.class": f"{OAUTHBEARER}ClientCredentialsJwtRetriever",
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.scope": "kafka",
    }
    config = tools.properties("robot", "OAUTHBEARER", f"{OAUTHBEARER}OAuthBearerLoginModule required;", more)
    check_bearer(tools, config, "OAUTHBEARER")
    created = tools.tokens(config, "--create", "--max-life-time-period", "-1")
    tools.check("its name is its token's subject", f"User:{CLIENT_ID}" in created, created)
    provider.issuer = Issuer()  # whose keys the broker does not have
    provider.answers["/keys"] = 503, b""
    refused = tools.tokens(config, "--describe")
    tools.check("a forged token is refused", "SaslAuthenticationException" in refused, refused)


def by_keytab(kerberos: Realm, principal: str) -> str:
    """Return the login module of a principal with its keytab."""
    keytab = kerberos.keytab(principal)
    return f'{KERBEROS} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}";'


def check_gssapi(tools: Tools, kerberos: Realm) -> None:
    """Kafka's client gets tickets, and what it may do is its principal's short name's."""
    more = {"sasl.kerberos.service.name": "kafka"}
    config = tools.properties("carol", "GSSAPI", by_keytab(kerberos, "carol/host"), more)
    check_bearer(tools, config, "GSSAPI")
    created = tools.tokens(config, "--create", "--max-life-time-period", "-1")
    tools.check("its name is its principal's short one", "User:carol" in created, created)


def main() -> int:
    """Run everything against one broker."""
    with (
        ReservedPorts() as ports,
        tempfile.TemporaryDirectory() as scratch,
        IdentityProvider(Issuer()) as provider,
        tempfile.TemporaryDirectory() as directory,
        realm(Path(directory)) as kerberos,
    ):
        os.environ.update(kerberos.environment)
        kerberos.add(SERVICE, "carol/host")
        address = f"{HOST}:{ports.reserve()}"
        users = f'{PLAIN} required user_alice="a" user_bob="b" user_mallory="m";'
        settings = {
            "listeners": f"SASL_PLAINTEXT://{address}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER,GSSAPI",
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": by_keytab(kerberos, SERVICE),
            "sasl.kerberos.service.name": "kafka",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": users,
            "delegation.token.secret.key": "secret",
            "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/keys",
            ALLOWED: f"{provider.url}/keys",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        with EmbeddedBroker(settings=settings):
            krb5_conf = kerberos.environment["KRB5_CONFIG"]
            tools = Tools(Path(scratch), address, f"{provider.url}/token", krb5_conf)
            check_tokens(tools)
            check_gssapi(tools, kerberos)
            check_oauthbearer(tools, provider)
    for each in tools.found:
        print(each, file=sys.stderr)
    return 1 if tools.found else 0


if __name__ == "__main__":
    raise SystemExit(main())
