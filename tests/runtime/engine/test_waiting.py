"""The order in which waiting jobs are served, its bound, and what it costs to keep."""

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.programs.protocol import SamplingParams
from phloem.runtime.engine.config import EngineConfig
from phloem.runtime.engine.generation import Generation
from phloem.runtime.engine.noise import Noise
from phloem.runtime.engine.pace import Pace
from phloem.runtime.engine.params import make_output_text
from phloem.runtime.engine.prefix import Prefix
from phloem.runtime.engine.scheduler import step
from phloem.runtime.engine.sequence import Sequence
from phloem.runtime.engine.state import EngineState
from phloem.runtime.engine.vocabulary import Vocabulary
from phloem.runtime.engine.waiting import WaitingJobs


def job(cached=0, priority=0, deadline=None):
    """A job whose prefix of `cached` tokens the queue of `queue_of` finds in the cache."""
    made = Prefix(Sequence("", [0], 1), lambda message: None, priority=priority, deadline=deadline)
    made.in_cache = cached
    return made


def queue_of(jobs=(), overtakes=4):
    """A queue that looks a job's cached prefix up in the job itself."""
    queue = WaitingJobs(lambda job: job.in_cache, overtakes)
    for one in jobs:
        queue.add(one)
    return queue


def drain(queue):
    """All jobs in the order in which they are served."""
    served = []
    while (one := queue.first()) is not None:
        queue.serve(one)
        served.append(one)
    return served


def test_priority_then_the_longest_prefix_then_arrival():
    """Of equal priority the longest cached prefix is first, of equal prefixes the oldest."""
    jobs = [job(5), job(9), job(5), job(0, priority=1), job(7)]
    assert drain(queue_of(jobs, 99)) == [jobs[i] for i in (3, 1, 4, 0, 2)]


def test_without_overtaking_it_is_first_come_first_served():
    """With a bound of 0 neither prefix nor priority changes the order."""
    jobs = [job(i, priority=i % 3) for i in range(9)]
    assert drain(queue_of(jobs, 0)) == jobs


def test_an_endless_stream_of_better_jobs_overtakes_no_more_than_stated():
    """Each time a job is served one with a longer prefix and a higher priority arrives: the job
    without a prefix is served after exactly as many as the bound allows."""
    poor = job()
    queue = queue_of([poor, *(job(100, 1) for _ in range(10))], overtakes=7)
    served = []
    while poor in queue:
        one = queue.first()
        queue.serve(one)
        served.append(one)
        queue.add(job(100 + len(served), 1))
    assert served[7:] == [poor]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60), st.integers(0, 6))
def test_nobody_is_overtaken_more_often_than_stated(arrivals, bound):
    """For any arrivals between any services, no job sees more than the bound of later ones
    served before it."""
    queue, overtaken, rest = queue_of(overtakes=bound), {}, list(arrivals)
    while rest or queue:
        for cached, priority in rest[:2]:
            new = job(cached, priority)
            queue.add(new)
            overtaken[new] = 0
        rest = rest[2:]
        served = queue.first()
        queue.serve(served)
        del overtaken[served]
        for other in overtaken:
            overtaken[other] += other.ticket < served.ticket
        assert all(count <= bound for count in overtaken.values())


def test_a_job_that_was_suspended_comes_before_fresh_ones():
    """It keeps its arrival and goes before longer prefixes."""
    first, fresh = job(), job(50)
    queue = queue_of([first])
    queue.serve(first)
    first.clock.started = 1.0
    queue.add(fresh)
    queue.add(first)
    assert drain(queue) == [first, fresh]


def test_a_job_put_aside_comes_back_with_its_new_prefix():
    """Nobody is proposed who waits for another's prefill; when that is done the rank is new."""
    other, waits, plain = job(), job(), job(3)
    queue = queue_of([waits, plain], 99)
    queue.put_aside(waits, other)
    queue.refresh(lambda job: True)
    assert queue.first() is plain
    waits.in_cache = 8
    queue.refresh(lambda job: False)
    assert drain(queue) == [waits, plain]


def test_a_removed_job_is_never_served_and_an_expired_one_is_told():
    """Cancelled jobs vanish from every order; deadlines come up once, when they have passed."""
    jobs = [job(i, deadline=10.0 + i) for i in range(5)]
    queue = queue_of(jobs)
    queue.remove(jobs[4])
    assert queue.expired(9.0) == []
    assert queue.expired(12.5) == jobs[:3]
    for one in jobs[:3]:
        queue.remove(one)
    assert queue.expired(99.0) == [jobs[3]]
    assert drain(queue) == [jobs[3]]


def test_the_bound_holds_whatever_happens_between():
    """Random arrivals, removals, refreshes and suspensions never break the order's books."""
    rng, queue, inside = random.Random(1), queue_of(overtakes=3), []
    for _ in range(3000):
        act = rng.random()
        if act < 0.45:
            inside.append(job(rng.randrange(9), rng.randrange(2)))
            queue.add(inside[-1])
        elif act < 0.55 and inside:
            queue.remove(inside.pop(rng.randrange(len(inside))))
        elif act < 0.6:
            for one in inside:
                one.in_cache = rng.randrange(9)
            queue.refresh(lambda job: False)
        elif (first := queue.first()) is not None:
            queue.serve(first)
            inside.remove(first)
            if rng.random() < 0.1:
                first.clock.started = 1.0
                queue.add(first)
                inside.append(first)
        assert set(queue) == set(inside)
        assert (queue.first() is None) == (not inside)


@pytest.fixture(scope="module")
def cost_of(tiny):
    """Function calls, and jobs looked at, of 20 steps with `n` jobs in the queue."""
    vocabulary = Vocabulary(tiny.tokenizer, tiny.decoder.vocab_size, tiny.eos_ids)

    def generation(i, tokens):
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        return Generation(
            Sequence("", tiny.tokenizer.encode(f"question {i}"), 5),
            lambda message: None,
            params=params,
            vocabulary=vocabulary,
            noise=Noise(i, ""),
            text=make_output_text(params),
            deadline=1e12,
        )

    def cost(n):
        state = EngineState(tiny.decoder, vocabulary, EngineConfig(kv_tokens=4096, max_running=4))
        for i in range(n + 4):
            state.enqueue(generation(i, 6))
        step(state)
        looked, calls = state.waiting.looked_at, 0

        def count(frame, event, arg):
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            for _ in range(20):
                step(state)
        finally:
            sys.setprofile(None)
        return calls, state.waiting.looked_at - looked

    return cost


def test_a_step_costs_the_same_whatever_the_queue_holds(cost_of):
    """With 1,000 queued, twenty steps look at as many jobs and make as many calls as with 100;
    with 10 or 1, at no more."""
    (few, looked_few), (many, looked_many) = cost_of(100), cost_of(1000)
    assert looked_many <= looked_few * 1.05
    assert many <= few * 1.05
    for n in (1, 10):
        calls, looked = cost_of(n)
        assert looked <= looked_few
        assert calls <= few


def test_chunks_settle_at_the_time_allowed():
    """With passes of 10 ms + 0.5 ms a row, chunks cut for 60 ms come to 100 rows."""
    for start in (16, 512):
        pace, rows = Pace(), start
        assert pace.rows_within(60) == 0
        for _ in range(60):
            pace.measure(rows, 10 + 0.5 * rows)
            rows = max(16, pace.rows_within(60))
        assert 95 <= rows <= 101
