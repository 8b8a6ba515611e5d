"""The style as a test: contracts, tables and files that agree, sizes that were asked about, words that stay away."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from kraftpy.broker.authorization.guards import GUARDS
from kraftpy.broker.handlers.table import HANDLERS, served
from kraftpy.protocol.apis import APIS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kraftpy", "pyspark_kraftpy", "chaos")

MOST_LINES = 600
MOST_METHODS = 40
MOST_FUNCTION_LINES = 80

LONG_FUNCTIONS = {
    "kraftpy/broker/broker.py:__init__": "the parts of a node, each after those it is made of",
    "kraftpy/log/scanning.py:scan": "the loop over millions of batches after a crash: a call each would cost too much",
    "tests/quorum/stock_library.py:__init__": "classes that are made anew for each copy of the library",
    "kraftpy/protocol/records.py:check_records": "it looks at every record a compacted topic is sent, as the next does",
    "kraftpy/protocol/records.py:decode_records": "the client's hot loop: a call per record would cost too much",
}

PUBLIC = {
    "chaos.__main__": "the command of the source tree",
    "chaos.preloaded": "imported by the process from which simulations are forked",
    "kraftpy.audit.interceptor": "for users' producers and consumers",
    "kraftpy.__main__": "the command",
    "kraftpy.broker.handler_protocols": "for type checkers",
    "kraftpy.cli.container": "docker/run and docker/Dockerfile",
    "kraftpy.demo.transformations.publish": "a part of the demo's pipeline",
    "kraftpy.demo.transformations.tables": "a part of the demo's pipeline",
    "kraftpy.pipeline.template.transformations.publish": "a part of every new project",
    "kraftpy.pipeline.template.transformations.tables": "a part of every new project",
    "kraftpy.testing.cluster": "for users' tests",
    "kraftpy.testing.memory_files": "for tests of what keeps files",
    "kraftpy.testing.pytest_plugin": "found by pytest",
    "pyspark_kraftpy": "found by Spark",
}
"""Modules nothing in the package imports, and who does."""

A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|Users|work)/\w")
"""Paths of the machine that the code happened to be written on."""


@functools.cache
def tracked() -> list[str]:
    """Every file of the project: those that git tracks, and new ones that it does not ignore."""
    if not (ROOT / ".git").exists():  # an sdist
        return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and not _hidden(path))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(name for name in listed if (ROOT / name).is_file())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)


def python_files(*under: str) -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and name.startswith(under or ("",))]


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), name)


def module_name(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


PACKAGE_FILES = python_files(*(f"{package}/" for package in PACKAGES))


@pytest.mark.parametrize("file", PACKAGE_FILES)
def test_a_module_opens_with_its_contract(file: str) -> None:
    docstring = ast.get_docstring(tree(file))
    assert docstring, f"{file} does not say what it is"
    first = docstring.splitlines()[0]
    assert first.endswith((".", ":", "?", ")")) or first.count(" ") > 8, f"{file}: a sentence, not {first!r}"


def test_every_api_has_a_message_module_a_handler_and_the_reverse() -> None:
    modules = {Path(file).stem for file in python_files("kraftpy/protocol/messages/")} - {"__init__"}
    assert modules == {api.name for api in APIS.values()}
    assert served() == sorted(APIS), "what is advertised is what is served"


def imports(file: str) -> set[str]:
    """Every module a file imports by name, its own package's relative to nothing."""
    found: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{file}: imports are absolute"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def names_in_tables() -> set[str]:
    """Modules that are imported by their name when first needed."""
    named = {f"kraftpy.protocol.messages.{api.name}" for api in APIS.values()}
    named |= {f"kraftpy.broker.handlers.{handler.partition(':')[0]}" for handler in HANDLERS.values()}
    named |= {f"kraftpy.broker.authorization.{guard.partition(':')[0]}" for guard in GUARDS.values()}
    for file in PACKAGE_FILES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("kraftpy."):
                named.add(node.value.partition(":")[0])
    return named


def test_no_module_is_dead() -> None:
    used = names_in_tables().union(*(imports(file) - {module_name(file)} for file in PACKAGE_FILES))
    modules = {module_name(file) for file in PACKAGE_FILES if not file.endswith("/__init__.py")}
    assert modules - used - PUBLIC.keys() == set()


@pytest.mark.parametrize("file", python_files())
def test_a_long_file_or_class_says_why_it_is_one(file: str) -> None:
    """Its docstring has a sentence "One file because ..." or "One class because ..."; else it is to be split."""
    module = tree(file)
    if (ROOT / file).read_text(encoding="utf-8").count("\n") > MOST_LINES:
        assert "One file because" in " ".join((ast.get_docstring(module) or "").split()), f"{file} is long"
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > MOST_METHODS:
                reason = " ".join((ast.get_docstring(node) or "").split())
                assert "One class because" in reason, f"{file}: {node.name} has {methods} methods"


def test_long_functions_have_been_asked_about() -> None:
    long = set()
    for file in python_files():
        for node in ast.walk(tree(file)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > MOST_FUNCTION_LINES:
                    long.add(f"{file}:{node.name}")
    assert long - LONG_FUNCTIONS.keys() == set(), "split it, or say in LONG_FUNCTIONS why not"
    assert LONG_FUNCTIONS.keys() - long == set(), "not long any more: strike it"


A_PREDICATE = re.compile(r"_*(?:is|has|can)_")


def test_predicates_return_bool() -> None:
    """A name that asks a question has the answer yes or no: `is_stored`, but `on_stored` for what happens then."""
    found = []
    for file in PACKAGE_FILES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and A_PREDICATE.match(node.name):
                returned = None if node.returns is None else ast.unparse(node.returns)
                if returned != "bool" and not str(returned).startswith(("TypeGuard[", "TypeIs[")):
                    found.append(f"{file}:{node.lineno}: {node.name} -> {returned}")
    assert found == []


def test_nothing_of_the_workplace_is_left_in_a_file() -> None:
    found = []
    for name in tracked():
        if name == str(Path(__file__).resolve().relative_to(ROOT)):
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{name}:{number}: {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if A_MACHINE.search(line)
        ]
    assert found == []


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"#\s*(TODO|FIXME|XXX|HACK)\b|\braise NotImplementedError\b")
    found = []
    for file in PACKAGE_FILES:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        found += [f"{file}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if marks.search(line)]
    assert found == []


@functools.cache
def script_patterns(file: str) -> list[str]:
    """Return the patterns of script names that a test module has."""
    return [
        node.value
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".script")
    ]


def starts_its_own_cluster(file: str) -> bool:
    """Return whether a function that is no fixture of a module or session starts a `kraftpy.testing.Cluster`."""
    module = tree(file)
    if not any(isinstance(node, ast.ImportFrom) and node.module == "kraftpy.testing" for node in module.body):
        return False
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = [it for it in functions if not any("scope=" in ast.unparse(decorator) for decorator in it.decorator_list)]
    calls = (node for it in own for node in ast.walk(it) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func) == "Cluster" for call in calls)


def test_a_test_with_its_own_cluster_says_why() -> None:
    """Starting one takes most of a second, so tests share one unless they break it or need another kind of it."""
    files = [file for file in python_files("tests/") if Path(file).name.startswith("test_")]
    silent = [
        file
        for file in files
        if starts_its_own_cluster(file) and "own cluster" not in (ast.get_docstring(tree(file)) or "")
    ]
    assert silent == []


def test_every_script_is_run() -> None:
    """Beside each script, or one directory up, is a test module that collects scripts by a pattern it matches."""
    scripts = [Path(name) for name in tracked() if name.endswith(".script")]
    assert scripts
    orphans = []
    for script in scripts:
        runners = [
            name for name in python_files("tests/") if Path(name).parent in (script.parent, script.parent.parent)
        ]
        patterns = [
            pattern for name in runners if Path(name).name.startswith("test_") for pattern in script_patterns(name)
        ]
        if not any(script.match(pattern) for pattern in patterns):
            orphans.append(str(script))
    assert orphans == []


def test_file_names_of_tests_are_unique() -> None:
    names = [Path(name).name for name in python_files("tests/") if not name.endswith(("conftest.py", "__init__.py"))]
    assert sorted(names) == sorted(set(names))


def test_scripts_have_commands_and_what_happened() -> None:
    for name in tracked():
        if name.endswith(".script"):
            assert "\n---" in (ROOT / name).read_text(encoding="utf-8"), f"{name}: nothing is expected in it"
