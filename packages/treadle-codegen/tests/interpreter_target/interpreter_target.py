"""A second target: kernels are loop IR as text, and entry points run the reference interpreter.

It differs from the C++ target wherever a target may: entry points take a list of tensors and numbers instead of an address,
memory is poisoned when it is allocated, float16 is left to ATen, bits are sampled in Python, no rewrite is its own, and
constants of a specialised kernel are lines of its text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from treadle_codegen.costs import Costs
from treadle_codegen.interpret import provide, run_loop
from treadle_codegen.ir.loops import Buffer, Program, symbols_of
from treadle_codegen.ir.ops import BUFFER_DTYPES
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import NumberGroup, RenderedKernel, Segment, function_name, numbers_of
from treadle_codegen.targets.table_slots import slot_key
from treadle_codegen.targets.target import Allocation, Probe, Target
from treadle_codegen.targets.tensor_table import TensorTable

Entry = Callable[[list[Any]], None]


def _poisoned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(math.nan if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 1)


ALLOCATION = Allocation(
    lambda shape, strides, dtype: _poisoned(torch.empty_strided(shape, strides, dtype=dtype)),
    lambda elements, dtype: torch.full((elements,), 255 if dtype is torch.uint8 else 1, dtype=dtype),
)


class IRRenderer:
    """Units are text: `kernel` blocks that hold a program each, and `segment` blocks of calls."""

    parallel = False
    prelude = ""
    shares_constants = False

    def __init__(self, options: CodegenOptions) -> None:
        self.calls = 0

    def render_kernel(self, kernel: Kernel, program: Program, choice: Any = None) -> RenderedKernel:
        accesses = [a for loop in kernel.loops for a in (*loop_reads(loop), *loop_writes(loop))]
        names = tuple(dict.fromkeys(a.buffer for a in accesses))
        inside = {name for name, local in kernel.locals.items() if local.most is None}
        numbers = tuple(dict.fromkeys(s for n in numbers_of(kernel) for s in sorted(symbols_of(n), key=str)))
        plain = {name: replace(program.buffers[name], shape=(), strides=(), offset=0) for name in names}
        buffers = plain | {name: program.buffers[name] for name in names if name in inside}
        shapes = symbols_of([(b.shape, b.strides) for b in buffers.values() if b.name in inside])
        numbers = (*numbers, *sorted(shapes - set(numbers), key=str))
        text = format_program(Program(buffers, (), (), list(kernel.loops), numbers))
        checks = any(i.op in ("indirect_load", "indirect_store") for loop in kernel.loops for i in loop.body)
        outside = tuple(name for name in names if name not in inside)
        header = f"takes {' '.join(outside)}\n"
        return RenderedKernel(
            function_name(header + text), header + text, outside, numbers, checks, kernel.name, (header, text, {})
        )

    def specialise(self, kernel: RenderedKernel, values: Mapping[Any, int | float]) -> RenderedKernel:
        fixed = {n: values[n] for n in kernel.constants(values)}
        header, text, known = kernel.parts
        known = {**known, **{n.name: value for n, value in fixed.items()}}
        constants = "".join(f"constant {name} {value!r}\n" for name, value in known.items())
        return replace(
            kernel,
            function=function_name(constants + header + text),
            text=constants + header + text,
            numbers=tuple(n for n in kernel.numbers if n not in fixed),
            parts=(header, text, known),
        )

    def render_numbers(self, group: NumberGroup, program: Program) -> None:
        """The host reads numbers, for which it waits."""

    def render_unit(self, segments: Sequence[Segment], slots: dict[str, int], buffers: dict[str, Buffer]) -> str:
        kernels = {kernel.function: kernel.text for segment in segments for kernel in segment.kernels}
        parts = [f"kernel {name}\n{text}end\n" for name, text in kernels.items()]
        for segment in segments:
            parts.append(f"segment {segment.name}\n")
            for kernel in segment.kernels:
                at = [slots[b] for b in kernel.buffers] + [slots[slot_key(n)] for n in kernel.numbers]
                parts.append(f"call {kernel.function} {' '.join(map(str, at))}\n")
            parts.append("end\n")
        return "".join(parts)

    def load(self, source: str, names: Sequence[str], *, background: bool = False) -> tuple[dict[str, Entry], bool]:
        kernels: dict[str, Any] = {}
        entries: dict[str, Entry] = {}
        for block in source.split("end\n"):
            head, _, body = block.partition("\n")
            if head.startswith("kernel "):
                kernels[head.split()[1]] = _kernel(body)
            elif head.startswith("segment "):
                calls = [line.split()[1:] for line in body.splitlines()]
                entries[head.split()[1]] = _entry([(kernels[name], list(map(int, at))) for name, *at in calls])
        return {name: entries[name] for name in names}, False


def _kernel(text: str) -> Callable[[list[Any]], None]:
    """A kernel as a function of the tensors of its buffers and then its numbers."""
    constants: dict[str, Any] = {}
    while text.startswith("constant "):
        line, _, text = text.partition("\n")
        _, name, value = line.split()
        constants[name] = float(value) if "." in value or "n" in value else int(value)
    takes, _, text = text.partition("\n")
    outside = takes.split()[1:]
    program = parse_program(text)
    free = [s for s in program.size_symbols if s.name not in constants]
    fixed = {s: constants[s.name] for s in program.size_symbols if s.name in constants}

    def run(arguments: list[Any]) -> None:
        memory = dict(zip(outside, arguments, strict=False))
        sizes = {**fixed, **dict(zip(free, arguments[len(outside) :], strict=True))}
        for loop in program.steps:
            provide(program, {a.buffer for a in loop_writes(loop)}, memory, sizes)
            run_loop(loop, memory, sizes)

    return run


def _entry(calls: list[tuple[Callable[[list[Any]], None], list[int]]]) -> Entry:
    def entry(table: list[Any]) -> None:
        for kernel, slots in calls:
            try:
                kernel([table[slot] for slot in slots])
            except IndexError:
                table[0].value = 1
                return

    return entry


def _sampler(entry: None) -> Any:
    assert entry is None

    def make(tensors: Sequence[torch.Tensor]) -> Callable[[], int]:
        def sample() -> int:
            digest = hashlib.sha256()
            for tensor in tensors:
                digest.update(bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()))
            return int.from_bytes(digest.digest()[:8], "little")

        return sample

    return make


INTERPRETER = Target(
    name="interpreter",
    devices=("cpu",),
    dtypes=frozenset(BUFFER_DTYPES - {torch.float16}),
    renderer=IRRenderer,
    abi=TensorTable(),
    allocation=lambda device: ALLOCATION,
    probe=Probe("", "", _sampler),
    costs=Costs(fusion_window=6, max_row=64, max_expression=60, max_unrolled=2, alignment=16),
)
