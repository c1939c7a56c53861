"""Which sizes and ints of a frame are symbols, and the guards that let them vary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_shapes import ConstraintError

from .marks import Mark, marks_of
from .source import Source

if TYPE_CHECKING:
    from treadle_shapes import IntLike, ShapeEnv

    from .options import TracerOptions


class DynamicSources(dict[Source, dict[int, int]]):
    """What earlier misses have shown to change: source of a tensor -> {dimension: a larger size that it had (0: none is known)}; source of
    an int -> {}.

    `inputs`: where other parameters or buffers stood at earlier calls. They are constants of the graph at first, and inputs from then on.
    `pretend`: a dynamic dimension whose size is 1 is traced as if it were larger, so that the entry serves both (see `output.size_one`);
    `pretended` says whether that has happened.
    """

    def __init__(
        self,
        sizes: Mapping[Source, Mapping[int, int]] | None = None,
        pretend: bool = True,
        inputs: Iterable[Source] = (),
    ):
        super().__init__({source: dict(dims) for source, dims in (sizes or {}).items()})
        self.inputs = set(inputs)
        self.pretend = pretend
        self.pretended = False

    def without_pretending(self) -> DynamicSources:
        """The same, and a size of 1 is a constant."""
        return DynamicSources(self, pretend=False, inputs=self.inputs)


# The size that a dynamic dimension of size 1 is traced with when it has never been seen larger.
_PRETENDED = 2


def hints_of(tensor: torch.Tensor, source: Source, known: DynamicSources, options: TracerOptions) -> dict[int, int]:
    """The dimensions of an input tensor that the trace must not specialise, each with the size that the trace looks at.

    The user's marks on the tensor (`marks`) come first, then what earlier misses have shown to change. A size of 0 is always specialised.
    Broadcasting depends on a size of 1, so the trace looks at a larger one instead; where that is not possible, 1 is specialised too. So is
    a tensor that is not strided, and a parameter that is a constant of the graph.
    """
    may_vary = type(tensor) is torch.Tensor or source in known.inputs
    if tensor.layout is not torch.strided or not may_vary:
        return {}
    marks = marks_of(tensor)
    seen = known.get(source, {})
    may_pretend = known.pretend
    found = {}
    for dim, size in enumerate(tensor.shape):
        mark = marks.get(dim)
        if size == 0 or not _is_wanted(mark, dim in seen, options.dynamic):
            continue
        hint = size if size > 1 or not may_pretend else _pretended(mark, seen.get(dim, 0))
        if hint > 1:
            found[dim] = hint
            known.pretended = known.pretended or size == 1
    return found


def _is_wanted(mark: Mark | None, has_changed: bool, dynamic: bool | None) -> bool:
    """Whether a dimension is to be dynamic."""
    if mark is not None and (mark.policy != "maybe" or dynamic is not False):
        return mark.policy != "static"
    return has_changed or bool(dynamic)


def _pretended(mark: Mark | None, seen: int) -> int:
    """A size above 1 that the dimension has had or may have; 1 when there is none."""
    wanted = max(seen, _PRETENDED)
    return wanted if mark is None or mark.holds(wanted) else max(mark.lower or 1, 1)


def create_size(env: ShapeEnv, tensor: torch.Tensor, source: Source, dim: int, hint: int) -> IntLike:
    """The symbol of a dynamic dimension in `env`; dimensions of one declared name and size share a symbol.

    That a declared dimension has become a constant, or two of one name differ, is found afterwards, see `constraints`.
    """
    mark = marks_of(tensor).get(dim, Mark("maybe"))
    text = f"{source.text}.size()[{dim}]"
    if not mark.holds(hint):
        return env.create_symbol(hint, text)
    lower = None if mark.lower is None else max(mark.lower, 1)
    if mark.name is not None:
        with contextlib.suppress(ConstraintError):
            return env.create_named(mark.name, hint, text, lower=lower, upper=mark.upper)
    return env.create_symbol(hint, text, lower=lower, upper=mark.upper)


class Chain(NamedTuple):
    """A stride that is the extent of dimension `inner`: its size times its stride."""

    inner: int


# What is relied on about one stride of a tensor: this number, an extent, or (None) nothing: it is a symbol of its own.
StrideRule = int | Chain | None


def stride_rules(tensor: torch.Tensor, dynamic_dims: Sequence[int]) -> tuple[StrideRule, ...]:
    """How the strides of a tensor follow from its sizes when those of `dynamic_dims` change.

    A dense tensor is a chain of extents, in whatever order its dimensions lie; what is expanded has stride 0. A stride that is no extent
    (a part of a larger tensor) stays what it is if no size of a dimension within it is dynamic, and is a number of its own otherwise.
    """
    sizes, strides = tensor.shape, tensor.stride()
    rules: list[StrideRule] = list(strides)
    extents: list[tuple[int, StrideRule]] = [(1, 1)]
    has_dynamic = False
    for d in sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d] != 1, -d)):
        if strides[d] == 0:
            continue
        match = next((rule for extent, rule in reversed(extents) if extent == strides[d]), None)
        if match is not None:
            rules[d] = match
        elif has_dynamic:
            rules[d] = None
        has_dynamic = has_dynamic or d in dynamic_dims
        extents.append((max(sizes[d], 1) * strides[d], Chain(d)))
    return tuple(rules)


def strides_by(rules: Sequence[StrideRule], sizes: Sequence[Any], free: Callable[[int], Any]) -> list[Any]:
    """Strides that follow the rules, for sizes that may be expressions; `free` gives the stride of a dimension without a rule."""
    strides: dict[int, Any] = {}

    def of(d: int) -> Any:
        if d not in strides:
            rule = rules[d]
            if isinstance(rule, Chain):
                size = sizes[rule.inner]
                strides[d] = of(rule.inner) * (max(size, 1) if isinstance(size, int) else size)
            else:
                strides[d] = free(d) if rule is None else rule
        return strides[d]

    return [of(d) for d in range(len(rules))]


class DynamicSizes:
    """Guard callable of a tensor whose `dims` are not specialised: none of them is empty, and the strides follow their rules."""

    __slots__ = ("dims", "rules")

    def __init__(self, dims: tuple[int, ...], rules: tuple[StrideRule, ...]):
        self.dims = dims
        self.rules = rules

    def __call__(self, tensor: torch.Tensor) -> bool:
        sizes, strides = tensor.shape, tensor.stride()
        if any(sizes[d] < 1 for d in self.dims):
            return False
        return strides_by(self.rules, sizes, lambda d: strides[d]) == list(strides)


def is_small_integer(number: int) -> bool:
    """Whether an int may be a symbol: compiled code computes with 64 bits, and the product of two such numbers still fits."""
    return -(2**31) <= number < 2**31


class SizesGuard:
    """Guard callable of all dynamic numbers of an entry: the decisions of the trace hold, and sizes of 1 have been admitted.

    A trace with sizes of 2 and more is not right at 1 by itself: what it decided without a guard (layouts, broadcasting) may come out
    differently there. So which dimensions may be 1 together is admitted case by case, after `output.size_one` has looked.

    check    callable(*numbers) -> bool: the recorded decisions
    sizes    positions of tensor sizes among the numbers
    """

    __slots__ = ("_admitted", "_trying", "check", "refused", "sizes")

    def __init__(self, check: Callable[..., bool], sizes: tuple[int, ...]):
        self.check = check
        self.sizes = sizes
        self.refused: dict[tuple[int, ...], str] = {}
        self._admitted: set[tuple[int, ...]] = set()
        self._trying: int | None = None

    def __call__(self, *numbers: int) -> bool:
        return (1 not in numbers or self._is_admitted(self.ones(numbers))) and self.check(*numbers)

    def ones(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Positions of the sizes that are 1."""
        return tuple(position for position in self.sizes if numbers[position] == 1)

    def _is_admitted(self, ones: tuple[int, ...]) -> bool:
        return not ones or ones in self._admitted or self._trying == threading.get_ident()

    def check_size_one(self, ones: tuple[int, ...]) -> None:
        """From now on the guard holds when exactly these sizes are 1."""
        self._admitted.add(ones)

    def has_admitted(self, position: int) -> bool:
        """Whether the size at this position may be 1, at least where certain others are."""
        return any(position in ones for ones in self._admitted)

    @property
    def admits_each(self) -> bool:
        """Whether what has been admitted are ranges: any of certain sizes may be 1, whatever the others are."""
        may_be_one = {position for ones in self._admitted for position in ones}
        return len(self._admitted - {()}) + 1 == 2 ** len(may_be_one)

    @contextlib.contextmanager
    def admitting_all(self) -> Iterator[None]:
        """In this thread, the guard admits everything for the moment: to find out whether the rest of a program holds."""
        self._trying = threading.get_ident()
        try:
            yield
        finally:
            self._trying = None
