"""`kraftpy format`: gives new log directories their cluster's id, and a new cluster its voters and SCRAM credentials.

The counterpart of Kafka's `kafka-storage format`; messages about `--add-scram` and the first voters are Kafka's.
Brokers that log in to each other by SCRAM need it: their credentials are in the metadata, and no broker gets metadata
before it has logged in. A quorum without `controller.quorum.voters` needs it for its first voters (KIP-853).

Beyond Kafka's keys, `password-file=PATH` reads a password from a file: every user of the machine can read a command
line. `kraftpy server` formats directories itself if this was not used.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import socket
from pathlib import Path

import click

from kraftpy.cli.output import Failure, tell
from kraftpy.cli.private_files import private_files
from kraftpy.cli.server import check_directories, configs_of, port_step_option, processes_option, read_text
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config import quorum as quorum_settings
from kraftpy.config.controller_address import controller_address
from kraftpy.metadata.credentials import ScramChange
from kraftpy.metadata.voters import VoterSet
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


def _print_id(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from kraftpy.broker.storage.directories import random_id

        tell(random_id())
        ctx.exit()


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
@click.option(
    "--standalone",
    "-s",
    is_flag=True,
    help="Make this controller the first and only voter of a new quorum; others are added at run time.",
)
@click.option(
    "--no-initial-controllers",
    "-N",
    "no_voters",
    is_flag=True,
    help="Name no voters: this controller is added to a quorum at run time.",
)
@click.option(
    "--initial-controllers",
    "-I",
    "voters",
    metavar="ID@HOST:PORT:DIRECTORY,...",
    help="The first voters of a new quorum; the same for all its controllers. DIRECTORY is the id that the metadata "
    "directory of that controller gets.",
)
@click.option(
    "--random-uuid",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_id,
    help="Print a new id, for a cluster or a directory, and exit.",
)
@click.option("--ignore-formatted", "-g", is_flag=True, help="Skip directories that are already formatted.")
@processes_option
@port_step_option
def format_command(
    properties: Path,
    cluster_id: str,
    scram: tuple[str, ...],
    standalone: bool,
    no_voters: bool,
    voters: str | None,
    ignore_formatted: bool,
    processes: int,
    port_step: int,
) -> None:
    """Prepare the log directories of a new node, or of several that `kraftpy server --processes` is to run.

    PROPERTIES is the node's server.properties file. Give every controller of a cluster the same id and credentials: the
    one that becomes active first puts its own into the metadata. A controller with controller.quorum.bootstrap.servers
    and without controller.quorum.voters needs one of --standalone, --initial-controllers and --no-initial-controllers.

    \b
      kraftpy format server.properties --cluster-id 7mHQeQOJRqGJbGzBfx3-tw \\
        --add-scram 'SCRAM-SHA-512=[name=admin,password-file=admin.secret]'
      kraftpy format server.properties --cluster-id 7mHQeQOJRqGJbGzBfx3-tw --standalone
    """
    from kraftpy.broker.storage.directories import DirectoryError
    from kraftpy.broker.storage.format import format_directories

    text = read_text(properties)
    config = load(text, os.environ, file_name=str(properties), read_file=lambda path: read_text(Path(path))).config
    first_voters = _first_voters(config, standalone=standalone, no_voters=no_voters, voters=voters)
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
                formatted += format_directories(
                    each, cluster_id, own, first_voters=first_voters, must_be_new=not ignore_formatted
                )
    except DirectoryError as error:
        raise Failure(str(error)) from None
    for path in formatted:
        tell(f"Formatted {path}")
    if not formatted:
        tell("All of the log directories are already formatted.")


def _first_voters(config: BrokerConfig, *, standalone: bool, no_voters: bool, voters: str | None) -> VoterSet | None:
    """Return the first voters of a quorum that tells disks apart, or None. Raises ConfigError with Kafka's messages."""
    options = {
        "--standalone/-s": standalone,
        "--no-initial-controllers/-N": no_voters,
        "--initial-controllers/-I": voters is not None,
    }
    match [name for name, is_given in options.items() if is_given]:
        case [first, second, *_]:
            raise click.UsageError(f"argument {second}: not allowed with argument {first}")
        case []:
            has_voters = bool(config.controller_quorum_voters)
            if config.is_controller and not has_voters and config.controller_quorum_bootstrap_servers:
                raise ConfigError(quorum_settings.UNFORMATTED)
            return None
    if config.controller_quorum_voters:
        if no_voters:
            return None
        raise ConfigError(
            f"You cannot specify {quorum_settings.VOTERS} and format the node with --initial-controllers or "
            f"--standalone. If you want to use dynamic quorum, please remove {quorum_settings.VOTERS} and specify "
            f"{quorum_settings.BOOTSTRAP} instead."
        )
    if standalone and not config.is_controller:
        raise ConfigError("You can only use --standalone on a controller.")
    if not config.controller_quorum_bootstrap_servers:
        raise ConfigError(
            f"If using process.roles, either {quorum_settings.BOOTSTRAP} must contain the set of bootstrap controllers "
            f"or {quorum_settings.VOTERS} must contain a parseable set of controllers."
        )
    if config.is_controller and not config.controller_listeners:
        raise ConfigError("No controller listeners found.")
    if standalone:
        from kraftpy.broker.storage.directories import random_id

        address = controller_address(config, socket.gethostname())
        own = quorum_settings.InitialVoter(config.node_id, address, quorum_settings.parse_directory_id(random_id()))
        return _voter_set((own,))
    if no_voters:
        return VoterSet({})
    assert voters is not None
    if not config.is_controller:
        tell("--initial-controllers has no effect: this node is not a controller")
    return _voter_set(quorum_settings.parse_initial_voters(voters))


def _voter_set(voters: tuple[quorum_settings.InitialVoter, ...]) -> VoterSet:
    return VoterSet(
        {voter.node_id: str(voter.address) for voter in voters},
        {voter.node_id: voter.directory_id for voter in voters},
    )


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
