"""The modules that are compiled mean the same when they are: what the compiler gets wrong or refuses is not in them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled_modules import LEFT_OUT, SEEN

from kraftpy.broker.storage.cleaning_messages import Failure, Order
from kraftpy.log.compaction_work import Cleaned, CleaningPlan, Done, Source

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
def test_a_class_with_a_length_says_when_it_is_true(name: str) -> None:
    """The compiler takes `X | None` for true if it is an X without `__bool__`: unused logs got files when closed."""
    for each in ast.walk(MODULES[name]):
        if isinstance(each, ast.ClassDef):
            methods = {part.name for part in each.body if isinstance(part, ast.FunctionDef)}
            assert "__len__" not in methods or "__bool__" in methods, each.name


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
def test_no_cast_claims_a_type_that_the_compiler_checks(name: str) -> None:
    """A wrong one is a TypeError in compiled code: slices of files, said to be bytes, could not be fetched."""
    checked = {"bytes", "str", "int", "float", "bool", "bytearray", "tuple", "dict", "set"}
    casts = [
        ast.unparse(each.args[0]).strip("'")
        for each in ast.walk(MODULES[name])
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "cast"
    ]
    assert [each for each in casts if each.partition("[")[0] in checked] == []


@pytest.mark.parametrize("kind", [Order, CleaningPlan, Source, Cleaned, Done, Failure])
def test_what_goes_to_the_cleaner_is_a_tuple(kind: type) -> None:
    """A frozen data class cannot be unpickled where it is compiled: logs were never cleaned."""
    assert issubclass(kind, tuple)
    for annotation in inspect.get_annotations(kind, eval_str=True).values():
        assert not dataclasses.is_dataclass(annotation)


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_a_program(name: str) -> None:
    """`python -m` finds no code in a compiled module: logs were never cleaned, because the worker did not start."""
    assert "__name__ == '__main__'" not in [
        ast.unparse(each.test) for each in MODULES[name].body if isinstance(each, ast.If)
    ]


def test_nothing_refers_weakly_to_compiled_objects() -> None:
    """A weak reference to one ends the process when it is looked at after the object is gone."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kraftpy").rglob("*.py")
        if "weakref" in {part for each in ast.walk(ast.parse(path.read_text())) for part in imported(each)}
    }
    assert users == {"kraftpy/client/metrics.py", "kraftpy/client/ranges/metrics.py"}, (
        "these refer to their own classes"
    )
    assert not users & MODULES.keys()


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_the_tests_that_are_left_out_exist() -> None:
    for name in (each for tests in LEFT_OUT.values() for each in tests):
        file, _, function = name.partition("[")[0].partition("::")
        assert function in {each.name for each in functions(ast.parse((ROOT / file).read_text()))}, name


@pytest.mark.parametrize("name", SEEN)
def test_what_tests_may_replace_exists(name: str) -> None:
    parts = name.split(".")
    module = next(end for end in range(len(parts), 0, -1) if "/".join(parts[:end]) + ".py" in MODULES)
    functools.reduce(getattr, parts[module:], importlib.import_module(".".join(parts[:module])))


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
