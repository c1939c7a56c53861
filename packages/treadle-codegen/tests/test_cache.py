"""The file cache: crashes, foreign files, unwritable directories, several processes."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle_codegen import cache as cache_module
from treadle_codegen.cache import FileCache, content_key, why_not_whole
from treadle_codegen.errors import CacheWarning


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_warned", set())


def test_content_comes_back(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    assert cache.read("k", "a") is None
    cache.store("k", "a", b"hello")
    assert cache.read("k", "a") == b"hello"
    assert (cache.hits, cache.misses) == (1, 1)


def test_key_parts_do_not_run_together() -> None:
    assert content_key("ab", "c") != content_key("a", "bc")
    assert content_key("a", b"b") == content_key("a", "b")


@pytest.mark.parametrize("damage", ["truncate", "flip", "foreign", "empty"])
def test_a_damaged_file_is_dropped_with_one_warning(tmp_path: Path, damage: str) -> None:
    cache = FileCache(tmp_path)
    cache.store("k", "a", b"x" * 1000)
    path = cache.path("k", "a")
    data = path.read_bytes()
    spoiled = {"truncate": data[:500], "flip": b"y" + data[1:], "foreign": b"\x7fELF" * 300, "empty": b""}[damage]
    assert why_not_whole("a", data) is None
    path.write_bytes(spoiled)
    with pytest.warns(CacheWarning, match="unusable"):
        assert cache.read("k", "a") is None
    cache.store("k", "a", b"again")
    assert cache.read("k", "a") == b"again"


def test_a_file_under_another_name_is_not_believed(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    cache.store("k", "a", b"hello")
    os.rename(cache.path("k", "a"), cache.path("k", "b"))
    with pytest.warns(CacheWarning, match="checksum"):
        assert cache.read("k", "b") is None


def test_no_other_user_can_write_or_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = FileCache(tmp_path / "cache")
        cache.store("k", "a", b"hello")
    finally:
        os.umask(before)
    path = cache.path("k", "a")
    assert [stat.S_IMODE(p.stat().st_mode) & 0o077 for p in (path, path.parent, cache.directory)] == [0, 0, 0]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o777])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    cache = FileCache(tmp_path)
    cache.store("k", "a", b"hello")
    cache.path("k", "a").chmod(mode)
    with pytest.warns(CacheWarning, match="other users may write it"):
        assert cache.read("k", "a") is None


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FileCache(tmp_path)
    cache.store("k", "a", b"hello")
    if os.geteuid() == 0:
        os.chown(cache.path("k", "a"), 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(CacheWarning, match="it belongs to user"):
        assert cache.read("k", "a") is None


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("make", [_fifo, _link, Path.mkdir])
def test_what_is_no_file_does_not_hang(tmp_path: Path, make: Callable[[Path], None]) -> None:
    cache = FileCache(tmp_path)
    cache.store("k", "other", b"hello")
    make(cache.path("k", "a"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.read("k", "a") is None
        cache.store("k", "a", b"again")
    assert cache.read("k", "a") == b"again"


def test_an_unwritable_directory_is_bypassed_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("not a directory")
    with pytest.warns(CacheWarning, match="TREADLE_CACHE_DIR"):
        FileCache(tmp_path / "file" / "cache").store("k", "a", b"hello")
    cache = FileCache(tmp_path / "file" / "cache", max_bytes=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store("k", "a", b"hello")
        assert cache.read("k", "a") == b"hello"
        cache.store("k", "b", b"hello")
        cache.store("k", "c", b"hello")
    assert [cache.read("k", key) for key in "abc"] == [None, b"hello", b"hello"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache = FileCache(tmp_path)
    with pytest.warns(CacheWarning, match="No space left"):
        cache.store("k", "a", b"hello")
    assert cache.read("k", "a") == b"hello"
    assert list((tmp_path / "k").iterdir()) == []


def test_the_bound_holds(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, max_bytes=10_000)
    for k in range(100):
        cache.store("k", str(k), b"x" * 900)
    assert sum(path.stat().st_size for path in (tmp_path / "k").iterdir()) < 13_000


def test_only_what_the_cache_has_written_is_evicted(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday").write_bytes(b"x" * 1000)
    (tmp_path / "k").mkdir()
    left = tmp_path / "k" / ".tmp-left"
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    (tmp_path / "k" / ".tmp-new").write_bytes(b"x")
    cache = FileCache(tmp_path, max_bytes=1)
    cache.store("k", "a", b"hello")
    assert (tmp_path / "photos" / "holiday").exists()
    assert sorted(path.name for path in (tmp_path / "k").iterdir()) == [".tmp-new"]


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    for k, name in enumerate("abc"):
        cache.store("k", name, b"x" * 1000)
        os.utime(cache.path("k", name), (k, k))
    os.utime(cache.path("k", "a"), (10, 10))
    cache.max_bytes = 2500
    cache.evict()
    assert cache.read("k", "b") is None
    assert cache.read("k", "a") is not None


_FILL = """
import sys
from pathlib import Path
from treadle_codegen.cache import FileCache
cache = FileCache(Path(sys.argv[1]))
for k in range(100):
    content = str(k).encode() * 1000
    assert cache.read("k", str(k)) in (None, content)
    cache.store("k", str(k), content)
"""


def test_two_processes_fill_the_same_cache(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-W", "error", "-c", _FILL, str(tmp_path)]) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    cache = FileCache(tmp_path)
    assert all(cache.read("k", str(k)) == str(k).encode() * 1000 for k in range(100))


def test_a_killed_writer_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from treadle_codegen.cache import FileCache\n"
        "c = FileCache(Path(sys.argv[1])); print('go', flush=True)\n"
        "while True: c.store('k', 'a', b'z' * 5_000_000)\n"
    )
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert FileCache(tmp_path).read("k", "a") in (None, b"z" * 5_000_000)
