"""Asking the engine to generate: one stream, or several samples side by side.

What lives here: abilities checked, retries and time limits applied, tokens passed on as events.
What does not: what becomes of the result (`steps.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from phloem.errors import StepError, Unsupported
from phloem.programs.effects import Generate
from phloem.programs.events import Token
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.limits import attempts, limited
from phloem.programs.executor.reasoning import apart
from phloem.programs.executor.run import Site
from phloem.programs.protocol import SamplingParams, Session, StepResult, TokenEvent

__all__ = ["ask"]


async def ask(
    branch: Branch, effect: Generate, params: SamplingParams, site: Site
) -> list[StepResult]:
    """The result of each sample. With several, the branch goes on with the first."""
    session = await branch.session()
    backend = await branch.run.backend()
    if effect.constraint and effect.constraint.kind not in backend.capabilities.constraints:
        raise Unsupported(
            f"the engine of {backend.capabilities.model!r} can't enforce a "
            f"{effect.constraint.kind} constraint",
            hint="use an engine that can: the embedded one does all kinds",
        )
    what = f"the step {effect.name!r}"
    samples = effect.n or branch.run.settings.samples
    if params.max_tokens == 0 and params.logprobs is not None:
        look = attempts(lambda: _look(session, effect, params), effect.retries)
        return samples * [await limited(look, effect.timeout, what)]
    if samples == 1:
        work = _Stream(branch, effect, params, site).whole(session)
        return [await limited(work, effect.timeout, what)]
    keys = [f"{branch.key}#{index}" for index in range(samples)]
    copies = await session.fork(samples, branches=keys)
    streams = [_Stream(branch, effect, params, site, silent=index > 0) for index in range(samples)]
    both = zip(streams, copies, strict=True)
    tasks = [asyncio.ensure_future(stream.whole(copy)) for stream, copy in both]
    try:
        return await limited(asyncio.gather(*tasks), effect.timeout, what)
    finally:
        # If one fails, the others are of no use; one may be waiting for its next attempt.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The first sample is what the program goes on with.
        for unused in [*copies[1:], session]:
            await unused.close()
        branch.adopt(copies[0])
        branch.key = keys[0]


async def _look(session: Session, effect: Generate, params: SamplingParams) -> StepResult:
    """The next token's log-probabilities, and no text: what `max_tokens=0` means in SGLang for a
    step that asks for them. The token is generated on a copy of the session, which is dropped."""
    (copy,) = await session.fork(1)
    try:
        params = replace(params, max_tokens=1, min_tokens=0, stream=False)
        async for item in copy.generate(params, effect.constraint):
            if isinstance(item, StepResult):
                return replace(item, text="", tokens=(), finish_reason="length", stop=None)
    finally:
        await copy.close()
    raise _endless(effect)


def _endless(effect: Generate) -> StepError:
    return StepError(
        f"the engine's stream for step {effect.name!r} ended without a result",
        hint="the engine breaks its contract: see programs/protocol.py",
    )


class _Stream:
    """One sample: passes tokens on as events and keeps what was delivered."""

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
        self._begun = False

    async def whole(self, session: Session) -> StepResult:
        """The result, after as many attempts as the step allows. A text that has begun can't be
        taken back, so only a failure before it is retried."""
        return await attempts(
            lambda: self._collect(session),
            self._effect.retries,
            lambda error: getattr(error, "retryable", False) and not self._begun,
        )

    async def _collect(self, session: Session) -> StepResult:
        """The stream's result. What was delivered before a failure stays in the text."""
        params = replace(self._params, stream=self._branch.run.watched and not self._silent)
        stream = session.generate(params, self._effect.constraint)
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
            if result is None and self._delivered:
                self._branch.transcript.add("".join(self._delivered))
        if result is None:
            raise _endless(self._effect)
        if not self._silent:
            self._branch.transcript.add(
                result.text, content=apart(result.text, self._effect.reasoning)[0]
            )
        return result

    def _pass_on(self, item: TokenEvent) -> None:
        self._begun = self._begun or bool(item.text)
        if self._silent or item.empty:
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
            forced_spans=item.forced_spans,
        )
