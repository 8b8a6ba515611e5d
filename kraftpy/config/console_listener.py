"""The address of a console: `host:port`, or `https://host:port` for TLS."""

from __future__ import annotations

from typing import Final

from kraftpy.config.quorum import Address, parse_address

CONSOLE: Final = "kraftpy.console.listener"
"""A node's setting: where its console listens."""
_HTTPS: Final = "https://"


def parse_console_listener(setting: str, text: str) -> tuple[bool, Address]:
    """Parse `host:port` or `https://host:port`; return whether it has TLS, and the address; port 0 picks any free one.

    Raises ConfigError, which names the setting.
    """
    shown = text.strip()
    has_tls = shown.startswith(_HTTPS)
    place = shown.removeprefix(_HTTPS).removeprefix("http://").removesuffix("/")
    host, colon, port = place.rpartition(":")
    if colon and port == "0":
        return has_tls, parse_address(setting, f"{host}:1")._replace(port=0)
    return has_tls, parse_address(setting, place)
