"""The file cache: crashes, foreign files, unwritable directories, several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
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
    path = cache.store("k", "a", b"x" * 1000)
    data = path.read_bytes()
    spoiled = {"truncate": data[:500], "flip": b"y" + data[1:], "foreign": b"\x7fELF" * 300, "empty": b""}[damage]
    assert why_not_whole(data) is None
    path.write_bytes(spoiled)
    with pytest.warns(CacheWarning, match="unusable"):
        assert cache.read("k", "a") is None
    cache.store("k", "a", b"again")
    assert cache.read("k", "a") == b"again"


def test_an_unwritable_directory_is_bypassed_with_one_warning(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    with pytest.warns(CacheWarning, match="TREADLE_CACHE_DIR"):
        cache = FileCache(blocker / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FileCache(blocker / "cache")
    cache.store("k", "a", b"hello")
    assert cache.read("k", "a") == b"hello"


def test_a_directory_that_turns_unwritable_later_is_bypassed(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache")
    (tmp_path / "cache" / "k").write_text("in the way")
    with pytest.warns(CacheWarning, match="bypassing"):
        cache.store("k", "a", b"hello")
    assert cache.read("k", "a") == b"hello"


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, max_bytes=2500)
    for k, name in enumerate("abc"):
        os.utime(cache.store("k", name, b"x" * 1000), (k, k))
    os.utime(cache.path("k", "a"), (10, 10))
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
