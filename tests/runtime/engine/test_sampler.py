"""From logits to tokens."""

from collections import Counter

import numpy as np
import pytest
import torch

from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.masks import pack
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.sampler import NO_TOKEN, Draw, Likeliest, sample

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0])


def drawn(count=4000, logits=LOGITS, allowed=None, **params):
    """How often each token is drawn."""
    noise = Noise(7, "")
    asked = SamplingParams(**params)
    draws = [Draw(asked, noise.uniform(i), allowed) for i in range(count)]
    return Counter(sample(logits.repeat(count, 1), draws))


def test_temperature_zero_is_greedy():
    """The likeliest token, whatever the noise."""
    assert drawn(10, temperature=0) == {1: 10}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    """Each token is drawn as often as its probability says, within four standard errors."""
    probs = torch.softmax(LOGITS / temperature, 0).tolist()
    counts = drawn(temperature=temperature)
    for token, p in enumerate(probs):
        assert abs(counts[token] - 4000 * p) < 4 * (4000 * p * (1 - p)) ** 0.5 + 1


def test_top_k_keeps_the_k_likeliest():
    """Only the two likeliest tokens are drawn."""
    assert set(drawn(top_k=2)) == {1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    """The set is the smallest whose probability reaches top_p: 0.64 + 0.24 >= 0.8."""
    assert set(drawn(top_p=0.8)) == {1, 2}
    assert set(drawn(top_p=0.6)) == {1}


def test_top_p_works_on_what_top_k_left():
    """After top_k the probabilities are renormalised: 0.73 reaches 0.7 alone."""
    assert set(drawn(top_k=2, top_p=0.7)) == {1}


def test_top_p_looks_past_the_sorted_head():
    """A flat distribution over 5,000 tokens keeps half of them at top_p 0.5."""
    flat = torch.linspace(0, 1e-3, 5000)
    assert min(drawn(500, flat, top_p=0.5)) >= 2490


def test_min_p_is_relative_to_the_likeliest():
    """Tokens less than 0.3 times as likely as the best are left out."""
    assert set(drawn(min_p=0.3)) == {1, 2}


def test_masked_tokens_are_never_drawn():
    """A mask holds for greedy and for sampled rows."""
    allowed = pack(np.array([True, False, False, True, False]))
    assert set(drawn(allowed=allowed)) == {0, 3}
    assert set(drawn(5, allowed=allowed, temperature=0)) == {0}


def test_one_row_does_not_change_another():
    """A row's token is the same alone and beside rows with other settings and masks."""
    noise = Noise(3, "")
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_k=3, temperature=2.0),
        SamplingParams(top_p=0.5, min_p=0.1, frequency_penalty=1.0),
    ]
    draws = [Draw(kinds[i % 4], noise.uniform(i), output={1: 2}) for i in range(40)]
    together = sample(logits.clone(), draws)
    alone = [sample(logits[i : i + 1].clone(), [draws[i]])[0] for i in range(40)]
    assert together == alone


def test_penalties():
    """Frequency counts, presence does not, repetition looks at the prompt too."""
    row = torch.tensor([[2.0, 1.9, -1.0]])
    greedy = SamplingParams(temperature=0)

    def with_(output, seen=frozenset(), **params):
        asked = SamplingParams(temperature=0, **params)
        return sample(row.clone(), [Draw(asked, 0.0, output=output, seen=seen)])[0]

    assert sample(row.clone(), [Draw(greedy, 0.0)]) == [0]
    assert with_({0: 1}, presence_penalty=0.2) == 1
    assert with_({0: 1, 1: 3}, frequency_penalty=0.2) == 0
    assert with_({0: 3, 1: 1}, frequency_penalty=0.2) == 1
    assert with_({}, frozenset({0}), repetition_penalty=1.2) == 1
    assert with_({2: 1}, frozenset({0, 1}), repetition_penalty=9.0) == 0


@pytest.mark.parametrize("least", [5e-324, 1e-40])
def test_the_least_repetition_penalty_draws_a_token(least):
    """Dividing by next to nothing leaves logits that can be drawn from: the raised tokens."""
    asked = SamplingParams(repetition_penalty=least)
    draws = [Draw(asked, u / 8, seen=frozenset({0, 1})) for u in range(8)]
    assert set(sample(LOGITS.repeat(8, 1), draws)) == {0, 1}


def test_noise_depends_on_seed_branch_and_position_alone():
    """The numbers are fixed for ever: a change would change every seeded result."""
    assert [round(Noise(1, "").uniform(i), 6) for i in (0, 1, 1000)] == [
        0.584132,
        0.636514,
        0.045367,
    ]
    assert len({Noise(s, b).uniform(p) for s in (1, 2) for b in ("", "0") for p in (0, 1)}) == 8


def test_noise_is_uniform():
    """Ten thousand numbers fill ten bins evenly, also across positions of one branch."""
    noise = Noise(11, "0.1")
    bins = Counter(int(10 * noise.uniform(i)) for i in range(10_000))
    assert all(880 < bins[i] < 1120 for i in range(10))


def test_a_likeliest_token_that_nobody_knows_is_drawn_anew():
    """A model may have rows for more tokens than the tokenizer knows; what it found among all of
    them counts only if it is one of the known."""
    draw = Draw(SamplingParams(temperature=0), 0.0)
    likeliest = Likeliest(torch.zeros(3, 8), [7, 8, NO_TOKEN])
    assert [likeliest.of(row, draw) for row in range(3)] == [7, None, NO_TOKEN]
