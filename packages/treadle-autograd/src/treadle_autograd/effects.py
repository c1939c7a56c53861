"""Effects of a call: what must run even if nobody uses its result, because it draws random numbers, raises or does something unknown.

    y = x[i]                 # IndexError for some i
    z = torch.linalg.inv(a)  # LinAlgError for some a
    return x + 1             # the calls above are not dead code

Fake kernels raise for wrong sizes and dtypes while tracing. Values matter to few operators only: pointwise operators and reductions
never raise, integer division excepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

# Found in aten/src/ATen/native by their checks on elements (TORCH_CHECK_INDEX, TORCH_CHECK on values, LAPACK's `info`).
_INDEXING = """
index index_select gather scatter scatter_add scatter_reduce index_put index_add index_copy index_fill index_reduce take put embedding
_embedding_bag _embedding_bag_forward_only max_unpool2d max_unpool3d masked_scatter repeat_interleave segment_reduce
"""
_LOSSES = """
nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward _ctc_loss binary_cross_entropy
"""
_LINEAR_ALGEBRA = """
cholesky cholesky_inverse linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_ldl_factor_ex _linalg_solve_ex _linalg_eigh
_linalg_svd linalg_eig linalg_eigvals _linalg_eigvals linalg_lstsq
"""
_COUNTING = "bincount histc histogram _histogramdd_from_bin_cts _histogramdd_bin_edges quantile nanquantile"
_OTHERS = """
fake_quantize_per_channel_affine_cachemask _pack_padded_sequence sparse_coo_tensor sparse_compressed_tensor
"""
_BY_VALUE = frozenset(" ".join((_INDEXING, _LOSSES, _LINEAR_ALGEBRA, _COUNTING, _OTHERS)).split())
_DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod"})


def may_raise(func: Any, args: Sequence[Any], result: Any) -> bool:
    """Whether a call of the operator `func` raises for some values of its tensors. `result` is its fake result."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    name = func._schema.name.removeprefix("aten::")
    if name in _DIVISIONS:
        integral = isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and not result.is_complex()
        return integral and not (isinstance(args[1], int) and args[1] != 0)
    return name in _BY_VALUE


def is_random(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in func.tags


def has_effect(node: fx.Node) -> bool:
    """Whether leaving out the node, when nobody uses its result, can be noticed. Operators of unknown namespaces count as having one."""
    func = node.target
    if node.op != "call_function" or node.meta.get("may_raise"):
        return True
    if not isinstance(func, torch._ops.OpOverload):
        return False  # operator.getitem and arithmetic on symbolic numbers
    return func.namespace not in ("aten", "prims") or not func._schema.returns or is_random(func)


def remove_dead_nodes(graph: fx.Graph) -> None:
    """Erase the nodes that nobody uses and that have no effect."""
    graph.eliminate_dead_code(is_impure_node=has_effect)
