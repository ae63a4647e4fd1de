"""The step that chooses: scores every choice and appends the winner.

What lives here: from the effect to the engine's scores (or the recorded decision), and to the
branch's variable, meta data and text. What does not: the decision rules
(`programs/choices.py`).
"""

from __future__ import annotations

import math
import random
from typing import Any

from phloem.errors import CompileError, Unsupported
from phloem.programs.choices import DEFAULT, Decision
from phloem.programs.effects import Choose
from phloem.programs.events import StepFinished
from phloem.programs.executor import meta
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.limits import attempts, limited
from phloem.programs.executor.record import Entry, digest
from phloem.programs.executor.run import Site
from phloem.programs.executor.steps import append_known
from phloem.programs.protocol import ScoreResult, Text, Timing, Usage

__all__ = ["choose"]


async def choose(branch: Branch, effect: Choose, site: Site) -> str:
    """Score the choices, append the winner and keep it. Returns it."""
    if not effect.choices:
        raise CompileError(
            f"the choice {effect.name!r} has no choices", hint="give at least one string"
        )
    run = branch.run
    method = effect.method or DEFAULT
    request = ""
    if run.keeps:
        request = digest(
            branch.transcript.fingerprint(), effect.choices, method.name, effect.temperature
        )
    entry = run.record.take(branch.path, "select", effect.name, request)
    miss = computed = None
    if entry is not None:
        outcome = entry.outcome
        run.spend(Usage(**outcome["usage"]))
        append_known(branch, outcome["choice"], entry, site)
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
        session = await branch.kept() if run.recording else None
        run.record.add(
            branch.path,
            Entry("select", effect.name, request, outcome, site.node, site.line, session),
        )
        run.spend(scored.usage)
        miss, computed = scored.miss, scored.computed_chars
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
        timing=Timing(**outcome["timing"]),
        miss=miss,
        scores=dict(zip(effect.choices, outcome["scores"], strict=True)),
        computed_chars=computed,
        replayed=entry is not None,
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
