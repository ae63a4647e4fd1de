"""The host tier: what the device gives up comes back by copy where that pays."""

import pytest
import torch

from phloem.errors import ConfigError
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.host_tier import NEVER, HostTier, break_even, host_tier
from phloem.runtime.model.batch import KVStorage

STORY = "the answer is a user and the system is in no way true because of the assistant. "


def pages(lab):
    """Pages saved to the host, and restored."""
    return lab.state(lambda s: (s.cache.tier.saved, s.cache.tier.restored))


async def crowd(lab, count=8):
    """Others that fill the device's pool."""
    for i in range(count):
        await lab.say(await lab.session(chr(97 + i) * 90, name=f"crowd {i}"), max_tokens=4)


async def test_evicted_kv_comes_back_by_copy(make_lab):
    """A session whose KV went to the host goes on as if it had stayed: the same text, no prompt
    token computed again but the last, one copy a page in each direction."""
    alone, lab = make_lab(), make_lab(kv_tokens=512, host_tokens=4096, restore_from=16)
    session, other = await lab.session(STORY), await alone.session(STORY)
    await lab.say(session)
    await alone.say(other)
    await crowd(lab)
    saved, restored = pages(lab)
    assert saved > 0
    assert restored == 0
    before = lab.decoder.rows
    again, expected = await lab.say(session), await alone.say(other)
    assert again.text == expected.text
    assert again.usage.reused >= again.usage.prompt - 2
    assert pages(lab)[1] == -(-again.usage.reused // 16)
    assert lab.decoder.rows - before <= 2 + again.usage.generated


async def test_without_a_tier_it_is_computed_again(make_lab):
    """On a CPU there is no tier by default, and the prompt is computed again."""
    lab = make_lab(kv_tokens=512)
    session = await lab.session(STORY)
    await lab.say(session)
    await crowd(lab)
    assert lab.state(lambda s: s.cache.tier) is None
    assert (await lab.say(session)).usage.reused == 0


async def test_a_copy_that_does_not_pay_is_not_made(make_lab):
    """Below the break-even the prefix is computed again, and takes the host's pages' place."""
    lab = make_lab(kv_tokens=512, host_tokens=4096, restore_from=1000)
    session = await lab.session(STORY)
    await lab.say(session)
    await crowd(lab)
    again = await lab.say(session)
    assert again.usage.reused == 0
    assert pages(lab)[1] == 0


async def test_the_host_is_bounded_too(make_lab):
    """What is worth least leaves the host when it is full; nothing is lost or counted twice."""
    lab = make_lab(kv_tokens=512, host_tokens=160, restore_from=16)
    await crowd(lab, 12)
    stats = lab.engine.stats()
    assert (stats.host_pages, stats.free_host_pages) == (10, 0)
    assert stats.offloaded_pages > 10
    await lab.backend.flush_cache()
    stats = lab.engine.stats()
    assert stats.free_host_pages == 10
    assert stats.free_pages == stats.pages


async def test_forks_find_one_copy(make_lab):
    """Of siblings that wake up together the first copies the pages back, the others share them."""
    lab = make_lab(kv_tokens=512, host_tokens=4096, restore_from=16)
    session = await lab.session(STORY)
    await lab.say(session)
    forks = await session.fork(3)
    await crowd(lab)
    for fork in forks:
        result = await lab.say(fork)
        assert result.usage.reused >= result.usage.prompt - 2
    assert pages(lab)[1] <= -(-result.usage.prompt // 16) + 3


async def test_what_came_back_to_be_copied_can_go_again(make_lab):
    """A page that comes back because a newcomer shares its first tokens is not stuck there."""
    lab = make_lab(kv_tokens=512, host_tokens=4096, restore_from=16)
    await lab.say(await lab.session(STORY), max_tokens=1)
    await crowd(lab)
    before = pages(lab)[1]
    newcomer = await lab.say(await lab.session(STORY[:-3] + "x"), max_tokens=1)
    assert newcomer.usage.reused % 16, "a part of a page is copied"
    assert pages(lab)[1] - before == -(-newcomer.usage.reused // 16)
    await lab.backend.flush_cache()
    stats = lab.engine.stats()
    assert (stats.free_pages, stats.free_host_pages) == (stats.pages, stats.host_pages)


def pools(count=4):
    """Two CPU pools of one layer."""
    made = [
        KVStorage([torch.randn(count, 2, 1, 4)], [torch.randn(count, 2, 1, 4)], 2) for _ in "ab"
    ]
    return made[0], made[1]


def test_a_page_survives_the_journey():
    """Saved, overwritten on the device and restored elsewhere, keys and values are the same."""
    device, host = pools()
    tier = HostTier(device, host, 4, 1)
    keys, values = device.keys[0][1].clone(), device.values[0][1].clone()
    there = tier.save(1)
    device.keys[0][1] = device.values[0][1] = 0
    tier.restore(there, 3)
    assert torch.equal(device.keys[0][3], keys)
    assert torch.equal(device.values[0][3], values)
    assert (tier.saved, tier.restored, tier.free) == (1, 1, 4)


@pytest.mark.parametrize(
    ("start_ms", "page_ms", "expected"),
    [(0, 1, 16), (10, 1, 64), (100, 1, 1024), (0, 50, NEVER)],
)
def test_the_break_even_follows_the_speed_of_copying(start_ms, page_ms, expected):
    """Computing takes 4 ms a page here. A fast copy pays from one page on, one that is slow to
    start from more, and one that is throttled below the speed of computing never."""
    assert expected == break_even(
        lambda n: start_ms + page_ms * n, lambda tokens: 4 * tokens / 16, 16, 1024
    )


def test_the_break_even_is_measured_on_the_decoder(tiny):
    """Without a number it comes from passes and copies of this machine, in whole pages."""
    kv = tiny.decoder.new_kv(32, 16)
    tier = host_tier(tiny.decoder, kv, 32, None)
    assert tier is not None
    assert tier.restore_from % 16 == 0
    assert tier.restore_from > 0
    assert host_tier(tiny.decoder, kv, 0, None) is None


@pytest.mark.parametrize("wrong", [{"host_tokens": -1}, {"restore_from": 0}])
def test_wrong_settings_are_refused(wrong):
    """The error names the setting."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EngineConfig(kv_tokens=64, **wrong)
