"""The step that generates.

What lives here: from the effect to a recorded, cached or new result, and from the result to the
branch's variable, meta data and text. What does not: the engine's stream (`generation.py`),
choices (`choosing.py`), time limits (`limits.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phloem.errors import BudgetExceeded, TruncatedOutput
from phloem.programs.effects import Generate
from phloem.programs.events import StepFinished
from phloem.programs.executor import meta, step_cache
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.generation import ask
from phloem.programs.executor.outcome import result_from_json, result_to_json
from phloem.programs.executor.reasoning import apart
from phloem.programs.executor.record import Entry, digest
from phloem.programs.executor.run import Site
from phloem.programs.executor.values import show
from phloem.programs.protocol import SamplingParams, StepResult, Text, Usage
from phloem.programs.quoted import Quote
from phloem.programs.sampling import merge

__all__ = ["append_known", "generate"]


async def generate(branch: Branch, effect: Generate, site: Site) -> Any:
    """Generate, append, and keep the value. Returns it: text, a parsed value, or a list."""
    run = branch.run
    params = merge(branch.sampling, effect.options, seed=run.seed)
    request = _request(branch, effect, params) if run.keeps else ""
    entry = run.record.take(branch.path, "gen", effect.name, request)
    replayed = entry is not None
    if entry is None:
        entry = await step_cache.find(branch, effect, params, request, site)
    if entry is not None:
        results = [result_from_json(item) for item in entry.outcome]
        content = apart(results[0].text, effect.reasoning)[0]
        append_known(branch, results[0].text, entry, site, content)
    else:
        left = run.allowance()
        capped = left is not None and left < params.max_tokens
        if capped:
            assert left is not None
            params = replace(params, max_tokens=left)
        results = await ask(branch, effect, params, site)
        if run.keeps:
            outcome = [result_to_json(result) for result in results]
            await step_cache.store(branch, params, request, outcome)
            session = await branch.kept() if run.recording else None
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
    return _keep(branch, effect, results, site, replayed=replayed)


def _request(branch: Branch, effect: Generate, params: SamplingParams) -> str:
    """A digest of all that the step's result depends on, but for the seed."""
    return digest(
        branch.transcript.fingerprint(),
        [(name, getattr(params, name)) for name in params.__slots__ if name != "seed"],
        effect.constraint.to_json() if effect.constraint else None,
        effect.n or branch.run.settings.samples,
    )


def append_known(
    branch: Branch, text: str, entry: Entry, site: Site, content: str | None = None
) -> None:
    """Put recorded output at the end: by its token ids where the record has them."""
    branch.transcript.add(text, content=content)
    if entry.session is not None and branch.opened is None:
        branch.restore(entry.session)
    else:
        branch.append([Text(text, heal=False, origin=site.origin)])


def _keep(
    branch: Branch,
    effect: Generate,
    results: Sequence[StepResult],
    site: Site,
    *,
    replayed: bool,
) -> Any:
    run = branch.run
    usage = sum((result.usage for result in results), Usage())
    run.spend(usage)
    values = [_value(branch, effect, result) for result in results]
    value = values[0] if len(values) == 1 else values
    if effect.name is not None and effect.reasoning is not None:
        reasoning = apart(results[0].text, effect.reasoning)[1]
        branch.set(f"{effect.name}_reasoning_content", reasoning)
    infos = [meta.of_result(result) for result in results]
    branch.set(effect.name, value, infos[0] if len(infos) == 1 else infos)
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
        computed_chars=first.computed_chars,
        logprobs=first.logprobs,
        replayed=replayed,
    )
    return value


def _value(branch: Branch, effect: Generate, result: StepResult) -> Any:
    text = apart(result.text, effect.reasoning)[0]
    if effect.quoted is not None:
        return Quote(text, branch.run.analyser().locate(effect.quoted, text))
    if not effect.parse:
        return text
    assert effect.constraint is not None
    if result.finish_reason == "length":
        raise TruncatedOutput(
            f"max_tokens ended the structured output of step {effect.name!r}",
            hint='raise max_tokens, or pass finish="force" to close it in time',
            text=result.text,
        )
    if result.stop is not None:  # it may well be that what is left can be parsed, as something else
        raise TruncatedOutput(
            f"the stop text {result.stop!r} ended the structured output of step {effect.name!r}",
            hint="leave stop= out: the output ends by itself",
            text=result.text,
        )
    return branch.run.analyser().parse(effect.constraint, text, effect.target)
