"""Scores of choices, against teacher forcing."""

import asyncio

import pytest
import torch

from phloem.programs.protocol import Special, Text
from phloem.runtime.model.batch import ForwardBatch

STORY = "the answer is a user and the system is in no way true because of the assistant."
CHOICES = ["yes", "no", " because of the user", "", "true and false", "日本", "yes and no"]


def teacher_forcing(model, tokens):
    """Log-probabilities of tokens[1:], computed in one plain pass."""
    decoder = model.decoder
    n = len(tokens)
    kv = decoder.new_kv(n, 1)
    batch = ForwardBatch(
        tokens=torch.tensor(tokens),
        positions=torch.arange(n),
        slots=torch.arange(n),
        query_starts=[0, n],
        context_lens=[n],
        pages=torch.arange(n)[None],
        logit_rows=torch.arange(n),
    )
    rows = torch.log_softmax(decoder.forward(batch, kv), -1)
    return rows[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


@pytest.mark.parametrize("prompt", [STORY, STORY + " ", STORY + " be", "a"])
@pytest.mark.parametrize("page_size", [1, 16])
async def test_scores_equal_teacher_forcing(make_lab, tiny, prompt, page_size):
    """Each choice's numbers are those of prompt and choice tokenised as one."""
    lab = make_lab(page_size=page_size)
    session = await lab.session(prompt)
    result = await session.score(CHOICES, empty_context=True)
    assert [choice.text for choice in result.choices] == CHOICES
    start = result.usage.prompt
    for choice in result.choices:
        tokens = list(choice.tokens)
        if prompt != "a":
            joined = tiny.tokenizer.encode(prompt + choice.text)
            assert joined[start:] == tokens
        whole = tiny.tokenizer.encode(prompt)[:start] + tokens
        expected = teacher_forcing(tiny, whole)[start - 1 :] if len(whole) > 1 else []
        assert choice.logprobs == pytest.approx(expected, abs=1e-3)
        if tokens:
            assert choice.unconditional[0] is None
            assert choice.unconditional[1:] == pytest.approx(
                teacher_forcing(tiny, tokens), abs=1e-3
            )


async def test_choices_are_scored_in_one_pass_over_the_shared_prefix(make_lab):
    """One pass for the prefix, one for all choices: a row per choice token but the last."""
    lab = make_lab()
    session = await lab.session(STORY, Special("<|im_end|>"))
    result = await session.score(["yes", "because of", "user and system"])
    prefix = len(lab.model.tokenizer.encode(STORY)) + 1
    branches = sum(len(choice.tokens) - 1 for choice in result.choices)
    assert lab.decoder.passes == [prefix, branches]
    assert result.usage.scored == branches
    again = await session.score(["yes", "no"])
    assert lab.decoder.passes[2:] == [1]
    assert (again.usage.reused, again.usage.prefilled) == (prefix - 1, 1)


async def test_the_winner_s_kv_is_adopted(make_lab):
    """When a choice's text is appended, only its last token has still to be computed."""
    lab = make_lab()
    session = await lab.session(STORY, Special("<|im_end|>"))
    result = await session.score(["yes and the user", "no and the user", "true"])
    session.append([Text("no and the user")])
    step = await lab.say(session, max_tokens=1)
    assert step.usage.prompt == result.usage.prompt + len(result.choices[1].tokens)
    assert step.usage.prefilled <= 2


async def test_scoring_changes_nothing(make_lab):
    """The session's tokens and pending text are the same before and after."""
    lab = make_lab()
    session = await lab.session("the answer is")
    before = await session.snapshot()
    await session.score(["a", "b"])
    assert await session.snapshot() == before


async def test_greedy_prefix_counts_what_the_model_would_say(make_lab):
    """A choice made of the model's own greedy tokens is all greedy prefix; another is not."""
    lab = make_lab()
    session = await lab.session(STORY, Special("<|im_end|>"))
    (twin,) = await session.fork(1)
    said = await lab.say(twin, max_tokens=4)
    result = await session.score([said.text, "zz"])
    if result.choices[0].tokens == said.tokens:
        assert result.choices[0].greedy_prefix == len(said.tokens)
    assert result.choices[1].greedy_prefix == 0


async def test_many_choices_in_a_small_pool(make_lab):
    """Choices that do not fit together are scored in turns, with the same numbers."""
    choices = [f"the user {i} and the system because of the assistant" for i in range(20)]
    results = []
    for lab in (make_lab(), make_lab(kv_tokens=256, page_size=8)):
        session = await lab.session(STORY, Special("<|im_end|>"))
        result = await session.score(choices)
        results.append([value for choice in result.choices for value in choice.logprobs])
    assert results[0] == pytest.approx(results[1], abs=1e-4)


async def test_scoring_beside_generation(make_lab):
    """Scores and streams that share passes give what they give alone."""
    lab = make_lab()
    alone = await (await lab.session(STORY)).score(CHOICES)
    text = await lab.say(await lab.session("the user"), max_tokens=30)
    await lab.backend.flush_cache()
    together = await asyncio.gather(
        lab.say(await lab.session("the user", name="a"), max_tokens=30),
        *[(await lab.session(STORY, name=f"b{i}")).score(CHOICES) for i in range(4)],
    )
    assert together[0].tokens == text.tokens
    for result in together[1:]:
        for one, other in zip(result.choices, alone.choices, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
