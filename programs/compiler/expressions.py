"""Expressions with steps in them: lifting the steps out in Python's order of evaluation.

What lives here: A-normal form for expressions. What does not: statements (`lower.py`).

A step becomes a node of its own, so all that Python evaluates before it must be evaluated
before that node, and all after it after. Operands before a step are saved into temporaries;
`and`, `or` and conditional expressions become branches. A step where evaluation is not
once and in order (lambda, comprehension) stays inside, and is done when it is reached.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any

from phloem.programs.compiler.describe import Facts, describe, kind_of
from phloem.programs.compiler.drafts import TEMPS, Builder, Draft, call, name, place
from phloem.programs.compiler.scope import shallow
from phloem.programs.compiler.source import FunctionSource

__all__ = ["DEFER", "Lifter"]

DEFER = "_ph_defer"
STEPS = frozenset(["gen", "select", "role", "role_begin", "role_end", "reasoning"])
_NODE_KINDS = {
    "role": "append",
    "role_begin": "append",
    "role_end": "append",
    "reasoning": "gen",
    "tool": "call",
}


class Lifter:
    """Lifts steps out of expressions into a builder.

    `state` is the name of the state parameter, or None in value style; there, `gen` and the
    roles act at once, while in state style they only build what `s +=` then does.
    """

    def __init__(self, builder: Builder, source: FunctionSource, state: str | None) -> None:
        self.builder = builder
        self.source = source
        self.state = state
        self.forks: set[str] = set()
        self.parallel = 0

    def kind(self, node: ast.AST) -> str | None:
        """The kind of node that this very expression is, or None."""
        kind = kind_of(node, self.source)
        if kind is not None:
            return None if self.state is not None and kind in STEPS else kind
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name):
                if owner.id == self.state and node.func.attr == "fork":
                    return "fork"
                if owner.id in self.forks and node.func.attr == "join":
                    return "join"
        return None

    def has_step(self, node: ast.AST) -> bool:
        """Whether evaluating `node` itself does a step (nested scopes aside)."""
        return any(self.kind(item) is not None for item in shallow(node))

    def hides_step(self, node: ast.AST) -> str | None:
        """Why steps inside `node` can't be seen as nodes, or None if there are none."""
        outside = set(map(id, shallow(node)))
        for item in ast.walk(node):
            if id(item) in outside:
                taken = self._takes_state(item)
                if taken:
                    return taken
            elif kind_of(item, self.source) is not None:
                return "a step inside a nested function, lambda or comprehension"
        return None

    def _takes_state(self, node: ast.AST) -> str | None:
        if self.state is None or not isinstance(node, ast.Call):
            return None
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        if any(isinstance(value, ast.Name) and value.id == self.state for value in values):
            return f"the helper {ast.unparse(node.func)} takes the state"
        return None

    def lift(self, node: ast.expr) -> ast.expr:
        """An expression without steps that has the value of `node`; its steps are emitted."""
        if not self.has_step(node):
            return node
        match node:
            case ast.BoolOp():
                return self._bool_op(node)
            case ast.IfExp():
                return self._if_exp(node)
            case ast.Compare() if len(node.ops) > 1:
                return self._chain(node)
            case ast.NamedExpr():
                value = self.lift(node.value)
                return place(ast.NamedExpr(node.target, value), node)  # type: ignore[no-any-return]
            case ast.Await() if self.kind(node.value) is not None:
                kind = self.kind(node.value) or ""
                self.operands(node.value)
                return self.step(node, node, kind)
        kind = self.kind(node) or ""
        self.operands(node)
        return self.step(node, node, kind) if kind else node

    def operands(self, node: ast.expr) -> ast.expr:
        """`node` with its operands lifted, those before the last step saved in order."""
        slots = list(_slots(node))
        last = max((i for i, (value, _) in enumerate(slots) if self.has_step(value)), default=-1)
        for index, (value, put) in enumerate(slots[: last + 1]):
            found = self.lift(value)
            if index < last and not self._is_fixed(found):
                found = self._save(found)
            put(found)
        return node

    def _is_fixed(self, value: ast.expr) -> bool:
        """Whether it does not matter when `value` is evaluated."""
        if isinstance(value, ast.Constant):
            return True
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
            return value.value.id == TEMPS
        return getattr(self.source.resolve(value), "__phloem_kind__", None) is not None

    def _save(self, value: ast.expr) -> ast.expr:
        save = self.builder.save
        if isinstance(value, ast.Starred):
            # The list is built where Python would unpack it.
            unpacked = save(place(ast.List([value], ast.Load()), value))
            return place(ast.Starred(unpacked, ast.Load()), value)  # type: ignore[no-any-return]
        if isinstance(value, ast.FormattedValue):
            # Formatted where Python would format it; text formats to itself.
            formatted = save(place(ast.JoinedStr([value]), value))
            return place(ast.FormattedValue(formatted, -1, None), value)  # type: ignore[no-any-return]
        return save(value)

    def step(self, lifted: ast.expr, node: ast.expr, kind: str) -> ast.expr:
        """Emit the node of a step and return an expression for its value."""
        temp = self.builder.temp()
        self.emit_step(lifted, kind, lambda value: self.builder.store(temp, value, node))
        return self.builder.load(temp, node)

    def emit_step(self, lifted: ast.expr, kind: str, wrap: Callable[[ast.expr], ast.stmt]) -> Draft:
        """Emit the node of the step `lifted`, running the statement `wrap(lifted)`."""
        draft = Draft(_NODE_KINDS.get(kind, kind), lifted.lineno, [])
        called = lifted.value if isinstance(lifted, ast.Await) else lifted
        if isinstance(called, ast.Call):
            facts = self.facts(called, kind)
            draft.fields, draft.problems = facts.fields, facts.problems
            self._fields_of_calls(draft, called, kind)
            if kind == "retrieve":
                draft.early = self._early(called)
                draft.fields["early"] = draft.early is not None
            if kind in {"gen", "select"} and (self.parallel or draft.fields.get("independent")):
                draft.fields["independent"] = True
            if kind == "retrieve" or draft.fields.get("independent"):
                called.func = place(call(name(DEFER), called.func), called.func)
        draft.body = [wrap(lifted)]
        self.builder.emit(draft)
        return draft

    def let_wait(self, value: ast.expr) -> ast.expr:
        """`value`, which is added to a state; the texts in it may come later than the rest."""
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            value.left, value.right = self.let_wait(value.left), self.let_wait(value.right)
        elif isinstance(value, ast.Lambda):
            value.body = self.let_wait(value.body)
        elif isinstance(value, ast.Call):
            if kind_of(value, self.source) == "role":
                value.args = [self.let_wait(argument) for argument in value.args]
            elif getattr(self.source.resolve(value.func), "__phloem_text__", False):
                value.func = place(call(name(DEFER), value.func), value.func)
        return value

    def facts(self, node: ast.Call, kind: str) -> Facts:
        """What the call of a step says about itself."""
        return describe(node, kind, self.source, named=self.state is not None)

    def _early(self, node: ast.Call) -> ast.expr | None:
        """The effect of a retrieval whose arguments are constants and the function's variables.

        Anything else could do something when it is evaluated, or need what is not there yet.
        """
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        plain = all(
            isinstance(value, ast.Constant)
            or (isinstance(value, ast.Name) and value.id in self.source.locals)
            for value in values
        )
        if not plain or any(keyword.arg is None for keyword in node.keywords):
            return None
        effect = ast.Attribute(node.func, "__phloem_effect__", ast.Load())
        made = ast.Call(effect, list(node.args), list(node.keywords))
        return copy.deepcopy(place(made, node))  # type: ignore[no-any-return] # a copy of a node

    def _fields_of_calls(self, draft: Draft, node: ast.Call, kind: str) -> None:
        if kind in {"call", "tool"}:
            draft.fields = {"target": ast.unparse(node.func), "tool": kind == "tool"}
        elif kind == "fork":
            size = node.args[0] if node.args else None
            known = isinstance(size, ast.Constant) and isinstance(size.value, int)
            draft.fields = {"size": size.value if known else None}  # type: ignore[union-attr]
        elif kind in {"role", "role_begin", "role_end"}:
            role = getattr(self.source.resolve(node.func), "__phloem_role__", "")
            inner = node.args[0] if node.args else None
            text = ("text", inner.value) if isinstance(inner, ast.Constant) else ("unknown", "")
            whole = (("begin", role), text, ("end", role))
            edge = (("begin" if kind == "role_begin" else "end", role),)
            draft.fields = {"atoms": whole if kind == "role" else edge}
        elif self.state is None and kind in {"gen", "select"}:
            draft.fields["template"] = draft.fields.get("name")

    # --- evaluation that depends on values

    def _branch(self, test: ast.expr, at: ast.expr) -> int:
        body: list[ast.stmt] = [place(ast.Return(test), at)]
        condition = {"condition": ast.unparse(test)}
        return self.builder.emit(Draft("branch", at.lineno, body, "test", condition))

    def _into(self, temp: int, value: ast.expr) -> None:
        """Evaluate `value` into a temporary as the end of one arm."""
        lifted = self.lift(value)
        self.builder.pre.append(self.builder.store(temp, lifted, value))
        self.builder.flush()

    def _bool_op(self, node: ast.BoolOp) -> ast.expr:
        temp = self.builder.temp()
        leaving = []
        go_on, stop = ("true", "false") if isinstance(node.op, ast.And) else ("false", "true")
        for value in node.values[:-1]:
            self._into(temp, value)
            test = self._branch(self.builder.load(temp, value), value)
            leaving.append((test, stop))
            self.builder.ends = [(test, go_on)]
        self._into(temp, node.values[-1])
        self.builder.ends += leaving
        return self.builder.load(temp, node)

    def _if_exp(self, node: ast.IfExp) -> ast.expr:
        temp = self.builder.temp()
        test = self._branch(self.lift(node.test), node.test)
        self.builder.ends = [(test, "true")]
        self._into(temp, node.body)
        ends = self.builder.ends
        self.builder.ends = [(test, "false")]
        self._into(temp, node.orelse)
        self.builder.ends += ends
        return self.builder.load(temp, node)

    def _chain(self, node: ast.Compare) -> ast.expr:
        """`a < b < c` is `a < b and b < c` with b evaluated once."""
        result = self.builder.temp()
        left = self.builder.save(self.lift(node.left))
        leaving = []
        for index, (op, operand) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.builder.save(self.lift(operand))
            pair = place(ast.Compare(left, [op], [right]), node)
            self.builder.pre.append(self.builder.store(result, pair, node))
            if index < len(node.ops) - 1:
                test = self._branch(self.builder.load(result, node), node)
                leaving.append((test, "false"))
                self.builder.ends = [(test, "true")]
            else:
                self.builder.flush()
            left = right
        self.builder.ends += leaving
        return self.builder.load(result, node)


Slot = tuple[ast.expr, Callable[[ast.expr], None]]


def _slots(node: ast.expr) -> list[Slot]:
    """The operands of `node` in Python's order of evaluation, each with its setter."""
    if isinstance(node, ast.Dict):
        slots: list[Slot] = []
        for index, key in enumerate(node.keys):
            if key is not None:
                slots.append((key, _item(node.keys, index)))
            slots.append((node.values[index], _item(node.values, index)))
        return slots
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        # The rest is a scope of its own, evaluated once an item.
        first = node.generators[0]
        return [(first.iter, _attribute(first, "iter"))]
    if isinstance(node, ast.Lambda):
        given = node.args
        plain: list[Slot] = [(d, _item(given.defaults, i)) for i, d in enumerate(given.defaults)]
        named = [(d, _item(given.kw_defaults, i)) for i, d in enumerate(given.kw_defaults) if d]
        return plain + named
    if isinstance(node, ast.Call):
        # A method's owner is evaluated first, but the method is looked up on it there and then.
        keywords: list[Slot] = [(k.value, _attribute(k, "value")) for k in node.keywords]
        args: list[Slot] = [(arg, _item(node.args, i)) for i, arg in enumerate(node.args)]
        return [(node.func, _attribute(node, "func")), *args, *keywords]
    found: list[Slot] = []
    for name_, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            found.append((value, _attribute(node, name_)))
        elif isinstance(value, list):
            found += [(v, _item(value, i)) for i, v in enumerate(value) if isinstance(v, ast.expr)]
    return found


def _attribute(owner: Any, field: str) -> Callable[[ast.expr], None]:
    return lambda value: setattr(owner, field, value)


def _item(items: list[Any], index: int) -> Callable[[ast.expr], None]:
    def put(value: ast.expr) -> None:
        items[index] = value

    return put
