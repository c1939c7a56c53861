"""The verifier: every rule a program must obey, and the list of all violations.

A program is well-formed when

- inputs are INPUT or STATIC buffers, size symbols, or numbers baked into the graph; constants are CONSTANT buffers with a tensor;
- every buffer named by a step, view or output exists; names of steps are distinct;
- a TEMP or OUTPUT buffer with elements is written before it is read, and no step writes an INPUT, STATIC or CONSTANT buffer;
- outputs are views of OUTPUT buffers, integers or None, and no two of them share a buffer;
- a symbol is an input's or bound by one earlier extern wherever it is used: in a loop, an argument, a check, a buffer's
  shape when the buffer is written, an output;
- views and, as far as bounds can be proven from constant extents, loads and stores stay inside their buffers;

and each loop obeys the contract of `ir.loops`:

- SSA: arguments refer to earlier instructions, never to stores; every `op` is in `ir.ops.OPS`, with its arity and dtype rule;
- loads have the buffer's dtype, stores store it, or the parts of it where it is complex;
- low-precision floats are only loaded, cast and stored;
- index expressions use the loop's axes and the program's size symbols only;
- `reduce` occurs only with reduce axes, its argument is not itself a reduction's result, and nothing after the last one,
  nor any store, depends on the reduce axes;
- no axis has extent 1, and a buffer is loaded and stored only where it is overwritten, and no point loads what another stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from treadle_codegen.ir.attention import why_not_attention
from treadle_codegen.ir.loops import (
    Axis,
    Buffer,
    BufferKind,
    Check,
    Define,
    Extern,
    Instr,
    IntLike,
    Load,
    Loop,
    Program,
    Step,
    Store,
    View,
    bound_symbols,
    step_symbols,
    symbols_of,
)
from treadle_codegen.ir.ops import (
    ATTENTIONS,
    COMPLEX_PARTS,
    LOW_FLOATS,
    OPS,
    PRODUCTS,
    REDUCTIONS,
    SCANS,
    VALUE_DTYPES,
    memory_dtype,
    reduced_dtype,
)
from treadle_codegen.ir.overlap import loads_of, may_meet
from treadle_codegen.ir.product import why_not_product
from treadle_shapes.expr import Expr, bounds

_READ_ONLY = (BufferKind.INPUT, BufferKind.STATIC, BufferKind.CONSTANT)
_MEMORY = ("load", "masked_load", "indirect_load", "store", "indirect_store")


def verify(program: Program) -> list[str]:
    """All violations of the rules above, each naming its step and instruction; empty for a well-formed program."""
    return list(_program(program))


def _program(program: Program) -> Iterator[str]:
    yield from _interface(program)
    written = {name for name, b in program.buffers.items() if b.kind in _READ_ONLY or 0 in b.shape}
    names: set[str] = set()
    known: set[Any] = set(program.size_symbols)
    for step in program.steps:
        if step.name in names:
            yield f"{step.name}: two steps have this name"
        names.add(step.name)
        for problem in _step(step, program, written, known):
            yield f"{step.name}: {problem}"
    for k, out in enumerate(program.outputs):
        if unknown := symbols_of(out) - known:
            yield f"output {k}: unknown symbols {_names(unknown)}"
        if isinstance(out, View) and out.buffer in program.buffers and out.buffer not in written:
            yield f"output {k}: buffer {out.buffer} is never written"


def _step(step: Step, program: Program, written: set[str], known: set[Any]) -> Iterator[str]:
    if isinstance(step, (Check, Define)):
        if unknown := step_symbols(step) - known:
            yield f"unknown symbols {_names(unknown)}"
        known |= set(bound_symbols(step))
        return
    if isinstance(step, Loop):
        yield from _loop(step, program, written, known)
        stored = {_buffer_of(i) for i in step.body if "store" in i.op}
    else:
        if unknown := symbols_of((step.args, tuple(step.kwargs.values()))) - known:
            yield f"unknown symbols {_names(unknown)} in its arguments"
        yield from _extern(step, program, written)
        yield from _binds(step, known)
        stored = set(step.outputs)
    for name in sorted(stored & program.buffers.keys()):
        buffer = program.buffers[name]
        if unknown := symbols_of((buffer.shape, buffer.strides)) - known:
            yield f"writes {name}, whose shape has unknown symbols {_names(unknown)}"


def _names(symbols: Iterable[Any]) -> list[str]:
    return sorted(s.name for s in symbols)


def _binds(step: Extern, known: set[Any]) -> Iterator[str]:
    for bind in step.binds:
        if bind.symbol in known:
            yield f"binds {bind.symbol.name}, which is known already"
        if not 0 <= bind.result < max(len(step.outputs), 1):
            yield f"binds {bind.symbol.name} to result {bind.result} of {len(step.outputs)}"
        known.add(bind.symbol)


def _interface(program: Program) -> Iterator[str]:
    for name, tensor in program.constants.items():
        buffer = program.buffers.get(name)
        if buffer is None or buffer.kind is not BufferKind.CONSTANT:
            yield f"constant {name} has no CONSTANT buffer"
        elif buffer.dtype != tensor.dtype:
            yield f"constant {name} is {tensor.dtype}, its buffer {buffer.dtype}"
    for name, buffer in program.buffers.items():
        if buffer.name != name:
            yield f"buffer {buffer.name} is filed under {name}"
        if len(buffer.shape) != len(buffer.strides):
            yield f"buffer {name}: {len(buffer.shape)} sizes, {len(buffer.strides)} strides"
        if buffer.kind is BufferKind.CONSTANT and name not in program.constants:
            yield f"constant buffer {name} has no tensor"
        if buffer.kind in (BufferKind.INPUT, BufferKind.STATIC) and name not in program.inputs:
            yield f"buffer {name} is an input that is not listed"
    used: set[str] = set()
    for k, out in enumerate(program.outputs):
        if not isinstance(out, View):
            continue
        yield from (f"output {k}: {problem}" for problem in _view(out, program))
        if out.buffer in program.buffers and program.buffers[out.buffer].kind is not BufferKind.OUTPUT:
            yield f"output {k}: buffer {out.buffer} is {program.buffers[out.buffer].kind.value}"
        if out.buffer in used:
            yield f"output {k}: buffer {out.buffer} belongs to another output too"
        used.add(out.buffer)


def _last_element(shape: tuple[IntLike, ...], strides: tuple[IntLike, ...], offset: IntLike) -> int | None:
    """Position of the last element, -1 without elements, None if sizes are symbolic."""
    if not all(isinstance(x, int) for x in (*shape, *strides, offset)):
        return None
    if 0 in shape:
        return -1
    return offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))  # type: ignore[operator,return-value]


def _view(view: View, program: Program) -> Iterator[str]:
    buffer = program.buffers.get(view.buffer)
    if buffer is None:
        yield f"no buffer {view.buffer}"
        return
    last, end = _last_element(view.shape, view.strides, view.offset), _last_element(buffer.shape, buffer.strides, 0)
    if last is not None and end is not None and last > end:
        yield f"a view of {view.buffer} reaches element {last}, the last one is {end}"


def _extern(step: Extern, program: Program, written: set[str]) -> Iterator[str]:
    for view in _views((step.args, tuple(step.kwargs.values()))):
        yield from _view(view, program)
        if view.buffer in program.buffers and view.buffer not in written:
            yield f"reads {view.buffer} before it is written"
    for name in step.outputs:
        if name:
            yield from _writable(name, program)
            written.add(name)
    if step.out_variant:
        outs = [a for a in step.op._schema.arguments if a.is_out]
        if len(outs) != len(step.outputs) or not all(step.outputs):
            yield f"{step.op} has {len(outs)} out arguments, the step {len(step.outputs)} outputs"


def _writable(name: str, program: Program) -> Iterator[str]:
    if name not in program.buffers:
        yield f"no buffer {name}"
    elif program.buffers[name].kind in _READ_ONLY:
        yield f"writes {program.buffers[name].kind.value} buffer {name}"


def _views(value: Any) -> Iterator[View]:
    if isinstance(value, View):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _views(v)


def _loop(loop: Loop, program: Program, written: set[str], defined: set[Any]) -> Iterator[str]:
    axes = loop.axes + loop.reduce_axes
    symbols = {axis.symbol for axis in axes}
    if len(symbols) != len(axes):
        yield "two axes have the same symbol"
    yield from (f"axis {axis.symbol} has extent 1" for axis in axes if axis.extent == 1)
    known = symbols | defined
    if unknown := symbols_of([axis.extent for axis in axes]) - defined:
        yield f"unknown symbols {_names(unknown)} in its extents"
    stored, loaded = set(), set()
    for k, instr in enumerate(loop.body):
        yield from (f"%{k} {instr.op}: {problem}" for problem in _instr(k, instr, loop, program, known))
        if instr.op in _MEMORY:
            name = _buffer_of(instr)
            (stored if "store" in instr.op else loaded).add(name)
            if "store" not in instr.op and name in program.buffers and name not in written:
                yield f"%{k} {instr.op}: reads {name} before it is written"
    for name in stored:
        yield from _writable(name, program)
    for name in sorted(stored & loaded):
        if not all(
            _overwrites_safely(instr, loop) for instr in loop.body if "store" in instr.op and _buffer_of(instr) == name
        ):
            yield f"both loads and stores {name}"
    written |= stored
    yield from _reductions(loop)


def _overwrites_safely(store: Instr, loop: Loop) -> bool:
    if not isinstance(store.attr, Store) or store.attr.mode != "overwrite":
        return False
    loads = loads_of(loop.body, store.attr.buffer)
    return not any(may_meet(load, store.attr.index, loop.axes + loop.reduce_axes) for load in loads)


def _buffer_of(instr: Instr) -> str:
    if isinstance(instr.attr, (Load, Store)):
        return instr.attr.buffer
    first = instr.attr[0]
    return first.buffer if isinstance(first, Load) else first


def _instr(k: int, instr: Instr, loop: Loop, program: Program, known: set[Any]) -> Iterator[str]:
    info = OPS.get(instr.op)
    if info is None:
        yield "no such operation"
        return
    if info.arity is not None and len(instr.args) != info.arity:
        yield f"takes {info.arity} arguments, has {len(instr.args)}"
        return
    if not all(0 <= a < k for a in instr.args):
        yield f"arguments {instr.args} are not all earlier instructions"
        return
    if any("store" in loop.body[a].op for a in instr.args):
        yield "uses the value of a store"
    problem = info.rule([loop.body[a].dtype for a in instr.args], instr.dtype)
    if problem is not None:
        yield problem
    if instr.dtype in LOW_FLOATS and instr.op not in (*_MEMORY, "cast"):
        yield f"computes in {instr.dtype}"
    for expr in _expressions(instr):
        if unknown := symbols_of(expr) - known:
            yield f"unknown symbols {_names(unknown)} in {expr}"
    if instr.op in _MEMORY:
        yield from _access(instr, loop, program)
    if instr.op == "reduce":
        yield from _reduce(instr, loop)
    if instr.op == "scan" and (instr.attr not in SCANS or loop.reduce_axes or not loop.axes):
        yield f"no scan {instr.attr!r} along the last of {len(loop.axes)} axes beside {len(loop.reduce_axes)} reduce axes"
    if instr.op == "const" and instr.dtype not in VALUE_DTYPES:
        yield f"constant of {instr.dtype}"


def _reduce(instr: Instr, loop: Loop) -> Iterator[str]:
    if instr.attr in ATTENTIONS:
        if (reason := why_not_attention(loop)) is not None:
            yield reason
        return
    if instr.attr in PRODUCTS:
        if (reason := why_not_product(loop)) is not None:
            yield reason
        return
    if instr.attr not in REDUCTIONS or len(instr.args) != 1:
        yield f"no reduction {instr.attr!r} of {len(instr.args)} values"
        return
    wanted = reduced_dtype(instr.attr, loop.body[instr.args[0]].dtype)
    if instr.dtype != wanted:
        yield f"{instr.attr} of {loop.body[instr.args[0]].dtype} gives {wanted}, not {instr.dtype}"
    if instr.attr in ("any", "all") and instr.dtype != torch.bool:
        yield f"{instr.attr} of {instr.dtype}"
    if not loop.reduce_axes:
        yield "reduces without reduce axes"


def _expressions(instr: Instr) -> tuple[Any, ...]:
    if isinstance(instr.attr, (Load, Store)):
        return (instr.attr.index,)
    if instr.op == "masked_load":
        return (instr.attr[0].index,)
    if instr.op in ("index", "scalar", "check_position"):
        return (instr.attr,)
    return (*instr.attr[1], *instr.attr[2]) if instr.op in ("indirect_load", "indirect_store") else ()


def _access(instr: Instr, loop: Loop, program: Program) -> Iterator[str]:
    buffer = program.buffers.get(_buffer_of(instr))
    if buffer is None:
        yield f"no buffer {_buffer_of(instr)}"
        return
    if memory_dtype(buffer.dtype) != instr.dtype:
        yield f"buffer {buffer.name} is {buffer.dtype}, not {instr.dtype}"
    if isinstance(instr.attr, (Load, Store)):
        yield from _in_bounds(instr.attr.index, buffer, loop.axes + loop.reduce_axes)
    elif instr.op != "masked_load" and len(instr.attr[1]) != len(instr.args) - (instr.op == "indirect_store"):
        yield f"{len(instr.attr[1])} strides for {len(instr.args)} indices"


def _in_bounds(index: IntLike, buffer: Buffer, axes: tuple[Axis, ...]) -> Iterator[str]:
    last = _last_element(buffer.shape, buffer.strides, buffer.offset)
    if last is None or any(axis.extent == 0 for axis in axes):
        return
    if buffer.dtype in COMPLEX_PARTS:
        last = 2 * last + 1
    if isinstance(index, int):
        low = high = index
    else:
        reach = bounds(index, {})
        low, high = reach.lower, reach.upper
    if (
        high is not None
        and all(isinstance(a.extent, int) for a in axes)
        and (high > last or (low is not None and low < 0))
    ):
        yield f"index {index} covers {low}..{high}, buffer {buffer.name} has 0..{last}"


def _reductions(loop: Loop) -> Iterator[str]:
    """What depends on the reduce axes where nothing may."""
    if not loop.reduce_axes:
        return
    reduced = {axis.symbol for axis in loop.reduce_axes}
    positions = [k for k, i in enumerate(loop.body) if i.op == "reduce"]
    if not positions:
        yield "has reduce axes and no reduce"
        return
    depends: list[bool] = []
    for k, instr in enumerate(loop.body):
        own = any(isinstance(e, Expr) and e.free_symbols & reduced for e in _expressions(instr))
        if instr.op == "masked_load" and not isinstance(instr.attr[1], bool):
            own = own or bool(instr.attr[1].free_symbols & reduced)
        inherited = any(0 <= a < len(depends) and depends[a] for a in instr.args)
        depends.append(instr.op != "reduce" and (own or inherited))
        if depends[-1] and (k > positions[-1] or "store" in instr.op):
            yield f"%{k} {instr.op}: depends on the reduce axes after the last reduction"
