"""The host: turns a scheduled plan into one straight Python function, and holds what it needs between calls.

A *workspace* is what one call in flight needs: the arena with all planned temporaries, tensor views of them for extern calls
(made once), and the pointer table that the kernels read. Workspaces are taken from a free list and put back, so
concurrent and re-entrant calls each have their own, and the memory stays mapped from call to call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.codegen.host_externs import callee_of, needs_schema_call
from treadle_codegen.codegen.kernel import Segment
from treadle_codegen.ir.loops import Buffer, BufferKind, Extern, IntLike, Program, View
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.memory import Lifetime, plan_arena
from treadle_shapes.expr import Expr, Symbol, evaluate, to_python

_INDENT = "    "
_SIZES_KEPT = 8  # a dynamic graph keeps the workspaces of this many different sizes


@dataclass(slots=True)
class Plan:
    """A program after scheduling: fused nodes, the segments of its kernels by position of their first node, table slots."""

    program: Program
    nodes: list[Node]
    segments: list[Segment]
    segment_at: dict[int, Segment]  # node position -> segment starting there
    slots: dict[str, int]


class Workspace:
    """Memory of one call in flight; `views` hold the tensors that externs use, `table` the kernels' pointers."""

    __slots__ = ("address", "arena", "error", "table", "views")

    def __init__(self, table_size: int, arena_size: int) -> None:
        self.table = (ctypes.c_void_p * table_size)()
        self.address = ctypes.addressof(self.table)
        self.error = ctypes.c_int64(0)
        self.table[0] = ctypes.addressof(self.error)
        self.arena = torch.empty(arena_size, dtype=torch.uint8)
        self.views: tuple[torch.Tensor, ...] = ()


def storage_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor; 0 for an empty one."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


@dataclass(slots=True)
class HostWriter:
    """Text of the host function under construction and the objects it refers to."""

    plan: Plan
    lines: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    views: dict[View | str, int] = field(default_factory=dict)  # planned temporaries: views made once per workspace
    statics: dict[View, int] = field(default_factory=dict)  # views of static inputs, made once per memory address
    names: dict[str, str] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    symbols: dict[str, str] = field(default_factory=dict)

    def line(self, text: str) -> None:
        self.lines.append(_INDENT + text)

    def constant(self, value: Any) -> str:
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"

    def size(self, e: IntLike) -> str:
        return str(e) if isinstance(e, int) else to_python(e)

    def tuple_of(self, items: Sequence[IntLike]) -> str:
        return "(" + "".join(self.size(i) + ", " for i in items) + ")"


def lifetimes(plan: Plan) -> dict[str, tuple[int, int]]:
    """First and last node that touches each temporary that can be planned (not made by a functional extern, not returned)."""
    returned = {v.buffer for v in plan.program.outputs if isinstance(v, View)}
    made_by_ops = {
        name for n in plan.nodes if isinstance(n.item, Extern) and not n.item.out_variant for name in n.item.outputs
    }
    spans: dict[str, tuple[int, int]] = {}
    for k, node in enumerate(plan.nodes):
        for name in node.reads | node.writes:
            buffer = plan.program.buffers.get(name)
            if buffer is None or buffer.kind is not BufferKind.TEMP or name in returned or name in made_by_ops:
                continue
            spans[name] = (min(spans[name][0], k) if name in spans else k, k)
    return spans


class Host:
    """The compiled graph's callable body. `run(*inputs)` returns the list of outputs."""

    def __init__(self, plan: Plan, entries: dict[str, Callable[..., Any]]) -> None:
        self.plan = plan
        self.spans = lifetimes(plan)
        self.free: dict[tuple[int, ...], list[Workspace]] = {}
        writer = HostWriter(plan, planned=set(self.spans))
        for symbol in plan.program.size_symbols:
            writer.symbols[symbol.name] = symbol.name
        _write_host(writer)
        self.view_keys = list(writer.views)
        self.source = "\n".join(writer.lines) + "\n"
        self.static_views: list[torch.Tensor | None] = [None] * len(writer.statics)
        self.static_keys = list(writer.statics)
        self.static_pointers: list[int] = [0] * len(plan.program.inputs)
        for entry in entries.values():
            entry.argtypes = [ctypes.c_void_p]
            entry.restype = None
        scope: dict[str, Any] = {
            "c": writer.constants,
            "free": self.workspaces(()),
            "workspaces": self.workspaces,
            "make": self.make,
            "sv": self.static_views,
            "sp": self.static_pointers,
            "refresh": self.refresh,
            "out_of_range": _out_of_range,
            "with_strides": _with_strides,
            "empty_strided": torch.empty_strided,
            "as_strided": torch.as_strided,
            "below_autograd": torch._C._AutoDispatchBelowAutograd,
            "t_constants": plan.program.constants,
            **entries,
        }
        exec(compile(self.source, "<treadle host>", "exec"), scope)  # our own text, nothing of the user's
        self.run: Callable[..., list[Any]] = scope["run"]

    def workspaces(self, sizes: tuple[int, ...]) -> list[Workspace]:
        """The free workspaces for these values of the size symbols; a few sizes keep theirs."""
        free = self.free.get(sizes)
        if free is None:
            if len(self.free) >= _SIZES_KEPT:
                self.free.clear()
            free = self.free.setdefault(sizes, [])
        return free

    def make(self, sizes: tuple[int, ...]) -> Workspace:
        """Plan and allocate a workspace for these sizes."""
        program = self.plan.program
        env = dict(zip(program.size_symbols, sizes, strict=True))

        def number(e: IntLike) -> int:
            return e if isinstance(e, int) else evaluate(e, env)

        def numbers(items: Sequence[IntLike]) -> tuple[int, ...]:
            return tuple(map(number, items))

        lives = []
        for name, (first, last) in self.spans.items():
            b = program.buffers[name]
            size = storage_elements(numbers(b.shape), numbers(b.strides)) * b.dtype.itemsize
            lives.append(Lifetime(name, size, first, last))
        arena_plan = plan_arena(lives)
        workspace = Workspace(len(self.plan.slots) + 1, arena_plan.size)
        base = workspace.arena.data_ptr()
        for name, offset in arena_plan.offsets.items():
            slot = self.plan.slots.get(name)
            if slot is not None:
                workspace.table[slot] = base + offset
        for symbol, value in env.items():
            slot = self.plan.slots.get(symbol.name)
            if slot is not None:
                workspace.table[slot] = value
        views = []
        for key in self.view_keys:
            buffer = program.buffers[key if isinstance(key, str) else key.buffer]
            shape, strides, offset = (
                (buffer.shape, buffer.strides, 0) if isinstance(key, str) else (key.shape, key.strides, key.offset)
            )
            typed = workspace.arena[arena_plan.offsets[buffer.name] :]
            typed = typed[: len(typed) // buffer.dtype.itemsize * buffer.dtype.itemsize].view(buffer.dtype)
            views.append(typed.as_strided(numbers(shape), numbers(strides), typed.storage_offset() + number(offset)))
        workspace.views = tuple(views)
        return workspace

    def refresh(self, position: int, tensor: torch.Tensor) -> None:
        """Make the views of a static input anew: it is seen for the first time, or its memory was replaced."""
        name = self.plan.program.inputs[position]
        for k, key in enumerate(self.static_keys):
            if key.buffer == name:
                plain = tensor.detach()
                offset = plain.storage_offset() + key.offset  # type: ignore[operator]
                self.static_views[k] = plain.as_strided(key.shape, key.strides, offset)  # type: ignore[arg-type]
        self.static_pointers[position] = tensor.data_ptr()


def _out_of_range(workspace: Workspace) -> None:
    workspace.error.value = 0
    raise IndexError("index out of range in self")


def _write_host(writer: HostWriter) -> None:
    plan, program = writer.plan, writer.plan.program
    inputs = ", ".join(f"a{k}" for k in range(len(program.inputs)))
    writer.lines.append(f"def run({inputs}):")
    for k, name in enumerate(program.inputs):
        writer.names[name] = f"a{k}"
    for symbol in program.size_symbols:
        writer.line(f"{symbol.name} = {_size_source(writer, symbol)}")
    sizes = "(" + "".join(f"{s.name}, " for s in program.size_symbols) + ")"
    if program.size_symbols:
        writer.line(f"free = workspaces({sizes})")
    writer.line("try: w = free.pop()")
    writer.line(f"except IndexError: w = make({sizes})")
    writer.line("p = w.table")
    body_start = len(writer.lines)
    for k, node in enumerate(plan.nodes):
        segment = plan.segment_at.get(k)
        if segment is not None:
            _write_segment(writer, segment)
        elif isinstance(node.item, Extern):
            _write_extern(writer, node.item)
    outputs = [_output(writer, out) for out in program.outputs]
    _write_head(writer, body_start)
    if any(kernel.checks_bounds for s in plan.segments for kernel in s.kernels):
        writer.line("if w.error.value: out_of_range(w)")
    writer.line(f"result = [{', '.join(outputs)}]")
    writer.line("free.append(w)")
    writer.line("return result")


def _size_source(writer: HostWriter, symbol: Symbol) -> str:
    """Where a call finds the value of a size symbol: its own argument, or a size (else a stride) of an input tensor."""
    if symbol.name in writer.names:
        return writer.names[symbol.name]
    program = writer.plan.program
    buffers = [(k, program.buffers[name]) for k, name in enumerate(program.inputs) if name in program.buffers]
    for method, extents in (("size", "shape"), ("stride", "strides")):
        for k, buffer in buffers:
            for d, extent in enumerate(getattr(buffer, extents)):
                if extent is symbol:
                    return f"a{k}.{method}({d})"
    raise ValueError(f"no input has a size or stride {symbol.name}")


def _write_head(writer: HostWriter, at: int) -> None:
    """Pointers of inputs and constants, fresh outputs and static views: known only after the body is written."""
    plan, program = writer.plan, writer.plan.program
    head: list[str] = []
    static_used = {key.buffer for key in writer.statics}
    for k, name in enumerate(program.inputs):
        buffer = program.buffers.get(name)
        if buffer is None:
            continue
        if name in static_used:
            head.append(f"q = a{k}.data_ptr()")
            head.append(f"if q != sp[{k}]: refresh({k}, a{k})")
            if name in plan.slots:
                head.append(f"p[{plan.slots[name]}] = q")
        elif name in plan.slots:
            head.append(f"p[{plan.slots[name]}] = a{k}.data_ptr()")
    for name in program.constants:
        if name in plan.slots:
            head.append(f"p[{plan.slots[name]}] = t_constants[{name!r}].data_ptr()")
    made_by_ops = {
        name for n in plan.nodes if isinstance(n.item, Extern) and not n.item.out_variant for name in n.item.outputs
    }
    inside = {name for n in plan.nodes if not isinstance(n.item, Extern) for name in n.item.locals}
    touched = {name for n in plan.nodes for name in n.reads | n.writes}
    touched |= {v.buffer for v in program.outputs if isinstance(v, View)}  # an empty result has no step that writes it
    for name, buffer in program.buffers.items():
        fresh = buffer.kind in (BufferKind.OUTPUT, BufferKind.TEMP) and name not in writer.planned
        if not fresh or name in made_by_ops or name in inside or name not in touched:
            continue
        variable = _variable(writer, name)
        shape, strides = writer.tuple_of(buffer.shape), writer.tuple_of(buffer.strides)
        head.append(f"{variable} = empty_strided({shape}, {strides}, dtype={writer.constant(buffer.dtype)})")
        if name in plan.slots:
            head.append(f"p[{plan.slots[name]}] = {variable}.data_ptr()")
    if writer.views:
        names = "".join(f"w{k}, " for k in range(len(writer.views)))
        head.append(f"{names}= w.views")
    writer.lines[at:at] = [_INDENT + text for text in head]


def _write_segment(writer: HostWriter, segment: Segment) -> None:
    labels = ", ".join(kernel.label for kernel in segment.kernels)
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
    if buffer.name in writer.planned:
        key: View | str = buffer.name if isinstance(view, str) or _whole(view, buffer) else view
        return f"w{writer.views.setdefault(key, len(writer.views))}"
    if buffer.opaque:
        return _variable(writer, buffer.name)
    if buffer.kind is BufferKind.STATIC:
        if isinstance(view, str):
            view = View(view, buffer.shape, buffer.strides)
        if not all(isinstance(n, int) for n in (*view.shape, *view.strides, view.offset)):
            whole = _tensor(writer, view.buffer)
            offset = f"{whole}.storage_offset() + {writer.size(view.offset)}"
            return f"as_strided({whole}, {writer.tuple_of(view.shape)}, {writer.tuple_of(view.strides)}, {offset})"
        return f"sv[{writer.statics.setdefault(view, len(writer.statics))}]"
    if buffer.kind is BufferKind.CONSTANT:
        name = f"t_constants[{buffer.name!r}]"
    else:
        name = _variable(writer, buffer.name)
    if isinstance(view, str) or _whole(view, buffer):
        return name
    offset = f"{name}.storage_offset() + {writer.size(view.offset)}"
    return f"as_strided({name}, {writer.tuple_of(view.shape)}, {writer.tuple_of(view.strides)}, {offset})"


def _argument(writer: HostWriter, arg: Any) -> str:
    if isinstance(arg, View):
        return _tensor(writer, arg)
    if isinstance(arg, Expr):
        return writer.size(arg)
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
    results = ", ".join(_variable(writer, name) if name else "_" for name in step.outputs)
    returns = step.op._schema.returns
    many = len(returns) > 1 or (len(returns) == 1 and isinstance(returns[0].type, torch.ListType))
    writer.line(f"{results}{',' if many and len(step.outputs) == 1 else ''} = {call}" if wanted else call)
    for name in wanted:
        _fix_result(writer, name)
        if name in plan.slots:
            writer.line(f"p[{plan.slots[name]}] = {_variable(writer, name)}.data_ptr()")


def _fix_result(writer: HostWriter, name: str) -> None:
    """A functional extern may choose strides of its own; what follows counts on the planned ones."""
    buffer, variable = writer.plan.program.buffers[name], _variable(writer, name)
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


def _output(writer: HostWriter, out: View | IntLike | None) -> str:
    if out is None:
        return "None"
    if not isinstance(out, View):
        return writer.size(out)
    text = _tensor(writer, out)
    kind = writer.plan.program.buffers[out.buffer].kind
    return f"{text}.clone()" if kind in (BufferKind.CONSTANT, BufferKind.STATIC) else text
