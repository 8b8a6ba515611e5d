"""The command line: `kraftpy server | init | format | topic | produce | consume | group | txn | user | acl | token |
quota | config | cluster | top | console | ping | log | load | audit | pipeline | spark | demo`.

Each command lives in a module of its own that is imported on demand: `kraftpy server` must not pay for the others.
Output is for people at a terminal (tables, drawn by rich) and for programs in a pipe (JSON or plain lines).

Exit status: 0 success; 1 failure, with one line on standard error; 2 a wrong command or setting; 130 Ctrl-C. A reader
that closes the pipe early is no failure.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from kraftpy import __version__

COMMANDS = {
    "server": "kraftpy.cli.server:server",
    "init": "kraftpy.cli.init:init",
    "format": "kraftpy.cli.format:format_command",
    "topic": "kraftpy.cli.topic:topic",
    "produce": "kraftpy.cli.produce:produce",
    "consume": "kraftpy.cli.consume:consume",
    "group": "kraftpy.cli.group:group",
    "txn": "kraftpy.cli.txn:txn",
    "user": "kraftpy.cli.user:user",
    "acl": "kraftpy.cli.acl:acl",
    "token": "kraftpy.cli.token:token",
    "quota": "kraftpy.cli.quota:quota",
    "config": "kraftpy.cli.config:config",
    "cluster": "kraftpy.cli.cluster:cluster",
    "top": "kraftpy.cli.top:top",
    "console": "kraftpy.cli.console:console",
    "ping": "kraftpy.cli.ping:ping",
    "log": "kraftpy.cli.log:log",
    "load": "kraftpy.cli.load:load",
    "audit": "kraftpy.cli.audit:audit",
    "pipeline": "kraftpy.cli.pipeline:pipeline",
    "spark": "kraftpy.cli.spark:spark",
    "demo": "kraftpy.cli.demo:demo",
}
"""Command -> module:function, in the order `--help` shows them."""


class CommandLine(click.Group):
    """A group of commands that are imported on demand. Every failure becomes one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module. Returns None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        gc.enable()  # `kraftpy.__main__` has turned it off
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and turn an exception into an exit status and a line."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None
        except BrokenPipeError:
            # The interpreter flushes standard output once more as it exits; give it something that accepts the bytes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None
        except Exception as error:
            line = describe_failure(error)
            if line is None:
                raise
            from kraftpy.cli.output import Failure

            raise Failure(line) from error


def describe_failure(error: BaseException) -> str | None:
    """Return one line for an expected failure, or None for a bug of ours."""
    from kraftpy.config import ConfigError
    from kraftpy.protocol.errors import KafkaError

    for cause in _flatten(error):
        if isinstance(cause, KafkaError | ConfigError):
            return str(cause)
        if isinstance(cause, OSError):
            about = f"{cause.filename}: " if cause.filename else ""
            return f"{about}{cause.strerror or cause}"
    return None


def _flatten(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _flatten(inner)
    else:
        yield error


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", "-V", prog_name="kraftpy", message="%(prog)s %(version)s")
def cli() -> None:
    """kraftpy: a log broker that speaks Kafka's protocol, and the tools around it.

    Start with `kraftpy server`, then in another terminal:

    \b
      kraftpy topic create greetings
      echo hello | kraftpy produce greetings
      kraftpy consume greetings
    """
