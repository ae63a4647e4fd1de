"""Seeded traces of steps in the shapes of real programs, and what an all-knowing cache would reuse.

What lives here: `Step`, one generator a shape, and counts that know the whole trace: `reusable` (an
unbounded cache), `best_hits` (a bounded one), and two sizes of a trace, `footprint` and
`working_set`. What does not: the cache that is tested (`cache_policy.py` replays traces on it).

Tokens are numbers; text that is equal gets equal numbers, other text numbers of its own. Times
are seconds of a virtual clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

__all__ = [
    "FEW_SHOT_CHANCES", "SHAPES", "Again", "Step", "best_hits", "chat", "few_shot", "footprint",
    "reusable", "working_set",
]  # fmt: skip

FEW_SHOT_EVERY, CHAT_EVERY = 0.3, 2.0
"""Seconds between two requests, and between two new conversations, in the mean."""

FEW_SHOT_CHANCES = tuple(1 / i / sum(1 / j for j in range(1, 17)) for i in range(1, 17))
"""Of each task, that the next request is one of it."""


@dataclass(frozen=True, slots=True)
class Again:
    """The chance that another session goes on from the text of one that ended, and when: after a
    log-normal time."""

    chance: float
    median: float
    spread: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `prompt` is all that its session holds, `output` what it generates.

    `node` is the program's node, `next_use` its hint after the step (in steps of the session;
    None: never again), `closes` whether the session ends then. The rest are laws that no cache is
    told: sessions of strangers that share the first `shared` tokens come `rate` times a second, and
    one may go on from the text after that of `again`.
    """

    at: float
    session: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    node: str
    next_use: int | None
    closes: bool
    shared: int = 0
    rate: float = 0.0
    again: Again | None = None


Events: TypeAlias = Iterator[tuple[float, Step]]
"""A run's own steps, each with the seconds from the one before."""


class Writer:
    """Makes up text."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._fresh = itertools.count(1)

    def text(self, low: int, high: int) -> tuple[int, ...]:
        """From `low` to `high` tokens that occur nowhere else."""
        length = self.rng.randint(low, high)
        return tuple(itertools.islice(self._fresh, length))

    def wait(self, median: float, spread: float = 0.4) -> float:
        """A time to wait, log-normal, in seconds."""
        return median * self.rng.lognormvariate(0, spread)


def merge(runs: list[tuple[float, Events]]) -> list[Step]:
    """Steps of runs that begin at given times, in the order of time."""
    heap: list[tuple[float, int, Step, Events]] = []
    order = itertools.count()

    def push(now: float, events: Events) -> None:
        following = next(events, None)
        if following is not None:
            after, step = following
            heapq.heappush(heap, (now + after, next(order), step, events))

    for start, events in runs:
        push(start, events)
    steps = []
    while heap:
        at, _, step, events = heapq.heappop(heap)
        steps.append(replace(step, at=at))
        push(at, events)
    return steps


def starts(writer: Writer, runs: int, every: float) -> Iterator[float]:
    """When runs arrive, as a Poisson process does."""
    now = 0.0
    for _ in range(runs):
        now += writer.rng.expovariate(1 / every)
        yield now


def tree_of_thought(seed: int, runs: int) -> list[Step]:
    """Problems under one preamble: three rounds in which the two best thoughts are each followed
    by three, and each of them is judged on its own session; what is not kept is closed."""
    writer = Writer(seed)
    preamble = writer.text(600, 600)

    def problem(name: str) -> Events:
        names = itertools.count()
        kept = [preamble + writer.text(80, 160)]
        for level in range(3):
            thoughts = [(f"{name}.{next(names)}", text) for text in kept for _ in range(3)]
            proposed = []
            for session, text in thoughts:
                thought = writer.text(40, 80)
                yield writer.wait(0.3), Step(0, session, text, thought, f"think{level}", 1, False)
                proposed.append((session, text + thought))
            judged = []
            best = sorted(range(len(proposed)), key=lambda _: writer.rng.random())[:2]
            for i, (session, text) in enumerate(proposed):
                asked = text + writer.text(12, 12)
                goes_on = i in best and level < 2
                yield (
                    writer.wait(0.15),
                    Step(
                        0, session, asked, writer.text(1, 1), f"judge{level}",
                        1 if goes_on else None, not goes_on,
                    ),
                )  # fmt: skip
                if goes_on:
                    judged.append(text)
            kept = judged

    return merge([(at, problem(f"p{i}")) for i, at in enumerate(starts(writer, runs, 0.8))])


def multi_chain(seed: int, runs: int) -> list[Step]:
    """Questions under one preamble: five chains of two steps each from the same question, then one
    step that reads what all chains said."""
    writer = Writer(seed)
    preamble = writer.text(400, 400)
    reading = writer.text(120, 120)

    def question(name: str) -> Events:
        asked = preamble + writer.text(60, 200)
        texts = [asked] * 5
        for part in (0, 1):
            for chain in range(5):
                said = writer.text(60, 120)
                last = part == 1
                yield (
                    writer.wait(0.8),
                    Step(
                        0, f"{name}.{chain}", texts[chain], said, f"chain{part}",
                        None if last else 1, last,
                    ),
                )  # fmt: skip
                texts[chain] += said + (() if last else writer.text(8, 8))
        told = tuple(itertools.chain(*(text[len(asked) :] for text in texts)))
        yield (
            writer.wait(0.2),
            Step(0, name, reading + told, writer.text(40, 80), "read", None, True),
        )

    return merge([(at, question(f"q{i}")) for i, at in enumerate(starts(writer, runs, 0.8))])


def react(seed: int, runs: int) -> list[Step]:
    """Agents of three kinds, each with its tools described at length, that think, wait for a tool
    (a fast one or a slow one), and read what it says, three to eight times."""
    writer = Writer(seed)
    kinds = [writer.text(700, 900) for _ in range(3)]

    def agent(name: str) -> Events:
        text = writer.rng.choice(kinds) + writer.text(40, 120)
        rounds = writer.rng.randint(3, 8)
        slow = False
        for turn in range(rounds):
            said = writer.text(30, 60)
            last = turn == rounds - 1
            wait = writer.wait(12.0 if slow else 1.0)
            slow = writer.rng.random() < 0.3
            node = "slow tool" if slow else "fast tool"
            yield wait, Step(0, name, text, said, node, None if last else 1, last)
            text += said + writer.text(60, 140)

    return merge([(at, agent(f"a{i}")) for i, at in enumerate(starts(writer, runs, 0.8))])


def few_shot(seed: int, runs: int) -> list[Step]:
    """Texts to classify under one of sixteen tasks of twenty examples each, some far more popular
    than others; nothing but the examples is ever used again."""
    writer = Writer(seed)
    tasks = [writer.text(500, 1100) for _ in FEW_SHOT_CHANCES]

    def request(name: str) -> Events:
        (chosen,) = writer.rng.choices(range(len(tasks)), FEW_SHOT_CHANCES)
        task = tasks[chosen]
        yield (
            0.0,
            Step(
                0, name, task + writer.text(30, 90), writer.text(2, 3), "label", None, True,
                shared=len(task), rate=FEW_SHOT_CHANCES[chosen] / FEW_SHOT_EVERY,
            ),
        )  # fmt: skip

    return merge(
        [(at, request(f"r{i}")) for i, at in enumerate(starts(writer, runs, FEW_SHOT_EVERY))]
    )


def chat(seed: int, runs: int) -> list[Step]:
    """Conversations under one of four system messages, one to nine turns, a person's time to
    think between them. Each turn is a request of its own: nobody hints that another follows."""
    writer = Writer(seed)
    systems = [writer.text(150, 400) for _ in range(4)]
    longest, think, spread, every = 9, 20.0, 0.4, CHAT_EVERY

    def conversation(name: str) -> Events:
        system = text = writer.rng.choice(systems)
        turns = writer.rng.randint(1, longest)
        for turn in range(turns):
            text += writer.text(15, 80)
            said = writer.text(60, 160)
            wait = 0.0 if turn == 0 else writer.wait(think, spread)
            chance = (longest - turn - 1) / (longest - turn)
            yield (
                wait,
                Step(
                    0, f"{name}.{turn}", text, said, "chat", None, True, shared=len(system),
                    rate=1 / every / len(systems), again=Again(chance, think, spread),
                ),
            )  # fmt: skip
            text += said

    return merge([(at, conversation(f"c{i}")) for i, at in enumerate(starts(writer, runs, every))])


SHAPES: dict[str, Callable[[int, int], list[Step]]] = {
    "tree of thought": tree_of_thought,
    "multi-chain": multi_chain,
    "ReAct": react,
    "few-shot": few_shot,
    "chat": chat,
}


def _accesses(steps: Sequence[Step]) -> tuple[list[list[int]], int]:
    """Each step's prompt as nodes of one trie over all prompts and outputs, and the trie's size.

    The last token of a prompt is computed whatever is cached, and that of an output never is.
    """
    children: dict[tuple[int, int], int] = {}
    paths = []
    for step in steps:
        at, path = 0, []
        for token in (step.prompt + step.output)[:-1]:
            at = children.setdefault((at, token), len(children) + 1)
            path.append(at)
        paths.append(path)
    return paths, len(children)


def working_set(steps: Sequence[Step]) -> int:
    """The fewest tokens with which a cache that knows the future still reuses all that can be:
    the most at any time that were computed and will be used again."""
    paths, nodes = _accesses(steps)
    last = [0] * (nodes + 1)
    for turn, (step, path) in enumerate(zip(steps, paths, strict=True)):
        for node in path[: len(step.prompt) - 1]:
            last[node] = turn
    change = [0] * (len(steps) + 1)
    seen: set[int] = set()
    for turn, path in enumerate(paths):
        for node in path:
            if node not in seen and last[node] > turn:
                change[turn] += 1
                change[last[node]] -= 1
        seen.update(path)
    return max(itertools.accumulate(change))


def footprint(steps: Sequence[Step]) -> int:
    """Distinct tokens (each with all before it) that the trace computes."""
    return _accesses(steps)[1]


def reusable(steps: Sequence[Step]) -> int:
    """Prompt tokens that a cache without bounds reuses."""
    seen: set[int] = set()
    hits = 0
    for step, path in zip(steps, _accesses(steps)[0], strict=True):
        hits += sum(node in seen for node in path[: len(step.prompt) - 1])
        seen.update(path)
    return hits


def best_hits(steps: Sequence[Step], capacity: int) -> int:
    """The most prompt tokens that any cache of `capacity` tokens can reuse, knowing the future.

    Belady's rule (1966), a token at a time: what is used again last goes first. While a step runs
    its tokens must be there, as an engine's are; what is left of the capacity holds others. A
    token that is kept is an interval from one use to the next, and dropping the one that ends
    last wherever too many overlap keeps the most of them, also where the room varies (Carlisle
    and Lloyd 1995). A token's next use is never later than that of the tokens after it, so with
    ties broken by depth whole prefixes are kept: the bound is one that a cache of single tokens
    reaches. A cache of pages can only do worse.
    """
    paths, nodes = _accesses(steps)
    never = len(steps)
    following = [[never] * len(path) for path in paths]
    latest = [never] * (nodes + 1)
    for turn in range(len(steps) - 1, -1, -1):
        prompt = len(steps[turn].prompt) - 1
        for depth, node in enumerate(paths[turn]):
            following[turn][depth] = latest[node]
            if depth < prompt:
                latest[node] = turn
    uses: dict[int, int] = {}  # the next use of each token that is kept
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for turn, (step, path) in enumerate(zip(steps, paths, strict=True)):
        hits += sum(node in uses for node in path[: len(step.prompt) - 1])
        for node in path:
            uses.pop(node, None)
        while len(uses) > max(0, capacity - len(path)):
            use, _, node = heapq.heappop(heap)
            if uses.get(node) == -use:
                del uses[node]
        for depth, (node, use) in enumerate(zip(path, following[turn], strict=True)):
            if use != never:
                uses[node] = use
                heapq.heappush(heap, (-use, -depth, node))
    return hits
