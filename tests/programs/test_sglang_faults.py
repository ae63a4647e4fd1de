"""The faults of SGLang's frontend that were seen by trying (F1 to F30) are not repeated here.

Tests of the remaining numbers live where their subject does: F1, F3 test_failures.py; F4 to F6
test_batch.py; F15, F16 test_fork.py; F19 test_streaming.py; F25 test_state_style.py.
"""

from __future__ import annotations

import threading

import pytest

import phloem as sgl
from phloem.errors import CompileError, ConstraintError, EngineError, Unsupported
from phloem.programs.testing import ScriptedBackend


def engine(*outputs: str) -> ScriptedBackend:
    return ScriptedBackend(list(outputs))


def test_f2_reading_after_a_failure_returns() -> None:
    """F2: after a failed step and more appends, every read raises the step's error."""

    @sgl.function
    def program(s):
        s += sgl.gen("x")
        s.sync()
        s += "more" + sgl.gen("y")

    backend = ScriptedBackend(["1"], faults={0: EngineError("boom")})
    state = program.run(stream=True, backend=backend)
    for read in (state.text, state.messages, lambda: state["y"], lambda: state["x"]):
        with pytest.raises(EngineError, match="boom"):
            read()


def test_f7_tracing_does_not_reach_other_threads() -> None:
    """F7: one thread's trace() leaves a program that another thread runs alone."""

    @sgl.function
    def program(s):
        s += sgl.gen("x")

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(program.run(backend=engine("a")).text()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
        program.trace()
    for thread in threads:
        thread.join()
    assert results == ["a"] * 4


def test_f8_trace_sees_scopes_roles_forks_and_both_arms() -> None:
    """F8: the graph holds var_scope, `with s.user()`, forks, and both arms of a branch."""

    @sgl.function
    def program(s):
        with s.user(), s.var_scope("q"):
            s += "hi"
        forks = s.fork(2)
        forks.join()
        if s["q"] == "hi":
            s += sgl.gen("a")
        else:
            s += sgl.gen("b")

    kinds = [node.kind for node in program.trace().nodes.values()]
    assert {"fork", "join", "branch"} <= set(kinds)
    assert kinds.count("gen") == 2


def test_f11_stop_lists_are_not_changed() -> None:
    """F11: the caller's stop list is the same after any number of runs."""
    stops = ["!"]

    @sgl.function
    def program(s):
        s += sgl.user("q")
        s += sgl.assistant(sgl.gen("x", stop=stops))

    for _ in range(3):
        assert program.run(backend=engine("a!b"))["x"] == "a"
    assert stops == ["!"]


def test_f12_gen_int_takes_a_stop_text() -> None:
    """F12: gen_int(stop=".") adds its stop to those of the type."""
    backend = engine("12.5")

    @sgl.function
    def program(s):
        s += sgl.gen_int("x", stop=".")

    assert program.run(backend=backend)["x"] == "12"
    params = next(call.params for call in backend.calls if call.kind == "generate")
    assert params is not None
    assert params.stop == (".", " ", "\n")


def test_f13_samples_are_a_list_and_keep_the_first() -> None:
    """F13: n=2 gives two texts; the state's text goes on with the first."""

    @sgl.function
    def program(s):
        s += sgl.gen("x", n=2)

    state = program.run(backend=engine("a", "b"))
    assert (state["x"], state.text()) == (["a", "b"], "a")


def test_f14_concate_and_append_works() -> None:
    """F14: the appending join needs no server route and never hangs."""

    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += str
        forks.join("concate_and_append")
        s += "end"

    assert program.run(backend=engine()).text() == "01end"


def test_f17_unnamed_steps_share_nothing() -> None:
    """F17: two unnamed steps both append, and set no variable."""

    @sgl.function
    def program(s):
        s += sgl.gen() + "-" + sgl.gen()

    state = program.run(backend=engine("a", "b"))
    assert (state.text(), state.variables()) == ("a-b", {})


def test_f18_contains_waits() -> None:
    """F18: `name in state` waits for the step that may set it."""

    @sgl.function
    def program(s):
        (fork,) = s.fork(1)
        fork += "x" + sgl.gen("a")
        return "a" in fork, "b" in fork

    state = program.run(stream=True, backend=engine("1"))
    assert state.value == (True, False)
    assert "a" not in state


def test_f20_async_bodies_run() -> None:
    """F20: an `async def` program runs."""

    @sgl.function
    async def program(s):
        s += "a" + sgl.gen("x")

    assert program.run(backend=engine("b")).text() == "ab"


def test_f21_images_are_refused_by_name_however_many() -> None:
    """F21: two images are one clear refusal of an engine without vision."""

    @sgl.function
    def program(s):
        s += sgl.image("a.png") + sgl.image("b.png")

    with pytest.raises(Unsupported, match="image"):
        program.run(backend=engine())


def test_f22_choices_take_a_temperature() -> None:
    """F22: gen(choices=, temperature=0.7) samples instead of failing an assertion."""

    @sgl.function
    def program(s):
        s += sgl.gen("x", choices=["a", "b"], temperature=0.7)

    assert program.run(backend=engine())["x"] in {"a", "b"}


def test_f23_two_constraints_are_refused_before_the_engine() -> None:
    """F23: regex and json_schema together are an error that names both."""

    @sgl.function
    def program(s):
        s += sgl.gen("x", regex="a", json_schema="{}")

    with pytest.raises(ConstraintError, match=r"regex=, json_schema="):
        program.run(backend=engine("a"))


def test_f24_json_schema_takes_a_dict_or_text() -> None:
    """F24: a schema given as a dict is the same constraint as its JSON text."""
    backend = engine("1", "1")

    @sgl.function
    def program(s):
        s += sgl.gen("x", json_schema={"type": "integer"})
        s += sgl.gen("y", json_schema='{"type": "integer"}')

    program.run(backend=backend)
    first, second = [call.constraint for call in backend.calls if call.kind == "generate"]
    assert first == second
    assert first is not None


def test_f26_two_turns_keep_the_system_message() -> None:
    """F26: the system message is in every turn's prompt."""
    backend = engine("a", "b")

    @sgl.function
    def program(s):
        s += sgl.system("RULES")
        for i in range(2):
            s += sgl.user(str(i))
            s += sgl.assistant(sgl.gen(f"x{i}"))

    program.run(backend=backend)
    assert all("RULES" in prompt for prompt in backend.prompts())


@pytest.mark.parametrize("outside", [True, False])
def test_f27_reasoning_leaves_the_rest_of_the_message(outside: bool) -> None:
    """F27: text before the step and the role's suffix stay, in both forms."""

    @sgl.function
    def program(s):
        if outside:
            s += sgl.separate_reasoning(
                sgl.assistant("Answer: " + sgl.gen("x")), model_type="deepseek-r1"
            )
        else:
            s += sgl.assistant(
                "Answer: " + sgl.separate_reasoning(sgl.gen("x"), model_type="deepseek-r1")
            )

    state = program.run(backend=engine("<think>hm</think>4"))
    assert state.text().endswith("Answer: <think>hm</think>4<|im_end|>\n")
    assert state.messages() == [{"role": "assistant", "content": "Answer: 4"}]
    assert (state["x"], state["x_reasoning_content"]) == ("4", "hm")


def test_f28_white_space_of_messages_is_kept() -> None:
    """F28: leading spaces of a message are the user's."""

    @sgl.function
    def program(s):
        s += sgl.user("   indented")

    assert program.run(backend=engine()).messages()[0]["content"] == "   indented"


def test_f9_f10_bind_keeps_settings_and_refuses_conflicts() -> None:
    """F9, F10: bind keeps the decorator's settings, never wins silently, changes no dict."""

    @sgl.function(num_api_spec_tokens=64)
    def program(s, q):
        s += q

    bound = program.bind(q="a")
    assert bound.num_api_spec_tokens == 64
    rows = [{"q": "b"}]
    (state,) = bound.run_batch(rows, backend=engine())
    assert isinstance(state.error(), CompileError)
    assert rows == [{"q": "b"}]


def test_f30_groups_have_a_length_and_take_text() -> None:
    """F30: len(forks) and `forks += "text"` work."""

    @sgl.function
    def program(s):
        forks = s.fork(3)
        forks += "same"
        return len(forks), [fork.text() for fork in forks]

    assert program.run(backend=engine()).value == (3, ["same"] * 3)
