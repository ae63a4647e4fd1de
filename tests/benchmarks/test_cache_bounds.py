"""The bounds for caches that don't see the future: for independent requests against the best rule
found by trying all, and the cache against both."""

import functools
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bounds import Popularity, few_shot_bound, learned
from benchmarks.cache_policy import Replay, pages_for
from benchmarks.chat_bound import chat_bound, chat_price
from benchmarks.traces import FEW_SHOT_CHANCES, Step, chat, few_shot

TEXTS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([0.5, 1.0, 3.0])), min_size=2, max_size=3
)


class Dealt:
    """Texts that have got their chances in one of some ways, each as likely as any other."""

    def __init__(self, ways):
        self.ways = ways

    def likely(self, asked):
        """The chance that so much is asked for, one text after the other, in each of the ways."""
        return [math.prod(way[text] for text in asked) for way in self.ways]

    def after(self, asked):
        """The chance of each text after what was asked for."""
        likely = self.likely(asked)
        return [
            sum(share * chance for share, chance in zip(likely, chances, strict=True)) / sum(likely)
            for chances in zip(*self.ways, strict=True)
        ]


def best_expected_reuse(sizes, dealt, requests, capacity, own):
    """By trying every rule: what is held of each text, chosen after each request."""

    @functools.cache
    def best(held, asked):
        if len(asked) == requests:
            return 0.0
        return sum(
            chance * (held[text] + best_after(held, (*asked, text)))
            for text, chance in enumerate(dealt.after(asked))
        )

    @functools.cache
    def best_after(held, asked):
        """The last text is being computed, with `own` tokens of its own behind it."""
        text = asked[-1]
        room = max(0, capacity - sizes[text] - own)
        options = [()]
        for other, size in enumerate(held):
            most = sizes[text] if other == text else size
            options = [(*kept, n) for kept in options for n in range(most + 1)]
        return max(
            best(kept, asked)
            for kept in options
            if sum(n for other, n in enumerate(kept) if other != text) <= room
        )

    return best((0,) * len(sizes), ())


@pytest.mark.parametrize("told", [True, False])
@settings(max_examples=40, deadline=None)
@given(TEXTS, st.integers(1, 4), st.integers(3, 8))
def test_no_rule_exceeds_the_few_shot_bound(told, texts, requests, capacity):
    """Its mean over all histories is at least what the best of all rules expects: of those that
    know which text has which chance, or of those that must learn it."""
    sizes, weights = zip(*texts, strict=True)
    chances = [weight / sum(weights) for weight in weights]
    dealt = Dealt([chances] if told else list(itertools.permutations(chances)))
    bound = 0.0
    for asked in itertools.product(range(len(sizes)), repeat=requests):
        steps = [
            Step(
                0.0, str(i), (*range(10 * text, 10 * text + sizes[text]), 100 + i), (200 + i,), "",
                None, True, shared=sizes[text],
            )
            for i, text in enumerate(asked)
        ]  # fmt: skip
        named = {10 * text: chance for text, chance in enumerate(chances)}
        known = [named] * requests if told else learned(steps, chances)
        chance = sum(dealt.likely(asked)) / len(dealt.ways)
        bound += chance * few_shot_bound(steps, capacity, known)
    best = best_expected_reuse(sizes, dealt, requests, capacity, 1)
    assert best <= bound + 1e-9
    if capacity >= sum(sizes) + 1:  # then nothing is lost, and both count the same
        assert best == pytest.approx(bound)


@pytest.mark.parametrize("counts", [[1], [2, 1], [0, 3, 1], [5, 0, 2, 1]])
def test_a_chance_is_the_mean_over_all_orders(counts):
    """What a sum over sets gives is what one over all orders gives, also before all texts came."""
    chances = [0.5, 0.2, 0.2, 0.1]
    asked = [text for text, count in enumerate(counts) for _ in range(count)]
    dealt = Dealt(list(itertools.permutations(chances)))
    expected = dealt.after(tuple(asked))[: len(counts)]
    assert Popularity(chances).after(counts) == pytest.approx(expected)


@pytest.mark.parametrize(("shape", "runs"), [(few_shot, 40), (chat, 40)])
def test_the_cache_stays_below_the_bound(shape, runs):
    """Over some traces the cache reuses less than the bound, and with more room the bound is
    larger."""
    traces = [shape(seed, runs) for seed in range(3)]
    known = [learned(trace, FEW_SHOT_CHANCES) for trace in traces if shape is few_shot]
    bounds = []
    for tokens in (3008, 5008):  # whole pages
        if known:
            each = [few_shot_bound(*told) for told in zip(traces, [tokens] * 3, known, strict=True)]
        else:
            price = chat_price([shape(99, 10)], tokens)
            each = [chat_bound(trace, tokens, price) for trace in traces]
        reused = sum(Replay(pages_for(tokens)).run(trace) for trace in traces)
        assert 0.7 * sum(each) < reused < sum(each)
        bounds.append(sum(each))
    assert bounds[0] < bounds[1]
