"""Traced graphs through `treadle_autograd.aot`: which compiler gets what of them, and what happens where a pass fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx

import treadle_autograd
from treadle_autograd import aot, run_in_pieces, switches_inference_mode, why_not_compile_piece, with_gradients_off
from treadle_shapes import paused, signals_held

from . import logs
from .bugs import Compiled, compile_or, compile_or_eager, run_in_eager
from .hook import without_hook
from .options import CompileOptions
from .stats import stats

if TYPE_CHECKING:
    from treadle_autograd.partition import FindParts
    from treadle_codegen import FileCache

Compiler: TypeAlias = Callable[[fx.GraphModule, Sequence[Any]], Compiled]  # of functional ATen graphs


class ThroughAot:
    """Compiles traced graphs with `aot`. Their ATen graphs go to `training` where autograd is at work, else to `inference`; a graph without
    functional form runs in eager. cache: keeps smallest cuts and training programs. again: finds what the compiler keeps out of memory, for
    backward to compute again."""

    def __init__(
        self,
        options: CompileOptions,
        inference: Compiler,
        training: Compiler,
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
        cache: FileCache | None = None,
        again: FindParts | None = None,
    ) -> None:
        self._options = options
        self._inference = inference
        self._training = training
        self._decompositions = decompositions
        self._cache = cache
        self._again = again

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        if switches_inference_mode(gm):
            return run_in_pieces(gm, without_hook(self._compile_piece))  # called from the first run
        is_training = needs_gradients(gm, example_inputs)
        is_differentiable = is_training and leaves_history(gm)
        turns_on = is_differentiable and not torch.is_grad_enabled()
        if is_differentiable and torch.is_inference_mode_enabled():
            return run_in_eager(gm, "the graph turns gradients on in inference mode")
        halves = _Halves(gm, self._options, self._training if is_training else self._inference)

        def build() -> Compiled:
            given = with_gradients_off(gm) if turns_on else gm
            compiled = self._build(given, example_inputs, halves, is_differentiable, turns_on)
            if compiled.why_eager is not None:
                return run_in_eager(gm, compiled.why_eager)
            if not is_differentiable:
                return compiled
            # Autograd calls the program's saved-tensor hooks, which are none of the compiled function's business.
            run: Any = without_hook(torch.enable_grad()(compiled) if turns_on else compiled)
            run.raises_before_writing = compiled.raises_before_writing
            return run

        with signals_held(), paused():
            return compile_or_eager(gm, example_inputs, self._options, build)

    def _compile_piece(self, piece: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        reason = why_not_compile_piece(piece)
        return self(piece, inputs) if reason is None else run_in_eager(piece, reason)

    def _build(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        halves: _Halves,
        is_differentiable: bool,
        turns_on: bool,
    ) -> Any:
        """What `aot` makes of the graph."""
        forward: Compiler = halves.compile
        chosen: dict[str, Any] = {}
        if is_differentiable:
            if self._cache is not None:
                treadle_autograd.keep_cuts(*kept_in(self._cache, "cuts"))
                treadle_autograd.keep_programs(*kept_in(self._cache, "programs"))
            forward, backward = halves.keeping()
            partition = treadle_autograd.with_budget(self._options.values["memory_budget"])
            chosen = {
                "inference": False, "backward": backward, "partition": partition, "late": halves.compile_late, "again": self._again,
            }  # fmt: skip
        with torch.set_grad_enabled(turns_on or torch.is_grad_enabled()):
            compiled: Any = aot(gm, example_inputs, forward=forward, decompositions=self._decompositions, **chosen)
        if compiled.partition_report is not None:
            logs.emit("partition", lambda: str(compiled.partition_report()))
        return compiled


class _Halves:
    """Compiles the ATen graphs of one traced graph, with logs and statistics. What runs from a backward pass must raise nothing of ours,
    and runs with the hook off: there frames may be compiled."""

    def __init__(self, gm: fx.GraphModule, options: CompileOptions, compiler: Any) -> None:
        self._gm = gm
        self._options = options
        self._compiler = compiler
        self.compile_late = without_hook(self._compile_late)

    def compile(self, aten: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        logs.emit("aten_code", lambda: aten.print_readable(print_output=False))
        with stats.phase("backend.codegen"):
            return self._compiler(aten, inputs)  # type: ignore[no-any-return]

    def find(self, name: str, graph: Callable[[], fx.GraphModule]) -> Compiled | None:
        """What the compiler has kept under the name."""
        with stats.phase("backend.codegen"):
            return self._compiler.find(name, graph)  # type: ignore[no-any-return]

    def keeping(self) -> tuple[Keeping, Keeping]:
        """The compilers of the forward and of the backward half."""
        identity = getattr(self._compiler, "identity", None)
        backward = without_hook(self._compile_backward), without_hook(self._find_backward)
        return Keeping(self.compile, self.find, identity), Keeping(*backward, identity)

    def _compile_backward(self, aten: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        with signals_held(), paused():
            return compile_or_eager(aten, inputs, self._options, lambda: self.compile(aten, inputs))

    def _find_backward(self, name: str, graph: Callable[[], fx.GraphModule]) -> Compiled | None:
        return self._late(lambda: self.find(name, graph))

    def _compile_late(self, build: Callable[[], Any]) -> Any:
        return self._late(build)

    def _late(self, build: Callable[[], Any]) -> Any:
        """The result of `build`, None where it fails. The real inputs have gone by now."""
        examples = [node.meta.get("example_value") for node in self._gm.graph.find_nodes(op="placeholder")]
        with signals_held(), paused():
            return compile_or(lambda reason: None, self._gm, examples, self._options, build)


class Keeping:
    """A compiler and what it keeps (`treadle_autograd.KeepingCompiler`)."""

    def __init__(self, compile: Compiler, find: Callable[..., Compiled | None], identity: str | None) -> None:
        self._compile = compile
        self.find = find
        self.identity = identity

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        return self._compile(gm, example_inputs)


@functools.cache
def kept_in(cache: FileCache, kind: str) -> tuple[Callable[[str], bytes | None], Callable[[str, bytes], None]]:
    """How files of a kind are read from the cache of kernels and written to it."""
    return functools.partial(cache.read, kind), functools.partial(cache.store, kind)


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
