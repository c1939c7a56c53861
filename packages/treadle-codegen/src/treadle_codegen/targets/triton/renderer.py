"""The Triton renderer: kernels become `triton.jit` functions, a unit a Python module that says how each is launched."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treadle_codegen.ir.attention import multiplies_tiles
from treadle_codegen.ir.loops import Buffer, BufferKind, Expr, FloatExpr, IntLike, Program
from treadle_codegen.ir.ops import memory_dtype
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import NumberGroup, RenderedKernel, Segment, function_name, numbers_of
from treadle_codegen.targets.table_slots import slot_key
from treadle_codegen.targets.triton.attention import attention_in, write_attention
from treadle_codegen.targets.triton.attention_tiles import AttentionTiling, attention_candidates
from treadle_codegen.targets.triton.body import write_body
from treadle_codegen.targets.triton.body_writer import BodyWriter
from treadle_codegen.targets.triton.early import why_not_early
from treadle_codegen.targets.triton.groups import (
    Member,
    group_launch,
    group_record,
    group_text,
    grouped,
    member_of,
    why_not_member,
)
from treadle_codegen.targets.triton.matmul import product_in, write_matmul
from treadle_codegen.targets.triton.matmul_tiles import MatmulTiling, default_matmul_tiling, matmul_candidates
from treadle_codegen.targets.triton.ops import TRITON_TYPES
from treadle_codegen.targets.triton.precision import kernel_may_approximate, program_may_approximate
from treadle_codegen.targets.triton.tiles import Tiling, candidates, points, tile
from treadle_shapes.expr import TRITON_HELPERS

_NAMES = """
begin_kernel require_index atomic_add add_product inner_product softmax_step weighted_mean online_step only_value
scan_sum scan_prod last_column
int_sign float_sign float_div float_sqrt float_reciprocal float_sigmoid float_signbit float_maximum float_minimum
float_remainder float_floordiv rough_div rough_sigmoid rough_tanh rough_log1p
reduce_sum reduce_prod reduce_max reduce_min reduce_any reduce_all is_better_max is_better_min reduce_argmax reduce_argmin
""".split()
_HEAD = f"""\
import triton
import triton.language as tl
from triton.language.extra import libdevice
from treadle_codegen.targets.triton.prelude import {", ".join(_NAMES)}

{TRITON_HELPERS}
"""
INTERPRETED_HEAD = f"""\
import treadle_codegen.targets.triton.interpreted as triton
import triton.language as tl
from treadle_codegen.targets.triton.interpreted import libdevice, steps as range, {", ".join(_NAMES)}

{TRITON_HELPERS}
"""
_MANY = 1 << 31  # elements that a 32-bit index does not reach


@dataclass(frozen=True, slots=True)
class KernelParts:
    """What launching a kernel takes: types of its arguments, block sizes, and (points, block) for each dimension of the grid."""

    signature: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    grid: tuple[tuple[IntLike, int], ...]
    kernel: Kernel
    approximately: bool


Load = Callable[..., tuple[dict[str, Callable[..., Any]], bool]]


class TritonRenderer:
    """Triton text. `load_unit(source, names, options, background=...)` builds and loads it."""

    parallel = True
    shares_constants = False  # a launch costs more than a compile saves

    def __init__(self, options: CodegenOptions, load_unit: Load, head: str = _HEAD) -> None:
        self.options = options
        self.load_unit = load_unit
        self.prelude = head
        self.device: torch.device | None = None
        self._approximate: tuple[Program, bool] | None = None  # the last program, and whether `program_may_approximate`

    def candidates(self, kernel: Kernel, program: Program) -> Sequence[Tiling | MatmulTiling | AttentionTiling]:
        """The tilings of a kernel that are worth measuring; first the one that is taken without measuring."""
        if (attention := attention_in(kernel)) is not None:
            return attention_candidates(attention[1])
        found = product_in(kernel)
        return candidates(kernel) if found is None else matmul_candidates(*found)

    def render_kernel(self, kernel: Kernel, program: Program, choice: Any = None) -> RenderedKernel:
        """The text of one kernel. `choice`: one of `candidates(kernel)`; by default the first of them."""
        self.device = program.device
        product, attention = product_in(kernel), attention_in(kernel)
        tiling = choice or _default_tiling(kernel)
        numbers = list(numbers_of(kernel))
        writer = BodyWriter(
            kernel,
            program.buffers,
            tiling if isinstance(tiling, Tiling) else None,
            "tl.int64" if _is_wide(kernel, program, numbers) else "tl.int32",
            approximately=self._may_approximate(kernel, program),
        )
        for number in numbers:
            writer.names[number] = f"{'d' if isinstance(number, FloatExpr) else 'n'}{len(writer.names)}"
        arguments = [writer.names[number] for number in numbers]
        if attention is not None:
            grid = tuple(write_attention(writer, *attention, tiling))
        else:
            grid = tuple(write_body(writer) if product is None else write_matmul(writer, *product, tiling))
        for k, (total, _) in enumerate(grid):
            if not isinstance(total, int) and total not in numbers:
                numbers.append(total)
                arguments.append(f"unused{k}")
        buffers = tuple(writer.params)
        signature = [f"*{TRITON_TYPES[memory_dtype(program.buffers[b].dtype)]}" for b in buffers]
        signature += ["fp64" if isinstance(n, FloatExpr) else "i64" for n in numbers]
        parameters = [*writer.params.values(), *arguments, *[f"{name}: tl.constexpr" for name in writer.constants]]
        settings = ", ".join(f"{name}={value}" for name, value in writer.constants.items())
        how = f"num_warps={tiling.num_warps}, num_stages={tiling.num_stages}"
        begin = [] if why_not_early(kernel, program, grid) is not None else ["    begin_kernel()"]
        body = "\n".join([*begin, *writer.lines])
        text = f"({', '.join(parameters)}):\n    # {settings}, {how}\n{body}\n"
        parts = KernelParts(
            *(tuple(signature), tuple(writer.constants.items()), tiling.num_warps, tiling.num_stages, grid, kernel),
            approximately=writer.approximately,
        )
        return RenderedKernel(
            *(function_name(text), text, buffers, tuple(numbers), writer.checks_bounds, kernel.name),
            *(parts, "other sizes would have other blocks, and sums another order"),
        )

    def _may_approximate(self, kernel: Kernel, program: Program) -> bool:
        if self._approximate is None or self._approximate[0] is not program:
            self._approximate = program, program_may_approximate(program)
        return self._approximate[1] or kernel_may_approximate(kernel, program)

    def specialise(self, kernel: RenderedKernel, values: Mapping[Any, int | float]) -> RenderedKernel:
        """The kernel as it is: no kernel allows constants."""
        return kernel

    def render_numbers(self, group: NumberGroup, program: Program) -> None:
        """The host reads numbers, for which it waits."""

    def render_unit(self, segments: Sequence[Segment], slots: dict[str, int], buffers: dict[str, Buffer]) -> str:
        """A module: the imports, every distinct kernel once, and two tables."""
        texts: dict[str, str] = {}
        table: dict[str, dict[str, Any]] = {}
        calls: dict[str, list[dict[str, Any]]] = {}
        inputs = frozenset(
            [slots[name] for name in slots if name in buffers and buffers[name].kind is not BufferKind.OUTPUT]
        )
        for segment in segments:
            launches = calls.setdefault(segment.name, [])
            for group in grouped([_as_member(kernel, buffers, slots, inputs) for kernel in segment.kernels]):
                name, text, record, call = _launch_of(group, slots)
                texts[name], table[name] = text, record
                launches.append(call)
        parts = [self.prelude]
        parts += [f"\n@triton.jit\ndef {name}{text}" for name, text in texts.items()]
        parts += [f"\nKERNELS = {pprint.pformat(table, width=120, sort_dicts=False)}\n"]
        parts += [f"\nSEGMENTS = {pprint.pformat(calls, width=120, sort_dicts=False)}\n"]
        return "".join(parts)

    def load(
        self, source: str, names: Sequence[str], *, background: bool = False
    ) -> tuple[dict[str, Callable[..., Any]], bool]:
        """Build and load: entry points by name, and whether all kernels came from the cache."""
        return self.load_unit(source, names, self.options, background=background, device=self.device)


def _default_tiling(kernel: Kernel) -> Tiling | MatmulTiling | AttentionTiling:
    if (attention := attention_in(kernel)) is not None:
        return attention_candidates(attention[1])[0]
    product = product_in(kernel)
    return tile(kernel) if product is None else default_matmul_tiling(*product)


def _as_member(
    kernel: RenderedKernel, buffers: dict[str, Buffer], slots: Mapping[str, int], inputs: frozenset[int]
) -> RenderedKernel | Member:
    parts: KernelParts = kernel.parts
    if why_not_member(parts.kernel, kernel, buffers) is not None:
        return kernel
    return member_of(parts.kernel, kernel, buffers, parts.signature, slots, inputs, approximately=parts.approximately)


def _launch_of(
    group: Sequence[RenderedKernel | Member], slots: dict[str, int]
) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """The kernel that one launch runs: its name, its text, how it is compiled, and the launch."""
    members = [member for member in group if isinstance(member, Member)]
    if len(members) > 1:
        text = group_text(members)
        name = function_name(text)
        return name, text, group_record(members), group_launch(members, name)
    kernel = group[0].kernel if isinstance(group[0], Member) else group[0]
    return kernel.function, kernel.text, _record(kernel), _call(kernel, slots)


def _record(kernel: RenderedKernel) -> dict[str, Any]:
    parts: KernelParts = kernel.parts
    return {
        "signature": list(parts.signature),
        "constants": dict(parts.constants),
        "num_warps": parts.num_warps,
        "num_stages": parts.num_stages,
        "checks_bounds": kernel.checks_bounds,
    }


def _call(kernel: RenderedKernel, slots: dict[str, int]) -> dict[str, Any]:
    at = [slots[b] for b in kernel.buffers] + [slots[slot_key(n)] for n in kernel.numbers]
    grid = [
        [total if isinstance(total, int) else ["slot", slots[slot_key(total)]], block]
        for total, block in kernel.parts.grid
    ]
    return {"kernel": kernel.function, "slots": at, "grid": grid}


def _is_wide(kernel: Kernel, program: Program, numbers: Sequence[Any]) -> bool:
    """Whether indices may need 64 bits."""
    if any(isinstance(n, Expr) for n in numbers):
        return True
    spaces = [points((*kernel.outer, *section.axes)) for section in kernel.sections]
    if multiplies_tiles(kernel.loops[0]):  # nobody numbers the points of all three axes
        spaces = [points(kernel.outer), points(kernel.sections[0].axes)]
    if any(isinstance(n, int) and n >= _MANY for n in spaces):
        return True
    for loop in kernel.loops:
        for name in {*_buffers(loop)}:
            buffer = program.buffers[name]
            sides = zip(buffer.shape, buffer.strides, strict=True)
            reach = sum((n - 1) * s for n, s in sides if isinstance(n, Expr) or n > 0)
            if not isinstance(reach, int) or reach >= _MANY:
                return True
    return False


def _buffers(loop: Any) -> list[str]:
    return [a.buffer for a in (*loop_reads(loop), *loop_writes(loop))]
