"""The pass: measure every matrix product and every other kernel of a program, and decide.

A matrix product is measured with the loops that would run on its tiles, first as the call of BLAS and kernels of their own that it is
by default. Whatever else is a kernel is measured in a few tilings around the one that it has by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from treadle_codegen.ir.loops import Extern, Program, Step
from treadle_codegen.ir.product import is_product
from treadle_codegen.lower.product import MatrixProduct, matrix_product, with_loops
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.tune.region import region, why_not_region
from treadle_codegen.tune.trials import Measurer, Variant

Fuse = Callable[[Program], list[Node]]
_SPLITS = (2, 4, 8, 16)
_FEW_BLOCKS = 132  # of 64 by 64 elements: fewer leave multiprocessors of an H100 idle
_LEAST_TERMS = 256  # of one part of the sums
_SPLIT_TILINGS = 4  # that are measured for each number of parts


class Choices(Protocol):
    """The renderer of a target that can be tuned."""

    def candidates(self, kernel: Kernel, program: Program) -> Sequence[Any]:
        """The tilings of a kernel that are worth measuring; first the one that is taken without measuring."""
        ...


@dataclass(slots=True)
class Tuned:
    """The program with the matrix products that became loops, and the tiling of kernels by the names of their loops.

    reasons: why a product was not measured.
    """

    program: Program
    choices: dict[tuple[str, ...], Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def tune_products(program: Program, fuse: Fuse, renderer: Choices, measurer: Measurer, tf32: bool) -> Tuned:
    """Decide for each matrix product of the program between the extern that it is, and loops."""
    products = {step.name: matrix_product(step, program) for step in program.steps if isinstance(step, Extern)}
    found = {name: product for name, product in products.items() if isinstance(product, MatrixProduct)}
    tuned = Tuned(program)
    if not found:
        return tuned
    steps = {step.name: step for step in program.steps}
    splits: dict[str, int] = {}
    for node in fuse(with_loops(program, dict.fromkeys(found, 1), tf32)):
        names = kernel_key(node)
        if not names or names[0] not in found:
            continue
        chain = [steps[name] for name in names]
        reason = why_not_region(chain, program)
        if reason is not None:
            tuned.reasons[names[0]] = reason
            continue
        alone = region(program, chain)
        variants = [Variant("extern", alone)]
        for parts in (1, *_useful_splits(found[names[0]])):
            variants += _with_parts(alone, parts, fuse, renderer, tf32)
        chosen = measurer.choose(_describe(found[names[0]], program, chain), variants)
        if chosen.parts:
            splits[names[0]] = chosen.parts
            tuned.choices[names if chosen.parts == 1 else names[:1]] = chosen.choice
    tuned.program = with_loops(program, splits, tf32)
    return tuned


def kernel_key(node: Node) -> tuple[str, ...]:
    """What a kernel is known by from one fusion of a program to the next: the names of its loops."""
    return tuple([loop.name for loop in node.item.loops]) if isinstance(node.item, Kernel) else ()


def _with_parts(alone: Program, parts: int, fuse: Fuse, renderer: Choices, tf32: bool) -> list[Variant]:
    looped = with_loops(alone, {alone.steps[0].name: parts}, tf32)
    first = fuse(looped)[0].item
    if not isinstance(first, Kernel):
        return []
    tilings = renderer.candidates(first, looped)
    if parts > 1:
        tilings = tilings[:_SPLIT_TILINGS]
    what = "template" if is_product(first.loops[0]) else "kernel"
    suffix = f" parts {parts}" if parts > 1 else ""
    return [Variant(f"{what} {tiling}{suffix}", looped, tiling, parts) for tiling in dict.fromkeys(tilings)]


def _useful_splits(product: MatrixProduct) -> list[int]:
    batch, rows, columns, terms = product.sizes
    if not all(isinstance(n, int) for n in product.sizes):
        return []
    blocks: Any = batch * -(-rows // 64) * -(-columns // 64)
    return [n for n in _SPLITS if blocks < _FEW_BLOCKS and terms % n == 0 and terms // n >= _LEAST_TERMS]  # type: ignore[operator]


def _describe(product: MatrixProduct, program: Program, chain: Sequence[Step]) -> str:
    batch, rows, columns, terms = product.sizes
    dtype = str(program.buffers[product.output].dtype).removeprefix("torch.")
    size = f"{rows}x{terms} @ {terms}x{columns}"
    followed = f" + {len(chain) - 1} loops" if len(chain) > 1 else ""
    return f"matmul {size if batch == 1 else f'{batch} of {size}'} {dtype}{followed}"


def tune_kernels(tuned: Tuned, nodes: Sequence[Node], renderer: Choices, measurer: Measurer) -> None:
    """Decide about the tilings of all kernels that are no matrix products; adds to `tuned.choices`."""
    steps = {step.name: step for step in tuned.program.steps}
    for node in nodes:
        names = kernel_key(node)
        if not isinstance(node.item, Kernel) or names in tuned.choices:
            continue
        chain = [steps[name] for name in names]
        if is_product(node.item.loops[0]) or why_not_region(chain, tuned.program) is not None:
            continue
        tilings = list(dict.fromkeys(renderer.candidates(node.item, tuned.program)))
        if len(tilings) < 2:
            continue
        alone = region(tuned.program, chain)
        variants = [Variant(str(tiling), alone, tiling) for tiling in tilings]
        tuned.choices[names] = measurer.choose(f"kernel {node.item.name}", variants).choice
