"""From a `TraceResult` to a `treadle_frame.Entry`: the dry run, the replacement code, the guard program, the frameless form.

When the compiled graph raises, the frame is run again from its start by Python itself, as long as the graph wrote to nothing that
exists outside it: so the exception (if it was the program's) comes from the user's own line, and `except` clauses see it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

import treadle_frame

from ..bytecode import CodeModel
from ..errors import Unsupported
from ..source import Path, Source
from .deferred_asserts import drawing_once, has_asserts, raising_as_asked
from .deoptimise import Deoptimisation, begin
from .emit import FrameCode
from .replacement import Effects, ReplacementBuilder, Usage, emit_graph_call, emit_state_changes, settled
from .resume import Break
from .size_ranges import size_program

if TYPE_CHECKING:
    import torch.fx

    from ..trace.frame import TraceResult
    from .guards import DynamicNumbers, TensorGuard


@dataclass(eq=False)
class Payload:
    """What is kept of a compile beside the code: `treadle_frame.Entry.payload`.

    graph_module  the traced graph, None when nothing was to run
    tensors       the guarded tensors, with the sizes they had
    reason        why the graph ends before the return, None if it does not
    owner         id of the module instance the entry was made for, see `Handler`
    guards        the reasons of all guards
    numbers       the ints and floats that are guarded by their value, with that value
    dynamic       the dynamic sizes, ints and floats, None when there are none
    inputs        where the inputs of the graph come from
    """

    graph_module: torch.fx.GraphModule | None
    tensors: tuple[TensorGuard, ...]
    reason: Unsupported | None
    owner: int | None
    guards: tuple[str, ...] = ()
    numbers: tuple[tuple[Source, int | float], ...] = ()
    dynamic: DynamicNumbers | None = None
    inputs: tuple[Source, ...] = ()


class FramePlan:
    """A replacement whose graph is not compiled yet: knows what the graph must return.

    Raises Unsupported if the frame cannot be rebuilt.
    """

    def __init__(self, code: CodeType, model: CodeModel, result: TraceResult):
        self.code, self.model, self.result = code, model, result
        self.usage = Usage()
        self.leaving = Break(code, model, result) if result.kind == "break" else None
        self._give_back(ReplacementBuilder(result.mutations, self.usage))

    @property
    def outputs(self) -> list[Any]:
        """The graph nodes that are needed, in the order in which the compiled graph must return them."""
        return list(self.usage.outputs)

    def _give_back(self, builder: ReplacementBuilder) -> None:
        if self.leaving is not None:
            self.leaving.emit(builder)
            return
        value = self.result.value
        assert value is not None
        effects = Effects(builder, [value])
        if builder.mutations or self.result.state_changes:
            effects.prepare()
            emit_state_changes(builder, self.result.state_changes)
        effects.push(value)
        builder.cb.return_value()

    def replacement(self, compiled: Callable[..., Any] | None, deoptimisation: Deoptimisation | None) -> CodeType:
        """The replacement code. `deoptimisation`: what is said when a failing graph is followed by running the original code from the
        start; None: that may not be done."""
        cb = FrameCode(self.model)
        builder = ReplacementBuilder(self.result.mutations, self.usage, cb)
        if compiled is not None:
            start, end, handler = cb.label("start"), cb.label("end"), cb.label("failed")
            cb.place(start)
            emit_graph_call(builder, compiled, self.result.graph.input_sources)
            cb.place(end)
            if deoptimisation is not None:
                cb.protect(start, end, handler, depth=0)
            self._give_back(builder)
            if deoptimisation is not None:
                cb.place(handler)
                _emit_deoptimisation(cb, self.code, deoptimisation)
        else:
            self._give_back(builder)
        return cb.finish()


def build_replacement(
    code: CodeType,
    model: CodeModel,
    result: TraceResult,
    compiled: Callable[..., Any] | None,
    deoptimisation: Deoptimisation | None = None,
) -> CodeType:
    """The replacement code of a trace, for a compiled graph that returns `FramePlan(code, model, result).outputs`."""
    return FramePlan(code, model, result).replacement(compiled, deoptimisation)


def finish_entry(
    plan: FramePlan, compiled: Callable[..., Any] | None, payload: Payload, *, raise_internal_errors: bool = False
) -> Any:
    """The `treadle_frame.Entry` of a finished compile; raise_internal_errors: what a call does when the graph raises where
    the program does not."""
    result = plan.result
    deoptimisation = None
    if compiled is not None and payload.graph_module is not None and why_not_deoptimise(payload.graph_module) is None:
        deoptimisation = Deoptimisation(
            plan.code.co_qualname,
            payload.graph_module,
            has_handlers=result.protected,
            raise_internal_errors=raise_internal_errors,
        )
    if compiled is not None and deoptimisation is None and result.protected:
        raise Unsupported("write-under-handler", f"{plan.code.co_qualname}")
    if compiled is not None and payload.graph_module is not None:
        compiled = raising_as_asked(keeping_state(compiled, payload.graph_module), payload.graph_module)
        if deoptimisation is not None and has_asserts(payload.graph_module):
            compiled = drawing_once(compiled)
    replacement = plan.replacement(compiled, deoptimisation)
    if result.env is not None:
        payload.dynamic = result.guards.add_sizes(result.env)
        payload.inputs = tuple(result.graph.input_sources)
    program = result.guards.program()
    if payload.dynamic is not None:
        program = size_program(program.checks, payload.dynamic)
    payload.guards = tuple(guard.reason for guard in result.guards)
    payload.numbers = result.guards.numbers
    fast_path = None
    if compiled is not None and not result.protected and not has_asserts(payload.graph_module):
        fast_path = _fast_path(plan, compiled, retry=deoptimisation is not None)
    if fast_path is None:
        return treadle_frame.Entry(replacement, program, payload)
    return treadle_frame.Entry(replacement, program, payload, fast_path=fast_path)


def _fast_path(plan: FramePlan, compiled: Callable[..., Any], *, retry: bool) -> Any:
    """`(compiled, argument names, unpack, retry)` when the frame does nothing but `return compiled(*arguments)[0]`, else None.

    retry: the replacement code knows what to do when the graph raises.
    """
    result = plan.result
    if plan.leaving is not None or result.mutations or result.state_changes or len(plan.outputs) != 1:
        return None
    value = settled(result.value) if result.value is not None else None
    if value is None or value.source is not None or getattr(value, "known_node", None) is not plan.outputs[0]:
        return None
    slots = plan.model.arguments
    names = [source.path[0][1] for source in result.graph.input_sources if len(source.path) == 1]
    if len(names) != len(result.graph.input_sources) or any(name not in slots for name in names):
        return None
    return (compiled, tuple(names), True, retry)


def with_size_one_accepted(entry: Any) -> Any:
    """The same entry, for the sizes of 1 that are admitted by now."""
    program = size_program(entry.guard.checks, entry.payload.dynamic)
    return treadle_frame.Entry(entry.code, program, entry.payload, fast_path=entry.fast_path)


# ---- torch's own state


def keeping_state(compiled: Callable[..., Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """A graph that switches grad mode and the like ends with switching back; do that too when it raises half-way."""
    final: dict[Any, tuple[Any, ...]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.meta.get("example_value") is None and not node.users:
            if getattr(node.target, "__name__", "").lstrip("_").startswith("set_"):
                final[node.target, node.args[:-1]] = node.args
    if not final:
        return compiled

    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except BaseException:
            for (setter, _), given in final.items():
                setter(*given)
            raise

    return run


# ---- running the frame again after a failed graph

_WRITING_OPERATORS = frozenset(
    "setitem delitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split()
)
# Functions that write to arguments without saying so in their name.
_HIDDEN_WRITERS = frozenset({"batch_norm", "instance_norm", "embedding_renorm_", "_fused_moving_avg_obs_fq_helper"})


def why_not_deoptimise(gm: torch.fx.GraphModule) -> str | None:
    """Why a graph that failed half-way may have left traces outside, None when it cannot have.

    Writes to tensors that the graph itself has made do not count; a view shares the storage of what it is a view of, also among fakes.
    """
    outside: set[int] = set()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            outside |= _storages(node)
        elif node.op != "output":
            written = written_arguments(node)
            if any(_storages(argument) & outside or not _storages(argument) for argument in written):
                return f"the graph calls {_name(node)}, which may write to an outside tensor"
    return None


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments a call may write to."""
    name = _name(node)
    if name in _HIDDEN_WRITERS:
        return list(node.all_input_nodes)
    if name.endswith("__"):
        writes = name in ("__setitem__", "__delitem__") or name.strip("_") in _WRITING_OPERATORS
    elif getattr(node.target, "__module__", "") in ("_operator", "operator"):
        writes = name in _WRITING_OPERATORS
    else:
        writes = name.endswith("_") or bool(node.kwargs.get("inplace"))
    if not writes and "out" not in node.kwargs:
        return []
    given = [node.kwargs.get("out"), *(node.args[:1] or [node.kwargs.get("input"), node.kwargs.get("tensor")])]
    return list(_nodes_in(given if writes else given[:1]))


def _nodes_in(value: Any) -> Iterator[torch.fx.Node]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes_in(item)
    elif hasattr(value, "all_input_nodes"):
        yield value


def _storages(node: torch.fx.Node) -> set[int]:
    """Identities of the storages of a node's value; none when the value is not known to be strided tensors."""
    values = node.meta.get("example_value")
    found = set()
    for value in values if isinstance(values, (tuple, list)) else [values]:
        try:
            found.add(value.untyped_storage()._cdata)  # type: ignore[union-attr]
        except (AttributeError, NotImplementedError, RuntimeError):
            continue
    return found


def _emit_deoptimisation(cb: FrameCode, code: CodeType, deoptimisation: Deoptimisation) -> None:
    """The graph's exception is on the stack: run the original code with the same arguments."""
    start, end, handler = cb.label("deoptimise"), cb.label("deoptimise end"), cb.label("deoptimise failed")
    error, state = cb.temp(), cb.temp()
    cb.store_fast(error)
    cb.call_constant(begin, [error], cb.load_fast)
    cb.store_fast(state)
    original = code.replace()  # a code object of its own, so that it has no entries
    treadle_frame.skip(original)
    result = cb.temp()
    cb.place(start)
    cb.begin_call()
    cb.load_function(original)
    cb.callable_done()
    _push_arguments(cb)
    cb.call_ex(keywords=True)
    cb.store_fast(result)
    cb.place(end)
    cb.protect(start, end, handler, depth=0)
    cb.call_constant(deoptimisation.succeeded, [state, error], cb.load_fast)
    cb.pop_top()
    cb.load_fast(result)
    cb.return_value()
    cb.place(handler)
    raised = cb.temp()
    cb.store_fast(raised)
    cb.call_constant(deoptimisation.raised, [state, error, raised], cb.load_fast)
    cb.pop_top()
    cb.load_fast(raised)
    cb.emit("RERAISE", 0)


def _push_arguments(cb: FrameCode) -> None:
    """The frame's own arguments as a tuple and a dict."""
    shape = cb.shape
    names = list(shape.arguments)
    keywords = names.pop() if shape.flags & inspect.CO_VARKEYWORDS else None
    rest = names.pop() if shape.flags & inspect.CO_VARARGS else None
    positional, keyword_only = names[: shape.argcount], names[shape.argcount :]
    for name in positional:
        cb.load_fast(name)
    cb.build_list(len(positional))
    if rest is not None:
        cb.load_fast(rest)
        cb.emit("LIST_EXTEND", 1)
    _list_to_tuple(cb)
    for name in keyword_only:
        cb.load_const(name)
        cb.load_fast(name)
    cb.build_map(len(keyword_only))
    if keywords is not None:
        cb.load_fast(keywords)
        cb.emit("DICT_UPDATE", 1)


def _list_to_tuple(cb: FrameCode) -> None:
    """`list` -> `tuple`, spelled alike on all versions."""
    items = cb.temp()
    cb.store_fast(items)
    cb.call_constant(tuple, [items], cb.load_fast)


# ---- why an entry missed


def changed_dimensions(payload: Payload, frame: Any) -> dict[Source, dict[int, int]]:
    """What this call has with other sizes or values than the entry: source -> {dimension that differs: the larger of the two sizes}.

    A tensor counts when it has the same number of dimensions; ints and floats have no dimensions.
    """
    found: dict[Source, dict[int, int]] = {}
    for guard in payload.tensors:
        tensor = follow(guard.source.path, frame)
        sizes = getattr(tensor, "shape", None)
        is_constant = guard.identity is not None and tensor is guard.identity()
        if sizes is None or len(sizes) != len(guard.sizes) or is_constant:
            continue
        pairs = zip(sizes, guard.sizes, strict=True)
        dims = {d: max(have, had) for d, (have, had) in enumerate(pairs) if have != had}
        if dims:
            found[guard.source] = dims
    for source, value in payload.numbers:
        number = follow(source.path, frame)
        if type(number) is type(value) and not is_same_number(number, value):
            found[source] = {}
    return found


def exchanged_tensors(payload: Payload, frame: Any) -> set[Source]:
    """Where this call has another parameter or buffer than the one that is a constant of the entry's graph."""
    found = set()
    for guard in payload.tensors:
        if guard.identity is not None:
            tensor = follow(guard.source.path, frame)
            if type(tensor) is guard.kind and tensor is not guard.identity():
                found.add(guard.source)
    return found


def is_same_number(a: float, b: float) -> bool:
    """Whether two ints, or two floats, are one value: nan is itself, 0.0 is not -0.0."""
    return a.hex() == b.hex() if type(a) is type(b) is float else a == b


def follow(path: Path, frame: Any) -> Any:
    """The object at a guard path in a `FrameInfo`, None when there is none."""
    root, *steps = path
    try:
        value = _ROOTS[root[0]](frame, root[1])
        for kind, *argument in steps:
            value = _STEPS[kind](value, *argument)
    except (LookupError, AttributeError, TypeError, ValueError):
        return None
    return value


def _closure_contents(frame: Any, name: str) -> Any:
    return frame.closure[frame.code.co_freevars.index(name)].cell_contents


_ROOTS: Mapping[str, Callable[[Any, Any], Any]] = {
    "local": lambda frame, name: frame.locals[name],
    "global": lambda frame, name: frame.globals[name],
    "builtin": lambda frame, name: frame.builtins[name],
    "closure": _closure_contents,
    "const": lambda frame, obj: obj,
}
_STEPS: Mapping[str, Callable[..., Any]] = {
    "attr": getattr,
    "instance_dict": lambda value, name: value.__dict__[name],
    "dict_item": dict.__getitem__,
    "list_item": list.__getitem__,
    "tuple_item": tuple.__getitem__,
    "item": operator.getitem,
    "type": type,
    "dict_key": lambda value, index: list(value)[index],
    "apply": lambda value, function: function(value),
}
