"""Who runs, who waits, who gives way, and what an error does to others."""

import asyncio
import contextlib
import time

import pytest

from phloem.errors import Cancelled, DeadlineExceeded, EngineError, OutOfMemory, Overloaded
from phloem.programs.protocol import SamplingParams, Special, Text
from phloem.runtime.engine.pace import Pace

STORY = "the answer is a user and the system is in no way true because of the assistant. "


def start(lab, session, constraint=None, **params):
    """A step that runs in a task of its own."""
    return asyncio.create_task(lab.say(session, constraint, **params))


async def first_piece(session, **params):
    """A running step, after its first event."""
    step = session.generate(SamplingParams(**{"temperature": 0, "max_tokens": 200, **params}))
    await anext(step)
    return step


async def test_sixteen_at_once_give_the_same_texts_in_fewer_passes(make_lab):
    """Each of 16 gives the text it gives alone; together they need far fewer forward passes."""
    prompts = [STORY[i:] * 2 for i in range(16)]
    alone, together = make_lab(), make_lab()
    texts = [(await alone.say(await alone.session(p), max_tokens=20)).text for p in prompts]
    sessions = [await together.session(p, name=str(i)) for i, p in enumerate(prompts)]
    results = await asyncio.gather(*(together.say(s, max_tokens=20) for s in sessions))
    assert [r.text for r in results] == texts
    assert len(together.decoder.passes) < len(alone.decoder.passes) / 5


async def test_identical_prompts_that_arrive_together_are_computed_once(make_lab):
    """Of 16 equal prompts one is prefilled, in chunks; the others add a single row each."""
    lab = make_lab(max_rows=32, max_running=30)
    end = Special("<|im_end|>")
    sessions = [await lab.session(STORY * 3, end, name=str(i)) for i in range(16)]
    results = await asyncio.gather(*(lab.say(s, max_tokens=1) for s in sessions))
    assert lab.decoder.rows == results[0].usage.prompt + 15
    assert sorted(r.usage.prefilled for r in results)[:-1] == [1] * 15


async def test_a_long_prompt_does_not_stop_a_running_stream(make_lab):
    """While a prompt of 1,200 tokens is computed in chunks, a stream gets a token each pass."""
    lab = make_lab(max_rows=64)
    stream = await first_piece(await lab.session("a", name="stream"))
    seen = len(lab.decoder.passes)
    long = start(lab, await lab.session("xyz " * 300, name="long"), max_tokens=1)
    await long
    mixed = lab.decoder.passes[seen:]
    assert max(mixed) <= 64
    assert sum(rows == 64 for rows in mixed) >= 1200 // 64
    produced = 1
    async for item in stream:
        produced += len(item.tokens)
        if produced > 25:
            break
    await stream.aclose()


class _Steady(Pace):
    """Two rows a millisecond, whatever is measured."""

    def measure(self, rows, ms):
        self.rows_per_ms = 2.0


async def test_chunks_beside_streams_follow_the_budget_of_milliseconds(make_lab):
    """At 2 rows/ms and 20 ms between tokens a prompt gets 39 rows beside one stream; alone it
    gets all."""
    lab = make_lab(max_rows=256, inter_token_ms=20)
    lab.state(lambda s: setattr(s, "pace", _Steady()))
    stream = await first_piece(await lab.session("a", name="stream"))
    seen = len(lab.decoder.passes)
    await lab.say(await lab.session("xyz " * 100, name="long"), max_tokens=1)
    assert max(lab.decoder.passes[seen:]) == 40
    await stream.aclose()
    await lab.say(await lab.session("zyx " * 100, name="alone"), max_tokens=1)
    assert max(lab.decoder.passes) == 256


async def test_the_longest_prefix_is_served_first(make_lab):
    """With one place, the step whose prompt is cached runs before one that arrived earlier."""
    lab = make_lab(max_running=1)
    await lab.say(await lab.session(STORY, name="warm"), max_tokens=1)
    blocker = await first_piece(await lab.session("a", name="blocker"))
    order = []

    async def step(name, prompt):
        await lab.say(await lab.session(prompt, name=name), max_tokens=2)
        order.append(name)

    tasks = [asyncio.create_task(step(*it)) for it in (("new", "zzzz"), ("cached", STORY + "!"))]
    await asyncio.sleep(0.05)
    await blocker.aclose()
    await asyncio.gather(*tasks)
    assert order == ["cached", "new"]


async def test_waiting_jobs_run_when_a_place_is_free(make_lab):
    """With two places, never more than two sequences share a pass, and all five are served."""
    lab = make_lab(max_running=2)
    sizes = []
    lab.decoder.before = lambda batch: sizes.append(len(batch.context_lens))
    sessions = [await lab.session(STORY[i:], name=str(i)) for i in range(5)]
    await asyncio.gather(*(lab.say(s) for s in sessions))
    assert max(sizes) == 2


async def test_higher_priority_is_served_first(make_lab):
    """With one place, the step of higher priority runs before one that arrived earlier."""
    lab = make_lab(max_running=1)
    blocker = await first_piece(await lab.session("a", name="blocker"))
    order = []

    async def step(name, priority):
        await lab.say(await lab.session(STORY, name=name, priority=priority), max_tokens=2)
        order.append(name)

    tasks = [asyncio.create_task(step("low", 0)), asyncio.create_task(step("high", 1))]
    await asyncio.sleep(0.05)
    await blocker.aclose()
    await asyncio.gather(*tasks)
    assert order == ["high", "low"]


async def test_a_full_queue_refuses(make_lab):
    """Beyond the queue's limit a step is refused, retryable, with an estimate of the wait."""
    lab = make_lab(max_running=1, queue_limit=2)
    blocker = await first_piece(await lab.session("a", name="blocker"))
    sessions = [await lab.session(STORY, name=str(i)) for i in range(5)]
    tasks = [start(lab, s) for s in sessions]
    await asyncio.sleep(0.05)
    await blocker.aclose()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [r for r in results if isinstance(r, Overloaded)]
    assert len(refused) == 3
    assert all(r.retryable and r.details["retry_after_s"] > 0 for r in refused)
    assert (await lab.say(sessions[4])).usage.generated == 8


async def test_cancel_ends_a_running_and_a_queued_step(make_lab):
    """Both end with Cancelled, no pass is spent on them, and their place is free at once."""
    lab = make_lab(max_running=1)
    session = await lab.session("a", name="running")
    running = await first_piece(session)
    queued = await lab.session(STORY, name="queued")
    waiting = start(lab, queued)
    await asyncio.sleep(0.02)
    await queued.cancel()
    with pytest.raises(Cancelled):
        await waiting
    await session.cancel()
    with pytest.raises(Cancelled):
        async for _ in running:
            pass
    passes = len(lab.decoder.passes)
    await asyncio.sleep(0.02)
    assert len(lab.decoder.passes) == passes
    assert (await lab.say(queued)).usage.generated == 8


async def test_leaving_the_stream_cancels_the_step_and_keeps_what_was_delivered(make_lab):
    """A reader that leaves after three events has these tokens in its session, and no more."""
    lab = make_lab()
    session = await lab.session(STORY.strip())
    got = []
    stream = session.generate(SamplingParams(max_tokens=500, temperature=0))
    async for event in stream:
        got += event.tokens
        if len(got) >= 3:
            break
    await stream.aclose()
    tokens = (await session.snapshot()).tokens
    assert list(tokens) == lab.model.tokenizer.encode(STORY.strip()) + got
    whole = await lab.say(await lab.session(STORY.strip(), name="again"), max_tokens=len(got) + 5)
    rest = await lab.say(session, max_tokens=5)
    assert tuple(got) + rest.tokens == whole.tokens


async def test_a_deadline_counts_from_arrival(make_lab):
    """Queued or running, a step past its deadline ends with DeadlineExceeded, never shorter."""
    lab = make_lab(max_running=1, kv_tokens=8192)
    running = await lab.session("a", name="r", deadline=time.monotonic() + 0.3)
    queued = await lab.session("b", name="q", deadline=time.monotonic() + 0.1)
    tasks = [start(lab, running, max_tokens=4000, ignore_eos=True), start(lab, queued)]
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, DeadlineExceeded)
        assert result.details["waited_s"] > 0


async def test_out_of_pages_suspends_and_goes_on(make_lab):
    """Eight streams in a pool for three all end with the text they have in a large pool."""
    large, small = make_lab(), make_lab(kv_tokens=3 * 112, page_size=8)
    results = []
    for lab in (large, small):
        sessions = [await lab.session(STORY[i : i + 30], name=str(i)) for i in range(8)]
        results.append(await asyncio.gather(*(lab.say(s, max_tokens=80) for s in sessions)))
    assert [r.tokens for r in results[0]] == [r.tokens for r in results[1]]
    assert small.state(lambda s: s.stats.suspended) > 0
    assert large.state(lambda s: s.stats.suspended) == 0


async def test_a_suspended_constraint_loses_no_forced_token(make_lab):
    """Suspension in the middle of a constrained text changes nothing in it."""
    from phloem.grammar.spec import Constraint

    rule = Constraint("regex", r'(\{"[a-z]{3}":true\} and because ){9}end')
    large, small = make_lab(), make_lab(kv_tokens=2 * 192, page_size=4)
    texts = []
    for lab in (large, small):
        sessions = [await lab.session(STORY[i : i + 20], name=str(i)) for i in range(6)]
        steps = (lab.say(s, rule, max_tokens=150, temperature=1, seed=3) for s in sessions)
        texts.append([r.text for r in await asyncio.gather(*steps)])
    assert texts[0] == texts[1]
    assert small.state(lambda s: s.stats.suspended) > 0


async def test_a_request_as_large_as_the_pool_runs(make_lab):
    """After others filled the cache, one request may use every page."""
    lab = make_lab(kv_tokens=256)
    for i in range(6):
        await lab.say(await lab.session(STORY[i:], name=str(i)))
    result = await lab.say(await lab.session("z" * 200, name="big"), max_tokens=56)
    assert result.usage.generated == 56


async def test_pins_give_way_before_a_run_fails(make_lab):
    """A request that needs the pinned pages gets them."""
    lab = make_lab(kv_tokens=256, pinned_share=0.5)
    assert await lab.backend.prefill([Text("q" * 100)]) == 100
    assert lab.state(lambda s: s.pins.pages()) == 7
    assert (await lab.say(await lab.session("z" * 200), max_tokens=50)).usage.generated == 50
    assert lab.state(lambda s: s.pins.pages()) == 0


async def test_choices_that_can_never_fit_fail_alone(make_lab):
    """Scoring a choice on a branch beyond the pool's last page is OutOfMemory; others go on."""
    lab = make_lab(kv_tokens=64, page_size=16)
    session = await lab.session("z" * 44)
    with pytest.raises(OutOfMemory):
        await session.score(["a" * 20])
    assert (await lab.say(session)).usage.generated == 8


async def test_pins_are_kept_and_bounded(make_lab):
    """A pinned prefix survives what evicts all else; beyond the bound the oldest pin goes."""
    lab = make_lab(kv_tokens=512, pinned_share=0.25)
    await lab.backend.prefill([Text("p" * 100)])
    for i in range(6):
        await lab.say(await lab.session(chr(97 + i) * 200, name=str(i)), max_tokens=4)
    assert (await lab.say(await lab.session("p" * 100 + "!", name="p"))).usage.reused == 100
    await lab.backend.prefill([Text("q" * 100)])
    assert lab.state(lambda s: s.pins.pages()) <= 8
    assert [s.tokens for s in lab.state(lambda s: s.pins.sequences())] == [
        lab.model.tokenizer.encode("q" * 100)
    ]


async def test_a_failing_pass_ends_its_steps_and_not_the_engine(make_lab, caplog):
    """An exception inside a forward pass reaches the readers of that pass; the next one works."""
    lab = make_lab()
    session = await lab.session(STORY)

    def fail(batch):
        raise RuntimeError("a broken kernel")

    lab.decoder.before = fail
    with pytest.raises(EngineError, match="RuntimeError: a broken kernel") as caught:
        await lab.say(session)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "a step failed" in caplog.text
    lab.decoder.before = None
    assert (await lab.say(session)).usage.generated == 8


async def test_closing_the_backend_ends_steps_with_cancelled(make_lab, tiny):
    """Running and queued steps end with Cancelled, and later calls do too."""
    from phloem.runtime.embedded import EmbeddedBackend

    backend = EmbeddedBackend(tiny, kv_tokens=2048, max_running=1)
    sessions = [await backend.open(str(i)) for i in range(2)]
    steps = [s.generate(SamplingParams(max_tokens=1000, ignore_eos=True)) for s in sessions]
    first = asyncio.ensure_future(anext(steps[0]))
    second = asyncio.ensure_future(drain(steps[1]))
    await first
    await backend.aclose()
    for result in await asyncio.gather(drain(steps[0]), second, return_exceptions=True):
        assert isinstance(result, Cancelled)
    with pytest.raises(Cancelled, match="closed"):
        await backend.open("late")
    await backend.aclose()


async def drain(stream):
    """Read to the end."""
    return [item async for item in stream]


def test_a_reader_whose_loop_is_gone_holds_no_place(tiny):
    """When an event loop is closed in the middle of a step, the engine drops the step."""
    from phloem.runtime.embedded import EmbeddedBackend

    backend = EmbeddedBackend(tiny, kv_tokens=2048, max_running=1)
    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(backend.open("s"))
    stream = session.generate(SamplingParams(max_tokens=1500, ignore_eos=True))
    loop.run_until_complete(anext(stream))
    loop.close()

    async def other():
        fresh = await backend.open("t")
        items = [i async for i in fresh.generate(SamplingParams(max_tokens=3, ignore_eos=True))]
        await backend.aclose()
        return items[-1].usage.generated

    assert asyncio.run(other()) == 3
    with contextlib.suppress(StopIteration):  # end the generator, for a quiet interpreter
        stream.aclose().send(None)


async def test_aborts_leak_no_page(make_lab):
    """200 steps on one prefix, aborted in every phase, three times: all pages are accounted for."""
    lab = make_lab(kv_tokens=1024, max_running=2, queue_limit=4)

    async def one(i):
        session = await lab.session(STORY * 3 + str(i), name=str(i))
        stream = session.generate(SamplingParams(max_tokens=12, temperature=0))
        try:
            async for _ in stream:
                if i % 4 == 1:
                    break
        except (Overloaded, Cancelled):
            return
        finally:
            await stream.aclose()

    for _ in range(3):
        for start_at in range(0, 200, 10):
            tasks = [asyncio.create_task(one(i)) for i in range(start_at, start_at + 10)]
            await asyncio.sleep(0.002)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        lab.at_rest()
    assert (await lab.say(await lab.session("z" * 900), max_tokens=100)).usage.generated == 100
