"""The settings of `kraftpy server --processes N`: ids, ports, directories, roles, the quorum, and what is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.processes import configs_of_processes

SECRET = "a secret of twenty characters"


def made(settings: dict[str, str], count: int = 3, port_step: int = 1) -> list[BrokerConfig]:
    return configs_of_processes(BrokerConfig.of(settings), count, port_step, SECRET)


def listeners(config: BrokerConfig) -> str:
    return ",".join(map(str, config.listeners))


def test_without_settings_the_processes_are_a_cluster_on_this_machine() -> None:
    first, second, third = made({})
    assert [each.node_id for each in (first, second, third)] == [1, 2, 3]
    assert listeners(first) == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9095"
    assert [listeners(second), listeners(third)] == ["PLAINTEXT://127.0.0.1:9093", "PLAINTEXT://127.0.0.1:9094"]
    assert first.is_own_quorum
    assert first.is_broker
    assert [each.process_roles for each in (second, third)] == [("broker",)] * 2
    for number, each in enumerate((first, second, third), 1):
        assert ",".join(map(str, each.controller_quorum_voters)) == "1@127.0.0.1:9095"
        assert each.log_dirs == (f"./kraftpy-data/node-{number}",)
        assert each.kraftpy_quorum_secret == SECRET
        assert each.kraftpy_broker_host == "host-1"
        assert each.offsets_topic_replication_factor == each.transaction_state_log_replication_factor == 1
        assert each.transaction_state_log_min_isr == 1


def test_everything_that_two_processes_cannot_share_differs() -> None:
    first, second = made(
        {
            "broker.id": "7",
            "listeners": "CLIENTS://0.0.0.0:9092,PLAINTEXT://:9192,CONTROLLER://:9292",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "advertised.listeners": "CLIENTS://kafka.example.com:19092,PLAINTEXT://10.0.0.1:9192",
            "log.dirs": "/a,/b/",
            "cordoned.log.dirs": "/b/",
            "kraftpy.audit.log.file": "/var/log/audit.log",
            "kraftpy.metrics.listener": "[::1]:9404",
            "kraftpy.broker.host": "rack 7, machine 3",
            "kraftpy.quorum.secret": "x" * 20,
        },
        count=2,
        port_step=10,
    )
    assert (first.node_id, second.node_id, second.broker_id) == (7, 8, 8)
    assert listeners(second) == "CLIENTS://0.0.0.0:9102,PLAINTEXT://:9202"
    assert (
        ",".join(map(str, second.advertised_listeners)) == "CLIENTS://kafka.example.com:19102,PLAINTEXT://10.0.0.1:9202"
    )
    assert listeners(first) == "CLIENTS://0.0.0.0:9092,PLAINTEXT://:9192,CONTROLLER://:9292"
    assert first.log_dirs == ("/a/node-7", "/b/node-7")
    assert second.log_dirs == ("/a/node-8", "/b/node-8")
    assert second.cordoned_log_dirs == ("/b/node-8",)
    assert first.kraftpy_audit_log_file == "/var/log/audit-node-7.log"
    assert second.kraftpy_audit_log_file == "/var/log/audit-node-8.log"
    assert (first.kraftpy_metrics_listener, second.kraftpy_metrics_listener) == ("[::1]:9404", "[::1]:9414")
    assert first.kraftpy_broker_host == second.kraftpy_broker_host == "rack 7, machine 3"
    assert second.kraftpy_quorum_secret == "x" * 20
    assert ",".join(map(str, second.controller_quorum_voters)) == "7@127.0.0.1:9292"


def test_a_port_of_0_stays_one() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9000",
        "kraftpy.metrics.listener": "127.0.0.1:0",
    }
    assert [listeners(each) for each in made(settings)[1:]] == ["PLAINTEXT://127.0.0.1:0"] * 2
    assert {each.kraftpy_metrics_listener for each in made(settings)} == {"127.0.0.1:0"}
    assert len(made({**settings, "kraftpy.unknown.listener": "anything"})) == 3


def test_the_processes_of_several_hosts_join_their_quorum() -> None:
    voters = "100@one:9093,200@two:9093,300@three:9093"
    settings = {
        "node.id": "200",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.quorum.voters": voters,
        "kraftpy.quorum.secret": "x" * 20,
    }
    configs = made(settings, port_step=10)
    assert [each.process_roles for each in configs] == [("broker", "controller"), ("broker",), ("broker",)]
    assert {",".join(map(str, each.controller_quorum_voters)) for each in configs} == {voters}
    assert {each.offsets_topic_replication_factor for each in configs} == {3}
    assert {each.kraftpy_broker_host for each in configs} == {"host-200"}
    brokers = made({**settings, "node.id": "400", "process.roles": "broker", "listeners": "PLAINTEXT://:9092"})
    assert [each.process_roles for each in brokers] == [("broker",)] * 3
    seekers = {"process.roles": "broker", "controller.quorum.bootstrap.servers": "one:9093,two:9093"}
    assert all(len(each.controller_quorum_bootstrap_servers) == 2 for each in made(seekers))


def test_a_further_process_may_be_a_voter_if_it_is_where_the_quorum_expects_it() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9192",
        "controller.quorum.voters": "1@127.0.0.1:9192,2@127.0.0.1:9193,3@127.0.0.1:9194",
    }
    assert [each.is_controller for each in made(settings, count=4)] == [True, True, True, False]
    voters = "1@one:9192,2@two:9192,3@three:9192"
    with pytest.raises(ConfigError, match=r"has 2@two:9192, but that process has CONTROLLER://127.0.0.1:9193"):
        made({**settings, "controller.quorum.voters": voters})


def test_only_the_first_process_of_a_formatted_quorum_s_controller_joins_the_voters() -> None:
    settings = {
        "node.id": "200",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.quorum.bootstrap.servers": "one:9093,two:9093,three:9093",
        "controller.quorum.auto.join.enable": "true",
        "kraftpy.quorum.secret": "x" * 20,
    }
    configs = made(settings, port_step=10)
    assert [each.process_roles for each in configs] == [("broker", "controller"), ("broker",), ("broker",)]
    assert [each.controller_quorum_auto_join_enable for each in configs] == [True, False, False]
    assert {each.offsets_topic_replication_factor for each in configs} == {3}


def test_given_defaults_of_internal_topics_hold_for_all() -> None:
    configs = made({"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "2"})
    assert {each.offsets_topic_replication_factor for each in configs} == {3}
    assert {each.transaction_state_log_replication_factor for each in configs} == {2}
    assert {each.transaction_state_log_min_isr for each in configs} == {1}


def test_a_secured_cluster_has_no_open_listener_for_controllers() -> None:
    first, second = made(
        {
            "listeners": "SASL_PLAINTEXT://:9092",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="node" password="secret" user_node="secret";'
            ),
        },
        count=2,
    )
    assert first.kraftpy_quorum_secret == second.kraftpy_quorum_secret == SECRET
    assert first.security_of("CONTROLLER") is None
    assert str(first.controller_listeners[0]) == "CONTROLLER://127.0.0.1:9094"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {
                "process.roles": "controller",
                "listeners": "CONTROLLER://:9093",
                "controller.quorum.voters": "1@localhost:9093",
            },
            "process.roles=controller is one process",
        ),
        (
            {"listeners": "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093"},
            "listener PLAINTEXT of node 2 and listener CONTROLLER of node 1 would both have port 9093: set --port-step",
        ),
        (
            {"listeners": "PLAINTEXT://:9092", "kraftpy.metrics.listener": "127.0.0.1:9093"},
            r"listener PLAINTEXT of node 2 and kraftpy.metrics.listener of node 1 would both have port 9093",
        ),
        (
            {"listeners": "PLAINTEXT://:9092", "kraftpy.metrics.listener": "127.0.0.1:9095"},
            "kraftpy.metrics.listener of node 1 and listener CONTROLLER of node 1 would both have port 9095",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "listeners needs CONTROLLER with a port other than 0"),
        ({"listeners": "PLAINTEXT://:65534"}, "expected a port from 0 to 65535"),
        ({"node.id": "2147483647"}, "node.id"),
        (
            {"kraftpy.broker.host": ""},
            "kraftpy.broker.host is not allowed: expected a printable name, 255 bytes at most",
        ),
        ({"kraftpy.broker.host": "\udc80"}, "expected a printable name"),
        ({"kraftpy.broker.host": "é" * 128}, "255 bytes at most"),
    ],
)
def test_settings_that_several_processes_cannot_have_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(settings)


@given(
    some.lists(some.integers(1024, 1100), min_size=1, max_size=3, unique=True),
    some.integers(2, 6),
    some.integers(1, 12),
)
def test_no_port_is_used_twice(ports: list[int], count: int, port_step: int) -> None:
    names = ["PLAINTEXT", "SECOND", "CONTROLLER"]
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
    }
    with contextlib.suppress(ConfigError):
        check_ports_of(made(settings, count, port_step))


def check_ports_of(configs: list[BrokerConfig]) -> None:
    used = [each.port for config in configs for each in config.listeners]
    assert len(used) == len({*used})
    assert len({config.node_id for config in configs}) == len({config.log_dirs for config in configs}) == len(configs)
