"""The JWKS of one OAUTHBEARER listener: fetched periodically, and early if a token names an unknown key.

The first fetch starts when the listener opens, and the next ones follow every
`sasl.oauthbearer.jwks.endpoint.refresh.ms`. A failed fetch is retried with exponential backoff. Meanwhile the current
keys stay in use; before the first successful fetch, every token is refused.

A login whose token names an unknown key waits for an early fetch, for at most `MOST_WAIT_SECONDS`. Since any client can
name keys, early fetches are limited: none for a key that was missing within the last minute (the last 16 are
remembered), and at most one within the longest retry backoff.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kraftpy.config.security import OauthbearerSettings
from kraftpy.endpoints import EndpointError, fetch
from kraftpy.security.json_web_tokens import MOST_JWKS_BYTES, Header, JwksError, KeySet, parse_jwks

logger = logging.getLogger(__name__)

MISSING_KEYS: Final = 16
MISSING_SECONDS: Final = 60.0
MOST_WAIT_SECONDS: Final = 5.0


class Jwks:
    """The keys of one listener. `load` runs in a thread and returns the keys, or raises JwksError or EndpointError."""

    def __init__(self, listener: str, settings: OauthbearerSettings, load: Callable[[], KeySet] | None = None) -> None:
        self.keys: KeySet | None = None
        """The current keys; None before the first successful fetch."""
        self._listener = listener
        self._settings = settings
        self._load = load or self._fetch
        self._loading: asyncio.Task[bool] | None = None
        self._missing: dict[str, float] = {}
        """The time at which each of the last unknown keys may be looked for again, by its id, oldest first."""
        self._may_look_at = 0.0

    async def run(self) -> None:
        """Keep the keys current until cancelled."""
        failures = 0
        while True:
            if await self._fetched():
                failures = 0
                await asyncio.sleep(self._settings.refresh_ms / 1000)
            else:
                longest_ms = max(self._settings.backoff_ms, self._settings.backoff_max_ms)
                await asyncio.sleep(min(self._settings.backoff_ms * 2.0 ** min(failures, 30), longest_ms) / 1000)
                failures += 1

    def prepare(self, header: Header) -> Awaitable[None] | None:
        """Return what to await before a token with this header can be verified; None if nothing."""
        keys = self.keys
        if keys is not None and (header.key_id is None or keys.find(header) is not None):
            return None
        if self._loading is not None and not self._loading.done():
            return self._wait()
        now = asyncio.get_running_loop().time()
        if now < self._may_look_at or (header.key_id is not None and self._missing.get(header.key_id, 0.0) > now):
            return None
        self._may_look_at = now + self._settings.backoff_max_ms / 1000
        if keys is not None and header.key_id is not None:
            self._missing.pop(header.key_id, None)
            self._missing[header.key_id] = now + MISSING_SECONDS
            if len(self._missing) > MISSING_KEYS:
                del self._missing[next(iter(self._missing))]
        return self._wait()

    async def _wait(self) -> None:
        """Wait for keys that are being fetched, or about to be."""
        try:
            async with asyncio.timeout(MOST_WAIT_SECONDS):
                await self._fetched()
        except TimeoutError:
            return

    async def _fetched(self) -> bool:
        """Fetch the keys; return whether that succeeded. Concurrent calls share one fetch."""
        task = self._loading
        if task is None or task.done():
            task = self._loading = asyncio.create_task(self._fetch_now(), name=f"keys of {self._listener}")
        return await asyncio.shield(task)

    async def _fetch_now(self) -> bool:
        try:
            keys = await asyncio.to_thread(self._load)
        except (EndpointError, JwksError, OSError, RuntimeError) as error:
            kept = "the current ones stay in use" if self.keys is not None else "no token is accepted yet"
            logger.warning("%s: cannot fetch the keys for OAUTHBEARER: %s; %s", self._listener, error, kept)
            return False
        self.keys = keys
        return True

    def _fetch(self) -> KeySet:
        url = self._settings.url
        assert url is not None
        try:
            return parse_jwks(fetch(url, MOST_JWKS_BYTES, trusted=self._settings.trusted))
        except JwksError as error:
            raise JwksError(f"{url}: {error}") from None
