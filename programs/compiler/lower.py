"""Statements to drafts of nodes: the control flow of a program.

What lives here: one method per kind of statement that can hold a step. What does not:
expressions (`expressions.py`), code objects (`factory.py`) or the finished graph (`build.py`).

A statement without steps, whatever it is, is plain and runs as it stands; where it leaves the
statement by `return`, `break` or `continue`, it says so by the label it returns. A statement
with steps that has no graph form (`try`, `match`, most `with`) runs the same way, as one opaque
node whose steps are done when they are reached.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field

from phloem.programs.check import Finding
from phloem.programs.compiler.describe import Part, kind_of, parts_of
from phloem.programs.compiler.drafts import Builder, Draft, End, call, name, place
from phloem.programs.compiler.expressions import Lifter
from phloem.programs.compiler.leaving import labels, rewritten
from phloem.programs.compiler.scope import shallow
from phloem.programs.compiler.source import FunctionSource

__all__ = ["ADD", "NEXT", "Lowering"]

ADD = "_ph_add"
NEXT = "_ph_next"
_EXPRESSIONS = frozenset(["gen", "select", "role", "role_begin", "role_end", "reasoning"])
"""Kinds of primitives that give an expression in state style, which does nothing by itself."""
_ROLE_METHODS = frozenset(["user", "assistant", "system", "var_scope"])


@dataclass
class _Loop:
    """An enclosing loop: where `continue` goes, the ends that `break` leaves, and how many
    blocks were open around it."""

    head: int
    blocks: int
    breaks: list[End] = field(default_factory=list)


class Lowering:
    """Lowers the body of one function."""

    def __init__(self, source: FunctionSource, state: str | None) -> None:
        self.source = source
        self.state = state
        self.builder = Builder()
        self.lifter = Lifter(self.builder, source, state)
        self.loops: list[_Loop] = []
        self.blocks: list[Draft] = []

    def lower(self) -> list[Draft]:
        """The drafts of the whole body; the first is the entry."""
        self.lifter.forks = self._fork_names()
        for statement in self.source.tree.body:
            self.statement(copy.deepcopy(statement))
        if self.builder.ends or not self.builder.drafts:
            line = self.source.tree.body[-1].lineno
            self.builder.emit(Draft("return", line, [], "return", {"value": "None"}))
        return self.builder.drafts

    def _fork_names(self) -> set[str]:
        """Variables that hold the group a fork returns."""
        found: set[str] = set()
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Assign) and self.lifter.kind(node.value) == "fork":
                found.update(t.id for t in node.targets if isinstance(t, ast.Name))
        return found

    # --- dispatch

    def statement(self, node: ast.stmt) -> None:
        """Lower one statement."""
        self.builder.flush()
        match node:
            case ast.AugAssign() if self._adds_to_state(node):
                self._add(node)
            case ast.If() if self._has_form(node):
                self._if(node)
            case ast.While() if self._has_form(node):
                self._while(node)
            case ast.For() if self._has_form(node):
                self._for(node)
            case ast.With() if self._known_block(node):
                self._with(node)
            case ast.Return():
                self._return(node)
            case ast.Break() | ast.Continue():
                self._leave("break" if isinstance(node, ast.Break) else "continue")
            case ast.Global() | ast.Nonlocal() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass  # docstrings do nothing; declarations are made anew per fragment (factory.py)
            case ast.Expr() if self._drops_step(node):
                self._refuse(node)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
                self._simple(node)
            case _:
                self._plain(node)

    def _has_form(self, node: ast.stmt) -> bool:
        """Whether a compound statement is worth nodes of its own: it holds steps or leaves."""
        for item in shallow(node):
            if self.lifter.kind(item) is not None or isinstance(item, ast.Return):
                return True
            if isinstance(item, ast.AugAssign) and self._adds_to_state(item):
                return True
            if isinstance(item, ast.With) and self._known_block(item):
                return True
        return labels(node) != set()

    def _plain(self, node: ast.stmt) -> None:
        """A statement that runs as it stands."""
        opaque = self._why_opaque(node)
        leaves = labels(node)
        returned = self.builder.temp()
        if not leaves:
            self.builder.run(node, opaque)
            return
        body = [rewritten(node, returned, self.builder)]
        draft = Draft("python", node.lineno, body, opaque=opaque)
        index = self.builder.emit(draft)
        following = self.builder.ends
        for label in sorted(leaves):
            self.builder.ends = [(index, label)]
            if label == "return":
                self._finish(self.builder.load(returned, node), "…", node)
            else:
                self._leave(label)
        self.builder.ends = following

    def _why_opaque(self, node: ast.stmt) -> str | None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None
        for item in shallow(node):
            if self.lifter.kind(item) is not None or (
                isinstance(item, ast.AugAssign) and self._adds_to_state(item)
            ):
                return f"a step inside {_named(node)}"
        return self.lifter.hides_step(node)

    # --- simple statements

    def _simple(self, node: ast.stmt) -> None:
        """An assignment or an expression statement; its value may hold steps."""
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        in_target = any(self.lifter.has_step(t) for t in targets if t is not node)
        augmented = isinstance(node, ast.AugAssign)
        if value is None or not self.lifter.has_step(value) or in_target or augmented:
            self._plain(node)
            return
        kind = self.lifter.kind(value)
        simple = all(isinstance(target, ast.Name) for target in targets)
        if kind is not None and (simple or isinstance(node, ast.Expr)):
            lifted = self.lifter.operands(value)

            def wrap(step: ast.expr) -> ast.stmt:
                node.value = step  # type: ignore[attr-defined] # every kind that comes here has one
                return node

            self.lifter.emit_step(lifted, kind, wrap)
            return
        node.value = self.lifter.lift(value)  # type: ignore[attr-defined]
        self.builder.run(node, self.lifter.hides_step(node))

    def _drops_step(self, node: ast.Expr) -> bool:
        """Whether a state-style program makes an expression of steps and leaves it lying."""
        return self.state is not None and kind_of(node.value, self.source) in _EXPRESSIONS

    def _refuse(self, node: ast.Expr) -> None:
        """Such a statement is a finding; run, it raises as every misuse of an expression does."""
        said = ast.unparse(node)
        test = place(ast.Expr(ast.UnaryOp(ast.Not(), node.value)), node)
        draft = Draft("python", node.lineno, [test])
        hint = f"append it: {self.state} += {said}"
        message = "a step is made here and never added to the state"
        draft.problems = [Finding("P011", "error", message, hint, self.source.file, node.lineno)]
        self.builder.emit(draft)

    def _adds_to_state(self, node: ast.AugAssign) -> bool:
        if not isinstance(node.op, ast.Add) or self.state is None:
            return False
        if isinstance(node.target, ast.Name) and node.target.id == self.state:
            return True
        # What is added to every branch of a fork may be a function of the branch's index.
        grouped = self._is_group(node.target) and isinstance(node.value, ast.Lambda)
        value = node.value.body if grouped and isinstance(node.value, ast.Lambda) else node.value
        return any(
            kind_of(item, self.source) in _EXPRESSIONS - {"role_begin", "role_end"}
            for item in shallow(value)
        )

    def _is_group(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Name) and target.id in self.lifter.forks

    def _add(self, node: ast.AugAssign) -> None:
        """`s += expression`: evaluated as a whole first, then done part by part."""
        if isinstance(node.value, ast.IfExp):
            self._add_either(node, node.value)
            return
        if self._is_group(node.target):
            self._add_to_group(node)
            return
        at = node.value
        target = self._fix_target(node.target)
        before = self._as_load(target)
        # Python loads the target before it evaluates the right side.
        owner = self.builder.save(before) if self.lifter.has_step(node.value) else before
        hidden = self.lifter.hides_step(node)
        value = self.lifter.lift(self.lifter.let_wait(node.value))
        adding = self.builder.temp()
        begin = place(call(name(ADD), owner, value), at)
        self.builder.pre.append(self.builder.store(adding, begin, at))
        parts = parts_of(value, self.source) or [Part("append", value)]
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            step = self.builder.load(adding, part.node)
            advance = ast.Call(
                ast.Attribute(step, "advance", ast.Load()),
                [ast.Constant(part.kind), ast.Constant(is_last)],
                [],
            )
            body: list[ast.stmt] = [place(ast.Expr(advance), part.node)]
            if is_last:
                result = ast.Attribute(self.builder.load(adding, node), "result", ast.Load())
                body.append(place(ast.Assign([target], result), node))
            draft = Draft(part.kind, part.node.lineno, body)
            if isinstance(part.node, ast.Call) and part.kind != "append":
                facts = self.lifter.facts(part.node, part.kind)
                draft.fields, draft.problems = facts.fields, facts.problems
            elif part.kind == "append":
                draft.fields = {"atoms": part.atoms}
            draft.opaque = hidden
            self.builder.emit(draft)

    def _add_to_group(self, node: ast.AugAssign) -> None:
        """`forks += expression`: one node, named by its first step, on all branches at once."""
        said = node.value.body if isinstance(node.value, ast.Lambda) else node.value
        parts = parts_of(said, self.source)
        step = next((part for part in parts if part.kind != "append"), None)
        node.value = self.lifter.lift(self.lifter.let_wait(node.value))
        draft = Draft(step.kind if step else "append", node.lineno, [node])
        if step is not None and isinstance(step.node, ast.Call):
            facts = self.lifter.facts(step.node, step.kind)
            draft.fields, draft.problems = facts.fields, facts.problems
        elif parts:
            draft.fields = {"atoms": parts[0].atoms}
        self.builder.emit(draft)

    def _add_either(self, node: ast.AugAssign, value: ast.IfExp) -> None:
        """`s += a if test else b` is a branch with an addition in each arm."""
        arms: list[list[ast.stmt]] = [
            [place(ast.AugAssign(copy.deepcopy(node.target), node.op, arm), node)]
            for arm in (value.body, value.orelse)
        ]
        self._if(place(ast.If(value.test, arms[0], arms[1]), node))

    def _fix_target(self, target: ast.expr) -> ast.expr:
        """The target with its parts evaluated once."""
        save = self.builder.save
        match target:
            case ast.Subscript():
                owner, index = save(target.value), save(target.slice)
                return place(ast.Subscript(owner, index, ast.Store()), target)  # type: ignore[no-any-return]
            case ast.Attribute():
                return place(ast.Attribute(save(target.value), target.attr, ast.Store()), target)  # type: ignore[no-any-return]
        return target

    @staticmethod
    def _as_load(target: ast.expr) -> ast.expr:
        loaded = copy.deepcopy(target)
        loaded.ctx = ast.Load()  # type: ignore[attr-defined] # all targets have a context
        return loaded

    # --- control flow

    def _test(self, node: ast.expr, kind: str) -> int:
        text = ast.unparse(node)
        test = self.lifter.lift(node)
        body: list[ast.stmt] = [place(ast.Return(test), node)]
        return self.builder.emit(Draft(kind, node.lineno, body, "test", {"condition": text}))

    def _block(self, body: list[ast.stmt], start: list[End]) -> list[End]:
        self.builder.ends = start
        for statement in body:
            self.statement(statement)
        self.builder.flush()
        return self.builder.ends

    def _if(self, node: ast.If) -> None:
        test = self._test(node.test, "branch")
        ends = self._block(node.body, [(test, "true")])
        self.builder.ends = ends + self._block(node.orelse, [(test, "false")])

    def _while(self, node: ast.While) -> None:
        head = self.builder.head()
        test = self._test(node.test, "loop")
        self._loop(node, head, test)

    def _for(self, node: ast.For) -> None:
        text = f"{ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        iterable = self.lifter.lift(node.iter)
        iterator = self.builder.temp()
        start = place(call(name(NEXT), iterable), node.iter)
        self.builder.pre.append(self.builder.store(iterator, start, node.iter))
        head = self.builder.head()
        more = ast.Attribute(self.builder.load(iterator, node), "more", ast.Load())
        item = ast.Attribute(self.builder.load(iterator, node), "item", ast.Load())
        body: list[ast.stmt] = [
            place(
                ast.If(
                    call(more), [ast.Assign([node.target], item)], [ast.Return(ast.Constant(False))]
                ),
                node.target,
            ),
            place(ast.Return(ast.Constant(True)), node.target),
        ]
        test = self.builder.emit(Draft("loop", node.lineno, body, "test", {"condition": text}))
        self._loop(node, head, test)

    def _loop(self, node: ast.While | ast.For, head: int, test: int) -> None:
        loop = _Loop(head, len(self.blocks))
        self.loops.append(loop)
        self.builder.back(self._block(node.body, [(test, "next")]), head)
        self.loops.pop()
        done = self._block(node.orelse, [(test, "done")])
        self.builder.ends = done + loop.breaks

    def _leave(self, label: str) -> None:
        loop = self.loops[-1]
        self._close_blocks(loop.blocks)
        if label == "break":
            loop.breaks += self.builder.ends
        else:
            self.builder.back(self.builder.ends, loop.head)
        self.builder.ends = []

    def _return(self, node: ast.Return) -> None:
        value = node.value or place(ast.Constant(None), node)
        text = ast.unparse(value)
        self._finish(self.lifter.lift(value), text, node)

    def _finish(self, value: ast.expr, text: str, at: ast.stmt) -> None:
        if self.blocks:
            value = self.builder.save(value)
            self._close_blocks(0)
        body: list[ast.stmt] = [place(ast.Return(value), at)]
        draft = Draft("return", at.lineno, body, "return", {"value": text})
        draft.opaque = self.lifter.hides_step(value)
        self.builder.emit(draft)

    # --- with

    def _known_block(self, node: ast.With) -> bool:
        """`with s.user():` and the like, and `with parallel():`."""
        if len(node.items) != 1 or node.items[0].optional_vars is not None:
            return False
        entered = node.items[0].context_expr
        if kind_of(entered, self.source) == "parallel":
            return True
        return (
            isinstance(entered, ast.Call)
            and isinstance(entered.func, ast.Attribute)
            and entered.func.attr in _ROLE_METHODS
            and isinstance(entered.func.value, ast.Name)
            and entered.func.value.id == self.state
            and self.state is not None
        )

    def _with(self, node: ast.With) -> None:
        entered = node.items[0].context_expr
        parallel = kind_of(entered, self.source) == "parallel"
        block = self.builder.temp()
        opening = [
            self.builder.store(block, entered, entered),
            self._call_block(block, "__enter__", entered),
        ]
        leaving = [self._call_block(block, "__exit__", entered, *[ast.Constant(None)] * 3)]
        if parallel:
            begin = Draft("fork", entered.lineno, opening)
            end = Draft("join", node.lineno, leaving)
        else:
            assert isinstance(entered, ast.Call)
            assert isinstance(entered.func, ast.Attribute)
            role = entered.func.attr if entered.func.attr != "var_scope" else None
            begin = Draft("append", entered.lineno, opening)
            begin.fields = {"atoms": (("begin", role),) if role else ()}
            end = Draft("append", node.lineno, leaving)
            end.fields = {"atoms": (("end", role),) if role else ()}
        self.builder.emit(begin)
        self.blocks.append(end)
        self.lifter.parallel += parallel
        self._block(node.body, self.builder.ends)
        if self.builder.ends:
            self._close_blocks(len(self.blocks) - 1)
        self.blocks.pop()
        self.lifter.parallel -= parallel

    def _call_block(self, block: int, method: str, at: ast.expr, *args: ast.expr) -> ast.stmt:
        """`block.method(*args)` as a statement."""
        called = call(ast.Attribute(self.builder.load(block, at), method, ast.Load()), *args)
        return place(ast.Expr(called), at)  # type: ignore[no-any-return] # a statement stays one

    def _close_blocks(self, down_to: int) -> None:
        """Leave the open blocks, the innermost first, on this path."""
        for end in reversed(self.blocks[down_to:]):
            self.builder.emit(copy.deepcopy(end))


def _named(node: ast.stmt) -> str:
    names = {
        ast.Try: "try",
        ast.With: "with",
        ast.AsyncWith: "async with",
        ast.Match: "match",
        ast.AsyncFor: "async for",
    }
    return names.get(type(node), type(node).__name__.lower())
