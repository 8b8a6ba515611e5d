"""GSSAPI on this node's listeners: their keys, the rules for short names, and the threads that take steps of logins.

Each step of a login reads the keytab and records the ticket on disk, so steps run in threads of their own: a client's
token holds up other GSSAPI logins for the time of one step, and nothing else. A connection has one step at a time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Final

from kraftpy.broker.startup import StartupError
from kraftpy.broker.threads import Threads
from kraftpy.config.security import GssapiSettings
from kraftpy.kerberos import Acceptor, KerberosError
from kraftpy.security.gssapi import GssapiExchange

THREADS: Final = 2


class Kerberos:
    """The listeners with GSSAPI, by name. Raises StartupError if one has no keys."""

    def __init__(self, settings: Mapping[str, GssapiSettings]) -> None:
        self._settings = settings
        self._threads = Threads(THREADS, thread_name_prefix="kerberos")
        self._threads.submit(int)  # starts one thread now
        self._acceptors: dict[str, Acceptor] = {}
        for listener, each in settings.items():
            try:
                self._acceptors[listener] = Acceptor(each.keytab, each.principal)
            except KerberosError as error:
                text = f"listeners: {listener}: {each.principal} in the keytab {each.keytab} cannot be used: {error}"
                raise StartupError(text) from None

    def exchange(self, listener: str) -> GssapiExchange:
        """Begin a login."""
        settings, acceptor = self._settings[listener], self._acceptors[listener]
        return GssapiExchange(
            acceptor.context(),
            functools.partial(settings.rules.apply, default_realm=acceptor.default_realm),
            settings.principal.partition("@")[0].partition("/")[0],
            self._apart,
        )

    async def _apart(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work)
