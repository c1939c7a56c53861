"""Descriptions of the ATen graph's inputs and outputs, which the runtime wrapper executes.

The ATen graph is functional. It takes *static inputs* (parameters, buffers, constants of the trace: the same tensor object on every
call), then the *call inputs*, and returns fresh tensors only. The contract says what a functional graph cannot: which inputs are
written back, and which outputs alias what. For the program ``def f(x, y): x.add_(1); z = y * 2; return x, x[0], z.t(), z``:

    inputs    (CallInput(0), CallInput(1))
    mutations (Mutation(input=0, position=0),)                      graph output 0 is copied into x
    outputs   (InputItself(0), ViewOfInput(0, geometry), ViewOfFresh(1, geometry), FreshOutput(1))

`position` counts the graph's outputs, `input` its placeholders, static inputs included.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from .readings import PLAIN, Reading

SymbolicInt: TypeAlias = "int | torch.SymInt"


@dataclass(frozen=True)
class Geometry:
    """Sizes, strides and storage offset, in elements. The offset counts from the first element of the viewed tensor.

    reading: how the view reads the memory of that tensor.
    """

    size: tuple[SymbolicInt, ...]
    stride: tuple[SymbolicInt, ...]
    offset: SymbolicInt
    reading: Reading = PLAIN

    @property
    def static(self) -> bool:
        return all(type(value) is int for value in (*self.size, *self.stride, self.offset))


@dataclass(frozen=True, eq=False)
class StaticInput:
    """A parameter, buffer or constant: `tensor` itself is passed on every call."""

    name: str
    tensor: torch.Tensor

    def __eq__(self, other: object) -> bool:
        # The method that dataclasses make would ask the tensors, since Python 3.13 also those that are one object.
        return isinstance(other, StaticInput) and self.name == other.name and self.tensor is other.tensor

    def __hash__(self) -> int:
        return hash((self.name, id(self.tensor)))


@dataclass(frozen=True)
class CallInput:
    """The `index`-th argument of the compiled callable."""

    index: int


InputDescription: TypeAlias = StaticInput | CallInput


@dataclass(frozen=True)
class Mutation:
    """Graph output `position` is copied into input `input` after the graph has run; eager would have changed the input `bumps` times.

    has_history: autograd records the copy, because the program has given the input a history.
    has_older_views: so it is, and the program has made a view of the input before one of the changes. Where the input is itself a view,
    of the caller's tensor, autograd lets what is computed from such a view come from that tensor, past the input.
    """

    input: int
    position: int
    bumps: int = 1
    has_history: bool = False
    has_older_views: bool = False


@dataclass(frozen=True)
class FreshOutput:
    """Graph output `position` as it is: a tensor, or a number that only the run of the graph can tell."""

    position: int


@dataclass(frozen=True)
class UnrecordedOutput:
    """Graph output `position`, which requires gradients and has no history: a view, made with gradients off, of a tensor that has one."""

    position: int


@dataclass(frozen=True)
class InputItself:
    """The very object passed as input `input` (``return x``, ``return x.add_(1)``)."""

    input: int


@dataclass(frozen=True)
class Detached:
    """An alias with a version counter of its own, at `version`: `x.data`, or a view of it."""

    version: int
    is_view: bool


class Relation(enum.Enum):
    """What a tensor with the storage and the version counter of another is to autograd."""

    VIEW = "a view, with the history that autograd gives it"
    UNRECORDED = "a view that was made with gradients off"
    UNRECORDED_OF_HISTORY = "such a view of a tensor that requires gradients, whatever the tensor here does"
    DETACHED = "no view, and without a history, as `detach` makes it"
    VIEW_OF_DETACHED = "a view of such a tensor"
    UNRECORDED_OF_DETACHED = "a view of such a tensor that was made with gradients off"
    ONE_OF_SEVERAL = "one of the views that a single call gave, to which autograd refuses writes (`unbind`, `split`)"


@dataclass(frozen=True)
class ViewOfInput:
    """A view into the storage of input `input`; `detached` if it does not share the input's version counter."""

    input: int
    geometry: Geometry
    detached: Detached | None = None
    relation: Relation = Relation.VIEW


@dataclass(frozen=True)
class ViewOfFresh:
    """A view of graph output `position`. Outputs that share a storage in eager are views of one graph output; the rest as above."""

    position: int
    geometry: Geometry
    detached: Detached | None = None
    relation: Relation = Relation.VIEW


@dataclass(frozen=True)
class SameAsOutput:
    """The same object as user output `output` (``return y, y``)."""

    output: int


@dataclass(frozen=True)
class Constant:
    """A Python value (``None``, a number, a string)."""

    value: object


@dataclass(frozen=True)
class SymbolicValue:
    """A number computed from the sizes of the inputs and the numbers among them."""

    value: torch.SymInt | torch.SymFloat | torch.SymBool


OutputDescription: TypeAlias = (
    FreshOutput | UnrecordedOutput | InputItself | ViewOfInput | ViewOfFresh | SameAsOutput | Constant | SymbolicValue
)


@dataclass(frozen=True)
class Contract:
    """The graph's inputs, the inputs that are written back, and the user's outputs in order.

    numbers: (symbol, position) pairs of graph outputs that are values of unbacked symbols in the outputs' geometries.
    requires_grad: (input, flag) pairs of inputs that begin, or cease, to require gradients: the graph calls `requires_grad_(flag)` or
    `detach_`.
    versions: (position, version) pairs of graph outputs that eager has changed in place, so that their version counters are not at 0.
    """

    inputs: tuple[InputDescription, ...]
    mutations: tuple[Mutation, ...]
    outputs: tuple[OutputDescription, ...]
    numbers: tuple[tuple[Any, int], ...] = ()
    requires_grad: tuple[tuple[int, bool], ...] = ()
    versions: tuple[tuple[int, int], ...] = ()

    @property
    def static_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(i.tensor for i in self.inputs if isinstance(i, StaticInput))

    def with_inputs(self, inputs: tuple[InputDescription, ...], moved: Callable[[int], int]) -> Contract:
        """The contract of the same graph with more inputs. moved: the position among them of what is input `i` now."""
        outputs = tuple(
            replace(output, input=moved(output.input)) if isinstance(output, (InputItself, ViewOfInput)) else output
            for output in self.outputs
        )
        return replace(
            self,
            inputs=inputs,
            mutations=tuple(replace(mutation, input=moved(mutation.input)) for mutation in self.mutations),
            outputs=outputs,
            requires_grad=tuple((moved(i), flag) for i, flag in self.requires_grad),
        )
