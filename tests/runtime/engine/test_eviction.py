"""Which KV is given up first, by what programs tell of their next steps."""

import pytest

from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.radix_cache import RadixCache
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.sequence_kv import SequenceKV
from phloem.runtime.model.batch import KVStorage

STORY = "the answer is a user and the system is in no way true because of the assistant. "


class Cache:
    """Runs on a pool without a decoder: what is computed is cached at once."""

    def __init__(self, pages, *, hints=True, size=4):
        self.pool = KVPool(KVStorage([], [], size), pages)
        self.pool.copy = lambda *args: None
        self.cache = RadixCache(self.pool, hints=hints)
        self.kv = SequenceKV(self.pool, self.cache)

    def run(self, tokens, interest=None, namespace=""):
        """A run over `tokens`; returns how many were reused."""
        seq = Sequence(namespace, list(tokens), len(tokens) - 1)
        interest = interest or Interest()
        self.kv.attach(seq)
        self.cache.settle(interest, None)
        reused = seq.computed
        assert self.kv.grow(seq, len(tokens))
        seq.computed = len(tokens)
        self.kv.publish(seq)
        self.cache.settle(interest, self.kv.detach(seq))
        return reused

    def has(self, tokens, namespace=""):
        """How many of `tokens` are cached."""
        return self.kv.cached_prefix(Sequence(namespace, list(tokens), len(tokens)))


def tokens_of(run, length=16):
    """A run's own tokens: no two runs share any."""
    return [100 * run + i for i in range(length)]


def test_a_run_that_goes_on_outlives_one_that_ended():
    """Of two runs the one that will go on keeps its pages, though it was used longer ago."""
    kept, gone = Interest(), Interest()
    cache = Cache(8)
    cache.run(tokens_of(1), kept)
    cache.cache.expect(kept, 1)
    cache.run(tokens_of(2), gone)
    cache.cache.expect(gone, None)
    cache.run(tokens_of(3))
    assert cache.has(tokens_of(1)) == 16
    assert cache.has(tokens_of(2)) == 0


def test_by_recency_alone_it_is_the_other_way_round():
    """The policy `lru` gives up the run that waits."""
    kept = Interest()
    cache = Cache(8, hints=False)
    cache.run(tokens_of(1), kept)
    cache.cache.expect(kept, 1)
    cache.run(tokens_of(2))
    cache.run(tokens_of(3))
    assert cache.has(tokens_of(1)) == 0
    assert cache.has(tokens_of(2)) == 16


def test_the_nearer_use_is_worth_more():
    """Of two runs that wait, the one whose next step is farther away gives way."""
    near, far = Interest(), Interest()
    cache = Cache(8)
    cache.run(tokens_of(1), near)
    cache.cache.expect(near, 1)
    cache.run(tokens_of(2), far)
    cache.cache.expect(far, 6)
    cache.run(tokens_of(3))
    assert (cache.has(tokens_of(1)), cache.has(tokens_of(2))) == (16, 0)


def test_what_costs_more_to_recompute_is_worth_more():
    """Of two equal chances the page with fewer tokens to recompute goes first."""
    whole, part = Interest(), Interest()
    cache = Cache(8)
    cache.run(tokens_of(1, 13), part)
    cache.run(tokens_of(2, 16), whole)
    for interest in (part, whole):
        cache.cache.expect(interest, 1)
    cache.run(tokens_of(3, 4))
    assert (cache.has(tokens_of(1)), cache.has(tokens_of(2))) == (12, 16)


def test_waiting_runs_lock_nothing():
    """Five hundred runs that wait leave the whole pool to one that needs it."""
    cache = Cache(40)
    for run in range(500):
        interest = Interest()
        cache.run(tokens_of(run), interest)
        cache.cache.expect(interest, 1)
    assert cache.pool.used == 0
    assert cache.run(tokens_of(999, 160)) == 0


def test_an_interest_moves_up_as_its_pages_go():
    """A run whose last pages were evicted still protects the first ones."""
    kept = Interest()
    cache = Cache(8)
    cache.run(tokens_of(1), kept)
    cache.cache.expect(kept, 1)
    cache.cache.evict(2)
    assert cache.has(tokens_of(1)) == 8
    for run in range(2, 9):
        cache.run(tokens_of(run))
    assert cache.has(tokens_of(1)) == 8
    assert kept.node is not None


def test_an_interest_that_is_given_up_protects_nothing():
    """After the hint "never" the run's pages go by recency."""
    kept = Interest()
    cache = Cache(8)
    cache.run(tokens_of(1), kept)
    cache.cache.expect(kept, 1)
    cache.cache.expect(kept, None)
    cache.run(tokens_of(2))
    cache.run(tokens_of(3))
    assert cache.has(tokens_of(1)) == 0
    assert kept.node is None


def replay(hints):
    """Eight runs wait for a retrieval while sixteen others come and end; the pool holds half.

    Returns the tokens that the eight reuse when they go on.
    """
    cache = Cache(48, hints=hints)
    waiting = [(tokens_of(run), Interest()) for run in range(8)]
    for turn, (tokens, interest) in enumerate(waiting):
        cache.run(tokens, interest)
        cache.cache.expect(interest, 1)
        for other in range(2):
            ended = Interest()
            cache.run(tokens_of(100 + 2 * turn + other), ended)
            cache.cache.expect(ended, None)
    return sum(cache.run([*tokens, 7], interest) for tokens, interest in waiting)


def test_runs_that_wait_find_their_tokens_in_a_pool_of_half_the_size():
    """With hints they reuse all 128 of their tokens; by recency alone, half."""
    assert replay(hints=True) == 128
    assert replay(hints=False) <= 64


@pytest.mark.parametrize(("eviction", "reuses"), [("program", True), ("lru", False)])
async def test_a_session_that_will_go_on_is_kept_by_the_engine(make_lab, eviction, reuses):
    """A hinted session finds its KV again after others have filled the pool; without, not."""
    lab = make_lab(kv_tokens=512, eviction=eviction)
    session = await lab.session(STORY * 2, name="waits")
    first = await lab.say(session, max_tokens=4)
    session.hint(1)
    for i in range(5):
        other = await lab.session(chr(97 + i) * 100, name=str(i))
        await lab.say(other, max_tokens=4)
        other.hint(None)
    again = await lab.say(session, max_tokens=4)
    known = first.usage.prompt + first.usage.generated - 1
    assert (again.usage.reused >= known - 1) == reuses


async def test_closing_a_session_gives_its_interest_up(make_lab):
    """What a closed session had hinted protects nothing."""
    lab = make_lab(kv_tokens=512)
    session = await lab.session(STORY * 2, name="closes")
    await lab.say(session, max_tokens=4)
    session.hint(1)
    await session.close()
    for i in range(5):
        await lab.say(await lab.session(chr(97 + i) * 100, name=str(i)), max_tokens=4)
    assert (await lab.say(await lab.session(STORY * 2, name="new"))).usage.reused < 100
