"""The sources of settings, their precedence, and the messages about a bad one."""

from __future__ import annotations

import pytest

from kraftpy.config import Address, BrokerConfig, ConfigError, Listener, Origin, Voter, load
from kraftpy.config.sources import environment_settings, parse_properties, setting_name


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1\nb = 2\nc:3\nd 4\n  e\t5", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}),
        ("# comment\n! another\n\n   \na=1 # not a comment", {"a": "1 # not a comment"}),
        ("a=1,\\\n    2,\\\n  3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\n# no comment here", {"a": "1# no comment here"}),
        (r"path=C\:\\data\tx", {"path": "C:\\data\tx"}),
        (r"a\ b\=c=d", {"a b=c": "d"}),
        (r"a=\u00e9\u0041", {"a": "éA"}),
        (r"a=\q", {"a": "q"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a =", {"a": ""}),
        ("a = = b", {"a": "= b"}),
        ("", {}),
    ],
)
def test_a_properties_file_is_read_as_java_reads_it(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize("escape", [r"\u00", r"\uzzzz", r"\u"])
def test_a_broken_escape_is_named_with_its_line(escape: str) -> None:
    with pytest.raises(ConfigError, match=r"^node\.properties, line 2: .*four hexadecimal digits"):
        parse_properties(f"a=1\nb={escape}", "node.properties")


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("KAFKA_NODE_ID", "node.id"),
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "listener.security.protocol.map"),
        ("KAFKA_A__B_C", "a_b.c"),
        ("KAFKA_A___B", "a-b"),
    ],
)
def test_environment_variables_are_named_as_in_kafkas_image(variable: str, setting: str) -> None:
    assert setting_name(variable) == setting


def test_variables_of_the_image_itself_are_no_settings() -> None:
    environment = {
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "KAFKA_VERSION": "4.3.0",
        "PATH": "/bin",
        "KAFKA_": "x",
        "KAFKA_NUM_PARTITIONS": "3",
    }
    assert environment_settings(environment) == {"num.partitions": "3"}


def test_later_sources_win() -> None:
    config, warnings, _ = load(
        "node.id=1\nnum.partitions=1\nmessage.max.bytes=1\n",
        {"KAFKA_NUM_PARTITIONS": "2", "KAFKA_MESSAGE_MAX_BYTES": "2"},
        ["message.max.bytes=3", "message.max.bytes = 4"],
    )
    assert (config.node_id, config.num_partitions, config.message_max_bytes) == (1, 2, 4)
    assert config.given["message.max.bytes"].origin is Origin.OVERRIDE
    assert config.given["num.partitions"].origin is Origin.ENVIRONMENT
    assert config.given["node.id"].origin is Origin.FILE
    assert warnings == []


def test_a_key_given_twice_in_a_file_counts_the_last_time() -> None:
    assert load("num.partitions=1\nnode.id=2\nnum.partitions=3").config.num_partitions == 3


def test_what_kafka_has_and_we_do_not_use_is_one_note() -> None:
    config, warnings, notes = load(
        "num.network.threads=3\nzookeeper.connect=a:1\nlistener.name.external.ssl.keystore.type=PEM",
        {"KAFKA_SSL_CLIENT_AUTH": "none"},
        ["background.threads=1"],
    )
    assert warnings == []
    assert notes == [
        "num.network.threads is ignored: Kafka has it, but this broker does not use it",
        "zookeeper.connect is ignored: Kafka 4 no longer has it",
        "background.threads is ignored: Kafka has it, but this broker does not use it",
        "listener.name.external.ssl.keystore.type is ignored: EXTERNAL is not a listener with TLS or SASL",
        "ssl.client.auth is ignored: no listener has TLS or SASL",
    ]
    assert config == BrokerConfig()


@pytest.mark.parametrize(
    ("listeners", "exposed"),
    [
        ("PLAINTEXT://127.0.0.1:1,OTHER://[::1]:2,THIRD://localhost:3", ""),
        ("PLAINTEXT://:1", "PLAINTEXT://:1"),
        ("PLAINTEXT://127.0.0.1:1,OTHER://10.0.0.1:2,THIRD://[::2]:3", "OTHER://10.0.0.1:2, THIRD://[::2]:3"),
    ],
)
def test_a_listener_that_lets_everybody_in_is_one_warning(listeners: str, exposed: str) -> None:
    protocols = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,THIRD:PLAINTEXT"
    given = f"listeners={listeners}\nlistener.security.protocol.map={protocols}\ninter.broker.listener.name=PLAINTEXT"
    told = f"listeners: anyone who can reach {exposed} may do anything, and read what others send"
    assert load(given).warnings == ([told] if exposed else [])


def test_nobody_is_left_to_believe_in_an_authorizer_that_is_not_there() -> None:
    _, warnings, notes = load("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    assert (warnings, notes) == ([], [])
    with pytest.raises(ConfigError, match=r"authorizer.class.name=org.example.Mine is not supported: expected org.apa"):
        load("authorizer.class.name=org.example.Mine")
    with pytest.raises(ConfigError, match=r"super.users: expected a string in format principalType:principalName"):
        load("super.users=User:admin;alice")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("log.unclean.leader.election.enable", "Kafka 4 no longer has it"),
        ("leader.imbalance.per.broker.percentage", "Kafka 4 no longer has it"),
        ("auto.include.jmx.reporter", "Kafka 4 no longer has it"),
        ("config.providers.file.class", "Kafka has it, but this broker does not use it"),
        ("metrics.jmx.include", "Kafka has it, but this broker does not use it"),
        ("retention.ms", "it is a setting of topics; for all topics, set log.retention.ms"),
        ("message.format.version", "it is a setting of topics"),
        ("leader.replication.throttled.replicas", "it is a setting of topics"),
        (
            "consumer.session.timeout.ms",
            "it is a setting of groups; for all groups, set group.consumer.session.timeout.ms",
        ),
        ("share.isolation.level", "it is a setting of groups"),
        ("bootstrap.servers", "it is a setting of clients"),
        ("acks", "it is a setting of clients"),
        ("zookeeper.ssl.no.such", "Kafka 4 no longer has it"),
        ("confluent.license", "it is not a setting of Kafka"),
    ],
)
def test_a_name_that_means_nothing_here_is_one_note(name: str, reason: str) -> None:
    for sources in ({"properties": f"{name}=1"}, {"overrides": [f"{name}=1"]}):
        config, warnings, notes = load(**sources)  # type: ignore[arg-type]
        assert (config, warnings, notes) == (BrokerConfig(), [], [f"{name} is ignored: {reason}"])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nod.id", "node.id"),
        ("log.retention.hour", "log.retention.hours"),
        ("ssl.keystore.pasword", "ssl.keystore.password"),
    ],
)
def test_a_name_nobody_knows_is_an_error_that_names_the_nearest(name: str, near: str) -> None:
    for sources in ({"properties": f"{name}=1"}, {"overrides": [f"{name}=1"]}):
        with pytest.raises(ConfigError) as refused:
            load(**sources)  # type: ignore[arg-type]
        assert str(refused.value) == f"{name} is not a setting; did you mean {near}?"


def test_a_name_like_no_other_is_an_error_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"^qqqq is not a setting$"):
        load("qqqq=1")


def test_from_the_environment_it_is_a_warning() -> None:
    _, warnings, _ = load(None, {"KAFKA_NOD_ID": "1"})
    assert warnings == ["KAFKA_NOD_ID is ignored: nod.id is not a setting; did you mean node.id?"]


@pytest.mark.parametrize("override", ["node.id", "=3", " =3", ""])
def test_an_override_needs_a_name_and_a_value(override: str) -> None:
    with pytest.raises(ConfigError, match="expected name=value"):
        load(None, {}, [override])


AUTO_JOIN = "controller.quorum.auto.join.enable"
QUORUM = {"listeners": "PLAINTEXT://h:1,CONTROLLER://h:2"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        (
            {"process.roles": "boss"},
            "Invalid value boss for configuration process.roles: String must be one of: broker, controller",
        ),
        ({"process.roles": ""}, "process.roles='' is not allowed: expected a list of broker, controller"),
        ({"log.dirs": "", "log.dir": ""}, "log.dirs='' is not allowed: expected at least one directory"),
        (
            {"log.retention.ms": "0"},
            "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        ),
        ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
        (
            {"max.connections.per.ip": "0"},
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
        ),
        (
            {"group.share.assignment.interval.ms": "5", "group.share.min.assignment.interval.ms": "6"},
            "group.share.assignment.interval.ms must be greater than or equal to "
            "group.share.min.assignment.interval.ms",
        ),
        (
            {"listener.name.plaintext.max.connections": "few"},
            "Invalid value few for configuration max.connections: Not a number of type INT",
        ),
        ({"node.id": "1", "broker.id": "2"}, "You must set `node.id` to the same value as `broker.id`."),
        (
            {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"},
            "group.min.session.timeout.ms is above group.max.session.timeout.ms",
        ),
        (
            {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"},
            "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)",
        ),
        (
            {"log.cleaner.threads": "3", "log.cleaner.dedupe.buffer.size": "3145730"},
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        (
            {"log.cleaner.io.max.bytes.per.second": "0"},
            "log.cleaner.io.max.bytes.per.second is not allowed: expected more than 0",
        ),
        ({"listeners": "localhost:9092"}, "listeners='localhost:9092' is not allowed: expected NAME://host:port"),
        (
            {"listeners": "PLAINTEXT://h:70000"},
            "listeners='PLAINTEXT://h:70000' is not allowed: expected a port from 0 to 65535",
        ),
        ({"listeners": "A://h:1,A://h:2"}, "listeners: the listener name A occurs twice"),
        ({"listeners": "A://:1,B://h:1"}, "listeners: A://:1 and B://h:1 have the same port"),
        ({"listeners": "A://h:1"}, "listeners: no protocol for A in listener.security.protocol.map"),
        ({"listeners": "SSL://h:1"}, "listeners: SSL is SSL, but has neither ssl.keystore.location nor .key"),
        (
            {"listeners": "CONTROLLER://h:1"},
            "listeners: there is no listener for clients; all are in controller.listener.names",
        ),
        (
            {"listener.security.protocol.map": "A"},
            "listener.security.protocol.map='A' is not allowed: "
            "expected NAME:PROTOCOL, of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:1"},
            "advertised.listeners: PLAINTEXT://0.0.0.0:1 cannot be advertised; set an address that clients can reach",
        ),
        (
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:1"},
            "advertised.listeners='PLAINTEXT://0.0.0.0:1' is not allowed: clients cannot connect to 0.0.0.0",
        ),
        ({"advertised.listeners": "B://h:1"}, "advertised.listeners: B is not among listeners (PLAINTEXT)"),
        ({"inter.broker.listener.name": "B"}, "inter.broker.listener.name=B is not among listeners"),
        (
            {"listeners": "PLAINTEXT://h:1,CONTROLLER://h:2", "inter.broker.listener.name": "CONTROLLER"},
            "inter.broker.listener.name=CONTROLLER is in controller.listener.names",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
        ),
        (
            {"controller.quorum.voters": "1@a:1,2", **QUORUM},
            "controller.quorum.voters='2' is not allowed: expected id@host:port",
        ),
        (
            {"controller.quorum.voters": "1@a:1,2@b", **QUORUM},
            "controller.quorum.voters: 2@='b' is not allowed: expected host:port",
        ),
        ({"controller.quorum.voters": "1@a:1,1@b:1", **QUORUM}, "controller.quorum.voters: node 1 occurs twice"),
        (
            {"controller.quorum.voters": "1@a:1,2@a:1", **QUORUM},
            "controller.quorum.voters: 1@a:1 and 2@a:1 have the same address",
        ),
        (
            {"controller.quorum.voters": "2@a:1"},
            "listeners: there is none for the quorum; a controller needs one of controller.listener.names=CONTROLLER, "
            "for example CONTROLLER://:9093",
        ),
        (
            {"controller.quorum.voters": "1@a:1,2@b:1"},
            "listeners: there is none for the quorum; a controller needs one of controller.listener.names=CONTROLLER, "
            "for example CONTROLLER://:9093",
        ),
        (
            {"controller.quorum.voters": "1@a:1,2@b:1", "process.roles": "broker"},
            "node.id=1: a node with the role broker alone is not one of controller.quorum.voters=1@a:1,2@b:1",
        ),
        (
            {"process.roles": "broker"},
            "process.roles=broker: controller.quorum.voters or controller.quorum.bootstrap.servers "
            "is required to find the quorum",
        ),
        (
            {"process.roles": "broker", "controller.quorum.bootstrap.servers": "a:1", **QUORUM},
            "listeners: CONTROLLER is in controller.listener.names, but process.roles=broker is not a controller",
        ),
        (
            {"process.roles": "controller", **QUORUM},
            "listeners: PLAINTEXT is for clients, but process.roles=controller serves none; "
            "all must be in controller.listener.names",
        ),
        (
            {"controller.quorum.bootstrap.servers": "a:1,b:1"},
            "listeners: there is none for the quorum; a controller needs one of controller.listener.names=CONTROLLER, "
            "for example CONTROLLER://:9093",
        ),
        (
            {"process.roles": "broker", "controller.quorum.bootstrap.servers": "a:1", AUTO_JOIN: "true"},
            f"{AUTO_JOIN} is only supported when process.roles contains the 'controller' role.",
        ),
        (
            {"controller.quorum.bootstrap.servers": "a:1", AUTO_JOIN: "true"},
            f"{AUTO_JOIN}: listeners has none for the quorum; a voter needs one of controller.listener.names="
            "CONTROLLER, for example CONTROLLER://:9093",
        ),
        (
            {"broker.session.timeout.ms": "3000"},
            "broker.session.timeout.ms is below twice broker.heartbeat.interval.ms",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_one_clear_line(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.of(settings)
    assert str(refused.value) == message


def test_listeners_as_in_a_container() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "PLAINTEXT://:19092,CONTROLLER://:9093,PLAINTEXT_HOST://[::1]:9092",
            "advertised.listeners": "PLAINTEXT://broker-1:19092,plaintext_host://localhost:9092",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
        }
    )
    assert config.listeners == (
        Listener("PLAINTEXT", "", 19092),
        Listener("CONTROLLER", "", 9093),
        Listener("PLAINTEXT_HOST", "::1", 9092),
    )
    assert config.client_listeners == (config.listeners[0], config.listeners[2])
    assert config.advertised_listeners == (
        Listener("PLAINTEXT", "broker-1", 19092),
        Listener("PLAINTEXT_HOST", "localhost", 9092),
    )
    assert [str(listener) for listener in config.listeners][2] == "PLAINTEXT_HOST://[::1]:9092"


def test_a_controller_that_does_not_vote_yet() -> None:
    voters = {"controller.quorum.voters": "1@a:9093,2@b:9093"}
    config = BrokerConfig.of({"node.id": "4", **QUORUM, **voters})
    assert (config.is_controller, config.is_own_quorum, config.is_alone) == (True, False, False)
    assert BrokerConfig.of({"node.id": "1", "controller.quorum.voters": "1@a:9093"}).is_alone
    config = BrokerConfig.of({"node.id": "2", **QUORUM, "controller.quorum.voters": "1@a:9093"})
    assert (config.is_own_quorum, config.is_alone) == (False, False)


def test_a_cluster_of_three_as_in_a_container() -> None:
    given = {
        "process.roles": "broker,controller",
        "node.id": "2",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.quorum.voters": "3@broker-3:9093,1@broker-1:9093,2@[::1]:9093",
    }
    config = BrokerConfig.of(given)
    assert config.controller_quorum_voters == (
        Voter(1, Address("broker-1", 9093)),
        Voter(2, Address("::1", 9093)),
        Voter(3, Address("broker-3", 9093)),
    )
    assert config.inter_broker_listener == "PLAINTEXT"
    assert not config.is_alone
    assert config.offsets_topic_replication_factor == 3, "Kafka's default, where there can be as many"
    assert BrokerConfig.of({**given, "offsets.topic.replication.factor": "2"}).offsets_topic_replication_factor == 2


def test_a_controller_that_finds_its_quorum_at_several_addresses() -> None:
    """Its first voters are in its directory, which was formatted with them."""
    config = BrokerConfig.of({**QUORUM, "controller.quorum.bootstrap.servers": "a:9093,b:9093", AUTO_JOIN: "true"})
    assert (config.is_own_quorum, config.is_alone, config.controller_quorum_auto_join_enable) == (False, False, True)
    assert config.offsets_topic_replication_factor == 3
    one = BrokerConfig.of({**QUORUM, "controller.quorum.bootstrap.servers": "a:9093"})
    assert (one.is_own_quorum, one.controller_quorum_auto_join_enable) == (True, False)


def test_roles_apart() -> None:
    voters = {"controller.quorum.voters": "1@a:9093,2@b:9093"}
    controller = BrokerConfig.of({**voters, "process.roles": "controller", "listeners": "CONTROLLER://:9093"})
    assert (controller.is_broker, controller.advertised_listeners) == (False, ())
    assert controller.controller_listeners == controller.listeners
    broker = BrokerConfig.of({**voters, "process.roles": "broker", "node.id": "7"})
    assert (broker.is_controller, broker.is_alone, broker.controller_listeners) == (False, False, ())


def test_kafkas_own_example_of_a_single_node_is_alone() -> None:
    config = BrokerConfig.of(
        {
            "process.roles": "broker,controller",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
        }
    )
    assert config.controller_quorum_voters == ()
    assert [listener.name for listener in config.advertised_listeners] == ["PLAINTEXT"]
    assert config.offsets_topic_replication_factor == 1
    assert BrokerConfig().is_alone


def test_without_advertised_listeners_clients_are_told_where_it_listens() -> None:
    config = BrokerConfig.of({"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"})
    assert config.advertised_listeners == (Listener("PLAINTEXT", "127.0.0.1", 0),)


def test_older_names_still_work() -> None:
    config = BrokerConfig.of({"broker.id": "4", "log.dir": "/a,/b"})
    assert (config.node_id, config.broker_id, config.log_dirs) == (4, 4, ("/a", "/b"))
    assert BrokerConfig.of({"node.id": "5"}).broker_id == 5
    assert BrokerConfig.of({"log.dir": "/a", "log.dirs": "/b"}).log_dirs == ("/b",)


def test_the_limits_of_a_listener_are_not_called_ignored() -> None:
    name = "listener.name.plaintext.max.connections"
    assert load(f"{name}=5\n").notes == []
    assert load("", {}, [f"{name}.other=5"]).notes == [
        f"{name}.other is ignored: Kafka has it, but this broker does not use it"
    ]
