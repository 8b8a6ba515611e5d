"""The command lines that are given to clusters with SASL and an authorizer: ACLs, users, quotas, delegation tokens.

They are of the same kind as those of `command_lines.py`. Users log in with PLAIN, and with their name for a password:
`admin` is a super user; `alice`, `bob` and `mallory` have the rights that the command lines give them. `carol` and
`dora` are users of SCRAM, once the command lines have made them.
"""

from __future__ import annotations

from command_line import CommandLine as Line

from kraftpy.config.broker import AUTHORIZER

_PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="{0}" password="{0}";'
_SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{0}" password="{1}";'
_USERS = ("admin", "alice", "bob", "mallory")

SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": _PLAIN.format("admin").rstrip(";")
    + "".join(f' user_{name}="{name}"' for name in _USERS)
    + ";",
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:admin;User:ANONYMOUS",
    "delegation.token.secret.key": "a secret",
    "delegation.token.max.lifetime.ms": "86400000",
    "delegation.token.expiry.time.ms": "3600000",
}
"""The settings of both clusters, beside those of the others."""


def _properties(mechanism: str, login: str) -> str:
    return (
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={login}\n"
        "default.api.timeout.ms=8000\nrequest.timeout.ms=8000\nmax.block.ms=8000\n"
    )


FILES = {
    **{f"{name}.properties": _properties("PLAIN", _PLAIN.format(name)) for name in _USERS},
    "nobody.properties": _properties("PLAIN", _PLAIN.format("nobody")),
    "carol-256.properties": _properties("SCRAM-SHA-256", _SCRAM.format("carol", "first")),
    "carol-512.properties": _properties("SCRAM-SHA-512", _SCRAM.format("carol", "second")),
    "dora.properties": _properties("SCRAM-SHA-512", _SCRAM.format("dora", "wrong")),
    "odd-mechanism.properties": _properties("SCRAM-SHA-1", _SCRAM.format("carol", "first")),
}

_TOKEN = (r"(\S{20,}==)", r"(20\d\d-\d\d-\d\dT\d\d:\d\d)")
"""The HMAC of a token is another one each time."""


_BOTH = (r"are (SCRAM-SHA-\S+, SCRAM-SHA-\S+)",)
"""Kafka tells a user's mechanisms in the order of a hash table."""
_IN_ERROR_STATE = ("! .*KafkaException: Cannot execute transactional method because we are in an error state",)
"""A producer whose id was refused before it sent its record, and not after."""
_ID_REFUSED = (r"! java.*ExecutionException: .*ClusterAuthorizationException: Cluster authorization failed\.",)
"""A producer whose id was refused after it sent its record: the next line has the cause, as in the other case."""
_OPERATIONS = (r"only supports operations (\[.*)",)


def _as(user: str, line: str, *, given: str = "", masks: tuple[str, ...] = (), is_unordered: bool = False) -> Line:
    """Return a command line with the settings of a user."""
    line = f"{line} --command-config @{user}.properties"
    drops = _IN_ERROR_STATE + (_ID_REFUSED if line.startswith("console-producer") else ())
    return Line(line, given=given, masks=masks, drops=drops, is_unordered=is_unordered)


def _acls(arguments: str, user: str = "admin", *, given: str = "") -> Line:
    return _as(user, f"acls {arguments}", given=given, masks=_OPERATIONS, is_unordered=True)


ACLS = (
    _acls("--list"),
    _acls("--list", "alice"),
    _acls("--list", "nobody"),
    _acls("--add --allow-principal User:alice --operation Read --topic plain"),
    _acls("--add --allow-principal User:alice --operation Read --topic plain"),
    _acls("--list --topic plain"),
    _acls("--add --allow-principal User:alice --allow-principal User:bob --operation Write --operation Describe "
          "--topic plain --topic other --allow-host 127.0.0.1 --allow-host 192.0.2.1"),
    _acls("--add --deny-principal User:mallory --operation All --topic plain --deny-host 127.0.0.1"),
    _acls("--add --deny-principal User:mallory --operation Read --topic plain"),
    _acls("--add --allow-principal User:bob --producer --topic pro --transactional-id tx --idempotent"),
    _acls("--add --allow-principal User:bob --consumer --topic con --group g"),
    _acls("--add --allow-principal User:bob --producer --consumer --topic both --group g2"),
    _acls("--add --allow-principal User:alice --operation All --topic al --resource-pattern-type prefixed"),
    _acls("--add --allow-principal User:alice --operation Describe --cluster"),
    _acls("--add --allow-principal User:alice --operation AlterConfigs --cluster kafka-cluster"),
    _acls("--add --allow-principal User:alice --operation Describe --delegation-token 'some token'"),
    _acls("--add --allow-principal User:alice --operation CreateTokens --user-principal User:bob"),
    _acls("--add --allow-principal User:* --operation Describe --topic '*'"),
    _acls("--list"),
    _acls("--list --topic plain --topic other"),
    _acls("--list --topic all.of.it --resource-pattern-type match"),
    _acls("--list --topic al --resource-pattern-type prefixed"),
    _acls("--list --topic al --resource-pattern-type literal"),
    _acls("--list --topic al --resource-pattern-type any"),
    _acls("--list --group '*'"),
    _acls("--list --group '*' --resource-pattern-type match"),
    _acls("--list --cluster"),
    _acls("--list --principal User:alice"),
    _acls("--list --principal User:alice --principal User:bob --topic plain"),
    _acls("--list --principal User:nobody"),
    _acls("--list --transactional-id tx"),
    _acls("--list --delegation-token 'some token'"),
    _acls("--list --user-principal User:bob"),
    _acls("--add --allow-principal alice --operation Read --topic plain"),
    _acls("--add --allow-principal User: --operation Read --topic plain"),
    _acls("--add --allow-principal Group:all --operation Read --topic plain"),
    _acls("--add --allow-principal User:alice --operation Nonsense --topic plain"),
    _acls("--add --allow-principal User:alice --operation Create --group g"),
    _acls("--add --allow-principal User:alice --operation IdempotentWrite --topic plain"),
    _acls("--add --allow-principal User:alice --operation Read --cluster"),
    _acls("--add --allow-principal User:alice --operation Read"),
    _acls("--add --operation Read --topic plain"),
    _acls("--add --allow-principal User:alice --operation Read --topic plain --resource-pattern-type match"),
    _acls("--add --allow-principal User:alice --operation Read --topic plain --resource-pattern-type nonsense"),
    _acls("--add --allow-principal User:alice --operation Read --topic ''"),
    _acls("--add --allow-principal User:alice --operation Read --topic plain --allow-host ''"),
    _acls("--add --allow-principal User:alice --operation Read --topic plain --deny-host 192.0.2.1"),
    _acls("--add --allow-principal User:alice --operation Read --topic 'no topic' --force"),
    _acls("--add --allow-principal User:bob --operation Read --topic mine", "alice"),
    _acls("--remove --allow-principal User:bob --operation Read --topic plain --force", "alice"),
    _acls("--remove --allow-principal User:alice --operation Read --topic plain", given="n\n"),
    _acls("--remove --allow-principal User:alice --operation Read --topic plain", given="y\n"),
    _acls("--remove --allow-principal User:alice --operation Read --topic plain --force"),
    _acls("--remove --topic other --force"),
    _acls("--remove --topic '*' --force"),
    _acls("--remove --allow-principal User:bob --consumer --topic con --group g --force"),
    _acls("--remove --allow-principal User:alice --operation All --topic al --force"),
    _acls("--remove --topic al --resource-pattern-type prefixed --force"),
    _acls("--remove --cluster --force"),
    _acls("--remove --force"),
    _acls("--remove --allow-principal User:alice --operation Read --topic missing --force"),
    _acls("--list"),
    Line("acls:controller --list", is_unordered=True),
    Line("acls:controller --add --allow-principal User:zoe --operation Read --topic plain", is_unordered=True),
    Line("acls:controller --remove --allow-principal User:zoe --operation Read --topic plain --force"),
    _acls("--list --topic plain"),
)  # fmt: skip

RIGHTS = (
    _as("admin", "topics --create --topic plain --replica-assignment 1:2:3"),
    _as("admin", "topics --create --topic other --replica-assignment 1:2:3"),
    _as("admin", "topics --create --topic hidden --replica-assignment 1:2:3"),
    _as("admin", "acls --remove --topic plain --force", is_unordered=True),
    _as("alice", "topics --list"),
    _as("alice", "topics --describe --topic plain"),
    _as("alice", "topics --create --topic mine --partitions 1 --replication-factor 1"),
    _as("alice", "topics --delete --topic plain"),
    _as("alice", "topics --alter --topic plain --partitions 5"),
    _as("alice", "console-producer --topic plain --sync", given="x\n"),
    _as("alice", "console-consumer --topic plain --from-beginning --timeout-ms 4000 --group g"),
    _as("alice", "get-offsets --topic plain"),
    _as("alice", "configs --describe --topic plain"),
    _as("alice", "configs --alter --topic plain --add-config retention.ms=1000000"),
    _as("alice", "configs --describe --broker 1"),
    _as("alice", "configs --alter --broker 1 --add-config log.cleaner.threads=2"),
    _as("alice", "configs --alter --broker-defaults --add-config log.cleaner.threads=2"),
    _as("alice", "configs --describe --broker-logger 1"),
    _as("alice", "configs --alter --broker-logger 1 --add-config root=INFO"),
    _as("alice", "configs --describe --client-metrics slow"),
    _as("alice", "configs --alter --client-metrics slow --add-config interval.ms=1000"),
    _as("alice", "configs --describe --group g"),
    _as("alice", "configs --alter --group g --add-config consumer.session.timeout.ms=50000"),
    _as("alice", "configs --describe --user alice"),
    _as("alice", "configs --alter --user alice --add-config producer_byte_rate=1000"),
    _as("alice", "configs --alter --user alice --add-config SCRAM-SHA-256=[password=mine]"),
    _as("alice", "consumer-groups --list"),
    _as("alice", "consumer-groups --describe --group g"),
    _as("alice", "consumer-groups --delete --group g"),
    _as("alice", "consumer-groups --reset-offsets --group g --topic plain --to-earliest --execute"),
    _as("alice", "share-groups --list"),
    _as("alice", "share-groups --describe --group g"),
    _as("alice", "delete-records --offset-json-file @delete.json"),
    _as("alice", "log-dirs --describe"),
    _as("alice", "reassign-partitions --list"),
    _as("alice", "leader-election --election-type preferred --topic plain --partition 0"),
    _as("alice", "cluster cluster-id"),
    _as("alice", "cluster unregister --id 9"),
    _as("alice", "cluster list-endpoints"),
    Line("transactions --command-config @alice.properties list"),
    Line("transactions --command-config @alice.properties describe --transactional-id tx"),
    Line("transactions --command-config @alice.properties describe-producers --topic plain --partition 0"),
    Line("metadata-quorum --command-config @alice.properties describe --status"),
    Line("features --command-config @alice.properties upgrade --feature group.version=1 --dry-run"),
    _as("nobody", "topics --list"),
    _as("odd-mechanism", "topics --list"),
    _as("admin", "acls --add --allow-principal User:alice --operation Read --operation DescribeConfigs --topic plain",
        is_unordered=True),
    _as("admin", "acls --add --allow-principal User:alice --operation Read --group g", is_unordered=True),
    _as("alice", "topics --list"),
    _as("alice", "topics --describe"),
    _as("alice", "configs --describe --topic plain"),
    _as("alice", "console-producer --topic plain --sync", given="x\n"),
    _as("admin", "console-producer --topic plain --sync", given="1\n2\n3\n"),
    _as("alice", "console-consumer --topic plain --from-beginning --max-messages 3 --group g"),
    _as("alice", "console-consumer --topic plain --from-beginning --max-messages 3 --group other"),
    _as("alice", "console-consumer --topic plain --from-beginning --max-messages 3 --group g "
        "--command-property group.protocol=consumer"),
    _as("alice", "console-share-consumer --topic plain --group g2 --max-messages 1 --timeout-ms 4000"),
    _as("alice", "consumer-groups --list"),
    _as("alice", "consumer-groups --describe --group g", is_unordered=True),
    _as("alice", "producer-perf-test --topic other --num-records 1 --throughput -1 --record-size 10"),
)  # fmt: skip

USERS = (
    _as("admin", "configs --describe --entity-type users"),
    _as("admin", "configs --describe --user carol"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-256=[password=first]"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-512=[iterations=8192,password=second]"),
    _as("admin", "configs --alter --user dora "
        "--add-config SCRAM-SHA-256=[password=a],SCRAM-SHA-512=[password=b],producer_byte_rate=1000"),
    _as("admin", "configs --alter --user dora --add-config SCRAM-SHA-512=[password=b,iterations=4096]"),
    _as("admin", "configs --describe --user carol", masks=_BOTH),
    _as("admin", "configs --describe --entity-type users", is_unordered=True, masks=_BOTH),
    _as("admin", "configs --describe --entity-type users --entity-default"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-256=[iterations=10,password=first]"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-256=[iterations=16385,password=first]"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-256=[iterations=8192]"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-256=[password=]"),
    _as("admin", "configs --alter --user carol --add-config SCRAM-SHA-1=[password=x]"),
    _as("admin", "configs --alter --user-defaults --add-config SCRAM-SHA-256=[password=x]"),
    _as("admin", "configs --alter --user '' --add-config SCRAM-SHA-256=[password=x]"),
    _as("carol-256", "topics --list"),
    _as("carol-512", "topics --list"),
    _as("dora", "topics --list"),
    _as("admin", "configs --alter --user carol --delete-config SCRAM-SHA-256"),
    _as("admin", "configs --alter --user carol --delete-config SCRAM-SHA-256"),
    _as("admin", "configs --alter --user nobody --delete-config SCRAM-SHA-256"),
    _as("carol-256", "topics --list"),
    _as("carol-512", "topics --list"),
    _as("admin", "configs --describe --user carol"),
    _as("admin", "configs --alter --user carol --delete-config SCRAM-SHA-512"),
    _as("admin", "configs --describe --user carol"),
    Line("configs:controller --alter --user eve --add-config SCRAM-SHA-256=[password=x]"),
    Line("configs:controller --describe --user eve"),
    Line("configs:controller --alter --user eve --delete-config SCRAM-SHA-256"),
    _as("admin", "configs --alter --client aside --add-config request_percentage=50"),
    _as("admin", "configs --alter --entity-type ips --entity-name 192.0.2.7 --add-config connection_creation_rate=9"),
    _as("admin", "configs --describe --entity-type clients"),
    _as("admin", "configs --describe --entity-type ips"),
    _as("admin", "configs --describe --entity-type users --entity-type clients"),
    _as("admin", "configs --alter --entity-type ips --entity-name not.an.address.invalid "
        "--add-config connection_creation_rate=9"),
)  # fmt: skip


def _tokens(arguments: str, user: str = "alice", *, keeps: str = "", until: str = "") -> Line:
    line = f"delegation-tokens {arguments} --command-config @{user}.properties"
    return Line(line, masks=_TOKEN, is_unordered=True, keeps=keeps, until=until)


_HMAC = r"\s(\S{88})\s"
_ONE = "tokens : 1"

TOKENS = (
    _tokens("--describe"),
    _tokens("--create --max-life-time-period -1 --renewer-principal User:bob", keeps=_HMAC),
    _tokens("--describe --owner-principal User:alice", until=_ONE),
    _tokens("--describe --owner-principal User:bob", until=_ONE),
    _tokens("--describe --owner-principal User:alice", "mallory"),
    _tokens("--describe --owner-principal User:alice", "admin"),
    _tokens("--describe"),
    _tokens("--describe", "bob"),
    _tokens("--describe", "mallory"),
    _tokens("--describe", "admin"),
    _tokens("--renew --renew-time-period -1 --hmac %kept", "bob"),
    _tokens("--renew --renew-time-period 600000 --hmac %kept"),
    _tokens("--renew --renew-time-period -1 --hmac %kept", "mallory"),
    _tokens("--renew --renew-time-period -1 --hmac bm90aGluZw=="),
    _tokens("--renew --renew-time-period -1 --hmac 'no base 64'"),
    _tokens("--expire --expiry-time-period -1 --hmac %kept", "mallory"),
    _tokens("--expire --expiry-time-period 900000 --hmac %kept"),
    _tokens("--expire --expiry-time-period -1 --hmac %kept", "bob"),
    _tokens("--describe --owner-principal User:alice", until="tokens : 0"),  # Kafka removes it a little later
    _tokens("--expire --expiry-time-period -1 --hmac %kept", "bob"),
    _tokens("--renew --renew-time-period -1 --hmac %kept"),
    _tokens("--describe"),
    _tokens("--create --max-life-time-period 1000000"),
    _tokens("--create --max-life-time-period 0"),
    _tokens("--create --max-life-time-period -5"),
    _tokens("--create --max-life-time-period -1 --renewer-principal nonsense"),
    _tokens("--create --max-life-time-period -1 --renewer-principal Group:all"),
    _tokens("--create --max-life-time-period -1 --owner-principal User:bob"),
    _tokens("--create --max-life-time-period -1 --owner-principal User:bob", "admin", keeps=_HMAC),
    _tokens("--describe --owner-principal User:bob", "bob", until="tokens : 2"),
    # Until it is not unknown any more: the broker described it, but Kafka's controller learns of it by itself.
    _tokens("--expire --expiry-time-period -1 --hmac %kept", "admin", until="not valid Owner/Renewer"),
    _tokens("--expire --expiry-time-period -1 --hmac %kept", "bob"),
    _tokens("--create"),
    _tokens("--renew --hmac %kept"),
    _tokens("--describe --create"),
)

STORIES = {"acls": ACLS, "rights": RIGHTS, "users": USERS, "tokens": TOKENS}
