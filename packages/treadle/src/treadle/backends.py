"""Backends by name. A backend turns a traced graph into a callable.

Its signature is ``backend(graph_module, example_inputs) -> callable``, as in PyTorch 2. Treadle's own are in `BUILTIN`. Others come from
entry points of the group ``treadle.backends`` and from PyTorch's registry (`treadle.interop`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from torch import fx

from treadle_shapes.torch import keep_fake_calls

from .bugs import Compiled
from .errors import UnknownName, WrongUse, unknown_name
from .hook import without_hook
from .lazy_decompositions import LazyDecompositions
from .options import CompileOptions
from .through_aot import ThroughAot, kept_in

Backend: TypeAlias = Callable[[fx.GraphModule, Sequence[Any]], Compiled]

ENTRY_POINT_GROUP = "treadle.backends"


def eager(options: CompileOptions) -> Backend:
    """Run the traced graph as it is, to see what tracing alone does."""

    def eager_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return without_hook(gm.forward)

    eager_backend.draws_nothing = True  # type: ignore[attr-defined]
    return eager_backend


def aot_eager(options: CompileOptions) -> Backend:
    """Functionalise and decompose, then run the ATen graphs operator by operator: what the ahead-of-time half alone does."""

    def run_operators(aten: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        return without_hook(aten.forward)

    def aot_eager_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return ThroughAot(options, run_operators, run_operators)(gm, example_inputs)

    aot_eager_backend.draws_nothing = True  # type: ignore[attr-defined]
    return aot_eager_backend


def codegen(options: CompileOptions) -> Backend:
    """Compile the graph to fused kernels with treadle_codegen."""
    from treadle_codegen import kernel_cache, parts_to_compute_again

    from .codegen_compiler import CodegenCompiler

    inference = options.for_codegen()
    cache = kernel_cache(inference)
    keep_fake_calls(*kept_in(cache, "fake-calls"))
    training = replace(inference, pack_weights=False)  # an optimizer changes the weights between any two calls
    compilers = CodegenCompiler(inference, options), CodegenCompiler(training, options)
    decompositions = LazyDecompositions()

    def codegen_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return ThroughAot(options, *compilers, decompositions, cache, parts_to_compute_again)(gm, example_inputs)

    codegen_backend.raises_before_writing = True  # type: ignore[attr-defined]  # graphs of `aot` write when they have run
    codegen_backend.draws_nothing = True  # type: ignore[attr-defined]  # tuning has generators of its own
    return codegen_backend


BUILTIN: Mapping[str, Callable[[CompileOptions], Backend]] = {
    "codegen": codegen,
    "eager": eager,
    "aot_eager": aot_eager,
}


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def backend_names() -> list[str]:
    """Names that ``treadle.compile(backend=...)`` takes, without PyTorch's own."""
    return sorted({*BUILTIN, *_registered()})


def resolve(backend: str | Backend, options: CompileOptions) -> tuple[str, Backend]:
    """The name and the callable of a backend. Raises UnknownName or WrongUse."""
    if isinstance(backend, str):
        return backend, _by_name(backend, options)
    if not callable(backend):
        allowed = ", ".join(map(repr, backend_names()))
        raise WrongUse(
            f"backend must be a name ({allowed}) or a callable (graph_module, example_inputs) -> callable, got {backend!r}"
        )
    name = getattr(backend, "__name__", type(backend).__name__)
    return name, _with_options(backend, options)


def is_own(backend: object) -> bool:
    """Whether the backend is one of treadle's, which take treadle's options."""
    return isinstance(backend, str) and backend in BUILTIN


def _with_options(backend: Callable[..., Any], options: CompileOptions) -> Backend:
    """Pass ``options=`` to a foreign backend as PyTorch does, if any were given. Its compiled callable runs with the hook off."""
    given = {"options": dict(options.given)} if options.given else {}

    @functools.wraps(backend, updated=())
    def foreign_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        compiled = backend(gm, example_inputs, **given)
        return without_hook(compiled) if callable(compiled) else compiled

    foreign_backend.__name__ = getattr(backend, "__name__", type(backend).__name__)
    return foreign_backend


def _by_name(name: str, options: CompileOptions) -> Backend:
    if name in BUILTIN:
        return BUILTIN[name](options)
    point = _registered().get(name)
    if point is not None:
        loaded: Any = point.load()
        if not callable(loaded):
            raise WrongUse(f"backend {name!r} of entry point {point.value!r} is not callable: {loaded!r}")
        return _with_options(loaded, options)
    from .interop import pytorch_backend

    try:
        return _with_options(pytorch_backend(name), options)
    except UnknownName:
        hint = (
            "; or a backend of PyTorch (such as 'inductor'), or any callable (graph_module, example_inputs) -> callable"
        )
        raise unknown_name("backend", name, [*backend_names(), "inductor"], hint) from None
