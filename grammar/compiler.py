"""Constraints -> matchers for one tokenizer: one compile each, off-thread, bounded and cached.

What lives here: `GrammarCompiler`, its cache and its worker. What does not: the translation to
a grammar (lowering.py) and the matching itself (matcher.py).

Whoever asks first for a constraint starts its compile; all others wait for that one. The time
of a compile begins when its turn comes, so a crowd of constraints refuses none. A compile
that runs over its time is left to itself on its thread (llguidance can't be interrupted, but its
own limits end it), a fresh thread serves what comes next, and nothing of it is cached. Errors
of the constraint itself are cached like successes: asking again costs nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from queue import SimpleQueue

from llguidance import LLMatcher, LLParserLimits

from phloem.errors import ConstraintError
from phloem.grammar.checked import CheckedMatcher
from phloem.grammar.engine import EngineTokenizer, byte_tokenizer
from phloem.grammar.foresight import Foresight
from phloem.grammar.lowering import lower, schema_model, wanted_words, with_prelude
from phloem.grammar.matcher import EngineMatcher
from phloem.grammar.schema.distinct import ENDERS, Tracker, needs_tracking
from phloem.grammar.spec import Constraint

__all__ = ["GrammarCompiler"]

_STEP_FUEL = 1_000_000
"""Work of the lexer between two masks; five times its default. A matcher that needs more is broken
for good, with all its copies, and a search for an end goes far between masks."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    root: LLMatcher
    byte_root: LLMatcher | None
    prelude: str | None
    tracker: Tracker | None
    words: tuple[bytes, ...]
    cost: int


class _Compile(Future[_Compiled]):
    """A compile that was asked for; `begun` is set when its turn has come."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()


_Jobs = SimpleQueue[tuple[Constraint, _Compile] | None]
"""Compiles to do; None: the compiler is gone."""


class GrammarCompiler:
    """`spec.Compiler` for one tokenizer.

    `tokenizer_json` is the text of a Hugging Face `tokenizer.json`, `vocab_size` the number of
    logits, `eos_ids` the tokens that end a sequence. `cache_size` bounds the cache in characters
    of grammar text; `timeout` is the default limit of one compile in seconds.
    """

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        eos_ids: Sequence[int],
        *,
        cache_size: int = 32_000_000,
        timeout: float = 2.0,
    ) -> None:
        tokenizer = EngineTokenizer.from_json(tokenizer_json, vocab_size, eos_ids)
        self._start(tokenizer, cache_size, timeout)

    @classmethod
    def for_tokenizer(
        cls, tokenizer: EngineTokenizer, *, cache_size: int = 32_000_000, timeout: float = 2.0
    ) -> GrammarCompiler:
        """A compiler with a cache of its own for a tokenizer that is read already."""
        made = cls.__new__(cls)
        made._start(tokenizer, cache_size, timeout)
        return made

    def _start(self, tokenizer: EngineTokenizer, cache_size: int, timeout: float) -> None:
        self.tokenizer = tokenizer
        self.timeout = timeout
        self.compiled = 0
        """Compiles started so far (cache misses)."""
        self._cache_size = cache_size
        self._cache: OrderedDict[Constraint, _Compile] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()
        self._jobs: _Jobs | None = None

    def compile(self, constraint: Constraint, *, timeout: float | None = None) -> None:
        """See `spec.Compiler`."""
        self._get(constraint, self.timeout if timeout is None else timeout)

    def matcher(self, constraint: Constraint) -> EngineMatcher | CheckedMatcher:
        """See `spec.Compiler`."""
        made = self._get(constraint, self.timeout)
        root = made.root.deep_copy()
        matcher = EngineMatcher(
            root, self.tokenizer, made.byte_root, made.prelude, words=made.words
        )
        if made.tracker is None:
            return matcher
        foresight = None if made.byte_root is None else Foresight(made.byte_root)
        return CheckedMatcher(matcher, self.tokenizer, made.tracker, foresight, made.prelude)

    def portable(self, constraint: Constraint) -> str:
        """The whole constraint as Lark text for llguidance elsewhere, with this tokenizer.

        Raises `ConstraintError` for what no grammar can say alone (distinct items), and for what
        `compile` refuses.
        """
        if self._get(constraint, self.timeout).tracker is not None:
            raise ConstraintError(
                "distinct items (uniqueItems, minProperties) can't be enforced by a server",
                hint="bound the array, or use the embedded engine",
            )
        body = lower(constraint)
        if constraint.after is None:
            return body
        return with_prelude(body, constraint.after, self.tokenizer.special_ids)

    def _get(self, constraint: Constraint, timeout: float) -> _Compiled:
        # How a text is finished when tokens run out is not part of its language.
        key = replace(constraint, finish="free")
        with self._lock:
            future = self._cache.get(key)
            if future is None:
                future = self._cache[key] = _Compile()
                self.compiled += 1
                self._submit(key, future)
            else:
                self._cache.move_to_end(key)
        try:
            future.begun.wait()
            return future.result(timeout)
        except FutureTimeout:
            self._abandon(key, future)
            raise ConstraintError(
                f"compiling this {constraint.kind} constraint took longer than {timeout:g} s",
                hint="simplify it (large counted repetitions and long alternations cost most)",
                timeout_s=timeout,
            ) from None
        except ConstraintError as error:
            # One exception object must not be raised in many threads: tracebacks would pile up.
            raise type(error)(error.message, hint=error.hint, **error.details) from None

    def _submit(self, key: Constraint, future: _Compile) -> None:
        if self._jobs is None:
            jobs: _Jobs = SimpleQueue()
            self._jobs = jobs
            weakref.finalize(self, jobs.put, None).atexit = False
            threading.Thread(
                target=_serve, args=(weakref.ref(self), jobs), name="phloem-grammar", daemon=True
            ).start()
        self._jobs.put((key, future))

    def _abandon(self, key: Constraint, future: _Compile) -> None:
        with self._lock:
            if self._cache.get(key) is not future or future.done():
                return
            del self._cache[key]
            stuck, self._jobs = self._jobs, None
            while stuck is not None and not stuck.empty():
                job = stuck.get()
                if job is not None:
                    self._submit(*job)

    def _work(self, key: Constraint, future: _Compile) -> None:
        future.begun.set()
        cost = len(key.source)
        try:
            made = self._build(key)
        except ConstraintError as error:
            future.set_exception(error)
        except (RecursionError, MemoryError, ValueError) as error:
            future.set_exception(
                ConstraintError(f"the constraint is too complex to compile: {error}")
            )
        except Exception as error:  # noqa: BLE001 - whoever asked gets it; the thread goes on
            future.set_exception(error)
        else:
            future.set_result(made)
            cost = made.cost
        self._account(key, future, cost)

    def _serves(self, jobs: _Jobs) -> bool:
        """Whether the jobs are still this compiler's: a compile that took too long loses them."""
        with self._lock:
            return self._jobs is jobs

    def _account(self, key: Constraint, future: _Compile, cost: int) -> None:
        with self._lock:
            if self._cache.get(key) is not future:
                return
            self._used += cost
            while self._used > self._cache_size and len(self._cache) > 1:
                old, entry = next(iter(self._cache.items()))
                if not entry.done():
                    self._cache.move_to_end(old)
                    break
                del self._cache[old]
                self._used -= _cost(old, entry)

    def _build(self, constraint: Constraint) -> _Compiled:
        body = lower(constraint)
        whole = body
        if constraint.after is not None:
            whole = with_prelude(body, constraint.after, self.tokenizer.special_ids)
        limits = LLParserLimits(verbose_errors=False, step_lexer_fuel=_STEP_FUEL)
        root = LLMatcher(
            self.tokenizer.ll, LLMatcher.grammar_from_lark(whole), log_level=0, limits=limits
        )
        if root.is_error():
            raise ConstraintError(
                f"the constraint can't be enforced: {_first_lines(root.get_error())}"
            )
        byte_root = LLMatcher(
            byte_tokenizer(), LLMatcher.grammar_from_lark(body), log_level=0, limits=limits
        )
        tracker: Tracker | None = None
        if constraint.kind == "json_schema":
            model = schema_model(constraint.source)
            if needs_tracking(model):
                tracker = Tracker(model)
                # What masks look tokens up in is made here, not on the scheduler's thread.
                for enders in ENDERS:
                    self.tokenizer.holding(enders)
                self.tokenizer.beginning(b"")
        cost = len(constraint.source) + len(whole)
        return _Compiled(
            root,
            None if byte_root.is_error() else byte_root,
            constraint.after,
            tracker,
            wanted_words(constraint),
            cost,
        )


def _serve(owner: weakref.ref[GrammarCompiler], jobs: _Jobs) -> None:
    """Do the jobs of a compiler for as long as somebody holds it."""
    while _serve_one(owner, jobs):
        pass


def _serve_one(owner: weakref.ref[GrammarCompiler], jobs: _Jobs) -> bool:
    # In a function of its own: nothing is held while the thread waits.
    job, compiler = jobs.get(), owner()
    if job is None or compiler is None:
        return False
    compiler._work(*job)
    return compiler._serves(jobs)


def _cost(key: Constraint, entry: _Compile) -> int:
    return len(key.source) if entry.exception() else entry.result().cost


def _first_lines(text: str) -> str:
    return " ".join(text.split("\n", maxsplit=1)[0].split())[:400]
