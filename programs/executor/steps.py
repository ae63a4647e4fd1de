"""Steps that ask the model: generate and choose.

What lives here: from the effect to the engine's answer (or the recorded one), and from the
answer to the branch's variable, meta data and text. What does not: the decision rules of
choices (`programs/choices.py`) or time limits (`limits.py`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phloem.errors import BudgetExceeded, CompileError, StepError, TruncatedOutput, Unsupported
from phloem.programs.choices import DEFAULT, Decision
from phloem.programs.effects import Choose, Generate
from phloem.programs.events import StepFinished, Token
from phloem.programs.executor import meta
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.limits import attempts, limited
from phloem.programs.executor.outcome import result_from_json, result_to_json
from phloem.programs.executor.record import Entry, digest
from phloem.programs.executor.run import Site
from phloem.programs.executor.sampling import clean, merge
from phloem.programs.executor.values import show
from phloem.programs.protocol import (
    SamplingParams,
    ScoreResult,
    Session,
    StepResult,
    Text,
    TokenEvent,
    Usage,
)

__all__ = ["choose", "generate"]


async def generate(branch: Branch, effect: Generate, site: Site) -> Any:
    """Generate, append, and keep the value. Returns it: text, a parsed value, or a list."""
    run = branch.run
    params = merge(branch.sampling, clean(effect.options), seed=run.seed)
    request = digest(
        branch.transcript.fingerprint(),
        [(name, getattr(params, name)) for name in params.__slots__ if name != "seed"],
        effect.constraint.to_json() if effect.constraint else None,
        effect.n,
    )
    entry = run.record.take(branch.path, "gen", effect.name, request)
    if entry is not None:
        results = [result_from_json(item) for item in entry.outcome]
        _append_known(branch, results[0].text, entry, site)
    else:
        left = run.allowance()
        capped = left is not None and left < params.max_tokens
        if capped:
            assert left is not None
            params = replace(params, max_tokens=left)
        results = await _ask(branch, effect, params, site)
        outcome = [result_to_json(result) for result in results]
        session = await branch.token_delta() if run.recording else None
        run.record.add(
            branch.path,
            Entry("gen", effect.name, request, outcome, site.node, site.line, session),
        )
        if capped and results[0].finish_reason == "length":
            raise BudgetExceeded(
                f"the run's budget of {run.settings.token_budget} tokens ended inside a step",
                hint="raise token_budget= or lower max_tokens",
                text=results[0].text,
            )
    return _keep(branch, effect, results, site)


async def _ask(
    branch: Branch, effect: Generate, params: SamplingParams, site: Site
) -> list[StepResult]:
    session = await branch.session()
    backend = await branch.run.backend()
    if effect.constraint and effect.constraint.kind not in backend.capabilities.constraints:
        raise Unsupported(
            f"the engine of {backend.capabilities.model!r} can't enforce a "
            f"{effect.constraint.kind} constraint",
            hint="use an engine that can: the embedded one does all kinds",
        )
    what = f"the step {effect.name!r}"
    if effect.n == 1:
        stream = _Stream(branch, effect, params, site)
        work = attempts(lambda: stream.collect(session), effect.retries, stream.may_retry)
        return [await limited(work, effect.timeout, what)]
    copies = await session.fork(effect.n)
    seeds = [replace(params, seed=(params.seed or 0) + index) for index in range(effect.n)]
    streams = [
        _Stream(branch, effect, own, site, silent=index > 0) for index, own in enumerate(seeds)
    ]
    both = zip(streams, copies, strict=True)
    try:
        everything = asyncio.gather(*(stream.collect(copy) for stream, copy in both))
        return await limited(everything, effect.timeout, what)
    finally:
        # The first sample is what the program goes on with.
        for unused in [*copies[1:], session]:
            await unused.close()
        branch.adopt(copies[0])


class _Stream:
    """One attempt to generate: passes tokens on as events and keeps what was delivered."""

    def __init__(
        self,
        branch: Branch,
        effect: Generate,
        params: SamplingParams,
        site: Site,
        *,
        silent: bool = False,
    ) -> None:
        self._branch, self._effect, self._params, self._site = branch, effect, params, site
        self._silent = silent
        self._delivered: list[str] = []

    def may_retry(self, error: Exception) -> bool:
        """Text that readers have seen can't be taken back, so only a silent failure is retried."""
        return getattr(error, "retryable", False) and not self._delivered

    async def collect(self, session: Session) -> StepResult:
        """The stream's result. What was delivered before a failure stays in the text."""
        stream = session.generate(self._params, self._effect.constraint)
        result: StepResult | None = None
        try:
            async for item in stream:
                if isinstance(item, StepResult):
                    result = item
                else:
                    self._pass_on(item)
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            if result is None and not self._silent:
                self._branch.transcript.add("".join(self._delivered))
        if result is None:
            raise StepError(
                f"the engine's stream for step {self._effect.name!r} ended without a result",
                hint="the engine breaks its contract: see programs/protocol.py",
            )
        if not self._silent:
            self._branch.transcript.add(
                result.text, content=_apart(result.text, self._effect.reasoning)[0]
            )
        return result

    def _pass_on(self, item: TokenEvent) -> None:
        if self._silent:
            return
        if item.text:
            self._delivered.append(item.text)
        self._branch.run.emit(
            Token,
            self._site,
            self._branch.path,
            name=self._effect.name,
            text=item.text,
            tokens=item.tokens,
            forced=item.forced,
        )


def _append_known(branch: Branch, text: str, entry: Entry, site: Site) -> None:
    """Put recorded output at the end: by its token ids where the record has them."""
    branch.transcript.add(text)
    if entry.session is not None and branch.opened is None:
        branch.restore_at(branch.run.record.tokens_through(branch.path))
    else:
        branch.append([Text(text, heal=False, origin=site.origin)])


def _keep(branch: Branch, effect: Generate, results: Sequence[StepResult], site: Site) -> Any:
    run = branch.run
    usage = sum((result.usage for result in results), Usage())
    run.spend(usage)
    values = [_value(branch, effect, result) for result in results]
    value = values[0] if effect.n == 1 else values
    if effect.name is not None and effect.reasoning is not None:
        reasoning = _apart(results[0].text, effect.reasoning)[1]
        branch.set(f"{effect.name}_reasoning_content", reasoning)
    infos = [meta.of_result(result) for result in results]
    branch.set(effect.name, value, infos[0] if effect.n == 1 else infos)
    first = results[0]
    run.emit(
        StepFinished,
        site,
        branch.path,
        kind="gen",
        name=effect.name,
        text=first.text,
        value=show(value),
        finish_reason=first.finish_reason,
        usage=usage,
        timing=first.timing,
        miss=first.miss,
        seed=first.seed,
        constraint=effect.constraint.to_json() if effect.constraint else None,
    )
    return value


def _value(branch: Branch, effect: Generate, result: StepResult) -> Any:
    text = _apart(result.text, effect.reasoning)[0]
    if not effect.parse:
        return text
    assert effect.constraint is not None
    if result.finish_reason == "length":
        raise TruncatedOutput(
            f"max_tokens ended the structured output of step {effect.name!r}",
            hint='raise max_tokens, or pass finish="force" to close it in time',
            text=result.text,
        )
    return branch.run.analyser().parse(effect.constraint, text, effect.target)


def _apart(text: str, marks: tuple[str, str] | None) -> tuple[str, str]:
    """(answer, reasoning): the block between the marks is the reasoning. An opening mark may
    be missing (templates put it into the prompt), a closing one that is missing leaves all
    after the opening one reasoning."""
    if marks is None:
        return text, ""
    opening, closing = marks
    before, opened, rest = text.partition(opening)
    if not opened:
        before, rest = "", text
    reasoning, closed, answer = rest.partition(closing)
    if closed:
        return before + answer.lstrip("\n"), reasoning.strip("\n")
    return (before, reasoning.strip("\n")) if opened else (text, "")


async def choose(branch: Branch, effect: Choose, site: Site) -> str:
    """Score the choices, append the winner and keep it. Returns it."""
    if not effect.choices:
        raise CompileError(
            f"the choice {effect.name!r} has no choices", hint="give at least one string"
        )
    run = branch.run
    method = effect.method or DEFAULT
    request = digest(
        branch.transcript.fingerprint(), effect.choices, method.name, effect.temperature
    )
    entry = run.record.take(branch.path, "select", effect.name, request)
    if entry is not None:
        outcome = entry.outcome
        _append_known(branch, outcome["choice"], entry, site)
    else:
        scored = await limited(
            attempts(lambda: _score(branch, effect, method), effect.retries),
            effect.timeout,
            f"the choice {effect.name!r}",
        )
        decision = method.decide(scored.choices)
        index = _draw(branch, effect, decision)
        text = effect.choices[index]
        branch.append([Text(text, origin=site.origin)])
        branch.transcript.add(text)
        outcome = meta.of_choice(effect.choices, index, decision, scored)
        session = await branch.token_delta() if run.recording else None
        run.record.add(
            branch.path,
            Entry("select", effect.name, request, outcome, site.node, site.line, session),
        )
        run.spend(scored.usage)
    branch.set(effect.name, outcome["choice"], outcome)
    run.emit(
        StepFinished,
        site,
        branch.path,
        kind="select",
        name=effect.name,
        text=outcome["choice"],
        value=outcome["choice"],
        usage=Usage(**outcome["usage"]),
        scores=dict(zip(effect.choices, outcome["scores"], strict=True)),
    )
    return outcome["choice"]  # type: ignore[no-any-return] # plain JSON data


async def _score(branch: Branch, effect: Choose, method: Any) -> ScoreResult:
    backend = await branch.run.backend()
    if not backend.capabilities.score:
        raise Unsupported(
            f"the engine of {backend.capabilities.model!r} can't score choices",
            hint="use gen(regex=...) there, or an engine that scores",
        )
    branch.run.allowance()
    session = await branch.session()
    return await session.score(effect.choices, empty_context=method.needs_unconditional)


def _draw(branch: Branch, effect: Choose, decision: Decision) -> int:
    """The winner at temperature 0, else a draw from softmax(scores / temperature)."""
    if effect.temperature == 0:
        return decision.index
    top = max(decision.scores)
    weights = [math.exp((score - top) / effect.temperature) for score in decision.scores]
    key = f"{branch.run.seed}:{branch.path}:{branch.transcript.fingerprint()}"
    return random.Random(key).choices(range(len(weights)), weights)[0]
