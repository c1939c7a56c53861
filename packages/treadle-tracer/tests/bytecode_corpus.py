"""Code objects of the standard library, for tests that read and write real code."""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

SKIPPED = ("test", "tests", "idle_test", "lib2to3", "site-packages", "__pycache__")


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def module_code(path: Path) -> types.CodeType:
    """The compiled form of a source file: from its cache if that belongs to the interpreter running, else anew."""
    cached = Path(importlib.util.cache_from_source(str(path)))
    if cached.exists():
        data = cached.read_bytes()
        if data[:4] == importlib.util.MAGIC_NUMBER:
            return marshal.loads(data[16:])
    return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)


@functools.cache
def standard_library() -> tuple[types.CodeType, ...]:
    """All code objects of the standard library except its own test suites."""
    root = Path(sysconfig.get_paths()["stdlib"])
    result: list[types.CodeType] = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders).difference(SKIPPED))
        for name in sorted(files):
            if name.endswith(".py"):
                result.extend(nested(module_code(Path(folder, name))))
    return tuple(result)


def sample(every: int) -> tuple[types.CodeType, ...]:
    """Every so-manyth code object of the standard library."""
    return standard_library()[::every]
