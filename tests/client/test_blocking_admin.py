"""The blocking admin client has every call of the asyncio one, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from kraftpy.client import Admin, BlockingAdmin

CALLS = {
    name: method
    for name, method in inspect.getmembers(Admin, inspect.iscoroutinefunction)
    if not name.startswith("_") and name not in ("start", "close")
}


def test_there_are_calls_to_compare() -> None:
    assert {"create_topics", "create_acls", "alter_client_quotas"} <= CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_the_same(name: str) -> None:
    blocking = getattr(BlockingAdmin, name, None)
    assert blocking is not None
    ours, theirs = (
        [(each.name, each.kind, each.default) for each in inspect.signature(call).parameters.values()]
        for call in (blocking, CALLS[name])
    )
    assert ours == theirs
