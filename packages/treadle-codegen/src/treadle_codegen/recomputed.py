"""What backward should compute again, since the kernels of the forward graph do not keep it in memory."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import fx


def parts_to_compute_again(
    graph: fx.Graph, others: Container[fx.Node], *, target: str | None = None
) -> list[frozenset[fx.Node]]:
    """The parts of a joint graph's forward half that kernels of `compile_graph` keep in registers, as long as nothing outside reads them.

    graph: a functional ATen graph of a program and its gradients. others: its nodes that are not in the forward half. Each part is all that
    is to be computed again; its results are not in it.
    """
    # A process that finds its programs kept asks for none of it.
    from treadle_codegen.support import main_device
    from treadle_codegen.targets.table import target_for, target_named

    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    device = main_device(tensors, target_named(target).devices if target else ())
    record = target_named(target) if target else target_for(device.type if device else "cpu")
    find = record.rewrites().parts
    return [] if find is None else find(graph, others)


parts_to_compute_again.kept_as = "attention"  # type: ignore[attr-defined]  # beside the files of this package, in keys of kept programs
