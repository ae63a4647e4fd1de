"""Compiling the C++ sources at first use, and finding the result again.

What lives here: `load_library`, `status` and where the compiled library lies: in the user's
cache directory, under a key of the sources, the flags and the compiler, so that an update of any
makes a new one. What does not: what the library does (`csrc/`, `abi.py`).

The sources need nothing but a C++20 compiler: no headers of Python or torch. One library holds
the kernels of every instruction set and chooses by the CPU, so it may be copied between machines.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from phloem.runtime.model.cache import cache_dir, write_atomically
from phloem.runtime.native.abi import Library

__all__ = ["NativeStatus", "NativeUnavailable", "load_library", "status"]

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
COMMON = (
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread",
    # One result on every machine: no fusing of scalar operations behind our back.
    "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
UNITS = (
    ("kernels.cpp", "avx2", AVX2),
    ("kernels.cpp", "avx512", AVX512),
    ("bf16.cpp", "avx512bf16", (*AVX512, "-mavx512bf16")),
    ("amx.cpp", "amx", (*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8")),
    ("forward.cpp", "", ()),
    ("threads.cpp", "", ()),
    ("pack.cpp", "", ()),
    ("api.cpp", "", ()),
)
"""(source, namespace of its kernels, flags of its instruction set)"""

COMPILE_SECONDS = 1800
"""A bound on a compiler that hangs. It is generous, since on a machine whose cores are taken half a
minute of compiling has lasted more than five, and giving up costs several times the speed."""


class NativeUnavailable(Exception):
    """There is no native decoder on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """What `phloem doctor` shows. `instruction_sets` is empty if `problem` is not None."""

    problem: str | None
    library: Path | None
    instruction_sets: list[str]


def status() -> NativeStatus:
    """Whether the native decoder works here; compiles it if need be."""
    try:
        return NativeStatus(None, _library_path(), load_library().instruction_sets())
    except NativeUnavailable as error:
        return NativeStatus(str(error), None, [])


@functools.cache
def load_library() -> Library:
    """The library, compiled first if it is not in the cache.

    Raises `NativeUnavailable` on other machines than x86-64 Linux, on CPUs without AVX2, without
    a compiler, or if `PHLOEM_NATIVE=0` is set.
    """
    if os.environ.get("PHLOEM_NATIVE") == "0":
        raise NativeUnavailable("PHLOEM_NATIVE=0 is set")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NativeUnavailable(f"it is for x86-64 Linux, not {sys.platform} {platform.machine()}")
    path = _library_path()
    if not path.exists():
        logger.warning("compiling the native decoder, once (about half a minute): %s", path)
        try:
            write_atomically(path, _compile)
        except NativeUnavailable as error:
            logger.warning(
                "it was not compiled, so torch computes, several times slower: %s", error
            )
            raise
    try:
        library = Library(path)
    except OSError as error:
        raise NativeUnavailable(f"{path} can't be loaded: {error}") from error
    if not library.instruction_sets():
        raise NativeUnavailable("this CPU has no AVX2")
    return library


def _library_path() -> Path:
    digest = hashlib.sha256()
    for part in (*_compiler(), *COMMON, repr(UNITS)):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return cache_dir() / "native" / f"phloem-{digest.hexdigest()[:24]}.so"


@functools.cache
def _compiler() -> tuple[str, str]:
    """Path and version of the C++ compiler ($CXX, else g++, clang++ or c++)."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = name and shutil.which(name)
        if path:
            return path, _run([path, "--version"])
    raise NativeUnavailable("there is no C++ compiler (g++ or clang++)")


def _compile(target: Path) -> None:
    compiler, _ = _compiler()
    with tempfile.TemporaryDirectory(prefix="phloem-native-") as folder:
        jobs = [
            (source, Path(folder) / f"{source}.{isa}.o", (*flags, f"-DPHLOEM_ISA={isa}"))
            for source, isa, flags in UNITS
        ]

        def compile_one(job: tuple[str, Path, tuple[str, ...]]) -> None:
            source, out, flags = job
            _run([compiler, *COMMON, *flags, "-c", str(SOURCES / source), "-o", str(out)])

        # The compiler's own processes do the work; threads only wait for them.
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, jobs))
        objects = [str(out) for _, out, _ in jobs]
        _run([compiler, "-shared", "-pthread", *objects, "-o", str(target)])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{command[0]} can't be run: {error}") from error
    if done.returncode != 0:
        raise NativeUnavailable(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
