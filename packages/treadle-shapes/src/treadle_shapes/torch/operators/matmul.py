"""Products of matrices.

Schemas do not state which operators accept matrices of any strides and return a dense result. These may write into a given tensor
(`out`). Generated code calls them through torch's own binding, which parses arguments faster than the overload (1.9 us instead of 3.5 us
for `addmm.out`, torch 2.13). `tensordot`, `inner` and `einsum` ask about sizes of 1 in order to sum the other side first.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_shapes.torch import shape_functions
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind

F = torch.nn.functional
_OF_MATRICES = (("self",), ("mat2",))


def _blas(name: str, *, right_operand: int | None = None, **facts: Any) -> None:
    binding = {"binding": getattr(torch, name)}
    called = {"out": "out", "takes_any_strides": True, "right_operand": right_operand}
    family(name, kind=Kind.MATMUL, overloads={"default": called | binding, "out": binding}, **facts)


_blas("mm", right_operand=1, linear_in=_OF_MATRICES)
_blas("addmm", right_operand=2, shape_functions={torch.addmm: shape_functions.addmm})
_blas("bmm", linear_in=_OF_MATRICES)
_blas("baddbmm")
family("mv", kind=Kind.MATMUL, linear_in=(("self",), ("vec",)))
family("dot", kind=Kind.MATMUL, linear_in=(("self",), ("tensor",)))
families("matmul addmv addbmm vdot outer chain_matmul linalg_multi_dot bilinear _trilinear", kind=Kind.MATMUL)
families("_scaled_mm _grouped_mm _int_mm", kind=Kind.MATMUL)
family("addr", kind=Kind.MATMUL, decompose=True)
family("linear", kind=Kind.MATMUL, shape_functions={F.linear: shape_functions.linear})
families("tensordot inner einsum", kind=Kind.MATMUL, size_one_question="whether a contracted extent is 1")

# oneDNN's own format of what an LSTM or GRU keeps for its backward pass.
family("mkldnn_rnn_layer", kind=Kind.OTHER, has_opaque_result=True, needs_grad_mode=True)
