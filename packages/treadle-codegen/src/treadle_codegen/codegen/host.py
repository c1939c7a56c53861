"""The host: turns a scheduled plan into one straight Python function, and holds what it needs between calls.

Workspaces (codegen/workspace.py) are taken from a free list and put back, so concurrent and re-entrant calls each have
their own, and the memory stays mapped from call to call. What depends on numbers known only at run time (the size of
`nonzero`) is allocated where they are known, and let go after its last use.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from treadle_codegen.codegen.host_externs import callee_of, needs_schema_call
from treadle_codegen.codegen.host_sizes import (
    SizeTexts,
    comparing,
    plain_text,
    reading,
    size_numbers,
    size_symbols,
    sources_of,
)
from treadle_codegen.codegen.kernel import Segment, slot_key
from treadle_codegen.codegen.plan import ExecutionPlan, last_uses, lifetimes
from treadle_codegen.codegen.shape_specialisation import ShapeSpecialisation
from treadle_codegen.codegen.workspace import NO_MEMORY, Fit, MemoryPlanner, Sizes, Workspace
from treadle_codegen.ir.loops import (
    Bind,
    BoolExpr,
    Buffer,
    BufferKind,
    Check,
    Define,
    Expr,
    Extern,
    FloatExpr,
    NumberLike,
    View,
    symbols_of,
)
from treadle_codegen.schedule.kernel import Kernel
from treadle_shapes.expr import Symbol

_INDENT = "    "
_SIZES_REMEMBERED = 256  # of a dynamic graph, to tell those that come back


@dataclass(slots=True)
class HostWriter:
    """Text of the host function under construction and the objects it refers to."""

    plan: ExecutionPlan
    sizes: SizeTexts
    lines: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    views: dict[View | str, int] = field(default_factory=dict)  # planned temporaries: views made once per workspace
    statics: dict[View, int] = field(default_factory=dict)  # views of static inputs, made once per memory address
    names: dict[str, str] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    run_time: frozenset[Any] = frozenset()  # symbols that steps define
    allocated: set[str] = field(default_factory=set)  # buffers of run-time sizes that have memory
    last_use: dict[str, int] = field(default_factory=dict)  # of buffers allocated or returned by operators on the way
    in_externs: set[str] = field(default_factory=set)  # buffers that operators take: they need a tensor
    pool: list[tuple[torch.dtype, int]] = field(
        default_factory=list
    )  # pieces for run-time sizes: dtype, busy up to this node
    computed: set[str] = field(default_factory=set)  # floats that are in the table

    def line(self, text: str) -> None:
        self.lines.append(_INDENT + text)

    def constant(self, value: Any) -> str:
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"

    def number(self, e: NumberLike) -> str:
        return self.sizes.number(e)

    def tuple_of(self, items: Sequence[NumberLike]) -> str:
        return self.sizes.tuple_of(items)

    def late(self, *values: Any) -> bool:
        """Whether something depends on numbers known only at run time."""
        return bool(self.run_time) and not self.run_time.isdisjoint(symbols_of(values))


class Host:
    """The compiled graph's callable body. `run(*inputs)` returns the list of outputs.

    `hot`, where given, has entry points of its own for the segments `hot_segments` (see codegen/shape_specialisation.py).
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        entries: dict[str, Callable[..., Any]],
        hot_segments: Sequence[str] = (),
        hot: ShapeSpecialisation | None = None,
    ) -> None:
        self.plan = plan
        self.hot = hot
        self.free: list[Workspace] = []
        spans = lifetimes(plan)
        sizes = SizeTexts(size_symbols(plan))
        writer = HostWriter(plan, sizes, planned=set(spans), run_time=frozenset(plan.program.bound_symbols))
        writer.last_use = last_uses(plan)
        writer.in_externs = {name for n in plan.nodes if isinstance(n.item, Extern) for name in n.reads | n.writes}
        body = _write_body(writer)
        numbers = size_numbers(plan, sizes)
        pool = [dtype for dtype, _ in writer.pool]
        buffers, keys = plan.program.buffers, list(writer.views)
        compared = _write_host(writer, body, list(spans), numbers, hot_segments)
        self._nothing_seen = (None,) * compared
        self._met: set[Sizes] = set()
        self._number_slots = [plan.slots[slot_key(number)] for number in numbers]
        unfitted = Fit((), NO_MEMORY, (None,) * (compared + len(sizes.values) + len(hot_segments)))
        self.planner = MemoryPlanner(buffers, spans, keys, plan.slots, sizes.in_order(), pool, unfitted)
        if hot is not None:
            hot.belongs_to(self.planner.fits, [symbol.name for symbol in self.planner.symbols], numbers)
        self.source = "\n".join(writer.lines) + "\n"
        self.static_views: list[torch.Tensor | None] = [None] * len(writer.statics)
        self.static_keys = list(writer.statics)
        self.static_pointers: list[int] = [0] * len(plan.program.inputs)
        scope: dict[str, Any] = {
            "c": writer.constants,
            "math": math,
            "free": self.free,
            "make": self.planner.new,
            "refit": self.refit,
            "fail": self.fail,
            "sv": self.static_views,
            "sp": self.static_pointers,
            "refresh": self.refresh,
            "with_strides": _with_strides,
            "empty_strided": torch.empty_strided,
            "as_strided": torch.as_strided,
            "below_autograd": torch._C._AutoDispatchBelowAutograd,
            "t_constants": plan.program.constants,
            **entries,
        }
        exec(compile(self.source, "<treadle host>", "exec"), scope)  # our own text, nothing of the user's
        self.run: Callable[..., list[Any]] = scope["run"]
        self._read_sizes: Callable[..., tuple[int, ...]] = scope.get("read_sizes", tuple)
        self._at_sizes: Callable[..., tuple[Any, ...]] = scope.get("at_sizes", tuple)
        self._seen: Callable[..., tuple[Any, ...]] = scope.get("seen", tuple)

    def refit(self, workspace: Workspace, *inputs: Any) -> tuple[Any, ...]:
        """Fit the workspace to the sizes of these inputs; the state that the host function begins with."""
        sizes = self._read_sizes(*inputs)
        fit = self.planner.fits.get(sizes) or self._new_fit(sizes, inputs)
        self.planner.fit(workspace, fit)
        if self.hot is not None:
            self.hot.last = fit
        return fit.state

    def _new_fit(self, sizes: Sizes, inputs: tuple[Any, ...]) -> Fit:
        """What follows from these sizes; kept from the second time on, as the sizes of a growing sequence do not come back."""
        values, numbers = self._at_sizes(*sizes)
        table, generic = tuple(zip(self._number_slots, numbers, strict=True)), self.hot.generic if self.hot else ()
        if sizes not in self._met:
            if len(self._met) >= _SIZES_REMEMBERED:
                self._met.clear()
            self._met.add(sizes)
            return Fit(sizes, self.planner.layout(sizes), (*self._nothing_seen, *values), table, generic)
        fit = Fit(sizes, self.planner.layout(sizes), (*self._seen(*inputs), *values), table, generic)
        fit = self.planner.keep(fit)
        if self.hot is not None:
            fit.use(self.hot.entries_at(fit))
        return fit

    def fail(self, workspace: Workspace, error: str, message: str) -> NoReturn:
        """Raise what a check found; the workspace is fit for the next call."""
        workspace.error.value = 0
        self.free.append(workspace)
        raise getattr(builtins, error)(message)

    def refresh(self, position: int, tensor: torch.Tensor) -> None:
        """Make the views of a static input anew: it is seen for the first time, or its memory was replaced."""
        name = self.plan.program.inputs[position]
        for k, key in enumerate(self.static_keys):
            if key.buffer == name:
                plain = tensor.detach()
                offset = plain.storage_offset() + key.offset  # type: ignore[operator]
                self.static_views[k] = plain.as_strided(key.shape, key.strides, offset)  # type: ignore[arg-type]
        self.static_pointers[position] = tensor.data_ptr()


def _write_body(writer: HostWriter) -> list[str]:
    """The lines that run the plan's nodes; texts of the outputs are returned."""
    plan, program = writer.plan, writer.plan.program
    for k, name in enumerate(program.inputs):
        writer.names[name] = f"a{k}"
    for k, node in enumerate(plan.nodes):
        segment = plan.segment_at.get(k)
        if segment is not None:
            end = k + len(segment.kernels)
            _allocate(writer, [name for n in plan.nodes[k:end] for name in sorted(n.writes)], k)
            _write_segment(writer, segment)
            _release(writer, range(k, end))
        elif isinstance(node.item, Extern):
            if node.item.out_variant:
                _allocate(writer, node.item.outputs, k)
            _write_extern(writer, node.item)
            _release(writer, range(k, k + 1))
        elif isinstance(node.item, Check):
            _write_check(writer, node.item.condition, node.item.error, node.item.message)
        elif isinstance(node.item, Define):
            writer.line(f"{node.item.symbol.name} = {writer.number(node.item.value)}")
            _to_table(writer, node.item.symbol)
    outputs = [out for out in program.outputs if isinstance(out, View)]
    _allocate(writer, [out.buffer for out in outputs], len(plan.nodes))  # an empty result has no step that writes it
    return [_output(writer, out) for out in program.outputs]


def _write_host(
    writer: HostWriter, outputs: list[str], planned: list[str], numbers: list[Any], hot_segments: Sequence[str]
) -> int:
    """The whole function: head, body (written already), result; with how many things of its inputs it compares."""
    plan, program, sizes = writer.plan, writer.plan.program, writer.sizes
    body, writer.lines = writer.lines, []
    _write_head(writer)
    head, writer.lines = writer.lines, []
    inputs = ", ".join(f"a{k}" for k in range(len(program.inputs)))
    sizes.used |= symbols_of([(program.buffers[name].shape, program.buffers[name].strides) for name in planned])
    sizes.used |= symbols_of([numbers, [key for key in writer.views if isinstance(key, View)]])
    sources = sources_of(program, program.size_symbols)
    compared = list(dict.fromkeys(comparing(sources[symbol]) for symbol in sizes.in_order()))
    seen = [f"x{k}" for k in range(len(compared))]
    names = [*seen, *sizes.values.values()]
    writer.lines.append(f"def run({inputs}):")
    for symbol in program.size_symbols:
        if symbol not in sizes.symbols:
            writer.line(f"{symbol.name} = {reading(sources[symbol])}")
    writer.line("try: w = free.pop()")
    writer.line("except IndexError: w = make()")
    if compared:
        state = f"({', '.join([*names, *hot_segments])}, )"
        changed = " or ".join(f"{text} != {name}" for text, name in zip(compared, seen, strict=True))
        writer.line(f"{state} = w.fitted.state")
        writer.line(f"if {changed}: {state} = refit(w, {inputs})")
    writer.line("p = w.table")
    if any(isinstance(n, FloatExpr) for s in plan.segments for k in s.kernels for n in k.numbers if n not in numbers):
        writer.line("pf = w.floats")
    for symbol in program.size_symbols:
        if symbol not in sizes.symbols:
            _to_table(writer, symbol)
    writer.lines += head + body
    if any(kernel.checks_bounds for s in plan.segments for kernel in s.kernels):
        writer.line("if w.error.value: fail(w, 'IndexError', 'index out of range in self')")
    writer.line(f"result = [{', '.join(outputs)}]")
    writer.line("free.append(w)")
    writer.line("return result")
    if compared:
        symbols = ", ".join(symbol.name for symbol in sizes.in_order())
        readings = ", ".join(reading(sources[symbol]) for symbol in sizes.in_order())
        writer.lines += [
            f"def read_sizes({inputs}): return ({readings}, )",
            f"def seen({inputs}): return ({', '.join(compared)}, )",
            f"def at_sizes({symbols}): return ({_items(sizes.values)}), ({_items(map(plain_text, numbers))})",
        ]
    return len(compared)


def _items(texts: Iterable[str]) -> str:
    return "".join(f"{text}, " for text in texts)


def _to_table(writer: HostWriter, symbol: Any) -> None:
    """Tell the kernels the value of an integer symbol, if one takes it."""
    slot = writer.plan.slots.get(slot_key(symbol)) if not isinstance(symbol, FloatExpr) else None
    if slot is not None:
        writer.line(f"p[{slot}] = {symbol.name}")


def _allocate(writer: HostWriter, names: Sequence[str], node: int) -> None:
    """Memory for buffers whose sizes are known only now, before `node` runs."""
    for name in names:
        buffer = writer.plan.program.buffers.get(name)
        if buffer is None or name in writer.allocated or buffer.kind not in (BufferKind.TEMP, BufferKind.OUTPUT):
            continue
        if name in writer.planned or name in writer.names or not writer.late(buffer.shape, buffer.strides):
            continue
        writer.allocated.add(name)
        pooled = buffer.kind is BufferKind.TEMP and name in writer.last_use
        for line in _pooled(writer, buffer, node) if pooled else _fresh(writer, buffer):
            writer.line(line)


def _pooled(writer: HostWriter, buffer: Buffer, node: int) -> list[str]:
    """A piece of the workspace's pool whose last user is done before `node`: its memory is mapped already."""
    last = writer.last_use[buffer.name]
    free = (k for k, (dtype, busy) in enumerate(writer.pool) if dtype == buffer.dtype and busy < node)
    piece = next(free, len(writer.pool))
    writer.pool[piece : piece + 1] = [(buffer.dtype, last)]
    elements = 1 + sum((n - 1) * s for n, s in zip(buffer.shape, buffer.strides, strict=True))
    lines = []
    if buffer.name in writer.plan.slots:
        lines.append(f"p[{writer.plan.slots[buffer.name]}] = w.room({piece}, {writer.number(elements)})")
    if buffer.name in writer.in_externs:
        if not lines:
            lines.append(f"w.room({piece}, {writer.number(elements)})")
        shape, strides = writer.tuple_of(buffer.shape), writer.tuple_of(buffer.strides)
        lines.append(f"{_variable(writer, buffer.name)} = as_strided(w.pool[{piece}], {shape}, {strides})")
    return lines


def _fresh(writer: HostWriter, buffer: Buffer) -> list[str]:
    variable = _variable(writer, buffer.name)
    shape, strides = writer.tuple_of(buffer.shape), writer.tuple_of(buffer.strides)
    lines = [f"{variable} = empty_strided({shape}, {strides}, dtype={writer.constant(buffer.dtype)})"]
    if buffer.name in writer.plan.slots:
        lines.append(f"p[{writer.plan.slots[buffer.name]}] = {variable}.data_ptr()")
    return lines


def _release(writer: HostWriter, nodes: range) -> None:
    """Let go of memory that nothing needs after these nodes."""
    done = [name for k in nodes for name in writer.plan.nodes[k].reads | writer.plan.nodes[k].writes]
    variables = {
        writer.names[name]
        for name in done
        if name in writer.names and name not in writer.planned and writer.last_use.get(name) in nodes
    }
    if variables:
        writer.line(f"{' = '.join(sorted(variables))} = None")


def _write_check(writer: HostWriter, condition: Any, error: str, message: str) -> None:
    failure = f"fail(w, {error!r}, {writer.constant(message)})"
    writer.line(f"if not ({writer.number(condition)}): {failure}")


def _write_head(writer: HostWriter) -> None:
    """Pointers of inputs and constants, fresh outputs and static views: known only after the body is written."""
    plan, program = writer.plan, writer.plan.program
    static_used = {key.buffer for key in writer.statics}
    for k, name in enumerate(program.inputs):
        buffer = program.buffers.get(name)
        if buffer is None:
            continue
        if name in static_used:
            writer.line(f"q = a{k}.data_ptr()")
            writer.line(f"if q != sp[{k}]: refresh({k}, a{k})")
            if name in plan.slots:
                writer.line(f"p[{plan.slots[name]}] = q")
        elif name in plan.slots:
            writer.line(f"p[{plan.slots[name]}] = a{k}.data_ptr()")
    for name in program.constants:
        if name in plan.slots:
            writer.line(f"p[{plan.slots[name]}] = t_constants[{name!r}].data_ptr()")
    made_by_ops = {
        name for n in plan.nodes if isinstance(n.item, Extern) and not n.item.out_variant for name in n.item.outputs
    }
    inside = {name for n in plan.nodes if isinstance(n.item, Kernel) for name in n.item.locals}
    touched = {name for n in plan.nodes for name in n.reads | n.writes}
    touched |= {v.buffer for v in program.outputs if isinstance(v, View)}  # an empty result has no step that writes it
    for name, buffer in program.buffers.items():
        fresh = buffer.kind in (BufferKind.OUTPUT, BufferKind.TEMP) and name not in writer.planned
        if not fresh or name in made_by_ops or name in inside or name not in touched or name in writer.allocated:
            continue
        for line in _fresh(writer, buffer):
            writer.line(line)
    if writer.views:
        names = "".join(f"w{k}, " for k in range(len(writer.views)))
        writer.line(f"{names}= w.views")


def _write_segment(writer: HostWriter, segment: Segment) -> None:
    labels = ", ".join(kernel.label for kernel in segment.kernels)
    for number in dict.fromkeys(n for kernel in segment.kernels for n in kernel.numbers):
        key = slot_key(number)
        if not isinstance(number, Symbol) and key not in writer.computed and not writer.sizes.covers(number):
            writer.computed.add(key)
            table = "pf" if isinstance(number, FloatExpr) else "p"
            writer.line(f"{table}[{writer.plan.slots[key]}] = {writer.number(number)}")
    writer.line(f"{segment.name}(w.address)  # {labels}")


def _variable(writer: HostWriter, buffer: str) -> str:
    if buffer not in writer.names:
        writer.names[buffer] = f"t{len(writer.names)}"
    return writer.names[buffer]


def _whole(view: View, buffer: Buffer) -> bool:
    return view.shape == buffer.shape and view.strides == buffer.strides and view.offset == 0


def _tensor(writer: HostWriter, view: View | str) -> str:
    """Text of the tensor that a view stands for."""
    program = writer.plan.program
    buffer = program.buffers[view if isinstance(view, str) else view.buffer]
    if buffer.name in writer.planned and isinstance(view, View) and writer.late(view):
        return _as_strided(writer, _tensor(writer, view.buffer), view)
    if buffer.name in writer.planned:
        key: View | str = buffer.name if isinstance(view, str) or _whole(view, buffer) else view
        return f"w{writer.views.setdefault(key, len(writer.views))}"
    if buffer.opaque:
        return _variable(writer, buffer.name)
    if buffer.kind is BufferKind.STATIC:
        if isinstance(view, str):
            view = View(view, buffer.shape, buffer.strides)
        if not all(isinstance(n, int) for n in (*view.shape, *view.strides, view.offset)):
            return _as_strided(writer, _variable(writer, buffer.name), view)
        return f"sv[{writer.statics.setdefault(view, len(writer.statics))}]"
    if buffer.kind is BufferKind.CONSTANT:
        name = f"t_constants[{buffer.name!r}]"
    else:
        name = _variable(writer, buffer.name)
    if isinstance(view, str) or _whole(view, buffer):
        return name
    return _as_strided(writer, name, view)


def _as_strided(writer: HostWriter, tensor: str, view: View) -> str:
    offset = f"{tensor}.storage_offset() + {writer.number(view.offset)}"
    return f"as_strided({tensor}, {writer.tuple_of(view.shape)}, {writer.tuple_of(view.strides)}, {offset})"


def _argument(writer: HostWriter, arg: Any) -> str:
    if isinstance(arg, View):
        return _tensor(writer, arg)
    if isinstance(arg, (Expr, FloatExpr, BoolExpr)):
        return writer.number(arg)
    if isinstance(arg, (list, tuple)):
        items = "".join(_argument(writer, a) + ", " for a in arg)
        return f"[{items}]" if isinstance(arg, list) else f"({items})"
    if arg is None or isinstance(arg, (bool, int)):
        return repr(arg)
    return writer.constant(arg)


def _write_extern(writer: HostWriter, step: Extern) -> None:
    plan = writer.plan
    pieces = [_argument(writer, a) for a in step.args]
    pieces += [f"{k}={_argument(writer, v)}" for k, v in step.kwargs.items()]
    if step.out_variant:
        outs = [_tensor(writer, name) for name in step.outputs]
        if needs_schema_call(step):
            names = [a.name for a in step.op._schema.arguments if a.is_out]
            pieces += [f"{name}={out}" for name, out in zip(names, outs, strict=True)]
        else:
            pieces.append(f"out={outs[0] if len(outs) == 1 else '(' + ', '.join(outs) + ')'}")
    call = f"{writer.constant(callee_of(step))}({', '.join(pieces)})"
    if step.out_variant:
        writer.line(call)
        return
    wanted = [name for name in step.outputs if name]
    bound = {bind.result for bind in step.binds}
    variables = [
        _variable(writer, name) if name else f"r{k}" if k in bound else "_" for k, name in enumerate(step.outputs)
    ]
    results = ", ".join(variables)
    returns = step.op._schema.returns
    many = len(returns) > 1 or (len(returns) == 1 and isinstance(returns[0].type, torch.ListType))
    writer.line(f"{results}{',' if many and len(step.outputs) == 1 else ''} = {call}" if wanted or bound else call)
    for bind in step.binds:
        _write_bind(writer, bind, variables[bind.result])
    for name in wanted:
        _fix_result(writer, name)
        if name in plan.slots:
            writer.line(f"p[{plan.slots[name]}] = {_variable(writer, name)}.data_ptr()")


def _write_bind(writer: HostWriter, bind: Bind, variable: str) -> None:
    """The value of a symbol, once it is known."""
    symbol, text = bind.symbol, variable if bind.dim is None else f"{variable}.size({bind.dim})"
    if bind.factor != 1:
        text = f"{text} // {bind.factor}"
    if symbol.upper == 1 and bind.dim is None:
        text = f"int({text})"  # of a bool
    writer.line(f"{symbol.name} = {text}")
    for k, end in enumerate(("lower", "upper")):
        limit = getattr(symbol, end)
        if limit is not None and not (end == "lower" and limit <= 0 and bind.dim is not None):
            sign, words = ((">=", "at least"), ("<=", "at most"))[k]
            message = f"{bind.source} must be {words} {limit}"
            writer.line(f"if not ({symbol.name} {sign} {limit}): fail(w, 'RuntimeError', {writer.constant(message)})")
    _to_table(writer, symbol)


def _fix_result(writer: HostWriter, name: str) -> None:
    """A functional extern may choose strides of its own; what follows counts on the planned ones."""
    buffer, variable = writer.plan.program.buffers[name], _variable(writer, name)
    if buffer.opaque:
        return
    shape, strides = writer.tuple_of(buffer.shape), writer.tuple_of(buffer.strides)
    dtype = writer.constant(buffer.dtype)
    writer.line(
        f"if {variable}.stride() != {strides}: {variable} = with_strides({variable}, {shape}, {strides}, {dtype})"
    )


def _with_strides(
    x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """`x` in memory laid out by `strides`; only looked at anew when just the strides of dimensions of size 1 differ."""
    if all(n == 1 or a == b for n, a, b in zip(shape, x.stride(), strides, strict=True)):
        return x.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(x)


def _output(writer: HostWriter, out: View | NumberLike | None) -> str:
    if out is None:
        return "None"
    if not isinstance(out, View):
        return writer.number(out)
    text = _tensor(writer, out)
    kind = writer.plan.program.buffers[out.buffer].kind
    return f"{text}.clone()" if kind in (BufferKind.CONSTANT, BufferKind.STATIC) else text
