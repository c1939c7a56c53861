"""A checksum of tensors where they lie, to notice writes that no version counter sees."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.targets.target import Probe, Sampler

ENTRY = "treadle_probe"
# Every byte counts: 64 lanes, each the polynomial of its words at an odd point modulo 2**64, so that a change of any one word changes
# the sum, and changes of several cancel by chance only, one in 2**64. Lanes of their own let the compiler use vectors; the sum is as fast
# as memory.
SOURCE = f"""
static u64 treadle_checksum(const u8* p, i64 bytes) {{
  const u64 K = 0x9e3779b97f4a7c15ull;
  enum {{ LANES = 64, BLOCK = LANES * 8 }};
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
