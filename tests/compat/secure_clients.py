"""Clients that are not ours at secured clusters, by each protocol and mechanism; Kafka's tools. Part of `make compat`.

    python tests/compat/secure_clients.py                    all of it; exit status 1 if anything is not as it should be
    python tests/compat/secure_clients.py --nodes 3 --only kcat    some of it; `--only tools` are Kafka's tools

kcat, confluent-kafka, kafka-python, aiokafka and Kafka's own client for Java (a JDK, Maven) write a record and read it,
at one node and at three: over SSL without and with a certificate of the client, and over SASL_PLAINTEXT and SASL_SSL by
every mechanism that the library has. The Java client also lists the topic, and with a wrong password or a stranger's
token its Admin, producer and consumer are refused. Kafka's command line tools are given the files of `kraftpy init
--secure --nodes 3` as they are, but for a secret for delegation tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

import aiokafka  # noqa: E402
import kafka  # noqa: E402
from compat.checks import Checks  # noqa: E402
from compat.java_round_trips import LIGHT, JavaClient, key_store  # noqa: E402
from compat.maven import JavaProject  # noqa: E402
from compat.tools.command_line import TOOLS  # noqa: E402
from kerberos_realm import REALM, WHY_NOT, Realm, realm  # noqa: E402

from kraftpy.client import BlockingAdmin  # noqa: E402
from kraftpy.testing import Cluster  # noqa: E402
from kraftpy.testing.ports import HOST  # noqa: E402
from tests.security.certificates import Certificates  # noqa: E402
from tests.security.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider  # noqa: E402
from tests.security.listeners import (  # noqa: E402
    PLAIN_MODULE,
    SCRAM_MODULE,
    round_trip_by_aiokafka,
    round_trip_by_confluent,
    round_trip_by_kafka_python,
)
from tests.security.test_first_secure_cluster import free_base  # noqa: E402
from tests.security.tokens import AUDIENCE, ISSUER, Issuer  # noqa: E402

PASSWORD: Final = "alice's password"
BOUND_SECONDS: Final = 120.0
SERVICE: Final = f"kafka/{HOST}"
SASL: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
LACKING: Final = {("confluent-kafka", "GSSAPI"): "its wheel is built without it"}
"""Mechanisms that a client does not have, and why."""
JAVA: Final = "kafka-clients"
_LEAST_LIBRDKAFKA: Final = (2, 6, 1)
"""Earlier ones send a wrong nonce in SCRAM's last message, which Kafka 4 refuses as well."""
OAUTHBEARER: Final = "org.apache.kafka.common.security.oauthbearer."
ALLOWED: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"


class Meeting:
    """A cluster, its identity provider and its realm, and what clients need to know of them."""

    def __init__(
        self,
        cluster: Cluster,
        protocol: str,
        certificates: Certificates,
        provider: IdentityProvider,
        mechanism: str,
        kerberos: Realm | None,
    ) -> None:
        self.bootstrap = cluster.bootstrap_servers
        self.protocol = protocol
        self.certificates = certificates
        self.provider = provider
        self.kerberos = kerberos
        self.mechanism = mechanism
        """The mechanism of SASL; "" for a client without a certificate, "certificate" for one with its own."""

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def own(self) -> Path | None:
        """The client's own certificate, if it shows one."""
        return self.certificates.directory / "alice.pem" if self.mechanism == "certificate" else None


def librdkafka(meeting: Meeting) -> dict[str, str]:
    """The options of librdkafka, those for tokens apart."""
    options = {"bootstrap.servers": meeting.bootstrap, "security.protocol": meeting.protocol.lower()}
    if meeting.has_tls:
        options["ssl.ca.location"] = str(meeting.certificates.trusted)
    if meeting.own is not None:
        options |= {"ssl.certificate.location": str(meeting.own), "ssl.key.location": str(meeting.own)}
    if meeting.mechanism in SASL:
        options["sasl.mechanism"] = meeting.mechanism
    if meeting.mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        options |= {"sasl.username": "alice", "sasl.password": PASSWORD}
    if meeting.mechanism == "GSSAPI":
        options |= {"sasl.kerberos.service.name": "kafka", "sasl.kerberos.kinit.cmd": "true"}
    return options


def by_confluent(meeting: Meeting, topic: str) -> None:
    options: dict[str, Any] = dict(librdkafka(meeting))
    if meeting.mechanism == "OAUTHBEARER":
        options["oauth_cb"] = lambda _: (meeting.provider.issuer.token(), time.time() + 600)
    round_trip_by_confluent(options, topic)


def by_kcat(meeting: Meeting, topic: str) -> None:
    options = librdkafka(meeting)
    if meeting.mechanism == "OAUTHBEARER":
        options |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": f"{meeting.provider.url}/token",
        }
    bootstrap = options.pop("bootstrap.servers")
    words = ["kcat", "-b", bootstrap, "-t", topic, *(x for name in options for x in ("-X", f"{name}={options[name]}"))]
    run = {"check": True, "timeout": BOUND_SECONDS, "capture_output": True}
    subprocess.run([*words, "-P"], input=b"value", **run)  # type: ignore[call-overload]
    found = subprocess.run([*words, "-C", "-o", "beginning", "-c", "1", "-q"], **run)  # type: ignore[call-overload]
    assert found.stdout == b"value\n", found.stdout


def python(meeting: Meeting) -> dict[str, Any]:
    """The options that kafka-python and aiokafka have in common."""
    options: dict[str, Any] = {"bootstrap_servers": meeting.bootstrap, "security_protocol": meeting.protocol}
    if meeting.has_tls:
        options["ssl_context"] = meeting.certificates.client(meeting.own)
    if meeting.mechanism in SASL:
        options["sasl_mechanism"] = meeting.mechanism
    if meeting.mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        options |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    if meeting.mechanism == "GSSAPI":
        options["sasl_kerberos_service_name"] = "kafka"
    return options


def by_kafka_python(meeting: Meeting, topic: str) -> None:
    class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):
        def token(self) -> str:
            return meeting.provider.issuer.token()

        def extensions(self) -> dict[str, str]:
            return {}

    more = {"sasl_oauth_token_provider": Provider()} if meeting.mechanism == "OAUTHBEARER" else {}
    round_trip_by_kafka_python(python(meeting) | more, topic)


def by_aiokafka(meeting: Meeting, topic: str) -> None:
    class Provider(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return meeting.provider.issuer.token()

    more = {"sasl_oauth_token_provider": Provider()} if meeting.mechanism == "OAUTHBEARER" else {}
    asyncio.run(round_trip_by_aiokafka(python(meeting) | more, topic))


def java(meeting: Meeting, *, is_right: bool = True) -> dict[str, str]:
    """The settings of Kafka's own client, with the user's own password or token or with another."""
    settings = {"bootstrap.servers": meeting.bootstrap, "security.protocol": meeting.protocol}
    if meeting.has_tls:
        trusted = meeting.certificates.trusted
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)}
    if meeting.own is not None:
        keys = key_store(meeting.own, meeting.certificates.directory)
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keys)}
    if meeting.mechanism not in SASL:
        return settings
    password = PASSWORD if is_right else f"not {PASSWORD}"
    module = PLAIN_MODULE if meeting.mechanism == "PLAIN" else SCRAM_MODULE
    jaas = f'{module} required username="alice" password="{password}";'
    if meeting.mechanism == "OAUTHBEARER":
        jaas = f"{OAUTHBEARER}OAuthBearerLoginModule required;"
        settings["sasl.login.callback.handler.class"] = f"{OAUTHBEARER}OAuthBearerLoginCallbackHandler"
        settings |= _token_by_java(meeting, is_right=is_right)
    elif meeting.mechanism == "GSSAPI":
        assert meeting.kerberos is not None
        jaas = f'{KERBEROS} keyTab="{meeting.kerberos.keytab("alice")}" principal="alice@{REALM}";'
        settings["sasl.kerberos.service.name"] = "kafka"
    return settings | {"sasl.mechanism": meeting.mechanism, "sasl.jaas.config": jaas}


def by_java(client: JavaClient, meeting: Meeting, topic: str) -> None:
    client.admit(java(meeting), topic)
    if meeting.mechanism in SASL and meeting.mechanism != "GSSAPI":  # its wrong keys are refused by the KDC
        client.refuse(java(meeting, is_right=False), topic)


def _token_by_java(meeting: Meeting, *, is_right: bool) -> dict[str, str]:
    """The settings with which Java gets a token for a secret, or, out of a file, one of an issuer without a name."""
    if is_right:
        url = f"{meeting.provider.url}/token"
        return {
            "sasl.oauthbearer.jwt.retriever.class": f"{OAUTHBEARER}ClientCredentialsJwtRetriever",
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": url,
            f"system.{ALLOWED}": url,
        }
    file = meeting.certificates.directory / "stranger.jwt"
    file.write_text(Issuer().token())
    return {
        "sasl.oauthbearer.jwt.retriever.class": f"{OAUTHBEARER}FileJwtRetriever",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        f"system.{ALLOWED}": file.as_uri(),
    }


CLIENTS: Final[dict[str, Callable[[Meeting, str], None]]] = {
    "kcat": by_kcat,
    "confluent-kafka": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


# --- the clusters -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster_of(
    nodes: int, protocol: str, certificates: Certificates, provider: IdentityProvider, kerberos: Realm | None
) -> Iterator[Cluster]:
    """A cluster whose clients use this protocol, with every mechanism."""
    prefix = "listener.name.clients"
    settings = {
        **{f"{prefix}.{name}": value for name, value in certificates.settings(ssl_client_auth="requested").items()},
        f"{prefix}.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="{PASSWORD}";',
        f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/keys",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        ALLOWED: f"{provider.url}/keys",
        "min.insync.replicas": str(min(nodes, 2)),
    }
    mechanisms = SASL
    if kerberos is None:
        mechanisms = SASL[:-1]
    else:
        settings |= {
            f"{prefix}.gssapi.sasl.jaas.config": (
                f'{KERBEROS} keyTab="{kerberos.keytab(SERVICE)}" principal="{SERVICE}@{REALM}";'
            ),
            "sasl.kerberos.service.name": "kafka",
        }
    settings["sasl.enabled.mechanisms"] = ",".join(mechanisms)
    is_sasl = protocol.startswith("SASL_")
    if not protocol.endswith("SSL"):
        settings = {name: value for name, value in settings.items() if ".ssl." not in name}
    if not is_sasl:
        settings = {name: value for name, value in settings.items() if "sasl" not in name}
    users = {"alice": PASSWORD} if is_sasl else None
    with Cluster(nodes, security=protocol.lower(), users=users, settings=settings, can_partition=False) as cluster:
        if is_sasl:
            trusted = {"ssl_truststore_location": str(certificates.trusted)} if protocol == "SASL_SSL" else {}
            with BlockingAdmin(**{**cluster.client_options(), **trusted}) as admin:
                admin.set_scram_password("alice", PASSWORD, mechanism="SCRAM-SHA-256")
        yield cluster


def _lacking_in_kcat() -> dict[tuple[str, str], str]:
    """The mechanisms that the kcat of this machine does not have, or has wrong."""
    version = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", version)
    assert number, version
    found: dict[tuple[str, str], str] = {}
    if tuple(map(int, number.groups())) < _LEAST_LIBRDKAFKA:
        why = f"{number[0]} repeats its nonce, as versions before 2.6.1 do; Kafka 4 refuses that as well"
        found |= {("kcat", mechanism): why for mechanism in SASL if mechanism.startswith("SCRAM")}
    if "oidc" not in version:
        found["kcat", "OAUTHBEARER"] = f"{number[0]} is built without OIDC"
    return found


def meet(
    checks: Checks,
    nodes: int,
    clients: Mapping[str, Callable[[Meeting, str], None]],
    certificates: Certificates,
    kerberos: Realm | None,
) -> None:
    """Have every client meet a cluster of each protocol."""
    lacking = LACKING | _lacking_in_kcat()
    for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        kinds = SASL[: len(SASL) - (kerberos is None)] if protocol.startswith("SASL_") else ("", "certificate")
        with (
            IdentityProvider(Issuer()) as provider,
            cluster_of(nodes, protocol, certificates, provider, kerberos) as cluster,
        ):
            for mechanism in kinds:
                for client, round_trip in clients.items():
                    if why := lacking.get((client, mechanism)):
                        print(f"-     {nodes} nodes, {protocol} {mechanism}: {client}: {why}")
                        continue
                    topic = f"{client}-{mechanism.lower()}"
                    told = f"{nodes} nodes, {protocol}{' ' if mechanism else ''}{mechanism}: {client}"
                    try:
                        round_trip(Meeting(cluster, protocol, certificates, provider, mechanism, kerberos), topic)
                        checks.see(told, None)
                    except Exception as error:
                        said = getattr(error, "stderr", None)
                        checks.see(told, f"{error!r} {said.decode() if said else ''}")
            logs = [cluster.logs(node) for node in cluster.nodes]
            passwords = any(PASSWORD in log for log in logs)
            traces = [log for log in logs if "Traceback" in log]
            secret = "a password is in a log" if passwords else None
            checks.see(
                f"{nodes} nodes, {protocol}: no traceback, no password in the logs", secret or (traces or [None])[0]
            )


# --- Kafka's tools ----------------------------------------------------------------------------------------------------


class Tools:
    """Kafka's tools at a cluster that `kraftpy init --secure` has written."""

    def __init__(self, directory: Path, bootstrap: str, checks: Checks) -> None:
        self._directory = directory
        self._bootstrap = bootstrap
        self._checks = checks
        self._path = JavaProject(HERE.parents[1] / "build" / "compat-tools", HERE / "tools" / "pom.xml").path()

    def run(
        self, line: str, *, config: str = "client.properties", given: str = "", expected: str = "", fails: bool = False
    ) -> str:
        """Run a command line; check its exit status, and that its output contains what is expected."""
        name, *arguments = line.split()
        java = ["java", *LIGHT, "-cp", self._path, TOOLS[name].name]
        words = [*java, *arguments, "--bootstrap-server", self._bootstrap, "--command-config", config]
        done = subprocess.run(
            words, input=given, cwd=self._directory, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False
        )
        shown = done.stdout + done.stderr
        is_right = expected in shown and (done.returncode != 0) == fails
        line = re.sub(r"\S{80,}", "..", line)
        told = f"init --secure --nodes 3: kafka-{line} ({config}){': ' if expected else ''}{expected}"
        self._checks.see(told, None if is_right else f"status {done.returncode}, {shown}")
        return shown

    def client(self, user: str, password: str) -> str:
        """Write the file of another user; return its name."""
        text = (self._directory / "client.properties").read_text()
        before, _, after = text.partition('username="admin" password="')
        text = f'{before}username="{user}" password="{password}"{after.partition(chr(34))[2]}'
        (self._directory / f"{user}.properties").write_text(text)
        return f"{user}.properties"


def use_tools(checks: Checks, directory: Path) -> None:
    """Write a cluster, start its nodes, and have the administrator and a user work."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
    kraftpy = [sys.executable, "-m", "kraftpy"]
    base = free_base()
    with contextlib.ExitStack() as stack:
        made = [*kraftpy, "init", str(directory), "--secure", "--nodes", "3", "--port", str(base)]
        subprocess.run(made, env=environment, check=True, capture_output=True)
        started = []
        for node in (1, 2, 3):
            file = directory / f"node-{node}" / "server.properties"
            with file.open("a") as more:
                more.write("delegation.token.secret.key=a secret\n")
            words = [*kraftpy, "server", str(file)]
            log = stack.enter_context((directory / f"{node}.log").open("w"))
            started.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=log, text=True))
        try:
            for node in started:
                assert node.stdout is not None
                ready = node.stdout.readline()
                assert " ready: node " in ready, [(directory / f"{each}.log").read_text() for each in (1, 2, 3)]
            _work(Tools(directory, ",".join(f"{HOST}:{base + 10 * node}" for node in range(3)), checks))
        finally:
            for node in started:
                node.terminate()
            for node in started:
                node.communicate(timeout=BOUND_SECONDS)


def _work(tools: Tools) -> None:
    run = tools.run
    run("topics --create --topic orders --partitions 3", expected="Created topic orders.")
    run("topics --describe --topic orders", expected="ReplicationFactor: 3")
    run("console-producer --topic orders", given="one\ntwo\n")
    consume = "console-consumer --topic orders --from-beginning --max-messages 2 --timeout-ms 30000 --group readers"
    run(consume, expected="Processed a total of 2 messages")
    scram = "SCRAM-SHA-512=[iterations=8192,password=ada-s]"
    users = "configs --entity-type users --entity-name ada"
    run(f"configs --alter {users.removeprefix('configs ')} --add-config {scram}", expected="Completed updating config")
    run(f"{users} --describe", expected="SCRAM-SHA-512=iterations=8192")
    ada = tools.client("ada", "ada-s")
    run("topics --describe --topic orders", config=ada, expected="Topic 'orders' does not exist", fails=True)
    run("console-producer --topic orders", config=ada, given="refused\n")
    run("acls --add --allow-principal User:ada --producer --topic orders", expected="Adding ACLs")
    run("acls --add --allow-principal User:ada --consumer --topic orders --group ada", expected="Adding ACLs")
    run(
        "acls --list --principal User:ada", expected="principal=User:ada, host=*, operation=WRITE, permissionType=ALLOW"
    )
    run("console-producer --topic orders", config=ada, given="three\n")
    run(consume.replace("2", "3", 1).replace("readers", "ada"), config=ada, expected="Processed a total of 3 messages")
    run("acls --list", config=ada, expected="ClusterAuthorizationException", fails=True)
    for entity in ("users --entity-name ada", "clients --entity-name app", "ips --entity-name 10.0.0.1"):
        key = "connection_creation_rate" if entity.startswith("ips") else "producer_byte_rate"
        run(f"configs --alter --entity-type {entity} --add-config {key}=1000000", expected="Completed updating config")
        run(f"configs --describe --entity-type {entity}", expected=f"{key}=1000000.0")
        run(f"configs --alter --entity-type {entity} --delete-config {key}", expected="Completed updating config")
    created = run(
        "delegation-tokens --create --max-life-time-period -1 --renewer-principal User:admin",
        config=ada,
        expected="ada",
    )
    row = next((line.split() for line in created.splitlines() if "User:ada" in line), [])
    if len(row) > 1:
        run("delegation-tokens --describe --owner-principal User:ada", expected=row[0])
        run(f"delegation-tokens --renew --renew-time-period -1 --hmac {row[1]}", expected="Completed renew operation")
        run(
            f"delegation-tokens --expire --expiry-time-period -1 --hmac {row[1]}", expected="Completed expire operation"
        )
    run("acls --remove --force --allow-principal User:ada --topic orders --operation Read")
    run(
        "console-consumer --topic orders --timeout-ms 9000 --group ada",
        config=ada,
        expected="Processed a total of 0 messages",
    )
    run("consumer-groups --describe --group readers", expected="orders")
    wrong = tools.client("eve", "guessed")
    run("topics --list", config=wrong, expected="Authentication failed", fails=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, action="append", choices=(1, 3), help="of the clusters; both by default")
    parser.add_argument("--only", default="", choices=["", *CLIENTS, JAVA, "tools"], help="one client")
    options = parser.parse_args()
    checks = Checks()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("realm", "certificates"):
            (scratch / name).mkdir()
        kerberos = None if WHY_NOT else stack.enter_context(realm(scratch / "realm"))
        if kerberos is None:
            print(f"no login by Kerberos is tested: {WHY_NOT}")
        else:
            os.environ.update(kerberos.environment)
            kerberos.add(SERVICE, "alice")
            kerberos.log_in("alice", "cache")
        certificates = Certificates(scratch / "certificates")
        certificates.issue("alice", "alice", common_name="alice")
        clients = {name: CLIENTS[name] for name in CLIENTS if options.only in ("", name)}
        if options.only in ("", JAVA):
            krb5_conf = None if kerberos is None else kerberos.environment["KRB5_CONFIG"]
            jvm = stack.enter_context(JavaClient(scratch, krb5_conf))
            clients[JAVA] = functools.partial(by_java, jvm)
        for nodes in options.nodes or (1, 3):
            if options.only != "tools":
                meet(checks, nodes, clients, certificates, kerberos)
        if options.only in ("", "tools"):
            use_tools(checks, scratch / "cluster")
    for each in checks.wrong:
        print(each, file=sys.stderr)
    print(f"{checks.right} right, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
