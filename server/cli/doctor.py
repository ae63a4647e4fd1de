"""`phloem doctor`: what is installed, what the engine will run on, and what is missing.

What lives here: the questions and a line for each answer. What does not: mending anything;
each answer that is wrong names the command that does.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
import typer
from rich.console import Console
from rich.text import Text

from phloem.errors import PhloemError
from phloem.retrieval import admin
from phloem.runtime.model import store
from phloem.runtime.model.cache import cache_dir
from phloem.runtime.native import build
from phloem.runtime.sglang.fleet import describe
from phloem.server.settings import load_settings

__all__ = ["Answer", "doctor", "examine"]

LIBRARIES = ("torch", "tokenizers", "llguidance", "outlines", "tantivy", "elasticsearch")


@dataclass(frozen=True, slots=True)
class Answer:
    """The state of one thing; `hint` says how to mend it where `ok` is false."""

    name: str
    ok: bool
    text: str
    hint: str | None = None


def doctor(sglang_urls: Sequence[str] = ()) -> None:
    """Print an answer to every question; exit code 1 if one of them is bad.

    Of SGLang servers those given are asked, else those of the settings.
    """
    console = Console(highlight=False, soft_wrap=True)
    answers = examine(tuple(sglang_urls) or load_settings().sglang_url)
    for answer in answers:
        mark = ("ok  ", "green") if answer.ok else ("BAD ", "bold red")
        line = Text.assemble(mark, (f"{answer.name:<16}", "bold"), answer.text)
        if answer.hint:
            line.append(f"\n    {'':<16}hint: {answer.hint}")
        console.print(line)
    if not all(answer.ok for answer in answers):
        raise typer.Exit(1)


def examine(sglang_urls: Sequence[str] = ()) -> list[Answer]:
    """Ask everything. A question whose answer is an error is a bad answer with its hint."""
    questions: dict[str, Callable[[], str]] = {
        "phloem": lambda: f"{version('phloem')}, Python {platform.python_version()}",
        **{library: _version_of(library) for library in LIBRARIES},
        "device": _device,
        "native decoder": _native,
        "memory": _memory,
        "model": _model,
        "cache": lambda: f"{cache_dir()} (PHLOEM_CACHE_DIR)",
        "search": lambda: asyncio.run(admin.check()),
        "indexes": lambda: asyncio.run(_indexes()),
        **{f"sglang {i}": _sglang(url) for i, url in enumerate(sglang_urls, 1)},
    }
    return [_ask(name, question) for name, question in questions.items()]


def _ask(name: str, question: Callable[[], str]) -> Answer:
    try:
        return Answer(name, ok=True, text=question())
    except PackageNotFoundError:
        return Answer(name, ok=False, text="not installed", hint=f"pip install {name}")
    except PhloemError as error:
        return Answer(name, ok=False, text=error.message, hint=error.hint)


def _version_of(library: str) -> Callable[[], str]:
    return lambda: version(library)


def _device() -> str:
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        return f"cuda: {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"
    return f"cpu: {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def _native() -> str:
    found = build.status()
    if found.problem is not None:
        return f"none, so torch is used: {found.problem}"
    return ", ".join(found.instruction_sets)


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (os.sysconf(f"SC_{kind}_PAGES") * page / 2**30 for kind in ("PHYS", "AVPHYS"))
    return f"{total:.1f} GiB, {free:.1f} GiB of it unused"


def _model() -> str:
    path = store.model_path(store.DEFAULT_MODEL)
    return f"{store.DEFAULT_MODEL}, {path}"


def _sglang(url: str) -> Callable[[], str]:
    key = load_settings().sglang_api_key
    return lambda: describe(url, None if key is None else key.get_secret_value())


async def _indexes() -> str:
    indexes = await admin.list_indexes()
    return ", ".join(f"{i.name} ({i.documents} documents)" for i in indexes) or "none yet"
