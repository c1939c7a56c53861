"""Describe every output of the user's graph after the functional run: fresh, an input, a view of something, or a constant.

The functional graph returns fresh tensors only. Outputs that share a storage in eager are described by one fresh base and a geometry
each, views of an input by the input and a geometry. The runtime wrapper rebuilds them with ``as_strided``.

    def f(x): y = x + 1; return y, y[0], x.t()   ==>   FreshOutput(0), ViewOfFresh(0, ...), ViewOfInput(x, ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.types import py_sym_types

from treadle_shapes.expr import Node, free_symbols
from treadle_shapes.layouts import nested_extent, without_floor
from treadle_shapes.torch import (
    env_of,
    expr_of,
    is_at_beginning,
    is_made_without_gradients,
    raw_expr,
    share_version_counter,
)

from .contract import (
    Constant,
    Detached,
    FreshOutput,
    Geometry,
    InputItself,
    Mutation,
    OutputDescription,
    Relation,
    SameAsOutput,
    SymbolicValue,
    UnrecordedOutput,
    ViewOfFresh,
    ViewOfInput,
)
from .errors import UnsupportedGraph
from .functionalise import grad_fn_of, unwrap
from .readings import PLAIN, Reading, reading_of
from .recorder import AtenRecorder, storage_key
from .size_reader import SizeReader


def geometry_of(tensor: torch.Tensor, relative_to: torch.Tensor, reading: Reading = PLAIN) -> Geometry:
    """The geometry of `tensor`, its offset counted from the first element of `relative_to`, whose memory it has."""
    start = reading.place(relative_to.storage_offset())
    if start is None:
        raise UnsupportedGraph("an output has complex numbers that begin between two of its base")
    return Geometry(tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset() - start, reading)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a block of memory without gaps or overlaps, in any order of the dimensions."""
    expected: Any = 1
    dims = [(stride, size) for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if not _is_one(size)]
    if any(type(value) is not int for pair in dims for value in pair):
        # Some products are recognised only before simplification, others only after.
        known = [(expr_of(stride), expr_of(size)) for stride, size in dims]
        raw = [(raw_expr(stride), raw_expr(size)) for stride, size in dims]
        return _nests(known) or _nests(raw) or (not is_unbacked(tensor) and tensor.is_contiguous())
    for stride, size in sorted(dims):
        if size == 0:
            return True
        if stride != expected:
            return False
        expected *= size
    return True


def _nests(dims: list[tuple[Any, Any]]) -> bool:
    return nested_extent([(without_floor(stride), size) for stride, size in dims]) is not None


def is_unbacked(tensor: torch.Tensor) -> bool:
    """Whether the geometry of `tensor` depends on unbacked symbols, which only the run of the graph can tell."""
    for value in (*tensor.size(), *tensor.stride(), tensor.storage_offset()):
        env = env_of(value)
        if env is not None and env.is_unbacked(raw_expr(value)):
            return True
    return False


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def why_not_describable(tensor: torch.Tensor) -> str | None:
    """Why a functional graph cannot return `tensor`."""
    if not torch._is_functional_tensor(tensor):
        return "an output is a tensor that no functional operator made"
    return None if tensor.layout is torch.strided else f"an output has the layout {tensor.layout}"


def _reads_as_it_is(tensor: torch.Tensor) -> bool:
    """Whether the elements in memory are those of the tensor: nothing is conjugated or negated when they are read."""
    return not (tensor.is_conj() or tensor.is_neg())


@dataclass
class Inputs:
    """The graph's inputs in placeholder order: functional wrappers, the fakes they wrapped at first, and fakes with eager's geometry.

    given   id of a fake -> its sizes and strides before the run. What resizes a wrapper may resize the fake.
    leaves  id of a wrapper whose history begins outside -> the leaf in front of it
    """

    wrappers: list[Any]
    fakes: list[Any]
    expected_metadata: list[Any]
    given: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)

    def append(self, wrapper: Any, fake: Any) -> None:
        """Add an input."""
        self.wrappers.append(wrapper)
        self.fakes.append(fake)
        if isinstance(fake, torch.Tensor):
            self.given[id(fake)] = _geometry(fake)

    def leaf_of(self, index: int) -> torch.Tensor:
        """The leaf of autograd's graph that stands for an input: its wrapper, or what stands in front of that."""
        return self.leaves.get(id(self.wrappers[index]), self.wrappers[index])

    def has_new_history(self, wrapper: torch.Tensor) -> bool:
        """Whether the program has given an input another history than it had: it has changed it in place under autograd."""
        return wrapper.grad_fn is not None and not (id(wrapper) in self.leaves and is_at_beginning(wrapper))

    def tensors(self) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """(index, wrapper, fake) of the inputs that are tensors."""
        pairs = zip(self.wrappers, self.fakes, strict=True)
        return [(i, w, f) for i, (w, f) in enumerate(pairs) if isinstance(w, torch.Tensor)]


@dataclass
class GraphOutputs:
    """Collects the outputs of the ATen graph and keeps them free of aliases of each other and of the inputs."""

    recorder: AtenRecorder
    nodes: list[fx.Node] = field(default_factory=list)
    wrappers: dict[int, torch.Tensor] = field(
        default_factory=dict
    )  # position -> the functional tensor that is given out there
    origins: dict[int, fx.Node] = field(default_factory=dict)  # position -> the node of its value, before it was copied
    _taken: set[int] = field(default_factory=set)

    def forbid_storage_of(self, fake: torch.Tensor) -> None:
        """No output may share the storage of `fake`, an input."""
        self._taken.add(storage_key(fake))

    def value_of(self, wrapper: torch.Tensor) -> torch.Tensor:
        """The current value of a functional tensor. Views of something changed are taken again, which adds nodes."""
        with self.recorder:
            return unwrap(wrapper)

    def add(self, fake: torch.Tensor, expected: Geometry | None = None) -> int:
        """Make the graph return `fake` in a storage of its own, with the strides of `expected`. Returns the position of the output."""
        self.origins[len(self.nodes)] = self.recorder.node_of(fake)
        if expected is not None and tuple(fake.stride()) != expected.stride:
            with self.recorder:
                empty = torch.ops.aten.empty_strided.default(
                    expected.size, expected.stride, dtype=fake.dtype, device=fake.device
                )
                fake = torch.ops.aten.copy.default(empty, fake)
        elif storage_key(fake) in self._taken:
            with self.recorder:
                fake = torch.ops.aten.clone.default(fake)
        self._taken.add(storage_key(fake))
        self.nodes.append(self.recorder.node_of(fake))
        return len(self.nodes) - 1

    def add_number(self, value: Any) -> int:
        """Make the graph return a symbolic number. Returns the position of the output."""
        return self.add_expression(expr_of(value))

    def add_expression(self, expression: Any) -> int:
        """Make the graph return the value of `expression`. Returns the position of the output."""
        self.nodes.append(self.recorder.symbolic.node_of_expression(expression))
        return len(self.nodes) - 1


def why_not_same_metadata(inputs: Inputs) -> str | None:
    """Why an input has other sizes, strides or another storage after the run (``x.t_()``, ``x.resize_(..)``, ``x.data = ..``)."""
    for _, wrapper, fake in inputs.tensors():
        if torch._functionalize_was_storage_changed(wrapper):
            return "the storage of an input is exchanged"
        if torch._functionalize_has_metadata_mutation(wrapper):
            return "the sizes or strides of an input are changed in place"
        if tuple(wrapper.size()) != tuple(fake.size()) or wrapper.dtype != fake.dtype:
            return "the sizes or strides of an input are changed in place"
        given = inputs.given.get(id(fake))
        if given is not None and _geometry(fake) != given:
            return "an input is resized"
    return None


def _geometry(fake: torch.Tensor) -> tuple[Any, ...]:
    return tuple(fake.size()), tuple(fake.stride()) if fake.layout is torch.strided else None


def describe_mutations(inputs: Inputs, outputs: GraphOutputs) -> tuple[Mutation, ...]:
    """Add one graph output per input whose data changed, and describe it."""
    mutations = []
    for index, wrapper, fake in inputs.tensors():
        value = outputs.value_of(wrapper)
        if value is not fake:
            position = outputs.add(value)
            outputs.nodes[position].meta["mutates"] = index
            has_history = inputs.has_new_history(wrapper)
            if has_history:
                outputs.wrappers[position] = wrapper
            mutations.append(Mutation(index, position, wrapper._version, has_history))
    return tuple(mutations)


def describe_outputs(
    values: Sequence[Any],
    expected_metadata: Sequence[Any],
    inputs: Inputs,
    outputs: GraphOutputs,
    wholes: Sequence[tuple[Any, Any]] = (),
) -> tuple[OutputDescription, ...]:
    """Describe each of `values`, the outputs of the functional run. `expected_metadata[i]` has eager's geometry of `values[i]`.

    wholes: for each value, where `wholes_of` tells it, the tensor whose memory it is a part of, and one with that tensor's geometry.
    """
    input_by_id = {id(w): i for i, w, _ in inputs.tensors()}
    input_by_storage: dict[int, int] = {}
    for i, wrapper, _ in inputs.tensors():
        input_by_storage.setdefault(storage_key(wrapper), i)
    members: dict[int, list[int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor) and id(value) not in input_by_id and (why := why_not_describable(value)):
            raise UnsupportedGraph(why, outputs.recorder.line())
        if isinstance(value, torch.Tensor):
            members.setdefault(storage_key(value), []).append(i)
    bases: dict[int, _Base] = {}
    first_seen: dict[int, int] = {}
    described: list[OutputDescription] = []
    for i, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            described.append(_number(value, inputs, outputs) if isinstance(value, py_sym_types) else Constant(value))
        elif id(value) in input_by_id:
            described.append(InputItself(input_by_id[id(value)]))
        elif id(value) in first_seen:
            described.append(SameAsOutput(first_seen[id(value)]))
        elif (key := storage_key(value)) in input_by_storage:
            described.append(_view_of_input(value, expected_metadata[i], input_by_storage[key], inputs))
        else:
            if key not in bases:
                bases[key] = _choose_base(
                    [values[j] for j in members[key]],
                    [expected_metadata[j] for j in members[key]],
                    [wholes[j] for j in members[key] if wholes and wholes[j][0] is not None],
                    outputs,
                )
            described.append(bases[key].describe(value, expected_metadata[i]))
        if isinstance(value, torch.Tensor):
            first_seen.setdefault(id(value), i)
    return tuple(described)


def with_views_of_several(described: Sequence[OutputDescription], results: Any) -> tuple[OutputDescription, ...]:
    """The descriptions, with `Relation.ONE_OF_SEVERAL` where that is what eager gives.

    results: what the user's graph returns, its nodes. Their fake values were made in the program's own grad mode, on which the answer
    depends; graphs without gradients are functionalised in another one.
    """
    if isinstance(results, fx.Node):  # all of a call's results at once, which no program that was traced returns
        return tuple(described)
    pairs = zip(described, results, strict=True)
    return tuple([
        replace(output, relation=Relation.ONE_OF_SEVERAL)
        if isinstance(output, (ViewOfInput, ViewOfFresh)) and _is_one_of_several(result)
        else output
        for output, result in pairs
    ])  # fmt: skip


def with_unrecorded(described: Sequence[OutputDescription], results: Any) -> tuple[OutputDescription, ...]:
    """The descriptions, with those outputs that are views made with gradients off where gradients are on at the end: autograd refuses
    writes to them, and they have no history.

    results: as above.
    """
    if isinstance(results, fx.Node) or not torch.is_grad_enabled():
        return tuple(described)  # gradients that are off at the end are off where views are rebuilt, too
    return tuple([_as_recorded(output, result) for output, result in zip(described, results, strict=True)])


def _as_recorded(output: OutputDescription, node: Any) -> OutputDescription:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return output
    if isinstance(output, FreshOutput):
        has_none = value.requires_grad and value._is_view() and not has_node(value)
        return UnrecordedOutput(output.position) if has_none else output
    if not isinstance(output, (ViewOfInput, ViewOfFresh)):
        return output
    if output.detached is not None or not is_made_without_gradients(node):
        return output
    if output.relation is Relation.VIEW_OF_DETACHED:
        return replace(output, relation=Relation.UNRECORDED_OF_DETACHED)
    if output.relation not in _VIEWS:
        return output
    if output.relation is Relation.ONE_OF_SEVERAL:
        if value.requires_grad:
            raise UnsupportedGraph("an output is one of several views, made with gradients off or of a view that was")
        return output
    is_history_elsewhere = isinstance(output, ViewOfFresh) and value.requires_grad and not has_node(value)
    return replace(output, relation=Relation.UNRECORDED_OF_HISTORY if is_history_elsewhere else Relation.UNRECORDED)


_VIEWS = (Relation.VIEW, Relation.UNRECORDED, Relation.ONE_OF_SEVERAL)


def has_node(tensor: torch.Tensor) -> bool:
    """Whether autograd has a node for the tensor, as far as it tells: a view without a valid history refuses."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return True


def _is_one_of_several(node: Any) -> bool:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value._is_view():
        return False
    return torch._C._autograd._get_creation_meta(value) == torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE


def _number(value: Any, inputs: Inputs, outputs: GraphOutputs) -> OutputDescription:
    """Describe a symbolic number: computed from the inputs if they suffice, else an output of the graph."""
    if not isinstance(expr_of(value), Node):
        return Constant(expr_of(value))
    return SymbolicValue(value) if SizeReader(inputs.fakes, {}).knows(value) else FreshOutput(outputs.add_number(value))


def output_numbers(
    inputs: Inputs, described: Sequence[OutputDescription], outputs: GraphOutputs
) -> tuple[tuple[Any, int], ...]:
    """Make the graph return the unbacked symbols in the geometries of its outputs. Returns (symbol, position of the output) pairs."""
    geometries = [found.geometry for found in described if isinstance(found, (ViewOfInput, ViewOfFresh))]
    reader = SizeReader(inputs.fakes, {})
    unknown: dict[Any, int] = {}
    for geometry in geometries:
        for value in (*geometry.size, *geometry.stride, geometry.offset):
            for symbol in () if reader.knows(value) else sorted(free_symbols(expr_of(value)), key=str):
                if not reader.knows_symbol(symbol) and symbol not in unknown:
                    unknown[symbol] = outputs.add_expression(symbol)
    return tuple(unknown.items())


def _view_of_input(value: torch.Tensor, expected: torch.Tensor, index: int, inputs: Inputs) -> ViewOfInput:
    base = inputs.wrappers[index]
    reading = reading_of(value, base)
    if reading is None:
        raise UnsupportedGraph("an output is a view of an input with another dtype")
    geometry = geometry_of(expected, inputs.expected_metadata[index], reading)
    return ViewOfInput(index, geometry, _detached(value, base), _relation(value, base))


def _relation(alias: torch.Tensor, base: torch.Tensor) -> Relation:
    """What `alias` is to autograd, as far as that is told by something else than the version counter."""
    if not alias._is_view():
        return Relation.VIEW if alias.requires_grad else Relation.DETACHED
    root = alias._base
    if root is not base and root is not base._base and not alias.requires_grad and not _is_view_of(root, base):
        return Relation.VIEW_OF_DETACHED
    return Relation.UNRECORDED if base.requires_grad and grad_fn_of(alias) is None else Relation.VIEW


def _is_view_of(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and one._base is other


def _detached(alias: torch.Tensor, base: torch.Tensor) -> Detached | None:
    """What tells `alias` from a view of `base` with the same storage; None if it counts the same versions."""
    return None if share_version_counter(alias, base) else Detached(alias._version, alias._is_view())


@dataclass(frozen=True)
class _Base:
    """The fresh graph output that several outputs with one storage are views of."""

    position: int
    wrapper: torch.Tensor
    expected: torch.Tensor

    def describe(self, value: torch.Tensor, expected: torch.Tensor) -> OutputDescription:
        if value is self.wrapper:
            return FreshOutput(self.position)
        reading = reading_of(value, self.wrapper)
        if reading is None:
            raise UnsupportedGraph("two outputs are views of one storage with different dtypes")
        geometry = geometry_of(expected, self.expected, reading)
        return ViewOfFresh(self.position, geometry, _detached(value, self.wrapper), _relation(value, self.wrapper))


def _choose_base(
    values: list[torch.Tensor],
    expected_metadata: list[torch.Tensor],
    wholes: list[tuple[torch.Tensor, torch.Tensor]],
    outputs: GraphOutputs,
) -> _Base:
    """Make the graph return the tensor that covers all of `values`: their common root, the only one of them when it is dense, or what
    they were detached from."""
    distinct = {id(v) for v in values}
    wrapper, expected = values[0], expected_metadata[0]
    if len(distinct) > 1 or not is_dense(expected) or not _reads_as_it_is(wrapper):
        roots = [(v._base, t._base) for v, t in zip(values, expected_metadata, strict=True)]
        known = [
            (w, t) for w, t in roots if w is not None and t is not None and storage_key(w) == storage_key(values[0])
        ]
        pairs = list(zip(values, expected_metadata, strict=True))
        known, pairs = ([pair for pair in found if _reads_as_it_is(pair[0])] for found in (known, pairs))
        if any(v.requires_grad for v in values):  # what has a history is no view of what has none
            known, pairs = ([pair for pair in found if pair[0].requires_grad] for found in (known, pairs))
        # Sizes that are not known cannot be compared, nor need they be where a root is known.
        if known or pairs:
            wrapper, expected = known[0] if known else max(pairs, key=lambda pair: pair[0].numel())
        if not _reads_as_it_is(wrapper) or not _covers(expected, expected_metadata):
            wrapper, expected = _detached_whole(values, expected_metadata, wholes, outputs)
    wrapper = _in_size_of(expected, wrapper, outputs)
    position = outputs.add(outputs.value_of(wrapper), Geometry(tuple(expected.size()), tuple(expected.stride()), 0))
    outputs.wrappers[position] = wrapper
    return _Base(position, wrapper, expected)


def _in_size_of(expected: torch.Tensor, wrapper: torch.Tensor, outputs: GraphOutputs) -> torch.Tensor:
    """The elements of `wrapper` in the size of `expected`. The roots of an output need not agree: `matmul` of symbolic sizes ends in a
    view of `bmm`'s result in one of the two runs only."""
    if wrapper.dim() == expected.dim() and (is_unbacked(expected) or wrapper.size() == expected.size()):
        return wrapper
    if not (wrapper.is_contiguous() and expected.is_contiguous()):
        raise UnsupportedGraph("outputs share a storage whose whole has another size than in eager")
    with outputs.recorder:
        wrapper = wrapper.view(expected.size())
    return wrapper


def _detached_whole(
    values: list[torch.Tensor],
    expected_metadata: list[torch.Tensor],
    wholes: list[tuple[torch.Tensor, torch.Tensor]],
    outputs: GraphOutputs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What covers `values`, without a history: none of them is given one from here."""
    for whole, expected in wholes:
        if storage_key(whole) == storage_key(values[0]) and _covers(expected, expected_metadata):
            if any(v.requires_grad for v in values):
                break
            with outputs.recorder:
                return whole.detach(), expected
    raise UnsupportedGraph("outputs share a storage whose whole is not known")


def _covers(base: torch.Tensor, views: Sequence[torch.Tensor]) -> bool:
    return is_dense(base) and all(_within(view, base) for view in views)


def _span(base: torch.Tensor, view: torch.Tensor) -> tuple[Any, Any] | None:
    """Where the dense tensor `base` begins and ends, in elements of `view`."""
    reading = reading_of(view, base)
    if reading is None:
        return None
    begin, length = reading.place(base.storage_offset()), reading.place(base.numel())
    return None if begin is None or length is None else (begin, begin + length)


def _within(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether every element of `view` is an element of the dense tensor `base` in the same storage."""
    if is_unbacked(view) or is_unbacked(base):
        return view is base or view._base is base  # a dense `base` fills its storage, which no view can leave
    if view.numel() == 0:
        return True
    span = _span(base, view)
    if span is None:
        return False
    first = view.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(view.size(), view.stride(), strict=True))
    return bool(first >= span[0]) and bool(last < span[1])
