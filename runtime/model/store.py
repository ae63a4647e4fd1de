"""The models on this machine: names to paths, the list, and fetching new ones.

What lives here: `model_path`, `list_models`, `pull`, `terms`. What does not: the two ways to fetch
(`packaged.py`, `hub.py`) and reading a model (`load.py`). Nothing here imports torch, so the
command line may use it freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phloem.errors import ModelNotFound
from phloem.runtime.model import hub, packaged
from phloem.runtime.model.progress import OnProgress, ignore

__all__ = ["DEFAULT_MODEL", "StoredModel", "list_models", "model_path", "pull", "terms"]

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that `load_model` will find by `name`. `size` is in bytes."""

    name: str
    path: Path
    size: int


def model_path(name: str) -> Path:
    """The GGUF file or safetensors folder of `name`: a path, a known name, or a hub's ORG/NAME.

    Never fetches anything. Raises `ModelNotFound`, which says how to get the model.
    """
    given = Path(name).expanduser()
    if given.exists():
        return given
    found = packaged.find(name) if name in packaged.CATALOGUE else hub.find(name)
    if found is not None:
        return found
    if name in packaged.CATALOGUE or hub.is_hub_name(name):
        raise ModelNotFound(
            f"the model {name} is not on this machine", hint=f"run: phloem model pull {name}"
        )
    raise _unknown(name)


def list_models() -> list[StoredModel]:
    """The models on this machine that can be named, packaged ones first."""
    known = [(name, packaged.find(name)) for name in packaged.CATALOGUE]
    known += sorted(hub.list_found().items())
    return [StoredModel(name, path, _size(path)) for name, path in known if path is not None]


def pull(name: str = DEFAULT_MODEL, progress: OnProgress = ignore) -> Path:
    """Fetch the model `name` unless it is here, verify it, and return its path.

    Interrupted, it leaves nothing that a later `model_path` would find. Raises `ModelError` if
    the download fails or is not what it should be, `ModelNotFound` if nobody has such a model.
    """
    if name in packaged.CATALOGUE:
        return packaged.find(name) or packaged.pull(name, progress)
    if hub.is_hub_name(name):
        return hub.pull(name, progress)
    raise _unknown(name)


def terms(name: str) -> str | None:
    """The licence or terms of use of a packaged model; None where only its own page tells."""
    model = packaged.CATALOGUE.get(name)
    return None if model is None else model.terms


def _unknown(name: str) -> ModelNotFound:
    known = ", ".join(packaged.CATALOGUE)
    return ModelNotFound(
        f"no model is called {name!r}, and there is no such file or folder",
        hint=f"known names: {known}; models of the Hugging Face hub are ORG/NAME; "
        "fetch either with: phloem model pull NAME",
    )


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(file.stat().st_size for file in files)
