"""Guards on tensor metadata and on torch's global state.

Metadata is read through the C ABI of libtorch_cpu (`tensor_abi`). Where that cannot be used, or a tensor is not strided, a Python check
does the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..below_autograd import AUTOGRAD, VIEWS, is_excluded
from ..dynamic import Chain, DynamicSizes, StrideRule, stride_rules
from ..source import Path
from ..tensor_abi import QUERIES, address_of, ask_tensor, handle_offset
from .outside_devices import active_devices, devices_outside, has_other_modes
from .tensor_image import image_of

TensorCheck = tuple[Path, str, Any, str]  # accessors after the tensor's own source, op, argument, text


def checks(
    tensor: torch.Tensor, dynamic_dims: tuple[int, ...] = (), free_strides: tuple[int, ...] = ()
) -> list[TensorCheck]:
    """The checks that recognise a tensor of the same metadata.

    Sizes of `dynamic_dims` may be anything but 0 (`dynamic.SizesGuard` checks more), and strides follow `dynamic.stride_rules`.
    """
    rules = stride_rules(tensor, dynamic_dims, free_strides) if dynamic_dims or free_strides else None
    sizes = tuple(None if d in dynamic_dims else int(s) for d, s in enumerate(tensor.shape))
    found = [_metadata_check(tensor, sizes, rules)]
    if rules is not None and found[0][1] != "native_tensor":
        text = f"sizes of dimensions {list(dynamic_dims)} are at least 1, and the strides follow"
        found.append(((), "call", DynamicSizes(dynamic_dims, rules), text))
    text = f"requires_grad is {tensor.requires_grad}"
    found.append(((("attr", "requires_grad"),), "is", tensor.requires_grad, text))
    if tensor.dtype.is_complex:
        found.append(((("apply", torch.Tensor.is_conj),), "is", tensor.is_conj(), f"is_conj() is {tensor.is_conj()}"))
    if type(tensor) is not torch.nn.Parameter and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        found.append(((("apply", torch.Tensor.is_neg),), "is", tensor.is_neg(), f"is_neg() is {tensor.is_neg()}"))
    if (
        tensor.is_inference() or not torch.is_inference_mode_enabled()
    ):  # outside of that mode writes to such tensors raise
        text = f"is_inference() is {tensor.is_inference()}"
        found.append(((("apply", torch.Tensor.is_inference),), "is", tensor.is_inference(), text))
    return found


def _metadata_check(
    tensor: torch.Tensor, sizes: tuple[int | None, ...], rules: tuple[StrideRule, ...] | None
) -> TensorCheck:
    """sizes: None for a dynamic one; rules: of the strides, where sizes are dynamic."""
    text = metadata_text(tensor, sizes)
    if tensor.layout is not torch.strided or handle_offset() is None:
        return ((), "call", PythonMetadata(tensor, sizes, any_strides=rules is not None), text)
    import treadle_frame

    offset = handle_offset()
    assert offset is not None
    expected = {
        "dtype": ask_tensor(tensor, "dtype"),
        "dim": tensor.dim(),
        "sizes": tuple((1, None) if s is None else s for s in sizes),
        "strides": tuple(int(s) for s in tensor.stride()) if rules is None else None,
        "device_type": ask_tensor(tensor, "device_type"),
        "device_index": tensor.device.index if tensor.device.index is not None else -1,
        "layout": ask_tensor(tensor, "layout"),
        # Tensors of zeros without memory and functional wrappers have the same metadata and no address.
        "data_ptr": (1, None) if tensor.numel() and ask_tensor(tensor, "data_ptr") else None,
    }
    queries = [
        (address_of(name), QUERIES[name][1], wanted)
        for name, wanted in expected.items()
        if wanted is not None and wanted != ()  # a scalar has neither sizes nor strides
    ]
    if rules:
        layout = tuple((1, None) if rule is None else _as_expected(rule) for rule in rules)
        queries.append((address_of("strides"), "layout", (address_of("sizes"), layout)))
    image = image_of(tensor, offset, expected["data_ptr"] is not None)
    return ((), "native_tensor", treadle_frame.NativeTensorCheck(type(tensor), offset, tuple(queries), image), text)


def _as_expected(rule: int | Chain) -> int | tuple[int]:
    """A rule as an element of a `layout` query."""
    return (rule.inner,) if isinstance(rule, Chain) else rule


Range = tuple[int | None, int | None]


def with_ranges(check: Any, sizes: Sequence[Range | None], strides: Sequence[Range | None]) -> Any:
    """A `native_tensor` check with new ranges of its dynamic sizes and free strides; None keeps a range."""
    address = address_of("sizes")

    def changed(expected: Any, ranges: Sequence[Range | None]) -> tuple[Any, ...]:
        return tuple(new or old for new, old in zip(ranges, expected, strict=True))

    def query(asked: Any) -> Any:
        function, kind, expected = asked
        if kind == "layout":
            return (function, kind, (expected[0], changed(expected[1], strides)))
        return (function, kind, changed(expected, sizes)) if function == address else asked

    return check._replace(arg=check.arg._replace(queries=tuple(map(query, check.arg.queries))))


def equal_sizes_check(checks: Sequence[Any], pairs: Sequence[tuple[int, int, int, int]], text: str) -> Any:
    """A check that sizes of tensors are equal.

    checks: the `native_tensor` check of each tensor; pairs: (tensor, dim, other tensor, dim).
    """
    import treadle_frame

    offset = handle_offset()
    assert offset is not None
    kinds = tuple(dict.fromkeys(check.arg.type for check in checks))
    spec = treadle_frame.EqualItems(kinds, offset, address_of("dim"), address_of("sizes"), tuple(pairs))
    first, *others = (check.path for check in checks)
    return treadle_frame.Check(first, "equal_items", (spec, tuple(others)), text)


def metadata_text(tensor: torch.Tensor, sizes: Sequence[int | None]) -> str:
    """`float32[2, s, 4] on cpu, strides (..)` for messages."""
    shape = ", ".join("?" if s is None else str(s) for s in sizes)
    strides = f", strides {tuple(tensor.stride())}" if tensor.layout is torch.strided else f", {tensor.layout}"
    return f"{type(tensor).__name__} {str(tensor.dtype).removeprefix('torch.')}[{shape}] on {tensor.device}{strides}"


class PythonMetadata:
    """Guard callable: the same checks as the C ones, in Python."""

    __slots__ = ("any_strides", "device", "dtype", "kind", "layout", "sizes", "strides")

    def __init__(self, tensor: torch.Tensor, sizes: tuple[int | None, ...], any_strides: bool):
        self.kind = type(tensor)
        self.dtype, self.device, self.layout = tensor.dtype, tensor.device, tensor.layout
        self.sizes = sizes
        self.any_strides = any_strides or tensor.layout is not torch.strided
        self.strides = None if self.any_strides else tuple(tensor.stride())

    def __call__(self, value: Any) -> bool:
        return (
            type(value) is self.kind
            and value.dtype is self.dtype
            and value.layout is self.layout
            and value.device == self.device
            and len(value.shape) == len(self.sizes)
            and all(want is None or want == have for want, have in zip(self.sizes, value.shape, strict=True))
            and (self.any_strides or tuple(value.stride()) == self.strides)
        )


# ---- global state

_AUTOCAST_DEVICES = ("cpu", "cuda")


def _autocast_state() -> tuple[Any, ...]:
    if not torch._C._is_any_autocast_enabled():
        return ()
    devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES]
    return (*devices, torch.is_autocast_cache_enabled())


def why_global_state_unfit() -> str | None:
    """Why nothing can be traced or run under torch's current state: an active mode sees every torch call."""
    if has_other_modes() or not torch._C._is_torch_function_enabled():
        return "a torch function mode is active"
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if torch._C._is_tracing():
        return "torch.jit.trace records the operators"
    if is_excluded(VIEWS):
        return "PyTorch keeps no account of views and writes"
    return None


class GlobalState:
    """Guard callable: torch's thread-local and global switches are what they were when this object was made."""

    __slots__ = ("check", "text")

    def __init__(self) -> None:
        grad = torch.is_grad_enabled()
        inference = torch.is_inference_mode_enabled()
        dtype = torch.get_default_dtype()
        deterministic = torch.are_deterministic_algorithms_enabled()
        autocast = _autocast_state()
        devices = devices_outside()
        modes = f"default devices {list(map(str, devices))}" if devices else "no torch modes"
        # Autograd sees no operator in inference mode, and in kernels that PyTorch calls (of custom operators, `__torch_dispatch__`). Only
        # there PyTorch leaves out what keeps account of views and writes, too.
        excluded, autograd, views = is_excluded, AUTOGRAD, VIEWS
        is_below = excluded(autograd)
        self.text = (
            f"grad mode {'on' if grad else 'off'}, inference mode {'on' if inference else 'off'}, default dtype {dtype}, "
            f"deterministic algorithms {'on' if deterministic else 'off'}, autocast {autocast or 'off'}, {modes}"
        )
        if is_below and not inference:
            self.text += ", below autograd"
        is_grad, is_inference, get_dtype = (
            torch.is_grad_enabled,
            torch.is_inference_mode_enabled,
            torch.get_default_dtype,
        )
        is_deterministic, any_autocast = torch._C._get_deterministic_algorithms, torch._C._is_any_autocast_enabled
        function_modes, dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
        functorch, functions_enabled = torch._C._functorch.peek_interpreter_stack, torch._C._is_torch_function_enabled
        is_traced = torch._C._is_tracing
        with_autocast = bool(autocast)
        number_of_modes = len(devices)

        # Called on every run of compiled code: local names, no container, the likeliest change first.
        def check(_: Any) -> bool:
            return (
                is_grad() is grad
                and excluded(autograd) is is_below
                and any_autocast() is with_autocast
                and get_dtype() is dtype
                and is_deterministic() is deterministic
                and function_modes() == number_of_modes
                and not dispatch_modes()
                and functions_enabled()
                and functorch() is None
                and forward_ad._current_level < 0
                and not is_traced()
                and (not with_autocast or _autocast_state() == autocast)
                and (not is_below or (is_inference() is inference and not excluded(views)))
                and (not number_of_modes or (not has_other_modes() and active_devices() == devices))
            )

        self.check = check

    def __call__(self, value: Any) -> bool:
        return self.check(value)
