"""Programs in state style: text, roles, variables, scopes, retrieval, nested programs."""

from __future__ import annotations

import pytest

import phloem as ph
from phloem.errors import (
    CompileError,
    ProgramError,
    RetrievalError,
    TruncatedOutput,
    UnknownVariable,
    Unsupported,
)
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hits

from .conftest import FakeRetriever


def test_text_messages_and_prompt() -> None:
    """Roles become the chat format's tokens around text, and messages keep white space."""
    backend = ScriptedBackend(["Hi"])

    @ph.function
    def program(s, q):
        s += ph.system("Be kind.") + ph.user("  " + q)
        s += ph.assistant(ph.gen("a"))

    state = program.run("<|im_end|>?", backend=backend)
    assert state.messages() == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "  <|im_end|>?"},
        {"role": "assistant", "content": "Hi"},
    ]
    assert backend.prompts() == [
        "⟪<|im_start|>⟫system\nBe kind.⟪<|im_end|>⟫\n"
        "⟪<|im_start|>⟫user\n  <|im_end|>?⟪<|im_end|>⟫\n"
        "⟪<|im_start|>⟫assistant\n"
    ]
    assert state.text().endswith("<|im_start|>assistant\nHi<|im_end|>\n")


def test_role_forms_are_equal() -> None:
    """Whole roles, begin and end, `with s.user()` and `s.user(text)` say the same."""

    @ph.function
    def whole(s):
        s += ph.user("q")

    @ph.function
    def edges(s):
        s += ph.user_begin()
        s += "q"
        s += ph.user_end()

    @ph.function
    def block(s):
        with s.user():
            s += "q"

    @ph.function
    def method(s):
        s.user("q")

    runs = [p.run(backend=ScriptedBackend()) for p in (whole, edges, block, method)]
    assert len({run.text() for run in runs}) == 1
    assert all(run.messages() == [{"role": "user", "content": "q"}] for run in runs)


def test_roles_do_not_nest() -> None:
    """A message inside a message is refused, naming both."""

    @ph.function
    def program(s):
        s += ph.user(ph.assistant("x"))

    with pytest.raises(ProgramError, match="assistant message begins inside a user message"):
        program.run(backend=ScriptedBackend())


def test_default_system_message_of_the_template() -> None:
    """A template's default system message comes first unless the program has its own."""
    from dataclasses import replace

    from phloem.programs.testing import CHAT

    backend = ScriptedBackend(chat_format=replace(CHAT, default_system="Default."))

    @ph.function
    def program(s):
        s += ph.user("q")
        s += ph.user("r")

    state = program.run(backend=backend)
    assert [m["role"] for m in state.messages()] == ["system", "user", "user"]


def test_model_without_chat_format_refuses_roles() -> None:
    """Roles on a model that has no chat format are an error, not a made-up template."""

    @ph.function
    def program(s):
        s += ph.user("q")

    with pytest.raises(Unsupported, match="no chat format"):
        program.run(backend=ScriptedBackend(chat_format=None))


def test_var_scope_collects_text() -> None:
    """A scope's variable is the text appended inside it, generated text included."""

    @ph.function
    def program(s):
        s += "a"
        with s.var_scope("part"):
            s += "b" + ph.gen("x")
        s += "c"

    assert program.run(backend=ScriptedBackend(["X"]))["part"] == "bX"


def test_unknown_variable_is_a_key_error_with_a_hint() -> None:
    """Reading a variable that no step sets raises at once, inside and outside."""

    @ph.function
    def program(s):
        s += ph.gen("x")
        return s["y"]

    with pytest.raises(UnknownVariable, match="'y'") as caught:
        program.run(backend=ScriptedBackend(["1"]))
    assert isinstance(caught.value, KeyError)
    assert "'x'" in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, b"x", {"a": 1}, {"a"}, Hits(())])
def test_only_text_and_expressions_can_be_added(value: object) -> None:
    """Adding anything else is refused, naming its type."""

    @ph.function
    def program(s):
        s += value

    with pytest.raises(CompileError, match=type(value).__name__):
        program.run(backend=ScriptedBackend())


def test_retrieval_sets_its_variable_and_leaves_the_text(retriever: FakeRetriever) -> None:
    """`retrieve(name, query)` returns the hits, keeps them, and appends nothing."""

    @ph.function
    def program(s, q):
        docs = ph.retrieve("docs", q, index="handbook", k=2, min_score=0.1)
        s += ph.passages(docs, cite=True)
        return docs

    state = program.run("who", backend=ScriptedBackend(), retriever=retriever)
    assert state["docs"] == state.value == retriever.hits
    (query,) = retriever.queries
    assert (query.text, query.index, query.k, query.min_score) == ("who", "handbook", 2, 0.1)
    assert state.text() == "[1] alpha is first\n\n[2] beta is second"


def test_failed_retrieval_raises_its_own_error() -> None:
    """A retriever's error leaves run() as it is, with the place attached."""
    broken = FakeRetriever(error=RetrievalError("index on fire"))

    @ph.function
    def program(s):
        ph.retrieve("docs", "q")

    with pytest.raises(RetrievalError, match="index on fire") as caught:
        program.run(retriever=broken, backend=ScriptedBackend())
    assert caught.value.where is not None
    assert caught.value.where.node == "retrieve:docs"


def test_passages_fit_their_budget(retriever: FakeRetriever) -> None:
    """Passages are cut to the budget as the engine counts, worst first."""

    @ph.function
    def program(s):
        s += ph.passages(retriever.hits, max_tokens=30)

    assert program.run(backend=ScriptedBackend()).text() == "[1] alpha is first"


def test_schema_gives_values_and_regex_gives_text() -> None:
    """`schema=` and `type=` parse, SGLang's own arguments give text."""

    @ph.function
    def program(s):
        s += ph.gen("i", type=int, max_tokens=9)
        s += ph.gen_int("t")
        s += ph.gen("r", regex="[0-9]+")
        s += ph.gen("j", json_schema='{"type": "integer"}')

    state = program.run(backend=ScriptedBackend(["42", "7", "8", "9"]))
    assert [state[name] for name in "itrj"] == [42, "7", "8", "9"]


def test_truncated_structure_is_an_error_with_its_text() -> None:
    """A parsed value cut by max_tokens raises, with the text so far."""

    @ph.function
    def program(s):
        s += ph.gen("i", type=int, max_tokens=2)

    with pytest.raises(TruncatedOutput) as caught:
        program.run(backend=ScriptedBackend(["12345"]))
    assert caught.value.details["text"] == "12"


def test_a_structure_that_a_stop_text_cut_is_an_error() -> None:
    """A parsed value that ends before a stop text raises, even where what is left can be parsed."""

    @ph.function
    def program(s):
        s += ph.gen("i", type=int, stop="34")

    with pytest.raises(TruncatedOutput, match="'34'") as caught:
        program.run(backend=ScriptedBackend(["12345"]))
    assert caught.value.details["text"] == "12"


def test_several_samples_are_a_list() -> None:
    """`gen(n=3)` gives three values; the text goes on with the first."""
    backend = ScriptedBackend(["a", "b", "c", "d"])

    @ph.function
    def program(s):
        s += "x" + ph.gen("x", n=3) + "y" + ph.gen("y")

    state = program.run(backend=backend)
    assert state["x"] == ["a", "b", "c"]
    assert state.text() == "xayd"
    assert backend.prompts()[-1] == "xay"
    assert len(state.get_meta_info("x")) == 3


def test_samples_of_the_run_are_the_steps_default() -> None:
    """`run(n=2)` gives every step that says nothing two samples."""

    @ph.function
    def program(s):
        s += ph.gen("x") + ph.gen("y", n=1)

    state = program.run(n=2, backend=ScriptedBackend(["a", "b", "c"]))
    assert (state["x"], state["y"]) == (["a", "b"], "c")


def test_run_options_are_defaults_for_steps() -> None:
    """Sampling arguments of run() hold unless the step says otherwise; SGLang's defaults rule
    the rest."""
    backend = ScriptedBackend(["a", "b"])

    @ph.function
    def program(s):
        s += ph.gen("a", temperature=0.5)
        s += ph.gen("b", max_tokens=7, stop="!")

    program.run(backend=backend, temperature=0, max_new_tokens=9, stop=["?"], seed=3)
    first, second = [call.params for call in backend.calls if call.kind == "generate"]
    assert first is not None
    assert second is not None
    assert (first.temperature, first.max_tokens, first.stop) == (0.5, 9, ("?",))
    assert (second.temperature, second.max_tokens, second.stop) == (0, 7, ("!",))
    assert first.seed == second.seed == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"top_p": 2},
        {"max_tokens": "many"},
        {"n": 0},
        {"nonsense": 1},
        {"regex": "a", "json_schema": "{}"},
        {"choices": []},
        {"choices": ["a", 3]},
    ],
)
def test_bad_arguments_of_gen_are_refused(bad: dict) -> None:
    """Every wrong argument is one clear error before the engine is asked."""
    backend = ScriptedBackend(["a"])

    @ph.function
    def program(s):
        s += ph.gen("a", **bad)

    with pytest.raises(ph_errors()):
        program.run(backend=backend)
    assert backend.steps == 0


def ph_errors() -> tuple[type[Exception], ...]:
    from phloem.errors import ConstraintError

    return (CompileError, ConstraintError)


def test_nested_program_on_its_own_session() -> None:
    """Inside a program, `other(...)` runs on a fresh session and returns its state."""
    backend = ScriptedBackend(["in", "out"])

    @ph.function
    def inner(s, word):
        s += word + ph.gen("x")
        return s["x"]

    @ph.function
    def outer(s):
        s += "A"
        state = inner(word="w", temperature=0)
        s += state["x"] + state.value + ph.gen("y")
        return state.text()

    state = outer.run(backend=backend)
    assert state.value == "win"
    assert state.text() == "Aininout"
    assert backend.prompts() == ["w", "Ainin"]
    assert [n.kind for n in outer.graph.nodes.values()][1] == "call"


def test_nested_program_on_the_same_state() -> None:
    """`other(s, ...)` goes on with the caller's state and returns its value."""

    @ph.function
    def inner(s, word):
        s += word + ph.gen("x")
        return s["x"] * 2

    @ph.function
    def outer(s):
        s += "A"
        s += inner(s, "w")

    assert outer.run(backend=ScriptedBackend(["i"])).text() == "Awiii"


def test_runaway_recursion_ends() -> None:
    """Programs that call each other without end raise instead of exhausting the stack."""

    @ph.function
    def program(s):
        program(s)

    with pytest.raises(ProgramError, match="64 deep"):
        program.run(backend=ScriptedBackend())


def test_media_is_refused_by_name() -> None:
    """An engine without vision refuses images, naming its model; the graph accepts them."""

    @ph.function
    def program(s):
        s += ph.user(ph.image("a.png") + "What is it?")

    assert program.graph.opaque == ()
    with pytest.raises(Unsupported, match="'scripted' can't take an image"):
        program.run(backend=ScriptedBackend())


def test_reasoning_is_kept_apart() -> None:
    """The reasoning block is its own variable; text before the step stays in text()."""
    answer = "<think>\nhm\n</think>\n\n4"

    @ph.function
    def program(s):
        s += ph.user("2+2?")
        s += ph.assistant("Answer: " + ph.separate_reasoning(ph.gen("a"), model_type="qwen3"))

    state = program.run(backend=ScriptedBackend([answer]))
    assert state["a"] == "4"
    assert state["a_reasoning_content"] == "hm"
    assert state.messages()[-1]["content"] == "Answer: 4"
    assert "Answer: " + answer in state.text()


def test_bind_fixes_arguments_once() -> None:
    """Bound arguments are used, and giving one again is refused."""

    @ph.function(num_api_spec_tokens=64)
    def program(s, a, b):
        s += a + b

    bound = program.bind(b="2")
    assert bound.num_api_spec_tokens == 64
    assert bound.run("1", backend=ScriptedBackend()).text() == "12"
    for call in (lambda: bound.run("1", b="3"), lambda: bound.bind(b="3")):
        with pytest.raises(CompileError, match="'b'"):
            call()
    with pytest.raises(CompileError, match="no parameter 'c'"):
        program.bind(c=1)


def test_missing_and_unknown_arguments() -> None:
    """A call that does not fit the signature is one clear error."""

    @ph.function
    def program(s, question):
        s += question

    with pytest.raises(CompileError, match="question"):
        program.run(backend=ScriptedBackend())
    with pytest.raises(CompileError, match="'qestion'"):
        program.run(qestion="x")
