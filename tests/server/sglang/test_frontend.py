"""SGLang's real frontend as a client of phloem's server.

It runs in an environment of its own (`pip install sglang==0.5.1.post3 pybase64 pydantic`, which
needs no torch), whose interpreter PHLOEM_SGLANG_FRONTEND_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.server.harness import serving, tiny

pytestmark = pytest.mark.sglang
PROGRAM = Path(__file__).with_name("frontend_program.py")


def test_its_programs_run_against_phloem() -> None:
    """gen, select, fork, regex, streams and batches of the package work, unchanged."""
    python = os.environ.get("PHLOEM_SGLANG_FRONTEND_PYTHON")
    if not python:
        pytest.skip("set PHLOEM_SGLANG_FRONTEND_PYTHON to an interpreter with SGLang's frontend")
    with serving(tiny(), max_n=8) as server:
        done = subprocess.run(
            [python, PROGRAM, server.url], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr[-6000:]
        found = json.loads(done.stdout.splitlines()[-1])
    assert found["verdict"] in {"yes", "no", "perhaps"}
    assert len(found["choices"]) == 3
    assert set(found["choices"]) <= {"yes", "no"}
    assert len(found["number"]) == 3
    assert found["number"].isdigit()
    assert len(found["reasons"]) == 2
    assert found["reasons"][0] != found["reasons"][1]
    assert found["pieces"] > 1
    assert found["batch"][0] == found["streamed"]
    assert found["cached"] == "phloem"
