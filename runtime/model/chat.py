"""A model's chat template, cut into what goes before and after each message.

What lives here: `chat_format`, which renders the model's own Jinja template with sentinel
messages and finds the pieces between them. What does not: applying the format (sessions do, by
appending segments), so a message's text is never part of a template and can't break out of it.

The template is rendered in Jinja's sandbox: it comes with the weights, from somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from phloem.errors import Unsupported
from phloem.programs.protocol import ChatFormat, Segment, Special, Text

__all__ = ["chat_format"]

SENTINELS = {"system": "PHLOEM-SYSTEM", "user": "PHLOEM-USER", "assistant": "PHLOEM-ASSISTANT"}


def chat_format(
    template: str, name: str, specials: Collection[str], bos: str = "", eos: str = ""
) -> ChatFormat:
    """Cut `template` into a `ChatFormat`.

    `specials` are the spellings of the model's control tokens. Raises `Unsupported` if the
    text around a message depends on more than its role.
    """
    try:
        pieces = _Cutter(template, bos, eos).pieces()
    except _NotSeparableError as error:
        raise Unsupported(
            f"the chat template of {name} can't be used for roles: {error}",
            hint="write the prompt as plain text and special tokens, or use the SGLang backend",
        ) from error
    prefix = {role: split_specials(text, specials) for role, text in pieces.prefix.items()}
    suffix = {role: split_specials(text, specials) for role, text in pieces.suffix.items()}
    return ChatFormat(
        name, prefix, suffix, pieces.default_system, split_specials(pieces.begin, specials)
    )


def split_specials(text: str, specials: Collection[str]) -> tuple[Segment, ...]:
    """Template text as segments: control tokens by spelling, and unhealed text between."""
    if not text:
        return ()
    if not specials:
        return (Text(text, heal=False),)
    longest_first = sorted(specials, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return tuple(
        Special(part) if part in specials else Text(part, heal=False) for part in parts if part
    )


class _NotSeparableError(Exception):
    """The template does not put each message between texts that depend on its role only."""


class _Pieces:
    """The result of cutting, as plain text."""

    def __init__(self) -> None:
        self.begin = ""
        self.prefix: dict[str, str] = {}
        self.suffix: dict[str, str] = {}
        self.default_system: str | None = None


class _Cutter:
    """Renders sentinel conversations and compares what lies around the sentinels."""

    def __init__(self, template: str, bos: str, eos: str) -> None:
        # The environment that chat templates are written for (transformers documents it).
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise _NotSeparableError(f"it is no valid template ({error})") from error
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def pieces(self) -> _Pieces:
        """Cut. User and assistant must be separable; a system role is optional."""
        found = _Pieces()
        self._cut_dialogue(found)
        self._cut_system(found)
        return found

    def _cut_dialogue(self, found: _Pieces) -> None:
        """Find user and assistant. `begin` becomes all that precedes the first user message."""
        first, after_user = self._around("user")
        _, ask = self._around("user", generate=True)
        opened = _without_prefix(ask, after_user, "the generation prompt changes the user message")
        first_again, between, after_assistant = self._around("user", "assistant")
        first_thrice, history, turn, between_2, end = self._around(
            "user", "assistant", "user", "assistant"
        )
        if not first == first_again == first_thrice:
            raise _NotSeparableError("the opening depends on later messages")
        if end != after_assistant:
            raise _NotSeparableError("the last message ends differently")
        # A template may write more before an old answer than before a new one: an (empty)
        # reasoning block that the model itself writes after the generation prompt.
        if not all(t.startswith(after_user + opened) for t in (between, history, between_2)):
            raise _NotSeparableError("old answers open differently from new ones")
        found.prefix["assistant"], found.suffix["assistant"] = opened, after_assistant
        found.prefix["user"] = _without_prefix(
            turn, after_assistant, "what follows an assistant message varies"
        )
        found.suffix["user"] = after_user
        found.begin = _without_suffix(
            first, found.prefix["user"], "the first user message opens differently"
        )

    def _cut_system(self, found: _Pieces) -> None:
        """Find the system role, if the model has one, and the default system message."""
        bos, user = self._tokens["bos_token"], found.prefix["user"]
        try:
            before, between, _ = self._around("system", "user")
            suffix = _without_suffix(between, user, "the system message is part of the user's")
        except _NotSeparableError:
            return
        # Some models open every message with their begin-of-sequence token.
        begin = bos if before.startswith(bos) and not (bos and user.startswith(bos)) else ""
        prefix, opening = before.removeprefix(begin), found.begin.removeprefix(begin)
        if opening:
            rest = _without_prefix(opening, prefix, "what opens a conversation is no message")
            found.default_system = _without_suffix(rest, suffix, "the default message is cut")
        found.prefix["system"], found.suffix["system"], found.begin = prefix, suffix, begin

    def _around(self, *roles: str, generate: bool = False) -> list[str]:
        """The texts before, between and after the sentinels of a conversation."""
        text = self._render(
            [{"role": role, "content": SENTINELS[role]} for role in roles], generate
        )
        parts = []
        for role in roles:
            before, found, text = text.partition(SENTINELS[role])
            if not found:
                raise _NotSeparableError(f"a {role} message is left out or moved")
            parts.append(before)
        if any(sentinel in part for part in [*parts, text] for sentinel in SENTINELS.values()):
            raise _NotSeparableError("a message appears twice or out of order")
        return [*parts, text]

    def _render(self, messages: list[dict[str, str]], generate: bool) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=generate, tools=None, **self._tokens
            )
        except Exception as error:  # a template is a program: anything may go wrong in it
            raise _NotSeparableError(f"it can't be rendered ({error})") from error


def _raise(message: str) -> Any:
    raise TemplateError(message)


def _without_prefix(text: str, prefix: str, problem: str) -> str:
    if not text.startswith(prefix):
        raise _NotSeparableError(problem)
    return text[len(prefix) :]


def _without_suffix(text: str, suffix: str, problem: str) -> str:
    if not text.endswith(suffix):
        raise _NotSeparableError(problem)
    return text[: len(text) - len(suffix)]
