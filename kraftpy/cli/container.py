"""The counterpart of the scripts in Apache Kafka's container image: `python -m kraftpy.cli.container run|healthy`.

So that a user's compose file only needs another `image:`, paths and rules are that image's:

- settings are the file /mnt/shared/config/server.properties, then the environment (KAFKA_NODE_ID is node.id), then
  arguments of the form KAFKA_NODE_ID=1;
- if only advertised.listeners are given, listeners are the same ports on every interface;
- CLUSTER_ID marks new log directories;
- KRAFTPY_PROCESSES and KRAFTPY_PORT_STEP are `--processes` and `--port-step` of `kraftpy server`;
- if an advertised listener has TLS, KAFKA_SSL_KEYSTORE_FILENAME, KAFKA_SSL_TRUSTSTORE_FILENAME and
  KAFKA_SSL_KEY_CREDENTIALS name files in /etc/kafka/secrets: the stores, and the password of the key; TLS and SASL
  settings, also those of a single listener (KAFKA_LISTENER_NAME_INTERNAL_SSL_CLIENT_AUTH), are variables like others;
- if the file named by kraftpy.quorum.secret.file does not exist, it is created with a random secret: on a volume that
  all nodes of a cluster share, the first node creates it for all;
- if no listeners are given at all, the broker listens on port 9092 and is advertised as localhost:9092.

Settings and variables for features that do not exist here (a heap, JMX, ...) are ignored, with a warning or silently.

One thing differs: without log.dirs, data are kept in /var/lib/kafka/data, a volume of the image; or, if something is
mounted at /tmp/kafka-logs or /tmp/kraft-combined-logs, Kafka's defaults, there.

Left out: stores in other formats than PEM, and with them the passwords that KAFKA_SSL_KEYSTORE_CREDENTIALS and
KAFKA_SSL_TRUSTSTORE_CREDENTIALS name; and JAAS files named by KAFKA_OPTS: users are settings of a listener and a
mechanism instead, such as KAFKA_LISTENER_NAME_CLIENTS_PLAIN_SASL_JAAS_CONFIG.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.printing import printable
from kraftpy.config.sources import is_password, parse_properties, setting_name

if TYPE_CHECKING:
    from kraftpy.config.security import ListenerSecurity

PROPERTIES = Path("/mnt/shared/config/server.properties")
DATA = "/var/lib/kafka/data"
SECRETS = Path("/etc/kafka/secrets")
KAFKA_DATA = ("/tmp/kafka-logs", "/tmp/kraft-combined-logs")
EXIT_SETTINGS = 2
_GREET_MS = 5_000
_MOST_PROCESSES = 256

_LOG_LEVELS = {
    "ALL": "DEBUG",
    "TRACE": "DEBUG",
    "DEBUG": "DEBUG",
    "INFO": "INFO",
    "WARN": "WARNING",
    "ERROR": "ERROR",
    "FATAL": "CRITICAL",
    "OFF": "CRITICAL",
}


def main() -> None:
    """Handle `run [KEY=VALUE...]`, which becomes the server, and `healthy`, which exits with status 0 if it is up."""
    command, arguments = sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]
    match command:
        case "run":
            run(arguments)
        case "healthy":
            healthy()
        case _:
            sys.exit("usage: python -m kraftpy.cli.container run [KEY=VALUE...] | healthy")


def run(arguments: Sequence[str]) -> None:
    """Run the server until it is stopped, and exit with its status."""
    # The kernel withholds signals without a handler from the first process of a container: until the server has its own
    # handler, there is nothing that a stop could lose.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        os.environ.update(given_as_arguments(arguments))
        config = configure()
        if cluster_id := os.environ.get("CLUSTER_ID", "").strip():
            from kraftpy.broker.storage.format import format_directories

            for each in configs_of_environment(config, os.environ):
                format_directories(each, cluster_id)
        if config.kraftpy_quorum_secret_file is not None:
            from kraftpy.broker.metadata.secret import make_secret_file

            make_secret_file(config.kraftpy_quorum_secret_file)
    except Exception as error:
        from kraftpy.broker.metadata.secret import SecretError
        from kraftpy.broker.storage.directories import DirectoryError

        if not isinstance(error, ConfigError | DirectoryError | SecretError):
            raise
        print(f"kraftpy: {printable(str(error))}", file=sys.stderr)
        sys.exit(EXIT_SETTINGS)

    from kraftpy.cli import cli

    cli(["server", *_file_arguments()], prog_name="kraftpy")


class _LoginNeeded(Exception):
    """The listener for monitors does not say without a password whether the server is ready."""


def _why_not_ready(config: BrokerConfig, address: str) -> str | None:
    """Ask the listener for monitors whether the server is ready; return why not. Raises _LoginNeeded."""
    import http.client
    import json
    import ssl

    from kraftpy.config.metrics import parse_metrics_listener
    from kraftpy.config.security import metrics_tls

    host, port = parse_metrics_listener(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(host, port, timeout=4)
    if (tls := metrics_tls(config)) is not None:
        from kraftpy.tls import TlsError, client_context

        # Nothing secret is sent. The node's own certificate need not be for localhost, and is shown as a client's too.
        try:
            context = client_context(replace(tls, is_host_checked=False))
        except TlsError as error:
            return f"kraftpy: {address}: {printable(str(error))}"
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=4, context=context)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(65536)
        if answer.status == 200:
            return None
        if answer.status == 401:
            raise _LoginNeeded
        return f"kraftpy: {printable('; '.join(json.loads(text)['reasons']))}"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return f"kraftpy: {address}: {printable(str(error))}"
    finally:
        connection.close()


def healthy() -> None:
    """Exit with status 0 if the server that this environment describes is up, with all its processes."""
    for config in configs_of_environment(configure(), os.environ):
        _check(config)


def _check(config: BrokerConfig) -> None:
    """Exit with a message if a process of the server is not up."""
    from kraftpy.cli.output import Failure
    from kraftpy.cli.ping import ask

    if config.kraftpy_metrics_listener is not None:
        try:
            if problem := _why_not_ready(config, config.kraftpy_metrics_listener):
                sys.exit(problem)
            return
        except _LoginNeeded:  # so ask a listener for clients
            pass
    listener = config.client_listeners[0] if config.is_broker else config.listeners[0]
    listener = next((each for each in config.client_listeners if config.security_of(each.name) is None), listener)
    host = "localhost" if listener.host in ("", "0.0.0.0", "::") else listener.host
    try:
        if config.is_broker and (security := config.security_of(listener.name)) is not None:
            _greet(host, listener.port, security)
        elif config.is_broker:
            ask(f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}", node=config.node_id)
        else:
            _connect(host, listener.port)
    except Failure as failure:
        sys.exit(failure.message)
    except OSError as error:
        sys.exit(f"{listener}: {error.strerror or error}")


def _greet(host: str, port: int, security: ListenerSecurity) -> None:
    """Check that a broker answers on a listener with TLS or SASL, without logging in. Raises Failure."""
    import asyncio

    from kraftpy.cli.output import Failure
    from kraftpy.client.connection import Connection
    from kraftpy.client.runtime import RealRuntime
    from kraftpy.client.security import Security
    from kraftpy.protocol.errors import KafkaError
    from kraftpy.tls import TlsError, client_context

    async def greet() -> None:
        # The node's own certificate need not be for localhost, and is shown as a client's as well.
        tls = None if security.tls is None else client_context(replace(security.tls, is_host_checked=False))
        opened = await Connection.open(
            RealRuntime(),
            host,
            port,
            client_id="kraftpy-healthy",
            request_timeout_ms=_GREET_MS,
            setup_timeout_ms=_GREET_MS,
            security=Security(tls=tls),
        )
        opened.close()

    try:
        asyncio.run(greet())
    except (KafkaError, TlsError) as error:
        raise Failure(str(error)) from error


def _connect(host: str, port: int) -> None:
    """Check that a controller accepts connections; it speaks only to nodes of its cluster, so this must do."""
    import socket

    socket.create_connection((host, port), timeout=5).close()


def configure() -> BrokerConfig:
    """Put the image's defaults into the environment and read the resulting settings. Raises ConfigError."""
    if not os.environ.get("KAFKA_ADVERTISED_LISTENERS", "unset"):
        del os.environ["KAFKA_ADVERTISED_LISTENERS"]  # empty means not given: compose files do so for controllers
    from kraftpy.cli.server import read_text

    text = read_text(PROPERTIES) if PROPERTIES.exists() else ""
    os.environ.update(decided(os.environ, text, is_mount=os.path.ismount))
    os.environ.update(stores(os.environ, text, SECRETS))
    return load(text, os.environ, file_name=str(PROPERTIES), read_file=lambda path: read_text(Path(path))).config


def configs_of_environment(config: BrokerConfig, environment: Mapping[str, str]) -> list[BrokerConfig]:
    """Return the settings of each process that KRAFTPY_PROCESSES and KRAFTPY_PORT_STEP ask for. Raises ConfigError."""
    from kraftpy.cli.server import configs_of

    numbers = []
    for name in ("KRAFTPY_PROCESSES", "KRAFTPY_PORT_STEP"):
        text = environment.get(name) or "1"
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= _MOST_PROCESSES):
            raise ConfigError(f"{name}={text} is not allowed: expected a whole number from 1 to {_MOST_PROCESSES}")
        numbers.append(int(text[:6]))
    return configs_of(config, *numbers)


def _file_arguments() -> list[str]:
    return [str(PROPERTIES)] if PROPERTIES.exists() else []


def given_as_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Turn KEY=VALUE arguments into variables. Raises ConfigError."""
    pairs = [argument.partition("=") for argument in arguments]
    for name, equals, value in pairs:
        if not name or not equals:
            raise ConfigError(f"'{name}{equals}{value}' is not allowed: expected KEY=VALUE, such as KAFKA_NODE_ID=1")
        if is_password(setting_name(name)) and "${" not in value:
            raise ConfigError(f"{name}=... is not allowed: it is a password; set it as a variable of the environment")
    return {name: value for name, _, value in pairs}


def decided(environment: Mapping[str, str], properties: str, *, is_mount: Callable[[str], bool]) -> dict[str, str]:
    """Return the variables that the image sets for settings given neither in the environment nor in the file."""
    in_file = parse_properties(properties)

    def given(setting: str) -> str:
        return environment.get("KAFKA_" + setting.upper().replace(".", "_")) or in_file.get(setting, "")

    chosen = {}
    if not given("log.dirs") and not given("log.dir"):
        chosen["KAFKA_LOG_DIRS"] = next(filter(is_mount, KAFKA_DATA), DATA)
    is_broker = "broker" in (given("process.roles") or "broker")
    if not given("listeners") and is_broker:
        if advertised := given("advertised.listeners"):
            chosen["KAFKA_LISTENERS"] = re.sub(r"://(\[[^\]]*\]|[^:,]*):", "://0.0.0.0:", advertised)
        else:
            chosen["KAFKA_LISTENERS"] = "PLAINTEXT://0.0.0.0:9092"
            chosen["KAFKA_ADVERTISED_LISTENERS"] = "PLAINTEXT://localhost:9092"
    level = environment.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").upper()
    if level in _LOG_LEVELS and "KRAFTPY_LOG_LEVEL" not in environment:
        chosen["KRAFTPY_LOG_LEVEL"] = _LOG_LEVELS[level]
    return chosen


def stores(environment: Mapping[str, str], properties: str, directory: Path) -> dict[str, str]:
    """Return the settings' variables for the TLS files that Kafka's image has variables of its own for.

    Raises ConfigError.
    """
    advertised = environment.get("KAFKA_ADVERTISED_LISTENERS") or environment.get("KAFKA_LISTENERS", "")
    protocols = environment.get("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "")
    given = {**parse_properties(properties), **{setting_name(name): text for name, text in environment.items()}}
    if "SSL://" not in advertised and "SSL" not in protocols + given.get("listener.security.protocol.map", ""):
        return {}
    chosen = {}
    for store in ("KEYSTORE", "TRUSTSTORE"):
        if name := environment.get(f"KAFKA_SSL_{store}_FILENAME"):
            chosen[f"KAFKA_SSL_{store}_LOCATION"] = str(_existing(directory / name))
        if name := environment.get(f"KAFKA_SSL_{store}_CREDENTIALS"):
            chosen[f"KAFKA_SSL_{store}_PASSWORD"] = _secret(directory / name)
    if name := environment.get("KAFKA_SSL_KEY_CREDENTIALS"):
        chosen["KAFKA_SSL_KEY_PASSWORD"] = _secret(directory / name)
    return chosen


def _existing(path: Path) -> Path:
    if not path.exists():
        raise ConfigError(f"{path} file does not exist")
    return path


def _secret(path: Path) -> str:
    from kraftpy.cli.server import read_text

    return read_text(_existing(path)).rstrip("\n")


if __name__ == "__main__":
    main()
