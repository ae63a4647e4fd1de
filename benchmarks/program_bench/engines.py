"""The engines that are compared: where each is found, how its server and its worker start.

What lives here: the table `ENGINES`, made from the environment. What does not: processes
(`processes.py`). An engine is found if the variables it needs name files that are there:

    PHLOEM_BENCH_VLLM_PYTHON       an interpreter with vllm (its CPU build)
    PHLOEM_BENCH_SGLANG_PYTHON     one with sglang, server and frontend
    PHLOEM_BENCH_LLAMA_PYTHON      one with llama-cpp-python
    PHLOEM_BENCH_LLAMA_SERVER      llama.cpp's llama-server
    PHLOEM_BENCH_GUIDANCE_PYTHON   one with guidance and llama-cpp-python
    PHLOEM_BENCH_OUTLINES_PYTHON   one with outlines and transformers
    PHLOEM_BENCH_MODEL             the default model as a Hugging Face folder (`hf_model.py`)
    PHLOEM_BENCH_GGUF              the same as GGUF; by default phloem's own copy
    PHLOEM_BENCH_THREADS           threads of every engine; by default all cores of this process
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ENGINES", "Engine", "Places", "Server"]

WORKER = Path(__file__).resolve().parent / "worker.py"
CORES = int(os.environ.get("PHLOEM_BENCH_THREADS") or len(os.sched_getaffinity(0)))
AT_ONCE = 32
"""Sequences that every batching engine may hold at once, as phloem does."""


@dataclass(frozen=True)
class Places:
    """What the environment says."""

    environment: Mapping[str, str]
    default_gguf: str = ""

    def path(self, name: str) -> str:
        """The file that a variable names. Raises `LookupError` saying what is missing."""
        value = self.environment.get(f"PHLOEM_BENCH_{name}", "")
        if name == "GGUF":
            value = value or self.default_gguf
        if not value:
            raise LookupError(f"PHLOEM_BENCH_{name} is not set")
        if not Path(value).exists():
            raise LookupError(f"PHLOEM_BENCH_{name}: there is no {value}")
        return value


@dataclass(frozen=True)
class Server:
    """A server that engines share. `command(places, port)` starts it.

    A POST to `flush` empties its cache, so that no engine finds what another one had computed.
    """

    name: str
    command: Callable[[Places, int], list[str]]
    health: str
    environment: Callable[[Places], dict[str, str]] = lambda places: {}  # noqa: ARG005
    start_s: float = 300.0
    flush: str = ""


@dataclass(frozen=True)
class Engine:
    """One row of the tables. `worker(places, url)` is the command of its worker.

    `weights` groups what may be compared; `batches` is whether programs share forward passes.
    `slow` ones get fewer of the first cells.
    """

    name: str
    title: str
    weights: str
    worker: Callable[[Places, str], list[str]]
    server: Server | None = None
    needs: tuple[str, ...] = ()
    batches: bool = True
    slow: bool = False
    phloem: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def missing(self, places: Places) -> str:
        """Why it can't be run here; "" if it can."""
        try:
            for name in self.needs:
                places.path(name)
        except LookupError as reason:
            return str(reason)
        return ""


def _vllm_command(places: Places, port: int) -> list[str]:
    return [
        places.path("VLLM_PYTHON"),
        *("-m", "vllm.entrypoints.openai.api_server", "--model", places.path("MODEL")),
        *("--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", str(AT_ONCE)),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--structured-outputs-config.disable_any_whitespace", "true"),
        *("--structured-outputs-config.backend", "xgrammar"),
    ]


def _vllm_environment(places: Places) -> dict[str, str]:
    """Its own advice for CPUs: threads bound, OpenMP and malloc preloaded where they are there."""
    home = Path(places.path("VLLM_PYTHON")).parent.parent
    preload = [
        Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
        home / "lib" / "libiomp5.so",
    ]
    return {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{CORES - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
        # It looks for its compiler's helpers beside its interpreter.
        "PATH": f"{home / 'bin'}:{os.environ.get('PATH', '')}",
    }


def _sglang_command(places: Places, port: int) -> list[str]:
    return [
        places.path("SGLANG_PYTHON"),
        *("-m", "sglang.launch_server", "--model-path", places.path("MODEL")),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu"),
        *("--attention-backend", "torch_native", "--disable-overlap-schedule"),
        *("--mem-fraction-static", "0.12", "--max-total-tokens", "65536"),
        *("--max-running-requests", str(AT_ONCE), "--sleep-on-idle"),
    ]


def _llama_command(places: Places, port: int) -> list[str]:
    threads = str(CORES)
    return [
        places.path("LLAMA_SERVER"),
        *("-m", places.path("GGUF"), "--host", "127.0.0.1", "--port", str(port)),
        *("-t", threads, "-tb", threads, "-c", "65536", "-np", str(AT_ONCE), "--kv-unified"),
    ]


VLLM = Server("vllm", _vllm_command, "/health", _vllm_environment, 900.0)
SGLANG = Server(
    "sglang",
    _sglang_command,
    "/health_generate",
    # Waiting OpenMP threads would take a core from the rest of the server.
    lambda places: {"OMP_WAIT_POLICY": "PASSIVE", "SGLANG_USE_CPU_ENGINE": "1"},  # noqa: ARG005
    flush="/flush_cache",
)
LLAMA = Server("llama-server", _llama_command, "/health")


def _phloem(dtype: str, *flags: str) -> Callable[[Places, str], list[str]]:
    return lambda places, url: [  # noqa: ARG005
        sys.executable, str(WORKER), "phloem", dtype, places.path("GGUF"), *flags,
    ]  # fmt: skip


def _http(runner: str, version: str, weights: str) -> Callable[[Places, str], list[str]]:
    return lambda places, url: [  # noqa: ARG005
        sys.executable, str(WORKER), runner, url, version, weights,
    ]  # fmt: skip


def _local(runner: str, python: str, model: str) -> Callable[[Places, str], list[str]]:
    return lambda places, url: [  # noqa: ARG005
        places.path(python), str(WORKER), runner, places.path(model),
    ]  # fmt: skip


_SGLANG_NEEDS = ("SGLANG_PYTHON", "MODEL")
_ALL = (
    Engine(
        "phloem-int4", "phloem, embedded", "4-bit", _phloem("int4"), needs=("GGUF",), phloem=True
    ),
    Engine(
        "phloem-bf16", "phloem, embedded", "bf16", _phloem("bfloat16"), needs=("GGUF",), phloem=True
    ),
    Engine(
        "vllm",
        "stateless glue over vLLM",
        "bf16",
        _http("vllm", "vLLM", "bfloat16"),
        VLLM,
        ("VLLM_PYTHON", "MODEL"),
    ),
    Engine(
        "guidance",
        "guidance on llama.cpp",
        "4-bit",
        _local("guidance", "GUIDANCE_PYTHON", "GGUF"),
        needs=("GUIDANCE_PYTHON", "GGUF"),
        batches=False,
    ),
    Engine(
        "llama-server",
        "stateless glue over llama.cpp's server",
        "4-bit",
        _http("llama-server", "llama.cpp", "Q4_1"),
        LLAMA,
        ("LLAMA_SERVER", "GGUF"),
    ),
    Engine(
        "llama-cpp",
        "glue over llama-cpp-python, in process",
        "4-bit",
        _local("llama-cpp", "LLAMA_PYTHON", "GGUF"),
        needs=("LLAMA_PYTHON", "GGUF"),
        batches=False,
    ),
    Engine(
        "sglang",
        "SGLang's frontend and server",
        "bf16",
        lambda places, url: [places.path("SGLANG_PYTHON"), str(WORKER), "sglang", url],
        SGLANG,
        _SGLANG_NEEDS,
        slow=True,
    ),
    Engine(
        "phloem-sglang",
        "phloem over SGLang's server",
        "bf16",
        lambda places, url: [
            sys.executable, str(WORKER), "phloem-sglang", url, places.path("MODEL"),
        ],
        SGLANG,
        _SGLANG_NEEDS,
        slow=True,
        phloem=True,
    ),
    Engine(
        "sglang-http",
        "stateless glue over SGLang's server",
        "bf16",
        _http("sglang-http", "SGLang", "bfloat16"),
        SGLANG,
        _SGLANG_NEEDS,
        slow=True,
    ),
    Engine(
        "outlines",
        "outlines on transformers",
        "bf16",
        _local("outlines", "OUTLINES_PYTHON", "MODEL"),
        needs=("OUTLINES_PYTHON", "MODEL"),
        batches=False,
        slow=True,
    ),
    Engine(
        "phloem-int4-plain",
        "phloem, embedded, no guesses and no jumps",
        "4-bit",
        _phloem("int4", "plain"),
        needs=("GGUF",),
        phloem=True,
    ),
    Engine(
        "phloem-bf16-plain",
        "phloem, embedded, no guesses and no jumps",
        "bf16",
        _phloem("bfloat16", "plain"),
        needs=("GGUF",),
        phloem=True,
    ),
)  # fmt: skip
ENGINES = {engine.name: engine for engine in _ALL}
