"""What the engine does when torch has no memory for a pass: real failures, put where they hurt."""

import asyncio
import itertools

import pytest
import torch

from phloem.errors import OutOfMemory
from phloem.grammar.spec import Constraint
from phloem.runtime.engine import completion

STORY = "the answer is a user and the system is in no way true because of the assistant. "


def exhaust():
    """An allocation that fails as one fails when memory is short."""
    torch.empty(1 << 60, dtype=torch.uint8)


async def texts(lab, count=6, **params):
    """What `count` sessions of different lengths say, all at once."""
    sessions = [await lab.session(STORY[i:] * (1 + i % 3), name=str(i)) for i in range(count)]
    asked = {"max_tokens": 24, "temperature": 1, "seed": 5, **params}
    results = await asyncio.gather(
        *(lab.say(session, **asked) for session in sessions), return_exceptions=True
    )
    return [getattr(result, "text", result) for result in results]


def counts(lab):
    """Passes tried again, and jobs suspended."""
    return lab.state(lambda s: (s.stats.shrunk, s.stats.suspended))


async def test_a_pass_without_memory_is_tried_again_with_half_the_rows(make_lab):
    """Where only 40 rows fit, prompts of hundreds are computed all the same, in smaller passes."""
    large, small = make_lab(), make_lab()
    small.decoder.before = lambda batch: len(batch.tokens) > 40 and exhaust()
    assert await texts(small) == await texts(large)
    assert max(small.decoder.passes) <= 40
    shrunk, suspended = counts(small)
    assert shrunk >= 2
    assert suspended == 0


async def test_the_limit_grows_back_when_there_is_memory_again(make_lab):
    """After 16 good passes the rows double, up to what was configured."""
    lab = make_lab(max_rows=64)
    lab.decoder.before = lambda batch: len(batch.tokens) > 8 and exhaust()
    await lab.say(await lab.session(STORY, name="short"), max_tokens=2)
    assert lab.state(lambda s: s.max_rows) <= 8
    lab.decoder.before = None
    await lab.say(await lab.session("a", name="long"), max_tokens=80, ignore_eos=True)
    assert lab.state(lambda s: s.max_rows) == 64


async def test_jobs_are_suspended_when_fewer_rows_do_not_help(make_lab):
    """While even two rows find no memory, jobs give way one by one; none loses a token."""
    large, small = make_lab(), make_lab()
    expected = await texts(large)
    tries = iter(range(10))

    def fail(batch):
        if len(batch.context_lens) > 1 and next(tries, None) is not None:
            exhaust()

    small.decoder.before = fail
    assert await texts(small) == expected
    assert counts(small)[1] > 0


async def test_a_run_that_finds_no_memory_alone_fails_alone(make_lab):
    """A sequence whose passes always fail ends with OutOfMemory; the others never notice."""
    large, small = make_lab(), make_lab()
    expected = await texts(large)
    small.decoder.before = lambda batch: max(batch.context_lens) > 250 and exhaust()
    poisoned = await small.session("z" * 300, name="poisoned")
    alone = asyncio.create_task(small.say(poisoned))
    assert await texts(small) == expected
    with pytest.raises(OutOfMemory, match="no memory") as caught:
        await alone
    assert isinstance(caught.value.__cause__, RuntimeError)
    small.decoder.before = None
    assert (await small.say(poisoned)).usage.generated == 8


class Short:
    """Calls a function, which finds no memory for more than `rows` rows, `times` times at most."""

    def __init__(self, function, rows, times=1 << 30):
        self.function, self.rows, self.left, self.calls = function, rows, times, 0

    def __call__(self, logits, *rest, **named):
        if len(logits) > self.rows and self.left:
            self.left -= 1
            self.calls += 1
            exhaust()
        return self.function(logits, *rest, **named)


@pytest.mark.parametrize("params", [{}, {"logprobs": 2}, {"temperature": 0}])
async def test_a_draw_without_memory_is_tried_again_in_a_smaller_pass(
    make_lab, monkeypatch, params
):
    """Where only two rows can be drawn from at once, six streams say what they would have said."""
    large, small = make_lab(), make_lab()
    expected = await texts(large, **params)
    short = Short(completion.sample, rows=2)
    monkeypatch.setattr(completion, "sample", short)
    assert await texts(small, **params) == expected
    assert short.calls > 0
    assert counts(small)[0] == short.calls


async def test_a_draw_that_fails_now_and_then_changes_no_text(make_lab, monkeypatch):
    """Every third draw of several rows finds no memory, with borders, guesses and constraints in
    play: the texts are the same, and nobody fails."""
    large, small = make_lab(), make_lab()
    rule = Constraint("regex", "[a-z ]{4,30}")

    async def all_of(lab):
        sessions = [await lab.session(STORY[i:] + " th", name=str(i)) for i in range(5)]
        rules = [rule if i % 2 else None for i in range(5)]
        asked = {"max_tokens": 20, "temperature": 1, "seed": 3}
        return await asyncio.gather(
            *(lab.say(s, r, **asked) for s, r in zip(sessions, rules, strict=True))
        )

    expected = [result.text for result in await all_of(large)]
    draws, original = itertools.count(), completion.sample

    def sample(logits, *rest):
        if len(logits) > 1 and next(draws) % 3 == 0:
            exhaust()
        return original(logits, *rest)

    monkeypatch.setattr(completion, "sample", sample)
    results = await all_of(small)
    assert [result.text for result in results] == expected
    assert counts(small)[0] > 0
    assert all(r.usage.prompt == r.usage.reused + r.usage.prefilled for r in results)


async def test_scores_without_memory_are_computed_again(make_lab, monkeypatch):
    """An allocation that fails when log-probabilities are taken costs a pass and changes none."""
    large, small = make_lab(), make_lab()
    choices = ["yes", " because of the user", "no answer"]
    expected = await (await large.session(STORY)).score(choices, empty_context=True)
    softmax = torch.log_softmax
    failing = iter([True, False, True, False, True, False])

    def log_softmax(*given, **named):
        if next(failing, False):
            exhaust()
        return softmax(*given, **named)

    monkeypatch.setattr("phloem.runtime.engine.scoring.torch.log_softmax", log_softmax)
    found = await (await small.session(STORY)).score(choices, empty_context=True)
    assert counts(small)[0] >= 3
    for a, b in zip(found.choices, expected.choices, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


async def test_a_draw_that_never_finds_memory_ends_its_step_and_not_the_engine(
    make_lab, monkeypatch
):
    """Alone and still without memory, a step is OutOfMemory; the engine and the session go on."""
    lab = make_lab()
    session = await lab.session(STORY)
    with monkeypatch.context() as patched:
        patched.setattr(completion, "sample", lambda *args: exhaust())
        with pytest.raises(OutOfMemory, match="no memory"):
            await lab.say(session)
    assert (await lab.say(session)).usage.generated == 8


async def test_timings_of_generated_and_scored_steps_add_up(make_lab):
    """Every step tells its time: queue, prefill and decode make up the total, scoring too."""
    lab = make_lab()
    session = await lab.session(STORY)
    for timing in (
        (await lab.say(session)).timing,
        (await session.score(["yes", " because", "no"])).timing,
        (await session.score(["yes", "no"], empty_context=True)).timing,
    ):
        assert timing.prefill_ms > 0
        assert timing.total_ms > 0
        parts = timing.queue_ms + timing.prefill_ms + timing.decode_ms
        assert parts == pytest.approx(timing.total_ms, rel=1e-3)
