"""Ten programs as SGLang's documentation shapes them, unchanged but for the import, on the
real model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

import phloem as sgl
from phloem.programs.nodes import Python
from phloem.runtime.embedded import EmbeddedBackend

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[EmbeddedBackend]:
    from phloem.programs import registry
    from phloem.programs.executor import loop

    backend = EmbeddedBackend()
    sgl.set_default_backend(backend)
    yield backend
    registry.reset("backend")
    loop.call(backend.aclose())


@sgl.function
def few_shot_qa(s, question):
    s += "The following are questions with answers.\n\n"
    s += "Q: What is the capital of France?\nA: Paris\n"
    s += "Q: What is the capital of Germany?\nA: Berlin\n"
    s += "Q: What is the capital of Italy?\nA: Rome\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0, max_tokens=16)


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=24))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=24))


@sgl.function
def tool_use(s, question):
    s += "To answer this question: " + question + ", "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The math expression is" + sgl.gen("expression", max_tokens=16, stop="\n")
    elif s["tool"] == "search engine":
        s += "The key word to search is" + sgl.gen("word", max_tokens=16, stop="\n")


@sgl.function
def first_tokens(s, question, k):
    s += sgl.user(question)
    s += sgl.assistant_begin()
    look = s.fork(1)[0]
    paths = s.fork(k)
    look += sgl.gen("next", max_tokens=0, return_logprob=True, top_logprobs_num=k)
    tops = look.get_meta_info("next")["output_top_logprobs"][0]
    for path, (_logprob, _token, text) in zip(paths, tops, strict=True):
        path += text
        path += sgl.gen("answer", temperature=0, max_tokens=4, return_logprob=True)
    return [text for _, _, text in tops], [str(path) for path in paths if path["answer"]]


def search(query: str) -> str:
    return "Paris is the capital of France."


@sgl.function
def react(s, question):
    s += "Question: " + question + "\n"
    for i in range(1, 4):
        s += f"Thought {i}:" + sgl.gen("thought", stop=["\n", "Observation"], max_tokens=24)
        s += f"\nAction {i}: " + sgl.select("action", ["Search[", "Finish["])
        s += sgl.gen("argument", regex=r"[A-Za-z ]{1,20}", max_tokens=12) + "]\n"
        if s["action"] == "Finish[":
            break
        s += f"Observation {i}: " + search(s["argument"]) + "\n"
    return s["argument"]


def propose_plan(s, question, num_branches):
    s += sgl.user("Propose a one-line plan for: " + question)
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=16, temperature=0.8))
    return forks


@sgl.function
def tree_of_thought(s, question, num_branches):
    plan_forks = propose_plan(s, question, num_branches)
    for plan in plan_forks:
        plan += sgl.user("Now answer in one word.")
        plan += sgl.assistant(sgl.gen("answer", max_tokens=4))
    plan_forks.join()
    return s["answer"]


@sgl.function
def tip_suggestion(s):
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a sentence:\n"
        f += sgl.gen("detailed_tip", max_tokens=24, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=16)


CHARACTER = (
    r"""\{"name": "[A-Za-z ]{1,16}","""
    r""" "house": "(Gryffindor|Slytherin)","""
    r""" "age": [0-9]{1,2}\}"""
)


@sgl.function
def character_gen(s, name):
    s += name + " is a character in Harry Potter. Please fill in the following information.\n"
    s += sgl.gen("json_output", max_tokens=64, regex=CHARACTER)


@sgl.function
def true_or_false(s, statement):
    s += "Determine whether the statement below is True, False, or Unknown.\n"
    s += "Statement: The capital of France is Pairs.\nAnswer: False\n"
    s += "Statement: " + statement + "\n"
    s += "Answer:" + sgl.select("answer", ["True", "False", "Unknown"])


@sgl.function
def text_with_logprobs(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8, return_logprob=True, top_logprobs_num=2))


@sgl.function
def age(s, name):
    s += f"{name} was born in 1990. In 2020 the age of {name} was "
    s += sgl.gen_int("age", max_tokens=4)
    s += ". The year is " + sgl.gen("year", regex=r"[0-9]{4}")


def test_few_shot() -> None:
    """A few-shot question stops at the end of its line."""
    state = few_shot_qa.run(question="What is the capital of Spain?")
    assert "Madrid" in state["answer"]
    assert "\n" not in state["answer"]


def test_multi_turn() -> None:
    """Two turns give four messages and reuse the first turn's tokens."""
    state = multi_turn_question.run("Name a city.", "And another?", temperature=0)
    assert [m["role"] for m in state.messages()] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    first, second = state.explain()
    assert second.reused >= first.prompt


def test_tool_use() -> None:
    """The branch that runs is the one of the chosen tool."""
    state = tool_use.run(question="What is 2 + 2?", temperature=0)
    assert ("expression" in state) == (state["tool"] == "calculator")
    assert not any(isinstance(n, Python) for n in tool_use.graph.nodes.values())


def test_react() -> None:
    """A ReAct loop alternates thoughts, actions and observations, and ends."""
    state = react.run("What is the capital of France?", temperature=0)
    assert re.fullmatch("[A-Za-z ]{1,20}", state.value)
    assert state.text().count("Thought") <= 3


def test_tree_of_thought() -> None:
    """Branches propose and answer independently and come back as lists, in order."""
    state = tree_of_thought.run("How many legs has a spider?", 3, seed=1)
    assert len(state.value) == len(state["plan"]) == 3
    assert all(isinstance(answer, str) for answer in state.value)


def test_parallel_tips() -> None:
    """Two branches expand, and their texts are in the summary's prompt."""
    state = tip_suggestion.run(temperature=0)
    assert (
        state.text().index("Tip 1:") < state.text().index("Tip 2:") < state.text().index("In summ")
    )
    assert len(state["summary"]) > 0


def test_json_by_regex() -> None:
    """A regex gives exactly its JSON."""
    state = character_gen.run("Hermione Granger", temperature=0)
    assert re.fullmatch(CHARACTER, state["json_output"])


def test_select_in_batch() -> None:
    """A batch of choices, each exactly one of the options."""
    rows = [{"statement": text} for text in ("Water is wet.", "The moon is a cheese.", "X is Y.")]
    states = true_or_false.run_batch(rows)
    assert all(state["answer"] in {"True", "False", "Unknown"} for state in states)


def test_streaming_with_logprobs() -> None:
    """Streamed pieces join to the answer, whose tokens have log-probabilities."""
    state = text_with_logprobs.run("Say hello.", temperature=0, stream=True)
    pieces = list(state.text_iter(var_name="answer"))
    meta = state.get_meta_info("answer")
    assert "".join(pieces) == state["answer"]
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
    assert all(len(top) == 2 for top in meta["output_top_logprobs"])


def test_paths_by_first_token() -> None:
    """`max_tokens=0` with log-probabilities gives the next token's and appends nothing."""
    tops, texts = first_tokens.run(question="How many legs have 3 dogs?", k=3).value
    assert len(set(tops)) == 3
    assert all(text.startswith("ProgramState(") for text in texts)
    assert all("assistant\n" + top in text for top, text in zip(tops, texts, strict=True))


def test_meta_data_of_choices_and_streams() -> None:
    """Choices report (logprob, id, text) triples; a streamed step ends with its meta data."""
    state = tool_use.run(question="What is 5 + 5?")
    for choice, row in zip(
        ["calculator", "search engine"],
        state.get_meta_info("tool")["input_token_logprobs"],
        strict=True,
    ):
        assert "".join(text for _, _, text in row).strip() == choice

    async def read() -> list[tuple[str, dict]]:
        run = few_shot_qa.run(question="What is the capital of Spain?", stream=True)
        return [pair async for pair in run.text_async_iter("answer", return_meta_data=True)]

    *_, (text, meta) = asyncio.run(read())
    assert text == ""
    assert meta["completion_tokens"] > 0
    assert few_shot_qa.func.__name__ == "few_shot_qa"


def test_constrained_integer() -> None:
    """gen_int gives the text of a whole number, and generation goes on behind it."""
    state = age.run("Ada", temperature=0)
    assert int(state["age"]) >= 0
    assert re.fullmatch("[0-9]{4}", state["year"])
    assert f"{state['age']}. The year is {state['year']}" in state.text()


def test_default_choice_rule_is_usable() -> None:
    """The default picks " four", not the long word with a predictable tail (ch-04)."""

    @sgl.function
    def program(s):
        s += "Question: two plus two? Answer:"
        s += sgl.select("x", [" four", " floccinaucinihilipilification"])

    assert program.run()["x"] == " four"


def test_same_text_alone_and_together() -> None:
    """Sixteen runs at once give each the text it gives alone."""
    names = [f"Person {i}" for i in range(16)]
    alone = age.run(names[3], temperature=0).text()
    together = age.run_batch([{"name": name} for name in names], temperature=0)
    assert together[3].text() == alone
