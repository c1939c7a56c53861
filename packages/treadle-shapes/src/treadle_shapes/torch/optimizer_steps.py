"""The fused steps of PyTorch's optimizers, and the check of scaled gradients, as elementwise operations that compilers know.

    torch._fused_adam_([p], [g], [m], [v], [], [step], lr=..., ...)      p, m and v are written, step is read

PyTorch has kernels for them that need numbers for `lr`, and no fake kernels for some of them. On fake tensors the functions here run in
their place. The formulas are those of `torch.optim` (Kingma and Ba 2015, Loshchilov and Hutter 2019, Duchi et al. 2011); numbers are those
of PyTorch's fused CPU kernels (aten/src/ATen/native/cpu/Fused*Kernel.cpp), which compute half-precision tensors in float32. Where
`found_inf` is not zero nothing changes. Like the kernels, the functions leave version counters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
_HALVES = frozenset({torch.float16, torch.bfloat16})


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _scalar(value: Any, like: torch.Tensor) -> Any:
    """A number, or a tensor of one element without dimensions, which takes no part in type promotion."""
    return value.reshape(()).to(like.device) if isinstance(value, torch.Tensor) else value


def _write(target: torch.Tensor, value: torch.Tensor, found_inf: torch.Tensor | None) -> None:
    if found_inf is not None:
        value = torch.where(found_inf.reshape(()).to(target.device) != 0, target, value.to(target.dtype))
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(target):
        target.copy_(value)


def _gradient(gradient: torch.Tensor, scale: torch.Tensor | None, found_inf: torch.Tensor | None) -> torch.Tensor:
    """The gradient without the scale of a `GradScaler`, which is written to where it stands."""
    if scale is None:
        return _wide(gradient)
    value = _wide(gradient) / _scalar(scale, gradient)
    _write(gradient, value, found_inf)
    return value


def _adam(decoupled: bool) -> Any:
    def step(
        params: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        for k, (param, grad, count) in enumerate(zip(params, grads, state_steps, strict=True)):
            p, rate, n = _wide(param), _scalar(lr, param), _scalar(count, param).double()
            g = _gradient(grad, grad_scale, found_inf)
            g = -g if maximize else g
            if weight_decay != 0 and decoupled:
                p = p - p * (rate * weight_decay)
            elif weight_decay != 0:
                g = g + p * weight_decay
            old_m, old_v = _wide(exp_avgs[k]), _wide(exp_avg_sqs[k])
            m = old_m + (g - old_m) * (1 - beta1)
            v = old_v * beta2 + g * g * (1 - beta2)
            largest = torch.maximum(_wide(max_exp_avg_sqs[k]), v) if amsgrad else v
            denominator = largest.sqrt() / (1 - beta2**n).sqrt() + eps
            _write(param, p - (rate / (1 - beta1**n)) * (m / denominator), found_inf)
            _write(exp_avgs[k], m, found_inf)
            _write(exp_avg_sqs[k], v, found_inf)
            if amsgrad:
                _write(max_exp_avg_sqs[k], largest, found_inf)

    return step


fused_adam_ = _adam(decoupled=False)
fused_adamw_ = _adam(decoupled=True)


def fused_sgd_(
    params: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`torch._fused_sgd_` on fake tensors. Raises RuntimeError where buffers are missing, as the kernel does."""
    if momentum != 0 and len(momentum_buffer_list) != len(params):
        raise RuntimeError("Expected momentum_buffer_list.size() == n_tensors to be true, but got false.")
    for k, (param, grad) in enumerate(zip(params, grads, strict=True)):
        p, g = _wide(param), _gradient(grad, grad_scale, found_inf)
        g = -g if maximize else g
        if weight_decay != 0:
            g = g + p * weight_decay
        if momentum != 0:
            old = _wide(momentum_buffer_list[k])
            buffer = g if is_first_step else old * momentum + g * (1 - dampening)
            _write(momentum_buffer_list[k], buffer, found_inf)
            g = g + buffer * momentum if nesterov else buffer
        _write(param, p - g * _scalar(lr, param), found_inf)


def fused_adagrad_(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """`torch._fused_adagrad_` on fake tensors."""
    for param, grad, total, count in zip(params, grads, state_sums, state_steps, strict=True):
        p, g = _wide(param), _gradient(grad, grad_scale, found_inf)
        g = -g if maximize else g
        if weight_decay != 0:
            g = g + p * weight_decay
        rate = _scalar(lr, param) / (1 + (_scalar(count, param).double() - 1) * lr_decay)
        new = _wide(total) + g * g
        _write(param, p - rate * (g / (new.sqrt() + eps)), found_inf)
        _write(total, new, found_inf)


def check_and_unscale_(tensors: Tensors, found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """`torch._amp_foreach_non_finite_check_and_unscale_` on fake tensors.

    Multiply by `inv_scale`, and set `found_inf` to 1 where an element is not finite."""
    for tensor in tensors:
        is_bad = torch.logical_not(torch.isfinite(tensor)).any().to(found_inf.device)
        _write(found_inf, torch.where(is_bad, torch.ones_like(found_inf), found_inf), None)
        _write(tensor, _wide(tensor) * _scalar(inv_scale, tensor), None)
