"""The options of commands that read metrics endpoints of brokers: --metrics, --metrics-trust, --metrics-login.

A console's file may have them, too: kraftpy.console.metrics.*.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kraftpy.cli.output import Failure

if TYPE_CHECKING:
    from kraftpy.config.console import ConsoleSettings
    from kraftpy.diagnosis.sampling import MetricsEndpoints

_MOST_LOGIN_BYTES = 4096


def metrics_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options; it gets `endpoints`, which are MetricsEndpoints."""

    @functools.wraps(command)
    def with_endpoints(
        *args: Any, metrics: tuple[str, ...], metrics_trust: str | None, metrics_login: BinaryIO | None, **options: Any
    ) -> None:
        command(*args, endpoints=_endpoints(metrics, metrics_trust, metrics_login), **options)

    urls = click.option(
        "--metrics",
        multiple=True,
        metavar="URL",
        help="Metrics endpoint of a broker, for the slowest requests; repeatable.",
    )
    trust = click.option(
        "--metrics-trust",
        type=click.Path(exists=True, dir_okay=False),
        help="PEM file with the authorities to trust at https:// endpoints; by default, the system's.",
    )
    login = click.option(
        "--metrics-login",
        type=click.File("rb"),
        help="File with name:password, if metrics endpoints ask for a login.",
    )
    return urls(trust(login(with_endpoints)))


def _endpoints(urls: tuple[str, ...], trusted: str | None, login: BinaryIO | None) -> MetricsEndpoints:
    """Return the endpoints that the options name. Raises click.UsageError and Failure."""
    from kraftpy.diagnosis.sampling import MetricsEndpoints

    for url in urls:
        _check_url("--metrics", url)
    content = None if login is None else login.read(_MOST_LOGIN_BYTES + 1).rstrip(b"\r\n")
    if content is not None and not _is_login(content):
        raise Failure("the file of --metrics-login has to be one line, name:password")
    return MetricsEndpoints(urls=urls, trusted=trusted, login=content)


def endpoints_in(settings: ConsoleSettings, given: MetricsEndpoints) -> MetricsEndpoints:
    """Return the endpoints as given by options, else by a console's file. Raises click.UsageError."""
    from kraftpy.config.console import METRICS_LOGIN, METRICS_TRUST, METRICS_URLS
    from kraftpy.diagnosis.sampling import MetricsEndpoints

    urls: Sequence[str] = given.urls or settings[METRICS_URLS]
    for url in urls:
        _check_url(METRICS_URLS, url)
    login, text = given.login, settings[METRICS_LOGIN]
    if login is None and text is not None:
        login = text.encode()
        if not _is_login(login):
            raise click.UsageError(f"{METRICS_LOGIN} has to be name:password")
    trusted = given.trusted or settings[METRICS_TRUST]
    if trusted is not None and not os.access(trusted, os.R_OK):
        raise click.UsageError(f"{METRICS_TRUST}: {trusted} cannot be read")
    return MetricsEndpoints(urls=urls, trusted=trusted, login=login)


def _check_url(name: str, url: str) -> None:
    """Raise click.UsageError, which names where the URL is given, if it is not that of an endpoint."""
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"{name} {url}: expected a URL such as http://127.0.0.1:9464/metrics")


def _is_login(content: bytes) -> bool:
    return b":" in content and b"\n" not in content and len(content) <= _MOST_LOGIN_BYTES
