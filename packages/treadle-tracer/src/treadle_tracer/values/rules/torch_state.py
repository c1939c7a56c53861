"""Rules of torch's functions that read and set state of the process: grad mode, autocast, which compiler runs, what is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.room import recursion_limit
from treadle_tracer.source import ConstSource
from treadle_tracer.values import random_generators
from treadle_tracer.values.base import FALSE, NONE, Constant, LazyValue, boolean
from treadle_tracer.values.function_overrides import DEFAULT_OVERRIDE, handle, has_override, has_override_among
from treadle_tracer.values.inference_mode import inference_guard
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule, Version, always, breaks, folds, members
from treadle_tracer.values.tensor_subclasses import default_override, overrides_off
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- questions with one answer while compiling

_TRUE = [
    *members("torch.compiler", "is_compiling is_dynamo_compiling"),
    "transformers.utils.import_utils.is_torchdynamo_compiling",
    "torch._dynamo.external_utils.is_compiling",
    "treadle.compiler.is_compiling",
]


def _is_compiling(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    tx.was_told_of_compiling = True
    return boolean(tx.tells_of_compiling)


_FALSE = [
    *members("torch.compiler", "is_exporting"),
    *members("torch.jit", "is_scripting is_tracing"),
    *members("torch._C", "_is_tracing"),
    *members("torch._C", "_is_torch_function_all_disabled"),
]

# ---- state that is read: it is guarded, or the same for the whole life of the process

_FIXED = [
    *members("torch", "promote_types can_cast"),
    *members(
        "torch._C",
        "_is_autocast_available _len_torch_dispatch_stack "
        "_is_flash_attention_available _log_api_usage_once _is_torch_function_enabled _are_functorch_transforms_active",
    ),
    *members("torch.amp", "is_autocast_available"),
]
"""Questions whose answer does not change while the process lives, or which the guard on the global state answers: see GlobalState."""

_IN_GLOBAL_STATE = [
    *members("torch", "is_inference_mode_enabled get_default_dtype are_deterministic_algorithms_enabled"),
    *members("torch._C", "_get_deterministic_algorithms"),
]
"""Switches that every trace relies on, and that the program may set: the trace sets them, too."""

_GET_BENCHMARK_LIMIT = getattr(torch._C, "_cuda_get_cudnn_benchmark_limit", None)  # in builds for CUDA

_SWITCHES = [
    *members(
        "torch",
        "is_autocast_enabled get_autocast_dtype is_autocast_cache_enabled get_autocast_gpu_dtype get_autocast_cpu_dtype "
        "is_autocast_cpu_enabled is_deterministic_algorithms_warn_only_enabled get_num_threads "
        "get_num_interop_threads get_float32_matmul_precision get_deterministic_debug_mode is_warn_always_enabled",
    ),
    *members(
        "torch._C",
        "_get_privateuse1_backend_name _get_cudnn_enabled _get_cudnn_benchmark _get_cudnn_deterministic _get_mkldnn_enabled "
        "_get_flash_sdp_enabled _get_math_sdp_enabled _get_mem_efficient_sdp_enabled _get_cudnn_sdp_enabled "
        "_get_overrideable_sdp_enabled _get_cublas_allow_tf32 _get_cudnn_allow_tf32 _get_nnpack_enabled "
        "_get_deterministic_algorithms_warn_only _get_deterministic_fill_uninitialized_memory _get_warnAlways "
        "_get_float32_matmul_precision _get_default_device _is_default_mobile_cpu_allocator_set "
        "_get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_bf16_reduced_precision_reduction "
        "_get_cudnn_depthwise_kernel _get_fp32_precision_getter",
    ),
    *members("torch._C", "_get_accelerator"),
    *([] if _GET_BENCHMARK_LIMIT is None else [_GET_BENCHMARK_LIMIT]),
    *members("torch.cuda", "is_initialized is_available device_count is_bf16_supported is_current_stream_capturing"),
    *members("torch.backends.mps", "is_available"),
    *members("torch.distributed", "is_initialized is_available"),
    *members("torch.accelerator", "is_available current_accelerator"),
    importlib.util.find_spec,
    importlib.metadata.version,
]
"""What may differ between two calls: switches, devices, installed packages. The answer is guarded by asking again."""


class _SwitchIs(GuardCallable):
    """The switch has the recorded value."""

    __slots__ = ("answer",)

    def __init__(self, read: Callable[..., Any], arguments: tuple[Any, ...], answer: Any):
        super().__init__((read, arguments))
        self.answer = answer

    def __call__(self, value: Any) -> bool:
        read, arguments = self.question
        return read(*arguments) == self.answer


_OTHER_NAMES = {
    torch.is_autocast_cpu_enabled: (torch.is_autocast_enabled, "cpu"),
    torch.get_autocast_cpu_dtype: (torch.get_autocast_dtype, "cpu"),
    torch.get_autocast_gpu_dtype: (torch.get_autocast_dtype, "cuda"),
}


def _rely_on_switch(tx: TraceContext, read: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Guard the answer of `read`, unless the trace itself has set what it tells: then the setter has guarded what was before."""
    if read in _OTHER_NAMES:
        read, *arguments = _OTHER_NAMES[read]  # type: ignore[assignment]
    elif read is torch.is_autocast_enabled and not arguments:
        arguments = ("cuda",)
    arguments = tuple(arguments)
    setter = next((setter for setter, info in STATE_SETTERS.items() if info.read is read), None)
    if setter is not None and tx.has_set_state(setter, arguments):
        return
    answer = read(*arguments)
    text = f"torch: {read.__name__}({', '.join(map(repr, arguments))}) is {answer!r}"
    tx.guards.add(ConstSource(None), "call", _SwitchIs(read, arguments, answer), text)


def _switch(read: Callable[..., Any], function: Callable[..., Any] | None = None) -> Rule:
    """The rule of `function`, whose answer is that of `read`."""

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        try:
            answer = tx.fold(read, args, kwargs)
        except Raised as raised:
            if issubclass(raised.value.python_type(), TypeError):  # the arguments are wrong, whatever the state
                raise
            raise Unsupported("global-state", f"{read.__name__} raises {raised.value.python_type().__name__}") from None
        _rely_on_switch(tx, read, (*(arg.constant() for arg in args), *(arg.constant() for arg in kwargs.values())))
        return answer

    return Rule(function or read, apply, Effect.READS_STATE, answers_at_trace_time=True)


# ---- state that the traced program sets


class StateSetter(NamedTuple):
    """How to read what a setter of torch's thread-wide state sets: `read` takes the setter's first `keys` arguments.

    of_cuda: kernels on CUDA devices look at the state when the graph runs, and nothing else does.
    """

    read: Callable[..., Any]
    keys: int = 0
    of_cuda: bool = False


def _setters_of_cuda() -> dict[Any, StateSetter]:
    names = ("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32", "cudnn_depthwise_kernel")
    found = {
        getattr(torch._C, f"_set_{name}"): StateSetter(getattr(torch._C, f"_get_{name}"), of_cuda=True)
        for name in names
        if hasattr(torch._C, f"_set_{name}")  # since torch 2.13: the last
    }
    if _GET_BENCHMARK_LIMIT is not None:
        found[torch._C._cuda_set_cudnn_benchmark_limit] = StateSetter(_GET_BENCHMARK_LIMIT, of_cuda=True)
    found[torch._C._set_fp32_precision_setter] = StateSetter(torch._C._get_fp32_precision_getter, keys=2, of_cuda=True)
    return found


STATE_SETTERS: dict[Any, StateSetter] = {
    **_setters_of_cuda(),
    torch._C._set_grad_enabled: StateSetter(torch.is_grad_enabled),
    torch.set_autocast_enabled: StateSetter(torch.is_autocast_enabled, keys=1),
    torch.set_autocast_dtype: StateSetter(torch.get_autocast_dtype, keys=1),
    torch.set_autocast_cache_enabled: StateSetter(torch.is_autocast_cache_enabled),
    torch.set_default_dtype: StateSetter(torch.get_default_dtype),
    **{
        getattr(torch._C, f"_set_sdp_use_{kernel}"): StateSetter(getattr(torch._C, f"_get_{kernel}_sdp_enabled"))
        for kernel in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    },
}


def set_state(tx: TraceContext, setter: Any, args: Args) -> Value:
    """Change the state for the rest of the trace, and in the graph; nothing if it is so already."""
    info = STATE_SETTERS[setter]
    plain = [arg.constant() for arg in args]
    keys, value = plain[: info.keys], plain[info.keys]
    before = info.read(*keys)
    if info.read is torch.is_grad_enabled:  # guarded in every trace
        tx.grad_mode_uses += 1
    else:
        _rely_on_switch(tx, info.read, tuple(keys))
    if before == value:
        return NONE
    if info.of_cuda and (torch.cuda.is_available() or (keys and keys[0] != "cuda")):
        raise Unsupported("global-state", f"{setter.__name__} changes what kernels compute")
    try:
        tx.change_state(setter, tuple(keys), before, value)
    except TypeError as error:
        tx.raise_real(error)
    return NONE


def _grad_mode(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.is_grad_enabled()`"""
    if tx.graph.records_anew:
        raise Unsupported("checkpoint", "use_reentrant=True, and the function asks for the grad mode")
    tx.grad_mode_uses += 1
    return Constant(torch.is_grad_enabled())


def _setter(setter: Any) -> Rule:
    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if kwargs or len(args) != STATE_SETTERS[setter].keys + 1:
            raise Unsupported("global-state", f"{setter.__name__} with named arguments")
        return set_state(tx, setter, args)

    return Rule(setter, apply, Effect.WRITES_STATE)


def _nesting(step: int) -> Apply:
    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        tx.autocast_nesting += step
        # A continuation leaves what an earlier part of the function has entered.
        return Constant(max(tx.autocast_nesting, 0))

    return run


def _clear_casts(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.clear_autocast_cache()`, also in the graph: where eager runs it, it would use the old casts of weights in its next run."""
    tx.graph.call("call_function", torch.clear_autocast_cache, (), {}, None, tx.stack_trace())
    return NONE


# ---- breaks that a program asks for


def _graph_break(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch._dynamo.graph_break()`. PyTorch's own code asks for breaks where its own compiler needs one, which is nothing to Treadle."""
    if tx.frames and tx.frames[-1].module_name.partition(".")[0] == "torch":
        return NONE
    raise Unsupported("explicit-break", "")


# ---- state that Python sets

_LEFT_TO_PYTHON = [
    *members(
        "torch",
        "seed save load set_num_threads frombuffer",
    ),
    *members("torch", "is_anomaly_enabled is_anomaly_check_nan_enabled"),  # switched off while tracing
    *members("torch.cuda", "manual_seed synchronize"),
    *members("torch.compiler", "disable allow_in_graph"),
]

# ---- modes that see every call of torch


def _default_device(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.get_default_device()`"""
    device = tx.modes.default_device(tx)
    if device is None:
        return _switch(torch.get_default_device).apply(tx, args, kwargs)
    if not device.is_constant() or device.constant().type not in ("cpu", "meta"):
        raise Unsupported("function-mode", "the number of the default device")
    return device


def _push_mode(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    tx.modes.push(tx, args[0].force(tx) if isinstance(args[0], LazyValue) else args[0])
    return NONE


def _mode_at(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return tx.modes.stack[args[0].constant()]


RULES = (
    Rule(torch._C._push_on_torch_function_stack, _push_mode, Effect.WRITES_STATE),
    Rule(torch._C._pop_torch_function_stack, lambda tx, args, kwargs: tx.modes.pop(tx), Effect.WRITES_STATE),
    Rule(
        torch._C._len_torch_function_stack, lambda tx, args, kwargs: Constant(len(tx.modes.stack)), Effect.READS_STATE
    ),
    Rule(
        torch._C._is_torch_function_mode_enabled,
        lambda tx, args, kwargs: boolean(bool(tx.modes.stack)),
        Effect.READS_STATE,
    ),
    Rule(torch._C._get_function_stack_at, _mode_at, Effect.READS_STATE),
    Rule(torch.get_default_device, _default_device, Effect.READS_STATE),
    Rule(torch.overrides.handle_torch_function, handle),
    Rule(DEFAULT_OVERRIDE, default_override),
    Rule(torch._C.DisableTorchFunctionSubclass, overrides_off, Effect.WRITES_STATE),
    Rule(torch.Generator, random_generators.new_generator),
    Rule(inspect.unwrap(torch.manual_seed), random_generators.manual_seed, Effect.GRAPH),
    Rule(torch.initial_seed, random_generators.initial_seed, Effect.READS_STATE),
    Rule(torch.get_rng_state, random_generators.get_rng_state, Effect.GRAPH),
    Rule(torch.set_rng_state, random_generators.set_rng_state, Effect.GRAPH),
    Rule(torch._C._InferenceMode, inference_guard),  # type: ignore[attr-defined]
    Rule(torch._C._has_torch_function, has_override_among, Effect.NONE, answers_at_trace_time=True),
    Rule(torch._C._has_torch_function_unary, has_override, Effect.NONE, answers_at_trace_time=True),
    Rule(torch._C._has_torch_function_variadic, has_override, Effect.NONE, answers_at_trace_time=True),
    *[Rule(function, _is_compiling, Effect.NONE, answers_at_trace_time=True) for function in _TRUE],
    *[always(function, FALSE) for function in _FALSE],
    always(torch._C._get_tracing_state, NONE),
    *[folds(function, Effect.READS_STATE) for function in (*_FIXED, *_IN_GLOBAL_STATE)],
    Rule(torch.is_grad_enabled, _grad_mode, Effect.READS_STATE, answers_at_trace_time=True),
    *map(_switch, _SWITCHES),
    _switch(recursion_limit, sys.getrecursionlimit),  # a compile has one of its own
    *map(_setter, STATE_SETTERS),
    Rule(torch.autocast_increment_nesting, _nesting(1), Effect.WRITES_STATE),
    Rule(torch.autocast_decrement_nesting, _nesting(-1), Effect.WRITES_STATE),
    Rule(torch.clear_autocast_cache, _clear_casts, Effect.WRITES_STATE),
    *[breaks(function, "global-state") for function in _LEFT_TO_PYTHON],
    # of modules that the tracer does not import, by name
    always("transformers.utils.import_utils.is_torchdynamo_exporting", FALSE),
    always("transformers.utils.import_utils.is_jit_tracing", FALSE),
    # Once torch.compile has run, `Module.__init__` notes every new module for it.
    always("torch._dynamo.mutation_guard.GenerationTracker.tag", NONE),
    always("transformers.utils.import_utils.is_fx_proxy", FALSE, until=Version("transformers", (5, 0))),
    always("torch.onnx._internal.torchscript_exporter.utils.is_in_onnx_export", FALSE, until=Version("torch", (2, 13))),
    always("torch.onnx.is_in_onnx_export", FALSE),
    Rule("torch._dynamo.decorators.graph_break", _graph_break, Effect.BREAKS),
    always("torch._dynamo.decorators.mark_static_address", NONE),
    always("torch._dynamo.decorators.mark_dynamic", NONE),
    always("torch._dynamo.decorators.mark_static", NONE),
    always("torch._dynamo.decorators.maybe_mark_dynamic", NONE),
)
