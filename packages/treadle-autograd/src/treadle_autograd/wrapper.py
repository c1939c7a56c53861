"""The runtime wrapper of the compiled ATen graph: adds static inputs, writes mutated inputs back, rebuilds aliasing outputs.

It follows a `Contract` and never looks at the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .contract import (
    Constant,
    Contract,
    FreshOutput,
    Geometry,
    InputItself,
    OutputDescription,
    SameAsOutput,
    SymbolicValue,
    ViewOfFresh,
    ViewOfInput,
)
from .size_reader import SizeReader

Compiled = Callable[..., Sequence[Any]]
# (inputs of the graph, outputs of the graph, user outputs rebuilt so far) -> user output
Rebuild = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]


def _as_strided(
    geometry: Geometry, sizes: SizeReader
) -> Callable[[torch.Tensor, Sequence[Any], Sequence[Any]], torch.Tensor]:
    """A function (tensor, inputs, outputs of the graph) -> the view of the tensor's storage with `geometry`."""
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
        case InputItself(index):
            return lambda inputs, fresh, done: inputs[index]
        case ViewOfInput(index, geometry):
            of_input = _as_strided(geometry, sizes)
            return lambda inputs, fresh, done: of_input(inputs[index], inputs, fresh)
        case ViewOfFresh(position, geometry):
            of_fresh = _as_strided(geometry, sizes)
            return lambda inputs, fresh, done: of_fresh(fresh[position], inputs, fresh)
        case SameAsOutput(earlier):
            return lambda inputs, fresh, done: done[earlier]
        case Constant(value):
            return lambda inputs, fresh, done: value
        case SymbolicValue(value):
            read = sizes.reader(value)
            return lambda inputs, fresh, done: read(inputs, fresh)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first byte of the elements of `tensor` and of the byte after the last."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def why_not_independent(inputs: Sequence[Any], mutated: frozenset[int]) -> str | None:
    """Why the functional graph is wrong for these inputs: an input that it writes back may share memory with another input."""
    extents = [(i, *_extent(t)) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)]
    extents.sort(key=lambda item: item[1])
    pending: list[tuple[int, int]] = []  # (end, index) of extents that may overlap the next one
    for index, start, end in extents:
        if start == end:
            continue
        pending = [(e, i) for e, i in pending if e > start]
        for _, other in pending:
            if index in mutated or other in mutated:
                return f"inputs {other} and {index} share memory and one of them is changed in place"
        pending.append((end, index))
    return None


def write_back(target: torch.Tensor, value: torch.Tensor, bumps: int) -> None:
    """Copy `value` into `target`, whose version counter then counts the `bumps` of the program's own changes in place."""
    if bumps == 1 or target.is_inference():
        target.copy_(value)
        return
    version = target._version + bumps
    target.copy_(value)
    torch._C._autograd._unsafe_set_version_counter((target,), (version,))


def _with_versions(compiled: Compiled, versions: Sequence[tuple[int, int]]) -> Compiled:
    """Set the version counters of these outputs. Inference tensors have none."""

    def run(*args: Any) -> Sequence[Any]:
        fresh = compiled(*args)
        for position, version in versions:
            if not fresh[position].is_inference():
                torch._C._autograd._unsafe_set_version_counter((fresh[position],), (version,))
        return fresh

    return run


def wrap_compiled(compiled: Compiled, contract: Contract, input_values: Sequence[Any], eager: Compiled) -> Compiled:
    """A callable of the user's arguments that returns the user's outputs.

    input_values: the fake values of the graph's placeholders, whose sizes define the symbols. eager: runs the original graph, for
    inputs that share memory (`why_not_independent`).
    """
    static = contract.static_tensors
    n_fresh = len(contract.outputs)
    if contract.requires_grad:
        return _then_requires_grad(
            wrap_compiled(compiled, replace(contract, requires_grad=()), input_values, eager), contract
        )
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

    mutations = [(m.input, m.position, m.bumps) for m in contract.mutations]
    mutated = frozenset(index for index, _, _ in mutations)

    def run_and_write_back(*args: Any) -> Sequence[Any]:
        inputs = (*static, *args)
        if why_not_independent(inputs, mutated) is not None:
            return eager(*args)
        fresh = compiled(*inputs)
        with torch.no_grad():
            for index, position, bumps in mutations:
                write_back(inputs[index], fresh[position], bumps)
        return finish(inputs, fresh)

    return run_and_write_back


def _then_requires_grad(run: Compiled, contract: Contract) -> Compiled:
    """`run`, and afterwards the graph's calls of `requires_grad_` on inputs."""
    static = contract.static_tensors

    def run_and_mark(*args: Any) -> Sequence[Any]:
        results = run(*args)
        inputs = (*static, *args)
        for index, flag in contract.requires_grad:
            inputs[index].requires_grad_(flag)
        return results

    return run_and_mark
