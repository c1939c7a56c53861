"""Steps of optimizers over lists of tensors, and the check of the gradients that `torch.amp.GradScaler` has scaled."""

from __future__ import annotations

import torch

from treadle_shapes.torch import optimizer_steps
from treadle_shapes.torch.operators.declare import family

for _name, _function in {
    "_fused_adam": optimizer_steps.fused_adam_,
    "_fused_adamw": optimizer_steps.fused_adamw_,
    "_fused_sgd": optimizer_steps.fused_sgd_,
    "_fused_adagrad": optimizer_steps.fused_adagrad_,
    "_amp_foreach_non_finite_check_and_unscale": optimizer_steps.check_and_unscale_,
}.items():
    family(_name, call_forms={getattr(torch, f"{_name}_"): {"fake_function": _function}})
