"""`kraftpy server`: read the settings, warn about odd ones, run the broker."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from kraftpy.broker.log_lines import say
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.printing import printable
from kraftpy.config.texts import text_of

EXIT_SETTINGS = 2


@click.command()
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--override", "overrides", multiple=True, metavar="NAME=VALUE", help="Set one setting; may be repeated.")
def server(properties: Path | None, overrides: tuple[str, ...]) -> None:
    """Run a broker until it is stopped (Ctrl-C or SIGTERM).

    PROPERTIES is a server.properties file, as for Kafka; without one, a single node listens on 127.0.0.1:9092 and
    keeps its data in ./kraftpy-data. Later sources override earlier ones: the defaults, the file, the environment
    (KAFKA_NODE_ID is node.id, KAFKA_LOG_DIRS is log.dirs, and so on) and --override.

    \b
      kraftpy server
      kraftpy server --override log.dirs=/data --override listeners=PLAINTEXT://:9092
    """
    try:
        text = None if properties is None else read_text(properties)
        config, warnings, notes = load(
            text, os.environ, overrides, file_name=str(properties), read_file=lambda path: read_text(Path(path))
        )
    except ConfigError as error:
        print(f"kraftpy: {printable(str(error))}", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_SETTINGS) from None
    for level, lines in (("WARNING", warnings), ("INFO", notes)):
        for line in lines:
            say(config.kraftpy_log_format, config.node_id, level, line)

    raise click.exceptions.Exit(_import_run()(config))


def _import_run() -> Callable[[BrokerConfig], int]:
    """Import the broker. Its modules and classes live as long as the process, so the garbage collector ignores them."""
    gc.disable()
    try:
        from kraftpy.broker.server import run
    finally:
        gc.freeze()
        gc.enable()
    return run


def read_text(properties: Path) -> str:
    """Return the file's text. Java writes such files in Latin-1, people write them in UTF-8. Raises ConfigError."""
    try:
        data = properties.read_bytes()
    except OSError as error:
        raise ConfigError(f"{properties}: {error.strerror}") from None
    return text_of(data, str(properties), or_latin_1=True)
