"""Arrays in which items of a kind are counted (`contains`): an automaton over the items.

What lives here: its places, what each item adds to which count, and the shortest way through it.
What does not: the rules that write it (emit.py) and how demands become items (arrays.py).

A place is how many items there are and how many count for each demand, both no further than it
matters. So it has few places where only "at least" is asked, and more where a length is bounded
as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from phloem.errors import ConstraintError
from phloem.grammar.schema.flat import State
from phloem.grammar.schema.model import Arrays, Counted, Item

__all__ = ["Edges", "Place", "edges", "fewest", "is_end"]

_MAX_PLACES = 1_200
Place = tuple[int, tuple[int, ...]]
"""Items so far, and those that count for each demand."""
Edges = dict[Place, list[tuple[Item, Place]]]


def edges(kind: Arrays, live: Callable[[State], bool] = lambda _: True) -> Edges:
    """The automaton from its start, over items whose states are `live`, cut down to the places
    from which an end can be reached; empty if none can."""
    counted = _counted(kind)
    start: Place = (0, (0,) * len(counted.bounds))
    found: Edges = {start: []}
    todo = [start]
    while todo:
        place = todo.pop()
        for item in counted.at(place[0]):
            after = _after(kind, counted, place, item) if live(item.state) else None
            if after is None:
                continue
            found[place].append((item, after))
            if after not in found:
                found[after] = []
                todo.append(after)
        if len(found) > _MAX_PLACES:
            raise ConstraintError(
                f"'contains' with these counts needs more than {_MAX_PLACES:,} states",
                hint="lower minContains and maxContains, or minItems and maxItems",
                keyword="contains",
            )
    return _cut(kind, found)


def is_end(kind: Arrays, place: Place) -> bool:
    """Whether the array may end at `place`."""
    bounds = _counted(kind).bounds
    return place[0] >= kind.min_items and all(
        count >= least for count, (least, _) in zip(place[1], bounds, strict=True)
    )


def fewest(kind: Arrays, size: Callable[[State], int]) -> int | None:
    """The least sum of `size` over the items of an array, with a comma between them."""
    found = edges(kind)
    heap: list[tuple[int, Place]] = [(0, place) for place in list(found)[:1]]
    done: set[Place] = set()
    while heap:
        cost, place = heapq.heappop(heap)
        if is_end(kind, place):
            return cost
        if place in done:
            continue
        done.add(place)
        for item, after in found[place]:
            heapq.heappush(heap, (cost + size(item.state) + (place[0] > 0), after))
    return None


def _counted(kind: Arrays) -> Counted:
    if kind.counted is None:
        raise AssertionError("an array without counts has no automaton")
    return kind.counted


def _after(kind: Arrays, counted: Counted, place: Place, item: Item) -> Place | None:
    """Where one more item leads; None if it is one too many."""
    total, counts = place
    if kind.max_items is not None and total >= kind.max_items:
        return None
    top = max(1, len(counted.places) - 1, kind.min_items, kind.max_items or 0)
    found = []
    for count, hit, (least, most) in zip(counts, item.hits, counted.bounds, strict=True):
        if hit and most is not None and count >= most:
            return None
        found.append(min(count + hit, max(least, most or 0)))
    return min(total + 1, top), tuple(found)


def _cut(kind: Arrays, found: Edges) -> Edges:
    before: dict[Place, set[Place]] = {place: set() for place in found}
    for place, ways in found.items():
        for _, after in ways:
            before[after].add(place)
    kept = {place for place in found if is_end(kind, place)}
    todo: list[Place] = list(kept)
    while todo:
        new: Iterable[Place] = before[todo.pop()] - kept
        kept.update(new)
        todo.extend(new)
    return {
        place: [(item, after) for item, after in ways if after in kept]
        for place, ways in found.items()
        if place in kept
    }
