"""Engines that run inside the worker: llama-cpp-python, guidance, outlines.

What lives here: a runner for each. What does not: the programs (`glue.py`). None of the three runs
several programs in one batch: they run one after the other, and the report says so.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from . import glue
from .shapes import SHAPES, Step
from .tally import Outputs, Tally

__all__ = ["GuidanceRunner", "LlamaRunner", "OutlinesRunner"]

CONTEXT = 4096
THREADS = int(os.environ["OMP_NUM_THREADS"])


class _InTurn:
    """What the three share: programs and branches run in turn."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._about = about
        self.counts = Tally()

    def info(self) -> dict[str, Any]:
        """See `tally.Runner`."""
        return self._about

    def prepare(self, shape: str, shared: str) -> None:
        """See `tally.Runner`."""
        self._shape, self._shared = shape, shared

    def one(self, row: dict[str, Any]) -> Outputs:
        """See `tally.Runner`."""
        return glue.run(self, self._shape, self._shared, row)  # type: ignore[arg-type]

    def many(self, rows: list[dict[str, Any]], at_once: int) -> list[Outputs]:
        """See `tally.Runner`."""
        del at_once
        return [self.one(row) for row in rows]

    def tally(self) -> Tally:
        """See `tally.Runner`."""
        found, self.counts = self.counts, Tally()
        return found

    def together(self, tasks: Sequence[Callable[[], Outputs]]) -> list[Outputs]:
        """See `glue.Engine`."""
        return [task() for task in tasks]


class _Text:
    """A text that is given whole at each step."""

    def __init__(self, ask: Callable[[str, str, Step], str], text: str = "") -> None:
        self._ask = ask
        self._text = text

    def append(self, text: str) -> None:
        """See `glue.Cursor`."""
        self._text += text

    def take(self, name: str, step: Step) -> str:
        """See `glue.Cursor`."""
        said = self._ask(name, self._text, step)
        self._text += said
        return said

    def copy(self) -> _Text:
        """See `glue.Cursor`."""
        return _Text(self._ask, self._text)


class LlamaRunner(_InTurn):
    """llama-cpp-python's `Llama`, which keeps the KV of its latest text."""

    def __init__(self, gguf: str) -> None:
        llama_cpp = importlib.import_module("llama_cpp")
        super().__init__({"version": f"llama-cpp-python {llama_cpp.__version__}"})
        self._about["weights"] = "Q4_1"
        self._grammar = llama_cpp.LlamaGrammar.from_string
        self._llama = llama_cpp.Llama(
            gguf, n_ctx=CONTEXT, n_threads=THREADS, n_threads_batch=THREADS, verbose=False
        )
        self._ends = {self._llama.token_eos(): -100.0, 0: -100.0}
        self._grammars: dict[str, Any] = {}
        self._evaluated = 0
        self._eval = self._llama.eval
        self._llama.eval = self._counted

    def open(self) -> _Text:
        """See `glue.Engine`."""
        return _Text(self._ask)

    def generate(self, prompts: list[list[int]], tokens: int) -> tuple[int, int]:
        """See `tally.TokenRunner`. One prompt after the other."""
        generated = self._evaluated = 0
        for prompt in prompts:
            self._llama.reset()
            said = self._llama.generate(prompt, temp=0.0, reset=False)
            generated += len(list(itertools.islice(said, tokens)))
        # The last token of a text is not evaluated.
        wanted = sum(len(prompt) + tokens - 1 for prompt in prompts)
        return generated, wanted - self._evaluated

    def _counted(self, tokens: Any) -> None:
        self._evaluated += len(tokens)
        self._eval(tokens)

    def _ask(self, name: str, text: str, step: Step) -> str:
        limits: dict[str, Any] = {"logit_bias": self._ends} if step.free else {}
        if not step.free:
            limits["grammar"] = self._constraint(step)
        self._evaluated = 0
        answer = self._llama.create_completion(
            text, max_tokens=step.tokens, temperature=0.0, **limits
        )
        usage = answer["usage"]
        prompt, generated = usage["prompt_tokens"], usage["completion_tokens"]
        prefilled = max(0, self._evaluated - max(0, generated - 1))
        self.counts.call(name, prompt, prompt - min(prompt, prefilled), generated)
        self.counts.calls = 0
        said: str = answer["choices"][0]["text"]
        return said

    def _constraint(self, step: Step) -> Any:
        source = step.gbnf or "root ::= " + " | ".join(map(json.dumps, step.choices))
        if source not in self._grammars:
            self._grammars[source] = self._grammar(source, verbose=False)
        return self._grammars[source]


class GuidanceRunner(_InTurn):
    """guidance on llama.cpp: an object that holds text and state, copied to fork."""

    def __init__(self, gguf: str) -> None:
        self.guidance = importlib.import_module("guidance")
        super().__init__({"version": f"guidance {self.guidance.__version__}", "weights": "Q4_1"})
        self._base = self.guidance.models.LlamaCpp(
            gguf,
            echo=False,
            n_ctx=CONTEXT,
            n_threads=THREADS,
            n_threads_batch=THREADS,
            n_batch=512,
            verbose=False,
            enable_monitoring=False,
        )
        tokenizer = self._base._interpreter.engine.tokenizer
        self.encode: Callable[[bytes], Sequence[int]] = tokenizer.encode

    def open(self) -> _Guided:
        """See `glue.Engine`."""
        return _Guided(self, self._base.copy())


class _Guided:
    def __init__(self, runner: GuidanceRunner, model: Any) -> None:
        self._runner, self._model = runner, model

    def append(self, text: str) -> None:
        """See `glue.Cursor`."""
        self._model += text

    def take(self, name: str, step: Step) -> str:
        """See `glue.Cursor`. A free step is held open by a text it can't reach the end of."""
        guidance = self._runner.guidance
        before = self._model._get_usage().ff_tokens
        if step.choices:
            self._model += guidance.select(list(step.choices), name="said")
        elif step.free:
            self._model += guidance.gen(
                name="said", max_tokens=step.tokens, regex=r"(?s:.){4000}", temperature=0
            )
        else:
            self._model += guidance.regex(step.pattern, name="said")
        said: str = self._model["said"]
        # Its own counts are of forward passes, each with its whole prompt: no prompt's tokens.
        runner = self._runner
        runner.counts.call(name, None, None, len(runner.encode(said.encode())))
        runner.counts.calls = 0
        runner.counts.forced = (runner.counts.forced or 0) + (
            self._model._get_usage().ff_tokens - before
        )
        return said

    def copy(self) -> _Guided:
        """See `glue.Cursor`."""
        return _Guided(self._runner, self._model.copy())


class OutlinesRunner(_InTurn):
    """outlines on transformers: generators are made once, the KV of a call is not kept."""

    def __init__(self, folder: str) -> None:
        torch, transformers = (importlib.import_module(n) for n in ("torch", "transformers"))
        outlines, types = (importlib.import_module(n) for n in ("outlines", "outlines.types"))
        torch.set_num_threads(THREADS)
        transformers.logging.set_verbosity_error()
        version = importlib.import_module("importlib.metadata").version("outlines")
        super().__init__({"version": f"outlines {version}", "weights": "bfloat16"})
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._tokenizer.pad_token = self._tokenizer.eos_token
        self._tokenizer.chat_template = None  # raw prompts
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model = outlines.from_transformers(model.eval(), self._tokenizer)
        self._generator, self._regex = outlines.Generator, types.Regex
        self._generators: dict[str, Any] = {}

    def open(self) -> _Text:
        """See `glue.Engine`."""
        return _Text(self._ask)

    def prepare(self, shape: str, shared: str) -> None:
        """See `tally.Runner`. Its indexes are built here: they take seconds."""
        super().prepare(shape, shared)
        for step in SHAPES[shape].steps.values():
            self._for(step)

    def _for(self, step: Step) -> Any:
        pattern = "|".join(step.choices) or step.pattern or ""
        if pattern not in self._generators:
            limits = (self._regex(pattern),) if pattern else ()
            self._generators[pattern] = self._generator(self._model, *limits)
        return self._generators[pattern]

    def _ask(self, name: str, text: str, step: Step) -> str:
        limits: dict[str, Any] = {"min_new_tokens": step.tokens} if step.free else {}
        said: str = self._for(step)(
            text,
            max_new_tokens=step.tokens + (not step.free),
            do_sample=False,
            pad_token_id=self._tokenizer.pad_token_id,
            **limits,
        )
        prompt = len(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        # The text of a free step may not be the tokenizer's own; its length is what was asked for.
        written = len(self._tokenizer(said, add_special_tokens=False)["input_ids"])
        self.counts.call(name, prompt, 0, step.tokens if step.free else written)
        self.counts.calls = 0
        return said
