"""Operators that compute each element of the result from the elements at the same index.

ATen's tag `pointwise` marks most of them. It does not state which are expensive, which refuse a number argument that a dtype cannot hold,
and that integer division raises for a zero divisor. PyTorch's Python kernels decompose `hardshrink` and `softshrink` under symbolic
sizes. Backward formulas and compound functions are decomposed, because their parts have lowerings and fuse.
"""

from __future__ import annotations

import operator

import torch

from treadle_shapes.torch import fake_kernels
from treadle_shapes.torch import shape_functions as sf
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Cost, Kind, Raises

F = torch.nn.functional

# -- arithmetic --------------------------------------------------------------------------------------------------------

_ARITHMETIC = sf.binary(sf.number_type)
_ARITHMETIC_REFLECTED = sf.binary(sf.number_type, reflects=True)
_QUOTIENT = sf.binary(sf.float_type)
_BITS = sf.binary(sf.bit_type)
_BITS_REFLECTED = sf.binary(sf.bit_type, reflects=True)
_SUM = (("self", "other"),)
_BESIDE_NUMBER = {"fake_correction": "layouts beside numbers"}
# The overloads of a binary operator of which an operand may be a number.
_NUMBERS = dict.fromkeys(("Tensor", "Scalar"), _BESIDE_NUMBER)

family(
    "add",
    kind=Kind.POINTWISE,
    linear_in=_SUM,
    held_by_result=("alpha",),
    overloads=_NUMBERS,
    shape_functions={**dict.fromkeys(("add", torch.add), _ARITHMETIC), operator.add: _ARITHMETIC_REFLECTED},
)
family(
    "sub",
    kind=Kind.POINTWISE,
    linear_in=_SUM,
    held_by_result=("alpha",),
    overloads=_NUMBERS,
    shape_functions={**dict.fromkeys(("sub", torch.sub), _ARITHMETIC), operator.sub: _ARITHMETIC_REFLECTED},
)
family(
    "rsub",
    kind=Kind.POINTWISE,
    held_by_result=("alpha",),
    linear_in=_SUM,
    overloads={**_NUMBERS, "Tensor": {"iterates": False, **_BESIDE_NUMBER}},  # over the operands in the other order
)
family(
    "mul",
    kind=Kind.POINTWISE,
    linear_in=(("self",), ("other",)),
    overloads=_NUMBERS,
    shape_functions={**dict.fromkeys(("mul", torch.mul), _ARITHMETIC), operator.mul: _ARITHMETIC_REFLECTED},
)
family(
    "div",
    kind=Kind.POINTWISE,
    also="true_divide divide",
    raises=Raises.BY_ZERO_DIVISOR,
    # The other overloads round.
    overloads={name: {"linear_in": (("self",),), **_BESIDE_NUMBER} for name in _NUMBERS},
    shape_functions={
        **dict.fromkeys(("div", "true_divide", torch.div, torch.true_divide), _QUOTIENT),
        operator.truediv: sf.binary(sf.float_type, reflects=True),
    },
)
family("floor_divide", kind=Kind.POINTWISE, raises=Raises.BY_ZERO_DIVISOR)
families("copysign xlogy", kind=Kind.POINTWISE)
families("remainder fmod", kind=Kind.POINTWISE, raises=Raises.BY_ZERO_DIVISOR, overloads=_NUMBERS)
family(
    "pow",
    kind=Kind.POINTWISE,
    overloads={"Scalar": {"is_row_major": True}},
    cost=Cost.TRANSCENDENTAL,
    shape_functions=dict.fromkeys(("pow", torch.pow, operator.pow), sf.power),
)
family(
    "neg",
    kind=Kind.POINTWISE,
    linear_in=(("self",),),
    shape_functions=dict.fromkeys(("neg", torch.neg, operator.neg), sf.unary(sf.number_type)),
)
families("addcmul addcdiv", kind=Kind.POINTWISE, held_by_compute=("value",))
family("lerp", kind=Kind.POINTWISE, held_by_compute=("weight",), decompose=True)

# -- comparisons and bits ----------------------------------------------------------------------------------------------

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    family(
        _name,
        kind=Kind.POINTWISE,
        is_speculatable=True,
        overloads=_NUMBERS,
        shape_functions={
            **dict.fromkeys((_name, getattr(torch, _name)), sf.binary(lambda dtype: torch.bool)),
            getattr(operator, _name): sf.binary(lambda dtype: torch.bool, reflects=True),
        },
    )
for _name in ("and", "or"):
    family(
        f"bitwise_{_name}",
        kind=Kind.POINTWISE,
        shape_functions={
            getattr(torch, f"bitwise_{_name}"): _BITS,
            getattr(operator, f"{_name}_"): _BITS_REFLECTED,
        },
    )
families("logical_and logical_or logical_xor", kind=Kind.POINTWISE)
# With one argument it is `nonzero`.
family("where", kind=Kind.POINTWISE, is_speculatable=True, linear_in=_SUM)
family("masked_fill", kind=Kind.POINTWISE, iterates=False, held_by_result=("value",), linear_in=(("self", "value"),))

# -- functions of one argument -----------------------------------------------------------------------------------------

for _name in "exp log rsqrt tanh sigmoid sin cos erf".split():
    family(
        _name,
        kind=Kind.POINTWISE,
        cost=Cost.TRANSCENDENTAL,
        shape_functions=dict.fromkeys((_name, getattr(torch, _name)), sf.unary(sf.float_type)),
    )
family(
    "sqrt",
    kind=Kind.POINTWISE,
    shape_functions=dict.fromkeys(("sqrt", torch.sqrt), sf.unary(sf.float_type)),
)
families(
    """
    exp2 expm1 log2 log10 log1p tan asin acos atan atan2 sinh cosh asinh acosh atanh erfc erfinv lgamma digamma polygamma
    sinc i0 logit igamma igammac mish special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_erfcx special_i0e special_i1 special_i1e special_ndtri
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_zeta
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
    """,
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
)
families(
    """
    mvlgamma special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l
    special_legendre_polynomial_p
    """,
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    iterates=False,
)
family(
    "sgn",
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    call_forms={form: {"fake_function": fake_kernels.sgn} for form in (torch.sgn, "sgn")},
)
family("logaddexp", kind=Kind.POINTWISE, cost=Cost.TRANSCENDENTAL)
families(
    "special_xlog1py special_entr special_log_ndtr logaddexp2 float_power",
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    decompose=True,
)
# The decomposition, a product with a power of 2, is 0 or infinity where the exponent alone is too large.
family("ldexp", kind=Kind.POINTWISE, cost=Cost.TRANSCENDENTAL, iterates=False)
family("heaviside", kind=Kind.POINTWISE, decompose=True)
families("deg2rad rad2deg", kind=Kind.POINTWISE, like_first_argument=True, decompose=True, iterates=False)
family("nan_to_num", kind=Kind.POINTWISE, iterates=False, like_first_argument=True, decompose=True)
family("angle", kind=Kind.POINTWISE, fake_kernel=fake_kernels.angle)
family("frexp", kind=Kind.POINTWISE, like_first_argument=True)
family("clamp", kind=Kind.POINTWISE, held_by_result=("min", "max"))
family("clamp_min", kind=Kind.POINTWISE, held_by_result=("min",))
family("clamp_max", kind=Kind.POINTWISE, held_by_result=("max",))

# -- activations -------------------------------------------------------------------------------------------------------

family(
    "gelu",
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    shape_functions={F.gelu: sf.gelu},
)
family(
    "relu",
    kind=Kind.POINTWISE,
    shape_functions={F.relu: sf.activation, **dict.fromkeys((torch.relu, "relu"), sf.unary(sf.float_type))},
)
family("silu", kind=Kind.POINTWISE, cost=Cost.TRANSCENDENTAL, shape_functions={F.silu: sf.activation})
families("hardswish hardsigmoid", kind=Kind.POINTWISE)
family("_prelu_kernel", kind=Kind.POINTWISE, iterates=False)
family("rrelu_with_noise", kind=Kind.POINTWISE, iterates=False, is_row_major=True)
family("log_sigmoid_forward", kind=Kind.POINTWISE, fake_kernel=fake_kernels.log_sigmoid_forward)
family("rrelu_with_noise_functional", kind=Kind.RANDOM, decompose=True)
family("glu", kind=Kind.POINTWISE, cost=Cost.TRANSCENDENTAL, decompose=True)
family(
    "celu",
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    held_by_compute=("alpha",),
    decompose=True,
    fake_correction="no alpha",
)
family(
    "elu",
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    held_by_compute=("alpha", "scale", "input_scale"),
)
family(
    "softplus",
    kind=Kind.POINTWISE,
    cost=Cost.TRANSCENDENTAL,
    held_by_compute=("beta", "threshold"),
)
family("leaky_relu", kind=Kind.POINTWISE, held_by_compute=("negative_slope",))
family("hardtanh", kind=Kind.POINTWISE, like_first_argument=True, iterates=False, held_by_result=("min_val", "max_val"))
family("threshold", kind=Kind.POINTWISE, held_by_result=("value",), held_by_compute=("threshold",))
family("hardshrink", kind=Kind.POINTWISE, held_by_compute=("lambd",), preserved=True)
family("softshrink", kind=Kind.POINTWISE, preserved=True)
# The general code also broadcasts a single slope.
family("prelu", kind=Kind.POINTWISE, size_one_question="whether there is one slope")

families(
    """
    gelu_backward silu_backward hardswish_backward hardsigmoid_backward hardtanh_backward
    elu_backward mish_backward softplus_backward sigmoid_backward tanh_backward
    glu_backward native_dropout_backward
    """,
    kind=Kind.POINTWISE,
    decompose=True,
    linear_in=(("grad_output",), ("grad_out",)),
)
for _name in ("hardshrink_backward", "softshrink_backward"):
    family(
        _name,
        kind=Kind.POINTWISE,
        fake_kernel=getattr(fake_kernels, _name),
        linear_in=(("grad_output",), ("grad_out",)),
    )
families(
    "leaky_relu_backward threshold_backward",
    kind=Kind.POINTWISE,
    decompose=True,
    iterates=False,
    linear_in=(("grad_output",),),
)
# PyTorch's Python kernel, which would decompose it under symbolic sizes, asks whether there are elements.
family(
    "log_sigmoid_backward",
    kind=Kind.POINTWISE,
    decompose=True,
    preserved=True,
    fake_kernel=fake_kernels.log_sigmoid_backward,
    iterates=False,
    linear_in=(("grad_output",),),
)

# -- quantisation ------------------------------------------------------------------------------------------------------

# The zero points must lie in the range of the quantised numbers.
family("fake_quantize_per_channel_affine_cachemask", kind=Kind.POINTWISE, raises=Raises.BY_VALUE)
