"""Sharing of prefixes, against a plain trie and a storage in which each slot names its token."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.runtime.engine.kv_pool import KVPool
from phloem.runtime.engine.radix_cache import RadixCache
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.sequence_kv import SequenceKV
from phloem.runtime.engine.tokens import common_prefix
from phloem.runtime.model.batch import KVStorage


class Bench:
    """Sequences without a decoder: "computing" a token writes its prefix's hash to its slot."""

    def __init__(self, pages=64, size=4, sharing=True, hints=True):
        self.pool = KVPool(
            KVStorage([torch.zeros(pages, size, 1, 1, dtype=torch.int64)], [], size), pages
        )
        self.cache = RadixCache(self.pool, hints=hints)
        self.kv = SequenceKV(self.pool, self.cache, sharing=sharing)
        self.size = size

    def start(self, tokens, namespace=""):
        seq = Sequence(namespace, list(tokens), len(tokens) - 1)
        self.kv.attach(seq)
        return seq

    def compute(self, seq, upto=None):
        upto = len(seq.tokens) if upto is None else upto
        assert self.kv.grow(seq, upto)
        for at in range(seq.computed, upto):
            self.slot(seq, at)[0] = self.name(seq, at)
        seq.computed = upto

    def slot(self, seq, at):
        return self.pool.storage.keys[0][seq.pages[at // self.size], at % self.size, 0]

    @staticmethod
    def name(seq, at):
        return hash((seq.namespace, *seq.tokens[: at + 1])) >> 1

    def check(self, seq):
        for at in range(seq.computed):
            assert int(self.slot(seq, at)[0]) == self.name(seq, at), f"wrong KV at {at}"

    def run(self, tokens, namespace=""):
        """A sequence from start to end; returns how many tokens were shared."""
        seq = self.start(tokens, namespace)
        shared = seq.computed
        self.check(seq)
        self.compute(seq)
        self.kv.publish(seq)
        self.kv.detach(seq)
        return shared


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), max_size=25)


@settings(deadline=None, max_examples=60)
@given(PROMPTS, st.sampled_from([1, 2, 3, 4, 16]))
def test_sharing_is_exact_to_the_token_whatever_the_page_size(prompts, size):
    """With room enough, a prompt shares exactly its longest prefix with any earlier prompt."""
    bench = Bench(pages=600, size=size)
    seen: list[list[int]] = []
    for prompt in prompts:
        best = max((common_prefix(prompt, other) for other in seen), default=0)
        assert bench.run(prompt) == min(best, len(prompt) - 1)
        seen.append(prompt)


def test_namespaces_never_share():
    """The same tokens in another namespace are computed anew."""
    bench = Bench()
    assert bench.run(range(20), "a") == 0
    assert bench.run(range(20), "b") == 0
    assert bench.run(range(20), "a") == 19


def test_without_sharing_nothing_is_kept():
    """With the cache off every page is free again when a sequence ends."""
    bench = Bench(sharing=False)
    assert bench.run(range(20)) == bench.run(range(20)) == 0
    assert bench.pool.free == 64


def test_the_first_goes_on_in_place_and_the_others_copy_one_page():
    """Forks share all full pages; one continues in the last page, each other copies it."""
    bench = Bench(size=4)
    bench.run(range(10))
    before = bench.pool.free
    forks = [bench.start([*range(10), 100 + i]) for i in range(3)]
    assert [fork.computed for fork in forks] == [10, 10, 10]
    assert before - bench.pool.free == 2
    assert len({fork.pages[2] for fork in forks}) == 3
    for fork in forks:
        bench.compute(fork)
        bench.check(fork)
    for fork in forks:
        bench.kv.publish(fork)
        bench.kv.detach(fork)
    assert [bench.run([*range(10), 100 + i, 0]) for i in range(3)] == [11, 11, 11]


def test_running_sequences_are_shared_too():
    """What a running sequence has published is found, and kept apart from what it writes next."""
    bench = Bench(size=4)
    first = bench.start(range(6))
    bench.compute(first)
    bench.kv.publish(first)
    second = bench.start([*range(6), 50, 51])
    assert second.computed == 6
    first.tokens += [7, 8, 9]
    bench.compute(first)
    bench.compute(second)
    bench.check(first)
    bench.check(second)


def test_equal_tokens_computed_twice_become_one_page():
    """Two sequences that computed the same tokens side by side end up on the same pages."""
    bench = Bench(size=4)
    pair = [bench.start(range(9)), bench.start(range(9))]
    for seq in pair:
        bench.compute(seq)
    for seq in pair:
        bench.kv.publish(seq)
        bench.check(seq)
    assert pair[0].pages[:2] == pair[1].pages[:2]


def test_eviction_takes_leaves_least_recently_used_first():
    """By recency, eviction frees the oldest branch from its end, never a page a later one needs."""
    bench = Bench(pages=8, size=2, hints=False)
    bench.run([1, 1, 2, 2])
    bench.run([1, 1, 3, 3])
    bench.run([1, 1, 2, 2, 9])
    assert bench.cache.evict(1) == 1
    assert bench.run([1, 1, 3, 3, 9]) == 2
    assert bench.run([1, 1, 2, 2, 9]) == 4


def test_locked_pages_are_never_evicted():
    """A running sequence keeps all its pages however many are asked for."""
    bench = Bench(pages=8, size=2)
    bench.run(range(10))
    seq = bench.start(range(6))
    bench.cache.evict(100)
    bench.check(seq)
    assert bench.pool.free + len(seq.pages) == 8


def test_memory_runs_out_without_harm():
    """Growing past the pool fails, and what was taken can be given back."""
    bench = Bench(pages=4, size=2)
    seq = bench.start(range(20))
    assert not bench.kv.grow(seq, 20)
    bench.kv.detach(seq)
    assert bench.pool.free == 4


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("seed", range(8))
def test_under_pressure_every_shared_slot_holds_the_right_token(size, seed):
    """In a pool too small for the traffic, sharing, copying and eviction never mix up KV."""
    rng = random.Random(seed)
    bench = Bench(pages=40 // size + 4, size=size)
    running: list[Sequence] = []
    for _ in range(400):
        if running and rng.random() < 0.5:
            seq = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.7:
                bench.kv.publish(seq)
            bench.kv.detach(seq)
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
        seq = bench.start(tokens)
        bench.check(seq)
        if bench.kv.grow(seq, len(tokens)):
            bench.compute(seq)
            running.append(seq)
        else:
            bench.kv.detach(seq)
        for seq in running:
            bench.check(seq)
    for seq in running:
        bench.kv.detach(seq)
    assert bench.pool.used == 0
