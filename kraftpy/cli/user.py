"""`kraftpy user list|set|remove|hash`: users with SCRAM credentials, and those of the listener for monitors.

A password is read from a prompt, or from a file or a pipe; never from the command line, which every user of the machine
can read.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, format_option, print_rows, tell
from kraftpy.config.printing import printable

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MOST_PASSWORD_BYTES = 4096

mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(MECHANISMS),
    multiple=True,
    help="Mechanism of the credential; repeatable. Defaults to both.",
)


@click.group()
def user() -> None:
    """Show users with SCRAM credentials, give them passwords and remove them; hash passwords of monitors."""


@user.command(name="list")
@click.argument("names", nargs=-1, metavar="[USER]...")
@bootstrap_option
@format_option
def list_users(names: tuple[str, ...], bootstrap: str, form: str) -> None:
    """List users and the mechanisms they have credentials for."""

    async def work() -> dict[str, dict[str, int]]:
        async with admin_client(bootstrap, "kraftpy-user") as admin:
            return await admin.describe_scram_users(names)

    rows: list[dict[str, Any]] = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, credentials in sorted(run(bootstrap, work()).items())
        for mechanism, iterations in credentials.items()
    ]
    print_rows(rows, form, empty="no users")


@user.command(name="set")
@click.argument("name", metavar="USER")
@bootstrap_option
@mechanism_option
@click.option("--iterations", type=click.IntRange(4096, 16384), default=4096, show_default=True)
@click.option("--password-file", type=click.File("rb"), help="File with the password; '-' for standard input.")
def set_user(name: str, bootstrap: str, mechanisms: tuple[str, ...], iterations: int, password_file: Any) -> None:
    """Give a user a password. Creates the user if there is none of that name."""
    password = _password(password_file)

    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-user") as admin:
            for mechanism in mechanisms or MECHANISMS:
                await admin.set_scram_password(name, password, mechanism=mechanism, iterations=iterations)

    run(bootstrap, work())
    tell(f"{name} has a password for {', '.join(mechanisms or MECHANISMS)}")


@user.command()
@click.argument("name", metavar="USER")
@bootstrap_option
@mechanism_option
def remove(name: str, bootstrap: str, mechanisms: tuple[str, ...]) -> None:
    """Remove a user's credentials. Connections that the user has stay open."""

    async def work() -> list[str]:
        async with admin_client(bootstrap, "kraftpy-user") as admin:
            chosen = mechanisms or tuple((await admin.describe_scram_users([name]))[name])
            await admin.delete_scram_passwords(name, chosen)
            return list(chosen)

    tell(f"{name} has no password for {', '.join(run(bootstrap, work()))} any more")


@user.command(name="hash")
@click.argument("name", metavar="USER")
@click.option("--password-file", type=click.File("rb"), help="File with the password; '-' for standard input.")
def hash_password(name: str, password_file: Any) -> None:
    """Print a user's line for the file that kraftpy.metrics.users.file names.

    \b
      kraftpy user hash prometheus >> metrics.users
    """
    from kraftpy.security.password_hashes import SALT_BYTES, hash_of

    if not name or ":" in name or name.startswith("#") or name != name.strip() or len(name.splitlines()) != 1:
        raise Failure(
            f"'{printable(name)}' is not allowed as the name of a user: it may have no colon and no line break"
        )
    click.echo(f"{name}:{hash_of(_password(password_file).encode(), secrets.token_bytes(SALT_BYTES))}")


def _password(file: Any) -> str:
    """Read the password. Raises Failure if there is none."""
    if file is None and sys.stdin.isatty():
        entered: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return entered
    content: bytes = (sys.stdin.buffer if file is None else file).read(_MOST_PASSWORD_BYTES + 1)
    try:
        password = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Failure("the password is not UTF-8") from None
    if not password or len(content) > _MOST_PASSWORD_BYTES:
        raise Failure(f"the password is empty, or has more than {_MOST_PASSWORD_BYTES} bytes")
    return password
