"""Effects outside the graph, and calls whose results leave it.

Methods that hand a tensor to autograd or to Python, or give it another storage, have no functional form. Numbers read from a tensor
(`item`) are results of the graph.
"""

from __future__ import annotations

import torch

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind

family("requires_grad_", kind=Kind.EFFECT, changes_history_only=True)
families("backward retain_grad register_hook", kind=Kind.EFFECT, why_not_functional="it acts on autograd's graph")
_CHANGES_STORAGE = "it changes the tensor's storage"
family("resize_", kind=Kind.EFFECT, why_not_functional=_CHANGES_STORAGE, is_uninitialised=True)
family("set_", kind=Kind.EFFECT, why_not_functional=_CHANGES_STORAGE)
family("resize_as_", kind=Kind.EFFECT, is_uninitialised=True)
families("numpy tolist", kind=Kind.EFFECT, why_not_functional="its result is no tensor of the graph")
families("apply_ map_ map2_ share_memory_", kind=Kind.EFFECT, writes=("self",))
families("_assert_scalar _assert_async sym_constrain_range", kind=Kind.EFFECT)


def _check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Reading the code of one matrix takes a twentieth of the time of the operator, which compares and reduces tensors."""
    if info.dim() or info.item():
        torch._linalg_check_errors(info, api_name, is_matrix=is_matrix)


family("_linalg_check_errors", kind=Kind.EFFECT, overloads={"default": {"binding": _check_errors}})
family("item", kind=Kind.OTHER)
family("_local_scalar_dense", kind=Kind.OTHER, overloads={"default": {"binding": torch.Tensor.item}})
