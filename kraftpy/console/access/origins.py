"""Decides whether a request comes from the console's own pages: by its host, its origin, and what the browser says.

- The host must be the console's, or else a page of another name that resolves to this machine (DNS rebinding) could
  read a console that needs no sign-in. A console that listens on all addresses and has no URL set accepts every host:
  it demands a sign-in, and no other host has its cookie.
- A change must come from the same origin, as far as the browser says where it comes from (`Origin`, Fetch Metadata).
- Other sites may link to pages, but not load them as a part of theirs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from kraftpy.console.access.settings import AccessSettings, is_loopback, origin_of

HOME: Final = "/"
MOST_PATH_CHARACTERS: Final = 2_000
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::\d{1,5})?")
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*")
_FROM_HERE: Final = frozenset({"same-origin", "none"})
_ALL: Final = frozenset({"", "0.0.0.0", "::"})


class Origins:
    """The hosts and origins of one console."""

    def __init__(self, settings: AccessSettings) -> None:
        self._url_origin = None if settings.url is None else origin_of(settings.url)
        self._scheme = "https" if settings.is_tls else "http"
        self._accepts_all = settings.has_sign_in and settings.url is None and settings.host in _ALL
        self._names = {"localhost"} if is_loopback(settings.host) else {settings.host.lower()}
        if self._url_origin is not None:
            self._names.add((urlsplit(self._url_origin).hostname or "").lower())

    def is_host(self, host: str) -> bool:
        """Return whether a Host header names this console. Any IP address does: no other page has one as its name."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"].lower().strip("[]")
        return self._accepts_all or name in self._names or _is_address(name)

    def own(self, host: str) -> str:
        """Return the console's origin in the browser of a request with this Host header."""
        return self._url_origin or origin_of(f"{self._scheme}://{host}")

    def is_change_from_here(self, headers: Mapping[str, str]) -> bool:
        """Return whether a change comes from the console's own pages, as far as the browser says so."""
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        if origin is None:
            return True
        host = headers.get("host", "")
        return origin == self._url_origin or (self.is_host(host) and origin == origin_of(f"{self._scheme}://{host}"))

    def is_read_from_here(self, headers: Mapping[str, str]) -> bool:
        """Return whether a page is read by the console's own pages or opened by its user, if need be by a link."""
        site = headers.get("sec-fetch-site")
        return site is None or site in _FROM_HERE or headers.get("sec-fetch-dest") == "document"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def safe_path(path: str | None) -> str:
    """Return a path of the console to go on to; the first page for anything else, such as a URL of another host."""
    if path is None or len(path) > MOST_PATH_CHARACTERS or _PATH.fullmatch(path) is None:
        return HOME
    parts = urlsplit(path)
    return HOME if parts.scheme or parts.netloc else path


def with_destination(url: str, path: str) -> str:
    """Return a URL with the path to go on to as its parameter `next`."""
    return url if path == HOME else f"{url}?next={quote(path, safe='')}"
