"""What Python kernels of torch 2.11 and 2.12 ask about symbolic numbers and those of 2.13 no longer do. Needs torch.

- Rounding a pooling's extent down asked whether the remainder is 0, one guard for every size
  (torch/_meta_registrations.py, div_rtn).
- A power asked whether the exponent or base is 1, 2 or 0.5, to take a short cut (torch/_refs/__init__.py, pow).

Both answers are for plain numbers what they were.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat)


def _general_power(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, but without its short cuts when a number is symbolic; dtypes and broadcasting are those of torch's own references."""
    from torch import _prims, _refs
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

    @_refs._make_elementwise_binary_reference(
        type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.BOOL_TO_LONG, aten_op=None, name="pow"
    )
    def general(a: Any, b: Any) -> Any:
        return _prims.pow(a, b)

    def power(a: Any, b: Any, *, out: Any = None) -> Any:
        chosen: Any = general if isinstance(a, _SYMBOLIC) or isinstance(b, _SYMBOLIC) else original
        return chosen(a, b, out=out)

    return power


def _ask_nothing_of_powers() -> None:
    from torch._decomp import decomposition_table

    aten = torch.ops.aten.pow
    for overload in (aten.Tensor_Scalar, aten.Scalar):
        power = _general_power(decomposition_table[overload])
        decomposition_table[overload] = power
        overload.py_kernels[torch._C.DispatchKey.Meta] = power
        overload._dispatch_cache.clear()


def install() -> None:
    """Replace both in a torch before 2.13; nothing in a later one."""
    if torch.__version__ >= "2.13":
        return
    import torch._meta_registrations as meta

    meta.div_rtn = operator.floordiv
    _ask_nothing_of_powers()
