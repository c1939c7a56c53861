"""Sampling the bits of tensors where they lie, to notice writes that no version counter sees."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.targets.target import Probe, Sampler

ENTRY = "treadle_probe"
# Tensors of up to 4 KiB (biases, norms, statistics) are read whole, larger ones at 16 places and at their end. That takes 0.2 ms
# for the 72 weights and biases of a BERT whose call takes 60 ms; reading all of them would take as long as the call.
SOURCE = f"""
extern "C" u64 {ENTRY}(const u8* const* p, const i64* bytes, i64 n) {{
  u64 h = 1469598103934665603ull;
  for (i64 i = 0; i < n; ++i) {{
    i64 step = bytes[i] <= 4096 ? 4 : bytes[i] / 16 / 4 * 4 - 4, k = 0;
    for (; k + 4 <= bytes[i]; k += step) h = (h ^ *(const u32*)(p[i] + k)) * 1099511628211ull;
    for (k = bytes[i] > 4 ? bytes[i] - 4 : 0; k < bytes[i]; ++k) h = (h ^ p[i][k]) * 1099511628211ull;
  }}
  return h;
}}
"""


def sampler(entry: Any) -> Sampler:
    """Makes sampling functions around the compiled entry point."""
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    entry.restype = ctypes.c_uint64

    def make(tensors: Sequence[torch.Tensor]) -> Callable[[], int]:
        n = len(tensors)
        pointers = (ctypes.c_void_p * n)(*[t.data_ptr() for t in tensors])
        sizes = (ctypes.c_int64 * n)(*map(_reach, tensors))
        arguments = (ctypes.addressof(pointers), ctypes.addressof(sizes), n)

        def sample(_keep: object = (pointers, sizes)) -> int:
            return entry(*arguments)

        return sample

    return make


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a tensor to its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


PROBE = Probe(SOURCE, ENTRY, sampler)
