"""Backends by name. A backend turns a traced graph into a callable.

Its signature is ``backend(graph_module, example_inputs) -> callable``, as in PyTorch 2. Treadle's own are in `BUILTIN`. Others come from
entry points of the group ``treadle.backends`` and from PyTorch's registry (`treadle.interop`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx

import treadle_autograd
from treadle_autograd import aot, run_in_pieces, switches_inference_mode, why_not_compile_piece, with_gradients_off
from treadle_shapes import paused
from treadle_shapes.torch import keep_fake_calls

from . import logs
from .bugs import Compiled, compile_or, compile_or_eager, run_in_eager
from .errors import UnknownName, WrongUse, unknown_name
from .hook import without_hook
from .options import CompileOptions
from .stats import stats

if TYPE_CHECKING:
    from treadle_codegen import FileCache

Backend: TypeAlias = Callable[[fx.GraphModule, Sequence[Any]], Compiled]
Compiler: TypeAlias = Backend  # of functional ATen graphs

ENTRY_POINT_GROUP = "treadle.backends"


def eager(options: CompileOptions) -> Backend:
    """Run the traced graph as it is, to see what tracing alone does."""

    def eager_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return without_hook(gm.forward)

    return eager_backend


def aot_eager(options: CompileOptions) -> Backend:
    """Functionalise and decompose, then run the ATen graphs operator by operator: what the ahead-of-time half alone does."""

    def run_operators(aten: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        return without_hook(aten.forward)

    def aot_eager_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return _through_aot(gm, example_inputs, options, run_operators, run_operators)

    return aot_eager_backend


def codegen(options: CompileOptions) -> Backend:
    """Compile the graph to fused kernels with treadle_codegen."""
    from treadle_codegen import decompositions, kernel_cache

    from .codegen_compiler import CodegenCompiler

    inference = options.for_codegen()
    cache = kernel_cache(inference)
    keep_fake_calls(*_kept_in(cache, "fake-calls"))
    training = replace(inference, pack_weights=False)  # an optimizer changes the weights between any two calls

    def codegen_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return _through_aot(
            gm,
            example_inputs,
            options,
            CodegenCompiler(inference, options),
            CodegenCompiler(training, options),
            decompositions(),
            cache,
        )

    codegen_backend.raises_before_writing = True  # type: ignore[attr-defined]  # graphs of `aot` write when they have run
    return codegen_backend


BUILTIN: Mapping[str, Callable[[CompileOptions], Backend]] = {
    "codegen": codegen,
    "eager": eager,
    "aot_eager": aot_eager,
}


@functools.cache
def _kept_in(cache: FileCache, kind: str) -> tuple[Callable[[str], bytes | None], Callable[[str, bytes], None]]:
    """How files of a kind are read from the cache of kernels and written to it."""
    return functools.partial(cache.read, kind), functools.partial(cache.store, kind)


def _through_aot(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: CompileOptions,
    inference: Compiler,
    training: Compiler,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    cache: FileCache | None = None,
) -> Compiled:
    """Compile with `aot`. The graphs go to `training` where autograd is at work, else to `inference`; a graph without functional form
    runs in eager."""
    if switches_inference_mode(gm):

        @without_hook  # called from the first run
        def compile_piece(piece: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
            reason = why_not_compile_piece(piece)
            if reason is not None:
                return run_in_eager(piece, reason)
            return _through_aot(piece, inputs, options, inference, training, decompositions, cache)

        return run_in_pieces(gm, compile_piece)
    is_training = needs_gradients(gm, example_inputs)
    is_differentiable = is_training and leaves_history(gm)
    turns_on = is_differentiable and not torch.is_grad_enabled()
    if turns_on and torch.is_inference_mode_enabled():
        return run_in_eager(gm, "the graph turns gradients on in inference mode")

    def compile_aten(aten: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        logs.emit("aten_code", lambda: aten.print_readable(print_output=False))
        with stats.phase("backend.codegen"):
            return (training if is_training else inference)(aten, inputs)

    @without_hook
    def compile_backward(aten: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """Called from the first backward pass, which is not the place for an exception of ours."""
        with paused():
            return compile_or_eager(aten, inputs, options, lambda: compile_aten(aten, inputs))

    def find(name: str, graph: Callable[[], fx.GraphModule]) -> Compiled | None:
        """What `training` has kept under the name."""
        with stats.phase("backend.codegen"):
            return training.find(name, graph)  # type: ignore[attr-defined]

    @without_hook
    def find_backward(name: str, graph: Callable[[], fx.GraphModule]) -> Compiled | None:
        """Called from the first backward pass."""
        with paused():
            return compile_or(lambda reason: None, gm, _examples(gm), options, lambda: find(name, graph))

    @without_hook  # a backward pass may run where frames are compiled
    def compile_late(build: Callable[[], Any]) -> Any:
        with paused():
            return compile_or(lambda reason: None, gm, _examples(gm), options, build)

    def build() -> Compiled:
        found: dict[str, Any] = {}
        forward: Compiler = compile_aten
        if is_differentiable:
            partition = treadle_autograd.with_budget(options.values["memory_budget"])
            if cache is not None:
                treadle_autograd.keep_cuts(*_kept_in(cache, "cuts"))
                treadle_autograd.keep_programs(*_kept_in(cache, "programs"))
            identity = getattr(training, "identity", None)
            forward = Keeping(compile_aten, find, identity)
            backward = Keeping(compile_backward, find_backward, identity)
            found = {"inference": False, "backward": backward, "partition": partition, "late": compile_late}
        with torch.set_grad_enabled(turns_on or torch.is_grad_enabled()):
            given = with_gradients_off(gm) if turns_on else gm
            compiled: Any = aot(given, example_inputs, forward=forward, decompositions=decompositions, **found)
        if compiled.why_eager is not None:
            return run_in_eager(gm, compiled.why_eager)
        if compiled.partition_report is not None:
            logs.emit("partition", lambda: str(compiled.partition_report()))
        # Autograd calls the program's saved-tensor hooks, which are none of the compiled function's business.
        if is_differentiable:
            run: Any = without_hook(torch.enable_grad()(compiled) if turns_on else compiled)
            run.raises_before_writing = compiled.raises_before_writing
            return run
        return compiled

    with paused():
        return compile_or_eager(gm, example_inputs, options, build)


class Keeping:
    """A compiler and what it keeps (`treadle_autograd.KeepingCompiler`).

    compile, find: with logs and statistics; identity: that of the compiler at work.
    """

    def __init__(self, compile: Compiler, find: Callable[..., Compiled | None], identity: str | None) -> None:
        self._compile = compile
        self.find = find
        self.identity = identity

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return self._compile(gm, example_inputs)


def _examples(gm: fx.GraphModule) -> list[Any]:
    """The tracer's values of the inputs, where the real ones have gone."""
    return [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]


def needs_gradients(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether autograd records the graph, now or in a part of the graph that turns gradients on."""
    if not (torch.is_grad_enabled() or _turns_grad_on(gm)):
        return False
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(gm)
            if isinstance(value, torch.Tensor):
                tensors.append(value)
    return any(tensor.requires_grad for tensor in tensors)


def leaves_history(gm: fx.GraphModule) -> bool:
    """Whether autograd can see after a run that the graph has run: in an output, or in an input that the graph has changed.

    A step of an optimizer leaves nothing, because it runs with gradients off; nor does a graph that calls `torch.autograd.grad` itself
    and returns numbers. The tracer's fake tensors tell. A graph without them counts as differentiable.
    """
    for node in gm.graph.nodes:
        values = node.meta.get("example_value")
        if node.op == "output":
            values = [arg.meta.get("example_value") for arg in node.all_input_nodes]
        elif node.op not in ("placeholder", "get_attr"):
            continue
        for value in values if isinstance(values, list) else [values]:
            if value is None or (isinstance(value, torch.Tensor) and value.grad_fn is not None):
                return True
    return False


def _turns_grad_on(gm: fx.GraphModule) -> bool:
    for node in gm.graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name in ("_set_grad_enabled", "set_grad_enabled") and node.args and node.args[0] is not False:
            return True
        if name in ("enable_grad", "inference_mode"):
            return True
    return False


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
