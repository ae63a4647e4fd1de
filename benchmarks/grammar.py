"""Real-world JSON schemas, token by token: who enforces what, and how fast.

    python benchmarks/grammar.py [--schemas DIR] [--suite DIR] [--engines phloem llguidance ...]

Every engine sees the same texts: each instance as compact JSON in its own order of members, and,
where phloem has a fixed order, in that order too; an instance counts as accepted if either is.
Each token is checked against the engine's mask, whose CPU time is taken, and the end of the
sequence after the last one. "fully right" is a schema all of whose instances are judged right;
"wrong" is one that accepts an invalid or rejects a valid instance. Peers that are not installed
are left out. The folders default to the data beside the repository (PHLOEM_SHARED).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher
from outlines_core import Guide, Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

from phloem.errors import ConstraintError
from phloem.grammar.analyser import default_analyser
from phloem.grammar.compiler import GrammarCompiler
from phloem.grammar.lowering import schema_model
from phloem.grammar.schema.render import render
from phloem.grammar.testing import compiler_of
from phloem.runtime.model.load import load_model

SHARED = Path(os.environ.get("PHLOEM_SHARED", Path(__file__).parents[2] / "shared")) / "data"


class Refused(Exception):
    """An engine does not take a schema."""


class State(Protocol):
    """One text in one engine."""

    def allows(self, token: int) -> bool:
        """Compute the mask, and look the token up in it."""

    def accept(self, token: int) -> None:
        """Advance."""

    def complete(self) -> bool:
        """Whether the text may end here."""


class Masked:
    """A state whose matcher fills a mask of bits."""

    def __init__(self, words: int, matcher: Any, fill: Callable[[Any], None], done: Any) -> None:
        self.mask = np.zeros(words, dtype=np.int32)
        self.matcher, self.fill, self.complete = matcher, fill, done

    def allows(self, token: int) -> bool:
        """See `State`."""
        self.fill(self.mask)
        return bool(self.mask[token >> 5] >> (token & 31) & 1)

    def accept(self, token: int) -> None:
        """See `State`."""
        self.matcher(token)


def phloem_engine(compiler: GrammarCompiler) -> Callable[[Any], Callable[[], State]]:
    """phloem: the analyser's check and the compile, as a program's step pays them."""

    def prepare(schema: Any) -> Callable[[], State]:
        try:
            constraint = default_analyser().build(schema=schema)
            compiler.compile(constraint, timeout=60)
        except ConstraintError as error:
            raise Refused(error.message) from error

        def start() -> State:
            matcher = compiler.matcher(constraint)
            words = compiler.tokenizer.words
            return Masked(words, matcher.accept, matcher.fill_mask, matcher.is_complete)

        return start

    return prepare


def llguidance_engine(
    compiler: GrammarCompiler, **options: Any
) -> Callable[[Any], Callable[[], State]]:
    """llguidance's own JSON Schema compiler."""

    def prepare(schema: Any) -> Callable[[], State]:
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_flexible": False, **options}
        )
        root = LLMatcher(compiler.tokenizer.ll, grammar, log_level=0)
        if root.is_error():
            raise Refused(root.get_error())

        def start() -> State:
            matcher = root.deep_copy()
            size = 4 * compiler.tokenizer.words

            def fill(mask: Any) -> None:
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, size)

            words = compiler.tokenizer.words
            return Masked(words, matcher.consume_token, fill, matcher.is_accepting)

        return start

    return prepare


class Indexed:
    """A state of outlines-core, whose "mask" is a list of tokens."""

    def __init__(self, index: Any, end: int) -> None:
        self.guide, self.end = Guide(index), end

    def allows(self, token: int) -> bool:
        """See `State`."""
        return token in self.guide.get_tokens()

    def accept(self, token: int) -> None:
        """See `State`."""
        self.guide.advance(token)

    def complete(self) -> bool:
        """See `State`."""
        return self.end in self.guide.get_tokens()


def outlines_engine(compiler: GrammarCompiler) -> Callable[[Any], Callable[[], State]]:
    """outlines-core: a schema becomes a regex, and that an index over the vocabulary."""
    end = compiler.tokenizer.eos_ids[0]
    ids: dict[bytes, list[int]] = collections.defaultdict(list)
    for token in range(compiler.tokenizer.ll.vocab_size):
        data = bytes(compiler.tokenizer.ll.decode_bytes([token]))
        if data and not compiler.tokenizer.ll.is_special_token(token):
            ids[data].append(token)
    vocabulary = Vocabulary(end, dict(ids))

    def prepare(schema: Any) -> Callable[[], State]:
        try:
            index = Index(build_regex_from_schema(json.dumps(schema), r"[ ]?"), vocabulary)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise Refused(str(error)) from error
        return lambda: Indexed(index, end)

    return prepare


def xgrammar_engine(compiler: GrammarCompiler) -> Callable[[Any], Callable[[], State]]:
    """xgrammar, where it is installed."""
    xgr = importlib.import_module("xgrammar")
    vocab = [
        bytes(compiler.tokenizer.ll.decode_bytes([token]))
        for token in range(compiler.tokenizer.ll.vocab_size)
    ]
    info = xgr.TokenizerInfo(
        vocab, vocab_size=compiler.tokenizer.vocab_size,
        stop_token_ids=list(compiler.tokenizer.eos_ids),
    )  # fmt: skip
    compile_ = xgr.GrammarCompiler(info, cache_enabled=False)

    def prepare(schema: Any) -> Callable[[], State]:
        try:
            grammar = compile_.compile_json_schema(
                json.dumps(schema), any_whitespace=False, strict_mode=False, separators=(",", ":")
            )
        except (RuntimeError, ValueError) as error:
            raise Refused(str(error)) from error

        def start() -> State:
            matcher = xgr.GrammarMatcher(grammar)
            bits = xgr.allocate_token_bitmask(1, compiler.tokenizer.vocab_size)

            def fill(mask: Any) -> None:
                matcher.fill_next_token_bitmask(bits)
                mask[:] = bits.numpy()[0]

            words = compiler.tokenizer.words
            return Masked(words, matcher.accept_token, fill, matcher.is_completed)

        return start

    return prepare


def accepts(start: Callable[[], State], tokens: list[int], times: list[float]) -> bool:
    """Whether all tokens pass their masks and the text may end after them."""
    state = start()
    for token in tokens:
        before = time.thread_time()
        try:
            passed = state.allows(token)
        except ConstraintError:
            return False
        times.append(time.thread_time() - before)
        if not passed:
            return False
        state.accept(token)
    return state.complete()


def cases(schemas: Path, suite: Path | None) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """(name, schema, tests) of all schemas of the two folders."""
    for path in sorted(schemas.glob("*.json")):
        case = json.loads(path.read_text())
        yield case["id"], case["schema"], case["tests"]
    for path in sorted(suite.glob("*.json")) if suite else ():
        for group in json.loads(path.read_text()):
            yield f"{path.stem}: {group['description']}", group["schema"], group["tests"]


def texts(schema: Any, value: Any) -> set[str]:
    """The spellings that every engine gets."""
    found = {json.dumps(value, separators=(",", ":"), ensure_ascii=False)}
    with contextlib.suppress(ConstraintError):  # Then phloem has no order of its own.
        found.add(render(schema_model(json.dumps(schema, ensure_ascii=False)), value) or "")
    return found - {""}


def run(name: str, prepare: Any, rows: list[Any], compiler: GrammarCompiler) -> dict[str, Any]:
    """One engine over all schemas."""
    counts: collections.Counter[str] = collections.Counter()
    masks: dict[str, list[float]] = {}
    compiles: list[float] = []
    notes: list[str] = []
    for title, schema, tests in rows:
        schema_model.cache_clear()
        before = time.perf_counter()
        try:
            start = prepare(schema)
        except Refused as error:
            counts["refused"] += 1
            notes.append(f"  refused {title}: {' '.join(str(error).split())[:110]}")
            continue
        compiles.append(time.perf_counter() - before)
        counts["compiled"] += 1
        times = masks.setdefault(title, [])
        wrong = set()
        for test in tests:
            encoded = [list(compiler.tokenizer.ll.tokenize_str(t)) for t in test["texts"]]
            verdict = any(accepts(start, tokens, times) for tokens in encoded)
            if verdict is not test["valid"]:
                wrong.add("accepts invalid" if verdict else "rejects valid")
        counts.update(wrong)
        counts["fully right" if not wrong else "wrong"] += 1
        if wrong:
            notes.append(f"  wrong {title}: {', '.join(sorted(wrong))}")
    return {"engine": name, "counts": counts, "masks": masks, "compiles": compiles, "notes": notes}


def spread(values: list[float], unit: float) -> str:
    """p50 / p99 / max."""
    if not values:
        return "-"
    ordered = sorted(value * unit for value in values)
    picks = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])
    return " / ".join(f"{pick:.1f}" for pick in picks)


def main() -> None:
    """Run the engines asked for and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=Path, default=SHARED / "schemas" / "dev")
    parser.add_argument("--suite", type=Path, default=None)
    parser.add_argument("--engines", nargs="+", default=["phloem", "llguidance"])
    parser.add_argument("--notes", action="store_true", help="name what is refused or wrong")
    options = parser.parse_args()
    compiler = compiler_of(load_model())
    engines: dict[str, Callable[[], Any]] = {
        "phloem": lambda: phloem_engine(compiler),
        "llguidance": lambda: llguidance_engine(compiler),
        "llguidance-lenient": lambda: llguidance_engine(compiler, lenient=True),
        "outlines-core": lambda: outlines_engine(compiler),
        "xgrammar": lambda: xgrammar_engine(compiler),
    }
    rows = list(cases(options.schemas, options.suite))
    for _, schema, tests in rows:
        for test in tests:
            test["texts"] = texts(schema, test["data"])
    columns = ["compiled", "fully right", "wrong", "accepts invalid", "rejects valid", "refused"]
    print(f"{len(rows)} schemas, {sum(len(tests) for _, _, tests in rows)} instances")
    print(f"{'':20}" + "".join(f"{c:>17}" for c in columns), " mask µs / compile ms p50/p99/max")
    done: list[dict[str, Any]] = []
    for name in options.engines:
        try:
            prepare = engines[name]()
        except ImportError as error:
            print(f"{name:20} not installed: {error}")
            continue
        row = run(name, prepare, rows, compiler)
        cells = "".join(f"{row['counts'][column]:>17}" for column in columns)
        masks = spread(list(itertools.chain(*row["masks"].values())), 1e6)
        print(f"{name:20}{cells}  {masks}  |  {spread(row['compiles'], 1e3)}")
        if options.notes:
            print("\n".join(row["notes"]))
        done.append(row)
    shared = set.intersection(*(set(row["masks"]) for row in done))
    print(f"masks of the {len(shared)} schemas that all engines took:")
    for row in done:
        times = itertools.chain(*(row["masks"][title] for title in shared))
        print(f"{row['engine']:20} {spread(list(times), 1e6)}")


if __name__ == "__main__":
    main()
