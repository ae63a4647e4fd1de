"""What the code of a node reads: temporaries, and variables of the state by name.

What lives here: walks over a draft's statements. What does not: Python variables
(`scope.py`).
"""

from __future__ import annotations

import ast
from typing import Any

from phloem.programs.compiler.drafts import TEMPS, Draft

__all__ = ["scopes", "state_reads", "temps_read"]


def state_reads(body: list[ast.stmt], state: str | None) -> tuple[str, ...]:
    """The names in `s["name"]`, `s.get_var("name")` and `s.get_meta_info("name")`."""
    found = {
        node.slice.value
        for root in body
        for node in ast.walk(root)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == state
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    }
    return tuple(sorted(found | _method_names(body, state, {"get_var", "get_meta_info"})))


def scopes(body: list[ast.stmt], state: str | None) -> tuple[str, ...]:
    """The names in `s.var_scope("name")` and `s.set_var("name", ...)`."""
    return tuple(sorted(_method_names(body, state, {"var_scope", "set_var"})))


def _method_names(body: list[ast.stmt], state: str | None, methods: set[str]) -> set[str]:
    """Constant first arguments of calls of these methods of the state."""
    return {
        node.args[0].value
        for root in body
        for node in ast.walk(root)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == state
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def temps_read(draft: Draft) -> tuple[int, ...]:
    """The temporaries that the draft's code reads."""
    found: set[Any] = {
        node.slice.value
        for root in draft.body
        for node in ast.walk(root)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == TEMPS
        and isinstance(node.slice, ast.Constant)
    }
    return tuple(sorted(found))
