"""What the compiler makes of programs: nodes, edges, lines, constraints, opaque parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

import phloem as ph
from phloem.errors import CompileError
from phloem.programs.graph import StateGraph
from phloem.programs.nodes import Append, Gen, Python, Select


class Answer(BaseModel):
    answer: str
    sources: list[int]
    confidence: Literal["low", "medium", "high"]


@ph.function
def support(s, question: str):
    s += ph.system("You are a support agent.")
    s += ph.user(question)
    s += ph.assistant("Intent: " + ph.select("intent", ["lookup", "smalltalk"]))
    if s["intent"] == "lookup":
        docs = ph.retrieve("docs", question, index="handbook", k=4)
        s += ph.user(ph.passages(docs, max_tokens=600))
        s += ph.assistant(ph.gen("answer", schema=Answer, max_tokens=200))
    else:
        s += ph.assistant(ph.gen("answer", max_tokens=64))
    s += ph.user("Verdict?")
    s += ph.assistant(ph.gen("verdict", regex=r"(yes|no), because [a-z ,]{10,60}\."))
    return s["answer"]


@ph.function(
    prompts={
        "classify_intent": "Classify: {{ user_query }}",
        "answer_with_docs": "{{ docs }}\nAnswer: {{ user_query }}",
        "default_reply": "Reply to {{ user_query }}",
    }
)
def multi_step_rag(user_query: str):
    intent = ph.gen("classify_intent", max_tokens=10, choices=["query_knowledge", "chat"])
    if intent == "query_knowledge":
        docs = ph.retrieve(user_query)
        answer = ph.gen("answer_with_docs", docs=docs, max_tokens=256)
    else:
        answer = ph.gen("default_reply", max_tokens=128)
    return answer


def kinds(program: ph.Program) -> list[str]:
    return [node.kind for node in program.graph.nodes.values()]


def test_state_style_demo_is_fully_compiled() -> None:
    """The five-step demo becomes steps, branches and appends, with nothing opaque."""
    assert support.graph.opaque == ()
    assert not any(isinstance(node, Python) for node in support.graph.nodes.values())
    assert kinds(support) == [
        *("append", "append", "append", "select", "append", "branch"),
        *("retrieve", "append", "append", "gen", "append"),
        *("append", "gen", "append"),
        *("append", "append", "gen", "append", "return"),
    ]


def test_value_style_demo_is_fully_compiled() -> None:
    """The article's program becomes two steps and a retrieval around one branch."""
    assert kinds(multi_step_rag) == ["select", "branch", "retrieve", "gen", "gen", "return"]
    assert multi_step_rag.graph.opaque == ()
    assert multi_step_rag.check() == []


def test_nodes_know_their_source() -> None:
    """Every node has the file and the line of the code it comes from."""
    first = support.function.__code__.co_firstlineno
    assert {node.file for node in support.graph.nodes.values()} == {__file__}
    lines = [node.line - first for node in support.graph.nodes.values()]
    assert lines == [2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8, 10, 10, 10, 11, 12, 12, 12, 13]


def test_nodes_know_constraint_prefix_reads_and_writes() -> None:
    """A step knows its constraint, the constant text before it, and its variables."""
    nodes = support.graph.nodes
    intent, verdict = nodes["select:intent"], nodes["gen:verdict"]
    assert isinstance(intent, Select)
    assert isinstance(verdict, Gen)
    assert intent.prefix == "Intent: "
    assert intent.choices == ("lookup", "smalltalk")
    assert verdict.constraint is not None
    assert verdict.constraint.kind == "regex"
    assert nodes["retrieve:docs"].reads == ("question",)
    assert nodes["retrieve:docs"].writes == ("docs",)
    first = nodes[support.graph.entry]
    assert isinstance(first, Append)
    assert (first.role, first.text) == ("system", "You are a support agent.")


def test_constant_prefix_ends_at_the_first_unknown_text() -> None:
    """What every run begins with is known up to the first argument."""
    assert support.graph.constant_prefix() == (
        ("begin", "system"),
        ("text", "You are a support agent."),
        ("end", "system"),
        ("begin", "user"),
    )


def test_json_round_trip() -> None:
    """A graph of steps alone goes to JSON text and back unchanged."""
    for program in (support, multi_step_rag):
        graph = program.graph
        again = StateGraph.from_json(json.loads(json.dumps(graph.to_json())))
        assert again == graph


def test_json_refuses_python_nodes() -> None:
    """Plain statements mean nothing outside their module, so their graph has no JSON."""

    @ph.function
    def program(s):
        x = len("abc")
        s += str(x)

    with pytest.raises(CompileError, match="Python node"):
        program.graph.to_json()
    assert program.graph.describe()["nodes"][0]["kind"] == "python"


def test_mermaid_shows_every_node_and_labelled_edge() -> None:
    """The drawing has a line for every node and every edge, and escapes quotes."""
    drawing = support.graph.to_mermaid()
    assert drawing.startswith("flowchart TD\n")
    lines = drawing.strip().split("\n")
    assert len(lines) == 2 + len(support.graph.nodes) + len(support.graph.edges)
    assert '-->|"true"|' in drawing
    assert '""' not in drawing


def test_step_in_a_condition_is_lifted() -> None:
    """`if gen(...) == "yes"` is a step and a branch."""

    @ph.function(prompts={"x": "?"})
    def program():
        if ph.gen("x", choices=["yes", "no"]) == "yes":
            return 1
        return 2

    assert kinds(program) == ["select", "branch", "return", "return"]


def test_loops_are_nodes() -> None:
    """`for` and `while` with steps become loop heads with next and done edges."""

    @ph.function
    def program(s, items):
        for item in items:
            s += item + ph.gen("x")
            if s["x"] == "stop":
                break
        while len(s["x"]) < 3:
            s += ph.gen("x")
        return s["x"]

    assert kinds(program) == [
        *("python", "loop", "append", "gen", "branch"),
        *("loop", "gen", "return"),
    ]
    labels = sorted(e.label for e in program.graph.edges if e.source.startswith("loop"))
    assert labels == ["done", "done", "next", "next"]


def test_additions_to_all_branches_are_steps() -> None:
    """`forks += ...`, by expression or by a function of the index, is a node of its step."""

    @ph.function
    def program(s):
        forks = s.fork(2)
        forks += "same"
        forks += ph.gen("x")
        forks += lambda i: f"{i}" + ph.select("y", ["a", "b"])
        forks[0] += "only" + ph.gen("z")
        forks.join()

    assert program.graph.opaque == ()
    assert [node.id.split(":")[0] for node in program.graph.nodes.values()] == [
        *("fork", "python", "gen", "select", "append", "gen", "join", "return")
    ]


def test_with_role_blocks_are_appends() -> None:
    """`with s.user():` opens and closes a message around the nodes of its body."""

    @ph.function
    def program(s):
        with s.user():
            s += "Hi"
        with s.assistant():
            s += ph.gen("x")

    assert kinds(program) == [*["append"] * 3, "append", "gen", "append", "return"]


@pytest.mark.parametrize("kind", ["try", "helper", "comprehension", "frame", "no source"])
def test_opaque_parts_say_why(kind: str) -> None:
    """What the compiler can't see into is one Python node with a reason."""

    def helper(s):
        s += ph.gen("x")

    def with_try(s):
        try:
            s += ph.gen("x")
        finally:
            pass

    def with_helper(s):
        helper(s)

    def with_comprehension(s):
        s += [ph.gen(f"x{i}") for i in range(2)]

    def with_frame(s):
        s += ph.gen("x")
        return locals()

    space: dict = {"ph": ph}
    exec("def without(s):\n    s += ph.gen('x')", space)
    function, reason = {
        "try": (with_try, "a step inside try"),
        "helper": (with_helper, "the helper helper takes the state"),
        "comprehension": (with_comprehension, "nested function, lambda or comprehension"),
        "frame": (with_frame, "locals"),
        "no source": (space["without"], "source is not available"),
    }[kind]
    (opaque,) = ph.function(function).graph.opaque
    assert reason in opaque.reason


def test_changed_files_are_not_compiled(tmp_path: Path) -> None:
    """A function whose file was edited after its import is one opaque node, and says so."""
    file = tmp_path / "program.py"
    text = "import phloem as ph\n\ndef program(s):\n    s += 'a' + ph.gen('x')\n    return 1\n"
    file.write_text(text)
    space: dict = {}
    exec(compile(text, str(file), "exec"), space)
    assert ph.function(space["program"]).graph.opaque == ()
    file.write_text(text.replace("    return 1", "    return s['x'] + 'edited'"))
    (opaque,) = ph.function(space["program"]).graph.opaque
    assert "changed since it was imported" in opaque.reason


def test_check_finds_what_is_wrong_before_a_run() -> None:
    """Bad regex, empty choices, unknown templates, double names and dead code are findings."""

    @ph.function  # noqa: RET503 - what follows the return is the case
    def program(s):
        s += ph.gen("a", regex="(")
        s += ph.select("b", [])
        s += ph.gen("a")
        return s["a"]
        s += "never"

    found = {finding.code: finding for finding in program.check()}
    first = program.function.__code__.co_firstlineno
    assert {code: f.line - first for code, f in found.items()} == {
        "P001": 2,
        "P005": 3,
        "P002": 4,
        "P006": 6,
    }

    @ph.function(prompts={"known": "x"})
    def valued():
        return ph.gen("unknown")

    (finding,) = valued.check()
    assert (finding.code, finding.severity) == ("P008", "error")
    assert finding.to_github().startswith("::error file=")
