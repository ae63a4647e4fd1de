"""Cells: what is measured once, in which order, and where its result is kept.

What lives here: `Key`, `Store` and `plan`. What does not: measuring (`session.py`). A benchmark
that was broken off goes on where it was: cells whose file is there are not measured again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engines import Engine
from .shapes import SHAPES

__all__ = ["CORE", "Key", "Store", "plan", "salt_of"]

Case = tuple[str, int]
"""A shape, and how many of its programs run at once."""

CORE: tuple[Case, ...] = (
    ("chain", 1),
    ("few_shot", 8),
    ("vote", 1),
    ("chain", 8),
    ("few_shot", 1),
    ("vote", 8),
    ("chain", 32),
    ("few_shot", 32),
    ("vote", 32),
)
"""The core set, what says most first."""
PHLOEM_CORE: tuple[Case, ...] = (("json", 1), ("rag", 1), ("tree", 1))
"""What the goals ask of phloem alone."""
REST: tuple[Case, ...] = tuple(
    (shape, at_once) for at_once in (1, 8, 32) for shape in ("rag", "json", "tree", "react", "chat")
)
ROUND_STRIDE = 5
"""A case's next round comes after the first round of this many cases behind it."""
SLOW = 2
"""How many of the others' cases there are to one of a slow engine's."""


@dataclass(frozen=True, order=True)
class Key:
    """One cell. `shape` may be "calibration"."""

    engine: str
    shape: str
    at_once: int
    round: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.engine}.{self.shape}.{self.at_once}.{self.round}.json"

    @classmethod
    def of_file(cls, name: str) -> Key:
        """The key with this file name."""
        engine, shape, at_once, number, _ = name.rsplit(".", 4)
        return cls(engine, shape, int(at_once), int(number))


class Store:
    """A folder with one JSON file for each cell that was measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, key: Key) -> bool:
        """Whether the cell was measured."""
        return (self.folder / key.file).exists()

    def read(self, key: Key) -> dict[str, Any] | None:
        """Its result, if it was measured."""
        path = self.folder / key.file
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def write(self, key: Key, result: dict[str, Any]) -> None:
        """Keep a result; a crash leaves no half of it."""
        partial = self.folder / f".{key.file}.partial"
        partial.write_text(json.dumps(result))
        os.replace(partial, self.folder / key.file)

    def all(self) -> dict[Key, dict[str, Any]]:
        """Every result."""
        names = sorted(path.name for path in self.folder.glob("*.*.*.*.json"))
        keys = [Key.of_file(name) for name in names if not name.startswith(".")]
        return {key: json.loads((self.folder / key.file).read_text()) for key in keys}


def plan(
    engines: Sequence[Engine], rounds: int, *, everything: bool, shapes: Sequence[str] = ()
) -> list[Key]:
    """All cells (those of `shapes`, if given), most valuable first; engines and rounds take turns.

    The variants of phloem that go without guesses run one program at a time only.
    """
    shared = [*CORE, *REST] if everything else list(CORE)
    ranked: list[tuple[int, int, Key]] = []
    for place, engine in enumerate(engines):
        cases = shared
        if engine.phloem and engine.server is None:
            alone = list(PHLOEM_CORE)
            cases = [*shared[:1], *alone, *(case for case in shared[1:] if case not in alone)]
        if engine.name.endswith("-plain"):
            cases = [case for case in cases if case[1] == 1]
        cases = [case for case in cases if not shapes or case[0] in shapes]
        pace = SLOW if engine.slow else 1
        for number in range(rounds):
            for rank, (shape, at_once) in enumerate(cases):
                key = Key(engine.name, shape, at_once, number)
                ranked.append((pace * (rank + ROUND_STRIDE * number), place, key))
    return [key for _, _, key in sorted(ranked)]


def salt_of(key: Key) -> int:
    """What a cell's texts are made from: the same for all engines, another for each round.

    Two apart, since a cell's warm-up takes the next one.
    """
    names: Iterable[str] = SHAPES
    return 2 * (1000 * key.round + 100 * list(names).index(key.shape) + key.at_once)
