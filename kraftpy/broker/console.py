"""The console beside a node: a process of its own, so that no page ever holds up the node's event loop.

The process is `kraftpy console`, a client of this node like any other. It ends when its standard input does, so also
with a node that is killed. It is started again if it ends by itself, later each time, but not if it cannot do what its
settings say (exit status 2): what it has to say is on standard error.

Its log has the node's format. With `kraftpy.log.format=json`, anything else on its standard error, such as why its
settings are wrong, becomes a line of the node's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kraftpy.broker.log_lines import JSON, print_line
from kraftpy.broker.startup import StartupError, reason
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.console import METRICS_URLS
from kraftpy.config.console_listener import CONSOLE, parse_console_listener
from kraftpy.config.listeners import Listener, parse_protocol_map
from kraftpy.config.metrics import url_on_this_machine
from kraftpy.config.sources import parse_properties
from kraftpy.config.texts import text_of

if TYPE_CHECKING:
    from kraftpy.metrics.registry import Monitor

logger = logging.getLogger(__name__)

_CONFIG: Final = "kraftpy.console.config"
_PACKAGES: Final = ("itsdangerous", "jinja2", "starlette", "uvicorn")
_LEAST_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 60.0
_PATIENCE: Final = 3.0
"""How long the process may take to end."""
_WRONG_SETTINGS: Final = 2
_NOT_INHERITED: Final = ("KRAFTPY_BOOTSTRAP_SERVERS", "KRAFTPY_COMMAND_CONFIG")


class ConsoleProcess:
    """The console's process. `advertised` are the addresses of the node's listeners for clients.

    `metrics_port` is the port of the node's listener for monitors; None if there is none. `is_one_of_many`: other nodes
    write to the same log, so each line names the node.
    """

    def __init__(
        self,
        config: BrokerConfig,
        advertised: Sequence[Listener],
        metrics_port: int | None = None,
        *,
        is_one_of_many: bool = False,
    ) -> None:
        self._config = config
        self._advertised = advertised
        self._metrics_port = metrics_port
        self._is_one_of_many = is_one_of_many

    def check(self) -> None:
        """Raise StartupError if the console could not be started: its extra or its address is not there."""
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            listed = ", ".join(missing)
            raise StartupError(f"{CONSOLE} needs the extra console (pip install 'kraftpy[console]'): no {listed}")
        assert self._config.kraftpy_console_listener is not None
        _, address = parse_console_listener(CONSOLE, self._config.kraftpy_console_listener)
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[
                0
            ]
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
        except OSError as error:
            raise StartupError(f"{CONSOLE}: cannot listen on {address}: {reason(error)}") from error
        self._bootstrap(self._file())

    async def run(self) -> None:
        """Keep the process running until this is cancelled, which ends it."""
        wait = _LEAST_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                command = self._command()
            except StartupError as error:  # its file was good when the node started
                ended = str(error)
            else:
                status = await self._run_once(command)
                if status == _WRONG_SETTINGS:
                    logger.error("%s: the console cannot be started with its settings, and stays off", CONSOLE)
                    return
                ended = f"the console has ended with status {status}"
            wait = _LEAST_SECONDS if loop.time() - started > _MOST_SECONDS else min(2 * wait, _MOST_SECONDS)
            logger.error("%s; it is started again in %g s", ended, wait)
            await asyncio.sleep(wait)

    async def _run_once(self, command: Sequence[str]) -> int:
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE if self._config.kraftpy_log_format == JSON else None,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            async with asyncio.TaskGroup() as reading:
                reading.create_task(_log_output(process.stdout), name="console output")
                if process.stderr is not None:
                    reading.create_task(_pass_on(process.stderr), name="console log")
            return await process.wait()
        finally:
            await _end(process)

    def _command(self) -> list[str]:
        """Return the command line of the console. Raises StartupError."""
        config, file = self._config, self._file()
        assert config.kraftpy_console_listener is not None
        command = [sys.executable, "-m", "kraftpy", "console", "--until-input-ends"]
        command += ["--bootstrap-server", self._bootstrap(file), "--listen", config.kraftpy_console_listener]
        command += ["--log-format", config.kraftpy_log_format, "--node-id", str(config.node_id)]
        command += ["--one-of-many"] if self._is_one_of_many else []
        if self._metrics_port is not None and METRICS_URLS not in file:
            asks_for_login = config.kraftpy_metrics_users_file is not None
            url = url_on_this_machine(
                config.kraftpy_metrics_listener, self._metrics_port, asks_for_login=asks_for_login
            )
            command += [] if url is None else ["--metrics", url]
        if config.kraftpy_console_config is not None:
            command += ["--command-config", config.kraftpy_console_config]
        return command + (["--allow-changes"] if config.kraftpy_console_allow_changes else [])

    def _bootstrap(self, file: Mapping[str, str]) -> str:
        """Return the address at which the console reaches this node; `file` is its settings'. Raises StartupError."""
        wanted = file.get("security.protocol", "PLAINTEXT")
        protocols = parse_protocol_map(self._config.listener_security_protocol_map)
        for listener in self._advertised:
            if protocols.get(listener.name) == wanted:
                host = f"[{listener.host}]" if ":" in listener.host else listener.host
                return f"{host}:{listener.port}"
        raise StartupError(
            f"{CONSOLE}: no listener has the protocol {wanted}, with which the console connects: set {_CONFIG} to a "
            "file with its security.protocol"
        )

    def _file(self) -> Mapping[str, str]:
        """Return what is written in the console's file. Raises StartupError."""
        path = self._config.kraftpy_console_config
        if path is None:
            return {}
        try:
            return parse_properties(text_of(Path(path).read_bytes(), path, or_latin_1=True), path)
        except OSError as error:
            raise StartupError(f"{_CONFIG}: {path}: {reason(error)}") from error
        except ConfigError as error:
            raise StartupError(f"{_CONFIG}: {error}") from error


def console_of(
    config: BrokerConfig, advertised: Sequence[Listener], monitor: Monitor | None, *, is_one_of_many: bool
) -> ConsoleProcess:
    """Return the console of a node whose settings ask for one. Raises StartupError if it could not be started.

    `monitor` is the node's listener for monitors, which is open already.
    """
    port = None if monitor is None else monitor.port
    console = ConsoleProcess(config, advertised, port, is_one_of_many=is_one_of_many)
    console.check()
    return console


async def _log_output(stream: asyncio.StreamReader) -> None:
    """Log the lines of the console's standard output."""
    while (line := await _line_of(stream)) is not None:
        logger.info("%s", line)


async def _pass_on(stream: asyncio.StreamReader) -> None:
    """Print the lines of the console's log, which are JSON; log anything else."""
    while (line := await _line_of(stream)) is not None:
        if line.startswith("{"):
            print_line(line)
        elif line:
            logger.warning("the console: %s", line)


async def _line_of(stream: asyncio.StreamReader) -> str | None:
    """Return the next line, None at the end. One that is too long is left out."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the stream's limit; it was thrown away
            continue
        return line.decode(errors="replace").rstrip() if line else None


async def _end(process: Process) -> None:
    """End a process that may have ended already."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
