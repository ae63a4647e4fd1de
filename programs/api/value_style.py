"""What a step does in a value-style program.

What lives here: from `gen("name", **variables)` to a user turn (the rendered template) and an
assistant turn (the step), on the run's session or on a branch of its own. What does not: the
step itself (`executor/steps.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from phloem.errors import CompileError
from phloem.programs.effects import (
    AddText,
    Choose,
    Effect,
    Generate,
    RoleBegin,
    RoleEnd,
    well_formed,
)
from phloem.programs.executor import forking, hub
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.deferred import Deferred
from phloem.programs.executor.frame import Frame
from phloem.programs.executor.perform import perform
from phloem.programs.executor.run import Site

__all__ = ["step"]

SYSTEM = "system"


def step(
    frame: Frame, effect: Generate | Choose, variables: Mapping[str, Any], *, fresh: bool
) -> Any:
    """Do a step of a value-style program and return its value.

    The template sees the program's arguments and the step's own `variables`. A template named
    "system" becomes the system message of every session that begins. With `fresh` the step has
    a session of its own; inside `parallel()` it has a branch of the run's session, as that
    stood when the block began. Neither becomes part of the run's session.
    """
    if effect.name is None:
        raise CompileError(
            "a value-style step needs the name of a prompt template as its first argument",
            hint='write gen("name", ...) with @function(prompts={"name": "..."})',
        )
    quoted = isinstance(effect, Generate) and effect.quoted is not None
    _refuse_unused(frame, effect.name, set(variables) - ({"docs"} if quoted else set()))
    shared = {**frame.args, **variables}
    prompt = well_formed(frame.templates.render(effect.name, shared), "the prompt")
    system = frame.templates.render(SYSTEM, shared) if SYSTEM in frame.templates else None
    site = frame.site()
    if not fresh and not frame.parallel:
        return hub.wait(_turns(frame.branch, effect, prompt, system, site))
    child = frame.branch.fresh() if fresh else frame.branch.child()
    child.queued = False
    work = _beside(frame, child, effect, prompt, system, site)
    if not frame.may_defer:
        return hub.wait(work)
    frame.may_defer = False
    deferred = Deferred(frame.run.spawn(work))
    frame.deferred.append(deferred)
    return deferred


def _refuse_unused(frame: Frame, name: str, variables: Collection[str]) -> None:
    """Raises `CompileError` for a variable that no template uses: often a misspelt argument."""
    if not variables:
        return
    known = [frame.templates.variables(template) for template in (name, SYSTEM)]
    if known[0] is None or (known[1] is None and SYSTEM in frame.templates):
        return  # the step's own errors come first, or there is more than can be seen
    unused = next((v for v in variables if not any(v in (used or ()) for used in known)), None)
    if unused is not None:
        raise CompileError(
            f"the step {name!r} has no argument {unused!r}, and its prompt no such variable",
            hint="correct the name, or use it in the template: {{ " + unused + " }}",
        )


async def _turns(
    branch: Branch, effect: Effect, prompt: str, system: str | None, site: Site
) -> Any:
    before: list[Effect] = [RoleBegin("user"), AddText(prompt), RoleEnd("user")]
    if system is not None and not branch.transcript.closed:
        before = [RoleBegin("system"), AddText(system), RoleEnd("system"), *before]
    for item in (*before, RoleBegin("assistant")):
        await perform(branch, item, site)
    value = await perform(branch, effect, site)
    await perform(branch, RoleEnd("assistant"), site)
    return value


async def _beside(
    frame: Frame,
    child: Branch,
    effect: Generate | Choose,
    prompt: str,
    system: str | None,
    site: Site,
) -> Any:
    try:
        if child.parent is not None:
            await forking.share_session(child.parent, [child])
        value = await _turns(child, effect, prompt, system, site)
    finally:
        await child.close()
    frame.branch.set(effect.name, value, child.meta.get(effect.name or ""))
    return value
