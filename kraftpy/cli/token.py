"""`kraftpy token create|list|renew|expire`: delegation tokens.

Tokens are named by their ids. A token's password is shown once, when the token is created, and is never an argument:
every user of the machine can read the arguments of commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, format_option, print_rows, tell

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.admin.tokens import DelegationToken

_PRINCIPAL = "User:NAME"


def _principals(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    from kraftpy.security.principal import parse_principal

    try:
        for each in value if isinstance(value, tuple) else filter(None, (value,)):
            parse_principal(each)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


period_option = click.option("--period-ms", type=click.IntRange(min=0), help="Milliseconds from now until it expires.")


@click.group()
def token() -> None:
    """Create and manage delegation tokens, which let programs log in as the token's owner."""


@token.command()
@bootstrap_option
@format_option
@click.option("--owner", metavar=_PRINCIPAL, callback=_principals, help="Its owner. Defaults to you.")
@click.option(
    "--renewer",
    "renewers",
    metavar=_PRINCIPAL,
    callback=_principals,
    multiple=True,
    help="May renew it, too; repeatable.",
)
@click.option("--max-lifetime-ms", type=click.IntRange(min=1), help="Longest lifetime. Defaults to the broker's limit.")
def create(
    bootstrap: str, form: str, owner: str | None, renewers: tuple[str, ...], max_lifetime_ms: int | None
) -> None:
    """Create a token, and print its id and its password."""

    async def work() -> DelegationToken:
        async with admin_client(bootstrap, "kraftpy-token") as admin:
            return await admin.create_delegation_token(
                owner=owner, renewers=renewers, max_lifetime_ms=-1 if max_lifetime_ms is None else max_lifetime_ms
            )

    made = run(bootstrap, work())
    print_rows([{**_row(made), "password": made.password}], form)


@token.command(name="list")
@click.argument("owners", nargs=-1, metavar="[User:NAME]...", callback=_principals)
@bootstrap_option
@format_option
def list_tokens(owners: tuple[str, ...], bootstrap: str, form: str) -> None:
    """List the tokens that you may see: those of the named owners, or all."""

    async def work() -> list[DelegationToken]:
        async with admin_client(bootstrap, "kraftpy-token") as admin:
            return await admin.describe_delegation_tokens(owners or None)

    print_rows([_row(each) for each in run(bootstrap, work())], form, empty="no tokens")


@token.command()
@click.argument("token_id", metavar="ID")
@bootstrap_option
@period_option
def renew(token_id: str, bootstrap: str, period_ms: int | None) -> None:
    """Renew a token: it expires after --period-ms, or after the period that is set on the broker."""

    async def work() -> int:
        async with admin_client(bootstrap, "kraftpy-token") as admin:
            hmac = (await _find(admin, token_id)).hmac
            return await admin.renew_delegation_token(hmac, -1 if period_ms is None else period_ms)

    tell(f"{token_id} expires at {run(bootstrap, work())}")


@token.command()
@click.argument("token_id", metavar="ID")
@bootstrap_option
@period_option
def expire(token_id: str, bootstrap: str, period_ms: int | None) -> None:
    """Remove a token, or with --period-ms, let it expire then. Connections that it opened end with it."""

    async def work() -> int:
        async with admin_client(bootstrap, "kraftpy-token") as admin:
            hmac = (await _find(admin, token_id)).hmac
            return await admin.expire_delegation_token(hmac, -1 if period_ms is None else period_ms)

    expires_at = run(bootstrap, work())
    tell(f"{token_id} is removed" if period_ms is None else f"{token_id} expires at {expires_at}")


async def _find(admin: Admin, token_id: str) -> DelegationToken:
    """Return the token with this id. Raises Failure."""
    for each in await admin.describe_delegation_tokens():
        if each.token_id == token_id:
            return each
    raise Failure(f"there is no token {token_id}, or you may not see it")


def _row(token: DelegationToken) -> dict[str, Any]:
    return {
        "token": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": token.issue_ms,
        "expires": token.expiry_ms,
        "expires_at_most": token.max_ms,
    }
