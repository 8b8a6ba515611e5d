"""The parts of the world of containers that need no container; the suite that `make docker-test` runs has the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chaos.nemesis import between
from chaos.running import WORLDS
from chaos.worlds import containers, docker
from chaos.worlds.containers import NETWORK, NODES, address_of, as_environment, packet_filter, settings_file
from chaos.worlds.docker import COMPOSE_FILES, CONTROLLER_PORT, PORTS, DockerWorld
from kraftpy.config.sources import setting_name

COMPOSE, OVERLAY = (file.read_text(encoding="utf-8") for file in COMPOSE_FILES)


def rules(table: str) -> list[str]:
    """Those that do something."""
    assert table.startswith("*filter\n")
    assert table.endswith("COMMIT\n"), "iptables-restore takes it at once"
    return [line for line in table.splitlines() if line.startswith("-A")]


def test_a_whole_network_has_no_rules() -> None:
    assert all(rules(packet_filter(node, [], is_diverted=False)) == [] for node in NODES)


def test_one_direction_is_cut_at_both_its_ends_and_nowhere_else() -> None:
    """So that it is cut though the container at one end is new and has no rules yet."""
    cuts = [(1, 2)]
    assert rules(packet_filter(1, cuts, is_diverted=False)) == ["-A OUTPUT -d 10.213.77.12 -j DROP"]
    assert rules(packet_filter(2, cuts, is_diverted=False)) == ["-A INPUT -s 10.213.77.11 -j DROP"]
    assert rules(packet_filter(3, cuts, is_diverted=False)) == []


def test_a_node_that_is_alone_hears_and_reaches_nobody() -> None:
    found = rules(packet_filter(3, between([3], NODES), is_diverted=False))
    assert sorted(found) == sorted(
        f"-A {chain} {address_of(other)} -j DROP" for chain in ("INPUT -s", "OUTPUT -d") for other in (1, 2)
    )


def test_what_is_cut_does_not_reach_the_proxy() -> None:
    """The first rule that matches decides."""
    found = rules(packet_filter(1, [(2, 1)], is_diverted=True))
    assert found.index("-A INPUT -s 10.213.77.12 -j DROP") < found.index(
        "-A INPUT -s 10.213.77.12 -j NFQUEUE --queue-num 1 --queue-bypass"
    )
    assert len([rule for rule in found if "NFQUEUE" in rule]) == 4, "both directions of two links"


@pytest.mark.parametrize("name", ["log.roll.ms", "kraftpy.flush.before.ack", "a_b-c.d"])
def test_a_setting_reaches_the_server_by_its_name_in_the_environment(name: str) -> None:
    (variable,) = as_environment({name: "1"})
    assert setting_name(variable) == name


def test_every_node_is_given_the_settings() -> None:
    services = json.loads(settings_file({"log.roll.ms": "7", "x": "a$b"}))["services"]
    assert services == {
        f"kafka{node}": {"environment": {"KAFKA_LOG_ROLL_MS": "7", "KAFKA_X": "a$$b"}} for node in NODES
    }


@pytest.mark.parametrize("node", NODES)
def test_the_compose_files_have_what_the_world_takes_for_granted(node: int) -> None:
    assert f'ports: ["127.0.0.1:{PORTS[node]}:9092"]' in COMPOSE
    assert f"EXTERNAL://localhost:{PORTS[node]}" in COMPOSE
    assert re.search(rf"KAFKA_CONTROLLER_QUORUM_VOTERS: .*\b{node}@kafka{node}:{CONTROLLER_PORT}\b", COMPOSE)
    volumes = f'["kafka{node}-data:/var/lib/kafka/data", "secrets:/var/lib/kafka/secrets"]'
    assert f"volumes: {volumes}" in COMPOSE, "the nodes share a secret, which the first one makes"
    assert "  KAFKA_KRAFTPY_QUORUM_SECRET_FILE: /var/lib/kafka/secrets/quorum\n" in COMPOSE
    own = OVERLAY[OVERLAY.index(f"\n  kafka{node}:\n") :].split("\n\n")[0]
    network, last = re.findall(r'ipv4_address: "\$\{KRAFTPY_CHAOS_NETWORK:-([\d.]+)\}\.(\d+)"', own)[0]
    assert f"{network}.{last}" == address_of(node)
    assert network == NETWORK
    assert f'"${{KRAFTPY_CHAOS}}/kafka{node}/disk/data:/var/lib/kafka/data"' in own
    assert f'"${{KRAFTPY_CHAOS}}/kafka{node}/chaos:/chaos:ro"' in own


def test_it_has_as_many_nodes_as_the_compose_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="3 nodes"):
        DockerWorld(tmp_path, nodes=5)
    assert WORLDS["docker"](tmp_path, 3, {}).nodes == (1, 2, 3)


@pytest.mark.parametrize(("status", "told"), [(0, 0), (1, 1), (137, None)])
async def test_a_container_that_had_to_be_killed_did_not_stop(
    status: int, told: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fault excuses it: a node that hangs is a finding, even while a fault may have it end."""
    world = DockerWorld(tmp_path)
    monkeypatch.setattr(world, "is_running", lambda node: True)

    async def answered(*arguments: object, **_: object) -> str:
        return str(status) if "inspect" in arguments else ""

    for module in (docker, containers):
        monkeypatch.setattr(module, "command", answered)
    assert await world.end(1) == told
    world._may_end.add(1)
    await world.stop(1)
    assert [problem.split(":")[0] for problem in world.problems()] == (
        ["node 1 did not stop within 120 s"] if told is None else []
    )
