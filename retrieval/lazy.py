"""The one place in retrieval where a module is imported by name.

Everything that needs a heavy or optional package (elasticsearch, opensearch-py, torch, pypdf)
is reached through here, so that `import phloem.retrieval` stays light and a missing package is
one clear error.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from phloem.errors import ConfigError

__all__ = ["load", "package_folder"]

_INSTALL = {
    "opensearchpy": 'pip install "phloem[opensearch]"',
    "pypdf": 'pip install "phloem[pdf]"',
}


def load(target: str) -> Any:
    """The attribute that `target` ("module:attribute") names.

    Raises `ConfigError` with the command to run if a package it needs is not installed.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("", "phloem"):
            raise
        raise ConfigError(
            f"the package {package!r} is not installed",
            hint=_INSTALL.get(package, f"pip install {package}"),
            package=package,
        ) from error


def package_folder(name: str) -> Path | None:
    """The folder of an installed package, without importing it; None if it is not there."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
