"""The default dtype, the kernels of attention and autocast, set by compiled functions."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled, item
from torch.nn.attention import SDPBackend, sdpa_kernel

attend = torch.nn.functional.scaled_dot_product_attention


def one_kernel(x):
    with sdpa_kernel(SDPBackend.MATH):
        y = attend(x, x, x)
    return y + attend(x, x, x, is_causal=True)


def some_kernels(x):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        inside = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
    return attend(x, x, x), inside, torch.backends.cuda.mem_efficient_sdp_enabled()


def kernels_as_values(x):
    return (
        x + {SDPBackend.MATH: 3}[SDPBackend.MATH],
        SDPBackend.FLASH_ATTENTION,
        int(SDPBackend.MATH),
        SDPBackend.MATH.name,
    )


def another_dtype(x):
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.ones(3) + torch.tensor(1.5)
    finally:
        torch.set_default_dtype(torch.float32)
    return x.sum() + y, torch.zeros(1)


def a_dtype_that_stays(x):
    torch.set_default_dtype(torch.float16)
    return torch.arange(3.0) / 2, torch.get_default_dtype()


def no_dtype_for_it(x):
    try:
        torch.set_default_dtype(torch.int32)
    except TypeError as error:
        return x, str(error)


def a_dtype_across_a_break(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    torch._dynamo.graph_break()
    y = y + torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return x.sum() + y


def without_cudnn(x):
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        y = torch.nn.functional.batch_norm(x.view(1, 2, -1), None, None, training=True)
        inside = torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic
    return y + 1, inside, torch.backends.cudnn.enabled


def an_exception_inside(x):
    with sdpa_kernel(SDPBackend.MATH):
        attend(x, x, x)
        raise ValueError("inside")


def _state():
    names = ("flash", "math", "mem_efficient", "cudnn", "overrideable")
    cudnn = torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic
    return torch.get_default_dtype(), cudnn, [getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in names]


def _outcome(function, x):
    try:
        result = function(x)
        seen = [(part.dtype, part.tolist()) if isinstance(part, torch.Tensor) else part for part in result]
    except ValueError as error:
        seen = [str(error)]
    finally:
        state = _state()
        torch.set_default_dtype(torch.float32)
    return seen, state


WHOLE = (without_cudnn, one_kernel, some_kernels, kernels_as_values, another_dtype, a_dtype_that_stays, no_dtype_for_it)


@pytest.mark.parametrize(
    "program", (*WHOLE, a_dtype_across_a_break, an_exception_inside), ids=lambda program: program.__name__
)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        x = torch.randn(1, 2, 4, 8)
        assert _outcome(run, x) == _outcome(program, x)
    assert bool(said.breaks or said.skips) == (program not in WHOLE)


def test_the_dtype_of_the_caller_is_guarded():
    run, _ = compiled(another_dtype)
    run(torch.ones(3))
    torch.set_default_dtype(torch.float64)
    try:
        found, zeros = run(torch.ones(3, dtype=torch.float32))
        assert (found.dtype, zeros.dtype, torch.get_default_dtype()) == (torch.float64, torch.float32, torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("broken", [False, True])
def test_casts_of_weights_end_with_autocast(broken):
    """Else a backend that runs graphs in eager, and eager afterwards, use the casts that autocast has kept of older weights."""
    weight = torch.ones(3, 3, requires_grad=True)

    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ weight
            if broken:
                item(y.sum())  # breaks the graph
            return y + 0 * (x @ weight)

    fn, _ = compiled(program)
    for scale, run in ((1.0, fn), (2.0, fn), (3.0, program)):
        with torch.no_grad():
            weight.fill_(scale)
        assert torch.equal(run(torch.ones(2, 3)), torch.full((2, 3), 3 * scale, dtype=torch.bfloat16))
