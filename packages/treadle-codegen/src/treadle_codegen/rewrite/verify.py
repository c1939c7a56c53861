"""The contract of graph rewrites: what a graph must obey after each of them, and the list of all violations.

A rewritten graph is well-formed when

- it is a valid FX graph: nodes in order, names distinct, the output last (`fx.Graph.lint`);
- it is functional: no call writes to an argument;
- every node has a `val`; computed again from its arguments' values, it has the same shape, dtype and strides;
- its placeholders are those of the graph before, in order and with the same `static_input`; further static ones may follow;
- its outputs have the shapes, dtypes and strides of the outputs before;

and a prologue computes the further placeholders from static inputs alone:

- its inputs are static placeholders of the graph, in the order of `positions`;
- it returns one value for each further placeholder, of its shape and dtype;
- it obeys the rules above itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import as_shape, is_plain
from treadle_codegen.rewrite.propagate import running, value_of
from treadle_codegen.rewrite.static import is_static_input
from treadle_shapes.torch import operator as operator_record

Rules = Mapping[Any, Callable[..., Any]]
Prologue = tuple[fx.GraphModule, tuple[int, ...]]


def verify_graph(graph: fx.Graph, mode: FakeTensorMode, rules: Rules) -> list[str]:
    """All violations of the rules for one graph. `rules`: fake implementations of targets that have none in PyTorch."""
    return list(_graph(graph, mode, rules))


def verify_rewrite(before: fx.Graph, after: fx.Graph) -> list[str]:
    """All violations of the rules that compare a graph with the one before it."""
    problems = []
    old, new = _placeholders(before), _placeholders(after)
    for k, (a, b) in enumerate(zip(old, new, strict=False)):
        if _face(a.meta.get("val")) != _face(b.meta.get("val")) or is_static_input(a) != is_static_input(b):
            problems.append(f"placeholder {k} was {a}: {_face(a.meta.get('val'))}, is {b}: {_face(b.meta.get('val'))}")
    if len(new) < len(old):
        problems.append(f"{len(old) - len(new)} placeholders are gone")
    problems += [f"further placeholder {n} is not static" for n in new[len(old) :] if not is_static_input(n)]
    outputs_before, outputs_after = _outputs(before), _outputs(after)
    if len(outputs_before) != len(outputs_after):
        problems.append(f"{len(outputs_before)} outputs became {len(outputs_after)}")
    for k, (a, b) in enumerate(zip(outputs_before, outputs_after, strict=False)):
        if _face(_value(a)) != _face(_value(b)):
            problems.append(f"output {k} was {_face(_value(a))}, is {_face(_value(b))}")
    return problems


def verify_prologue(graph: fx.Graph, prologue: Prologue, number_before: int) -> list[str]:
    """All violations of the rules for a prologue; the graph had `number_before` placeholders before."""
    module, positions = prologue
    problems = []
    placeholders = _placeholders(graph)
    for k, inner in zip(positions, _placeholders(module.graph), strict=False):
        if not 0 <= k < len(placeholders) or not is_static_input(placeholders[k]):
            problems.append(f"input {inner} of the prologue is no static placeholder of the graph")
    if len(positions) != len(_placeholders(module.graph)):
        problems.append(f"{len(positions)} positions for {len(_placeholders(module.graph))} inputs of the prologue")
    further, results = placeholders[number_before:], _outputs(module.graph)
    if len(further) != len(results):
        problems.append(f"the prologue returns {len(results)} values for {len(further)} further placeholders")
    for node, result in zip(further, results, strict=False):
        mine, theirs = node.meta.get("val"), _value(result)
        if _face(mine)[:2] != _face(theirs)[:2]:
            problems.append(f"{node} is {_face(mine)}, the prologue returns {_face(theirs)}")
    return problems


def _graph(graph: fx.Graph, mode: FakeTensorMode, rules: Rules) -> Iterator[str]:
    try:
        graph.lint()
    except RuntimeError as error:
        yield f"not a valid graph: {error}"
        return
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        record = operator_record(node.target)
        if record is not None and record.writes:
            yield f"{node} writes to {', '.join(record.writes)}"
        if "val" not in node.meta:
            if not _without_value(node):
                yield f"{node} has no val"
        elif _can_repeat(node, rules):
            yield from _same_value(node, mode, rules)


def _without_value(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.returns


def _can_repeat(node: fx.Node, rules: Rules) -> bool:
    """Whether computing the fake result again says something: not where it makes new symbols, or is no plain tensor."""
    if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
        return False
    record = operator_record(node.target)
    if node.meta.get("opaque") or (record is not None and (record.has_data_dependent_size or record.is_random)):
        return False
    arguments = [n.meta.get("val") for n in node.all_input_nodes]
    if not all(map(_is_tensor_value, arguments)):
        return False
    leaves = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
    return all(isinstance(v, torch.Tensor) and is_plain(v) for v in leaves) and not _unbacked(leaves)


def _is_tensor_value(value: Any) -> bool:
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(v, (torch.Tensor, torch.SymInt)) for v in leaves)


def _unbacked(leaves: Sequence[torch.Tensor]) -> bool:
    from treadle_shapes.torch import env_of, raw_expr

    for tensor in leaves:
        for size in tensor.shape:
            env = env_of(size)
            if env is not None and any(s not in env.hints for s in getattr(raw_expr(size), "free_symbols", ())):
                return True
    return False


def _same_value(node: fx.Node, mode: FakeTensorMode, rules: Rules) -> Iterator[str]:
    compute: Any = rules.get(node.target, node.target)
    try:
        with running(mode):
            again = compute(*value_of(node.args), **value_of(node.kwargs))
    except Exception as error:  # whatever it raises, the graph could not run
        yield f"{node} cannot be computed from its arguments: {type(error).__name__}: {error}"
        return
    if _face(again) != _face(node.meta["val"]):
        yield f"{node} has val {_face(node.meta['val'])}, its arguments give {_face(again)}"


def _face(value: Any) -> Any:
    """What is compared of a value: shape, dtype and strides of tensors."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_face, value))
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    shape = as_shape(value.shape)
    if not is_plain(value) or 0 in shape:
        return (value.dtype, shape, ())
    strides = tuple(s for n, s in zip(shape, as_shape(value.stride()), strict=True) if n != 1)
    return (value.dtype, shape, strides)


def _value(item: Any) -> Any:
    return item.meta.get("val") if isinstance(item, fx.Node) else item


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _outputs(graph: fx.Graph) -> list[Any]:
    (returned,) = next(iter(reversed(graph.nodes))).args
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]  # type: ignore[arg-type]
