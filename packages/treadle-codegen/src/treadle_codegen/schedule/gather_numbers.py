"""Steps that read numbers off tensors and check them, gathered, so that kernels are not interrupted for one number at a time.

    k0; u0 = item(a); check(u0); k1; u1 = item(b); check(u1); k2(u0, u1)
==> k0; k1; u0 = item(a); check(u0); u1 = item(b); check(u1); k2(u0, u1)

Checks stay in their order: where several fail, the first one raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from treadle_codegen.ir.loops import Check, Define, Extern, Step
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.kernel import Kernel

READ_NUMBER = "aten._local_scalar_dense.default"


def is_number_step(step: Kernel | Step) -> TypeGuard[Extern | Check | Define]:
    """Whether a step does nothing but read a number off a tensor, compute one, or check one."""
    if isinstance(step, Extern):
        return str(step.op) == READ_NUMBER and bool(step.binds) and not any(step.outputs)
    return isinstance(step, (Check, Define))


def gather_numbers(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with kernels that lead to numbers moved before the numbers that they do not need; the others stay behind them."""
    found: list[Node] = []
    run: list[Node] = []
    for node in [*nodes, None]:
        if node is not None and (isinstance(node.item, Kernel) or is_number_step(node.item)):
            run.append(node)
            continue
        found += _gathered(run)
        run = []
        if node is not None:
            found.append(node)
    return found


def _gathered(nodes: list[Node]) -> list[Node]:
    """The same for nodes without any other step in between, stably ordered by how many numbers must be known one after the other."""
    numbers = [not isinstance(node.item, Kernel) for node in nodes]
    if sum(numbers) < 2:
        return nodes
    before = _dependencies(nodes)
    leads = list(numbers)  # whether a number depends on the node
    for k in reversed(range(len(nodes))):
        if leads[k]:
            for other in before[k]:
                leads[other] = True
    levels: list[int] = []
    checked = 0  # the level of the last check
    for k, node in enumerate(nodes):
        levels.append(max([levels[other] + (numbers[other] and not numbers[k]) for other in before[k]], default=0))
        if isinstance(node.item, Check):
            levels[k] = checked = max(levels[k], checked)
    order = sorted(range(len(nodes)), key=lambda k: (not leads[k], levels[k] if leads[k] else 0, numbers[k], k))
    return [nodes[k] for k in order]


def _dependencies(nodes: Sequence[Node]) -> list[set[int]]:
    """For every node, those before it whose place before it matters: one of the two writes what the other touches."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    found = []
    for k, node in enumerate(nodes):
        writes = node.writes - {""}
        needed = {writer[name] for name in node.reads | writes if name in writer}
        needed.update(reader for name in writes for reader in readers.get(name, ()))
        for name in node.reads:
            readers.setdefault(name, []).append(k)
        for name in writes:
            writer[name], readers[name] = k, []
        found.append(needed - {k})
    return found
