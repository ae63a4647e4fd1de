"""Guesses from the text so far: they change no token, and save passes where text repeats."""

import asyncio
import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Text, Usage
from phloem.runtime.engine.drafts import Drafter

STORY = "the answer is a user and the system is in no way true because of the assistant. "
KINDS = {
    "greedy": {"temperature": 0},
    "cool": {"temperature": 0.05, "seed": 1},
    "sampled": {"temperature": 1.0, "seed": 2},
    "cut": {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    "penalised": {
        "temperature": 0.05,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.1,
        "seed": 4,
    },
    "stops": {"temperature": 0, "stop": ("ing", " yes")},
    "logprobs": {"temperature": 0, "logprobs": 2},
}


class Copying:
    """A decoder whose logits lean towards a text of its own, over and over: `lean` 5 makes about
    two thirds of the tokens those of the text, 40 all of them."""

    def __init__(self, decoder, tokens, lean):
        self._decoder = decoder
        self._tokens = torch.tensor(tokens)
        self._lean = lean

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def forward(self, batch, kv):
        logits = self._decoder.forward(batch, kv)
        following = (batch.positions[batch.logit_rows] + 1) % len(self._tokens)
        rows = torch.arange(len(logits))
        logits[rows, self._tokens[following]] += self._lean * logits.std(dim=-1)
        return logits


@pytest.fixture
def copying(tiny):
    """Makes tiny models that copy."""
    tokens = tiny.tokenizer.encode("the system is true and no user")

    def make(lean):
        return dataclasses.replace(tiny, decoder=Copying(tiny.decoder, tokens, lean))

    return make


def told(result):
    """All that a step says but its counts and times."""
    return result.tokens, result.text, result.finish_reason, result.stop


async def steps(lab, kind, count, constraint=None):
    """`count` steps at once, of 48 tokens, on prompts of different lengths."""
    sessions = [await lab.session(STORY[3 * i :] * 2, name=str(i)) for i in range(count)]
    asked = {"max_tokens": 48, "ignore_eos": True, **KINDS[kind]}
    return await asyncio.gather(*(lab.say(s, constraint, **asked) for s in sessions))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_tokens_are_the_same_with_and_without_drafts(make_lab, copying, kind):
    """Alone and five at once, whatever is asked of sampling: same tokens, text, end and stop."""
    plain, drafting = (make_lab(copying(5), drafts=drafts) for drafts in (False, True))
    for count in (1, 5):
        expected, got = await steps(plain, kind, count), await steps(drafting, kind, count)
        assert [told(r) for r in got] == [told(r) for r in expected]
        for one, other in zip(got, expected, strict=True):
            assert [p.token for p in one.logprobs] == [p.token for p in other.logprobs]
            assert [p.logprob for p in one.logprobs] == pytest.approx(
                [p.logprob for p in other.logprobs], abs=1e-4
            )
            assert other.usage.drafted == 0
            assert one.usage.accepted <= one.usage.drafted
        guesses = sum((r.usage for r in got), start=Usage())
        assert 4 * count < guesses.accepted < guesses.drafted


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("kind", ["greedy", "sampled", "logprobs"])
async def test_constrained_tokens_are_the_same(make_lab, copying, kind, jump):
    """Guesses are checked against the grammar, also where it forces tokens in between."""
    rules = [
        Constraint("regex", r"([a-z]{2,6} is (the user|true|a system)[.,] ){3,9}end"),
        Constraint(
            "json_schema",
            '{"type":"array","items":{"enum":["the user","the system","true"]},"minItems":6}',
            finish="force",
        ),
    ]
    model = copying(5)
    labs = [make_lab(model, drafts=drafts, jump_forward=jump) for drafts in (False, True)]
    for rule in rules:
        expected, got = [await steps(lab, kind, 3, rule) for lab in labs]
        assert [told(r) for r in got] == [told(r) for r in expected]


async def test_copying_takes_fewer_passes(make_lab, copying):
    """A text that repeats what was said needs less than a quarter of the passes."""
    plain, drafting = (make_lab(copying(40), drafts=drafts) for drafts in (False, True))
    results = []
    for lab in (plain, drafting):
        session = await lab.session("the end")
        results.append(await lab.say(session, max_tokens=200, ignore_eos=True))
    assert told(results[0]) == told(results[1])
    assert len(drafting.decoder.passes) < len(plain.decoder.passes) / 4
    usage = results[1].usage
    assert usage.accepted > 100
    # Each token is one row, but the last; what fails comes on top, and is counted.
    failed = usage.drafted - usage.accepted
    assert drafting.decoder.rows == usage.prompt + usage.generated - 1 + failed


async def test_guesses_that_fail_are_given_up(make_lab):
    """Where hardly a guess stands, few are made: rows stay near one per token."""
    lab = make_lab(drafts=True)
    session = await lab.session(STORY * 4)
    result = await lab.say(session, max_tokens=200, temperature=2.0, seed=1, ignore_eos=True)
    assert result.usage.drafted < 60


async def test_a_step_after_drafts_reuses_their_tokens_and_no_others(make_lab, copying):
    """The next step finds all confirmed tokens in the cache, and the KV there is right."""
    plain, drafting = (make_lab(copying(5), drafts=drafts) for drafts in (False, True))
    seen = []
    for lab in (plain, drafting):
        session = await lab.session("the end")
        first = await lab.say(session, max_tokens=60, ignore_eos=True)
        session.append([Text(" and so on")])
        second = await lab.say(session, max_tokens=40, ignore_eos=True)
        assert second.usage.reused >= first.usage.prompt + first.usage.generated - 2
        seen.append((told(first), told(second)))
    assert seen[0] == seen[1]


async def test_drafts_make_nobody_give_way(make_lab, copying):
    """In a pool that is just large enough, guesses suspend no job."""
    lab = make_lab(copying(40), drafts=True, kv_tokens=320, page_size=16)
    sessions = [await lab.session("the end"[i:], name=str(i)) for i in range(2)]
    results = await asyncio.gather(*(lab.say(s, max_tokens=140, ignore_eos=True) for s in sessions))
    assert [r.usage.generated for r in results] == [140, 140]
    assert lab.state(lambda s: s.stats.suspended) == 0


@pytest.mark.model
async def test_the_real_model_says_the_same_and_needs_fewer_passes(make_lab, smollm2):
    """Quoting a passage in float32: same greedy and sampled tokens, fewer passes."""
    labs = [make_lab(smollm2, drafts=drafts, kv_tokens=2048) for drafts in (False, True)]
    passage = (
        "The warranty covers parts and labour for twenty-four months from the date of purchase. "
        "It does not cover damage from water, falls or repairs by others."
    )
    for params in ({"temperature": 0}, {"temperature": 0.3, "seed": 7}):
        results, passes = [], []
        for lab in labs:
            before = len(lab.decoder.passes)
            chat = await lab.chat(f"Repeat this text word for word: {passage}")
            results.append(await lab.say(chat, max_tokens=48, **params))
            passes.append(len(lab.decoder.passes) - before)
        assert told(results[0]) == told(results[1])
        assert passes[1] < passes[0]


# The guesses themselves


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 16))
def test_a_guess_is_what_followed_the_last_tokens_before(tokens, limit):
    """The guess goes on as after the latest earlier occurrence of the last three or two."""
    guess = Drafter().propose(tokens, limit, 1)
    keys = [size for size in (3, 2) if len(tokens) > size]
    for size in keys:
        places = [i for i in range(len(tokens) - size) if tokens[i:][:size] == tokens[-size:]]
        if places:
            text = tokens + guess
            start = places[-1] + size
            assert guess == text[start : start + len(guess)]
            assert 0 < len(guess) <= limit
            return
    assert guess == []


def test_guesses_grow_while_they_stand_and_shrink_when_they_fail():
    """Four, eight, sixteen; after a failure one more than what stood."""
    drafter, tokens = Drafter(), [1, 2, 3] * 20
    assert len(drafter.propose(tokens, 99, 1)) == 4
    drafter.learn(4, 4)
    assert len(drafter.propose(tokens, 99, 1)) == 8
    drafter.learn(8, 8)
    assert len(drafter.propose(tokens, 99, 1)) == 16
    drafter.learn(16, 5)
    assert len(drafter.propose(tokens, 99, 1)) == 6
    assert len(drafter.propose(tokens, 3, 1)) == 3


def test_guesses_that_do_not_pay_pause():
    """After some failures there is a pause; in a large batch it comes sooner."""

    def tries(streams):
        drafter, tokens, made = Drafter(), [1, 2, 3] * 20, 0
        for _ in range(30):
            if drafter.propose(tokens, 99, streams):
                made += 1
                drafter.learn(4, 0)
        return made

    assert 3 <= tries(1) <= 8
    assert tries(30) < tries(1)


def test_a_guess_does_not_change_with_how_often_it_is_asked():
    """Tokens are looked at once; growing step by step finds what looking at all finds."""
    tokens = [(i * i) % 7 for i in range(300)]
    step_by_step = Drafter()
    for length in range(2, 300):
        assert step_by_step.propose(tokens[:length], 4, 1) == Drafter().propose(
            tokens[:length], 4, 1
        )
