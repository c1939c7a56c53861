"""Classes 6 and 7: PyTorch's switches, and facts about tensors beyond their metadata."""

from __future__ import annotations

import contextlib
import warnings

import torch
from mutate_runs import check, collect, ones


@contextlib.contextmanager
def switched(setter, value, before):
    setter(value)
    try:
        yield
    finally:
        setter(before)


def number_of_threads():
    def f(x):
        return x * torch.get_num_threads()

    before = torch.get_num_threads()
    with switched(torch.set_num_threads, 1, before):
        yield f, ones()
        torch.set_num_threads(2)
        yield f, ones()


def matmul_precision():
    def f(x):
        return x * len(torch.get_float32_matmul_precision())

    with switched(torch.set_float32_matmul_precision, "highest", torch.get_float32_matmul_precision()):
        yield f, ones()
        torch.set_float32_matmul_precision("medium")
        yield f, ones()


def flash_attention():
    def f(x):
        return x + 1 if torch.backends.cuda.flash_sdp_enabled() else x - 1

    with switched(torch.backends.cuda.enable_flash_sdp, True, torch.backends.cuda.flash_sdp_enabled()):
        yield f, ones()
        torch.backends.cuda.enable_flash_sdp(False)
        yield f, ones()


def math_attention():
    def f(x):
        return x + 1 if torch._C._get_math_sdp_enabled() else x - 1

    with switched(torch.backends.cuda.enable_math_sdp, True, torch.backends.cuda.math_sdp_enabled()):
        yield f, ones()
        torch.backends.cuda.enable_math_sdp(False)
        yield f, ones()


def deterministic():
    def f(x):
        return x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1

    try:
        yield f, ones()
        torch.use_deterministic_algorithms(True)
        yield f, ones()
    finally:
        torch.use_deterministic_algorithms(False)


def deterministic_warn_only():
    def f(x):
        return x + 1 if torch.is_deterministic_algorithms_warn_only_enabled() else x - 1

    try:
        torch.use_deterministic_algorithms(True)
        yield f, ones()
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield f, ones()
    finally:
        torch.use_deterministic_algorithms(False)


def deterministic_debug_mode():
    def f(x):
        return x * (1 + torch.get_deterministic_debug_mode())

    try:
        yield f, ones()
        torch.set_deterministic_debug_mode("warn")
        yield f, ones()
    finally:
        torch.set_deterministic_debug_mode("default")


def anomaly_mode():
    def f(x):
        return x + 1 if torch.is_anomaly_enabled() else x - 1

    yield f, ones()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(check_nan=False):
            yield f, ones()


def warn_always():
    def f(x):
        return x + 1 if torch.is_warn_always_enabled() else x - 1

    with switched(torch.set_warn_always, False, torch.is_warn_always_enabled()):
        yield f, ones()
        torch.set_warn_always(True)
        yield f, ones()


def autocast_dtype_while_off():
    def f(x):
        return x.to(torch.get_autocast_dtype("cpu"))

    before = torch.get_autocast_dtype("cpu")
    try:
        yield f, ones()
        torch.set_autocast_dtype("cpu", torch.float16)
        yield f, ones()
    finally:
        torch.set_autocast_dtype("cpu", before)


def autocast_dtype_used_inside():
    def f(x):
        with torch.autocast("cpu"):
            return x @ x

    before = torch.get_autocast_dtype("cpu")
    try:
        yield f, ones(2, 2)
        torch.set_autocast_dtype("cpu", torch.float16)
        yield f, ones(2, 2)
    finally:
        torch.set_autocast_dtype("cpu", before)


def autocast_cache():
    def f(x):
        return x + 1 if torch.is_autocast_cache_enabled() else x - 1

    with switched(torch.set_autocast_cache_enabled, True, torch.is_autocast_cache_enabled()):
        yield f, ones()
        torch.set_autocast_cache_enabled(False)
        yield f, ones()


def autocast_of_another_device():
    def f(x):
        return x + 1 if torch.is_autocast_enabled("cuda") else x - 1

    with switched(lambda v: torch.set_autocast_enabled("cuda", v), False, False):
        yield f, ones()
        torch.set_autocast_enabled("cuda", True)
        yield f, ones()


def cudnn_switch():
    def f(x):
        return x + 1 if torch.backends.cudnn.enabled else x - 1

    for enabled in (True, False):  # in this way also after torch.testing has frozen the flags
        with torch.backends.cudnn.flags(enabled=enabled):
            yield f, ones()


def cudnn_benchmark():
    def f(x):
        return x + 1 if torch._C._get_cudnn_benchmark() else x - 1

    with switched(torch._C._set_cudnn_benchmark, False, torch._C._get_cudnn_benchmark()):
        yield f, ones()
        torch._C._set_cudnn_benchmark(True)
        yield f, ones()


def mkldnn_switch():
    def f(x):
        return x + 1 if torch._C._get_mkldnn_enabled() else x - 1

    with switched(torch._C._set_mkldnn_enabled, True, torch._C._get_mkldnn_enabled()):
        yield f, ones()
        torch._C._set_mkldnn_enabled(False)
        yield f, ones()


def default_dtype():
    def f(x):
        return x.to(torch.get_default_dtype())

    with switched(torch.set_default_dtype, torch.float32, torch.get_default_dtype()):
        yield f, ones()
        torch.set_default_dtype(torch.float64)
        yield f, torch.ones(2, dtype=torch.float32)


def recursion_limit():
    import sys

    def f(x):
        return x * sys.getrecursionlimit()

    before = sys.getrecursionlimit()
    try:
        yield f, ones()
        sys.setrecursionlimit(before + 100)
        yield f, ones()
    finally:
        sys.setrecursionlimit(before)


# ---- tensors


def storage_offset():
    def f(x):
        return x * (1 + x.storage_offset())

    base = torch.ones(6)
    yield f, base[0:2]
    yield f, base[2:4]


def is_set_to():
    def f(x, y):
        return x + 1 if x.is_set_to(y) else x - 1

    a = torch.ones(2)
    yield f, a, torch.ones(2)
    yield f, a, a.view(2)


def is_view():
    def f(x):
        return x + 1 if x._is_view() else x - 1

    yield f, torch.ones(2)
    yield f, torch.ones(4)[:2]


def base_of_a_view():
    def f(x):
        return x + 1 if x._base is None else x - 1

    yield f, torch.ones(2)
    yield f, torch.ones(4)[:2]


def is_leaf():
    def f(x):
        return x + 1 if x.is_leaf else x - 1

    yield f, torch.ones(2, requires_grad=True)
    yield f, torch.ones(2, requires_grad=True) * 1


def gradient_function():
    def f(x):
        return x + 1 if x.grad_fn is None else x - 1

    yield f, torch.ones(2, requires_grad=True)
    yield f, torch.ones(2, requires_grad=True) * 1


def gradient():
    def f(x):
        return x + 1 if x.grad is None else x - 1

    x = torch.ones(2, requires_grad=True)
    yield f, x
    x.grad = torch.ones(2)
    yield f, x


def address():
    def f(x):
        return x.data_ptr() % 64 + x

    base = torch.ones(64)
    yield f, base[0:2]
    yield f, base[3:5]


def same_address():
    def f(x, y):
        return x + 1 if x.data_ptr() == y.data_ptr() else x - 1

    a = torch.ones(2)
    yield f, a, torch.ones(2)
    yield f, a, a.view(2)


def version():
    def f(x):
        return x * (1 + x._version)

    x = torch.ones(2)
    yield f, x
    x.add_(0)
    yield f, x


def retains_grad():
    def f(x):
        return x + 1 if x.retains_grad else x - 1

    yield f, torch.ones(2, requires_grad=True) * 1
    if torch.is_grad_enabled():
        other = torch.ones(2, requires_grad=True) * 1
        other.retain_grad()
        yield f, other


def is_contiguous():
    def f(x):
        return x + 1 if x.is_contiguous() else x - 1

    yield f, torch.ones(2, 2)
    yield f, torch.ones(2, 2).t()[:, :1].expand(2, 2)


def storage_size():
    def f(x):
        return x * x.untyped_storage().nbytes()

    yield f, torch.ones(2)
    yield f, torch.ones(4)[:2]


def is_pinned_or_shared():
    def f(x):
        return x + 1 if x.is_shared() else x - 1

    yield f, torch.ones(2)
    yield f, torch.ones(2).share_memory_()


def is_inference():
    def f(x):
        return x + 1 if x.is_inference() else x - 1

    yield f, torch.ones(2)
    with torch.inference_mode():
        y = torch.ones(2)
    yield f, y


def hooks():
    def f(x):
        return x + 1 if x._backward_hooks is None else x - 1

    x = torch.ones(2, requires_grad=True)
    yield f, x
    x.register_hook(lambda g: g)
    yield f, x


def requires_grad():
    def f(x):
        return x + 1 if x.requires_grad else x - 1

    yield f, torch.ones(2)
    yield f, torch.ones(2, requires_grad=True)


def unused_result():
    def f(x):
        return x * (1 + (x.storage_offset() > 0))

    base = torch.ones(6)
    yield f, base[0:2]
    yield f, base[2:4]


@collect(
    {name: value for name, value in globals().items() if name not in {"names_of_dimensions", "fill_of_empty_tensors"}}
)
def test_switches(program):
    check(program, breaks=True)


def test_tensors_made_empty_are_filled_where_deterministic_algorithms_fill_them():
    def program():
        def f(x):
            return torch.empty(3) + x, torch.empty_like(x), x.new_empty(3)

        try:
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = True
            yield f, torch.ones(3)
        finally:
            torch.use_deterministic_algorithms(False)

    check(program, compiles=2, breaks=True)
