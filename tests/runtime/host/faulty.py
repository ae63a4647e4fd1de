"""Models for engine processes that go wrong on request: fault injection, loaded by the child.

`wanted` is a file; what it says happens at the next forward pass: "crash", "hang", "leak", or
"collector" (the state of the garbage collector goes to the log). A fault happens once: the file is
taken away first.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import signal
from pathlib import Path
from typing import Any

import torch

from phloem.errors import ModelNotFound
from phloem.runtime.model.batch import ForwardBatch, KVStorage
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tiny import tiny_model

LEAK_BYTES = 64 << 20

log = logging.getLogger(__name__)


class FaultyDecoder:
    """The decoder of the tiny model, and what `wanted` asks for."""

    def __init__(self, decoder: Any, wanted: Path) -> None:
        self._decoder = decoder
        self._wanted = wanted
        self._leaked: list[bytearray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, batch: ForwardBatch, kv: KVStorage) -> torch.Tensor:
        """One pass, or none."""
        if self._wanted.exists():
            fault = self._wanted.read_text()
            self._wanted.unlink()
            if fault == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if fault == "hang":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "leak":
                self._leaked.append(bytearray(os.urandom(1)) * LEAK_BYTES)
            if fault == "collector":
                log.warning("collects: %s, frozen: %d", gc.isenabled(), gc.get_freeze_count())
        return self._decoder.forward(batch, kv)


def faulty_model(wanted: str, max_positions: int = 4096) -> LoadedModel:
    """The tiny model with a `FaultyDecoder`."""
    model = tiny_model(max_positions=max_positions)
    return dataclasses.replace(model, decoder=FaultyDecoder(model.decoder, Path(wanted)))


def missing_model() -> LoadedModel:
    """A loader that finds nothing."""
    raise ModelNotFound("no model nowhere", hint="put one there", looked_in="/nowhere")


def dying_model() -> LoadedModel:
    """A loader that takes the process with it."""
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
