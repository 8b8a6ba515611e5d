"""A plugin of pytest for runs on compiled modules: leaves out, by name, the tests that need interpreted ones.

`make test-compiled` loads it. `LEFT_OUT` names these tests with the reason, which the run prints for each of them.

A compiled function calls others directly and has constants (`Final`) built in: it never calls what a test puts in their
place. So a test that replaces a part of a compiled module fails here, unless the callers see what replaces it (`SEEN`).
Most tests have another way: real objects, or a stand-in at a protocol, at a port or in an interpreted module.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import pytest

import kraftpy.log.partition_log

_MUTANTS = "tests/log/test_power_loss.py::test_a_log_that_breaks_its_promises_is_found_out"

LEFT_OUT: Final[dict[str, tuple[str, ...]]] = {
    "plants an error in a compiled function": (
        "tests/chaos/test_chaos_simulation.py::test_acknowledging_before_the_high_watermark_is_caught",
        "tests/broker/test_contained_loops.py::test_a_partition_that_cannot_take_its_role_gets_it_later",
        f"{_MUTANTS}[later_segments_that_stay]",
        f"{_MUTANTS}[no_crc]",
        f"{_MUTANTS}[recovery_point_before_the_sync]",
        f"{_MUTANTS}[snapshots_that_are_all_believed]",
    ),
    "needs refusals that the simulation plants in a compiled class": (
        "tests/chaos/test_chaos_pipelines.py::test_batches_overtake_nothing_although_some_are_refused_in_the_middle",
    ),
    "counts calls between compiled functions": (
        "tests/broker/test_follower_reads.py::test_a_follower_is_not_read_for_again_when_only_the_high_watermark_moves",
        "tests/broker/test_idle_partitions.py::test_a_change_of_one_topic_concerns_its_partitions_alone",
        "tests/broker/test_produced_headers.py::test_the_header_of_a_produced_batch_is_read_once",
        "tests/broker/test_sliced_rounds.py::test_a_checkpoint_of_all_partitions_lets_others_run",
    ),
    "derives a leader that breaks a rule from the compiled one": (
        "tests/replication/test_replication_simulation.py::test_the_oracle_sees_that_a_rule_is_missing",
    ),
}
"""Tests (a file and a function, with all its parameters or those named) by the reason why they are left out."""

_PROTOCOL, _HISTORIES = "callers know it by the protocol `Directory`", "the histories of power cuts call it"
SEEN: Final[dict[str, str]] = {
    "kraftpy.broker.replication.replica.Replica.check_in_sync": "interpreted coordinators call it",
    "kraftpy.broker.runtime.OsDirectory.child": _PROTOCOL,
    "kraftpy.broker.runtime.OsDirectory.sync": _PROTOCOL,
    "kraftpy.log.deletion.advance_log_start": "the interpreted retention calls it",
    "kraftpy.log.deletion.is_start_unwritten": "the interpreted retention calls it",
    "kraftpy.log.deletion.remove_before_log_start": "the interpreted retention calls it",
    "kraftpy.log.layout.take_clean_shutdown": _HISTORIES,
    "kraftpy.log.layout.write_offsets": _HISTORIES,
    "kraftpy.log.partition_log.PartitionLog.truncate_to": _HISTORIES,
    "kraftpy.log.partition_log.PartitionLog.expire_producers": "the interpreted maintenance calls it",
    "kraftpy.log.producer_states.ProducerStates.__len__": "the interpreted limit of producers calls it",
    "kraftpy.replication.leader.Leader.is_settled": "the interpreted replica manager reads it",
}
"""Parts of compiled modules that tests replace although they are compiled, and why their callers see it."""

ROOT: Final = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Look at what is replaced from now on. ImportError if the modules are not compiled."""
    if not _is_compiled(kraftpy.log.partition_log):
        raise ImportError("kraftpy is not compiled: make test-compiled")
    set_attribute: Any = pytest.MonkeyPatch.setattr
    enter: Any = mock._patch.__enter__  # type: ignore[attr-defined]

    @functools.wraps(set_attribute)
    def setattr_if_seen(self: Any, target: Any, name: Any, *value: Any, **options: Any) -> None:
        if isinstance(target, str):
            path, _, attribute = target.rpartition(".")
            _check_seen(_found(path), attribute)
        else:
            _check_seen(target, name)
        set_attribute(self, target, name, *value, **options)

    @functools.wraps(enter)
    def enter_if_seen(self: Any) -> Any:
        _check_seen(self.getter(), self.attribute)
        return enter(self)

    pytest.MonkeyPatch.setattr = setattr_if_seen  # type: ignore[method-assign]
    mock._patch.__enter__ = enter_if_seen  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that are left out, with the reason."""
    reasons = {test: reason for reason, tests in LEFT_OUT.items() for test in tests}
    for item in items:
        reason = reasons.get(item.nodeid, reasons.get(item.nodeid.partition("[")[0]))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _found(path: str) -> Any:
    """Return the object that a dotted path names."""
    names = path.split(".")
    for count in range(len(names), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(names[:count]))
        except ImportError:
            continue
        return functools.reduce(getattr, names[count:], found)
    raise ImportError(path)


def _check_seen(target: Any, name: str) -> None:
    """Fail if compiled callers do not see what replaces this attribute."""
    owner = target if isinstance(target, ModuleType | type) else type(target)
    module = owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)
    if module is None or not _is_compiled(module):
        return
    whole = f"{owner.__name__ if owner is module else f'{owner.__module__}.{owner.__qualname__}'}.{name}"
    if whole in SEEN or (owner is module and _is_looked_up(module, name)):
        return
    pytest.fail(f"{whole} is compiled: what replaces it is never called", pytrace=True)


def _is_looked_up(module: ModuleType, name: str) -> bool:
    """Return whether compiled code looks up this name of its module each time: it is neither constant nor compiled."""
    value = getattr(module, name, None)
    if isinstance(value, type) or callable(value):
        origin = sys.modules.get(getattr(value, "__module__", None) or "")
        return origin is None or not _is_compiled(origin)
    source = (ROOT / module.__name__.replace(".", "/")).with_suffix(".py").read_text()
    return re.search(rf"^{name}(?:, \w+)*: Final\b", source, re.MULTILINE) is None


def _is_compiled(module: ModuleType) -> bool:
    return module.__name__.startswith("kraftpy.") and str(getattr(module, "__file__", "")).endswith(".so")
