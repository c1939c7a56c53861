"""The text of the host function: one straight Python function per graph, specialised for its plan and its target.

def run(a0):
    try: w = free.pop()                            # a workspace: the memory of one call
    except IndexError: w = make()
    p = w.table
    p[1] = a0.data_ptr()                           # what goes into the table is the target's choice (`EntryABI`)
    t1 = empty_strided((4, ), (1, ), dtype=c[0])
    p[2] = t1.data_ptr()
    segment_0(w.argument)                          # kernels without an extern in between: one call
    result = [t1]
    free.append(w)
    return result
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.host.externs import callee_of_call, needs_schema_call
from treadle_codegen.host.plan import ExecutionPlan, returned_layouts
from treadle_codegen.host.read_together import ReadTogether, reads_together
from treadle_codegen.host.sizes import SizeTexts, comparing, plain_text, reading, sources_of
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
    bound_symbols,
    symbols_of,
)
from treadle_codegen.schedule.gather_numbers import READ_NUMBER
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import Segment
from treadle_codegen.targets.table_slots import slot_key
from treadle_codegen.targets.target import LARGE, Target
from treadle_shapes.expr import Symbol
from treadle_shapes.layouts import product

_INDENT = "    "


@dataclass(slots=True)
class HostWriter:
    """The text of the host function under construction, and the objects that it refers to.

    callees: positions of callables among the constants, and the operators that they are of;
    views: views of planned temporaries, made once per workspace; statics: views of static inputs, made once per memory
    address; names: the variable of each buffer; planned: buffers with a place in the arena; run_time: symbols that steps
    define; allocated: buffers of such sizes that have memory by now; last_use: the last node that touches each buffer that
    is allocated or returned by an operator during the call; in_externs: buffers that operators take, which need a tensor;
    pool: dtype of each piece of memory for run-time sizes, and the node up to which it is busy; computed: table keys of
    numbers that are in the table; borrows: every call takes its temporaries' memory from the allocator; needed: symbols that the text
    mentions; made_as: buffers that are allocated in another layout than their own (`plan.returned_layouts`).
    """

    plan: ExecutionPlan
    target: Target
    sizes: SizeTexts
    lines: list[str] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    callees: dict[int, Any] = field(default_factory=dict)
    views: dict[View | str, int] = field(default_factory=dict)
    statics: dict[View, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    run_time: frozenset[Any] = frozenset()
    allocated: set[str] = field(default_factory=set)
    last_use: dict[str, int] = field(default_factory=dict)
    in_externs: set[str] = field(default_factory=set)
    pool: list[tuple[torch.dtype, int]] = field(default_factory=list)
    computed: set[str] = field(default_factory=set)
    borrows: bool = False
    needed: frozenset[Any] = frozenset()
    made_as: dict[str, View] = field(init=False)

    def __post_init__(self) -> None:
        self.made_as = returned_layouts(self.plan)

    def line(self, text: str) -> None:
        self.lines.append(_INDENT + text)

    def constant(self, value: Any) -> str:
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"

    def enter(self, buffer: str, tensor: str, address: str | None = None) -> None:
        """Put the tensor in a variable into the table, if a kernel takes the buffer; `address` holds its `data_ptr()`."""
        if buffer in self.plan.slots:
            self.line(f"p[{self.plan.slots[buffer]}] = {self.target.abi.buffer_text(tensor, address)}")

    def number(self, e: NumberLike) -> str:
        return self.sizes.number(e)

    def tuple_of(self, items: Sequence[NumberLike]) -> str:
        return self.sizes.tuple_of(items)

    def late(self, *values: Any) -> bool:
        """Whether something depends on numbers that are known only during the call."""
        return bool(self.run_time) and not self.run_time.isdisjoint(symbols_of(values))


def write_body(writer: HostWriter) -> list[str]:
    """Write the lines that run the plan's nodes; the texts of the outputs are returned."""
    plan, program = writer.plan, writer.plan.program
    for k, name in enumerate(program.inputs):
        writer.names[name] = f"a{k}"
    for output, updated in program.in_place.items():
        writer.names[output] = writer.names[updated]
    writer.computed = {slot_key(result) for s in plan.segments for group in s.numbers for result in group.results}
    together = _reads_together(writer)
    end = 0
    for k, node in enumerate(plan.nodes):
        segment = plan.segment_at.get(k)
        if segment is not None:
            end = plan.ends[k]
            _allocate(writer, [name for n in plan.nodes[k:end] for name in sorted(n.writes)], k)
            _write_segment(writer, segment)
            if segment.numbers:
                _write_recheck(writer, segment)
            elif program.in_place:  # before anything of the caller's is written
                _write_index_check(writer, [segment])
            _release(writer, range(k, end))
        elif k < end:
            continue
        elif isinstance(node.item, Extern):
            if node.item.out_variant:
                _allocate(writer, node.item.outputs, k)
            if k in together:
                _write_read(writer, node.item, k, *together[k])
            else:
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


def write_host(
    writer: HostWriter, outputs: list[str], planned: list[str], numbers: list[Any], hot_segments: Sequence[str]
) -> int:
    """Write the whole function: head, body (which `writer.lines` holds already), result.

    Returns how many sizes or shapes of its inputs the function compares with those of the last call.
    """
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
    if writer.borrows and planned:
        writer.line("m = borrow(w)")
    writer.line("p = w.table")
    taken = {n for s in plan.segments for k in s.kernels for n in (*k.numbers, *k.results)}
    if any(isinstance(n, FloatExpr) for n in taken.difference(numbers)):
        writer.line("pf = w.floats")
    for symbol in program.size_symbols:
        if symbol not in sizes.symbols:
            _to_table(writer, symbol)
    writer.lines += head + body
    if not program.in_place:
        _write_index_check(writer, plan.segments)
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
    """Put the value of an integer symbol into the table, if a kernel takes it."""
    slot = writer.plan.slots.get(slot_key(symbol)) if not isinstance(symbol, FloatExpr) else None
    if slot is not None:
        writer.line(f"p[{slot}] = {symbol.name}")


def _allocate(writer: HostWriter, names: Sequence[str], node: int) -> None:
    """Allocate the buffers whose sizes are known only now, just before `node` runs."""
    for name in names:
        buffer = writer.plan.program.buffers.get(name)
        if buffer is None or name in writer.allocated or buffer.kind not in (BufferKind.TEMP, BufferKind.OUTPUT):
            continue
        if name in writer.planned or name in writer.names or not writer.late(buffer.shape, buffer.strides):
            continue
        writer.allocated.add(name)
        pooled = buffer.kind is BufferKind.TEMP and name in writer.last_use and not writer.borrows
        if pooled:
            _pooled(writer, buffer, node)
        else:
            _fresh(writer, buffer)


def _pooled(writer: HostWriter, buffer: Buffer, node: int) -> None:
    """Take a piece of the workspace's pool whose last user is done before `node`; its memory is mapped already."""
    last = writer.last_use[buffer.name]
    free = (k for k, (dtype, busy) in enumerate(writer.pool) if dtype == buffer.dtype and busy < node)
    piece = next(free, len(writer.pool))
    writer.pool[piece : piece + 1] = [(buffer.dtype, last)]
    elements = 1 + sum((n - 1) * s for n, s in zip(buffer.shape, buffer.strides, strict=True))
    room = f"w.room({piece}, {writer.number(elements)})"
    if buffer.name in writer.plan.slots:
        room = f"p[{writer.plan.slots[buffer.name]}] = {room}"
    elif buffer.name not in writer.in_externs:
        return
    writer.line(room)
    if buffer.name in writer.in_externs:
        shape, strides = writer.tuple_of(buffer.shape), writer.tuple_of(buffer.strides)
        writer.line(f"{_variable(writer, buffer.name)} = as_strided(w.pool[{piece}], {shape}, {strides})")


def _fresh(writer: HostWriter, buffer: Buffer) -> None:
    """Allocate a buffer for this call alone."""
    variable = _variable(writer, buffer.name)
    layout = writer.made_as.get(buffer.name, buffer)
    shape, strides = writer.tuple_of(layout.shape), writer.tuple_of(layout.strides)
    made = f"empty_strided({shape}, {strides}, dtype={writer.constant(buffer.dtype)})"
    writer.line(f"{variable} = large({made})" if _may_be_large(buffer) else f"{variable} = {made}")
    writer.enter(buffer.name, variable)


def _may_be_large(buffer: Buffer) -> bool:
    """Whether the buffer may have as many bytes as `Allocation.large` waits for."""
    elements = product(buffer.shape)
    return not isinstance(elements, int) or elements * buffer.dtype.itemsize >= LARGE


def _release(writer: HostWriter, nodes: range) -> None:
    """Release memory that nothing needs after these nodes."""
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
    """Write what stands before the body and follows from it: entries of inputs and constants, outputs, static views."""
    plan, program = writer.plan, writer.plan.program
    static_used = {key.buffer for key in writer.statics}
    for k, name in enumerate(program.inputs):
        buffer = program.buffers.get(name)
        if buffer is None:
            continue
        if name in static_used:
            writer.line(f"q = a{k}.data_ptr()")
            writer.line(f"if q != sp[{k}]: refresh({k}, a{k})")
        elif name in plan.slots and buffer.dtype.is_complex:
            # Kernels read memory, where a lazy conjugate is not conjugated.
            layout = [*map(writer.tuple_of, (buffer.shape, buffer.strides)), writer.constant(buffer.dtype)]
            writer.line(f"if a{k}.is_conj(): a{k} = with_layout(a{k}, {', '.join(layout)})")
        writer.enter(name, f"a{k}", "q" if name in static_used else None)
    for name in program.constants:
        writer.enter(name, f"t_constants[{name!r}]")
    made_by_ops = {
        name for n in plan.nodes if isinstance(n.item, Extern) and not n.item.out_variant for name in n.item.outputs
    }
    inside = {name for n in plan.nodes if isinstance(n.item, Kernel) for name in n.item.locals}
    touched = {name for n in plan.nodes for name in n.reads | n.writes}
    touched |= {v.buffer for v in program.outputs if isinstance(v, View)}  # an empty result has no step that writes it
    for name, buffer in program.buffers.items():
        fresh = buffer.kind in (BufferKind.OUTPUT, BufferKind.TEMP) and name not in writer.planned
        if not fresh or name in program.in_place or name in made_by_ops:
            continue
        if name in inside or name not in touched or name in writer.allocated:
            continue
        _fresh(writer, buffer)
    if writer.views:
        names = "".join(f"w{k}, " for k in range(len(writer.views)))
        writer.line(f"{names}= w.views")


def _write_segment(writer: HostWriter, segment: Segment) -> None:
    """Compute the numbers that the segment's kernels take and that sizes alone do not tell, then call its entry point."""
    labels = ", ".join(kernel.label for kernel in segment.kernels)
    for number in dict.fromkeys(n for kernel in segment.kernels for n in kernel.numbers):
        key = slot_key(number)
        if not isinstance(number, Symbol) and key not in writer.computed and not writer.sizes.covers(number):
            writer.computed.add(key)
            table = "pf" if isinstance(number, FloatExpr) else "p"
            writer.line(f"{table}[{writer.plan.slots[key]}] = {writer.number(number)}")
    writer.line(f"{segment.name}(w.argument)  # {labels}")


def _write_recheck(writer: HostWriter, segment: Segment) -> None:
    """Where kernels are in doubt about numbers, have them checked in the order of the program and computed in Python; and read those that
    the host needs."""
    slots, groups = writer.plan.slots, segment.numbers
    bound = dict.fromkeys(symbol for group in groups for step in group.steps for symbol in bound_symbols(step))
    known = bound | dict.fromkeys(symbol for group in groups for symbol in group.inputs)
    in_groups = {id(step) for group in groups for step in group.steps}
    checks = [n.item for n in writer.plan.nodes if isinstance(n.item, Check) and id(n.item) in in_groups]
    computed = [result for group in groups for result in group.results if result not in known]
    read = {symbol: f"{symbol.name} = pf[{slots[slot_key(symbol)]}]" for symbol in known}
    lines = [
        *read.values(),
        *(f"if not ({plain_text(check.condition)}): fail(w, {check.error!r}, {check.message!r})" for check in checks),
        *(f"pf[{slots[slot_key(number)]}] = {plain_text(number)}" for number in computed),
    ]
    writer.line(f"if w.error.value: recheck(w, {writer.constant(chr(10).join(lines))})")
    for symbol in bound:
        if symbol in writer.needed:
            writer.line(read[symbol])


def _write_index_check(writer: HostWriter, segments: Sequence[Segment]) -> None:
    if any(kernel.checks_bounds for segment in segments for kernel in segment.kernels):
        writer.line("if w.error.value: fail(w, 'IndexError', 'index out of range in self')")


def _variable(writer: HostWriter, buffer: str) -> str:
    if buffer not in writer.names:
        writer.names[buffer] = f"t{len(writer.names)}"
    return writer.names[buffer]


def _whole(view: View, buffer: Buffer | View) -> bool:
    return view.shape == buffer.shape and view.strides == buffer.strides and view.offset == 0


def _is_transpose(view: View, buffer: Buffer | View) -> bool:
    """Whether the view is that of a matrix with its dimensions exchanged."""
    exchanged = view.shape[::-1] == buffer.shape and view.strides[::-1] == buffer.strides
    return len(view.shape) == 2 and exchanged and view.offset == 0


def _tensor(writer: HostWriter, view: View | str) -> str:
    """The expression for the tensor that a view stands for."""
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
    made: Buffer | View = writer.made_as.get(buffer.name, buffer)
    if isinstance(view, str) or _whole(view, made):
        return name
    if _is_transpose(view, made):
        return f"{name}.t()"  # half the time of as_strided
    return _as_strided(writer, name, view)


def _as_strided(writer: HostWriter, tensor: str, view: View) -> str:
    offset = f"{tensor}.storage_offset() + {writer.number(view.offset)}"
    return f"as_strided({tensor}, {writer.tuple_of(view.shape)}, {writer.tuple_of(view.strides)}, {offset})"


def _argument(writer: HostWriter, arg: Any) -> str:
    """The expression for an argument of an operator."""
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
    """Call an operator; its results get the strides that the plan counts on."""
    pieces = [_argument(writer, a) for a in step.args]
    pieces += [f"{k}={_argument(writer, v)}" for k, v in step.kwargs.items()]
    if step.out_variant:
        outs = [_tensor(writer, name) for name in step.outputs]
        if needs_schema_call(step.op, writer.target.externs):
            names = [a.name for a in step.op._schema.arguments if a.is_out]
            pieces += [f"{name}={out}" for name, out in zip(names, outs, strict=True)]
        else:
            pieces.append(f"out={outs[0] if len(outs) == 1 else '(' + ', '.join(outs) + ')'}")
    writer.callees[len(writer.constants)] = step.op
    callee = callee_of_call(step, writer.plan.program.buffers, writer.target.externs)
    call = f"{writer.constant(callee)}({', '.join(pieces)})"
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
        writer.enter(name, _variable(writer, name))


def _reads_together(writer: HostWriter) -> dict[int, tuple[ReadTogether, int]]:
    """By node, the group of numbers that it is read with, and the first node of that."""
    if READ_NUMBER in writer.target.externs:
        return {}
    plan = writer.plan
    groups = reads_together(plan.nodes, plan.program.buffers, set(plan.covered()))
    return {k: (group, first) for first, group in groups.items() for k in group.places}


def _write_read(writer: HostWriter, step: Extern, node: int, group: ReadTogether, first: int) -> None:
    """Take a number from the list of its group, which the first node of the group reads."""
    if node == first:
        names = [f"n{first}_{place}" for place in range(group.view.shape[0])]
        writer.line(f"{', '.join(names)} = {_tensor(writer, group.view)}.tolist()")
    for bind in step.binds:
        _write_bind(writer, bind, f"n{first}_{group.places[node]}")


def _write_bind(writer: HostWriter, bind: Bind, variable: str) -> None:
    """Read the value of a symbol off an operator's result, check its limits, and put it into the table."""
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
    """Give a functional operator's result the planned strides if the operator chose others.

    Kernels read memory as the plan has it: a result of another size or dtype than a wrong fake kernel has told raises. What only
    operators take may have another one, as the workspace of an LSTM has.
    """
    buffer, variable = writer.plan.program.buffers[name], _variable(writer, name)
    if buffer.opaque:
        return
    shape, strides = writer.tuple_of(buffer.shape), writer.tuple_of(buffer.strides)
    dtype, elements = writer.constant(buffer.dtype), writer.number(product(buffer.shape))
    differs = f"{variable}.stride() != {strides}"
    if name in writer.plan.slots:
        if buffer.dtype.is_complex:
            differs += f" or {variable}.is_conj()"
        differs += f" or {variable}.dtype is not {dtype} or {variable}.numel() != {elements}"
    writer.line(f"if {differs}: {variable} = with_layout({variable}, {shape}, {strides}, {dtype})")


def _output(writer: HostWriter, out: View | NumberLike | None) -> str:
    """The expression for an output; constants and parameters are never handed out themselves."""
    if out is None:
        return "None"
    if not isinstance(out, View):
        return writer.number(out)
    text = _tensor(writer, out)
    kind = writer.plan.program.buffers[out.buffer].kind
    return f"{text}.clone()" if kind in (BufferKind.CONSTANT, BufferKind.STATIC) else text
