"""The console beside a node: a process of its own, so that no page ever holds up the node's event loop.

The process is `kraftpy console`, a client of this node like any other. It ends when its standard input does, so also
with a node that is killed. It is started again if it ends by itself, later each time, but not if it cannot do what its
settings say (exit status 2): what it has to say is on standard error.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kraftpy.broker.startup import StartupError, reason
from kraftpy.config import BrokerConfig, ConfigError
from kraftpy.config.console_listener import CONSOLE, parse_console_listener
from kraftpy.config.listeners import Listener, parse_protocol_map
from kraftpy.config.sources import parse_properties
from kraftpy.config.texts import text_of

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
    """The console's process. `advertised` are the addresses of the node's listeners for clients."""

    def __init__(self, config: BrokerConfig, advertised: Sequence[Listener]) -> None:
        self._config = config
        self._advertised = advertised

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
        self._bootstrap()

    async def run(self) -> None:
        """Keep the process running until this is cancelled, which ends it."""
        wait = _LEAST_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            status = await self._run_once()
            if status == _WRONG_SETTINGS:
                logger.error("%s: the console cannot be started with its settings, and stays off", CONSOLE)
                return
            wait = _LEAST_SECONDS if loop.time() - started > _MOST_SECONDS else min(2 * wait, _MOST_SECONDS)
            logger.error("the console has ended with status %d; it is started again in %g s", status, wait)
            await asyncio.sleep(wait)

    async def _run_once(self) -> int:
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        process = await asyncio.create_subprocess_exec(
            *self._command(), stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
        )
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                logger.info("%s", line.decode(errors="replace").rstrip())
            return await process.wait()
        finally:
            await _end(process)

    def _command(self) -> list[str]:
        config = self._config
        assert config.kraftpy_console_listener is not None
        command = [sys.executable, "-m", "kraftpy", "console", "--until-input-ends"]
        command += ["--bootstrap-server", self._bootstrap(), "--listen", config.kraftpy_console_listener]
        if config.kraftpy_console_config is not None:
            command += ["--command-config", config.kraftpy_console_config]
        return command + (["--allow-changes"] if config.kraftpy_console_allow_changes else [])

    def _bootstrap(self) -> str:
        """Return the address at which the console reaches this node. Raises StartupError."""
        wanted = "PLAINTEXT"
        path = self._config.kraftpy_console_config
        if path is not None:
            try:
                text = text_of(Path(path).read_bytes(), path, or_latin_1=True)
                wanted = parse_properties(text, path).get("security.protocol", wanted)
            except OSError as error:
                raise StartupError(f"{_CONFIG}: {path}: {reason(error)}") from error
            except ConfigError as error:
                raise StartupError(f"{_CONFIG}: {error}") from error
        protocols = parse_protocol_map(self._config.listener_security_protocol_map)
        for listener in self._advertised:
            if protocols.get(listener.name) == wanted:
                host = f"[{listener.host}]" if ":" in listener.host else listener.host
                return f"{host}:{listener.port}"
        raise StartupError(
            f"{CONSOLE}: no listener has the protocol {wanted}, with which the console connects: set {_CONFIG} to a "
            "file with its security.protocol"
        )


def console_of(config: BrokerConfig, advertised: Sequence[Listener]) -> ConsoleProcess:
    """Return the console of a node whose settings ask for one. Raises StartupError if it could not be started."""
    console = ConsoleProcess(config, advertised)
    console.check()
    return console


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
