"""Notices writes to tensors that no version counter sees.

The kernel tells which pages were written (`written_pages`), and a compiled checksum tells whether that has changed anything. Where the
kernel does not tell, tensors are summed on every call.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.targets.cpp.written_pages import PAGE, Span, Watch, process
from treadle_codegen.targets.target import Probe, Sampler

ENTRY = "treadle_probe"
# Every byte counts: 64 lanes, each the polynomial of its words at an odd point modulo 2**64, so that a change of any one word changes
# the sum, and changes of several cancel by chance only, one in 2**64. Lanes of their own let the compiler use vectors; the sum is as fast
# as memory.
_BLOCK = 512
SOURCE = f"""
static u64 treadle_checksum(const u8* p, i64 bytes) {{
  const u64 K = 0x9e3779b97f4a7c15ull;
  enum {{ BLOCK = {_BLOCK}, LANES = BLOCK / 8 }};
  u64 lanes[LANES];
  for (int l = 0; l < LANES; ++l) lanes[l] = (u64)l * K + (u64)bytes;
  i64 k = 0;
  for (; k + BLOCK <= bytes; k += BLOCK) {{
    u64 words[LANES];
    __builtin_memcpy(words, p + k, BLOCK);
    for (int l = 0; l < LANES; ++l) lanes[l] = lanes[l] * K + words[l];
  }}
  u64 h = 1469598103934665603ull;
  for (int l = 0; l < LANES; ++l) {{
    u64 x = lanes[l];
    x = (x ^ (x >> 32)) * K;
    h = (h ^ x ^ (x >> 29)) * 1099511628211ull;
  }}
  for (; k < bytes; ++k) h = (h ^ p[k]) * 1099511628211ull;
  return h;
}}

extern "C" u64 {ENTRY}(const u8* const* p, const i64* bytes, i64 n) {{
  u64 h = 1469598103934665603ull;
  for (i64 i = 0; i < n; ++i) h = (h ^ treadle_checksum(p[i], bytes[i])) * 1099511628211ull;
  return h;
}}
"""


# Bytes of whole pages inside a tensor from which on they are watched: a sum of this much costs less than a system call.
_WATCHED_BYTES = 4 * PAGE
# A tensor that so many samples in a row find written is summed from then on: its writes cost page faults, and its sum is made anyway.
_WRITTEN_IN_A_ROW = 4
# After so many samples without a change it is watched again, for the first time earlier; doubled each time. To begin costs some
# milliseconds, too much where each call brings other tensors.
_FIRST_PATIENCE, _PATIENCE = 2, 64

_editions = itertools.count(1)


def sampler(entry: Any) -> Sampler:
    """Makes sampling functions around the compiled entry point."""
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    entry.restype = ctypes.c_uint64
    return lambda tensors: _Sample(entry, tensors)


class _Sums:
    """Checksums of spans of memory."""

    def __init__(self, entry: Any, spans: Sequence[Span]) -> None:
        self._entry = entry
        self._pointers = (ctypes.c_void_p * len(spans))(*[first for first, _ in spans])
        self._sizes = (ctypes.c_int64 * len(spans))(*[end - first for first, end in spans])
        self._arguments = (ctypes.addressof(self._pointers), ctypes.addressof(self._sizes), len(spans))

    def of_all(self) -> int:
        return self._entry(*self._arguments)

    def of(self, k: int) -> int:
        return self._entry(self._arguments[0] + 8 * k, self._arguments[1] + 8 * k, 1)


def _edges(span: Span, inside: Span) -> tuple[Span, Span]:
    """What is before and behind a part of a span. They reach into it up to whole blocks, which are summed faster than odd bytes."""
    first, end = span
    return (first, first - (first - inside[0]) // _BLOCK * _BLOCK), (end + (inside[1] - end) // _BLOCK * _BLOCK, end)


class _Group:
    """Spans of memory, some of them watched, and what their bits were at last.

    Pages are watched that lie inside a watched span as a whole, so that nobody else has reason to write to them. What is before them and
    behind them is summed every time, as the other spans are.
    """

    def __init__(self, entry: Any, spans: Sequence[Span], candidates: Sequence[int]) -> None:
        inside = {k: (-(-spans[k][0] // PAGE) * PAGE, spans[k][1] // PAGE * PAGE) for k in candidates}
        self.members = [k for k, (first, end) in inside.items() if end - first >= _WATCHED_BYTES]
        self.watch = Watch([inside[k] for k in self.members])
        self.tracked = self.watch.tracked
        watched = {self.members[i] for i in self.tracked}
        rest = [span for k, span in enumerate(spans) if k not in watched]
        for k in watched:
            rest += _edges(spans[k], inside[k])
        self._rest = _Sums(entry, [(first, end) for first, end in rest if first < end])
        self._inside = _Sums(entry, [inside[k] for k in self.members])
        self.watch.written()  # first protect, then read: the next look finds writes in between
        self._rest_bits = self._rest.of_all()
        self._bits = {i: self._inside.of(i) for i in self.tracked}

    def look(self) -> tuple[bool, list[int] | None]:
        """Whether any bits have changed since the last look, and which watched spans were written (None: none, as nearly always)."""
        written = self.watch.written()
        rest = self._rest.of_all()
        changed = rest != self._rest_bits
        self._rest_bits = rest
        if written is None:
            return changed, None
        for i in written:
            bits = self._inside.of(i)
            changed |= bits != self._bits[i]
            self._bits[i] = bits
        return changed, [self.members[i] for i in written]


class _Sample:
    """A number that stays the same while the tensors' bits do. Called from several threads at once."""

    def __init__(self, entry: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._entry = entry
        self._spans = [(t.data_ptr(), t.data_ptr() + _reach(t)) for t in tensors]
        self._tensors = [weakref.ref(t) for t in tensors]
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal handler's or finalizer's call may come while this thread looks
        self._group: _Group | None = None
        self._edition = 0
        self._is_looking = False
        self._summed = set(range(len(self._spans)))  # is not watched, although it might be
        self._in_a_row: dict[int, int] = {}
        self._quiet, self._patience = 0, _FIRST_PATIENCE
        self._process = process()

    def __call__(self) -> int:
        if self._process is not process():
            self._begin()  # a forked child: the lock may be held by a thread that is not there, and nothing is watched
        with self._lock:
            if (
                self._is_looking
            ):  # an exception, of a signal handler say, cut it short, or it is this very call that came between
                self._group = None
            self._is_looking = True
            if self._group is None:
                return self._regroup()
            changed, written = self._group.look()
            if changed:
                self._edition = next(_editions)
            self._quiet = 0 if changed else self._quiet + 1
            if self._is_another_group_better(written):
                return self._regroup()
            self._is_looking = False
            return self._edition

    def _is_another_group_better(self, written: Sequence[int] | None) -> bool:
        """Whether to choose anew what is watched, after a look that has found these tensors written."""
        assert self._group is not None
        if written is not None or self._in_a_row:
            self._in_a_row = {k: self._in_a_row.get(k, 0) + 1 for k in written or ()}
            often = [k for k, n in self._in_a_row.items() if n >= _WRITTEN_IN_A_ROW]
            self._summed.update(often)
            if often or self._group.watch.tracked != self._group.tracked:
                return True
        if self._summed and self._quiet > self._patience:
            self._summed.clear()
            self._patience = max(_PATIENCE, 2 * self._patience)
            return True
        return False

    def _regroup(self) -> int:
        """Choose anew what is watched.

        The new group has read all bits before the old one looks once more. So a write before that is found by the old group now, and one
        after it by the new group next time.
        """
        old = self._group
        candidates = [k for k in range(len(self._spans)) if k not in self._summed and self._is_own(k)]
        self._group = _Group(self._entry, self._spans, candidates)
        if old is None or old.look()[0] or old.watch.tracked != old.tracked:
            self._edition = next(_editions)
        if old is not None:
            old.watch.close()
        self._in_a_row = {}
        self._quiet = 0
        self._is_looking = False
        return self._edition

    def _is_own(self, k: int) -> bool:
        """Whether only this process writes to a tensor: others write to shared memory, and devices to pinned memory."""
        tensor = self._tensors[k]()
        return tensor is not None and not tensor.is_shared() and not tensor.is_pinned()


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


PROBE = Probe(SOURCE, ENTRY, sampler)
