"""What the trace does with torch's own callables: put in the graph, answer at once, inline, or leave to Python. Tables."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from treadle_tracer.errors import Unsupported
from treadle_tracer.values import unbacked
from treadle_tracer.values.base import FALSE, NONE, TRUE, Constant, Handler, LazyValue, Value
from treadle_tracer.values.builtin_functions import HANDLERS
from treadle_tracer.values.floats import is_float
from treadle_tracer.values.objects import ObjectValue, find_in_mro
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import TensorValue

if TYPE_CHECKING:
    from treadle_tracer.trace.tracer import Tracer

Args = list[Value]
Kwargs = dict[str, Value]

# ---- what goes into the graph

_GRAPH_MODULES = frozenset(
    f"torch._C._{name}" for name in ("nn", "fft", "linalg", "special", "sparse", "nested", "VariableFunctions")
)
_GRAPH_PYTHON_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._lobpcg", "torch._lowrank"})
_NOT_IN_GRAPH = frozenset(
    {
        "boolean_dispatch",
        "handle_torch_function",
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
        "assert_int_or_pair",
        "_overload",
    }
)


def goes_into_graph(obj: Any) -> bool:
    """Whether a call of this callable is one node."""
    if isinstance(obj, (OpOverload, OpOverloadPacket, torch.jit.ScriptFunction)):
        return True
    if isinstance(obj, types.BuiltinFunctionType):
        return obj.__module__ in _GRAPH_MODULES or obj.__qualname__.startswith("_VariableFunctionsClass.")
    if isinstance(obj, types.FunctionType):
        return obj.__module__ in _GRAPH_PYTHON_MODULES and obj.__name__ not in _NOT_IN_GRAPH
    return False


# ---- answered at once


def _always(value: Constant) -> Handler:
    return lambda tx, args, kwargs: value


def _fold(function: Callable[..., Any]) -> Handler:
    return lambda tx, args, kwargs: tx.fold(function, args, kwargs)


def _existing(owner: Any, names: str) -> list[Any]:
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


for _function in [
    *_existing(torch.compiler, "is_compiling is_dynamo_compiling"),
    *_existing(torch._utils, "_is_compiling"),
]:
    HANDLERS[_function] = _always(TRUE)

for _function in [
    *_existing(torch.compiler, "is_exporting"),
    *_existing(torch.jit, "is_scripting is_tracing"),
    *_existing(torch._jit_internal, "is_scripting"),
    *_existing(torch.overrides, "has_torch_function has_torch_function_unary has_torch_function_variadic"),
    *_existing(torch._C, "_has_torch_function _has_torch_function_unary _has_torch_function_variadic _is_tracing"),
]:
    HANDLERS[_function] = _always(FALSE)

HANDLERS[torch._C._get_tracing_state] = _always(NONE)
if hasattr(torch._C, "_is_torch_function_all_disabled"):
    HANDLERS[torch._C._is_torch_function_all_disabled] = _always(FALSE)

_STATE_READS = [
    *_existing(
        torch,
        "is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_enabled get_autocast_dtype "
        "is_autocast_cache_enabled get_autocast_gpu_dtype get_autocast_cpu_dtype is_autocast_cpu_enabled "
        "are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled get_default_device "
        "promote_types can_cast get_num_threads get_float32_matmul_precision is_anomaly_enabled is_warn_always_enabled",
    ),
    *_existing(
        torch._C,
        "_is_torch_function_mode_enabled _get_privateuse1_backend_name _is_autocast_available "
        "_len_torch_function_stack _len_torch_dispatch_stack _get_cudnn_enabled _get_cudnn_benchmark "
        "_get_cudnn_deterministic _get_mkldnn_enabled _get_flash_sdp_enabled _get_math_sdp_enabled "
        "_get_mem_efficient_sdp_enabled _get_cudnn_sdp_enabled _get_cublas_allow_tf32 _get_cudnn_allow_tf32 "
        "_get_nnpack_enabled _get_accelerator _is_flash_attention_available _has_mkldnn "
        "_get_deterministic_algorithms _log_api_usage_once _is_torch_function_enabled _get_default_device "
        "_is_default_mobile_cpu_allocator_set",
    ),
    *_existing(torch.cuda, "is_available device_count is_bf16_supported is_initialized is_current_stream_capturing"),
    *_existing(torch.backends.mps, "is_available"),
    *_existing(sys.modules.get("torch.distributed"), "is_available is_initialized"),
    *_existing(torch.amp, "is_autocast_available"),
    *_existing(torch.accelerator, "is_available current_accelerator"),
]
for _function in _STATE_READS:
    HANDLERS[_function] = _fold(_function)


# ---- global state that the traced program changes


class StateSetter:
    """A setter of thread-wide torch state: how to read the present value for the same leading arguments."""

    def __init__(self, read: Callable[..., Any], keys: int = 0):
        self.read = read
        self.keys = keys


def _setter_table() -> dict[Any, StateSetter]:
    table: dict[Any, StateSetter] = {torch._C._set_grad_enabled: StateSetter(torch.is_grad_enabled)}
    table[torch.set_autocast_enabled] = StateSetter(torch.is_autocast_enabled, keys=1)
    table[torch.set_autocast_dtype] = StateSetter(torch.get_autocast_dtype, keys=1)
    table[torch.set_autocast_cache_enabled] = StateSetter(torch.is_autocast_cache_enabled)
    return table


STATE_SETTERS = _setter_table()


def set_state(tx: Tracer, setter: Any, args: Args) -> Value:
    """Change the state for the rest of the trace, and in the graph; nothing if it is so already."""
    info = STATE_SETTERS[setter]
    plain = [arg.constant() for arg in args]
    keys, value = plain[: info.keys], plain[info.keys]
    before = info.read(*keys)
    if before == value:
        return NONE
    tx.change_state(setter, tuple(keys), before, value)
    return NONE


for _setter in STATE_SETTERS:
    HANDLERS[_setter] = lambda tx, args, kwargs, setter=_setter: set_state(tx, setter, args)


def _nesting(step: int) -> Handler:
    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        tx.autocast_nesting += step
        return Constant(tx.autocast_nesting)

    return run


HANDLERS[torch.autocast_increment_nesting] = _nesting(1)
HANDLERS[torch.autocast_decrement_nesting] = _nesting(-1)
HANDLERS[torch.clear_autocast_cache] = _always(NONE)


# ---- checks


def _check(error: type) -> Handler:
    return lambda tx, args, kwargs: unbacked.check(tx, args[0] if args else kwargs["cond"], error)


for _name, _error in {
    "_check": RuntimeError,
    "_check_index": IndexError,
    "_check_value": ValueError,
    "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
}.items():
    for _function in _existing(torch, _name):
        HANDLERS[_function] = _check(_error)


def _check_with(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return unbacked.check(tx, args[1] if len(args) > 1 else kwargs["cond"], args[0].constant())


def _constrain(lowest: int | None) -> Handler:
    """`torch.sym_constrain_range(number, min=, max=)` and its like; `lowest`: what holds without being said."""

    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        given = {name: value.constant() for name, value in kwargs.items() if name in ("min", "max")}
        lower = lowest if given.get("min") is None else given["min"]
        return unbacked.constrain(tx, args[0] if args else kwargs["size"], lower, given.get("max"))

    return run


HANDLERS[torch._check_with] = _check_with
for _function in _existing(torch, "_check_is_size sym_constrain_range_for_size"):
    HANDLERS[_function] = _constrain(0)
for _function in _existing(torch, "sym_constrain_range"):
    HANDLERS[_function] = _constrain(None)


# ---- left to Python


def _leave(code: str) -> Handler:
    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        raise Unsupported(code, ", ".join(arg.describe() for arg in args[:2]))

    return run


for _function in [
    *_existing(
        torch,
        "manual_seed seed initial_seed set_rng_state get_rng_state save load set_default_dtype set_num_threads compile",
    ),
    *_existing(torch.cuda, "manual_seed synchronize"),
    *_existing(torch.random, "fork_rng"),
    *_existing(torch, "from_numpy frombuffer"),
    *_existing(torch.compiler, "disable allow_in_graph"),
]:
    HANDLERS[_function] = _leave("global-state")


def _apply(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """`Function.apply`: without gradients it is its forward."""
    cls, *rest = args
    needs_gradient = torch.is_grad_enabled() and any(
        isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in (*rest, *kwargs.values())
    )
    if needs_gradient or tx.lookup(cls.constant(), "setup_context") is not _NO_SETUP_CONTEXT:
        raise Unsupported("autograd-function", cls.describe())
    context = ObjectValue(_Context)
    return tx.call(tx.get_attr(cls, "forward"), [context, *rest], kwargs)


class _Context:
    """Stands for the context of an autograd function whose backward is never run."""

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


_NO_SETUP_CONTEXT = find_in_mro(torch.autograd.Function.__mro__, "setup_context")[0]
HANDLERS[torch.autograd.Function.apply.__func__] = _apply  # type: ignore[attr-defined]
HANDLERS[torch.autograd.backward] = _leave("autograd-call")
HANDLERS[torch.autograd.grad] = _leave("autograd-call")


def _checkpoint(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """Activation checkpointing computes the same; what is recomputed is for the graph's partitioner to decide."""
    own = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
    return tx.call(args[0], args[1:], {name: value for name, value in kwargs.items() if name not in own})


# ---- tensors of dynamic floats and of numbers known only at run time, which torch's constructors would read as plain ones


def _tensor_of_numbers(function: Callable[..., Any]) -> Handler:
    """torch.tensor(f) -> torch.full((), f);  torch.tensor([f, 2.0]) -> torch.stack of such"""

    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        items = args[0].unpack(tx) if len(args) == 1 and isinstance(args[0], (ListValue, TupleValue)) else args
        items = [item.force(tx) if isinstance(item, LazyValue) else item for item in items]
        kinds = {item.python_type() for item in items}
        dynamic = any(is_float(item) or unbacked.is_run_time(tx, item) for item in items) and kinds <= {
            int,
            float,
            bool,
        }
        if len(args) != 1 or not dynamic or not kwargs.keys() <= {"dtype", "device"}:
            return tx.run_in_graph("call_function", function, args, kwargs)
        own = torch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
        options = {"dtype": Constant(own), **kwargs}
        if options["dtype"].constant() is None:
            options["dtype"] = Constant(own)
        made = [tx.run_in_graph("call_function", torch.full, [TupleValue(()), item], options) for item in items]
        return made[0] if items == args else tx.run_in_graph("call_function", torch.stack, [ListValue(made)], {})

    return run


for _function in (torch.tensor, torch.as_tensor):
    HANDLERS[_function] = _tensor_of_numbers(_function)


# ---- torch's own compiler, met by name

NAMED: dict[str, Handler] = {
    "torch.utils.checkpoint.checkpoint": _checkpoint,
    "transformers.utils.import_utils.is_torchdynamo_compiling": _always(TRUE),
    "transformers.utils.import_utils.is_torchdynamo_exporting": _always(FALSE),
    "transformers.utils.import_utils.is_jit_tracing": _always(FALSE),
    "transformers.utils.import_utils.is_fx_proxy": _always(FALSE),
    "torch.onnx._internal.torchscript_exporter.utils.is_in_onnx_export": _always(FALSE),
    "torch.onnx.is_in_onnx_export": _always(FALSE),
    "torch.onnx.utils.is_in_onnx_export": _always(FALSE),
    "torch._dynamo.external_utils.is_compiling": _always(TRUE),
    "torch._dynamo.decorators.graph_break": _leave("explicit-break"),
    "torch._dynamo.decorators.mark_static_address": _always(NONE),
    "torch._dynamo.decorators.mark_dynamic": _always(NONE),
    "torch._dynamo.decorators.mark_static": _always(NONE),
    "torch._dynamo.decorators.maybe_mark_dynamic": _always(NONE),
}
"""Handlers of functions in modules the tracer does not import, by module and qualified name."""


def handler_of(obj: Any) -> Handler | None:
    """The handler of a callable, or None."""
    try:
        found = HANDLERS.get(obj)
    except TypeError:  # unhashable
        return None
    if found is None and isinstance(obj, types.FunctionType):
        if _AVAILABILITY.fullmatch(obj.__name__) and obj.__module__.partition(".")[0] in _PROBING_LIBRARIES:
            return _fold(obj)
        return NAMED.get(f"{obj.__module__}.{obj.__qualname__}")
    return found


_AVAILABILITY = re.compile(r"is_\w+_available")
_PROBING_LIBRARIES = frozenset({"transformers", "accelerate", "diffusers", "peft", "timm", "huggingface_hub"})
"""Libraries whose `is_..._available` functions ask which packages are installed, which does not change."""
