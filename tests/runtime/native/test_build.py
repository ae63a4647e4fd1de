"""Compiling, caching and doing without."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from phloem.runtime.model.convert import convert
from phloem.runtime.native import build
from phloem.runtime.native.abi import Library
from phloem.runtime.native.decoder import native_decoder

from .support import SMALL, RandomWeights, small

FINISHES = 600


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a library already loaded and a compiler already found is put aside."""
    monkeypatch.setattr(build, "load_library", build.load_library.__wrapped__)
    monkeypatch.setattr(build, "_compiler", build._compiler.__wrapped__)


@pytest.mark.usefixtures("forgotten")
def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler on the path: `status` says so and nothing is raised."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    status = build.status()
    assert status.problem is not None
    assert "no C++ compiler" in status.problem
    assert status.instruction_sets == []


@pytest.mark.usefixtures("forgotten")
def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """PHLOEM_NATIVE=0 is a reason like any other."""
    monkeypatch.setenv("PHLOEM_NATIVE", "0")
    assert build.status().problem == "PHLOEM_NATIVE=0 is set"


@pytest.mark.usefixtures("forgotten")
def test_a_compiler_that_fails_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its complaint is in the reason and in a warning, and no library is left behind."""
    broken = tmp_path / "broken-cxx"
    broken.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo broken 1.0;; *) echo no luck >&2; exit 1;; esac\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("PHLOEM_CACHE_DIR", str(tmp_path / "cache"))
    problem = build.status().problem
    assert problem is not None
    assert "no luck" in problem
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2, "that it compiles, and that it failed"
    assert "no luck" in warnings[1]
    assert list((tmp_path / "cache" / "native").iterdir()) == []


def test_a_compiled_library_is_found_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second load compiles nothing."""
    assert library.instruction_sets()

    def compiled(target: Path) -> None:
        raise AssertionError(f"compiled again: {target}")

    monkeypatch.setattr(build, "_compile", compiled)
    assert build.load_library.__wrapped__().instruction_sets() == library.instruction_sets()


@pytest.mark.slow
def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    """Both get a library that works, and one file is left."""
    code = "from phloem.runtime.native.build import status; print(status().problem)"
    environment = {"PATH": "/usr/bin:/bin", "PHLOEM_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [p.communicate(timeout=FINISHES)[0].strip() for p in processes] == [b"None", b"None"]
    assert len(list((tmp_path / "native").iterdir())) == 1


@pytest.mark.parametrize(
    ("changes", "held", "reason"),
    [
        ({}, "float32", "float32"),
        ({"hidden_size": 80}, "bfloat16", "hidden_size"),
        ({"head_dim": 40, "heads": 4}, "bfloat16", "head_dim"),
        ({"head_dim": 272, "heads": 2}, "bfloat16", "head_dim"),
    ],
)
def test_what_the_kernels_lack_is_left_to_torch(
    changes: dict[str, int], held: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unfit model gives None and one line in the log that says why."""
    config = small(**changes)
    tensors = {"embedding": torch.zeros(1, dtype=getattr(torch, held))}
    with caplog.at_level(logging.INFO):
        assert native_decoder(config, tensors) is None
    assert len(caplog.records) == 1
    assert reason in caplog.text


def test_threads_default_to_torchs(library: Library) -> None:
    """Without a number of threads the decoder starts and works as with one."""
    assert library.instruction_sets()
    decoder = native_decoder(SMALL, convert(RandomWeights(SMALL), "int4"))
    assert decoder is not None
    assert decoder.instruction_set == library.instruction_sets()[0]
