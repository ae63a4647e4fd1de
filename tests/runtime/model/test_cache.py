"""Derived files: made once, checked, made again when damaged."""

import os

import pytest

from phloem.errors import ConfigError
from phloem.runtime.model.cache import CacheEntry, cache_dir, content_hash, write_atomically


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache directory of the test's own."""
    monkeypatch.setenv("PHLOEM_CACHE_DIR", str(tmp_path / "cache"))


class Maker:
    """Writes a file and counts how often."""

    def __init__(self):
        self.made = 0

    def __call__(self, path):
        self.made += 1
        path.write_text("derived")


def test_the_directory_is_named_by_the_environment(monkeypatch, tmp_path):
    """PHLOEM_CACHE_DIR wins, then XDG_CACHE_HOME, then ~/.cache."""
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("PHLOEM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert str(cache_dir()) == "/xdg/phloem"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_dir()) == "/home/someone/.cache/phloem"


def test_a_file_is_made_once():
    """The second request reads what the first wrote, also from another process's view."""
    make = Maker()
    first = CacheEntry("a" * 64).file("x", make)
    assert CacheEntry("a" * 64).file("x", make) == first
    assert make.made == 1
    CacheEntry("b" * 64).file("x", make)
    assert make.made == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "seal", "gone"])
def test_a_damaged_file_is_made_again(damage):
    """A flipped byte, a cut file, a broken or a missing seal are all noticed."""
    make = Maker()
    entry = CacheEntry("a" * 64)
    path = entry.file("x", make)
    seal = path.with_name("x.seal")
    if damage == "flip":
        path.write_text("Derived")
    elif damage == "cut":
        path.write_text("deri")
    elif damage == "seal":
        seal.write_text("{")
    else:
        seal.unlink()
    assert entry.file("x", make).read_text() == "derived"
    assert make.made == 2


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    """Neither the file nor a temporary one is left when writing breaks off."""

    def fail(path):
        path.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        CacheEntry("a" * 64).file("x", fail)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_directory_that_cannot_be_made_is_a_config_error(tmp_path):
    """The error names the variable to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as error:
        write_atomically(tmp_path / "file" / "x", lambda path: path.write_text(""))
    assert "PHLOEM_CACHE_DIR" in error.value.hint


def test_the_hash_follows_the_content(tmp_path):
    """Changed bytes change the hash of a file and of its folder; a copy has the same."""
    file, folder = tmp_path / "m" / "a", tmp_path / "m"
    folder.mkdir()
    file.write_text("one")
    before = content_hash(file), content_hash(folder)
    (tmp_path / "copy").write_text("one")
    assert content_hash(tmp_path / "copy") == before[0]
    file.write_text("two")
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert content_hash(file) != before[0]
    assert content_hash(folder) != before[1]
