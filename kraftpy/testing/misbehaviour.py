"""The rules in force in the process of a test's node, and their hooks in the broker.

While there are rules about requests, `broker.apis.answer` is replaced by another function; while there are some about
disks, methods of `broker.runtime.OsFile` and `OsDirectory` are. Otherwise they are the broker's own: production has no
hook for any of this, and pays nothing.

`obey` is called by a dedicated thread, so that a rule can be withdrawn while the event loop hangs in an fsync.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from kraftpy.testing.rules import Rule

REQUESTS = frozenset({"drop", "delay", "hold", "fail", "cut"})


class InForce:
    """The current rules, and the tasks and threads that wait for one to be withdrawn."""

    def __init__(self) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.node = 0
        self._changed = threading.Condition()
        self._waiting: list[tuple[Rule, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._replaced: dict[str, list[tuple[Any, str, Any]]] = {}

    def change(self, rules: Sequence[Rule]) -> None:
        """Put exactly these rules in force."""
        with self._changed:
            self.rules = tuple(rules)
            still = set(rules)
            gone = [each for each in self._waiting if each[0] not in still]
            self._waiting = [each for each in self._waiting if each[0] in still]
            self._changed.notify_all()
        for _, loop, future in gone:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(_resolve, future)
        kinds = {rule.kind for rule in rules}
        self._set_replaced("requests", is_wanted=bool(kinds & REQUESTS))
        self._set_replaced("syncs", is_wanted=bool(kinds - REQUESTS))
        self._set_replaced("room", is_wanted="full" in kinds)

    async def until_gone(self, rule: Rule, seconds: float | None = None) -> None:
        """Wait until the rule is withdrawn, and no longer than `seconds`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = rule, loop, future
        with self._changed:
            if rule not in self.rules:
                return
            self._waiting.append(waiting)
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            with self._changed:
                self._waiting = [each for each in self._waiting if each is not waiting]

    def block_until_gone(self, rule: Rule, seconds: float | None = None) -> None:
        """Wait like `until_gone`, in a thread."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while rule in self.rules:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return
                self._changed.wait(left)

    def _set_replaced(self, what: str, *, is_wanted: bool) -> None:
        """Install or remove the replacements for one subject. Others are not touched, so that nothing slips through."""
        if is_wanted and what not in self._replaced:
            if what == "requests":
                from kraftpy.testing.bad_answers import replacements
            else:
                from kraftpy.testing.bad_disks import replacements
            self._replaced[what] = []
            for owner, name, made_of in replacements(self, what):
                original = getattr(owner, name)
                self._replaced[what].append((owner, name, original))
                setattr(owner, name, made_of(original))
        elif not is_wanted:
            for owner, name, original in self._replaced.pop(what, ()):
                setattr(owner, name, original)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_in_force = InForce()


def obey(node: int, rules: Sequence[Rule]) -> None:
    """Put exactly these rules in force in this process, which is that node."""
    _in_force.node = node
    _in_force.change(rules)
