"""The real SGLang server of the tests marked `sglang`: one that runs, or one that is started.

What lives here: how it is found. What does not: the tests.

PHLOEM_TEST_SGLANG_URL names a server that runs. Else PHLOEM_SGLANG_PYTHON names the interpreter
of an environment with sglang, and PHLOEM_TEST_SGLANG_MODEL the folder of the model that it serves:
one is started for the whole test run, on a CPU if there is no GPU. PHLOEM_TEST_SGLANG_TOKENIZER
may name another tokenizer than the server's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from phloem.runtime.sglang.launch import Runtime

__all__ = ["real_server", "started", "tokenizer"]

ON_A_CPU: dict[str, Any] = {
    "device": "cpu", "attention_backend": "torch_native", "disable_overlap_schedule": True,
    "mem_fraction_static": 0.12, "max_total_tokens": 65_536, "max_running_requests": 64,
    "sleep_on_idle": True,
}  # fmt: skip
QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}  # fmt: skip


@contextmanager
def real_server() -> Iterator[str]:
    """Its address. Skips the test, saying what to set, where there is none."""
    url = os.environ.get("PHLOEM_TEST_SGLANG_URL")
    if url:
        yield url
        return
    runtime = started()
    try:
        _ = runtime.capabilities
        yield runtime.urls[0]
    finally:
        runtime.shutdown()


def started() -> Runtime:
    """A server of its own, which starts when it is first used. Skips the test, saying what to set,
    where there is none."""
    python = os.environ.get("PHLOEM_SGLANG_PYTHON")
    model = os.environ.get("PHLOEM_TEST_SGLANG_MODEL")
    if not python or not model:
        pytest.skip(
            "needs an SGLang server: set PHLOEM_TEST_SGLANG_URL to its address, or "
            "PHLOEM_SGLANG_PYTHON and PHLOEM_TEST_SGLANG_MODEL to have one started"
        )
    cuda = torch.cuda.is_available()
    arguments = {} if cuda else ON_A_CPU
    return Runtime(
        model, python=python, tokenizer=tokenizer(), environment={} if cuda else QUIET, **arguments
    )


def tokenizer() -> str | None:
    """The tokenizer to use in place of the server's own."""
    return os.environ.get("PHLOEM_TEST_SGLANG_TOKENIZER")
