"""The records of the Triton target: for GPUs, and for the CPU with Triton's interpreter (tests)."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from treadle_codegen.costs import Costs
from treadle_codegen.ir.ops import BUFFER_DTYPES, COMPLEX_PARTS
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.target import Rewrites, Target
from treadle_codegen.targets.tensor_table import TensorTable
from treadle_codegen.targets.triton.clock import CudaClock, allows_tf32
from treadle_codegen.targets.triton.cuda_graphs import cuda_graphs
from treadle_codegen.targets.triton.entries import ENTRY_ABI, allocation
from treadle_codegen.targets.triton.limits import MAX_ROW

if TYPE_CHECKING:
    from treadle_codegen.schedule.kernel import Kernel
    from treadle_codegen.targets.triton.renderer import TritonRenderer

COSTS = Costs(
    recompute=16,  # a transcendental function costs less than a trip to memory
    small_reduction=1 << 17,
    fusion_window=64,
    max_row=1 << 16,
    reordered_row=256,  # of which a program holds 64 next to each other: more would leave the first-level cache between two walks
    held_row=MAX_ROW,
    max_serial=1 << 13,  # elements that one program may walk alone
    min_parallel=264,  # two programs for each multiprocessor of a large GPU
    select_in_cat=4,
    split_work=1 << 12,
    min_reordered=1024,
    atomic_adds=frozenset({torch.float32, torch.float64, torch.int32, torch.int64}),
    cached_bytes=32 << 20,
    overwritten_bytes=8 << 20,  # what a large GPU writes in the time of a launch
    scans=True,
    alignment=128,  # bytes: a line of the second-level cache
    seconds_per_kernel=0.2,
)


def _for_gpu(options: CodegenOptions) -> TritonRenderer:
    from treadle_codegen.targets.triton.renderer import TritonRenderer

    return TritonRenderer(options, _load_unit)


@functools.cache
def _rewrites() -> Rewrites:
    from treadle_codegen.rewrite.pipeline import EarlyRewrite, convolves
    from treadle_codegen.targets.triton.attention_graph import fuse_attention, is_softmax, parts_of_attention
    from treadle_codegen.targets.triton.channels_last import convolve_channels_last

    early = (EarlyRewrite(convolve_channels_last, convolves), EarlyRewrite(fuse_attention, is_softmax))
    return Rewrites(early, parts=parts_of_attention)


def _why_not_registers(kernel: Kernel, buffer: str) -> str | None:
    from treadle_codegen.targets.triton.tiles import why_not_registers

    return why_not_registers(kernel, buffer)


def _load_unit(*args: Any, **kwargs: Any) -> Any:
    from treadle_codegen.targets.triton.build import load_unit

    return load_unit(*args, **kwargs)


def _stop_background_builds() -> None:
    workers = sys.modules.get(
        "treadle_codegen.targets.triton.workers"
    )  # loaded by the first build, not by every import
    if workers is not None:
        workers.stop_background_builds()


TRITON = Target(
    name="triton",
    devices=("cuda",),
    operator_devices=("cpu",),
    dtypes=BUFFER_DTYPES | COMPLEX_PARTS.keys(),
    renderer=_for_gpu,
    abi=ENTRY_ABI,
    allocation=allocation,
    probe=None,  # a checksum of the weights would make the host wait for the device
    costs=COSTS,
    rewrites=_rewrites,
    why_not_local_row=_why_not_registers,
    interrupt_builds=_stop_background_builds,
    recorder=cuda_graphs,
    clock=CudaClock,
    allows_tf32=allows_tf32,
)


def _interpreted(options: CodegenOptions) -> TritonRenderer:
    from treadle_codegen.targets.triton.interpreter import load_unit
    from treadle_codegen.targets.triton.renderer import INTERPRETED_HEAD, TritonRenderer

    return TritonRenderer(options, load_unit, INTERPRETED_HEAD)


@functools.cache
def _rewrites_of_interpreted() -> Rewrites:
    from treadle_codegen.rewrite.pipeline import EarlyRewrite
    from treadle_codegen.targets.triton.attention_graph import fuse_attention, is_softmax, parts_of_attention

    return Rewrites((EarlyRewrite(fuse_attention, is_softmax),), parts=parts_of_attention)


def interpreted_target() -> Target:
    """Kernels on CPU tensors, run by Triton's interpreter."""
    return Target(
        name="triton-interpreted",
        devices=("cpu",),
        dtypes=BUFFER_DTYPES | COMPLEX_PARTS.keys(),
        renderer=_interpreted,
        abi=TensorTable(),
        allocation=allocation,
        probe=None,
        costs=COSTS,
        rewrites=_rewrites_of_interpreted,
        why_not_local_row=_why_not_registers,
    )
