"""`phloem serve`: the server with the settings of the command line.

What lives here: settings by option, the making of keys, and restarts on change. What does not:
the server (`server/http/serve.py`) and what the settings mean (`server/settings.py`).
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import uvicorn

from phloem.server.http.keys import hash_key as hashed
from phloem.server.settings import Settings, load_settings

__all__ = ["serve"]


def serve(
    given: Mapping[str, Any], config: Path | None, reload: bool, hash_key: str | None
) -> None:
    """Serve until a stop signal, or print a new key and its line for the key file.

    Raises `ConfigError` for wrong settings and programs that can't be loaded.
    """
    if hash_key is not None:
        key = f"sk-{secrets.token_urlsafe(32)}"
        typer.echo(f"key, shown only now: {key}", err=True)
        typer.echo(hashed(hash_key, key))
        return
    settings = load_settings(config, **given)
    if reload:
        _serve_reloading(given, config, settings)
        return
    importlib.import_module("phloem.server.http.serve").main(settings)


def _serve_reloading(given: Mapping[str, Any], config: Path | None, settings: Settings) -> None:
    """The server in a child process, started again whenever a Python file beside a program
    changes; the child gets the options through the environment."""
    for name, value in given.items():
        if value is not None:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            os.environ[f"PHLOEM_{name.upper()}"] = text
    if config is not None:
        os.environ["PHLOEM_CONFIG"] = str(config)
    folders = {str(Path(one.partition(":")[0]).resolve().parent) for one in settings.programs}
    uvicorn.run(
        "phloem.server.http.serve:application",
        factory=True,
        host=settings.host,
        port=settings.port,
        reload=True,
        reload_dirs=sorted(folders) or None,
        log_config=None,
    )
