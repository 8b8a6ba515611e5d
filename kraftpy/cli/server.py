"""`kraftpy server`: read the settings, warn about odd ones, run the broker, or several under a supervisor."""

from __future__ import annotations

import gc
import glob
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from kraftpy.broker.log_lines import say
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.printing import printable
from kraftpy.config.texts import text_of

EXIT_SETTINGS = 2
_SECRET_BYTES = 32
_MOST_PROCESSES = 256

processes_option = click.option(
    "--processes",
    type=click.IntRange(1, _MOST_PROCESSES),
    default=1,
    show_default=True,
    metavar="N",
    envvar="KRAFTPY_PROCESSES",
    help="Number of brokers on this machine, each in a process of its own. Also KRAFTPY_PROCESSES.",
)
port_step_option = click.option(
    "--port-step",
    type=click.IntRange(1, _MOST_PROCESSES),
    default=1,
    show_default=True,
    metavar="STEP",
    envvar="KRAFTPY_PORT_STEP",
    help="How much higher the ports of each further broker are. Also KRAFTPY_PORT_STEP.",
)


@click.command()
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--override", "overrides", multiple=True, metavar="NAME=VALUE", help="Set one setting; may be repeated.")
@processes_option
@port_step_option
def server(properties: Path | None, overrides: tuple[str, ...], processes: int, port_step: int) -> None:
    """Run a broker until it is stopped (Ctrl-C or SIGTERM).

    PROPERTIES is a server.properties file, as for Kafka; without one, a single node listens on 127.0.0.1:9092 and
    keeps its data in ./kraftpy-data. Later sources override earlier ones: the defaults, the file, the environment
    (KAFKA_NODE_ID is node.id, KAFKA_LOG_DIRS is log.dirs, and so on) and --override.

    A broker uses one core. With --processes N, this machine runs N brokers of one cluster: the settings are those of
    the first, and each further one has the next node id, the next ports, and directories of its own in log.dirs.

    \b
      kraftpy server
      kraftpy server --processes 4
      kraftpy server --override log.dirs=/data --override listeners=PLAINTEXT://:9092
    """
    try:
        text = None if properties is None else read_text(properties)
        config, warnings, notes = load(
            text, os.environ, overrides, file_name=str(properties), read_file=lambda path: read_text(Path(path))
        )
        configs = configs_of(config, processes, port_step)
        check_directories(config, configs)
    except ConfigError as error:
        print(f"kraftpy: {printable(str(error))}", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_SETTINGS) from None
    for level, lines in (("WARNING", warnings), ("INFO", notes)):
        for line in lines:
            say(config.kraftpy_log_format, config.node_id, level, line)

    if len(configs) == 1:
        raise click.exceptions.Exit(_import_run()(configs[0]))
    raise click.exceptions.Exit(_import_supervise()(configs))


def configs_of(config: BrokerConfig, processes: int, port_step: int) -> list[BrokerConfig]:
    """Return the settings of each process of a node's host. Raises ConfigError."""
    if processes == 1:
        return [config]
    import secrets

    from kraftpy.config.processes import configs_of_processes

    return configs_of_processes(config, processes, port_step, secrets.token_urlsafe(_SECRET_BYTES))


def check_directories(config: BrokerConfig, configs: Sequence[BrokerConfig]) -> None:
    """Check that the log directories are not laid out for another number of processes. Raises ConfigError.

    One process keeps its data in `log.dirs`, several in directories within. Neither would find the other's data.
    """
    for path in config.log_dirs:
        if len(configs) > 1 and os.path.exists(f"{path}/meta.properties"):
            own = f"node-{config.node_id}"
            raise ConfigError(
                f"log.dirs: {path} holds the data of a single process: with --processes, node {config.node_id} keeps "
                f"them in {path}/{own}; move everything there once, or leave --processes out"
            )
        if len(configs) == 1 and not os.path.exists(f"{path}/meta.properties"):
            for own in sorted(glob.glob(f"{glob.escape(path)}/node-*/meta.properties")):
                raise ConfigError(
                    f"log.dirs: {path} holds the data of several processes, such as {os.path.dirname(own)}: start them "
                    "with --processes, or set log.dirs to the directory of one"
                )


def _import_run() -> Callable[[BrokerConfig], int]:
    """Import the broker. Its modules and classes live as long as the process, so the garbage collector ignores them."""
    gc.disable()
    try:
        from kraftpy.broker.server import run
    finally:
        gc.freeze()
        gc.enable()
    return run


def _import_supervise() -> Callable[[Sequence[BrokerConfig]], int]:
    """Import the supervisor, and everything that its processes then share, likewise."""
    gc.disable()
    try:
        from kraftpy.broker.supervisor import import_everything, supervise

        import_everything()
    finally:
        gc.freeze()
        gc.enable()
    return supervise


def read_text(properties: Path) -> str:
    """Return the file's text. Java writes such files in Latin-1, people write them in UTF-8. Raises ConfigError."""
    try:
        data = properties.read_bytes()
    except OSError as error:
        raise ConfigError(f"{properties}: {error.strerror}") from None
    return text_of(data, str(properties), or_latin_1=True)
