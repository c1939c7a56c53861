"""Losses.

Some losses raise for targets that are no class, or for probabilities outside 0 and 1; schemas do not state which. The others and the
backward formulas are decomposed. `binary_cross_entropy` stays whole, because its decomposition would not raise. `nll_loss_forward` is
decomposed into a gather, which raises for the same targets.
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind, Raises

family("smooth_l1_loss", kind=Kind.LOSS, decompose=True, fake_correction="negative beta")
families(
    "mse_loss huber_loss soft_margin_loss binary_cross_entropy_with_logits",
    kind=Kind.LOSS,
    decompose=True,
)
family("nll_loss_forward", kind=Kind.LOSS, raises=Raises.BY_VALUE, decompose=True)
families("nll_loss2d_forward binary_cross_entropy", kind=Kind.LOSS, raises=Raises.BY_VALUE)
_TABLE = {"fake_correction": "connectionist losses"}  # PyTorch has no fake kernel: the sizes depend on the lengths
family("_ctc_loss", kind=Kind.LOSS, raises=Raises.BY_VALUE, overloads={"default": _TABLE, "Tensor": _TABLE})
_LIKE = {"fake_correction": "row-major gradients"}  # PyTorch has no fake kernels for most of these
family("_ctc_loss_backward", kind=Kind.LOSS, overloads={"default": _LIKE, "Tensor": _LIKE})
families("multi_margin_loss_backward multilabel_margin_loss_backward", kind=Kind.LOSS, **_LIKE)
# PyTorch's Python kernels would decompose these two under symbolic sizes.
families("multi_margin_loss multilabel_margin_loss_forward", kind=Kind.LOSS, raises=Raises.BY_VALUE, preserved=True)
families(
    "nll_loss nll_loss2d nll_loss_nd cross_entropy cross_entropy_loss ctc_loss multilabel_margin_loss",
    kind=Kind.LOSS,
    raises=Raises.BY_VALUE,
)
families("l1_loss kl_div", kind=Kind.LOSS)
families(
    """
    mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward nll_loss_backward
    """,
    kind=Kind.LOSS,
    decompose=True,
)
