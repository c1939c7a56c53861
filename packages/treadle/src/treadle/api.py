"""The entry points: `compile`, `disable`, `reset`."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

import treadle_frame
from treadle_tracer import FrameCompiler, compile_handler, trace_functions_compiled_by

from . import backends, bugs, compiled_functions, logs
from .compiled_module import compiled_module, is_compiled_module, original_of
from .errors import WrongUse
from .hook import without_hook
from .observer import Reporter
from .options import compile_options
from .stats import stats

F = TypeVar("F", bound=Callable[..., Any])

_handlers: weakref.WeakSet[FrameCompiler] = weakref.WeakSet()


@overload
def compile(  # noqa: A001
    fn_or_module: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | backends.Backend = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> F: ...


@overload
def compile(  # noqa: A001
    fn_or_module: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | backends.Backend = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[F], F]: ...


def compile(  # noqa: A001 (the name users expect)
    fn_or_module: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | backends.Backend = "codegen",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Return a callable like `fn_or_module` that is compiled on its first call, or a decorator if `fn_or_module` is left out.

    fn_or_module: a function, bound method, `torch.nn.Module` or other callable. For a module, the result is a module that shares all
        state with it.
    fullgraph: True raises `treadle_tracer.Unsupported` if the function does not fit in one graph, instead of breaking the graph.
        Exceptions that the function raises itself pass.
    dynamic: None makes sizes symbolic that change between calls, True all sizes from the first call on, False none.
    backend: "codegen" (fused kernels), "eager", "aot_eager", a name registered under the entry-point group ``treadle.backends``, a
        backend of torch.compile such as "inductor", or a callable ``(graph_module, example_inputs) -> callable``.
    mode: "default", "reduce-overhead" (CUDA graphs), "max-autotune" (measured kernels and CUDA graphs) or "max-autotune-no-cudagraphs".
    options: option names to values for this compile only (see ``treadle.config.help()``). A foreign backend gets them unchecked.
    disable: True returns `fn_or_module` unchanged.

    Raises WrongUse (a TypeError) for something that cannot be compiled, UnknownName or OptionValue (ValueErrors) for unknown names and
    values. The first call raises `treadle_tracer.BackendError` if the backend raises or returns something that is not callable.
    """
    if isinstance(fn_or_module, str):
        raise WrongUse(
            f"treadle.compile takes a function or module, got the string {fn_or_module!r}; did you mean backend=...?"
        )
    chosen = compile_options(fullgraph, dynamic, mode, options, backends.is_own(backend))
    _, backend_function = backends.resolve(backend, chosen)
    if fn_or_module is None:
        again = functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable
        )
        return lambda target: again(_require_callable(target))
    _require_callable(fn_or_module)
    if disable:
        return fn_or_module

    def handler() -> FrameCompiler:
        return compile_handler(backend_function, chosen.for_tracer(is_codegen=backend == "codegen"), Reporter())

    target = getattr(fn_or_module, "_treadle_original", fn_or_module)
    if backends.is_own(backend):
        return _sharing(target, f"{backend} {chosen}", handler)
    return attach(fn_or_module, handler())


trace_functions_compiled_by(compile)


def _sharing(target: Any, options: str, make_handler: Callable[[], FrameCompiler]) -> Any:
    """A callable like `target`, with the entries of the last one that was made of it under the same options."""
    method: types.FunctionType | None = None
    if isinstance(target, torch.nn.Module):
        owner, source = target, _call_it.__code__
    elif type(target) is types.FunctionType:
        owner, source = target, target.__code__
    elif isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        owner, method = target.__self__, target.__func__
        source = method.__code__
    else:
        return attach(target, make_handler())
    known = compiled_functions.found(owner, options, source, method)
    if known is None:
        code = _trampoline_code(type(target).__name__) if isinstance(target, torch.nn.Module) else source.replace()
        function = None if method is None else weakref.ref(method)
        known = compiled_functions.Compiled(make_handler(), source, code, function)
        compiled_functions.keep(owner, options, known)
    return attach(target, known.handler, known.copy)


def _require_callable(target: Any) -> Any:
    if isinstance(target, type):
        raise WrongUse(
            f"treadle.compile takes a function or a module instance, got the class {target.__qualname__}; compile an instance"
        )
    if not callable(target):
        raise WrongUse(
            f"treadle.compile takes a function, method, module or other callable, got {type(target).__name__}: {target!r}"
        )
    return target


def attach(target: Any, handler: FrameCompiler, code: types.CodeType | None = None) -> Any:
    """A callable like `target` whose calls go through `handler`.

    code: that of a callable that was made of `target` before, whose cached entries it shares. Without, it has a code object of its own.
    """
    _handlers.add(handler)
    if isinstance(target, torch.nn.Module):
        module = original_of(target)
        return compiled_module(module, _dispatcher(_trampoline(type(module).__name__, code), handler))
    target = getattr(target, "_treadle_original", target)
    if isinstance(target, types.FunctionType):
        return _mark(_following(target, handler, code or target.__code__.replace()), target)
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        function = target.__func__
        following = _following(function, handler, code or function.__code__.replace())
        return _mark(functools.partial(following, target.__self__), target)
    name = str(getattr(target, "__name__", type(target).__name__))
    return _mark(functools.partial(_dispatcher(_trampoline(name), handler), target), target)


def _dispatcher(function: types.FunctionType, handler: FrameCompiler) -> Any:
    handler.add_root(function.__code__)
    return treadle_frame.dispatcher(function, handler)


def _following(function: types.FunctionType, handler: FrameCompiler, code: types.CodeType) -> Any:
    """A dispatcher of a copy of the function, which takes over the code and the defaults that the function is given later.

    code: a copy of the function's code.
    """
    copy = _copy_function(function, code)
    handler.add_root(copy.__code__)

    def refresh() -> None:
        if copy.__code__ != function.__code__:
            copy.__code__ = function.__code__.replace()
            handler.add_root(copy.__code__)
        copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__

    return treadle_frame.dispatcher(copy, handler, function, refresh)


def _mark(compiled: Any, original: Any) -> Any:
    """Give `compiled` the name and docstring of `original`, and the attribute by which it is recognised."""
    functools.update_wrapper(compiled, original, updated=())
    compiled._treadle_original = original
    return compiled


def _copy_function(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """A copy of the function with this code object."""
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copy, function)
    return copy


def _call_it(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    return self(*args, **kwargs)


def _trampoline(name: str, code: types.CodeType | None = None) -> types.FunctionType:
    """A new function ``forward_of_<name>(self, /, *args, **kwargs)`` that calls `self`: the root frame of a compiled module."""
    code = code or _trampoline_code(name)
    return types.FunctionType(code, {"__builtins__": __builtins__, "__name__": f"<compiled {name}>"}, code.co_name)


def _trampoline_code(name: str) -> types.CodeType:
    full_name = f"forward_of_{name}"
    return _call_it.__code__.replace(
        co_name=full_name, co_qualname=full_name, co_filename=f"<compiled {name}>", co_firstlineno=1
    )


def disable(fn: F) -> F:
    """A callable like `fn` that runs with treadle off: neither `fn` nor what it calls is compiled. For a module, the result is a module.

    A call of it in a compiled function is a graph break (an error under ``fullgraph=True``).
    """
    _require_callable(fn)
    if isinstance(fn, torch.nn.Module):
        module: Any = original_of(fn)
        return compiled_module(module, disable(_call_it))  # type: ignore[return-value]
    original = getattr(fn, "_treadle_original", fn)

    run_disabled = functools.update_wrapper(without_hook(original), original)
    run_disabled._treadle_disabled = True  # type: ignore[attr-defined]
    return run_disabled  # type: ignore[return-value]


def reset() -> None:
    """Drop all compiled code of this process, and the statistics. Compiled functions stay usable and are compiled again."""
    treadle_frame.reset()
    for handler in list(_handlers):
        forget = getattr(handler, "reset", None)
        if forget is not None:
            forget()
    stats.reset()
    bugs.reset_warnings()


def set_logs(*names: str) -> None:
    """Print exactly these logs to standard error (see ``TREADLE_LOGS=help``). Raises UnknownName."""
    logs.set_logs(*names)


__all__ = [
    "attach",
    "compile",
    "disable",
    "is_compiled_module",
    "reset",
    "set_logs",
]
