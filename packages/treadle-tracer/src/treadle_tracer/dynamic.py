"""Which sizes and ints of a frame are symbols, and the guards that let them vary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_shapes import ConstraintError

from .computed_source import is_computed
from .decision_programs import Line, Place
from .marks import Mark, marks_of
from .source import Source, is_passed

if TYPE_CHECKING:
    from treadle_shapes import IntLike, ShapeEnv

    from .options import TracerOptions


class DynamicSources(dict[Source, dict[int, int]]):
    """What earlier calls have shown to change.

    The source of a tensor maps to {dimension: the largest size it had (0: not known)}, the source of an int or float to {}.

    inputs               where calls had different parameters or buffers; these are inputs of the graph instead of constants
    strides              dimensions of tensors that were parts of others of different sizes: their strides are symbols
    varying              where calls keep deciding differently on numbers of outside tensors (`decided`), or call cached functions of other
                         numbers each time (`values.cached_functions`)
    undecided            lines at which decisions on numbers of outside tensors cost more than they save (`costly_decisions`)
    modules              where calls had different modules: what is found at such a source, or below one, is guarded by its structure
    made                 ids of the classes of modules that traces of the function have made: a continuation is given other ones each time
    unsteady             where calls have lists and tuples of other items each time (`output.varying_items`)
    apart                dimensions of tensors that have changed only between calls that no entry could serve alike: 1 is a constant there
    generalise_size_one  a dynamic dimension of size 1 is traced with a larger size, so that the entry serves both (see `output.size_one`)
    has_generalised      set when a trace has done so
    """

    def __init__(
        self,
        sizes: Mapping[Source, Mapping[int, int]] | None = None,
        generalise_size_one: bool = True,
        inputs: Iterable[Source] = (),
        modules: Iterable[Source] = (),
        varying: Iterable[Place] = (),
        strides: Mapping[Source, Iterable[int]] | None = None,
        apart: Mapping[Source, Iterable[int]] | None = None,
        undecided: Iterable[Line] = (),
        made: set[int] | None = None,
        unsteady: Iterable[Any] = (),
    ):
        super().__init__({source: dict(dims) for source, dims in (sizes or {}).items()})
        self.inputs = set(inputs)
        self.modules = set(modules)
        self.varying = set(varying)
        self.strides = {source: set(dims) for source, dims in (strides or {}).items()}
        self.apart = {source: set(dims) for source, dims in (apart or {}).items()}
        self.undecided = set(undecided)
        self.unsteady = set(unsteady)
        self.made = (
            set[int]() if made is None else made
        )  # shared by copies: what a trace makes, all that follow are told
        self.generalise_size_one = generalise_size_one
        self.has_generalised = False

    def specialising_size_one(self) -> DynamicSources:
        """The same sources; a size of 1 is a constant."""
        return self._with_sizes(self, False)

    def with_numbers(self, sources: Iterable[Source]) -> DynamicSources:
        """The same, and ints and floats at these sources."""
        sizes = {**self, **{source: {} for source in sources if source not in self}}
        return self._with_sizes(sizes, self.generalise_size_one)

    def without_numbers(self) -> DynamicSources:
        """The same tensors; ints and floats are constants."""
        sizes = {source: dims for source, dims in self.items() if dims}
        return self._with_sizes(sizes, self.generalise_size_one)

    def _with_sizes(self, sizes: Mapping[Source, Mapping[int, int]], generalise_size_one: bool) -> DynamicSources:
        known = (
            self.inputs,
            self.modules,
            self.varying,
            self.strides,
            self.apart,
            self.undecided,
            self.made,
            self.unsteady,
        )
        return DynamicSources(sizes, generalise_size_one, *known)

    def is_structural(self, source: Source) -> bool:
        """Whether a module at this source is guarded by what it consists of, and not by its identity."""
        return is_computed(source) or (bool(self.modules) and any(above in self.modules for above in source.chain()))

    def is_input(self, source: Source) -> bool:
        """Whether a parameter or buffer at this source may be another one at the next call."""
        return source in self.inputs or self.is_structural(source)

    @property
    def size(self) -> int:
        """The number of things that are known to change; it grows with what is learnt."""
        found = (*self.values(), *self.strides.values(), self.inputs, self.modules, self.varying, self.unsteady)
        return len(self) + sum(map(len, found))

    @property
    def numbers(self) -> set[Source]:
        """The sources of ints and floats."""
        return {source for source, dims in self.items() if not dims}


# The size that stands for 1 in a trace when the dimension has never been larger.
_SIZE_FOR_ONE = 2


def hints_of(tensor: torch.Tensor, source: Source, known: DynamicSources, options: TracerOptions) -> dict[int, int]:
    """The dimensions of an input tensor that the trace must not specialise, each with the size that the trace uses.

    The user's marks on the tensor (`marks`) come first, then what earlier calls have shown to change. A size of 0 is always specialised.
    Broadcasting depends on a size of 1, so the trace uses a larger one instead; where that is not possible, 1 is specialised too. Tensors
    that are not strided and parameters that are constants of the graph are always specialised.
    """
    may_vary = type(tensor) is torch.Tensor or known.is_input(source)
    if not _may_be_another(tensor, source, known):
        return {}
    marks = marks_of(tensor)
    seen = known.get(source, {})
    dynamic = options.dynamic if may_vary or options.dynamic is False else None
    found = {}
    for dim, size in enumerate(tensor.shape):
        mark = marks.get(dim)
        if size == 0 or not _is_wanted(mark, dim in seen, dynamic):
            continue
        is_constant = size > 1 or not known.generalise_size_one or dim in known.apart.get(source, ())
        hint = size if is_constant else _size_for_one(mark, seen.get(dim, 0))
        if hint > 1:
            found[dim] = hint
            known.has_generalised = known.has_generalised or size == 1
    return found


def free_strides_of(tensor: torch.Tensor, source: Source, known: DynamicSources) -> tuple[int, ...]:
    """The dimensions of an input tensor whose strides are symbols, because earlier calls had parts of tensors of other sizes."""
    if source not in known.strides or not _may_be_another(tensor, source, known):
        return ()
    return tuple(d for d in sorted(known.strides[source]) if d < tensor.dim() and is_free_stride(tensor.stride(d)))


def is_free_stride(stride: int) -> bool:
    """Whether a stride may be a symbol. Expanded dimensions and those without gaps are layouts of their own."""
    return stride > 1


def _may_be_another(tensor: torch.Tensor, source: Source, known: DynamicSources) -> bool:
    """Whether a tensor is an input of the graph whose metadata need not be constant, if it has been seen to change."""
    is_input = type(tensor) is torch.Tensor or known.is_input(source)
    is_given = is_input or (isinstance(tensor, torch.nn.Parameter) and is_passed(source))
    return tensor.layout is torch.strided and is_given


def _is_wanted(mark: Mark | None, has_changed: bool, dynamic: bool | None) -> bool:
    """Whether a dimension is to be dynamic."""
    if mark is not None and (mark.policy != "maybe" or dynamic is not False):
        return mark.policy != "static"
    return has_changed or bool(dynamic)


def _size_for_one(mark: Mark | None, seen: int) -> int:
    """A size above 1 that the dimension has had or may have; 1 when there is none."""
    wanted = max(seen, _SIZE_FOR_ONE)
    return wanted if mark is None or mark.holds(wanted) else max(mark.lower or 1, 1)


def create_size(env: ShapeEnv, tensor: torch.Tensor, name: str, dim: int, hint: int) -> IntLike:
    """The symbol of a dynamic dimension of the tensor that `env` knows by this name; dimensions of one declared name and size share one.

    `constraints` finds afterwards whether a declared dimension has become a constant, or two dimensions of one name differ.
    """
    mark = marks_of(tensor).get(dim, Mark("maybe"))
    text = f"{name}.size()[{dim}]"
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


# What a trace relies on about one stride of a tensor: this number, an extent, or nothing (None: the stride is a symbol of its own).
StrideRule = int | Chain | None


def stride_rules(tensor: torch.Tensor, dynamic_dims: Sequence[int], free: Sequence[int] = ()) -> tuple[StrideRule, ...]:
    """How the strides of a tensor follow from its sizes when those of `dynamic_dims` change, and the strides of the dimensions `free`.

    The strides of a dense tensor are a chain of extents, in any order of its dimensions. An expanded dimension has stride 0. A stride that
    is no extent (a part of a larger tensor) is a constant if no size or stride of a dimension within it changes, and a symbol otherwise.
    """
    sizes, strides = tensor.shape, tensor.stride()
    rules: list[StrideRule] = list(strides)
    extents: list[tuple[int, StrideRule]] = [(1, 1)]
    has_dynamic = False
    for d in sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d] != 1, -d)):
        if strides[d] == 0:
            continue
        match = next((rule for extent, rule in reversed(extents) if extent == strides[d]), None)
        if d in free:
            rules[d] = None
        elif match is not None:
            rules[d] = match
        elif has_dynamic:
            rules[d] = None
        has_dynamic = has_dynamic or d in dynamic_dims or d in free
        extents.append((max(sizes[d], 1) * strides[d], Chain(d)))
    return tuple(rules)


def strides_by(rules: Sequence[StrideRule], sizes: Sequence[Any], free: Callable[[int], Any]) -> list[Any]:
    """Strides that follow the rules. Sizes may be expressions; `free` gives the stride of a dimension without a rule."""
    strides: dict[int, Any] = {}
    return [_stride_by(rules, sizes, free, strides, d) for d in range(len(rules))]


def _stride_by(
    rules: Sequence[StrideRule], sizes: Sequence[Any], free: Callable[[int], Any], strides: dict[int, Any], d: int
) -> Any:
    """The stride of a dimension. No closure that calls itself, whose cycle would keep the tensor that `free` knows until a collection."""
    if d not in strides:
        rule = rules[d]
        if isinstance(rule, Chain):
            size, inner = sizes[rule.inner], _stride_by(rules, sizes, free, strides, rule.inner)
            strides[d] = inner * (max(size, 1) if isinstance(size, int) else size)
        else:
            strides[d] = free(d) if rule is None else rule
    return strides[d]


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


def is_drawn(number: int) -> bool:
    """Whether an int is too large to be a symbol, and no limit of some type (`sys.maxsize`, `-(2**31)`): a seed, a hash, a time."""
    size = abs(number)
    return not is_small_integer(number) and size & (size - 1) != 0 and size & (size + 1) != 0


class SizesGuard:
    """Guard callable of all dynamic numbers of an entry: the decisions of the trace hold, and the sizes of 1 are accepted.

    A trace with sizes of 2 and more may be wrong at 1: layouts and broadcasting that it decided without a guard may differ there. So each
    combination of sizes of 1 is accepted on its own, after `output.size_one` has checked it.

    check    callable(*numbers) -> bool: the recorded decisions
    sizes    positions of tensor sizes among the numbers
    refused  combinations of sizes of 1 at which the graph does something else, each with the reason
    """

    __slots__ = ("_accepted", "_thread_accepting_all", "check", "refused", "sizes")

    def __init__(self, check: Callable[..., bool], sizes: tuple[int, ...]):
        self.check = check
        self.sizes = sizes
        self.refused: dict[tuple[int, ...], str] = {}
        self._accepted: set[tuple[int, ...]] = set()
        self._thread_accepting_all: int | None = None

    def __call__(self, *numbers: int) -> bool:
        return (1 not in numbers or self._accepts(self.positions_of_one(numbers))) and self.check(*numbers)

    def positions_of_one(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Positions of the sizes that are 1."""
        return tuple(position for position in self.sizes if numbers[position] == 1)

    def _accepts(self, positions: tuple[int, ...]) -> bool:
        return not positions or positions in self._accepted or self._thread_accepting_all == threading.get_ident()

    def accept(self, positions: tuple[int, ...]) -> None:
        """From now on the guard holds when exactly these sizes are 1."""
        self._accepted.add(positions)

    def may_be_one(self, position: int) -> bool:
        """Whether the size at this position may be 1, perhaps only where certain others are."""
        return any(position in accepted for accepted in self._accepted)

    @property
    def accepts_each_alone(self) -> bool:
        """Whether the accepted combinations are ranges: any of certain sizes may be 1, whatever the others are."""
        may_be_one = {position for positions in self._accepted for position in positions}
        return len(self._accepted - {()}) + 1 == 2 ** len(may_be_one)

    @contextlib.contextmanager
    def accepting_all(self) -> Iterator[None]:
        """Inside, in this thread, the guard accepts every combination: to find out whether the rest of a program holds."""
        self._thread_accepting_all = threading.get_ident()
        try:
            yield
        finally:
            self._thread_accepting_all = None
