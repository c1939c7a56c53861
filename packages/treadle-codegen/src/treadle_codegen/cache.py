"""A content-addressed directory of small files that survives crashes, foreign files and concurrent writers.

Every file is written to a temporary name and moved into place with `os.replace`, and ends in a trailer (magic + SHA-256 of its name and
what precedes), so a truncated, renamed or bit-flipped file is recognised before use. What a file holds may be run as code, so a file
counts only if it belongs to this user or root and nobody else may write it. The directory needs no such trust. Content is handed out
as bytes: what happens to the file afterwards does not matter.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

from treadle_codegen.errors import CacheWarning

_MAGIC = b"TREADLE\x02"
_TRAILER = len(_MAGIC) + 32
_TEMPORARY = ".tmp-"
_ABANDONED_SECONDS = 3600.0
# The directory is measured again once this part of its bound has been written.
_EVICT_SHARE = 16

_warned: set[str] = set()


def _warn_once(key: str, message: str) -> None:
    if key not in _warned:  # no lock: a process forked while another thread holds one would wait for ever
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


class UnusableFile(Exception):
    """Why a file of the cache must not be used."""


class FileCache:
    """Files under `directory/<kind>/<key><suffix>`. Where the directory cannot be written, the content is kept in memory."""

    def __init__(self, directory: Path, max_bytes: int = 1 << 30) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self._in_memory: dict[Path, bytes] = {}
        self._written: int | None = None  # bytes since the last eviction; None: no eviction yet

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """The path of this key's file, whether it exists or not."""
        return self.directory / kind / f"{key}{suffix}"

    def read(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content stored under the key, or None. A file that must not be used is removed, with one warning."""
        path = self.path(kind, key, suffix)
        content = self._in_memory.get(path)
        if content is None:
            content = self._read_file(path)
        if content is None:
            self.misses += 1
        else:
            self.hits += 1
        return content

    def _read_file(self, path: Path) -> bytes | None:
        try:
            return read_sealed(path)
        except UnusableFile as reason:
            _warn_once(
                f"unusable:{self.directory}",
                f"Treadle's cache in {self.directory} holds files that are unusable ({path.name}: {reason}); rebuilding them",
            )
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            pass
        return None

    def store(self, kind: str, key: str, content: bytes, suffix: str = "") -> None:
        """Put `content` under the key, atomically; into memory when the file cannot be written."""
        path = self.path(kind, key, suffix)
        try:
            _write_atomically(path, content + _trailer(path.name, content))
        except OSError as error:
            _warn_once(
                f"unwritable:{self.directory}",
                f"Treadle's kernel cache {self.directory} cannot be written ({error}); compiled kernels are lost with this process. "
                "Set TREADLE_CACHE_DIR to a writable directory to keep them.",
            )
            self._keep_in_memory(path, content)
            return
        if self._written is None or self._written > self.max_bytes // _EVICT_SHARE:
            self.evict()
            self._written = 0
        self._written += len(content)

    def _keep_in_memory(self, path: Path, content: bytes) -> None:
        self._in_memory[path] = content
        while sum(map(len, self._in_memory.values())) > self.max_bytes and len(self._in_memory) > 1:
            del self._in_memory[next(iter(self._in_memory))]

    def evict(self) -> int:
        """Delete least recently used files until the directory is below its bound, and what killed writers have left.

        Only files that this module has written count. Returns how many were deleted.
        """
        files = [(found.st_mtime, found.st_size, path) for path, found in self._files()]
        total = sum(size for _, size, _ in files)
        deleted = 0
        for modified, size, path in sorted(files):
            is_abandoned = path.name.startswith(_TEMPORARY) and time.time() - modified > _ABANDONED_SECONDS
            if not is_abandoned and (total <= self.max_bytes or not _is_sealed(path, size)):
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
                deleted += 1
        return deleted

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        with contextlib.suppress(OSError):
            for folder in os.scandir(self.directory):
                if not folder.is_dir(follow_symlinks=False):
                    continue
                for file in os.scandir(folder):
                    with contextlib.suppress(OSError):
                        if file.is_file(follow_symlinks=False):
                            found.append((Path(file.path), file.stat()))
        return found


def read_sealed(path: Path) -> bytes:
    """The content of a file. Raises UnusableFile when others may have written it or it is damaged, OSError when it cannot be read."""
    # Opening a FIFO would wait for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFile("no regular file")
        if found.st_uid not in (os.geteuid(), 0):
            raise UnusableFile(f"it belongs to user {found.st_uid}")
        if found.st_mode & 0o022:
            raise UnusableFile("other users may write it")
        data = file.read()
        with contextlib.suppress(OSError):
            os.utime(handle)  # least recently used goes first
    reason = why_not_whole(path.name, data)
    if reason is not None:
        raise UnusableFile(reason)
    return data[:-_TRAILER]


def _trailer(name: str, content: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(name.encode() + b"\0" + content).digest()


def why_not_whole(name: str, data: bytes) -> str | None:
    """Why the bytes of the cache file `name` must not be used, or None when its trailer matches."""
    if len(data) < _TRAILER:
        return "truncated"
    if not data[-_TRAILER:].startswith(_MAGIC):
        return "not written by this version of Treadle, or truncated"
    if data[-_TRAILER:] != _trailer(name, data[:-_TRAILER]):
        return "its checksum does not match"
    return None


def _is_sealed(path: Path, size: int) -> bool:
    """Whether a file ends as those of this module do. What else stands in the directory is not ours to delete."""
    try:
        with path.open("rb") as file:
            file.seek(max(size - _TRAILER, 0))
            return file.read(len(_MAGIC))[:7] == _MAGIC[:7]  # of any version
    except OSError:
        return False


def _write_atomically(path: Path, data: bytes) -> None:
    for folder in (path.parent.parent, path.parent):  # the mode is that of the last one alone
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)  # only this user may read or write it
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
