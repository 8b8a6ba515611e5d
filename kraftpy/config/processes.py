"""The settings of each process of `kraftpy server --processes N`, derived from those of one node.

The first process is the node that the settings describe. The others are brokers of the same cluster: process k has the
node id + k, the ports of every listener + k steps, a directory of its own within each of `log.dirs`
(`/data/node-<id>`), and an audit log of its own. All of them have one `kraftpy.broker.host`, so that replicas of a
partition are on different hosts first (`kraftpy.metadata.placement`).

If the settings name no quorum, the processes are a cluster, whose only controller is the first process: a quorum of
several would write everything several times to the disks of one host, and lose it with them all the same. It gets a
listener for controllers on 127.0.0.1 if it has none, one port above the highest of all listeners, and a secret if that
listener has neither TLS nor SASL. Internal topics then have as many replicas as on a single node, if nothing else is
set. If the settings name a quorum, a process is a controller if it is one of the voters; the first keeps its roles.

Left out: settings that differ between processes in any other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kraftpy.config import quorum
from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Origin, WrittenSetting
from kraftpy.config.listeners import PROTOCOLS, Listener, hosts_overlap, parse_protocol_map
from kraftpy.config.settings import ConfigError

HOST: Final = "kraftpy.broker.host"
_LOOPBACK: Final = "127.0.0.1"
_ANY: Final = {"": _LOOPBACK, "0.0.0.0": _LOOPBACK, "::": "::1"}
_AS_ALONE: Final = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)
"""Settings whose default is another for a node that is its own quorum."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """An address that a process listens on, and the setting or listener that it is for."""

    node_id: int
    name: str
    host: str
    port: int


def configs_of_processes(base: BrokerConfig, count: int, port_step: int, secret: str) -> list[BrokerConfig]:
    """Return the settings of `count` processes, the first of which is the node of `base`. Raises ConfigError.

    `secret` is used if the quorum needs one and none is given: text that nobody can guess, new at each start.
    """
    if not base.is_broker:
        raise ConfigError("--processes: process.roles=controller is one process; only brokers can be several")
    if base.is_controller and not base.controller_quorum_voters and not base.controller_quorum_bootstrap_servers:
        base = _with_quorum(base, count, port_step, secret)
    configs = [_config(base, number, port_step) for number in range(count)]
    _check_ports([bound for config in configs for bound in _bound(config)])
    return configs


def data_directory(path: str, node_id: int) -> str:
    """Return the directory of one process within a directory of `log.dirs`."""
    return f"{path.rstrip('/')}/node-{node_id}"


def _with_quorum(base: BrokerConfig, count: int, port_step: int, secret: str) -> BrokerConfig:
    """Return the settings with the first process as the quorum that the others find."""
    name = base.controller_listener_names[0] if base.controller_listener_names else ""
    changes: dict[str, str] = {}
    listener = next(iter(base.controller_listeners), None)
    if listener is None:
        if not name:
            raise ConfigError("--processes: controller.listener.names is empty: the processes need one")
        highest = max(each.port for each in base.listeners)
        port = highest + (count - 1) * port_step + 1 if highest else 0
        listener = Listener(name, _LOOPBACK, port)
        changes["listeners"] = ",".join(map(str, (*base.listeners, listener)))
    if not listener.port:
        raise ConfigError(
            f"--processes: listeners needs {listener.name} with a port other than 0: the processes meet there"
        )
    protocols = parse_protocol_map(base.listener_security_protocol_map)
    if listener.name not in protocols:
        text = base.listener_security_protocol_map
        changes["listener.security.protocol.map"] = f"{text},{listener.name}:{PROTOCOLS[0]}"
    is_plain = protocols.get(listener.name, PROTOCOLS[0]) == PROTOCOLS[0]
    if is_plain and base.kraftpy_quorum_secret is None and base.kraftpy_quorum_secret_file is None:
        changes["kraftpy.quorum.secret"] = secret
    address = quorum.Address(_ANY.get(listener.host, listener.host), listener.port)
    changes[quorum.VOTERS] = str(quorum.Voter(base.node_id, address))
    return _changed(base, changes)


def _config(base: BrokerConfig, number: int, port_step: int) -> BrokerConfig:
    """Return the settings of one process."""
    node_id = base.node_id + number
    changes = {
        "node.id": str(node_id),
        "broker.id": str(node_id),
        "log.dirs": ",".join(data_directory(path, node_id) for path in base.log_dirs),
    }
    if "broker.id" not in base.given:
        del changes["broker.id"]
    if base.cordoned_log_dirs and base.cordoned_log_dirs != ("*",):
        changes["cordoned.log.dirs"] = ",".join(data_directory(path, node_id) for path in base.cordoned_log_dirs)
    if base.kraftpy_broker_host is None:
        changes[HOST] = f"host-{base.node_id}"
    if base.kraftpy_audit_log_file is not None:
        changes["kraftpy.audit.log.file"] = _named_after(base.kraftpy_audit_log_file, node_id)
    listeners = base.listeners
    if number and node_id not in {voter.node_id for voter in base.controller_quorum_voters}:
        changes["process.roles"] = "broker"
        listeners = base.client_listeners
        if quorum.AUTO_JOIN in base.given:
            changes[quorum.AUTO_JOIN] = "false"
        if len(base.controller_quorum_voters or base.controller_quorum_bootstrap_servers) <= 1 and base.is_controller:
            changes |= {
                name: str(getattr(base, name.replace(".", "_"))) for name in _AS_ALONE if name not in base.given
            }
    if number:
        changes |= _moved(base, listeners, number * port_step)
    config = _changed(base, changes)
    if number and config.is_controller:
        _check_voter(config)
    return config


def _moved(base: BrokerConfig, listeners: tuple[Listener, ...], by: int) -> dict[str, str]:
    """Return the settings with ports, which are `by` higher."""
    moved = {"listeners": ",".join(str(_with_port(each, by)) for each in listeners)}
    if "advertised.listeners" in base.given:
        moved["advertised.listeners"] = ",".join(str(_with_port(each, by)) for each in base.advertised_listeners)
    for name, host, port in _addresses(base):
        moved[name] = f"{host}:{port + by if port else 0}"
    return moved


def _with_port(listener: Listener, by: int) -> Listener:
    return Listener(listener.name, listener.host, listener.port + by if listener.port else 0)


def _addresses(config: BrokerConfig) -> Iterator[tuple[str, str, int]]:
    """Yield (name, host, port) of settings that are an address to listen on, such as `kraftpy.metrics.listener`."""
    for name, (text, _) in config.given.items():
        if name in BROKER_SETTINGS and name.startswith("kraftpy.") and name.endswith(".listener"):
            host, colon, port = text.strip().rpartition(":")
            if colon and port.isascii() and port.isdecimal():
                yield name, host, int(port)


def _named_after(path: str, node_id: int) -> str:
    """Return the path of a process's file: `audit.log` becomes `audit-node-2.log`."""
    directory, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    name = f"{stem}-node-{node_id}.{ending}" if dot and stem else f"{name}-node-{node_id}"
    return directory + slash + name


def _changed(base: BrokerConfig, changes: Mapping[str, str]) -> BrokerConfig:
    given = dict(base.given)
    given.pop("log.dir", None)
    for name, text in changes.items():
        given[name] = WrittenSetting(text, given[name].origin if name in given else Origin.OVERRIDE)
    return BrokerConfig.from_given(given)


def _check_voter(config: BrokerConfig) -> None:
    """Check that a further process which is a voter is the one that the quorum knows. Raises ConfigError."""
    voter = next(voter for voter in config.controller_quorum_voters if voter.node_id == config.node_id)
    if all(listener.port != voter.address.port for listener in config.controller_listeners):
        ports = ", ".join(map(str, config.controller_listeners))
        raise ConfigError(
            f"--processes: {quorum.VOTERS} has {voter}, but that process has {ports}: give every host node ids that "
            "are at least as far apart as it has processes"
        )


def _bound(config: BrokerConfig) -> Iterator[_Bound]:
    """Yield every address that a process listens on."""
    for listener in config.listeners:
        yield _Bound(config.node_id, f"listener {listener.name}", listener.host, listener.port)
    for name, host, port in _addresses(config):
        yield _Bound(config.node_id, name, host.strip("[]"), port)


def _check_ports(addresses: list[_Bound]) -> None:
    """Check that no port is listened on twice. Raises ConfigError."""
    seen: dict[int, list[_Bound]] = {}
    for each in addresses:
        for other in seen.get(each.port, ()):
            if each.port and hosts_overlap(each.host, other.host):
                raise ConfigError(
                    f"--processes: {each.name} of node {each.node_id} and {other.name} of node {other.node_id} would "
                    f"both have port {each.port}: set --port-step, for example 10"
                )
        seen.setdefault(each.port, []).append(each)
