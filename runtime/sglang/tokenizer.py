"""The texts of a model that runs elsewhere: its tokenizer, ends and chat format, without weights.

What lives here: `ModelText` and `load_model_text`. What does not: models with weights
(`runtime/model/load.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.errors import ModelError, Unsupported
from phloem.programs.protocol import ChatFormat, Special
from phloem.runtime.model.chat import chat_format
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.gguf_tokenizer import tokenizer_json_from_gguf
from phloem.runtime.model.store import model_path
from phloem.runtime.model.tokenizer import Tokenizer
from phloem.runtime.model.weights import read_json

__all__ = ["ModelText", "load_model_text"]


@dataclass(frozen=True, slots=True)
class ModelText:
    """A tokenizer, the ids that end a generation, and the chat format or why there is none."""

    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    chat_format: ChatFormat | None
    chat_problem: str = "the model has no chat template"

    @property
    def start(self) -> int:
        """What a session with nothing in it starts from: what opens a conversation, else an end."""
        for segment in self.chat_format.begin if self.chat_format else ():
            if isinstance(segment, Special):
                found = self.tokenizer.special_id(segment.token)
                if found is not None:
                    return found
        return min(self.eos_ids)


def load_model_text(name_or_path: str | Path) -> ModelText:
    """Read a folder with tokenizer.json, or a GGUF file, by path or by its name in the store.

    Raises `ModelNotFound` and `ModelError`.
    """
    path = model_path(str(name_or_path))
    if path.is_file():
        return _from_gguf(path)
    return _from_folder(path)


def _from_gguf(path: Path) -> ModelText:
    meta = GgufFile(path).meta
    ids = (meta.get("tokenizer.ggml.eos_token_id"), meta.get("tokenizer.ggml.eot_token_id"))
    bos = meta.get("tokenizer.ggml.bos_token_id")
    return _text(
        path.stem,
        Tokenizer(tokenizer_json_from_gguf(meta)),
        [i for i in ids if i is not None],
        meta.get("tokenizer.chat_template"),
        "" if bos is None else meta["tokenizer.ggml.tokens"][bos],
    )


def _from_folder(folder: Path) -> ModelText:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(
            f"{folder} has no tokenizer.json", hint="give tokenizer= a folder that has one"
        )
    settings = read_json(folder / "tokenizer_config.json", {})
    template = folder / "chat_template.jinja"
    tokenizer = Tokenizer(file.read_text(encoding="utf-8"))
    return _text(
        folder.name,
        tokenizer,
        _ends(folder, settings, tokenizer),
        template.read_text() if template.exists() else settings.get("chat_template"),
        _spelling(settings.get("bos_token")),
    )


def _ends(folder: Path, settings: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name, {}).get("eos_token_id")
        if found is not None:
            return found if isinstance(found, list) else [found]
    end = tokenizer.special_id(_spelling(settings.get("eos_token")))
    return [] if end is None else [end]


def _spelling(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token or "")


def _text(
    name: str, tokenizer: Tokenizer, ends: list[int], template: str | None, bos: str
) -> ModelText:
    chat, problem = None, "the model has no chat template"
    if template:
        try:
            chat = chat_format(template, name, tokenizer.specials, bos)
        except Unsupported as error:
            problem = error.message
    for segment in chat.suffix["assistant"][:1] if chat else ():
        if isinstance(segment, Special):
            ends = [*ends, tokenizer.specials[segment.token]]
    if not ends:
        raise ModelError(
            f"{name} names no end-of-sequence token",
            hint="put its id into generation_config.json as eos_token_id",
        )
    return ModelText(tokenizer, frozenset(ends), chat, problem)
