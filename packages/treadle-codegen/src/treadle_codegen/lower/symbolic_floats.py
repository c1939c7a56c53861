"""Which lowerings take a float that is known only when the graph runs, in place of a number."""

from __future__ import annotations

from typing import Any

from treadle_shapes.floats import FloatExpr


def _names() -> frozenset[str]:
    both = "add sub rsub mul div eq ne lt le gt ge remainder fmod floor_divide copysign masked_fill fill".split()
    one = (
        "clamp clamp_min clamp_max hardtanh clip addcmul addcdiv elu softplus leaky_relu threshold hardshrink "
        "softshrink full full_like new_full scalar_tensor"
    ).split()
    names = {f"aten.{name}.{kind}" for name in both for kind in ("Tensor", "Scalar")}
    names |= {f"aten.{name}.default" for name in one}
    names |= {"aten.true_divide.Tensor", "aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.remainder.Scalar_Tensor"}
    names |= {"aten.pow.Scalar", "aten.lerp.Scalar"}
    names |= {f"aten.where.{kind}" for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")}
    return frozenset(names)


TAKE_FLOATS = _names()
"""Their result does not depend on the value in any way but through arithmetic in the loop (`pow` of a tensor, say, does)."""


def why_not_float(name: str, args: Any, kwargs: dict[str, Any]) -> str | None:
    """Why the operator `name` with these arguments is called through ATen, which gets the float itself; None if it need not."""
    if name not in TAKE_FLOATS and (any(map(_holds_float, args)) or any(map(_holds_float, kwargs.values()))):
        return f"the lowering of {name} looks at the value of a float"
    return None


def _holds_float(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_float, value))
    return isinstance(value, FloatExpr)
