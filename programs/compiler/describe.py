"""What a primitive call says about itself before it runs.

What lives here: reading constant arguments out of a call's ast, and the parts of an expression
that is added to the state. What does not: the order of evaluation (`lower.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from phloem.errors import CompileError, ConstraintError
from phloem.programs import constraints, registry, sampling
from phloem.programs.check import Finding
from phloem.programs.compiler.source import FunctionSource
from phloem.programs.marks import check_keywords

__all__ = ["Facts", "Part", "describe", "kind_of", "parts_of"]

UNKNOWN = object()


@dataclass
class Facts:
    """Constant facts about one call, by the names of the node's fields."""

    fields: dict[str, Any] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """One effect of an added expression: text in atoms (see `nodes.Append`), or a step's call."""

    kind: Literal["append", "gen", "select"]
    node: ast.expr
    atoms: tuple[tuple[str, str], ...] = ()


def kind_of(node: ast.AST, source: FunctionSource) -> str | None:
    """The kind of primitive that a call calls, as the primitive itself declares it."""
    if not isinstance(node, ast.Call):
        return None
    kind = getattr(source.resolve(node.func), "__phloem_kind__", None)
    if kind == "gen" and _choices(node) is not None:
        return "select"
    return kind


def _choices(call: ast.Call) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "choices" and not _is_none(keyword.value):
            return keyword.value
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def constant(node: ast.expr, source: FunctionSource) -> Any:
    """The value of an expression that can be known before any run, else `UNKNOWN`."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.Name | ast.Attribute):
        found = source.resolve(node)
        return UNKNOWN if found is None else found
    return UNKNOWN


def describe(call: ast.Call, kind: str, source: FunctionSource, *, named: bool) -> Facts:
    """The facts of a call of `kind`. `named`: its keywords are the primitive's own, and none is a
    variable of a template."""
    arguments: dict[str, Any] = {
        keyword.arg: constant(keyword.value, source)
        for keyword in call.keywords
        if keyword.arg is not None
    }
    positional = [constant(node, source) for node in call.args]
    facts = Facts()
    if kind in {"gen", "select"}:
        facts.problems += _unknown(call, source) if named else []
        name = arguments.get("name", positional[0] if positional else None)
        facts.fields["name"] = name if isinstance(name, str) else None
        facts.fields["independent"] = arguments.get("fresh") is True
    if kind == "gen":
        _describe_gen(call, arguments, positional, facts, source)
    elif kind == "select":
        chosen = arguments.get("choices", positional[1] if len(positional) > 1 else UNKNOWN)
        known = isinstance(chosen, list | tuple) and all(isinstance(c, str) for c in chosen)
        facts.fields["choices"] = tuple(chosen) if known else None
    elif kind == "retrieve":
        query = call.args[1 if len(call.args) > 1 else 0] if call.args else None
        named = len(call.args) > 1 and isinstance(positional[0], str)
        facts.fields["name"] = positional[0] if named else None
        facts.fields["query"] = ast.unparse(query) if query is not None else ""
    return facts


def _describe_gen(
    call: ast.Call,
    arguments: dict[str, Any],
    positional: list[Any],
    facts: Facts,
    source: FunctionSource,
) -> None:
    takes = getattr(source.resolve(call.func), "__phloem_takes__", None) or ("name", "max_tokens")
    second = positional[1] if len(positional) > 1 and takes[1] == "max_tokens" else None
    limit = arguments.get("max_tokens", second)
    facts.fields["max_tokens"] = limit if isinstance(limit, int) else None
    facts.problems += _refused(call, {**arguments, "max_tokens": limit}, source)
    given = {name: arguments[name] for name in constraints.ARGUMENTS if name in arguments}
    dtype = getattr(source.resolve(call.func), "__phloem_dtype__", None)
    if dtype is not None:
        given["dtype"] = dtype
    if not given or any(value is UNKNOWN for value in given.values()):
        return
    try:
        built = constraints.build(registry.default("analyser"), given)
    except ConstraintError as error:
        facts.problems.append(
            Finding(
                "P001", "error", error.message, error.hint or "correct it", source.file, call.lineno
            )
        )
        return
    facts.fields["constraint"] = built.constraint


def _unknown(call: ast.Call, source: FunctionSource) -> list[Finding]:
    """A finding for a keyword that the primitive does not have."""
    names = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    try:
        check_keywords(ast.unparse(call.func), source.resolve(call.func), names)
    except CompileError as error:
        return [_finding(error, source, call)]
    return []


def _finding(error: CompileError, source: FunctionSource, call: ast.Call) -> Finding:
    hint = error.hint or "correct it"
    return Finding("P010", "error", error.message, hint, source.file, call.lineno)


def _refused(call: ast.Call, arguments: Mapping[str, Any], source: FunctionSource) -> list[Finding]:
    """A finding for the sampling argument that can't be taken, if one is known to be such."""
    options = {
        name: arguments[name]
        for name in sampling.STEP_OPTIONS
        if name in arguments and arguments[name] is not UNKNOWN
    }
    try:
        sampling.clean(options)
    except CompileError as error:
        return [_finding(error, source, call)]
    return []


def parts_of(node: ast.expr, source: FunctionSource) -> list[Part]:
    """The effects of an expression that is added to the state, as far as its form shows them.

    What the form does not show is an unknown atom; at run time it may hold anything.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [_text(node, ("text", node.value))] if node.value else []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _merged(parts_of(node.left, source) + parts_of(node.right, source))
    if isinstance(node, ast.List | ast.Tuple):
        return _merged([part for item in node.elts for part in parts_of(item, source)])
    kind = kind_of(node, source)
    if kind in {"gen", "select"}:
        return [Part(kind, node)]  # type: ignore[arg-type] # narrowed by the test
    if isinstance(node, ast.Call):
        if kind == "reasoning" and node.args:
            return parts_of(node.args[0], source)
        if kind in {"role", "role_begin", "role_end"}:
            return _role_parts(node, kind, source)
    return [_text(node, ("unknown", ""))]


def _role_parts(node: ast.Call, kind: str, source: FunctionSource) -> list[Part]:
    role = getattr(source.resolve(node.func), "__phloem_role__", "")
    opening, closing = _text(node, ("begin", role)), _text(node, ("end", role))
    if kind == "role_begin":
        return [opening]
    if kind == "role_end":
        return [closing]
    inner = node.args[0] if node.args else next((k.value for k in node.keywords), None)
    content = parts_of(inner, source) if inner is not None else []
    return _merged([opening, *content, closing])


def _text(node: ast.expr, atom: tuple[str, str]) -> Part:
    return Part("append", node, (atom,))


def _merged(parts: list[Part]) -> list[Part]:
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if part.kind == "append" and last is not None and last.kind == "append":
            merged[-1] = Part("append", last.node, last.atoms + part.atoms)
        else:
            merged.append(part)
    return merged
