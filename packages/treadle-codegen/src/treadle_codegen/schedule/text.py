"""The text of a schedule: kernels with their sections and loops, and the other steps between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle_codegen.ir.text import format_axes, format_expr, format_loop, format_step
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.kernel import Kernel


def format_nodes(nodes: Iterable[Node]) -> str:
    """A block per node, in execution order."""
    return "".join(f"{block}\n" for node in nodes for block in _node(node))


def _node(node: Node) -> Iterator[str]:
    if not isinstance(node.item, Kernel):
        yield format_step(node.item)
        return
    kernel = node.item
    yield f"kernel {kernel.name} outer {format_axes(kernel.outer)}"
    for name, local in kernel.locals.items():
        limit = "" if local.most is None else f" at most {local.most}"
        yield f"  local {name} length {format_expr(local.length)}{limit}"
    for section in kernel.sections:
        yield f"  section {format_axes(section.axes)}"
        for loop in section.members:
            yield "".join(f"    {line}\n" for line in format_loop(loop).splitlines()).rstrip("\n")
