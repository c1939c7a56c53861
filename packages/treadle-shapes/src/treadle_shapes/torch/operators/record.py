"""What Treadle knows about one ATen operator: the record `Operator` and the enumerations of its fields.

Records are made by `table.operator`, which joins what a schema says (`derive`) with what a family module declares (`declare`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch


class Kind(Enum):
    """What an operator does, as far as a compiler treats it differently."""

    VIEW = "view"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    GATHER = "gather"
    SCATTER = "scatter"
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    POOLING = "pooling"
    RESAMPLING = "resampling"
    SORT = "sort"
    RANDOM = "random"
    CREATION = "creation"
    COPY = "copy"
    LINALG = "linalg"
    FFT = "fft"
    LOSS = "loss"
    SPARSE = "sparse"
    QUERY = "query"
    EFFECT = "effect"
    OTHER = "other"


class Raises(Enum):
    """For which element values eager raises."""

    NEVER = "never"
    BY_VALUE = "by value"
    #: for a zero in an integer divisor
    BY_ZERO_DIVISOR = "by zero divisor"


class ElementUse(Enum):
    """What becomes of the elements of the first argument."""

    #: not stated
    UNKNOWN = "unknown"
    #: every element reappears in the result
    KEPT = "kept"
    #: every element is read, and a result of them is stored
    READ = "read"
    #: the result does not depend on any element
    IGNORED = "ignored"


class Cost(Enum):
    """What computing a result again costs."""

    FREE = "free"
    CHEAP = "cheap"
    TRANSCENDENTAL = "transcendental"
    REDUCTION = "reduction"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operator:
    """One operator as called by one target: an overload, or for names and torch functions what holds for the whole packet.

    Facts under "derived" come from the schema, its tags and its dispatch keys. All others are declared in a family module; where nothing
    is declared the default applies, which claims nothing.
    """

    # -- identity

    #: "aten.squeeze.dim" of an overload, "aten.squeeze" of a packet, function or method, "squeeze" where ATen has no such operator
    name: str
    #: the name that overloads, in-place forms and aliases share: "squeeze"
    family: str
    kind: Kind
    cost: Cost

    # -- derived

    #: arguments written to: those of the schema, and those that the schema hides (the statistics of `batch_norm`)
    writes: tuple[str, ...] = ()
    #: (result index, argument name) of results that share memory with an argument
    aliases: tuple[tuple[int, str], ...] = ()
    #: the result is a view wherever one is possible, and the call writes nothing
    is_view: bool = False
    #: ATen tags the operator as pointwise, copies such as `clone` included
    is_pointwise: bool = False
    #: the result depends on the state of a random number generator
    is_random: bool = False
    #: ATen defines the operator by other operators
    is_composite: bool = False
    #: the sizes of the result depend on elements
    has_data_dependent_size: bool = False
    #: a call without effect whose results nobody uses may be left out of a functional graph; says nothing about what it raises
    is_pure: bool = False

    # -- what eager raises

    raises: Raises = Raises.NEVER
    #: number arguments that must fit the dtype of the result, or eager raises (`Scalar::to`, c10/core/Scalar.h)
    held_by_result: tuple[str, ...] = ()
    #: number arguments that must fit the dtype that is computed in: float32 for float16 and bfloat16
    held_by_compute: tuple[str, ...] = ()
    #: rounds a number argument that the dtype cannot hold, to infinity if need be
    rounds_numbers: bool = False
    #: the same, for float16 and bfloat16 only
    rounds_to_low_float: bool = False
    #: the name of the dimension argument over which eager refuses to reduce nothing; "" for all dimensions, None if it never refuses
    no_empty_over: str | None = None

    # -- elements

    element_use: ElementUse = ElementUse.UNKNOWN
    #: same elements in the same order, under sizes that are given (view) or stay (alias)
    reinterprets: bool = False
    #: where sizes are equal, an element of the result is that of the first argument at the same index, and no copy was asked for
    keeps_index: bool = False
    #: reads no element of its arguments, or each where it stands, and writes none: may be run although its result is not needed
    is_speculatable: bool = False

    # -- layout and shape

    #: a view that any strided tensor has, whose strides follow from those of the argument
    is_strided_view: bool = False
    #: made by `at::empty_like` or `at::clone` of the first argument, whose strides the result has
    like_first_argument: bool = False
    #: the call gives its very argument when there is nothing to do
    may_return_argument: bool = False
    #: the question about a size of 1 that a kernel asks only for a short cut, so that its size-oblivious answer is right
    size_one_question: str | None = None
    #: call form (function, method name or overload) -> shape function. Those of overloads take a `Layout` and numbers (`view_layouts`),
    #: those of functions and methods take the arguments of the call (`shape_functions`)
    shape_functions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    #: storage offset of a view: f(offset, size, stride, position) of its argument along the dimension
    offset_function: Callable[..., Any] | None = None
    #: an implementation for fake tensors with eager's strides, where PyTorch's has others
    fake_kernel: Callable[..., Any] | None = None
    #: the entry of `patches` that corrects PyTorch's fake kernel of this operator
    fake_correction: str | None = None
    #: PyTorch's Python kernel copies where eager gives the argument: only the C++ kernel is to run on fake tensors
    python_kernel_copies: bool = False

    # -- treatment by the compiler

    #: asks about a tensor's metadata and makes no tensor
    is_query: bool = False
    #: a query whose answer at sizes of 1 does not follow from its answers at other sizes
    reads_layout: bool = False
    #: the method of Tensor that answers the same question with the same further arguments
    query_method: str | None = None
    #: stays whole under symbolic sizes although PyTorch's Python dispatcher would take it apart
    preserved: bool = False
    #: better decomposed by `torch._decomp` before lowering than called whole
    decompose: bool = False
    #: why a call has no functional form
    why_not_functional: str | None = None
    #: writes to arguments without saying so in its schema or its name
    hides_writes: bool = False
    #: the result has as many elements as a sparse tensor stores
    is_sparse_part: bool = False

    # -- calling it as a whole

    #: the overload that writes the result into given memory
    out: torch._ops.OpOverload | None = None
    #: neither results nor their strides depend on the strides of the arguments
    takes_any_strides: bool = False
    #: the position of the right matrix of a product of two matrices
    right_operand: int | None = None
    #: a Python callable with the same arguments that parses them faster than the overload
    binding: Callable[..., Any] | None = None


__all__ = ["Cost", "ElementUse", "Kind", "Operator", "Raises"]
