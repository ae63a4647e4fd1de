"""Programs that the tests of runs serve."""

from __future__ import annotations

from typing import Any, Literal

import phloem as ph


@ph.function
def story(s: ph.State, topic: str, length: Literal["short", "long"] = "short") -> str:
    """Tell a story."""
    s += ph.system("Tell stories.")
    s += ph.user(topic)
    s += ph.assistant(ph.gen("title", max_tokens=6, temperature=0))
    s += ph.user("Go on.")
    s += ph.assistant(ph.gen("body", max_tokens=12, temperature=0))
    return f"{length}: {s['title']}"


@ph.function
def broken(s: ph.State, key: str) -> str:
    """Fails in the user's own code after a step."""
    s += "Say: " + ph.gen("word", max_tokens=3, temperature=0)
    return {"known": "value"}[key]


@ph.function
def endless(s: ph.State) -> None:
    """Generates until it is stopped."""
    s += "Go: "
    for _ in range(1000):
        s += ph.gen("more", max_tokens=3000, ignore_eos=True, temperature=0)


@ph.function
def branches(s: ph.State, count: int) -> list[str]:
    """Forks, and gathers what the branches say."""
    s += "Begin."
    forks = s.fork(count)
    for number, fork in enumerate(forks):
        fork += f" Say {number}: " + ph.gen("said", max_tokens=4, temperature=0)
    forks.join()
    return s["said"]


@ph.function
def growing(s: ph.State, times: int) -> str:
    """A second step whose prompt is as long as asked."""
    s += "First: " + ph.gen("first", max_tokens=2, temperature=0)
    s += "!" * times + ph.gen("second", max_tokens=2, temperature=0)
    return s["second"]


@ph.function
def namesake(s: ph.State, seed: int = 5, backend: str = "none", deadline: int = 7) -> str:
    """Its parameters have the names of settings."""
    return f"{seed} {backend} {deadline}"


class Mute(Exception):
    """An error that can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@ph.function
def odd(s: ph.State, kind: str) -> Any:
    """Returns, or raises, what JSON can't say."""
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    errors = {"half": ValueError("a\ud800b"), "mute": Mute(), "long": ValueError("x" * 3_000_000)}
    if kind in errors:
        raise errors[kind]
    values = {
        "nan": float("nan"),
        "big": 10**9000,
        "loop": loop,
        "deep": deep,
        "key": {(1,): "\ud800"},
    }
    return values[kind]


PROGRAMS = [odd, story, broken, endless, branches, growing, namesake]
