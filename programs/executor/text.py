"""Effects that only put text: plain text, chat messages, scopes.

What lives here: how each changes the session and the transcript. What does not: steps that
ask the model (`steps.py`). Text of users and documents is always `Text`: only the model's own
chat format and `ph.special()` make special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phloem.errors import Unsupported
from phloem.programs.effects import AddSpecial, AddText, Media, RoleBegin, RoleEnd
from phloem.programs.events import Appended
from phloem.programs.executor.branch import Branch
from phloem.programs.executor.outcome import chat_from_json, chat_to_json
from phloem.programs.executor.run import Run, Site
from phloem.programs.protocol import ChatFormat, Segment, Special, Text

__all__ = ["add_special", "add_text", "begin_role", "chat_format", "end_role", "refuse_media"]


def add_text(branch: Branch, effect: AddText, site: Site) -> None:
    """Append ordinary text, or what a rewind put in its place."""
    number, text = branch.run.record.put(branch.path, effect.text)
    branch.append([Text(text, origin=site.origin)])
    branch.transcript.add(text)
    branch.run.emit(Appended, site, branch.path, text=text, number=number)


def add_special(branch: Branch, effect: AddSpecial, site: Site) -> None:
    """Append one special token."""
    _markup(branch, [Special(effect.token)], site)


async def begin_role(branch: Branch, effect: RoleBegin, site: Site) -> None:
    """Open a chat message, after the template's own beginning and default system message.

    Raises `Unsupported` for a role that the model's chat format lacks.
    """
    chat = await chat_format(branch.run)
    if effect.role not in chat.prefix:
        raise Unsupported(
            f"the chat format {chat.name!r} has no role {effect.role!r}",
            hint=f"it has: {', '.join(sorted(chat.prefix))}",
        )
    first = not branch.transcript.closed and branch.transcript.role is None
    if first:
        _markup(branch, chat.begin, site)
    if first and effect.role != "system" and chat.default_system is not None:
        branch.transcript.open_role("system")
        _markup(branch, chat.prefix["system"], site)
        branch.append([Text(chat.default_system, heal=False, origin=site.origin)])
        branch.transcript.add(chat.default_system)
        _markup(branch, chat.suffix["system"], site)
        branch.transcript.close_role("system")
    branch.transcript.open_role(effect.role)
    _markup(branch, chat.prefix[effect.role], site)


async def end_role(branch: Branch, effect: RoleEnd, site: Site) -> None:
    """Close the open chat message."""
    chat = await chat_format(branch.run)
    branch.transcript.close_role(effect.role)
    _markup(branch, chat.suffix[effect.role], site)


def _markup(branch: Branch, segments: Sequence[Segment], site: Site) -> None:
    if not segments:
        return
    branch.append([replace(segment, origin=site.origin) for segment in segments])
    text = "".join(s.token if isinstance(s, Special) else s.text for s in segments)
    branch.transcript.add(text, markup=True)
    branch.run.emit(Appended, site, branch.path, text=text)


async def chat_format(run: Run) -> ChatFormat:
    """The model's chat format: the recorded one in a replay, which needs no engine."""
    if run.chat is None:
        if run.record.chat is not None:
            run.chat = chat_from_json(run.record.chat)
        else:
            run.chat = (await run.backend()).chat
            run.record.chat = chat_to_json(run.chat)
    return run.chat


async def refuse_media(branch: Branch, effect: Media) -> None:
    """Images and videos need a model that can see; none of the engines offers one yet."""
    model = (await branch.run.backend()).capabilities.model
    raise Unsupported(
        f"the model {model!r} can't take an {effect.kind}"
        if effect.kind == "image"
        else f"the model {model!r} can't take a {effect.kind}",
        hint="describe it in text, or use an engine with vision",
    )
