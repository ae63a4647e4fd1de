"""How often new sessions come by a page: rates, and what is remembered of pages given up."""

import random

import pytest

from phloem.runtime.engine.arrivals import Arrivals
from phloem.runtime.engine.radix_tree import Node


class Clock:
    """Arrivals at a page, on a clock that is set by hand."""

    def __init__(self, remembered=10):
        self.now = 0.0
        self.arrivals = Arrivals(lambda: self.now, remembered)

    def page(self, name):
        node = Node(None, (name,), 0)
        self.arrivals.entered(node)
        return node

    def visits(self, node, waits):
        for wait in waits:
            self.now += wait
            self.arrivals.came([node], [])


def test_the_rate_of_a_page_is_that_of_its_visits():
    """Thirty random visits, two a second: the rate is within a third of that."""
    clock = Clock()
    page = clock.page(1)
    rng = random.Random(3)
    clock.visits(page, [rng.expovariate(2.0) for _ in range(30)])
    assert clock.arrivals.rate(page) == pytest.approx(2.0, rel=0.33)


def test_a_page_that_was_never_visited_is_worth_little():
    """A new page counts for less than a tenth of one that was visited once in the same time."""
    clock = Clock()
    once, never = clock.page(1), clock.page(2)
    clock.visits(once, [1.0])
    assert 0 < clock.arrivals.rate(never) < clock.arrivals.rate(once) / 10


def test_a_burst_that_is_over_counts_for_less_than_a_slow_and_steady_page():
    """Ten visits within a second and then silence, against one visit in five seconds."""
    clock = Clock()
    steady = clock.page(1)
    clock.visits(steady, [5.0] * 8)
    burst = clock.page(2)
    clock.visits(burst, [0.1] * 10)
    assert clock.arrivals.rate(burst) > clock.arrivals.rate(steady)
    clock.now += 5
    clock.visits(steady, [0.0])
    clock.now += 5
    assert clock.arrivals.rate(burst) < clock.arrivals.rate(steady) / 10


def test_what_is_known_outlives_the_page():
    """A page that was given up, missed and cached again is as well known as one that stayed."""
    clock = Clock()
    stayed, left = clock.page(1), clock.page(2)
    clock.visits(stayed, [1.0])
    clock.arrivals.came([left], [])
    clock.arrivals.left(left)
    clock.now += 1
    clock.arrivals.came([stayed], [left.chain])
    again = Node(None, (2,), 0)
    clock.arrivals.entered(again)
    assert clock.arrivals.rate(again) == clock.arrivals.rate(stayed)


def test_so_many_pages_are_remembered_and_no_more():
    """With room for three, the first of four that were given up is as good as new."""
    clock = Clock(remembered=3)
    for name in range(4):
        page = clock.page(name)
        clock.arrivals.came([page], [])
        clock.arrivals.left(page)
    assert clock.page(0).visits == 0
    assert clock.page(1).visits == 1


def test_a_page_that_nobody_came_by_for_ages_has_a_rate():
    """A million times the usual wait gives a small number, not an error."""
    clock = Clock()
    page = clock.page(1)
    clock.visits(page, [0.001] * 100)
    clock.now += 1e9
    assert 0 <= clock.arrivals.rate(page) < 1e-9
