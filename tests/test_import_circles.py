"""Import circles stay small, counting imports for type checkers, and only the server imports the Broker class."""

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_IN_A_CIRCLE = 3


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "kraftpy").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(module: str, path: Path, known: Iterable[str]) -> set[str]:
    """Return the modules that a module imports anywhere; re-exports of a package for type checkers do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    aside: set[ast.AST] = set()
    if path.name == "__init__.py":
        aside = {inner for node in ast.walk(tree) if is_for_type_checkers(node) for inner in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in aside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
    return (found & set(known)) - {module}


def graph() -> dict[str, set[str]]:
    known = modules()
    return {module: imports_of(module, path, known) for module, path in known.items()}


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found, left = {start}, [start]
    while left:
        for each in edges[left.pop()] - found:
            found.add(each)
            left.append(each)
    return found


def circles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components of more than one module."""
    after = {module: reachable(module, edges) for module in edges}
    together = {frozenset(each for each in after[module] if module in after[each]) for module in edges}
    return {circle for circle in together if len(circle) > 1}


def test_circles_of_three_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(edges) == {frozenset("abc")}


def test_no_circle_of_imports_has_more_than_three_modules() -> None:
    large = [sorted(circle) for circle in circles(graph()) if len(circle) > MOST_IN_A_CIRCLE]
    assert large == []


def test_only_the_server_imports_the_broker() -> None:
    """Every other module declares a protocol of what it needs."""
    importers = {module for module, imported in graph().items() if "kraftpy.broker.broker" in imported}
    assert importers == {"kraftpy.broker.server", "kraftpy.broker.handler_protocols"}


def test_the_broker_is_checked_against_each_module_of_handlers() -> None:
    """mypy checks the modules named in `broker.handler_protocols`."""
    declaring = {
        path.stem for path in (ROOT / "kraftpy/broker/handlers").glob("*.py") if "class Broker(" in path.read_text()
    }
    tree = ast.parse((ROOT / "kraftpy/broker/handler_protocols.py").read_text(encoding="utf-8"))
    checked = {
        node.target.id.removeprefix("_")
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and ".Broker]" in ast.unparse(node)
    }
    assert checked == declaring
