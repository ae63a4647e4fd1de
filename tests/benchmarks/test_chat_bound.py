"""The bound for conversations, against the best rule found by trying all."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chat_bound import Holding, hindsight, holding
from benchmarks.traces import Again, Step

WAITS = (0.2, 0.1, 0.5, 0.2)
"""Chances that the second turn comes after one, two, … cells of time, if it does."""

TALKS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the cell in which the conversation begins
        st.integers(1, 3),  # tokens of its first turn
        st.sampled_from([0.3, 0.6, 0.9]),  # the chance of a second one
    ),
    min_size=2,
    max_size=3,
)
SYSTEMS = (1, 2)
"""Tokens of the system messages, which conversations take in turn."""

SECOND = 1
"""Tokens that the second turn has more."""

ALL = 15
"""Tokens of three conversations and both system messages."""


def law(chance):
    """A name for the law of a wait."""
    return Again(chance, 1.0, 1.0)


def chance_now(chance, age):
    """That the second turn comes after so many cells, if it has not come before."""
    before = sum(WAITS[: age - 1])
    return chance * WAITS[age - 1] / (1 - chance * before)


def counted(chance, left):
    """How the holding of a token is counted if it is worth `left` [4] at the end of each cell."""
    ages, sure, worth = [0.0], [0.0], []
    for age in range(1, len(WAITS) + 1):
        gain = (1 - left[age - 1]) * chance_now(chance, age)
        ages += [age - 1 / 256, age]
        sure += [sure[-1], sure[-1] + gain]
        worth += [0.0, left[age - 1]]
    return Holding(np.array(ages), np.array(worth), np.array(sure))


def histories(talks):
    """All ways in which it may go: the wait of each conversation, or None, and the chance."""
    each = [
        [(None, 1 - chance)]
        + [(age, chance * share) for age, share in enumerate(WAITS, 1)]
        for _, _, chance in talks
    ]  # fmt: skip
    for way in itertools.product(*each):
        yield [age for age, _ in way], math.prod(share for _, share in way)


def trace(talks, waits):
    """The steps of a history. Of one cell, those of earlier conversations come first."""
    steps = []
    for i, ((start, size, chance), wait) in enumerate(zip(talks, waits, strict=True)):
        kind = i % len(SYSTEMS)
        prompt = tuple(range(10 * kind, 10 * kind + SYSTEMS[kind])) + tuple(
            range(100 * (i + 1), 100 * (i + 1) + size)
        )

        def step(at, turn, text, again, i=i, kind=kind):
            return Step(
                at + i / 64, f"c{i}.{turn}", text[:-1], (*text[-1:], 0), "", None, True,
                shared=SYSTEMS[kind], again=again,
            )  # fmt: skip

        steps.append(step(start, 0, prompt, law(chance)))
        if wait is not None:
            longer = (*prompt, *range(100 * (i + 1) + 50, 100 * (i + 1) + 50 + SECOND))
            steps.append(step(start + wait, 1, longer, law(0.0)))
    return sorted(steps, key=lambda step: step.at)


def needs(system, tokens, page):
    """The room of the first so many tokens of a conversation's own, behind those of the system."""
    first = min(tokens, -system % page)
    return first + page * math.ceil((tokens - first) / page)


def best_expected_reuse(talks, capacity, page):
    """By trying every rule: what is kept beside each step, knowing what has come so far."""
    moments = [(cell, i) for cell in range(3 + len(WAITS)) for i in range(len(talks))]

    @functools.cache
    def best(at, own, systems):
        """From a moment on. `own` of each conversation: what is held of it, None once it can't be
        used any more."""
        if at == len(moments):
            return 0.0
        cell, i = moments[at]
        start, size, chance = talks[i]
        if cell == start:
            return systems[i % len(SYSTEMS)] + running(at, own, systems, size, size)
        age = cell - start
        if own[i] is None or not 1 <= age <= len(WAITS):
            return best(at + 1, own, systems)
        comes = chance_now(chance, age)
        used = systems[i % len(SYSTEMS)] + own[i] + running(at, own, systems, size + SECOND, None)
        return comes * used + (1 - comes) * best(at + 1, own, systems)

    def running(at, own, systems, size, left):
        """A step runs on a turn of `size`, of which `left` are held after it."""
        i = moments[at][1]
        kind = i % len(SYSTEMS)
        room = capacity - page * math.ceil((SYSTEMS[kind] + size) / page)
        levels = [
            [left] if j == i else [None] if there is None else range(there + 1)
            for j, there in enumerate(own)
        ] + [[SYSTEMS[kind]] if k == kind else range(there + 1) for k, there in enumerate(systems)]
        others = [j for j in range(len(levels)) if j not in (i, len(own) + kind)]
        return max(
            best(at + 1, kept[: len(own)], kept[len(own) :])
            for kept in itertools.product(*levels)
            if sum(
                needs(SYSTEMS[j % len(SYSTEMS)], kept[j] or 0, page) if j < len(own) else kept[j]
                for j in others
            )
            <= room
        )

    return best(0, (0,) * len(talks), (0,) * len(SYSTEMS))


@settings(max_examples=15, deadline=None)
@given(
    TALKS,
    st.sampled_from([6, 8, 10, ALL]),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.sampled_from([1, 2, 3]),
)
def test_no_rule_exceeds_the_bound_however_it_is_counted(talks, capacity, left, page):
    """Its mean over all histories is at least what the best of all rules expects, whatever a token
    that is held on is taken to be worth; with room for all it is that."""
    bound = sum(
        chance
        * hindsight(trace(talks, waits), capacity, lambda law: counted(law.chance, left), 20, page)
        for waits, chance in histories(talks)
    )
    best = best_expected_reuse(tuple(talks), capacity, page)
    assert best <= bound + 1e-9
    if capacity == ALL and page == 1:
        assert best == pytest.approx(bound)


@pytest.mark.parametrize("price", [0.01, 0.03, 0.1])
def test_a_token_brings_on_average_what_it_is_used(price):
    """However it is counted, holding it for some time brings the chance of a use until then."""
    law = Again(0.75, 20.0, 0.4)
    found = holding(law, price)
    ended = np.array(
        [0.0] + [math.erfc(-math.log(a / 20) / 0.4 / 2**0.5) / 2 for a in found.ages[1:]]
    )
    middles = (found.ages[1:] + found.ages[:-1]) / 2
    brought = np.interp(middles, found.ages, found.sure) + found.left
    for cells in (100, 400, 900, len(found.left)):
        used = law.chance * (np.diff(ended)[:cells] @ brought[:cells])
        kept = (1 - law.chance * ended[cells]) * found.sure[cells]
        assert used + kept == pytest.approx(law.chance * ended[cells], abs=1e-5)
