"""The one place in retrieval where a module is imported by name.

Everything that needs a heavy or optional package (elasticsearch, opensearch-py, torch, pypdf)
is reached through here, so that `import phloem.retrieval` stays light and a missing package is
one clear error.
"""

from __future__ import annotations

import importlib
from typing import Any

from phloem.errors import ConfigError

__all__ = ["load"]

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
