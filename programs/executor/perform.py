"""The one place where effects are done, wherever they come from.

What lives here: the dispatch from an effect's class to what does it, the events around a
step, and the place that is attached to its error. What does not: the doing of each kind
(`text.py`, `steps.py`, `services.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phloem.programs import effects as fx
from phloem.programs.events import StepFailed, StepStarted
from phloem.programs.executor import choosing, services, steps, text
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.glance import glance
from phloem.programs.executor.record import RecordedFailure
from phloem.programs.executor.run import Site
from phloem.programs.protocol import Text, describe
from phloem.programs.sampling import merge

__all__ = ["perform"]

_KINDS = {fx.Generate: "gen", fx.Choose: "select", fx.Search: "retrieve", fx.CallTool: "tool"}


async def perform(branch: Branch, effect: fx.Effect, site: Site) -> Any:
    """Do one effect on a branch and return its value (None for text)."""
    kind = _KINDS.get(type(effect))
    if kind is None:
        await _put(branch, effect, site)
        return None
    run, name = branch.run, getattr(effect, "name", None)
    asked = _asked(branch, effect) if run.settings.trace_values else None
    run.emit(StepStarted, site, branch.path, kind=kind, name=name, asked=asked)
    before = len(branch.transcript.pieces)
    try:
        run.remaining()
        return await _ask(branch, effect, site)
    except RecordedFailure as recorded:
        if recorded.text:
            branch.append([Text(recorded.text, heal=False, origin=site.origin)])
            branch.transcript.add(recorded.text)
        _report(branch, kind, name, recorded.error, site)
        raise recorded.error from None
    except BaseException as error:
        if run.recording and isinstance(error, Exception):
            text = "".join(branch.transcript.pieces[before:])
            run.record.failed(_path(branch, effect), error, text, site.node, site.line)
        _report(branch, kind, name, error, site)
        raise


def _report(branch: Branch, kind: str, name: str | None, error: BaseException, site: Site) -> None:
    branch.run.locate(error, site)
    branch.run.emit(
        StepFailed,
        site,
        branch.path,
        kind=kind,
        name=name,
        error=type(error).__name__,
        message=str(error),
    )


def _asked(branch: Branch, effect: fx.Effect) -> dict[str, Any]:
    """What a step asks for, for people."""
    match effect:
        case fx.Generate():
            params = merge(branch.sampling, effect.options, seed=branch.run.seed)
            asked = describe(params)
            if effect.constraint is not None:
                asked["constraint"] = effect.constraint.to_json()
        case fx.Choose():
            asked = {"choices": effect.choices}
        case fx.Search():
            asked = {"query": effect.query, **effect.options}
        case fx.CallTool():
            asked = {"args": effect.args, "kwargs": effect.kwargs}
        case _:
            raise AssertionError(effect)
    return glance(asked)  # type: ignore[no-any-return] # a dict stays one


def _path(branch: Branch, effect: fx.Effect) -> str:
    """Where the record keeps the effect."""
    return branch.path + (effect.slot if isinstance(effect, fx.CallTool | fx.Search) else "")


async def _ask(branch: Branch, effect: fx.Effect, site: Site) -> Any:
    match effect:
        case fx.Generate():
            return await steps.generate(branch, effect, site)
        case fx.Choose():
            return await choosing.choose(branch, effect, site)
        case fx.Search():
            early = branch.run.take_early(site.node, replace(effect, slot=""))
            return await services.search(branch, effect, site, early)
        case fx.CallTool():
            return await services.call_tool(branch, effect, site)
    raise AssertionError(effect)


async def _put(branch: Branch, effect: fx.Effect, site: Site) -> None:
    match effect:
        case fx.AddText():
            text.add_text(branch, effect, site)
        case fx.AddLater():
            text.add_text(branch, fx.AddText(await effect.text()), site)
        case fx.AddSpecial():
            text.add_special(branch, effect, site)
        case fx.RoleBegin():
            await text.begin_role(branch, effect, site)
        case fx.RoleEnd():
            await text.end_role(branch, effect, site)
        case fx.ScopeBegin():
            branch.transcript.open_scope(effect.name)
        case fx.ScopeEnd():
            branch.set(effect.name, branch.transcript.close_scope(effect.name))
        case fx.Media():
            await text.refuse_media(branch, effect)
