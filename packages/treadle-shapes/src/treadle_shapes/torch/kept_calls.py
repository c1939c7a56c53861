"""Keeps the results of `static_calls` for later processes, in a store that the caller gives. Needs torch.

    keep_fake_calls(read, write)        # functions of a key, and of a key and bytes
    ...                                 # calls on fake tensors
    save_fake_calls()                   # writes what is new

One entry of the store holds the results of one environment: release and build of PyTorch, the files of the fake kernels, here and there,
what Python programs have registered for ATen's operators, and what the CPU can do. Calls of other devices than the CPU are not kept. The
store must return the bytes that were written, or None.

The content is lines, in turn the digest of a call's key and its result as JSON. Results that were used last stand last; the first ones
are dropped when there are many.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import treadle_shapes
from treadle_shapes.torch.fake_call_cache import NOTHING, Argument, New, Several, Unknown, View

_MOST_KEPT = 8192
_KINDS = {"tuple": tuple, "list": list}
_CPU = torch.device("cpu")
# Files that decide what PyTorch's fake kernels answer.
_PYTORCH_FILES = (
    "version.py",
    "_meta_registrations.py",
    "_decomp/decompositions.py",
    "_prims_common/__init__.py",
    "_refs/__init__.py",
    "_subclasses/fake_impls.py",
    "_subclasses/fake_tensor.py",
    "lib/libtorch_cpu.so",
)

Read = Callable[[str], bytes | None]
Write = Callable[[str, bytes], None]


class _Kept:
    """The results of one store. `used`: digests in the order of their first use here; `new`: those that the store lacks."""

    def __init__(self, read: Read, write: Write, environment: str) -> None:
        self.read, self.write, self.environment = read, write, environment
        self.known = _parsed(read(environment))
        self.used: dict[str, None] = {}
        self.new: dict[str, str] = {}

    def find(self, digest: str) -> Any:
        text = self.known.get(digest)
        if text is None:
            return None
        self.used[digest] = None
        return _decoded(json.loads(text))

    def save(self) -> None:
        if not self.new or self.environment != environment():
            return
        new, self.new = self.new, {}  # another thread may find results meanwhile
        merged = {**_parsed(self.read(self.environment)), **self.known}  # another process may have written
        last = {digest: merged.pop(digest) for digest in list(self.used) if digest in merged}
        kept = [*merged.items(), *last.items(), *new.items()][-_MOST_KEPT:]
        self.write(self.environment, "\n".join(line for pair in kept for line in pair).encode())
        self.known = dict(kept)


_store: tuple[Read, Write] | None = None
_kept: _Kept | None = None


def keep_fake_calls(read: Read, write: Write) -> None:
    """Find results in a store from now on, and keep new ones for it. The store is read when a result is first asked for."""
    global _store, _kept
    if _store != (read, write):
        _store, _kept = (read, write), None


def save_fake_calls() -> None:
    """Write what is new since the last time, if anything is."""
    if _kept is not None:
        _kept.save()


def find(key: Any) -> Any:
    """Return the kept result of a call, or None."""
    if _store is None:
        return None
    kept = _opened()
    return kept.find(_digest(key)) if kept is not None and kept.known else None


def note(key: Any, entry: Any) -> None:
    """Keep the result of a call, where the call and its result are the CPU's."""
    kept = _opened() if _store is not None else None
    if kept is None or not _is_on_cpu(key):
        return
    try:
        kept.new[_digest(key)] = json.dumps(_encoded(entry), separators=(",", ":"))
    except Unknown:
        pass


def _opened() -> _Kept | None:
    global _kept
    if _kept is None and _store is not None:
        found = environment()
        if found is not None:
            _kept = _Kept(*_store, found)
    return _kept


def _parsed(content: bytes | None) -> dict[str, str]:
    lines = (content or b"").decode().split("\n")
    return dict(zip(lines[::2], lines[1::2], strict=False))


def _digest(key: Any) -> str:
    # Keys consist of types, numbers, strings, dtypes, devices and tuples of them, whose representations differ where they differ.
    return hashlib.blake2b(repr((str(key[0]), *key[1:])).encode(), digest_size=16).hexdigest()


def _is_on_cpu(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_on_cpu, key))
    return not isinstance(key, torch.device) or key.type == "cpu"


# -- results as JSON ------------------------------------------------------------------------------------------------------


def _encoded(entry: Any) -> list[Any]:
    """Return the result as lists, strings and numbers. Raises Unknown."""
    if entry is NOTHING:
        return ["nothing"]
    if isinstance(entry, Argument):
        return ["argument", entry.argument]
    if isinstance(entry, Several):
        return [entry.kind.__name__, [_encoded(item) for item in entry.items]]
    numbers = (*entry.sizes, *entry.strides, entry.offset if isinstance(entry, View) else 0)
    if any(type(n) is not int for n in numbers):
        raise Unknown
    if isinstance(entry, View):
        return ["view", entry.argument, entry.sizes, entry.strides, entry.offset]
    if entry.device != _CPU:
        raise Unknown
    return ["new", entry.sizes, entry.strides, str(entry.dtype).removeprefix("torch.")]


def _decoded(entry: list[Any]) -> Any:
    kind, *facts = entry
    if kind == "new":
        return New(tuple(facts[0]), tuple(facts[1]), getattr(torch, facts[2]), _CPU)
    if kind == "view":
        return View(facts[0], tuple(facts[1]), tuple(facts[2]), facts[3])
    if kind == "argument":
        return Argument(*facts)
    return NOTHING if kind == "nothing" else Several(_KINDS[kind], tuple(map(_decoded, facts[0])))


# -- the environment ------------------------------------------------------------------------------------------------------


def environment() -> str | None:
    """Return a digest of all that the results depend on beside their keys; None where the files cannot be looked at.

    For others that keep what follows from fake kernels: it has no part for what `static_calls.fake_call_settings` returns.
    """
    unchanging = _unchanging()
    if unchanging is None:
        return None
    registered = sorted(name for name in torch.library._impls if name.startswith(("aten/", "prims/")))
    return hashlib.sha256("\n".join((unchanging, *registered)).encode()).hexdigest()


@functools.cache
def _unchanging() -> str | None:
    ours, theirs = os.path.dirname(treadle_shapes.__file__), os.path.dirname(torch.__file__)
    try:
        files = [*sources_in(ours), *(os.path.join(theirs, name) for name in _PYTORCH_FILES)]
        states = states_of(files)
    except OSError:
        return None
    onednn = torch.ops.mkldnn
    cpu = (
        torch.backends.cpu.get_cpu_capability(),
        onednn._is_mkldnn_bf16_supported(),
        onednn._is_mkldnn_fp16_supported(),
    )
    return repr((sys.version, torch.__version__, torch.version.git_version, cpu, states))


def states_of(files: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of each file. Raises OSError."""
    return [(name, found.st_size, found.st_mtime_ns) for name in files for found in (os.stat(name),)]


def sources_in(folder: str) -> Iterator[str]:
    """Yield the paths of the Python files below a folder, in order. Raises OSError."""
    with os.scandir(folder) as found:
        for file in sorted(found, key=lambda file: file.name):
            if file.is_dir() and file.name != "__pycache__":
                yield from sources_in(file.path)
            elif file.name.endswith(".py"):
                yield file.path


__all__ = ["environment", "find", "keep_fake_calls", "note", "save_fake_calls", "sources_in", "states_of"]
