"""Compiled programs behave as the plain Python functions they come from."""

from __future__ import annotations

import asyncio
import linecache
import textwrap
import traceback
from typing import Any

import pytest

import phloem as ph
from phloem.errors import where_of
from phloem.programs.testing import ScriptedBackend

from .conftest import effects

COUNT = iter(range(10**6))
PROMPTS = {name: f"{name}? {{{{ v }}}}" for name in ("a", "b", "c", "d")}

CASES = {
    "operands before and after a step": """
        def program(v, log):
            def f(x):
                log.append(x)
                return f"({x})"
            return f(1) + ph.gen("a") + f(2) + ph.gen("b") + f(3)
        """,
    "arguments in order": """
        def program(v, log):
            def f(*xs, **kw):
                log.append((xs, kw))
                return str(xs) + str(kw)
            return f(f(0), ph.gen("a"), *[f(1)], k=ph.gen("b"), z=f(2))
        """,
    "and or and not": """
        def program(v, log):
            x = log.append("no") or ph.gen("a") and ph.gen("b")
            y = ph.gen("c") or ph.gen("d")
            return x, y, not ph.gen("a")
        """,
    "conditional expression": """
        def program(v, log):
            return [ph.gen("a") if i % 2 else ph.gen("b") for i in range(1)], (
                ph.gen("c") if len(v) > 1 else ph.gen("d"))
        """,
    "comprehensions over a step": """
        def program(v, log):
            xs = [ph.gen("a", v=x) for x in ph.gen("b") if x > "/"]
            y = {ph.gen("c"): ph.gen("d") for x in [ph.gen("a"), 2]}
            return xs, y, list(ph.gen("b", v=x) for x in (ph.gen("a"), v))
        """,
    "names of what is defined inside": """
        def program(v, log):
            def inner():
                class A:
                    def m(self): pass
                return A
            class B:
                f = lambda: 0
            log += [inner.__qualname__, inner().m.__qualname__, B.__qualname__, B.f.__qualname__]
            return ph.gen("a"), repr(B), inner.__name__
        """,
    "lambdas whose defaults are steps": """
        def program(v, log):
            f = lambda x=ph.gen("a"), *, y=ph.gen("b"): ph.gen("c") + x + y
            log.append("made")
            return f(), f("x") + ph.gen("d")
        """,
    "chained comparison evaluates the middle once": """
        def program(v, log):
            return "" < ph.gen("a") < ph.gen("b") < "z", "z" < ph.gen("c") < ph.gen("d")
        """,
    "f-strings": """
        def program(v, log):
            class F:
                def __format__(self, spec):
                    log.append(spec)
                    return "F"
            return f"{F():x}-{ph.gen('a')!r:>8}-{F():y}{ph.gen('b')}"
        """,
    "walrus": """
        def program(v, log):
            if (n := len(x := ph.gen("a"))) > 1:
                log.append((n, x))
            return n
        """,
    "closures see later values": """
        def program(v, log):
            x = 1
            get = lambda: x
            y = ph.gen("a")
            x = 2
            def bump():
                nonlocal x
                x += 1
            bump()
            z = ph.gen("b")
            return get(), x, [get() + i for i in range(2)]
        """,
    "unbound local": """
        def program(v, log):
            if len(v) > 100:
                x = 1
            y = ph.gen("a")
            return x
        """,
    "deleted local": """
        def program(v, log):
            x = ph.gen("a")
            del x
            return x
        """,
    "loops with else, break and continue": """
        def program(v, log):
            for i in range(3):
                if i == 1:
                    continue
                x = ph.gen("a")
                log.append((i, x))
            else:
                log.append("else")
            while True:
                if len(log) > 4:
                    break
                log.append(ph.gen("b"))
            else:
                log.append("never")
            return log
        """,
    "return inside try inside a loop": """
        def program(v, log):
            for i in range(3):
                try:
                    if i == 1:
                        return ph.gen("a")
                    if i == 0:
                        continue
                finally:
                    log.append(("finally", i))
            return None
        """,
    "break out of with and match": """
        def program(v, log):
            import contextlib
            for i in range(4):
                x = ph.gen("a")
                with contextlib.suppress(ValueError):
                    match i:
                        case 2:
                            break
                        case _:
                            log.append(x)
                            raise ValueError
            return i
        """,
    "an error in the middle": """
        def program(v, log):
            x = ph.gen("a")
            log.append(x)
            y = {}[x]
            return ph.gen("b")
        """,
    "steps in subscripts, dicts and calls on results": """
        def program(v, log):
            d = {ph.gen("a"): ph.gen("b"), **{"k": ph.gen("c")}}
            log.append(sorted(d))
            d[ph.gen("d")] = 1
            return ph.gen("a").upper().join([ph.gen("b"), "x"])[len(ph.gen("c")) - 3 :]
        """,
    "annotated and augmented assignments": """
        def program(v, log):
            x: str = ph.gen("a")
            y: int
            x += ph.gen("b")
            a, (b, *c) = ph.gen("c")[0], ph.gen("d")
            return x, a, b, c
        """,
    "recursion over plain python": """
        def program(v, log):
            def walk(n):
                return ph.gen("a") if n == 0 else walk(n - 1) + "."
            return walk(3)
        """,
    "assert and raise": """
        def program(v, log):
            assert ph.gen("a") == "", f"got {ph.gen('b')}"
        """,
    "global": """
        def program(v, log):
            global PHLOEM_TEST_GLOBAL
            PHLOEM_TEST_GLOBAL = ph.gen("a")
            log.append(PHLOEM_TEST_GLOBAL)
            return PHLOEM_TEST_GLOBAL
        """,
    "nested classes and decorators": """
        def program(v, log):
            x = ph.gen("a")
            def deco(f):
                log.append("deco")
                return f
            class C:
                y = x
                @deco
                def m(self):
                    return self.y + x
            return C().m() + ph.gen("b")
        """,
    "for over an unpacked, reassigned iterable": """
        def program(v, log):
            items = [("p", 1), ("q", 2)]
            for i, (items, n) in enumerate(items):
                log.append((i, items, n, ph.gen("a")))
            return items
        """,
}


def load(source: str) -> Any:
    """A function from source that the compiler can find, as if from a file."""
    text = textwrap.dedent(source).lstrip("\n")
    name = f"<program {next(COUNT)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"ph": ph}
    exec(compile(text, name, "exec"), space)
    return space["program"]


def outcome(function: Any, *, opaque: bool, **options: Any) -> Any:
    """Value or error, log, and effects of one run."""
    count = iter(range(1000))
    backend = ScriptedBackend(lambda *_: f"<{next(count)}>")
    style = {} if "s" in function.__code__.co_varnames[:1] else {"prompts": PROMPTS}
    program = ph.function(opaque=opaque, **style)(function)
    log: list[Any] = []
    events: list[Any] = []
    result: Any
    try:
        stream = program.stream("vv", log, backend=backend, seed=1, **options)
        events = stream.state
        for _ in stream:
            pass
        result = ("value", repr(stream.state.value))
    except Exception as error:  # noqa: BLE001 - compared
        result = (type(error).__name__, str(error).split("\n")[0])
    # Branches interleave as they please: each one's own order is what counts.
    by_branch = sorted(effects(events), key=lambda effect: dict(effect).get("path", ""))
    return result, repr(log), by_branch


@pytest.mark.parametrize("name", CASES)
def test_compiled_equals_direct(name: str) -> None:
    """The compiled run and the direct run have the same value or error, log and effects."""
    function = load(CASES[name])
    compiled, direct = outcome(function, opaque=False), outcome(function, opaque=True)
    assert compiled == direct
    assert len(compiled[2]) > 3


def test_free_variables_stay_live() -> None:
    """A compiled program shares its closure's cells with the code around it."""
    word = "one"

    @ph.function
    def program(s):
        nonlocal word
        s += word
        word = "changed"

    word = "two"
    state = program.run(backend=ScriptedBackend())
    assert (state.text(), word) == ("two", "changed")


def test_defaults_keywords_and_stars() -> None:
    """Arguments bind as Python binds them, defaults and star parameters included."""

    @ph.function
    def program(s, a, /, b=2, *rest, c, d=4, **more):
        s += f"{a}{b}{rest}{c}{d}{more}"

    state = program.run(1, 9, 8, c=3, zzz=5, backend=ScriptedBackend())
    assert state.text() == "19(8,)34{'zzz': 5}"


def test_traceback_shows_the_users_lines() -> None:
    """An error's traceback has a frame with the program's own name, file and line."""

    @ph.function
    def program(s):
        s += "text"
        x = [1, 2]
        s += ph.gen("a")
        return x[5]

    with pytest.raises(IndexError) as caught:
        program.run(backend=ScriptedBackend(["ok"]))
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    line = program.function.__code__.co_firstlineno + 5
    assert (frame.filename, frame.name, frame.lineno) == (__file__, "program", line)
    where = where_of(caught.value)
    assert where is not None
    assert (where.program, where.line) == ("program", line)
    assert where.trace_id


def test_async_programs_await_tools() -> None:
    """An `async def` program runs its steps and its own awaits, side by side with others."""

    async def lookup(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    @ph.function
    async def program(s, word):
        s += "Q: " + ph.gen("a")
        both = await asyncio.gather(lookup(word), lookup(s["a"]))
        s += both[0]
        if await lookup("x") == "X":
            s += ph.gen("b")
        return both

    state = program.run("w", backend=ScriptedBackend(["r", "t"]))
    assert state.value == ["W", "R"]
    assert state.text() == "Q: rWt"
    assert [node.kind for node in program.graph.nodes.values()].count("gen") == 2


def test_state_addition_evaluates_first_and_acts_then() -> None:
    """All of `s += ...` is evaluated before any of it is done, as Python does."""
    log = []

    def note(text: str) -> str:
        log.append(text)
        return text

    backend = ScriptedBackend(lambda *_: note("step"))

    @ph.function
    def program(s):
        s += note("1") + ph.gen("x") + note("2") + ph.gen("y")

    program.run(backend=backend)
    assert log == ["1", "2", "step", "step"]


def test_a_state_name_that_is_rebound_is_plain_python() -> None:
    """`s += ...` on something else than the state is an ordinary addition."""

    @ph.function
    def program(s):
        state = s
        s = "a"
        s += "b"
        state += s
        s = [1]
        other = s
        s += [2]
        return other

    state = program.run(backend=ScriptedBackend())
    assert (state.text(), state.value) == ("ab", [1, 2])


def test_methods_are_programs() -> None:
    """A program that is a method sees its object, in both styles, compiled."""

    class Agent:
        name = "Ada"

        @ph.function
        def ask(self, s, question):
            s += f"{self.name}: {question}" + ph.gen("x")
            return s["x"]

        @ph.function(prompts={"p": "{{ word }} {{ self_name }}"})
        def say(self, word):
            return ph.gen("p", self_name=self.name)

    agent = Agent()
    assert agent.ask.run("why", backend=ScriptedBackend(["1"])).text() == "Ada: why1"
    assert agent.say.run(word="hi", backend=ScriptedBackend(["2"])).messages()[0]["content"] == (
        "hi Ada"
    )
    assert Agent.ask.graph.opaque == ()


def test_leaving_a_role_block_closes_its_message() -> None:
    """`return`, `break` and `continue` inside `with s.user()` close the message on their way."""

    @ph.function  # noqa: RET503 - the end without a return is one of the cases
    def program(s, how):
        for i in range(2):
            with s.user():
                s += f"{i}" + ph.gen("x")
                if how == "return":
                    return "returned"
                if how == "break":
                    break
                if how == "continue":
                    continue
                s += "end"

    for how, contents in {
        "return": ["0o"],
        "break": ["0o"],
        "continue": ["0o", "1o"],
        "none": ["0oend", "1oend"],
    }.items():
        state = program.run(how, backend=ScriptedBackend(lambda *_: "o"))
        assert [message["content"] for message in state.messages()] == contents
    assert program.graph.opaque == ()
