"""The style as a test: contracts, tables and files that agree, sizes that were asked about, words that stay away."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
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


# Sentences name their subject -----------------------------------------------------------------------------------------

_THE_REST = r"(?=[\s,]|'s\b)(?:[^.?!]|[.?!](?=\w))*[.?!]?"
HEADLESS = re.compile(rf"(?:^|[.:!?][)\"'*_\]]* )[(*_]*(?=((?:What|Who|Whoever|Of){_THE_REST}))")
HEADLESS_OPENING = re.compile(rf"(?=((?:what|who|whoever){_THE_REST}))")
"""A docstring or a comment in lower case. One with "of" may stand beside the code that it completes."""
LIST_MARKER = re.compile(r" *(?:(?:[-*>]|\d+\.) +)*")
HASH_COMMENTS = (".script", ".sh", ".toml", ".tsv", ".yaml")
A_COMMENT_TO_READ = re.compile(r"#.*\b(?:[Ww]hat|[Ww]ho|[Ww]hoever|Of)\b")
"""Finding the comments of a file is slow, and few files have one with these words."""


def units(text: str) -> Iterator[str]:
    """Yield each paragraph, list item and part of another indentation as one line, its code left out."""
    unit: list[str] = []
    indent = 0
    for line in [*text.splitlines(), ""]:
        marker = LIST_MARKER.match(line)
        assert marker is not None
        if unit and (not line.strip() or marker[0].strip() or len(marker[0]) != indent):
            yield re.sub(r"`+[^`]*`+", "`", " ".join(" ".join(unit).split()))
            unit = []
        if line.strip():
            indent = len(marker[0])
            unit.append(line[indent:])


def headless(text: str, *, is_comment: bool = False) -> list[str]:
    """Return the sentences that begin with What, Who, Whoever or Of and are no questions."""
    lines = list(units(text))
    found = [each[1] for line in lines for each in HEADLESS.finditer(line)]
    if is_comment and lines and (opening := HEADLESS_OPENING.match(lines[0])):
        found.append(opening[1])
    return [sentence for sentence in found if not sentence.endswith("?")]


def markdown_prose(text: str) -> str:
    """Return a page without its code and its headings, with every cell of a table as a paragraph."""
    lines, is_code = [], False
    for line in text.splitlines():
        bare = line.lstrip(" >")
        if bare.startswith("```"):
            is_code = not is_code
        if is_code or bare.startswith(("```", "#", ":::", "<!--")):
            lines.append("")
        elif bare.startswith("|"):
            lines += [part for cell in bare.split("|") for part in ("", cell.strip())]
        else:
            lines.append(line)
    assert not is_code, "a page ends within code"
    return "\n".join(lines)


def hash_comments(text: str) -> Iterator[str]:
    """Yield each block of lines that are comments."""
    for block in re.findall(r"(?m)(?:^[ \t]*#(?!!).*\n?)+", text):
        yield "\n".join(re.sub(r"^\s*#+ ?", "", line) for line in block.splitlines())


def python_comments(file: str) -> Iterator[str]:
    """Yield each comment behind code, and each block of comments."""
    with (ROOT / file).open("rb") as source:
        comments = [token for token in tokenize.tokenize(source.readline) if token.type == tokenize.COMMENT]
    block: list[str] = []
    last = (0, 0)
    for comment in comments:
        line, column = comment.start
        is_alone = not comment.line[:column].strip()
        if block and not (is_alone and last == (line - 1, column)):
            yield "\n".join(block)
            block = []
        block.append(re.sub(r"^#+:? ?", "", comment.string))
        last = (line, column) if is_alone else (0, 0)
    if block:
        yield "\n".join(block)


def headless_in_python(file: str) -> list[str]:
    """Return the headless sentences of docstrings, comments and, in the packages, of all other texts."""
    found = []
    for node in ast.walk(tree(file)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found += headless(inspect.cleandoc(text), is_comment=True)
            case ast.Constant(value=str(text)) if file in PACKAGE_FILES:
                found += headless(inspect.cleandoc(text))
    if A_COMMENT_TO_READ.search((ROOT / file).read_text(encoding="utf-8")):
        found += [each for text in python_comments(file) for each in headless(text, is_comment=True)]
    return found


def texts(value: object) -> Iterator[str]:
    """Yield the texts of a TOML file, from its tables and arrays."""
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from texts(each)
        case list():
            for each in value:
                yield from texts(each)


def headless_in(name: str) -> list[str]:
    found: list[str] = []
    if name.endswith(".py"):
        found += headless_in_python(name)
    if name.endswith(".md"):
        found += headless(markdown_prose((ROOT / name).read_text(encoding="utf-8")))
    if name.endswith(".toml"):
        found += [each for text in texts(tomllib.loads((ROOT / name).read_text("utf-8"))) for each in headless(text)]
    if name.endswith(HASH_COMMENTS):
        comments = hash_comments((ROOT / name).read_text(encoding="utf-8"))
        found += [each for comment in comments for each in headless(comment, is_comment=True)]
    return list(dict.fromkeys(found))


def test_sentences_name_their_subject() -> None:
    """No sentence begins with a bare What, Who, Whoever or Of; a question may, and a heading of a page."""
    assert [f"{name}: {sentence}" for name in tracked() for sentence in headless_in(name)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What was found is kept.", ["What was found is kept."]),
        ("It ends. Whoever waits is told\nso, at once. Others are not.", ["Whoever waits is told so, at once."]),
        ("Of the 78 seeds, none failed", ["Of the 78 seeds, none failed"]),
        ("- first\n- Who asks waits:\n  v1.2 as well. More", ["Who asks waits: v1.2 as well."]),
        ("1. What is due goes", ["What is due goes"]),
        ("one\n    What is below", ["What is below"]),
        ("Left out: What `a. b` has. (Who reads it.)", ["What ` has.", "Who reads it."]),
        ('"All of it." What a day. **Of note.**', ["What a day.", "Of note."]),
        ("What's left stays.", ["What's left stays."]),
        ("What is it? Who asks\nfor v1.2 or `v1.3?`, and why? Of course?", []),
        ("It asks what is there, and who.\nEnds of What (an enum) too, What.CREATE", []),
        ("Whatever it is. Whole ones. Often. [What survives what](a.md) tells", []),
        ("what is in lower case may go on", []),
    ],
)
def test_a_sentence_without_its_subject_is_found(text: str, found: list[str]) -> None:
    assert headless(text) == found


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("# What it costs\n\nWho pays is told.\n", ["Who pays is told."]),
        ("```sh\n# What runs.\n```\n\n> Of these, two.", ["Of these, two."]),
        ("- a\n\n  ```\n  What runs.\n  ```\n", []),
        ("| a | b |\n|---|---|\n| What is it? | Who knows waits |\n", ["Who knows waits"]),
    ],
)
def test_it_is_found_in_the_prose_of_a_page(page: str, found: list[str]) -> None:
    assert headless(markdown_prose(page)) == found


def test_it_is_found_in_docstrings_comments_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """\
        '''What a module is.

        Fine.
        '''
        # Of old
        A = 1  # what it is
        '''Of `A`.'''
        B = "Who asks, waits."  # of the rest
        # It is long, and goes on.
        # Who reads on is told more: not
        # Of this.
        def c():
            x = 1  # fine
            # Whoever asks?
            return x
        """
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    monkeypatch.setattr(f"{__name__}.PACKAGE_FILES", ["package.py"])
    found = [
        "What a module is.",
        "Of `.",
        "Who asks, waits.",
        "Of old",
        "what it is",
        "Who reads on is told more: not Of this.",
    ]
    for name in ("package.py", "test.py"):
        (tmp_path / name).write_text(inspect.cleandoc(source), encoding="utf-8")
    assert sorted(headless_in("package.py")) == sorted(found)
    assert sorted(headless_in("test.py")) == sorted(set(found) - {"Who asks, waits."})
    (tmp_path / "a.script").write_text("say # Who\n# Of two, one goes. A\n# what goes, too\n---\n# what is last\n")
    assert headless_in("a.script") == ["Of two, one goes.", "what is last"]
    (tmp_path / "a.toml").write_text("# Who asks.\na = [{reason = 'It waits. Of course.'}]\n")
    assert headless_in("a.toml") == ["Of course.", "Who asks."]
