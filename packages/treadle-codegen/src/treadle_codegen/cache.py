"""A content-addressed directory of small files that survives crashes, foreign files and concurrent writers.

Every file is written to a temporary name and moved into place with `os.replace`, and ends in a trailer
(magic + SHA-256 of what precedes), so a truncated, foreign or bit-flipped file is recognised before use. ELF loaders
ignore trailing bytes, so a shared library can be loaded from its cache file directly.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import warnings
from pathlib import Path

from treadle_codegen.errors import CacheWarning

_MAGIC = b"TREADLE\x01"
_TRAILER = len(_MAGIC) + 32
_EVICT_EVERY = 64

_warned: set[str] = set()
_lock = threading.Lock()


def _warn_once(key: str, message: str) -> None:
    with _lock:
        if key in _warned:
            return
        _warned.add(key)
    warnings.warn(message, CacheWarning, stacklevel=3)


def content_key(*parts: str | bytes) -> str:
    """SHA-256 (hex) over length-prefixed parts, so that ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class FileCache:
    """Files under `directory/<kind>/<key><suffix>`; an unwritable directory is replaced by a private temporary one."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self._writes = 0
        self._asked = directory
        self.directory = self._usable(directory)

    def _usable(self, directory: Path) -> Path:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory):
                pass
        except OSError as error:
            _warn_once(
                f"unwritable:{directory}",
                f"Treadle's kernel cache {directory} cannot be written ({error}); using a temporary directory for this "
                "process. Set TREADLE_CACHE_DIR to a writable directory to keep compiled kernels.",
            )
            return Path(tempfile.mkdtemp(prefix="treadle-cache-"))
        return directory

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """The path of this key's file, whether it exists or not."""
        return self.directory / kind / f"{key}{suffix}"

    def find(self, kind: str, key: str, suffix: str = "") -> Path | None:
        """The path of the file if it exists and is whole. A damaged file is removed, with one warning."""
        path = self.path(kind, key, suffix)
        try:
            data = path.read_bytes()
        except OSError:
            self.misses += 1
            return None
        reason = why_not_whole(data)
        if reason is not None:
            _warn_once(
                f"damaged:{self.directory}",
                f"Treadle's cache in {self.directory} holds files that are unusable ({path.name}: {reason}); rebuilding them",
            )
            with contextlib.suppress(OSError):
                path.unlink()
            self.misses += 1
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # least recently used goes first
        self.hits += 1
        return path

    def read(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content stored under the key, or None."""
        path = self.find(kind, key, suffix)
        return None if path is None else path.read_bytes()[:-_TRAILER]

    def store(self, kind: str, key: str, content: bytes, suffix: str = "") -> Path:
        """Put `content` under the key, atomically; on a failing disk, into a temporary directory instead."""
        sealed = content + _MAGIC + hashlib.sha256(content).digest()
        path = self.path(kind, key, suffix)
        try:
            _write_atomically(path, sealed)
        except OSError as error:
            _warn_once(
                f"store:{path.parent}", f"Treadle cannot write its cache in {path.parent} ({error}); bypassing it"
            )
            self.directory = Path(tempfile.mkdtemp(prefix="treadle-cache-"))
            path = self.path(kind, key, suffix)
            _write_atomically(path, sealed)
        self._writes += 1
        if self._writes % _EVICT_EVERY == 1:
            self.evict()
        return path

    def evict(self) -> int:
        """Delete least recently used files until the directory is below its bound. Returns how many were deleted."""
        files: list[tuple[float, int, Path]] = []
        for path in self.directory.rglob("*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if path.is_file():
                    files.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in files)
        deleted = 0
        for _, size, path in sorted(files):
            if total <= self.max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
                deleted += 1
        return deleted


def why_not_whole(data: bytes) -> str | None:
    """Why the bytes of a cache file must not be used, or None when its trailer matches."""
    if len(data) < _TRAILER:
        return "truncated"
    trailer = data[-_TRAILER:]
    if not trailer.startswith(_MAGIC):
        return "not written by this version of Treadle, or truncated"
    if hashlib.sha256(data[:-_TRAILER]).digest() != trailer[len(_MAGIC) :]:
        return "its checksum does not match"
    return None


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
