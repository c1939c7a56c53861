"""The record of the C++ target."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from treadle_codegen.costs import Costs
from treadle_codegen.ir.ops import BUFFER_DTYPES, COMPLEX_PARTS
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp import written_pages
from treadle_codegen.targets.cpp.build import processor_identity, stop_background_compilers
from treadle_codegen.targets.cpp.clock import CpuClock
from treadle_codegen.targets.cpp.entries import PointerTable
from treadle_codegen.targets.cpp.huge_pages import on_huge_pages
from treadle_codegen.targets.cpp.load_unit import load_unit
from treadle_codegen.targets.cpp.packs_at_sizes import externs_at_sizes
from treadle_codegen.targets.cpp.probe import PROBE
from treadle_codegen.targets.target import Allocation, Rewrites, Target

if TYPE_CHECKING:
    from treadle_codegen.targets.cpp.renderer import CppRenderer


@functools.cache
def _allocation(device: torch.device) -> Allocation:
    large = on_huge_pages()

    def empty(elements: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(elements, dtype=dtype)  # on the CPU, torch's default device
        return made if large is None else large(made)

    return Allocation(torch.empty_strided, empty, large=large)


def _renderer(options: CodegenOptions) -> CppRenderer:
    from treadle_codegen.targets.cpp.renderer import CppRenderer

    return CppRenderer(options)


@functools.cache
def _rewrites() -> Rewrites:
    from treadle_codegen.rewrite.pipeline import EarlyRewrite
    from treadle_codegen.targets.cpp import pack_convolution, pack_linear
    from treadle_codegen.targets.cpp.weight_layout import lay_out_weights, release_biases
    from treadle_codegen.targets.cpp.wide_products import compute_in_float32, is_slow_product

    return Rewrites(
        early=(EarlyRewrite(compute_in_float32, is_slow_product),),
        static=(pack_convolution.pack_convolutions, release_biases, pack_linear.pack_linears, lay_out_weights),
        # One thread of an EPYC, torch 2.13. Row-major weights save less than a checksum of them costs; a whole call with row-major weights
        # and a checksum, without a checksum, with weights as they are: BERT (13 MB) 12.7, 11.5, 11.8 ms; mixer_s16 (72 MB) 89, 86, 88 ms.
        # Packed for oneDNN and frozen: 10.7 and 75 ms. Packed convolutions gain with a checksum, too: resnet18 (47 MB) 38, 35, 41 ms.
        cheaply_checked=frozenset((pack_linear.pack_linears, lay_out_weights)),
        fake_rules=pack_convolution.FAKE_RULES | pack_linear.FAKE_RULES,
    )


CPP = Target(
    name="cpp",
    devices=("cpu",),
    dtypes=BUFFER_DTYPES | COMPLEX_PARTS.keys(),
    renderer=_renderer,
    abi=PointerTable(),
    allocation=_allocation,
    probe=PROBE,
    externs=externs_at_sizes(),
    costs=Costs(
        fusion_window=24,  # what a kernel further back wrote has left the caches anyway
        max_row=1 << 16,  # the next section should still find the row in the second-level cache
        max_serial=1 << 14,  # more points than this are worth waking threads for
        overwritten_bytes=1
        << 17,  # less is in the second-level cache, where another walk costs no more than a loop's start
        moments_across=True,
        wide_moments=True,
        tiled_points=1 << 12,  # fewer are in the first-level cache in whatever order they are read
        scatters_in_order=True,
        vector_products=True,
        small_products=True,
        alignment=64,  # bytes: a cache line, and the widest vector
        min_reordered=1024,  # a smaller result is in the first-level cache whatever its order
        seconds_per_kernel=0.1,  # g++ -O3, header-free
    ),
    rewrites=_rewrites,
    cheap_probe=written_pages.is_available,
    interrupt_builds=stop_background_compilers,
    clock=CpuClock,
    identity=processor_identity,
    load_kept=load_unit,
    product_loops=False,
)
