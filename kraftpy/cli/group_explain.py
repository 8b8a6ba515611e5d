"""`kraftpy group explain`: why a group does not get on, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, client_options, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, say
from kraftpy.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kraftpy.diagnosis.group_causes import Cause, Observed

_PATIENCE_MS = 10_000


@click.command()
@click.argument("name", metavar="GROUP")
@bootstrap_option
@click.option(
    "--watch",
    "seconds",
    type=click.FloatRange(0, 3600),
    default=12.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch the group; should be longer than its members' auto.commit.interval.ms.",
)
@click.option("--principal", metavar="TYPE:NAME", help="Check the rights of the group's members, such as User:app.")
@click.option("--host", default="", metavar="ADDRESS", help="The members' address, for --principal.")
@click.option("--topic", "-t", "topics", multiple=True, help="A topic that the group is to read; repeatable.")
@format_option
def explain(
    name: str, bootstrap: str, seconds: float, principal: str | None, host: str, topics: tuple[str, ...], form: str
) -> None:
    """Explain why GROUP does not get on.

    Watches the group for a while, and prints a row for each cause: no member, a member that does not advance or keeps
    others from reading, a rebalance loop, a partition without a leader, an open transaction, offsets that retention has
    overtaken, a missing right, and others. Works with any Kafka cluster.

    The exit status is 0 if no cause stops the group, 1 if one does.

    \b
      kraftpy group explain billing
      kraftpy group explain billing --watch 30 --principal User:billing --format json
    """
    if principal is not None:
        from kraftpy.security.principal import parse_principal

        try:
            parse_principal(principal)
        except ValueError as error:
            raise click.UsageError(f"--principal: {error}") from None
    if form == "auto":
        form = "table" if at_terminal() else "json"
    observed = run(bootstrap, _observe(bootstrap, name, seconds, principal, host, topics))
    from kraftpy.diagnosis.group_causes import causes

    found = causes(observed)
    rows: list[dict[str, Any]] = [
        {
            "cause": cause.name,
            "stops": cause.stops,
            "explanation": cause.text,
            **(_for_programs(name, cause) if form == "json" else {}),
        }
        for cause in found
    ]
    print_rows(rows, form)
    if not found:
        say(f"nothing holds group {name}: {_state(observed)}")
    if any(cause.stops for cause in found):
        raise click.exceptions.Exit(1)


def _for_programs(name: str, cause: Cause) -> dict[str, Any]:
    return {
        "group": name,
        "partition": None if cause.partition is None else str(cause.partition),
        "member": cause.member,
        "details": dict(cause.details),
    }


def _state(observed: Observed) -> str:
    group = observed.group
    state = "unknown" if group is None else group.state
    members = 0 if group is None else len(group.members)
    return f"its state is {state}, with {members} {'member' if members == 1 else 'members'} and a lag of {observed.lag}"


async def _observe(
    bootstrap: str, name: str, seconds: float, principal: str | None, host: str, topics: tuple[str, ...]
) -> Observed:
    from dataclasses import replace

    from kraftpy.client import Admin
    from kraftpy.diagnosis.lag_ages import nothing_left
    from kraftpy.diagnosis.observing import observe

    options = client_options(
        bootstrap, client_id="kraftpy-group", default_api_timeout_ms=_PATIENCE_MS, request_timeout_ms=_PATIENCE_MS // 2
    )
    async with Admin(**options) as admin:
        try:
            observed = await observe(admin, name, seconds=seconds, principal=principal, host=host, topics=topics)
        except KafkaError as error:
            raise Failure(f"group {name} cannot be observed: {error}") from error
    return replace(
        observed, nothing_left=await nothing_left(client_options(bootstrap, client_id="kraftpy-group"), observed)
    )
