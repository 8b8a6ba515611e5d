"""`kraftpy format`: gives new log directories their cluster's id, and a new cluster its first SCRAM credentials.

The counterpart of Kafka's `kafka-storage format`; messages about `--add-scram` are Kafka's. Brokers that log in to each
other by SCRAM need it: their credentials are in the metadata, and no broker gets metadata before it has logged in.

Beyond Kafka's keys, `password-file=PATH` reads a password from a file: every user of the machine can read a command
line. `kraftpy server` formats directories itself if this was not used.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from pathlib import Path

import click

from kraftpy.cli.output import Failure, tell
from kraftpy.cli.private_files import private_files
from kraftpy.cli.server import check_directories, configs_of, port_step_option, processes_option, read_text
from kraftpy.config import ConfigError, load
from kraftpy.metadata.credentials import ScramChange
from kraftpy.security.scram import (
    LEAST_ITERATIONS,
    MECHANISMS,
    MOST_ITERATIONS,
    SALT_BYTES,
    Mechanism,
    credential_of,
    salted_password,
)

_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(name="format")
@click.argument("properties", type=_PATH)
@click.option("--cluster-id", "-t", required=True, metavar="ID", help="The cluster's id, the same for all its nodes.")
@click.option(
    "--add-scram",
    "-S",
    "scram",
    multiple=True,
    metavar="MECHANISM=[KEY=VALUE,...]",
    help="A credential that the new cluster has from the start; repeatable. Keys: name; password, password-file, or "
    "saltedpassword with salt; iterations; salt.",
)
@click.option("--ignore-formatted", "-g", is_flag=True, help="Skip directories that are already formatted.")
@processes_option
@port_step_option
def format_command(
    properties: Path, cluster_id: str, scram: tuple[str, ...], ignore_formatted: bool, processes: int, port_step: int
) -> None:
    """Prepare the log directories of a new node, or of several that `kraftpy server --processes` is to run.

    PROPERTIES is the node's server.properties file. Give every controller of a cluster the same id and credentials: the
    one that becomes active first puts its own into the metadata.

    \b
      kraftpy format server.properties --cluster-id 7mHQeQOJRqGJbGzBfx3-tw \\
        --add-scram 'SCRAM-SHA-512=[name=admin,password-file=admin.secret]'
    """
    from kraftpy.broker.storage.directories import DirectoryError
    from kraftpy.broker.storage.format import format_directories

    text = read_text(properties)
    config = load(text, os.environ, file_name=str(properties), read_file=lambda path: read_text(Path(path))).config
    configs = configs_of(config, processes, port_step)
    check_directories(config, configs)
    credentials = tuple(parse_scram(argument) for argument in scram)
    if credentials and not config.is_controller:
        tell("--add-scram has no effect: this node is not a controller")
    formatted = []
    try:
        with private_files():
            for each in configs:
                own = credentials if each is configs[0] or each.is_controller else ()
                formatted += format_directories(each, cluster_id, own, must_be_new=not ignore_formatted)
    except DirectoryError as error:
        raise Failure(str(error)) from None
    for path in formatted:
        tell(f"Formatted {path}")
    if not formatted:
        tell("All of the log directories are already formatted.")


def parse_scram(argument: str) -> ScramChange:
    """Return the credential that `MECHANISM=[name=...,password=...]` describes. Raises ConfigError.

    Deriving the password's keys takes milliseconds.
    """
    argument = argument.strip()
    name, equals, keys = argument.partition("=")
    if not equals:
        raise ConfigError("Failed to find equals sign in SCRAM argument")
    mechanism = MECHANISMS.get(name)
    if mechanism is None:
        raise ConfigError(f"The add-scram mechanism {name} is not supported.")
    if not keys.startswith("["):
        raise ConfigError("Expected configuration string to start with [")
    if not keys.endswith("]"):
        raise ConfigError("Expected configuration string to end with ]")
    return _credential(mechanism, dict(_component(each) for each in keys[1:-1].split(",")))


def _component(text: str) -> tuple[str, str]:
    """Split KEY=VALUE; the value may be in quotes. Errors do not quote it: it may be a password."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("No equals sign found in SCRAM component")
    return key, value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value


def _credential(mechanism: Mechanism, given: dict[str, str]) -> ScramChange:
    name = given.pop("name", None)
    if not name:
        raise ConfigError("You must supply 'name' to add-scram")
    salt = _decoded("salt", given.pop("salt", None))
    iterations = _iterations(mechanism, given.pop("iterations", None))
    password, file, salted = (given.pop(key, None) for key in ("password", "password-file", "saltedpassword"))
    if file is not None:
        if password is not None:
            raise ConfigError("You must supply one of 'password' and 'password-file' to add-scram")
        password = read_text(Path(file)).removesuffix("\n").removesuffix("\r")
    if given:
        raise ConfigError(f"Unknown SCRAM configurations: {', '.join(sorted(given))}")
    if password is None:
        if salted is None:
            raise ConfigError("You must supply one of 'password' or 'saltedpassword' to add-scram")
        if salt is None:
            raise ConfigError("You must supply 'salt' with 'saltedpassword' to add-scram")
    elif not password:
        raise ConfigError("The password given to add-scram is empty")
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    derived = _decoded("saltedPassword", salted) if password is None else None
    if derived is None:
        assert password is not None
        derived = salted_password(mechanism, password, salt, iterations)
    made = credential_of(mechanism, derived, salt, iterations)
    return ScramChange(
        name=name,
        mechanism=mechanism.code,
        iterations=iterations,
        salt=salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
    )


def _iterations(mechanism: Mechanism, text: str | None) -> int:
    if text is None:
        return LEAST_ITERATIONS
    try:
        iterations = int(text[:20])
    except ValueError:
        raise ConfigError(f"Failed to parse iterations count: {text[:20]}") from None
    kind = mechanism.name.replace("-", "_")
    if iterations < LEAST_ITERATIONS:
        raise ConfigError(f"The 'iterations' value must be >= {LEAST_ITERATIONS} for add-scram using {kind}")
    if iterations > MOST_ITERATIONS:
        raise ConfigError(f"The 'iterations' value must be <= {MOST_ITERATIONS} for add-scram using {kind}")
    return iterations


def _decoded(what: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"Failed to decode given {what}") from None
