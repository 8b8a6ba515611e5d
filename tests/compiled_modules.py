"""A plugin of pytest for runs on compiled modules: tests that replace a part of one are left out, and named.

`make test-compiled` loads it. A compiled function calls others of its module directly and has constants built in, so
whatever a test puts in their place is never called, or cannot be put there at all. On the interpreted modules, every
test runs.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

import kraftpy.log.partition_log


def pytest_configure() -> None:
    """Look at what is replaced from now on. ImportError if the modules are not compiled."""
    if not _is_compiled(kraftpy.log.partition_log):
        raise ImportError("kraftpy is not compiled: make test-compiled")
    set_attribute: Any = pytest.MonkeyPatch.setattr
    enter: Any = mock._patch.__enter__  # type: ignore[attr-defined]

    @functools.wraps(set_attribute)
    def setattr_or_skip(self: Any, target: Any, *arguments: Any, **options: Any) -> None:
        _skip_if_compiled(_owner(target) if isinstance(target, str) else target)
        set_attribute(self, target, *arguments, **options)

    @functools.wraps(enter)
    def enter_or_skip(self: Any) -> Any:
        _skip_if_compiled(self.getter())
        return enter(self)

    pytest.MonkeyPatch.setattr = setattr_or_skip  # type: ignore[method-assign]
    mock._patch.__enter__ = enter_or_skip  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests of files that derive classes from compiled ones: such classes have no objects."""
    for item in items:
        for each in vars(getattr(item, "module", None) or object).values():
            if isinstance(each, type) and _derives_from_compiled(each):
                item.add_marker(pytest.mark.skip(reason=f"{each.__name__} derives from a compiled class"))
                break


def _derives_from_compiled(kind: type) -> bool:
    if _is_class_compiled(kind) or issubclass(kind, BaseException | tuple):
        return False
    return any(_is_class_compiled(base) for base in kind.__mro__[1:])


def _is_class_compiled(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and _is_compiled(module)


def _owner(path: str) -> Any:
    """Return what has the attribute that a dotted path names."""
    names = path.split(".")[:-1]
    for count in range(len(names), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(names[:count]))
        except ImportError:
            continue
        return functools.reduce(getattr, names[count:], found)
    raise ImportError(path)


def _skip_if_compiled(target: Any) -> None:
    owner = target if isinstance(target, ModuleType | type) else type(target)
    module = owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)
    if module is not None and _is_compiled(module):
        pytest.skip(f"a part of {owner.__name__}, which is compiled, cannot be replaced")


def _is_compiled(module: ModuleType) -> bool:
    return str(getattr(module, "__file__", "")).endswith(".so")
