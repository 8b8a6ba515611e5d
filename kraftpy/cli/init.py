"""`kraftpy init`: writes the files of a new cluster, ready to run on this machine or in containers.

    DIRECTORY/
      ca.pem, ca.key                the certificate authority of this cluster (--secure)
      quorum.secret                 the secret by which nodes recognize each other (without --secure)
      client.properties             the settings of an administrator's client
      compose.yaml                  the same nodes in containers
      node-1/server.properties      the node's settings
      node-1/keys.pem               its private key and certificate (--secure)
      node-1/data/                  its log directory, formatted

With --secure, clients log in by SCRAM over TLS, and nodes show each other certificates. Only the owner of the files can
read them. No existing file is overwritten.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from kraftpy.cli.format import parse_scram
from kraftpy.cli.output import Failure, tell
from kraftpy.cli.private_files import private_files
from kraftpy.config import BrokerConfig
from kraftpy.config.sources import parse_properties

HOST = "127.0.0.1"
ADMINISTRATOR = "admin"
MECHANISM = "SCRAM-SHA-512"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
_PASSWORD_BYTES = 24
_MODE = 0o600
_PORTS_OF_NODE = 10
_MOST_NODES = 9
_IN_CONTAINER = "/etc/kafka/secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node's number, and its ports on this machine."""

    number: int
    clients: int
    brokers: int
    controllers: int

    @property
    def name(self) -> str:
        return f"node-{self.number}"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--nodes",
    type=click.IntRange(1, _MOST_NODES),
    default=3,
    show_default=True,
    help="Number of nodes; each is a broker and a controller.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="Use TLS, passwords and ACLs: make certificates and an administrator. Needs the extra `security`.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 64_000),
    default=9092,
    show_default=True,
    help="The first node's port for clients. It also uses the next two; each further node's ports are ten higher.",
)
def init(directory: Path, nodes: int, secure: bool, port: int) -> None:
    """Write the files of a new cluster to DIRECTORY, ready to run.

    \b
      kraftpy init cluster --secure
      kraftpy server cluster/node-1/server.properties
    """
    if port + _PORTS_OF_NODE * nodes > 65_535:
        raise Failure(f"--port {port} leaves no room for the ports of {nodes} nodes")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Failure(f"{directory} already exists and is not an empty directory: nothing is overwritten")
    first = [port + _PORTS_OF_NODE * n for n in range(nodes)]
    made = [_Node(number=n, clients=at, brokers=at + 1, controllers=at + 2) for n, at in enumerate(first, 1)]
    files = _files(directory.absolute(), made, is_secure=secure)
    with private_files():
        _write(directory.absolute(), files, made, is_secure=secure)
    for path in files:
        tell(f"wrote {directory / path.relative_to(directory.absolute())}")
    tell("Start each node, in a terminal of its own:")
    for node in made:
        tell(f"  kraftpy server {directory / node.name / 'server.properties'}")


def _write(directory: Path, files: Mapping[Path, str], nodes: list[_Node], *, is_secure: bool) -> None:
    """Write the files, readable only by their owner, and format the log directories."""
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "w", encoding="utf-8") as file:
            file.write(text)
    _format(directory, nodes, is_secure=is_secure)


def _files(directory: Path, nodes: list[_Node], *, is_secure: bool) -> dict[Path, str]:
    """Return the content of each file. Raises Failure."""
    files: dict[Path, str] = {}
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    if is_secure:
        from kraftpy.certificates import Authority, NoCryptography

        try:
            authority = Authority(f"authority of {directory.name}"[:64])
        except NoCryptography as error:
            raise Failure(str(error)) from None
        files[directory / "ca.key"] = authority.own.key
        files[directory / "ca.pem"] = authority.own.certificate
        for node in nodes:
            issued = authority.issue(node.name, ["localhost", HOST, "::1", f"kafka{node.number}"])
            files[directory / node.name / "keys.pem"] = issued.store
    else:
        files[directory / "quorum.secret"] = f"{secrets.token_urlsafe(_PASSWORD_BYTES)}\n"
    for node in nodes:
        text = _server_properties(directory, node, nodes, is_secure=is_secure)
        files[directory / node.name / "server.properties"] = text
    files[directory / "client.properties"] = _client_properties(directory, nodes, password, is_secure=is_secure)
    files[directory / "compose.yaml"] = _compose(nodes, is_secure=is_secure)
    return files


def _format(directory: Path, nodes: list[_Node], *, is_secure: bool) -> None:
    """Write the cluster's id to the log directories, and with --secure, the administrator's credential."""
    from kraftpy.broker.storage.directories import random_id
    from kraftpy.broker.storage.format import format_directories
    from kraftpy.security.jaas import parse_jaas

    credentials = []
    if is_secure:
        client = parse_properties((directory / "client.properties").read_text(encoding="utf-8"))
        password = parse_jaas(client["sasl.jaas.config"]).password
        credentials.append(parse_scram(f"{MECHANISM}=[name={ADMINISTRATOR},password={password}]"))
    cluster_id = random_id()
    for node in nodes:
        text = (directory / node.name / "server.properties").read_text(encoding="utf-8")
        config = BrokerConfig.of(parse_properties(text))
        format_directories(config, cluster_id, tuple(credentials))


def _server_properties(directory: Path, node: _Node, nodes: list[_Node], *, is_secure: bool) -> str:
    replicas = min(3, len(nodes))
    listeners = {"CLIENTS": node.clients, "INTERNAL": node.brokers, "CONTROLLER": node.controllers}
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.voters": ",".join(f"{each.number}@{HOST}:{each.controllers}" for each in nodes),
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
        "inter.broker.listener.name": "INTERNAL",
        "log.dirs": str(directory / node.name / "data"),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(max(1, replicas - 1)),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(max(1, replicas - 1)),
    }
    text = "# One node of a cluster made by `kraftpy init`.\n"
    protocols = ("SASL_SSL", "SSL", "SSL") if is_secure else ("PLAINTEXT",) * 3
    settings["listener.security.protocol.map"] = ",".join(map(":".join, zip(listeners, protocols, strict=True)))
    if not is_secure:
        return text + _rendered({**settings, "kraftpy.quorum.secret.file": str(directory / "quorum.secret")})
    text += _rendered(settings)
    text += "\n# Keys and certificates are read again when their files change.\n"
    text += _rendered(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(directory / node.name / "keys.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(directory / "ca.pem"),
        }
    )
    text += "\n# Clients log in with a password; nodes show each other certificates instead.\n"
    of_nodes = {}
    for name in ("internal", "controller"):
        of_nodes[f"listener.name.{name}.ssl.client.auth"] = "required"
        of_nodes[f"listener.name.{name}.ssl.principal.mapping.rules"] = "RULE:^CN=(node-[0-9]+),O=kraftpy$/$1/"
    text += _rendered({"sasl.enabled.mechanisms": MECHANISM, **of_nodes})
    principals = [f"User:{ADMINISTRATOR}", *(f"User:{each.name}" for each in nodes)]
    rights = _rendered({**AUTHORIZER, "super.users": ";".join(principals)})
    return text + "\n# Other users may do what ACLs allow.\n" + rights


def _client_properties(directory: Path, nodes: list[_Node], password: str, *, is_secure: bool) -> str:
    text = f"# A client of {','.join(f'{HOST}:{node.clients}' for node in nodes)}, for --command-config.\n"
    if not is_secure:
        return text + "security.protocol=PLAINTEXT\n"
    return text + _rendered(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{MODULE} required username="{ADMINISTRATOR}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(directory / "ca.pem"),
        }
    )


def _compose(nodes: list[_Node], *, is_secure: bool) -> str:
    """Return a compose file, whose environment replaces the settings that differ in containers."""
    lines = [
        "# The nodes of this directory in containers, with the image of docker/Dockerfile: docker compose up --wait",
        "# They use the same data as nodes started by `kraftpy server`: run either, not both.",
        "services:",
    ]
    voters = ",".join(f"{node.number}@kafka{node.number}:9094" for node in nodes)
    for node in nodes:
        settings = {
            "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
            "KAFKA_LISTENERS": "CLIENTS://:9092,INTERNAL://:9093,CONTROLLER://:9094",
            "KAFKA_ADVERTISED_LISTENERS": f"CLIENTS://localhost:{node.clients},INTERNAL://kafka{node.number}:9093",
            "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
        }
        volumes = [
            f"./{node.name}/data:/var/lib/kafka/data",
            f"./{node.name}/server.properties:/mnt/shared/config/server.properties:ro",
        ]
        if is_secure:
            settings |= {
                "KAFKA_SSL_KEYSTORE_LOCATION": f"{_IN_CONTAINER}/keys.pem",
                "KAFKA_SSL_TRUSTSTORE_LOCATION": f"{_IN_CONTAINER}/ca.pem",
            }
            volumes += [
                f"./{node.name}/keys.pem:{_IN_CONTAINER}/keys.pem:ro",
                f"./ca.pem:{_IN_CONTAINER}/ca.pem:ro",
            ]
        else:
            settings["KAFKA_KRAFTPY_QUORUM_SECRET_FILE"] = f"{_IN_CONTAINER}/quorum.secret"
            volumes.append(f"./quorum.secret:{_IN_CONTAINER}/quorum.secret:ro")
        lines += [
            f"  kafka{node.number}:",
            "    image: kraftpy",
            f'    user: "{os.getuid()}:{os.getgid()}"',
            "    restart: unless-stopped",
            "    stop_grace_period: 1m",
            f'    ports: ["127.0.0.1:{node.clients}:9092"]',
            "    volumes:",
            *(f'      - "{volume}"' for volume in volumes),
            "    environment:",
            *(f'      {name}: "{value}"' for name, value in settings.items()),
        ]
    return "\n".join(lines) + "\n"


def _rendered(settings: Mapping[str, str]) -> str:
    """Return the settings as lines of a properties file."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items())
