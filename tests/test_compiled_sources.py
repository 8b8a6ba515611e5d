"""The modules that are compiled mean the same when they are: what the compiler gets wrong or refuses is not in them."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PURE = {"len", "min", "max", "bisect_left", "bisect_right", "encode", "read_header"}
"""Functions that may stand in the bounds of a slice: called twice, they change nothing."""


def settings() -> dict[str, Any]:
    """Return the settings of the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Any] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    return found


def compiled() -> list[Path]:
    """Return the sources of the compiled modules."""
    own = settings()
    left_out = {ROOT / pattern.lstrip("/") for pattern in own["exclude"]}
    found = [path for pattern in own["include"] for path in sorted(ROOT.glob(pattern.lstrip("/")))]
    return [path for path in found if path not in left_out and path.name != "__init__.py"]


MODULES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in compiled()}
COMPILED = {
    f"{name[:-3].replace('/', '.')}.{each.name}"
    for name, tree in MODULES.items()
    for each in tree.body
    if isinstance(each, ast.ClassDef)
}
"""The full names of compiled classes."""
CLASSES = {each.name for tree in MODULES.values() for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions of a module."""
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each


def test_every_pattern_names_modules() -> None:
    own = settings()
    assert [pattern for pattern in own["include"] if not list(ROOT.glob(pattern.lstrip("/")))] == []
    assert [name for name in own["exclude"] if "/" in name and not (ROOT / name.lstrip("/")).exists()] == []
    assert len(MODULES) > 60


@pytest.mark.parametrize("name", MODULES)
def test_nothing_called_in_the_bounds_of_a_slice_has_an_effect(name: str) -> None:
    """The compiler calls it twice where the sliced object is neither a string nor a list: a file was written twice."""
    found = [
        ast.unparse(each)
        for each in ast.walk(MODULES[name])
        if isinstance(each, ast.Slice)
        for bound in (each.lower, each.upper)
        if bound is not None
        for part in ast.walk(bound)
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield) or (isinstance(part, ast.Call) and not is_pure(part))
    ]
    assert found == []


def is_pure(call: ast.Call) -> bool:
    """Return True for a call of one of `PURE`."""
    return (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in PURE


@pytest.mark.parametrize("name", MODULES)
def test_a_name_of_compiled_exceptions_is_that_of_one_type(name: str) -> None:
    """The compiler gives a name the type it has first in a function: another kind of exception is a TypeError then."""
    for function in functions(MODULES[name]):
        types: dict[str, dict[str, None]] = {}
        for handler in ast.walk(function):
            if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type is not None:
                types.setdefault(handler.name, {})[ast.unparse(handler.type)] = None
        for variable, its in types.items():
            narrow = {each for each in its if each.rpartition(".")[2] in CLASSES}
            assert len(its) == 1 or not narrow, f"{function.name}: {variable} is {list(its)}"


@pytest.mark.parametrize("name", MODULES)
def test_no_cause_decides_anything(name: str) -> None:
    """`raise ... from` sets no `__cause__` in a compiled module."""
    attributes = {each.attr for each in ast.walk(MODULES[name]) if isinstance(each, ast.Attribute)}
    assert "__cause__" not in attributes


@pytest.mark.parametrize("name", MODULES)
def test_special_methods_are_methods(name: str) -> None:
    """The compiler looks for them among a class's functions: `__del__ = release` was never called."""
    for each in ast.walk(MODULES[name]):
        if isinstance(each, ast.ClassDef):
            targets = [target for part in each.body if isinstance(part, ast.Assign) for target in part.targets]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            assert {found for found in names if found.startswith("__")} <= {"__slots__", "__match_args__"}


@pytest.mark.parametrize("name", MODULES)
def test_no_class_is_only_for_type_checkers(name: str) -> None:
    """The compiler refuses classes inside of `if`."""
    conditions = [each for each in MODULES[name].body if isinstance(each, ast.If)]
    assert [each.name for part in conditions for each in ast.walk(part) if isinstance(each, ast.ClassDef)] == []


@pytest.mark.parametrize("name", MODULES)
def test_no_generator_is_asynchronous(name: str) -> None:
    for function in functions(MODULES[name]):
        if isinstance(function, ast.AsyncFunctionDef):
            assert not any(isinstance(each, ast.Yield) for each in ast.walk(function)), function.name


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_a_program(name: str) -> None:
    """`python -m` finds no code in a compiled module: logs were never cleaned, because the worker did not start."""
    assert "__name__ == '__main__'" not in [
        ast.unparse(each.test) for each in MODULES[name].body if isinstance(each, ast.If)
    ]


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """It cannot; and where it can, as with exceptions, compiled code does not take its objects for the base's."""
    found = []
    for path in sorted(
        each for part in ("kraftpy", "pyspark_kraftpy", "chaos") for each in (ROOT / part).rglob("*.py")
    ):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text())
        if name in MODULES:
            continue
        origins = {
            alias.asname or alias.name: f"{each.module}.{alias.name}"
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom)
            for alias in each.names
        }
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef) and "Protocol" not in map(ast.unparse, each.bases):
                found += [f"{name}: {each.name}" for base in each.bases if origin(base, origins) in COMPILED]
    assert found == []


def origin(base: ast.expr, origins: dict[str, str]) -> str:
    """Return the full name of a base class."""
    first, _, rest = ast.unparse(base).partition("[")[0].partition(".")
    return origins.get(first, first) + (f".{rest}" if rest else "")
