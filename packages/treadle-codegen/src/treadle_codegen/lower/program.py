"""`lower_graph`: an ATen graph to a program of loops and extern calls.

graph    x: [4, 8];  relu = aten.relu(x);  sum = aten.sum.dim_IntList(relu, [1]);  return sum
program  input x;  loop_sum [i0:4] reduce [r0:8];  return view(sum)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treadle_codegen.costs import Costs
from treadle_codegen.errors import InternalError
from treadle_codegen.ir.loops import Buffer, BufferKind, IntLike, NumberLike, Program, View, symbols_of
from treadle_codegen.ir.ops import BUFFER_DTYPES
from treadle_codegen.lower.context import Lowering, view_of
from treadle_codegen.lower.dead_steps import remove_dead_steps
from treadle_codegen.lower.extern import lower_extern, why_not_extern
from treadle_codegen.lower.indexing import (
    SYMBOLIC,
    Shape,
    as_intlike,
    as_shape,
    dense_strides,
    exact_strides,
    fake_layout,
    is_dense,
    is_plain,
    linear,
    raw_number,
    same_strides,
)
from treadle_codegen.lower.live import LiveValues
from treadle_codegen.lower.loop_checks import is_elsewhere, lowering_of, why_not_loops
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.numbers import (
    CHECKS,
    RUN_TIME,
    environment,
    lower_definition,
    new_symbols,
    size_of,
    unbacked_numbers,
)
from treadle_codegen.lower.read_in_full import is_read_in_full
from treadle_codegen.lower.registry import name_of, why_not_float
from treadle_codegen.lower.solved_numbers import define_solved
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import identity, narrow
from treadle_shapes.expr import Eq, Expr, Symbol
from treadle_shapes.torch import operator as operator_record


def lower_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any] = (),
    costs: Costs = Costs(),  # noqa: B008
    dtypes: frozenset[torch.dtype] = BUFFER_DTYPES,
    device: torch.device | None = None,
) -> Program:
    """The program of a functional ATen graph, for a target with these costs and dtypes, whose loops run on `device`.

    Nodes carry `meta["val"]` (fake results: shapes, strides and dtypes are taken from there, `example_inputs` are not
    looked at); placeholders with `meta["static_input"]` become STATIC buffers. Results have exactly eager's shapes,
    strides and dtypes. Raises InternalError, naming the node and the user's line, for anything that goes wrong.
    """
    lowering = Lowering(costs, dtypes, device)
    values: dict[torch.fx.Node, Any] = {}
    inputs: list[str] = []
    outputs: list[View | NumberLike | None] = []
    rewritten: list[tuple[Any, Expr]] = []
    lowering.live = LiveValues(values, lowering.buffers)
    for node in gm.graph.nodes:
        lowering.val, lowering.name, lowering.node = node.meta.get("val"), node.name, node
        if rewritten and node.op != "placeholder":
            define_solved(lowering, rewritten)
            rewritten = []
        try:
            if node.op == "placeholder":
                values[node] = _placeholder(lowering, node, inputs)
                rewritten += _rewritten(node.meta.get("val"))
            elif node.op == "get_attr":
                values[node] = _attribute(lowering, gm, node)
            elif node.op == "output":
                outputs = _outputs(lowering, node, values)
            elif node.meta.get("may_raise"):
                values[node] = _in_full(lowering, node, values)
            else:
                values[node] = _call(lowering, node, values)
        except InternalError:
            raise
        except Exception as error:  # the boundary of this pass: context is added, nothing is swallowed
            raise InternalError("lower", f"{node.format_node()}: {error}", _user_line(node)) from error
    program = lowering.program(inputs, outputs)
    program.foreign = frozenset(lowering.foreign)
    program.updates = _updates(gm.graph, program)
    return remove_dead_steps(program, lowering.kept)


def _updates(graph: torch.fx.Graph, program: Program) -> dict[str, str]:
    """Output buffer -> input buffer that it is written back to (`meta["mutates"]`)."""
    (returned,) = graph.output_node().args
    items = returned if isinstance(returned, (tuple, list)) else (returned,)
    found: dict[str, str] = {}
    for item, out in zip(items, program.outputs, strict=True):
        index = item.meta.get("mutates") if isinstance(item, torch.fx.Node) else None
        if index is not None and isinstance(out, View):
            found[out.buffer] = program.inputs[index]
    return found


def _user_line(node: torch.fx.Node) -> str:
    lines = [
        line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File")
    ]
    return lines[-1] if lines else ""


def _placeholder(lowering: Lowering, node: torch.fx.Node, inputs: list[str]) -> Any:
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor):
        static = node.meta.get("static_input")  # the tensor itself, or a truth value
        kind = BufferKind.INPUT if static is None or static is False else BufferKind.STATIC
        buffer = Buffer(lowering.fresh(node.name), val.dtype, as_shape(val.shape), exact_strides(val), kind)
        if is_elsewhere(val, lowering.device):
            lowering.foreign.add(buffer.name)
        buffer = replace(buffer, opaque=bool(node.meta.get("opaque")) or not is_plain(val))
        lowering.symbols |= symbols_of((buffer.shape, buffer.strides))
        lowering.input_symbols = frozenset(lowering.symbols)
        lowering.buffers[buffer.name] = buffer
        inputs.append(buffer.name)
        x = TensorExpr.stored(view_of(buffer), val.dtype)
        if not buffer.opaque:
            _describe(x, buffer.shape, buffer.strides)
        return x
    # A plain number is baked into the graph (the caller guards it); its slot in the arguments is kept.
    value: Any = _input_number(node, val, inputs) if isinstance(val, SYMBOLIC) else val
    symbol = value in symbols_of(value)
    if symbol:
        lowering.symbols.add(value)
        lowering.input_symbols = frozenset(lowering.symbols)
    inputs.append(value.name if symbol else lowering.fresh(node.name))
    return as_intlike(val) if isinstance(val, torch.SymInt) else value


def _input_number(node: torch.fx.Node, val: Any, inputs: Sequence[str]) -> Any:
    """The number of a slot as it was computed; or, where facts learnt since have given it another name, that name.

    Sizes are written with the new name. A backward graph may be given the number by its old name only.
    """
    raw, simple = raw_number(val), as_intlike(val) if isinstance(val, torch.SymInt) else None
    if not isinstance(simple, Symbol) or simple == raw or simple.name in inputs:
        return raw
    others = (n.meta.get("val") for n in node.graph.find_nodes(op="placeholder") if n is not node)
    is_given = any(isinstance(other, torch.SymInt) and raw_number(other) == simple for other in others)
    return raw if is_given else simple


def _rewritten(val: Any) -> list[tuple[Any, Expr]]:
    """The number of a slot as it was computed and as facts learnt since write it, where they do so with other symbols."""
    if not isinstance(val, torch.SymInt):
        return []
    raw, simple = raw_number(val), as_intlike(val)
    return [(raw, simple)] if isinstance(raw, Symbol) and isinstance(simple, Expr) and simple != raw else []


def _attribute(lowering: Lowering, gm: torch.fx.GraphModule, node: torch.fx.Node) -> Any:
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        return value
    x = lowering.constant(value.detach(), node.name)
    assert x.storage is not None
    if is_elsewhere(value, lowering.device):
        lowering.foreign.add(x.storage.buffer)
    _describe(x, x.storage.shape, x.storage.strides)
    return x


def _call(lowering: Lowering, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    args = torch.fx.map_arg(node.args, lambda n: values[n])
    kwargs = torch.fx.map_arg(node.kwargs, lambda n: values[n])
    if node.target is operator.getitem:
        return args[0][args[1]]  # type: ignore[index]
    name = name_of(node.target)
    if name in CHECKS:
        return CHECKS[name](lowering, *args, **kwargs)
    lowering.used_results = _used_results(node) if isinstance(lowering.val, (tuple, list)) else frozenset()
    if isinstance(node.target, torch._ops.OpOverload) and (fresh := new_symbols(lowering, node)):
        return _finish(lowering, node, lower_definition(lowering, node, args, dict(kwargs), fresh))  # type: ignore[arg-type]
    if (size := size_of(lowering, node, args)) is not None:
        return size
    if not isinstance(node.target, torch._ops.OpOverload):
        raise TypeError(f"not an ATen overload: {node.target}")
    result = None
    if name in RUN_TIME and why_not_loops(lowering, node) is None and unbacked_numbers(lowering, args):
        result = RUN_TIME[name](lowering, *args, **kwargs)
    if result is not None:
        return _finish(lowering, node, result)
    if why_not_loops(lowering, node) is None and why_not_float(name, args, kwargs) is None:
        result = lowering_of(lowering, node)(lowering, *args, **kwargs)
    elif why_not_memory_view(node, args) is None:
        result = LOWERINGS[name](lowering, *args, **kwargs)
        views = result if isinstance(result, tuple) else (result,)
        if any(x is None or x.storage is None for x in views):
            result = None  # not strided: a loop would have to copy
    if result is None:
        if (reason := why_not_extern(node.target) or why_not_sizes(node)) is not None:
            raise TypeError(reason)
        result = lower_extern(lowering, node.target, tuple(args), dict(kwargs))  # type: ignore[arg-type]
    return _finish(lowering, node, result)


def _used_results(node: torch.fx.Node) -> frozenset[int]:
    return frozenset(u.args[1] for u in node.users if u.target is operator.getitem and u.users)  # type: ignore[misc]


def _in_full(lowering: Lowering, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    """Lower a call that may raise. Eager raises for any element, used or not, so all are computed and no step is dropped."""
    first = len(lowering.steps)
    result = _call(lowering, node, values)
    if isinstance(result, TensorExpr) and result.storage is None and not is_read_in_full(node):
        lowering.realize(result)
    lowering.kept.update(step.name for step in lowering.steps[first:])
    return result


def why_not_sizes(node: torch.fx.Node) -> str | None:
    """Why the sizes of a fake result cannot be relied on: nobody traces how many elements a sparse tensor holds."""
    record = operator_record(node.target)
    if record is None or not record.is_sparse_part:
        return None
    sources = [n.meta.get("val") for n in node.all_input_nodes]
    sparse = any(isinstance(v, torch.Tensor) and v.layout != torch.strided for v in sources)
    return f"the size of {record.family} of a sparse tensor is not known" if sparse else None


def why_not_memory_view(node: torch.fx.Node, args: Any) -> str | None:
    """Why a node is no strided view of a stored tensor, or None. Such a view takes no loop, whatever its dtype."""
    record = operator_record(node.target)
    if record is None or not record.is_strided_view or name_of(node.target) not in LOWERINGS:
        return f"{node.target} is no strided view"
    if not isinstance(args[0], TensorExpr) or args[0].storage is None:
        return "its argument is not in memory"
    source = node.all_input_nodes[0].meta["val"]
    if source.layout != torch.strided or source.is_conj() or source.is_neg() or source.is_quantized:
        return "a tensor with more to it than strides"
    return None


def _finish(lowering: Lowering, node: torch.fx.Node, result: Any) -> Any:
    """Check a lowering's result against the fake one, and store it if each user would otherwise compute it again."""
    val: Any = node.meta.get("val")
    if isinstance(result, tuple):
        users = {u.args[1]: len(u.users) for u in node.users if u.target is operator.getitem}
        for k, (x, v) in enumerate(zip(result, val, strict=False)):
            if isinstance(x, TensorExpr) and isinstance(v, torch.Tensor):
                _settle(lowering, node, x, v, users.get(k, 0))
        return result
    if isinstance(result, TensorExpr):
        # A lowering may hand back its argument (a conversion to the dtype it has); each node gets its own description.
        if result.origin or result.layout is not None:
            result = _same(result)
        _settle(lowering, node, result, val, len(node.users))
    return result


def _same(x: TensorExpr) -> TensorExpr:
    return x.view(identity(x.shape))


def _settle(lowering: Lowering, node: torch.fx.Node, x: TensorExpr, val: torch.Tensor, users: int) -> None:
    shape, strides = fake_layout(val)
    if not (x.shape == shape or _same_shape(lowering, x.shape, shape, val)) or x.dtype != val.dtype:
        raise AssertionError(f"lowering gave {x.dtype}{list(x.shape)}, expected {val.dtype}{list(shape)}")
    x.relabel(shape)
    x.origin = node.name
    if node.meta.get("rounded"):
        x.round_elements()
    if is_plain(val):
        _describe(x, shape, strides)
    if users > 1 and lowering.why_store_for_reuse(x):
        lowering.realize(x)


def _describe(x: TensorExpr, shape: Shape, strides: Shape) -> None:
    """Note the strides that `x` has in eager. Memory of its own gets them where they are dense: elements of others may share a place."""
    x.layout, x.gaps = (strides, None) if is_dense(shape, strides) else (None, strides)


def _same_shape(lowering: Lowering, mine: Shape, expected: Shape, val: torch.Tensor) -> bool:
    """Whether two shapes agree, of which `expected` is that of `val`.

    Sizes known at run time only may be written in two ways, which a check has made equal. Others are equal by what the program has
    decided: min(15, s0) and s0.
    """
    env = environment([val])
    return len(mine) == len(expected) and all(
        a == b or (symbols_of((a, b)) - lowering.input_symbols) or (env is not None and env.prove(Eq(a, b)) is True)
        for a, b in zip(mine, expected, strict=True)
    )


def _outputs(
    lowering: Lowering, node: torch.fx.Node, values: dict[torch.fx.Node, Any]
) -> list[View | NumberLike | None]:
    """Views of OUTPUT buffers with eager's strides. Two outputs never share memory, nor does an output with an input."""
    (returned,) = node.args
    used: set[str] = set()
    outputs: list[View | NumberLike | None] = []
    for item in returned if isinstance(returned, (tuple, list)) else (returned,):  # type: ignore[union-attr]
        x: Any = values[item] if isinstance(item, torch.fx.Node) else item
        if not isinstance(x, TensorExpr):
            outputs.append(x)
            continue
        assert isinstance(item, torch.fx.Node)
        outputs.append(_output(lowering, x, item.meta["val"], used))
    return outputs


def _output(lowering: Lowering, x: TensorExpr, val: torch.Tensor, used: set[str]) -> View:
    shape, strides = as_shape(val.shape), dense_strides(val)
    if not is_plain(val):
        return _opaque_output(lowering, x, used)
    if x.storage is None and x.base is not None:
        # Strides with gaps or overlaps are those of a view of something larger, which must be in memory then.
        lowering.realize(x if is_dense(shape, strides) else _root(x))
    if x.storage is None:
        view = _fresh_output(lowering, x, strides)
    else:
        view = x.storage
        buffer = lowering.buffers[view.buffer]
        mine = buffer.kind is BufferKind.TEMP or (buffer.kind is BufferKind.OUTPUT and buffer.name not in used)
        if not mine or not same_strides(shape, view.strides, strides) or buffer.name in used:
            view = _fresh_output(lowering, x, strides)
        else:
            lowering.buffers[buffer.name] = replace(buffer, kind=BufferKind.OUTPUT)
    used.add(view.buffer)
    exact = exact_strides(val)
    buffer = lowering.buffers[view.buffer]
    if exact != strides and buffer.strides == strides and buffer.shape == shape:
        lowering.buffers[view.buffer] = replace(buffer, strides=exact)  # they differ for empty tensors only
    return View(view.buffer, shape, exact, view.offset)


def _opaque_output(lowering: Lowering, x: TensorExpr, used: set[str]) -> View:
    """A sparse tensor, or another that is not strided memory: the one that an operator returned, or a clone of it."""
    view = x.storage
    assert view is not None, "only operators make such tensors"
    buffer = lowering.buffers[view.buffer]
    if buffer.kind is not BufferKind.TEMP or buffer.name in used:
        view = stored_view(lowering.clone(x, buffer.strides, BufferKind.OUTPUT))
    lowering.buffers[view.buffer] = replace(lowering.buffers[view.buffer], kind=BufferKind.OUTPUT, opaque=True)
    used.add(view.buffer)
    return view


def _root(x: TensorExpr) -> TensorExpr:
    while x.base is not None:
        x = x.base
    return x


def _fresh_output(lowering: Lowering, x: TensorExpr, strides: tuple[IntLike, ...]) -> View:
    """A new OUTPUT buffer holding `x` with those strides, which may repeat elements (0) or leave gaps."""
    if x.storage is not None and same_strides(x.shape, x.storage.strides, strides) and not is_dense(x.shape, strides):
        return _span_output(lowering, x, x.storage)
    empty = any(size == 0 for size in x.shape)  # then there is no element to repeat
    repeated = [] if empty else [d for d, s in enumerate(strides) if s == 0 and x.shape[d] != 1]
    for d in repeated:
        x = x.view(narrow(x.shape, d, 0, 1))
    if not repeated:
        stored = lowering.copy(x, strides, BufferKind.OUTPUT)
        x.store_in(stored.storage)  # type: ignore[arg-type]
        return stored.storage  # type: ignore[return-value]
    buffer = lowering.copy(x, strides, BufferKind.OUTPUT).storage
    assert buffer is not None
    return buffer


def _span_output(lowering: Lowering, x: TensorExpr, view: View) -> View:
    """A copy of all the memory that a view with gaps or overlaps reaches into, seen through the same strides."""
    length = linear([size - 1 for size in view.shape], view.strides) + 1
    span = TensorExpr.stored(View(view.buffer, (length,), (1,), view.offset), x.dtype)
    copied = stored_view(lowering.copy(span, (1,), BufferKind.OUTPUT))
    return View(copied.buffer, view.shape, view.strides, 0)


def stored_view(x: TensorExpr) -> View:
    """Where a tensor that was just stored stands."""
    assert x.storage is not None
    return x.storage
