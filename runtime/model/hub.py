"""Models of the Hugging Face hub, by ORG/NAME, through the hub's own library.

What lives here: fetching the files of a model that we can read, and finding those fetched,
by us or by other programs. What does not: packaged models (`packaged.py`). The library resumes
interrupted downloads, and shows a model only once all its files are there.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors

from phloem.errors import ModelError, ModelNotFound
from phloem.runtime.model.cache import cache_dir
from phloem.runtime.model.progress import OnProgress, Progress

__all__ = ["find", "is_hub_name", "list_found", "pull"]

SETTINGS = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
WEIGHTS = ["*.safetensors", "model.safetensors.index.json"]


def is_hub_name(name: str) -> bool:
    """Whether `name` has the hub's form, ORG/NAME, optionally :FILE.gguf."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w./-]+\.gguf)?", name))


def find(name: str) -> Path | None:
    """The folder or GGUF file of a fetched model, in phloem's cache or the library's own."""
    if not is_hub_name(name):
        return None
    repo, _, gguf = name.partition(":")
    for where in (_home(), None):
        try:
            folder = huggingface_hub.snapshot_download(
                repo, cache_dir=where, allow_patterns=_wanted(gguf), local_files_only=True
            )
        except errors.LocalEntryNotFoundError:
            continue
        found = _usable(Path(folder), gguf)
        if found is not None:
            return found
    return None


def list_found() -> dict[str, Path]:
    """Names and paths of the models that phloem fetched from the hub."""
    folders = sorted(_home().glob("models--*--*"))
    names = [folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders]
    found = {name: find(name) for name in names}
    return {name: path for name, path in found.items() if path is not None}


def pull(name: str, progress: OnProgress) -> Path:
    """Fetch the model's safetensors folder, or the one GGUF file named after the colon."""
    repo, _, gguf = name.partition(":")
    progress(Progress("downloading"))
    try:
        folder = huggingface_hub.snapshot_download(
            repo,
            cache_dir=_home(),
            allow_patterns=_wanted(gguf),
            endpoint=os.environ.get("HF_ENDPOINT"),
            tqdm_class=_reporter(progress),
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo} must be unlocked on the hub first",
            hint=f"accept its terms at https://huggingface.co/{repo} and set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"the hub has no model {repo}, or it is private", hint="check the name; set HF_TOKEN"
        ) from error
    except Exception as error:  # the library's transport has had three kinds of errors so far
        raise ModelError(
            f"{repo} can't be fetched from the Hugging Face hub: {error}",
            hint="check the network (HF_ENDPOINT names a mirror), or copy the model's folder "
            "here and use its path",
        ) from error
    found = _usable(Path(folder), gguf)
    if found is None:
        raise ModelError(
            f"{repo} has no safetensors weights with a tokenizer.json",
            hint=f"if it has GGUF files, name one: phloem model pull {repo}:FILE.gguf",
        )
    return found


def _home() -> Path:
    return cache_dir() / "hub"


def _wanted(gguf: str) -> list[str]:
    return [gguf] if gguf else [*SETTINGS, *WEIGHTS]


def _usable(folder: Path, gguf: str) -> Path | None:
    """The model in a snapshot, if all of it is there."""
    if gguf:
        return folder / gguf if (folder / gguf).exists() else None
    shards = {path.name for path in folder.glob("*.safetensors")}
    index = folder / "model.safetensors.index.json"
    if index.exists():
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        shards = shards if wanted <= shards else set()
    return folder if shards and (folder / "tokenizer.json").exists() else None


def _reporter(progress: OnProgress) -> type[Any]:
    """A progress bar, as the library wants one, that reports bytes to `progress`."""
    bar: Any = huggingface_hub.utils.tqdm  # type: ignore[attr-defined]  # exported lazily

    class Reporter(bar):  # type: ignore[misc]  # an untyped base
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            # A disabled bar keeps no count of its own.
            self.n += n or 0
            if self._bytes:
                progress(Progress("downloading", int(self.n), int(self.total or 0) or None))

    return Reporter
