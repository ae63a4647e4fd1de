"""The wheel and the sdist hold the whole package and work without the source tree."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("grammar", "retrieval", "programs", "runtime", "server")

IMPORT_ALL = """
import importlib, pkgutil, phloem
names = [m.name for m in pkgutil.walk_packages(phloem.__path__, "phloem.")]
for name in names:
    importlib.import_module(name)
print(phloem.__file__)
print(*sorted(["phloem", *names]))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def modules_in_tree() -> list[str]:
    """The dotted names of all modules, read off the folders."""
    paths = [p.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob("*.py")]
    names = [("phloem", *p.with_suffix("").parts) for p in paths]
    names += [("phloem", p.stem) for p in (ROOT / "src" / "phloem").glob("*.py")]
    return sorted({".".join(n[:-1] if n[-1] == "__init__" else n) for n in names})


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from the working tree without network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(params=["wheel", "sdist"])
def wheel(request: pytest.FixtureRequest, dist: Path, tmp_path: Path) -> Path:
    """The wheel as built, or the one that pip builds from the sdist."""
    if request.param == "wheel":
        return next(dist.glob("*.whl"))
    sdist = next(dist.glob("*.tar.gz"))
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir")
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", tmp_path, sdist, cwd=tmp_path)
    return next(tmp_path.glob("*.whl"))


def test_installed_package_imports_every_module(wheel: Path, tmp_path: Path) -> None:
    """In a clean environment, every module of the source tree is there and imports."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install"),
        *("--quiet", "--no-deps", "--no-index", wheel),
        cwd=tmp_path,
    )
    # The requirements come from our own environment. A path line in a .pth file is searched
    # last and its own .pth files are not read, so the editable install there stays unseen.
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = sysconfig.get_path("purelib")
    (site / "site-packages" / "libraries.pth").write_text(f"{libraries}\n", encoding="utf-8")
    place, names = run(python, "-c", IMPORT_ALL, cwd=tmp_path).splitlines()[-2:]
    assert Path(place).is_relative_to(home)
    assert names.split() == modules_in_tree()
    assert "Usage" in run(home / "bin" / "phloem", "--help", cwd=tmp_path)


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """The wheel carries every file of the rooms, the type marker and the licence."""
    names = zipfile.ZipFile(wheel).namelist()
    files = [p for room in ROOMS for p in (ROOT / room).rglob("*") if p.is_file()]
    wanted = {f"phloem/{p.relative_to(ROOT)}" for p in files if p.suffix != ".pyc"}
    assert wanted | {"phloem/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 2
    assert "phloem" in tops
