"""The runtime wrapper of the compiled ATen graph: adds static inputs, writes mutated inputs back, rebuilds aliasing outputs.

It follows a `Contract` and never looks at the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import fx

from .aliasing import independence_check, picker
from .asserts import is_assert
from .contract import (
    Constant,
    Contract,
    Detached,
    FreshOutput,
    Geometry,
    InputItself,
    OutputDescription,
    Relation,
    SameAsOutput,
    SymbolicValue,
    UnrecordedOutput,
    ViewOfFresh,
    ViewOfInput,
)
from .readings import PLAIN
from .size_reader import SizeReader

Compiled = Callable[..., Sequence[Any]]
# (inputs of the graph, outputs of the graph, user outputs rebuilt so far) -> user output
Rebuild = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]


# (tensor, inputs of the graph, outputs of the graph) -> an alias of the tensor
MakeAlias = Callable[[torch.Tensor, Sequence[Any], Sequence[Any]], torch.Tensor]


def _unrecorded(view: MakeAlias) -> MakeAlias:
    return torch.no_grad()(view)


def _unrecorded_of_history(view: MakeAlias) -> MakeAlias:
    unrecorded = _unrecorded(view)
    return lambda tensor, inputs, fresh: unrecorded(tensor, inputs, fresh).requires_grad_()


def _then_detached(view: MakeAlias) -> MakeAlias:
    return lambda tensor, inputs, fresh: view(tensor, inputs, fresh).detach()


def _of_detached(view: MakeAlias) -> MakeAlias:
    return lambda tensor, inputs, fresh: view(tensor.detach(), inputs, fresh)


def _of_several(view: MakeAlias) -> MakeAlias:
    def make(tensor: torch.Tensor, inputs: Sequence[Any], fresh: Sequence[Any]) -> torch.Tensor:
        found = view(tensor, inputs, fresh)
        torch._C._autograd._set_creation_meta(found, torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE)
        return found

    return make


_RELATED: dict[Relation, Callable[[MakeAlias], MakeAlias]] = {
    Relation.VIEW: lambda view: view,
    Relation.UNRECORDED: _unrecorded,
    Relation.UNRECORDED_OF_HISTORY: _unrecorded_of_history,
    Relation.DETACHED: _then_detached,
    Relation.VIEW_OF_DETACHED: _of_detached,
    Relation.UNRECORDED_OF_DETACHED: lambda view: _of_detached(_unrecorded(view)),
    Relation.ONE_OF_SEVERAL: _of_several,
}


def alias(geometry: Geometry, detached: Detached | None, relation: Relation, sizes: SizeReader) -> MakeAlias:
    """A function that makes the alias of the tensor with `geometry`."""
    view = _as_strided(geometry, sizes)
    if detached is None:
        return _RELATED[relation](view)
    version = detached.version

    def make(tensor: torch.Tensor, inputs: Sequence[Any], fresh: Sequence[Any]) -> torch.Tensor:
        found = view(tensor.data, inputs, fresh) if detached.is_view else view(tensor, inputs, fresh).data
        if version and not found.is_inference():
            torch._C._autograd._unsafe_set_version_counter((found,), (version,))
        return found

    return make


def _as_strided(geometry: Geometry, sizes: SizeReader) -> MakeAlias:
    """A function (tensor, inputs, outputs of the graph) -> the view of the tensor's storage with `geometry`."""
    if geometry.reading != PLAIN:
        reading, view = geometry.reading, _as_strided(replace(geometry, reading=PLAIN), sizes)
        return lambda tensor, inputs, fresh: reading.finish(view(reading.read(tensor), inputs, fresh))
    if geometry.static:
        size, stride, offset = geometry.size, geometry.stride, geometry.offset

        def static(tensor: torch.Tensor, inputs: Sequence[Any], fresh: Sequence[Any]) -> torch.Tensor:
            return tensor.as_strided(size, stride, tensor.storage_offset() + offset)

        return static
    size_readers = [sizes.reader(value) for value in geometry.size]
    stride_readers = [sizes.reader(value) for value in geometry.stride]
    offset_reader = sizes.reader(geometry.offset)

    def symbolic(tensor: torch.Tensor, inputs: Sequence[Any], fresh: Sequence[Any]) -> torch.Tensor:
        shape = [read(inputs, fresh) for read in size_readers]
        strides = [read(inputs, fresh) for read in stride_readers]
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset_reader(inputs, fresh))

    return symbolic


def _rebuild(output: OutputDescription, sizes: SizeReader) -> Rebuild:
    """A function that makes one user output."""
    match output:
        case FreshOutput(position):
            return lambda inputs, fresh, done: fresh[position]
        case UnrecordedOutput(position):
            return lambda inputs, fresh, done: fresh[position].requires_grad_()
        case InputItself(index):
            return lambda inputs, fresh, done: inputs[index]
        case ViewOfInput(index, geometry, detached, relation):
            of_input = alias(geometry, detached, relation, sizes)
            return lambda inputs, fresh, done: of_input(inputs[index], inputs, fresh)
        case ViewOfFresh(position, geometry, detached, relation):
            of_fresh = alias(geometry, detached, relation, sizes)
            return lambda inputs, fresh, done: of_fresh(fresh[position], inputs, fresh)
        case SameAsOutput(earlier):
            return lambda inputs, fresh, done: done[earlier]
        case Constant(value):
            return lambda inputs, fresh, done: value
        case SymbolicValue(value):
            read = sizes.reader(value)
            return lambda inputs, fresh, done: read(inputs, fresh)


class WriteBack:
    """Copies values into targets, whose version counters then count the program's own changes in place.

    bumps: the number of changes of each target. A value that is its target has been updated in place already.
    """

    def __init__(self, bumps: Sequence[int]) -> None:
        self._bumps = bumps
        # Targets that change that often or more, by the number of changes from 1 on. Few change more than twice.
        most = max(bumps, default=0)
        self._rounds = [tuple(b >= n for b in bumps) for n in range(1, most + 1)] if most <= _MOST_ROUNDS else None

    def __call__(self, targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        copied = [pair for pair in zip(targets, values, strict=True) if pair[0] is not pair[1]]
        if copied:
            counters = [(target, target._version) for target, _ in copied if not target.is_inference()]
            with torch.no_grad():
                torch._foreach_copy_([target for target, _ in copied], [value for _, value in copied])
            _set_versions(counters)  # what has been copied counts like what has been updated in place
        if self._rounds is None:
            versions = [(t, t._version + n) for t, n in zip(targets, self._bumps, strict=True) if not t.is_inference()]
            _set_versions(versions)
            return
        # Counted one by one, because targets that are views of one tensor share their counter. Inference tensors have none.
        for changed in self._rounds:
            torch._C._increment_version(targets if all(changed) else tuple(compress(targets, changed)))


_MOST_ROUNDS = 8  # number of changes up to which they are counted one by one


def _set_versions(versions: Sequence[tuple[torch.Tensor, int]]) -> None:
    if versions:
        torch._C._autograd._unsafe_set_version_counter(*zip(*versions, strict=True))


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Inside, memory outside of the graph is written to: an exception says that it comes after a write, perhaps."""
    try:
        yield
    except Exception as error:
        error.has_written = True  # type: ignore[attr-defined]
        raise


def running_in_eager(gm: fx.GraphModule, interpret: Compiled | None = None) -> Compiled:
    """The original graph, called as it is or by `interpret`. What it raises comes after a write, perhaps.

    A graph that takes something for granted must not write before it has checked that: where the caller runs the program again if an
    assert of the graph fails (`meta["message"]`, docs/contracts.md, section 3), it does so at once.
    """
    asserts = [node for node in gm.graph.nodes if is_assert(node) and "message" in node.meta]

    def run(*args: Any) -> Sequence[Any]:
        if asserts:
            raise RuntimeError(asserts[0].args[1])
        with writing():
            return (interpret or gm)(*args)  # type: ignore[no-any-return]

    return run


def count_versions(fresh: Sequence[Any], versions: Sequence[tuple[int, int]]) -> None:
    """Set the version counters of these outputs, given as (position, version). Inference tensors have none."""
    for position, version in versions:
        if not fresh[position].is_inference():
            torch._C._autograd._unsafe_set_version_counter((fresh[position],), (version,))


def _with_versions(compiled: Compiled, versions: Sequence[tuple[int, int]]) -> Compiled:
    def run(*args: Any) -> Sequence[Any]:
        fresh = compiled(*args)
        count_versions(fresh, versions)
        return fresh

    return run


def wrap_compiled(
    compiled: Compiled,
    contract: Contract,
    input_values: Sequence[Any],
    eager: Compiled,
) -> Compiled:
    """A callable of the user's arguments that returns the user's outputs.

    input_values: the fake values of the graph's placeholders, whose sizes define the symbols. eager: `running_in_eager`, for
    inputs that share memory (`aliasing`).
    """
    static = contract.static_tensors
    n_fresh = len(contract.outputs)
    if contract.requires_grad:
        rest = replace(contract, requires_grad=())
        run = wrap_compiled(compiled, rest, input_values, eager)
        return _then_requires_grad(run, contract)
    if contract.versions:
        compiled = _with_versions(compiled, contract.versions)
    if not contract.mutations and contract.outputs == tuple(FreshOutput(i) for i in range(n_fresh)):
        if not static:
            return compiled
        return lambda *args: compiled(*static, *args)
    sizes = SizeReader(input_values, dict(contract.numbers))
    rebuild = [_rebuild(output, sizes) for output in contract.outputs]

    def finish(inputs: Sequence[Any], fresh: Sequence[Any]) -> tuple[Any, ...]:
        done: list[Any] = []
        for make in rebuild:
            done.append(make(inputs, fresh, done))
        return tuple(done)

    if not contract.mutations:

        def run(*args: Any) -> tuple[Any, ...]:
            inputs = (*static, *args)
            return finish(inputs, compiled(*inputs))

        return run

    targets_of = picker([m.input for m in contract.mutations])
    values_of = picker([m.position for m in contract.mutations])
    # What autograd records counts when it is copied (`observed`).
    write_back = WriteBack([0 if m.has_history else m.bumps for m in contract.mutations])
    are_independent = independence_check(input_values, frozenset(m.input for m in contract.mutations))

    def run_and_write_back(*args: Any) -> Sequence[Any]:
        inputs = (*static, *args)
        targets = targets_of(inputs)
        if not are_independent(inputs) or _refuses_changes(targets):
            return eager(*args)
        fresh = compiled(*inputs)
        with writing():
            write_back(targets, values_of(fresh))
        return finish(inputs, fresh)

    return run_and_write_back


def _refuses_changes(targets: Sequence[torch.Tensor]) -> bool:
    """Whether one of the tensors is an inference tensor outside of inference mode, which PyTorch does not change."""
    return not torch.is_inference_mode_enabled() and any(map(torch.Tensor.is_inference, targets))


def _then_requires_grad(run: Compiled, contract: Contract) -> Compiled:
    """`run`, and afterwards the graph's calls of `requires_grad_` and `detach_` on inputs."""
    static = contract.static_tensors

    def run_and_mark(*args: Any) -> Sequence[Any]:
        results = run(*args)
        inputs = (*static, *args)
        for index, flag in contract.requires_grad:
            if flag:
                inputs[index].requires_grad_()
            else:
                inputs[index].detach_()
        return results

    return run_and_mark
