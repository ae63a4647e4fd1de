"""The bounds for caches that don't see the future, against the best rule found by trying all."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bounds import chat_bound, chat_price, few_shot_bound, hold
from benchmarks.cache_policy import Replay, pages_for
from benchmarks.traces import CHAT_EVERY, FEW_SHOT_EVERY, Step, chat, few_shot

TEXTS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0])), min_size=2, max_size=3
)


def every_history(chances, requests):
    """All that may be asked for, one text after the other, each with its chance."""
    histories = [((), 1.0)]
    for _ in range(requests):
        histories = [
            ((*asked, text), chance * more)
            for asked, chance in histories
            for text, more in enumerate(chances)
        ]
    return histories


def best_expected_reuse(sizes, chances, requests, capacity, own):
    """By trying every rule: what is held of each text, chosen after each request."""

    @functools.cache
    def best(held, left):
        if not left:
            return 0.0
        return sum(
            chance * (held[text] + best_after(held, text, left - 1))
            for text, chance in enumerate(chances)
        )

    @functools.cache
    def best_after(held, text, left):
        """`text` is being computed, with `own` tokens of its own behind it."""
        room = max(0, capacity - sizes[text] - own)
        options = [()]
        for other, size in enumerate(held):
            most = sizes[text] if other == text else size
            options = [(*kept, n) for kept in options for n in range(most + 1)]
        return max(
            best(kept, left)
            for kept in options
            if sum(n for other, n in enumerate(kept) if other != text) <= room
        )

    return best((0,) * len(sizes), requests)


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(1, 4), st.integers(3, 8))
def test_no_rule_exceeds_the_few_shot_bound(texts, requests, capacity):
    """Its mean over all histories is at least what the best of all rules expects."""
    sizes, weights = zip(*texts, strict=True)
    chances = [weight / sum(weights) for weight in weights]
    bound = 0.0
    for asked, chance in every_history(chances, requests):
        steps = [
            Step(
                0.0, str(i), (*range(10 * text, 10 * text + sizes[text]), 100 + i), (200 + i,), "",
                None, True, shared=sizes[text], rate=chances[text],
            )
            for i, text in enumerate(asked)
        ]  # fmt: skip
        bound += chance * few_shot_bound(steps, capacity, 1.0)
    best = best_expected_reuse(sizes, tuple(chances), requests, capacity, 1)
    assert best <= bound + 1e-9
    if capacity >= sum(sizes) + 1:  # then nothing is lost, and both count the same
        assert best == pytest.approx(bound)


LAWS = st.tuples(
    st.integers(0, 2),  # when the conversation begins
    st.integers(1, 2),  # its tokens
    st.sampled_from([0.3, 0.6, 1.0]),  # the chance of another turn
)
WAITS = np.array([0.2, 0.1, 0.5, 0.2])


def best_expected_turns(talks, capacity, cells=6):
    """By trying every rule: which tokens of `talks`, that wait for their one next turn, are held in
    each cell of time. A wait of i + 1 cells ends at the end of cell i with chance `WAITS[i]`."""

    @functools.cache
    def best(cell, held):
        """What is expected from a cell on. Of each: None if it has not begun or is over, else the
        tokens that may still be held."""
        if cell == cells:
            return 0.0
        begun = [
            size if start == cell else there
            for (start, size, _), there in zip(talks, held, strict=True)
        ]
        options = [()]
        for there in begun:
            levels = [None] if there is None else range(there + 1)
            options = [(*kept, n) for kept in options for n in levels]
        return max(
            expected(cell, kept) for kept in options if sum(n or 0 for n in kept) <= capacity
        )

    def expected(cell, kept):
        outcomes = [((), 0.0, 1.0)]
        for (start, _, chance), there in zip(talks, kept, strict=True):
            age = cell - start
            if there is None or age >= len(WAITS):
                ways = [(None, 0.0, 1.0)]
            else:
                still = 1 - chance * WAITS[:age].sum()
                comes = chance * WAITS[age] / still if still else 0.0
                ways = [(None, there, comes), (there, 0.0, 1 - comes)]
            outcomes = [
                ((*state, after), gain + more, chance_of * likely)
                for state, gain, chance_of in outcomes
                for after, more, likely in ways
                if likely
            ]
        return sum(likely * (gain + best(cell + 1, state)) for state, gain, likely in outcomes)

    return best(0, tuple(None for _ in talks))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(LAWS, min_size=1, max_size=3),
    st.integers(1, 3),
    st.lists(st.sampled_from([0.0, 0.05, 0.15, 0.3]), min_size=6, max_size=6),
)
def test_no_rule_exceeds_the_bound_at_any_price(talks, capacity, price):
    """What `hold` finds at any prices, and the price of the room, is at least what the best of all
    rules expects; with room for all it is that at no price."""
    starts, sizes, chances = (np.array(part) for part in zip(*talks, strict=True))
    ends = np.cumsum(WAITS)
    waits = ends - WAITS  # at the beginning of a cell
    price = np.array(price)
    at_price = sizes @ hold(starts, price, chances, ends, waits).value + capacity * price.sum()
    best = best_expected_turns(tuple(talks), capacity)
    assert best <= at_price + 1e-9
    if sum(sizes) <= capacity:
        free = hold(starts, 0 * price, chances, ends, waits)
        assert best == pytest.approx(sizes @ free.value)


def test_what_is_held_is_what_its_price_is_paid_for():
    """The value of holding is the chance of a use less the price of what is expected to be held."""
    ends = np.cumsum(WAITS)
    price = np.array([0.1, 0.0, 0.05, 0.2, 0.0, 0.0])
    found = hold(np.array([0, 1]), price, np.array([1.0, 0.5]), ends, ends - WAITS)
    for row, start in enumerate((0, 1)):
        cells = np.flatnonzero(found.held[row])
        used = [1.0, 0.5][row] * (ends[cells[-1]] if len(cells) else 0.0)
        paid = found.held[row] @ np.pad(price, (0, 4))[start : start + 4]
        assert found.value[row] == pytest.approx(max(0.0, used - paid))


@pytest.mark.parametrize(("shape", "every"), [(few_shot, FEW_SHOT_EVERY), (chat, CHAT_EVERY)])
def test_the_cache_stays_below_the_bound(shape, every):
    """Over some traces the cache reuses less than the bound, told all chances or not, and with more
    room the bound is larger."""
    runs, seeds = (120, 4) if shape is few_shot else (40, 4)
    traces = [shape(seed, runs) for seed in range(seeds)]
    bounds = []
    for tokens in (3008, 5008):  # whole pages
        price = chat_price([shape(99, runs)], tokens, 30) if shape is chat else None
        bound = sum(
            few_shot_bound(trace, tokens, every)
            if price is None
            else chat_bound(trace, tokens, price)
            for trace in traces
        )
        for told in (False, True):
            reused = sum(Replay(pages_for(tokens), told=told).run(trace) for trace in traces)
            assert 0.7 * bound < reused < bound
        bounds.append(bound)
    assert bounds[0] < bounds[1]
