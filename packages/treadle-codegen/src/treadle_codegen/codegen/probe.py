"""Sampling the bits of tensors in place, to notice writes that no version counter sees."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

ENTRY = "treadle_probe"
SOURCE = f"""
extern "C" u64 {ENTRY}(const u8* const* p, const i64* bytes, i64 n) {{
  u64 h = 1469598103934665603ull;
  for (i64 i = 0; i < n; ++i) {{
    i64 step = bytes[i] <= 256 ? 4 : bytes[i] / 8 / 4 * 4 - 4;
    for (i64 k = 0; k + 4 <= bytes[i]; k += step) h = (h ^ *(const u32*)(p[i] + k)) * 1099511628211ull;
  }}
  return h;
}}
"""


def probe_of(entry: Callable[..., int]) -> Callable[[Sequence[torch.Tensor]], Callable[[], int]]:
    """The factory of sampling functions around the compiled entry point."""
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]  # type: ignore[attr-defined]
    entry.restype = ctypes.c_uint64  # type: ignore[attr-defined]

    def make(tensors: Sequence[torch.Tensor]) -> Callable[[], int]:
        n = len(tensors)
        pointers = (ctypes.c_void_p * n)(*[t.data_ptr() for t in tensors])
        sizes = (ctypes.c_int64 * n)(*[t.nbytes if t.is_contiguous() else 0 for t in tensors])
        arguments = (ctypes.addressof(pointers), ctypes.addressof(sizes), n)

        def sample(_keep: object = (pointers, sizes)) -> int:
            return entry(*arguments)

        return sample

    return make
