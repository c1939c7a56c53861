"""Random numbers.

The tag `nondeterministic_seeded` marks the operators that draw random numbers. Dropout returns its argument when it has nothing to do;
PyTorch's Python kernels copy it.
"""

from __future__ import annotations

from typing import Any

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Cost, ElementUse, Kind, Raises

families(
    "rand_like randn_like randint_like",
    kind=Kind.RANDOM,
    like_first_argument=True,
    element_use=ElementUse.IGNORED,
)
family("poisson", kind=Kind.RANDOM, is_row_major=True)
_ROW_MAJOR: dict[str, Any] = {"is_row_major": True}
_OF_TENSORS = ("Tensor_Tensor", "Tensor_float", "float_Tensor")
family("normal", kind=Kind.RANDOM, overloads=dict.fromkeys(_OF_TENSORS, _ROW_MAJOR))
family("bernoulli", kind=Kind.RANDOM, is_zero_or_one=True)
family("dropout", kind=Kind.RANDOM, may_return_argument=True, python_kernel_copies=True)
families(
    "alpha_dropout feature_dropout feature_alpha_dropout",
    kind=Kind.RANDOM,
    python_kernel_copies=True,
)
family("generator_state", kind=Kind.RANDOM, is_pure=True, cost=Cost.FREE)  # `treadle_shapes.torch.random_replay`
families(  # functions of torch.nn.functional alone, so that no tag of ATen marks them
    "dropout1d dropout2d dropout3d", kind=Kind.RANDOM, is_random=True, is_pure=False, python_kernel_copies=True
)
families(  # `treadle_shapes.torch.generator_states`: functions of a generator's state
    "draw__standard_gamma draw_bernoulli draw_cauchy draw_exponential draw_geometric draw_log_normal draw_multinomial draw_normal "
    "draw_poisson draw_rand draw_rand_like draw_randint draw_randint_like draw_randn draw_randn_like draw_random draw_randperm "
    "draw_uniform fill_bernoulli fill_cauchy fill_exponential fill_geometric fill_log_normal fill_normal fill_random fill_uniform",
    is_pure=True,
    cost=Cost.HEAVY,
    draws_from_state=True,
)
family("seeded_state", is_pure=True, cost=Cost.HEAVY)
family("checked_state", is_pure=True, cost=Cost.HEAVY, raises=Raises.BY_VALUE)
families("seed_default restore_default_state", kind=Kind.RANDOM, is_random=True, is_pure=False)
