"""All at once on a small pool: waiting runs, pins at their cap, tenants, failed allocations."""

import asyncio

import pytest
import torch

from phloem.programs.protocol import Text

STORY = "the answer is a user and the system is in no way true because of the assistant. "
WAITING = 500


async def crowd(lab, count=WAITING):
    """Sessions of three tenants that have said something and wait for a tool."""
    sessions = [
        await lab.session(f"{i} {STORY}", name=str(i), namespace=f"tenant {i % 3}")
        for i in range(count)
    ]
    for start in range(0, count, 50):
        batch = sessions[start : start + 50]
        await asyncio.gather(*(lab.say(session, max_tokens=2) for session in batch))
    for session in sessions:
        session.hint(1, "tool")
    return sessions


@pytest.mark.parametrize("tier", [{}, {"host_tokens": 512, "restore_from": 16}])
async def test_five_hundred_that_wait_leave_the_pool_to_those_that_run(make_lab, tier):
    """Beside 500 waiting sessions and pins at their cap, a step that needs two thirds of the pool
    runs; then ten of them go on at once, each with the text that it has alone on an empty pool."""
    lab = make_lab(kv_tokens=1024, pinned_share=0.25, **tier)
    sessions = await crowd(lab)
    for i in range(8):
        await lab.backend.prefill([Text(f"{i} {STORY * 2}")])
    assert lab.state(lambda s: s.pool.used == s.pins.pages() <= s.pool.pages // 4)
    large = await lab.session("x" * 600, name="large")
    assert (await lab.say(large, max_tokens=4)).usage.generated == 4
    lab.engine.audit()

    some = sessions[::50]
    alone = []
    for session in some:
        twin = await session.fork(1)
        lab.state(lambda s: s.flush())
        alone.append((await lab.say(twin[0], max_tokens=6)).text)
    together = await asyncio.gather(*(lab.say(session, max_tokens=6) for session in some))
    assert [result.text for result in together] == alone


async def test_failed_allocations_amid_a_crowd_change_no_text(make_lab):
    """Every third wide pass finds no memory, on a pool too small for all that run: the texts are
    those of a large pool where nothing fails."""
    texts = []
    for kv_tokens, fails in ((8192, False), (768, True)):
        lab = make_lab(kv_tokens=kv_tokens)
        passes = 0

        def now_and_then(batch):
            nonlocal passes
            passes += len(batch.tokens) > 2
            if passes % 3 == 0 and len(batch.tokens) > 2:
                torch.empty(1 << 60, dtype=torch.uint8)

        if fails:
            lab.decoder.before = now_and_then
        sessions = await crowd(lab, 20)
        results = await asyncio.gather(
            *(lab.say(session, max_tokens=40, ignore_eos=True) for session in sessions)
        )
        texts.append([result.text for result in results])
        if fails:
            assert lab.state(lambda s: s.stats.shrunk) > 0
        lab.at_rest()
    assert texts[0] == texts[1]
