"""What a run's page is made of: the drawn graph, the rows, the spans, the panels."""

from __future__ import annotations

from dataclasses import replace

import pytest

import phloem as ph
from phloem.programs.testing import ScriptedBackend
from phloem.server.trace.reader import TraceNotFound
from phloem.server.trace.record import RunTrace
from phloem.server.trace.steps import Piece, Step
from phloem.server.viewer.graph import draw
from phloem.server.viewer.panels import Story
from phloem.server.viewer.spans import output_spans, prompt_view
from phloem.server.viewer.text import ms
from phloem.server.viewer.timeline import SCALE, ticks_of
from tests.server.viewer.samples import Events, exchange, run_of_events


@ph.function
def twice(s: ph.State, topic: str) -> str:
    s += ph.system("Be brief.")
    s += ph.user(topic)
    for _ in range(2):
        s += ph.assistant(ph.gen("said"))
        if s["said"] == "stop":
            s += ph.user("Stopped.")
            return "stopped"
    return s["said"]


def traced(program: ph.Program, replies: list[str], **arguments: object) -> RunTrace:
    """The trace of a real run on a scripted engine."""
    backend = ScriptedBackend(replies)
    state = program.run(stream=True, backend=backend, trace_values=True, **arguments)
    error = state.error()
    events = [event.to_json() for event in state.events]
    status = "failed" if error else "succeeded"
    return run_of_events(events, graph=program.graph.describe(), status=status)


def test_the_graph_shows_steps_and_leaves_markup_out() -> None:
    """Texts in a row are one node; what only opens or closes a message is none."""
    graph = draw(traced(twice, ["a", "b"], topic="t"))
    assert graph is not None
    assert [(node.kind, node.label) for node in graph.nodes] == [
        ("append", "system + user"),
        ("loop", "_ in range(2)"),
        ("gen", "said"),
        ("branch", "s['said'] == 'stop'"),
        ("append", "user"),
        ("return", "return 'stopped'"),
        ("return", "return s['said']"),
    ]


def test_the_taken_path_is_lit() -> None:
    """Nodes count how often they were passed; only edges that the run went along are taken."""
    graph = draw(traced(twice, ["a", "b"], topic="t"))
    assert graph is not None
    counts = [node.count for node in graph.nodes]
    assert counts == [1, 3, 2, 2, 0, 0, 1]
    assert sorted(edge.label for edge in graph.edges if not edge.taken) == ["", "true"]


def test_rows_follow_the_source_and_branches_are_lanes() -> None:
    """A branch's rows stand under its heading, where it split off, one level deeper."""
    events = Events()
    events.begin()
    events.gen("first", "a")
    events.add("forked", children=["0", "1"])
    events.gen("left", "b", path="0")
    events.gen("right", "c", path="1")
    events.add("forked", path="1", children=["1.0"])
    events.gen("deep", "d", path="1.0")
    events.add("joined", children=["0", "1"], failed=["1"])
    events.gen("last", "e")
    rows = Story(run_of_events(events.events)).rows
    assert [(row.depth, row.kind, row.label) for row in rows] == [
        (0, "gen", "first"),
        (0, "fork", "fork into 2"),
        (1, "lane", "branch 0"),
        (1, "gen", "left"),
        (1, "lane", "branch 1"),
        (1, "gen", "right"),
        (1, "fork", "fork into 1"),
        (2, "lane", "branch 1.0"),
        (2, "gen", "deep"),
        (0, "join", "join 2"),
        (0, "gen", "last"),
    ]
    assert [row.failed for row in rows if row.kind == "join"] == [True]


def test_bars_are_phases_within_the_width() -> None:
    """A step's bar is queue, prefill, decode and the rest, one after the other."""
    events = Events()
    events.begin()
    events.gen("a", "x")
    (row,) = Story(run_of_events(events.events)).rows
    assert [bar.phase for bar in row.bars] == ["queue", "prefill", "decode", "other"]
    for bar, following in zip(row.bars, row.bars[1:], strict=False):
        assert bar.x + bar.width <= following.x + 0.1 or bar.width == 3.0
    assert row.bars[-1].x + row.bars[-1].width <= SCALE + 3


@pytest.mark.parametrize("total", [0.001, 0.4, 3.0, 97.0, 1234.5, 600_000.0])
def test_the_axis_has_round_marks(total: float) -> None:
    """Between two and eleven marks, the first at zero, none beyond the end."""
    ticks = ticks_of(total)
    assert ticks[0] == (0, 0)
    assert len(ticks) <= 11
    assert all(0 <= place <= SCALE and at <= total for place, at in ticks)


def step(**fields: object) -> Step:
    known: dict[str, object] = {
        "path": "", "seq": 0, "kind": "gen", "name": "a", "node": None, "file": None,
        "line": None, "started_ms": 0.0,
    }  # fmt: skip
    return Step(**{**known, **fields})  # type: ignore[arg-type] # names are checked when it is made


def logprobs(*tokens: tuple[str, float]) -> tuple[dict[str, object], ...]:
    return tuple({"token": 1, "text": text, "logprob": value} for text, value in tokens)


def test_tokens_are_coloured_by_their_probability() -> None:
    """Each token is a span; a likely one is class 0, a surprise class 4."""
    spans = output_spans(step(text="ab c", logprobs=logprobs(("ab", -0.01), (" c", -3.0))))
    assert [(span.text, span.heat) for span in spans] == [("ab", 0), (" c", 4)]
    assert "5.0%" in spans[1].title


def test_a_token_that_begins_in_the_prompt_is_cut() -> None:
    """After a healed border the first token's text begins before the step's."""
    spans = output_spans(
        step(text="use it", logprobs=logprobs((" because"[3:], -1.0), (" it", -1.0)))
    )
    assert "".join(span.text for span in spans) == "use it"
    assert all(span.heat is not None for span in spans)


def test_probabilities_of_another_text_colour_nothing() -> None:
    """Where tokens and text don't fit, the text is shown plain."""
    spans = output_spans(step(text="abc", logprobs=logprobs(("xyz", -1.0))))
    assert [(span.text, span.heat) for span in spans] == [("abc", None)]


def test_forced_characters_are_marked_over_all_pieces() -> None:
    """Spans of forced tokens count within their own piece."""
    pieces = (
        Piece(text="ab", at_ms=0, forced_spans=((1, 2),)),
        Piece(text="cd", at_ms=0, forced_spans=((0, 1),)),
    )
    spans = output_spans(step(text="abcd", pieces=pieces))
    assert "".join(s.text for s in spans if s.forced) == "bc"
    assert "".join(s.text for s in spans) == "abcd"


def test_a_prompt_is_shaded_and_its_end_is_kept() -> None:
    """What is hidden is counted; the border between reused and computed stays in place."""
    view = prompt_view(step(prompt="0123456789", reused_chars=6), limit=8)
    assert (view.hidden, view.reused, view.computed) == (2, "2345", "6789")
    assert prompt_view(step(prompt="0123")).known is False


def test_variables_tell_what_changed_first() -> None:
    """New and changed variables come before those that stayed."""
    story = Story(run_of_events([]))
    before, after = {"same": 1, "x": 1}, {"same": 1, "x": 2, "y": 3}
    changes = story._step(step(before=before, after=after))["changes"]
    assert [(one.name, one.what) for one in changes] == [
        ("x", "changed"), ("y", "new"), ("same", ""),
    ]  # fmt: skip


def test_an_unknown_panel_is_refused() -> None:
    """A panel that the trace does not have is an error, whatever its name."""
    story = Story(run_of_events([]))
    for name in ("steps/0", "events/9", "nodes/0", "error", "x", "", "steps/-1"):
        with pytest.raises(TraceNotFound):
            story.panel(name)


def test_a_conversation_shows_each_message_once() -> None:
    """Of messages that were sent again only their number is told."""
    hello = {"role": "user", "content": "hello"}
    again = [hello, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "bye"}]
    run = RunTrace(
        id="conv_1", kind="conversation", started=1000.0, finished=1002.0, status="succeeded",
        exchanges=(exchange(0, [hello], "hi"), exchange(1, again, "ciao")),
    )  # fmt: skip
    turns = Story(run).turns
    assert [(turn.before, [s.text for s in turn.said]) for turn in turns] == [
        (0, ["hello"]), (1, ["hi", "bye"]),
    ]  # fmt: skip
    assert [turn.reply.text for turn in turns if turn.reply] == ["hi", "ciao"]
    assert [row.kind for row in Story(run).rows] == ["http", "http"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.1234, "0.12 ms"), (38.2, "38 ms"), (999.7, "1 s"), (61_000, "1 min 1 s")],
)
def test_times_are_short(value: float | None, text: str) -> None:
    """Three digits or so, in the unit that fits."""
    assert ms(value) == text


def test_a_steps_own_texts_are_those_since_the_step_before() -> None:
    """Markup is not among them; a retrieval or a tool between does not divide them."""

    @ph.tool
    def clock() -> str:
        return "noon"

    @ph.function
    def two(s: ph.State) -> None:
        s += ph.user("First.")
        s += ph.assistant("I say " + ph.gen("a"))
        s += ph.user("Second.")
        s += f"It is {clock()}." + ph.gen("b")

    steps = Story(traced(two, ["x", "y"])).steps
    assert [(step.kind, step.added) for step in steps] == [
        ("gen", ("First.", "I say ")),
        ("tool", ()),
        ("gen", ("Second.", "It is noon.")),
    ]


def test_what_can_not_be_rewound_says_why() -> None:
    """A kept trace, a run that goes on, and a step without an outcome each have their reason."""
    kept = traced(twice, ["a", "b"], topic="t")
    step = Story(kept).steps[0]
    assert "kept" in Story(kept).why_no_rewind(step)
    assert "goes on" in Story(replace(kept, finished=None)).why_no_rewind(step)
    assert "no outcome" in Story(kept, can_rewind=True).why_no_rewind(replace(step, seq=None))
    there = replace(kept, source="http://a:1")
    assert (Story(there).home, Story(there, can_rewind=True).home) == (
        "http://a:1/traces?run=run_1",
        None,
    )
