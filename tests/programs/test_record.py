"""Records: replay without an engine, resume, rewind, and what does not match."""

from __future__ import annotations

import json
from typing import Any

import pytest

import phloem as ph
from phloem.errors import EngineError, JournalError, NonDeterminism, ProgramError
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits

from .conftest import FakeRetriever, effects

calls: list[str] = []


@ph.function
def program(s, question: str, limit: int = 2):
    s += ph.user(question)
    s += ph.assistant(ph.select("kind", ["a", "b"]))
    docs = ph.retrieve("docs", question)
    s += ph.user(ph.passages(docs))
    forks = s.fork(limit)
    forks += lambda i: ph.assistant(f"{i}" + ph.gen("part"))
    forks.join()
    s += ph.assistant("Sum: " + ph.gen("sum"))
    return s["kind"], s["part"], s["sum"]


def engine(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(lambda prompt, *_: f"<{len(prompt)}>", **options)


def recorded(backend: ScriptedBackend | None = None) -> ph.ProgramState:
    return program.run(
        "why", backend=backend or engine(), retriever=FakeRetriever("x", "y"), record=True
    )


class Nothing:
    """An engine or retriever that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


def test_a_record_is_plain_json() -> None:
    """A record goes through JSON text unchanged, effects of all branches included."""
    record = recorded().record()
    assert json.loads(json.dumps(record)) == json.loads(json.dumps(record))
    kinds = {p: [e["kind"] for e in entries] for p, entries in record["entries"].items()}
    assert kinds == {"": ["select", "retrieve", "gen"], "0": ["gen"], "1": ["gen"]}


def test_sampling_arguments_are_part_of_the_record() -> None:
    """A replay asks every step with the arguments that the run had."""

    @ph.function
    def sampled(s):
        s += ph.gen("x") + ph.gen("y")

    state = sampled.run(
        backend=engine(), record=True, temperature=0, max_new_tokens=9, stop=["!"], n=2
    )
    again = sampled.replay(json.loads(json.dumps(state.record())))
    assert again["x"] == state["x"]
    assert len(again["x"]) == 2


def test_replay_needs_no_engine() -> None:
    """A replay has the same value, text and events, with neither engine nor services."""
    state = recorded()
    record = json.loads(json.dumps(state.record()))
    from phloem.programs import registry

    registry.set_default("backend", Nothing())
    registry.set_default("retriever", Nothing())
    try:
        again = program.replay(record)
    finally:
        registry.reset("backend")
        registry.reset("retriever")
    assert again.value == state.value
    assert again.text() == state.text()

    def told(run: ph.ProgramState) -> list[Any]:
        # A replay brings no tokens piece by piece, measures nothing, and says what it is.
        return [
            [pair for pair in effect if pair[0] not in {"miss", "at", "replayed"}]
            for effect in effects(run)
            if ("type", "'token'") not in effect
        ]

    assert told(again) == told(state)


@pytest.mark.parametrize("crash", range(4))
def test_resume_after_a_crash(crash: int) -> None:
    """A run that failed at any step goes on from its record and gives what it would have."""
    whole = recorded()
    stream = program.stream(
        "why",
        backend=engine(faults={crash: EngineError("crash")}),
        retriever=FakeRetriever("x", "y"),
        record=True,
    )
    with pytest.raises(EngineError):
        list(stream)
    record = json.loads(json.dumps(stream.state.record()))
    done = sum(map(len, record["entries"].values()))
    backend = engine()
    state = program.resume(record, backend=backend, retriever=FakeRetriever("x", "y"))
    assert state.value == whole.value
    assert state.text() == whole.text()
    assert sum(map(len, state.record()["entries"].values())) == 5
    asked = sum(call.kind in {"generate", "score"} for call in backend.calls)
    retrieved = 0 if crash else 1
    assert asked + done + retrieved == 5


def test_resume_starts_from_the_recorded_tokens() -> None:
    """A resumed session begins with the recorded token ids, not with text read anew."""
    record = recorded().record()
    del record["entries"][""][-1]
    backend = engine()
    program.resume(record, backend=backend, retriever=FakeRetriever("x", "y"))
    restored = [call.data for call in backend.calls if call.kind == "restore"]
    assert restored
    assert not any(call.kind == "open" for call in backend.calls)


@pytest.mark.parametrize("steps", range(1, 7))
def test_resume_on_a_real_engine_gives_the_same_text(steps: int) -> None:
    """Cut after any effect, a sampled run resumed on a real engine ends as the whole one did."""
    from phloem.runtime.embedded import EmbeddedBackend
    from phloem.runtime.model.tiny import tiny_model

    @ph.function
    def sampled(s):
        s += ph.user("Hello") + ph.assistant("A: " + ph.select("a", ["x y", "zz"]))
        s += " and " + ph.gen("b", max_tokens=5, n=2)
        forks = s.fork(2)
        forks += lambda i: f"branch {i}:" + ph.gen("c", max_tokens=5)
        forks.join()
        s += "then " + ph.select("d", ["one", "two"], temperature=1.0)
        s += ph.gen("e", max_tokens=5)
        return s["a"], s["b"], s["c"], s["d"], s["e"]

    backend = EmbeddedBackend(tiny_model())
    options = {"backend": backend, "ignore_eos": True}
    whole = sampled.run(seed=11, record=True, **options)
    record = whole.record()
    for entries in record["entries"].values():
        entries[:] = [entry for entry in entries if entry["order"] < steps]
    again = sampled.resume(json.loads(json.dumps(record)), **options)
    assert again.value == whole.value
    assert again.text() == whole.text()
    from phloem.programs.executor import loop

    loop.call(backend.aclose())


def test_rewind_changes_one_value() -> None:
    """Rewinding sets one step's value and runs what comes after anew."""
    state = recorded()
    backend = engine()
    other = program.rewind(
        state.record(), "kind", set={"kind": "b"}, backend=backend, retriever=FakeRetriever("z")
    )
    assert other["kind"] == "b"
    assert "[1] z" in other.text()
    assert not any(call.kind == "score" for call in backend.calls)
    part = program.rewind(
        state.record(), ("1", 0), set={"part": "NEW"}, backend=engine(), retriever=Nothing()
    )
    assert part["part"] == [state["part"][0], "NEW"]
    docs = program.rewind(
        state.record(), "docs", set={"docs": Hits((Hit("1", "set", 1.0),))}, backend=engine()
    )
    assert "[1] set" in docs.text()


def test_rewind_to_unknown_places() -> None:
    """An address or variable that the record does not have is one clear error."""
    record = recorded().record()
    for at, values in (("nope", {}), (("", 9), {}), ("kind", {"sum": "x"})):
        with pytest.raises(JournalError):
            program.rewind(record, at, set=values)


@pytest.mark.parametrize("at", [3, None, ("",), ("", "gen"), ("", 99), {"name": "kind"}])
def test_what_is_no_place_is_refused(at: Any) -> None:
    """A rewind to what names no effect says which effects there are."""
    with pytest.raises(JournalError, match="has no effect") as caught:
        program.rewind(recorded().record(), at, backend=engine())
    assert "select kind" in str(caught.value.hint)


@pytest.mark.parametrize("spoil", [None, [], "text", "entries", "program", "kind"])
def test_what_is_no_record_is_refused(spoil: Any) -> None:
    """Anything else than a whole record is a `JournalError`, whatever is wrong with it."""
    given = spoil
    if spoil in ("entries", "program"):
        given = {key: part for key, part in recorded().record().items() if key != spoil}
    elif spoil == "kind":
        given = json.loads(json.dumps(recorded().record()))
        del given["entries"][""][0]["kind"]
    with pytest.raises(JournalError, match="record"):
        program.replay(given)


def test_a_changed_program_is_noticed() -> None:
    """Another program, other arguments and more effects than recorded are NonDeterminism."""

    def make(text: str, extra: bool) -> ph.Program:
        @ph.function(name="p")
        def inner(s, word):
            s += text + word + ph.gen("x")
            if extra:
                s += ph.gen("y")

        return inner

    record = make("a", False).run("w", backend=engine(), record=True).record()
    assert make("a", False).replay(record).text() == "aw<2>"
    with pytest.raises(NonDeterminism, match="request"):
        make("b", False).replay(record, changed=True)
    with pytest.raises(NonDeterminism, match="ends after 1 effects"):
        make("a", True).replay(record, changed=True)
    assert make("a", True).resume(record, changed=True, backend=engine()).text() == "aw<2><5>"

    @ph.function
    def different(s, word):
        s += word

    with pytest.raises(NonDeterminism, match="another version"):
        different.replay(record)


def test_a_record_belongs_to_its_model() -> None:
    """Resuming on another model is refused before any step."""
    record = recorded().record()
    del record["entries"][""][-1]
    other = engine(limits={"fingerprint": "another"})
    with pytest.raises(NonDeterminism, match="another model"):
        program.resume(record, backend=other, retriever=FakeRetriever())
    assert other.steps == 0


def test_hash_follows_helpers_and_prompts_not_lines() -> None:
    """The identity changes with code, helpers and prompts, and not with their place."""
    from .test_semantics import load

    def identity(source: str, prompts: dict[str, str] | None = None) -> str:
        return ph.function(prompts=prompts)(load(source)).identity()

    base = "def helper():\n    return 1\n\ndef program(q):\n    return helper()\n"
    assert identity(base) == identity("\n\n# moved\n" + base)
    assert identity(base) != identity(base.replace("return 1", "return 2"))
    assert identity(base) != identity(base, {"x": "y"})


def test_same_seed_same_run() -> None:
    """A run's seed decides its choices and is drawn once if it is not given."""
    first = program.run("q", backend=engine(), retriever=FakeRetriever("x"), record=True)
    seed = first.record()["seed"]
    second = program.run(
        "q", backend=engine(), retriever=FakeRetriever("x"), record=True, seed=seed
    )
    entries = [
        {p: [(e["request"], e["outcome"]) for e in es] for p, es in s.record()["entries"].items()}
        for s in (first, second)
    ]
    for path in entries[0]:
        if path != "":  # the trunk holds measured times
            assert entries[0][path] == entries[1][path]
    assert first.value == second.value


def test_unrecorded_runs_have_no_record() -> None:
    """Asking for the record of a run that kept none says how to keep one."""
    state = program.run("q", backend=engine(), retriever=FakeRetriever("x"))
    with pytest.raises(ProgramError, match="record=True"):
        state.record()


def test_step_cache_answers_greedy_and_seeded_steps() -> None:
    """With a store, an equal greedy or seeded step is not asked again; a free one is."""

    @ph.function
    def steps(s, word):
        s += word + ph.gen("x")
        s += ph.gen("y", max_tokens=3)

    store: dict[str, Any] = {}
    backend = engine()
    texts = {
        steps.run("w", backend=backend, temperature=0, step_cache=store).text() for _ in range(3)
    }
    assert (len(texts), backend.steps) == (1, 2)
    steps.run("w", backend=backend, seed=1, step_cache=store)
    steps.run("w", backend=backend, seed=1, step_cache=store)
    assert backend.steps == 4
    steps.run("w", backend=backend, step_cache=store)
    assert backend.steps == 6
    assert json.loads(json.dumps(store)) == store


@pytest.mark.parametrize("delivered", [0, 2])
def test_handled_failures_are_part_of_the_record(delivered: int) -> None:
    """An error that the program handled is raised again by a replay, with its class, after
    the text that had come before it."""

    @ph.tool
    def fragile(n: int) -> int:
        if n == 1:
            raise ValueError("one is bad")
        return n

    @ph.function
    def program(s):
        found = []
        for n in range(3):
            try:
                found.append(fragile(n))
            except ValueError as error:
                found.append(str(error))
        try:
            s += "a" + ph.gen("x")
        except EngineError as error:
            s += error.message
        forks = s.fork(2)
        forks += lambda i: str(i) + ph.gen("y")
        forks.join(on_error="keep")
        return found, [type(y).__name__ for y in s["y"]]

    faults = {0: EngineError("boom"), 2: EngineError("bang")}
    state = program.run(backend=engine(faults=faults, fault_after=delivered), record=True)
    assert state.value == ([0, "one is bad", 2], ["str", "EngineError"])
    record = json.loads(json.dumps(state.record()))
    again = program.replay(record)
    assert (again.value, again.text()) == (state.value, state.text())


def test_an_error_that_ended_the_run_is_tried_again() -> None:
    """The failure a run died of is not in its record, so resuming tries the effect anew."""

    @ph.function
    def program(s):
        s += ph.gen("x") + ph.gen("y")

    stream = program.stream(backend=engine(faults={1: EngineError("boom")}), record=True)
    with pytest.raises(EngineError):
        list(stream)
    record = stream.state.record()
    assert [entry["name"] for entry in record["entries"][""]] == ["x"]
    assert program.resume(record, backend=engine()).error() is None


def test_gathered_tools_replay_in_any_order_of_ending() -> None:
    """Async tools that ran beside each other keep their own results in a replay."""
    import asyncio

    @ph.tool
    async def nap(name: str, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return name

    @ph.function
    async def program(s):
        return await asyncio.gather(nap("slow", 9), nap("quick", 0))

    state = program.run(backend=engine(), record=True)
    assert state.value == ["slow", "quick"]
    assert program.replay(json.loads(json.dumps(state.record()))).value == state.value
