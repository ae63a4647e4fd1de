"""The text side of a model: its tokenizer, ends and chat format, without weights.

What lives here: `load_model_text`, enough for a model that runs elsewhere. What does not: the
record it gives (`text_side.py`) and models with weights (`load.py`). A GGUF file's tokenizer is
converted once, and cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phloem.errors import ModelError, Unsupported
from phloem.programs.protocol import ChatFormat, Special
from phloem.runtime.model.cache import CacheEntry, content_hash
from phloem.runtime.model.chat import chat_format
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.gguf_tokenizer import tokenizer_json_from_gguf
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.text_side import ModelText
from phloem.runtime.model.tokenizer import Tokenizer
from phloem.runtime.model.weights import read_json

__all__ = ["ModelText", "load_model_text"]


def load_model_text(name_or_path: str | Path = DEFAULT_MODEL) -> ModelText:
    """Read a folder with tokenizer.json, or a GGUF file, by path or by its name in the store.

    Raises `ModelNotFound` and `ModelError`.
    """
    path = model_path(str(name_or_path))
    name = str(name_or_path)
    if Path(name_or_path).exists():
        name = path.stem if path.is_file() else path.name
    return _from_gguf(path, name) if path.is_file() else _from_folder(path, name)


def _from_gguf(path: Path, name: str) -> ModelText:
    meta = GgufFile(path).meta
    ids = (meta.get("tokenizer.ggml.eos_token_id"), meta.get("tokenizer.ggml.eot_token_id"))
    bos = meta.get("tokenizer.ggml.bos_token_id")

    def write(target: Path) -> None:
        target.write_text(tokenizer_json_from_gguf(meta), encoding="utf-8")

    cached = CacheEntry(content_hash(path)).file("tokenizer.json", write)
    return _text(
        name,
        Tokenizer(cached.read_text(encoding="utf-8")),
        [i for i in ids if i is not None],
        meta.get("tokenizer.chat_template"),
        "" if bos is None else meta["tokenizer.ggml.tokens"][bos],
        opens=bool(meta.get("tokenizer.ggml.add_bos_token")),
    )


def _from_folder(folder: Path, name: str) -> ModelText:
    file = folder / "tokenizer.json"
    if not file.exists():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            hint="write one with transformers: AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(folder)",
        )
    settings = read_json(folder / "tokenizer_config.json", {})
    template = folder / "chat_template.jinja"
    tokenizer = Tokenizer(file.read_text(encoding="utf-8"))
    return _text(
        name,
        tokenizer,
        _ends(folder, settings, tokenizer),
        template.read_text() if template.exists() else settings.get("chat_template"),
        _spelling(settings.get("bos_token")),
        opens=bool(settings.get("add_bos_token")),
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
    name: str,
    tokenizer: Tokenizer,
    ends: list[int],
    template: str | None,
    bos: str,
    *,
    opens: bool,
) -> ModelText:
    chat, problem = _chat(name, tokenizer, template, bos)
    # What ends an assistant's message ends a generation, whatever the configuration says.
    for segment in chat.suffix["assistant"][:1] if chat else ():
        if isinstance(segment, Special):
            ends = [*ends, tokenizer.specials[segment.token]]
    if not ends:
        raise ModelError(
            f"{name} names no end-of-sequence token",
            hint="put its id into generation_config.json as eos_token_id",
        )
    return ModelText(
        name=name,
        tokenizer=tokenizer,
        eos_ids=frozenset(ends),
        chat_format=chat,
        chat_problem=problem,
        bos=tokenizer.special_id(bos) if opens and chat is None else None,
    )


def _chat(
    name: str, tokenizer: Tokenizer, template: str | None, bos: str
) -> tuple[ChatFormat | None, str]:
    if not template:
        return None, "the model has no chat template"
    try:
        return chat_format(template, name, tokenizer.specials, bos), ""
    except Unsupported as error:
        return None, error.message
