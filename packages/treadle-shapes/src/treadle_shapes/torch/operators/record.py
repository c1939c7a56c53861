"""The record `Operator` of facts about one ATen operator, and the enumerations of its fields.

`table.operator` makes records. It joins facts from schemas (`derive`) with declarations of family modules (`declare`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
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


class Operator:
    """One operator as one target calls it. The record of a name or torch function holds for the whole packet.

    Facts under "derived" come from the schema, its tags and its dispatch keys. Family modules declare all others. The default of an
    undeclared fact claims nothing. Records do not change.
    """

    # Not a dataclass: building one of fifty fields would take 2 ms of every import.
    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the record of {self.name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"the record of {self.name} cannot be changed")

    def __repr__(self) -> str:
        return f"Operator({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

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
    #: a functional graph may drop a call whose results are unused, as far as effects go; says nothing about exceptions
    is_pure: bool = False

    # -- what eager raises

    raises: Raises = Raises.NEVER
    #: number arguments that must fit the dtype of the result, or eager raises (`Scalar::to`, c10/core/Scalar.h)
    held_by_result: tuple[str, ...] = ()
    #: number arguments that must fit the dtype that is computed in: float32 for float16 and bfloat16
    held_by_compute: tuple[str, ...] = ()
    #: a result of no dimensions rounds a number that its dtype cannot hold, possibly to infinity, as `torch.tensor(number)` does
    rounds_numbers: bool = False
    #: the same, for float16 and bfloat16 only
    rounds_to_low_float: bool = False
    #: eager refuses to reduce no elements over the dimensions in this argument; "" for all dimensions, None if it never refuses
    no_empty_over: str | None = None

    # -- elements

    element_use: ElementUse = ElementUse.UNKNOWN
    #: the result has the same elements in the same order, with sizes that are given (view) or unchanged (alias)
    reinterprets: bool = False
    #: where sizes are equal, each element of the result is the first argument's element at the same index; not for requested copies
    keeps_index: bool = False
    #: reads no element of its arguments, or each at its own index, and writes none; may run although its result is not needed
    is_speculatable: bool = False
    #: the result is a copy of the first argument in which the second one stands in the place of a view
    replaces_part: bool = False
    #: items 1 and 2 of the result are mean and inverse standard deviation of each channel, of this batch if `training` is true
    gives_statistics: bool = False
    #: draws from the state of a generator, its first argument; item 1 of the result is the state behind that
    draws_from_state: bool = False
    #: every element of the result is 0 or 1
    is_zero_or_one: bool = False
    #: every element of the result is this number, or the one in the argument of this name
    filled_with: int | str | None = None
    #: groups of arguments: a result that is not of integers is linear in all tensors of one group together, all others held constant;
    #: numbers in the place of tensors must be 0. Views are linear in their first argument, and say nothing
    linear_in: tuple[tuple[str, ...], ...] = ()
    #: results whose derivatives, where they are complex, raise for some gradients: a loss must not depend on the phase of an eigenvector.
    #: PyTorch looks at the elements, not at those of fake tensors (`linalg_eig_backward`, torch/csrc/autograd/FunctionsManual.cpp)
    derivative_raises: tuple[int, ...] = ()
    #: (argument, results): without these results, which nobody reads, the argument may be False and the call takes less time. Composites of
    #: eigenvalues and singular values ask for vectors wherever they are called with a subclass of Tensor, as fake tensors are
    optional_results: tuple[str, tuple[int, ...]] | None = None

    # -- cost

    #: eager's kernel for CPUs has few vectors or none: reading so many elements, one with vectors saves the time of a call. 0: it has them
    elements_per_saved_call: int = 0

    # -- layout and shape

    #: a view that any strided tensor has, whose strides follow from those of the argument
    is_strided_view: bool = False
    #: `at::empty_like` or `at::clone` of the first argument makes the result, which has its strides
    like_first_argument: bool = False
    #: the call returns its argument itself when there is nothing to do
    may_return_argument: bool = False
    #: the question about a size of 1 that a kernel asks only for a short cut; its size-oblivious answer is right
    size_one_question: str | None = None
    #: call form (function, method name or overload) -> shape function. Those of overloads take a `Layout` and numbers (`view_layouts`),
    #: those of functions and methods take the arguments of the call (`shape_functions`)
    shape_functions: Mapping[Any, Callable[..., Any]] = MappingProxyType({})
    #: storage offset of a view: f(offset, size, stride, position) of its argument along the dimension
    offset_function: Callable[..., Any] | None = None
    #: an implementation for fake tensors with eager's strides, where PyTorch's has others
    fake_kernel: Callable[..., Any] | None = None
    #: what to call on fake tensors in place of the torch function, whose fake result would not be eager's, or which has no functional form
    fake_function: Callable[..., Any] | None = None
    #: the entry of `patches` that corrects PyTorch's fake kernel of this operator
    fake_correction: str | None = None
    #: a pointwise operator whose results lie as eager's iteration over its operands has them (`result_layouts`)
    iterates: bool = True
    #: the result, or the first of several, is row-major whatever the arguments are
    is_row_major: bool = False
    #: PyTorch's Python kernel copies where eager returns the argument, so only the C++ kernel may run on fake tensors
    python_kernel_copies: bool = False

    # -- treatment by the compiler

    #: asks about a tensor's metadata and makes no tensor
    is_query: bool = False
    #: a query whose answer at sizes of 1 does not follow from its answers at other sizes
    reads_layout: bool = False
    #: a question about the tensor itself, not its metadata; a guard may ask it again
    asks_about_object: bool = False
    #: the call changes what autograd knows of the tensor that it is called on, and not its elements
    changes_history_only: bool = False
    #: a question to which a guard cannot hold the answer
    has_unguarded_answer: bool = False
    #: the method of Tensor that answers the same question with the same further arguments
    query_method: str | None = None
    #: stays whole under symbolic sizes, although PyTorch's Python dispatcher would decompose it
    preserved: bool = False
    #: decomposed before lowering, by `torch._decomp` or treadle-codegen, which is better than a call of the whole operator
    decompose: bool = False
    #: one of the results is memory for the backward pass of the same library, and its fake has another size
    has_opaque_result: bool = False
    #: it gives what its backward pass needs in grad mode only, and None instead elsewhere
    needs_grad_mode: bool = False
    #: its kernel calls operators that autocast casts; fake tensors have the dtype of a call without autocast
    casts_inside: bool = False
    #: why a call has no functional form
    why_not_functional: str | None = None
    #: why a write to the memory of its result has no functional form
    why_not_written: str | None = None
    #: writes to arguments, although neither its schema nor its name says so
    hides_writes: bool = False
    #: the result has elements that nobody has written
    is_uninitialised: bool = False
    #: the result has as many elements as a sparse tensor stores
    is_sparse_part: bool = False

    # -- calling it as a whole

    #: the overload that writes its result into a given tensor
    out: torch._ops.OpOverload | None = None
    #: neither results nor their strides depend on the strides of the arguments
    takes_any_strides: bool = False
    #: the position of the right matrix of a product of two matrices
    right_operand: int | None = None
    #: a Python callable with the same arguments that parses them faster than the overload, where `binding_of` would not find it
    binding: Callable[..., Any] | None = None


__all__ = ["Cost", "ElementUse", "Kind", "Operator", "Raises"]
