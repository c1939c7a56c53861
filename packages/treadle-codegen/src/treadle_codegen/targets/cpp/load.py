"""Load a shared library from its bytes.

The library is loaded from a file in memory that nobody else can reach, so a file on disk that is replaced or cut short later does no harm,
and a directory without execute permission is no obstacle. Where the system has no such files, a temporary file serves, which is removed
as soon as it is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import tempfile

_numbers = itertools.count()
# memfd_create(2): the file may be executed (Linux 6.3); before that the flag is refused, and files may be executed anyway.
_MFD_EXEC = 0x10


def load_library(library: bytes) -> ctypes.CDLL:
    """The loaded library. Raises OSError when the system does not allow it."""
    with contextlib.suppress(OSError):
        return _load_from_memory(library)
    return _load_from_file(library)


def _load_from_memory(library: bytes) -> ctypes.CDLL:
    handle = _anonymous_file()
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(library)
        return ctypes.CDLL(_path_of(handle))
    finally:
        os.close(handle)


def _anonymous_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    try:
        return os.memfd_create("treadle-kernels", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        return os.memfd_create("treadle-kernels", os.MFD_CLOEXEC)


def _path_of(handle: int) -> str:
    """A path of the open file that no other library of this process has had.

    The loader takes a path that it knows for the library that it has loaded from there, and numbers of closed files are given out again.
    So each path spells a number of its own in binary: a step into the same directory with one slash or with two.
    """
    steps = "".join("//." if digit == "1" else "/." for digit in f"{next(_numbers):b}")
    return f"/proc/self/fd{steps}/{handle}"


def _load_from_file(library: bytes) -> ctypes.CDLL:
    handle, path = tempfile.mkstemp(prefix="treadle-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(library)
        return ctypes.CDLL(path)
    finally:
        os.unlink(path)
