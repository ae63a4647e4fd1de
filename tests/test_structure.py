"""The shape of the source: sizes, docstrings, layers, and the map in docs/structure.md."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("grammar", "retrieval", "programs", "runtime", "server")
MODULES = sorted(
    [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    + list((ROOT / "src" / "phloem").glob("*.py"))
)
SOURCES = sorted(
    MODULES + [p for d in ("tests", "examples", "benchmarks") for p in (ROOT / d).rglob("*.py")]
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(node: ast.AST) -> Iterator[str]:
    """The modules named by the import statements at or below `node`."""
    for item in ast.walk(node):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and item.module:
            yield item.module
            yield from (f"{item.module}.{alias.name}" for alias in item.names)


def test_files_are_small() -> None:
    """No source file has more than 500 lines, and the median module has at most 170."""
    assert {relative(p): lines(p) for p in SOURCES if lines(p) > 500} == {}
    assert statistics.median(lines(p) for p in MODULES if p.name != "__init__.py") <= 170


def size(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's code: a public signature and its documentation may be long."""
    code = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - code[0].lineno + 1 if code else 0


def test_functions_are_short() -> None:
    """No function of the package has more than 60 lines of code."""
    long = {
        f"{relative(path)}:{function.lineno} {function.name}": size(function)
        for path in MODULES
        for function in functions(tree(path))
        if size(function) > 60
    }
    assert long == {}


def test_modules_have_docstrings() -> None:
    """Each module of the package opens with a docstring."""
    assert [relative(path) for path in MODULES if not ast.get_docstring(tree(path))] == []


def test_structure_page_names_every_module() -> None:
    """docs/structure.md names each module once as a path, and no module that does not exist."""
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    table = page.partition("## The modules")[2]
    named = re.findall(r"^\* `([\w/]+\.py)`", table, flags=re.MULTILINE)
    assert sorted(named) == [relative(path) for path in MODULES]
    mentioned = set(re.findall(r"`([\w/]+/\w+\.py)`", page))
    assert {name for name in mentioned if not (ROOT / name).is_file()} == set()


def test_programs_sees_only_the_contracts_of_the_rooms_below() -> None:
    """`programs` imports of grammar and retrieval only spec.py and base.py."""
    allowed = re.compile(r"phloem\.(grammar\.spec|retrieval\.base)(\.|$)")
    below = re.compile(r"phloem\.(grammar|retrieval)(\.|$)")
    seen = {
        (relative(path), name)
        for path in (ROOT / "programs").rglob("*.py")
        for name in imported(tree(path))
        if below.match(name) and not allowed.match(name)
    }
    # `from phloem.grammar import spec` names the package first and the contract second.
    assert {s for s in seen if s[1] not in ("phloem.grammar", "phloem.retrieval")} == set()


def test_no_function_imports_an_internal_module() -> None:
    """Imports inside of functions never name a module of this package."""
    found = {
        f"{relative(path)}:{function.lineno}": name
        for path in MODULES
        for function in functions(tree(path))
        for name in imported(function)
        if name.split(".")[0] == "phloem"
    }
    assert found == {}


def test_no_import_cycles() -> None:
    """The modules of the package can be imported in an order in which none needs a later one."""
    graph = grimp.build_graph("phloem", cache_dir=None)
    needs = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    graphlib.TopologicalSorter(needs).prepare()


def modules_after(statement: str) -> set[str]:
    """What is in `sys.modules` of a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("statement", ["import phloem", "import phloem.server.cli"])
def test_import_is_light(statement: str) -> None:
    """Importing the face or the command line loads few modules and no heavy library."""
    heavy = {"torch", "transformers", "fastapi", "elasticsearch", "outlines", "pydantic", "numpy"}
    loaded = modules_after(statement) - modules_after("pass")
    assert loaded & heavy == set()
    assert len(loaded) < 400
