"""Which KV is given up first, by what programs tell of their next steps."""

import pytest

from phloem.runtime.engine.eviction import EvictionOrder
from phloem.runtime.engine.forecast import Interest
from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.radix_cache import RadixCache
from phloem.runtime.engine.radix_tree import Node
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.sequence_kv import SequenceKV
from phloem.runtime.model.batch import KVStorage

STORY = "the answer is a user and the system is in no way true because of the assistant. "


class Cache:
    """Runs on a pool without a decoder: what is computed is cached at once."""

    def __init__(self, pages, *, hints=True, size=4):
        self.now = 0.0
        self.pool = KVPool(KVStorage([], [], size), pages)
        self.pool.copy = lambda *args: None
        self.cache = RadixCache(self.pool, hints=hints, clock=lambda: self.now)
        self.kv = SequenceKV(self.pool, self.cache)

    def run(self, tokens, interest=None, namespace=""):
        """A run over `tokens`; returns how many were reused."""
        seq = Sequence(namespace, list(tokens), len(tokens) - 1)
        interest = interest or Interest()
        self.cache.resume(interest)
        found = self.kv.attach(seq)
        interest.queued = False
        self.cache.begin(interest, found, seq.tokens)
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


def wait_at(cache, place, seconds, runs=6):
    """Runs that wait at a place of their program, each for so long."""
    for run in range(runs):
        interest = Interest()
        mine = tokens_of(1000 + run, 8)
        cache.run(mine, interest)
        cache.cache.expect(interest, 1, place)
        cache.now += seconds
        cache.run([*mine, 7], interest)
        cache.cache.expect(interest, None)


def test_waits_are_learned_by_place():
    """Of two runs with equal hints the one at a place where runs wait long gives way, though it
    was used later."""
    cache = Cache(8)
    wait_at(cache, "fast tool", 1)
    wait_at(cache, "slow tool", 60)
    fast, slow = Interest(), Interest()
    cache.run(tokens_of(1), fast)
    cache.cache.expect(fast, 1, "fast tool")
    cache.run(tokens_of(2), slow)
    cache.cache.expect(slow, 1, "slow tool")
    cache.run(tokens_of(3))
    assert (cache.has(tokens_of(1)), cache.has(tokens_of(2))) == (16, 0)


def test_a_place_where_runs_give_up_is_worth_less():
    """Equal waits, but at one place most runs never go on: a run that waits there gives way."""
    cache = Cache(8)
    wait_at(cache, "sure", 5)
    wait_at(cache, "unsure", 5, runs=2)
    for run in range(10):
        interest = Interest()
        cache.run(tokens_of(2000 + run, 8), interest)
        cache.cache.expect(interest, 1, "unsure")
        cache.cache.expect(interest, None)
    sure, unsure = Interest(), Interest()
    cache.run(tokens_of(1), sure)
    cache.cache.expect(sure, 1, "sure")
    cache.run(tokens_of(2), unsure)
    cache.cache.expect(unsure, 1, "unsure")
    cache.run(tokens_of(3))
    assert (cache.has(tokens_of(1)), cache.has(tokens_of(2))) == (16, 0)


def test_a_run_that_is_long_overdue_gives_way():
    """After twenty times the learned wait a run counts for less than one that has just begun it."""
    cache = Cache(8)
    wait_at(cache, "tool", 1)
    late, fresh = Interest(), Interest()
    cache.run(tokens_of(1), late)
    cache.cache.expect(late, 1, "tool")
    cache.now += 20
    cache.run(tokens_of(2), fresh)
    cache.cache.expect(fresh, 1, "tool")
    cache.run(tokens_of(3))
    assert (cache.has(tokens_of(1)), cache.has(tokens_of(2))) == (0, 16)


def test_conversations_that_nobody_hints_are_learned():
    """Where ended sessions are usually gone on from by new ones, as chat turns are, their KV
    outlives that of sessions that nobody ever goes on from."""
    cache = Cache(8)
    for run in range(8):
        for node, follows in (("chat", True), ("label", False)):
            mine = tokens_of(1000 + 100 * run + 50 * follows, 8)
            interest = Interest()
            cache.run(mine, interest)
            cache.cache.expect(interest, None, node)
            cache.now += 3
            if follows:
                cache.run([*mine, 7, 8])
    chat, label = Interest(), Interest()
    cache.run(tokens_of(1), chat)
    cache.cache.expect(chat, None, "chat")
    cache.run(tokens_of(2), label)
    cache.cache.expect(label, None, "label")
    cache.run(tokens_of(3))
    assert (cache.has(tokens_of(1)), cache.has(tokens_of(2))) == (16, 0)


def turn(cache, tokens, place="chat"):
    """A session of one step that ends; returns its interest."""
    interest = Interest()
    cache.run(tokens, interest)
    cache.cache.expect(interest, None, place)
    return interest


def two_turns(cache, mine, more, wait=1):
    """A conversation of two turns, the second `wait` seconds after the first."""
    turn(cache, mine)
    cache.now += wait
    turn(cache, [*mine, *more])


def test_the_chance_of_another_turn_is_learned_for_each_turn():
    """Conversations that all end with their second turn: its KV goes before that of a first one,
    though it was used later."""
    cache = Cache(8)
    for run in range(20):
        two_turns(cache, tokens_of(1000 + run, 8), [7, 8, 9, 10])
    cache.now += 1
    second = tokens_of(1, 8)
    turn(cache, second)
    cache.now += 1
    turn(cache, tokens_of(2))
    turn(cache, [*second, 1, 2, 3, 4, 5, 6, 7, 8])
    turn(cache, tokens_of(3, 12))
    assert (cache.has(tokens_of(2)), cache.has(second)) == (16, 4)


def test_the_chance_of_another_turn_is_not_taken_from_those_that_came_alone():
    """Every other conversation goes on, after ten seconds: that is known as soon as the first went
    on, before anybody was waited for long enough to be given up."""
    cache = Cache(64)
    interests = []
    for second in range(24):
        if second >= 10 and second % 2:
            cache.run([*tokens_of(1000 + second - 10, 8), 7, 8, 9])
        interests.append(turn(cache, tokens_of(1000 + second, 8)))
        cache.now += 1
    forecast = cache.cache.forecast
    assert 0.7 < forecast._odds_of(interests[-1]) < 1.5
    assert len(forecast._open["chat"]) == 24 - 7


def test_a_conversation_that_ended_keeps_nothing_for_its_many_turns():
    """The turns of one conversation are foretold, so they make no page one that all come by."""
    cache = Cache(64)
    text = []
    for step in range(9):
        text += tokens_of(100 + step, 4)
        turn(cache, text)
        cache.now += 1
    first = cache.kv.cache.match("", text, len(text)).full[0]
    assert first.visits == 0


def test_a_short_text_of_its_own_goes_on_from_nobody():
    """Sessions under one prefix that differ within a page are strangers, not turns of one."""
    cache = Cache(64)
    prefix = tokens_of(1, 8)
    for run in range(6):
        turn(cache, [*prefix, 5000 + run, 6000 + run], "label")
        cache.now += 1
    first = cache.kv.cache.match("", prefix, len(prefix)).full[0]
    assert first.visits > 4
    assert len(cache.cache.forecast._endings) == 6


def test_programs_that_nobody_goes_on_from_hide_no_conversation_that_ended():
    """Beside endings that are never gone on from, a conversation's silence is still noticed."""
    cache = Cache(64)
    turn(cache, tokens_of(1), "label")
    for run in range(2):
        two_turns(cache, tokens_of(10 + run, 8), [1, 2, 3, 4])
    cache.now += 100
    turn(cache, tokens_of(20))
    assert {place: len(those) for place, those in cache.cache.forecast._open.items()} == {
        "label": 1,
        "chat": 1,
    }


def test_waits_grow_longer_and_are_learned_all_the_same():
    """Where users came back after a second and now do after a minute, the minute is learned."""
    cache = Cache(64)
    for wait, runs in ((1, 5), (60, 40)):
        for run in range(runs):
            two_turns(cache, tokens_of(1000 * wait + run, 8), [7, 8, 9, 10], wait)
    last = turn(cache, tokens_of(1, 8))
    cache.now += 30
    turn(cache, tokens_of(2, 8))
    assert cache.cache.forecast.of_session(last) < 100


def test_who_ended_where_others_go_on_still_counts():
    """Two conversations under one system text: as their own pages go, both protect the text."""
    cache = Cache(64)
    for run in range(4):
        two_turns(cache, tokens_of(1000 + run, 8), [7, 8, 9, 10])
    system = tokens_of(1, 8)
    ends = [turn(cache, [*system, *tokens_of(10 + i, 8)]) for i in range(2)]
    shared = ends[0].node.parent.parent
    while shared.children:
        cache.cache.evict(1)
    assert shared.interests == ends


@pytest.mark.parametrize("after", [0, 1, None])
def test_a_session_that_ended_may_be_hinted_again(after):
    """Hints after "never", at another place, leave one count of each session, and no error."""
    cache = Cache(64)
    interest = turn(cache, tokens_of(1), "a")
    cache.cache.expect(interest, after, "b")
    cache.cache.expect(interest, None, "c")
    assert list(cache.cache.forecast._endings.values()) == [interest]
    cache.run([*tokens_of(1), 7], interest)
    assert not cache.cache.forecast._endings


def test_what_many_sessions_share_outlives_their_own_ends():
    """A prefix that new sessions keep coming by stays, though it was used before the last pages."""
    cache = Cache(12)
    for run in range(8):
        cache.run([*tokens_of(1), *tokens_of(10 + run, 4)])
        cache.now += 1
    for run in range(3):
        cache.run(tokens_of(50 + run))
        cache.now += 0.1
    assert cache.has(tokens_of(1)) == 16


def test_a_rank_follows_the_time_that_passes():
    """A page waits for its use in 100 seconds. 30 seconds later that is nearer than another's, in
    75: the other goes first, and nobody had to touch the first for that."""
    clock = [0.0]
    first, second = Node(None, (1,), 0), Node(None, (2,), 1)
    uses = {first: 100.0, second: 105.0}
    order = EvictionOrder(lambda _: True, lambda at: (clock[0] - uses[at], 0), lambda: clock[0])
    order.offer(first)
    clock[0] = 30.0
    order.offer(second)
    assert order.take() is second


def test_what_is_kept_for_the_order_is_bounded():
    """Thousands of uses of a pool that never runs full leave no heap that grows with them."""
    cache = Cache(64)
    for _ in range(4000):
        cache.run(tokens_of(1))
    assert len(cache.cache._order._heap) < 3000
    assert len(cache.cache._order._due) < 3000


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
