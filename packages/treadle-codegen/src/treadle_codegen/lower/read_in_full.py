"""Whether every element of a value is certainly computed, though it is not stored: somebody reads it all.

y = x[i]; return y + 1          the sum is stored, so all of y is computed: an index out of range is noticed
y = x[i]; return y[0]           only one element of y would be
y = x[i]; return zeros_like(y)  none
"""

from __future__ import annotations

import torch

from treadle_codegen.lower.lowerings import LOWERINGS

# Views and copies with all elements of their argument.
_KEEPING = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "_unsafe_view.default", "reshape.default", "permute.default", "transpose.int", "t.default"),
        *("squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "clone.default", "_to_copy.default"),
        *("alias.default", "detach.default", "expand.default"),
    )
)
# Lowered operators that read their arguments to the last element and store a result.
_READING = frozenset(
    f"aten.{name}"
    for name in (
        *("_softmax.default", "_log_softmax.default", "_safe_softmax.default", "native_layer_norm.default"),
        *("native_group_norm.default", "_fused_rms_norm.default", "sum.default", "sum.dim_IntList", "mean.default"),
        *("mean.dim", "amax.default", "amin.default", "var.correction", "var_mean.correction"),
    )
)
# Pointwise by name, but what they give does not depend on the elements of the first argument.
_IGNORING = frozenset({"aten.fill.Scalar", "aten.fill.Tensor", "aten.copy.default"})


def is_read_in_full(node: torch.fx.Node) -> bool:
    """Whether some user of the node's result, however many pointwise operators and rearrangements away, reads and stores it all."""
    return any(_reads_all(user) for user in node.users)


def _reads_all(user: torch.fx.Node) -> bool:
    name = str(user.target)
    if user.op == "output" or name in _READING:
        return True
    if name not in LOWERINGS or name in _IGNORING:
        return False
    pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
    return (pointwise or name in _KEEPING) and is_read_in_full(user)
