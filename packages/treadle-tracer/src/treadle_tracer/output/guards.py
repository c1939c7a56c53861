"""The guards that a trace collects, and the `treadle_frame.GuardProgram` made of them.

A guard says what the trace has relied on about one source. The set keeps each guard once and drops those that another one implies
(`output.guard_kinds`). Tensor metadata and global state have checks of their own (`output.tensor_check`).
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from ..by_identity import IdentityDict, classes_after, is_one_of
from ..class_facts import length_of_container, mro_of, qualname_of
from ..decided import Decided
from ..dynamic import SizesGuard, StrideRule, is_small_integer, stride_rules
from ..errors import InternalError
from ..guard_callables import GuardCallable
from ..source import AliasSource, ApplySource, AttrSource, ConstSource, Path, Source, TupleItemSource
from ..values.cached_answers import CachedAnswer
from ..values.class_lookup import class_may_change, find_in_mro, instance_may_change_class, is_descriptor
from ..values.peeked_iterators import is_look_at_end
from ..weakly import is_referred_to_weakly, parts_of, reference_to
from . import tensor_check
from .guard_kinds import IMPLIES, KINDS, RECORDED, is_asked_last


@dataclass(frozen=True, eq=False)
class Guard:
    """One check: `op` of docs/contracts.md section 1 on the object at `source`; `reason` is shown when it fails."""

    source: Source
    op: str
    arg: Any
    reason: str


@dataclass(frozen=True, eq=False)
class TensorGuard:
    """The metadata of a guarded tensor. `output.tensor_check` makes the checks; recompile reasons compare it with the tensor of a call."""

    source: Source
    sizes: tuple[int, ...]
    dynamic_dims: tuple[int, ...]
    identity: torch.Tensor | None  # the tensor, if it must be this very one: a constant of the graph; None for an input
    kind: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    strides: tuple[int, ...] | None
    rules: tuple[StrideRule, ...] | None
    requires_grad: bool
    name: str  # what the shape environment calls the tensor

    @classmethod
    def of(
        cls,
        source: Source,
        tensor: torch.Tensor,
        dims: tuple[int, ...],
        by_identity: bool,
        free_strides: tuple[int, ...] = (),
        name: str | None = None,
    ) -> TensorGuard:
        """The metadata of `tensor`."""
        strides = tuple(tensor.stride()) if tensor.layout is torch.strided else None
        rules = stride_rules(tensor, dims, free_strides) if dims or free_strides else None
        kept = (tensor.dtype, tensor.device, tensor.layout, strides, rules, tensor.requires_grad, name or source.text)
        identity = tensor if by_identity else None
        return cls(source, tuple(tensor.shape), dims, identity, type(tensor), *kept)


class DynamicNumbers(NamedTuple):
    """The dynamic numbers of an entry.

    symbols    the symbol of each number
    sources    where each number is found
    guard      the test of all numbers together
    decisions  `treadle_shapes` guards: an expression over the symbols, and the user's line that needed it
    texts      each number as the user writes it
    box        the interval of each number (None: open)
    equal      positions of pairs of sizes that must be equal
    relations  the other decisions that are more than intervals, as a GuardFunction of their numbers; None if there is none
    """

    symbols: tuple[Any, ...]
    sources: tuple[Source, ...]
    guard: SizesGuard
    decisions: tuple[Any, ...]
    texts: tuple[str, ...]
    box: tuple[tuple[int | None, int | None], ...]
    equal: tuple[tuple[int, int], ...]
    relations: Any

    def describe(self, expr: Any) -> str:
        """An expression over the symbols in the user's terms."""
        from treadle_shapes import to_python

        return to_python(expr, dict(zip(self.symbols, self.texts, strict=True)))

    def is_guarded_by(self, check: Any) -> bool:
        """Whether a check of a guard program is about these numbers together."""
        if check.op == "equal_items":
            return True
        forms = (self.guard, self.guard.check, self.relations and self.relations.check)
        return check.op == "call_many" and any(check.arg[0] is form for form in forms)

    @property
    def text(self) -> str:
        """All decisions, with the lines that needed them."""
        decided = [f"{self.describe(guard.expr)} (decided at {guard.where})" for guard in self.decisions]
        return " and ".join(decided) or f"{', '.join(self.texts)} are in range"


class Notes(Protocol):
    """Is told of every guard."""

    @property
    def step(self) -> int | None: ...
    @property
    def stack(self) -> tuple[tuple[str, int, str], ...]: ...
    def note(self, source: Source, op: str) -> None: ...


class GuardSet:
    """Guards of one trace, in the order in which they were first needed."""

    def __init__(self) -> None:
        self._guards: dict[tuple[Any, ...], Guard] = {}
        self._ops: dict[Source, dict[str, list[tuple[Any, ...]]]] = {}  # of each source, the keys of its guards by op
        self._tensors: dict[Source, TensorGuard] = {}
        self._integers: dict[str, Source] = {}
        self._first_source: dict[int, Source] = {}
        self._lookups: IdentityDict[type, dict[tuple[str, int], tuple[Any, ...]]] = IdentityDict()
        self._kept_alive: list[Any] = []
        self._has_global_state = False
        self._left_out: dict[int, Any] = {}
        self.decided = Decided()
        self.varying: Notes | None = None

    def leave_out(self, obj: Any) -> None:
        """Guard nothing about an object that the trace has made itself, or about what is reached from it."""
        self._left_out[id(obj)] = obj

    def is_left_out(self, source: Source) -> bool:
        """Whether the source is, or is reached from, such an object."""
        root = source.root
        return isinstance(root, ConstSource) and id(root.obj) in self._left_out

    def add(self, source: Source, op: str, arg: Any = None, reason: str = "") -> None:
        """Rely on `op` with `arg` holding for the object at `source`.

        `arg` is what the table of check ops in docs/contracts.md says, with sources in place of paths: `same_object` takes a Source,
        `distinct_objects` a sequence of Sources, `call_many` (callable, sequence of Sources).
        """
        kind = KINDS.get(op)
        if kind is None or not kind.is_recorded:
            raise ValueError(f"op must be one of {sorted(RECORDED)}, not {op!r}")
        if self._left_out and self.is_left_out(source):
            return
        if kind.true_of_constants and isinstance(source, ConstSource) and not _may_differ(op, arg):
            return
        if op == "equals" and not _plain_equality_is_enough(arg):
            op, arg, reason = "call", _IdenticalConstant(arg), reason or f"{source.text} is {arg!r}"
            kind = KINDS[op]
        present = self._ops.setdefault(source, {})
        implied_by = kind.implied_by - {"is"} if _may_differ(op, arg) else kind.implied_by
        if not present.keys().isdisjoint(implied_by):
            return
        key = (source, op, _arg_key(arg))
        if key in self._guards:
            return
        for weaker in IMPLIES[op] & present.keys():
            self._drop(source, weaker, op)
        self._guards[key] = Guard(source, op, arg, reason or kind.text(source.text, arg))
        if self.varying is not None:
            self.varying.note(source, op)
        present.setdefault(op, []).append(key)

    def add_lookup(self, cls: type, name: str, found: Any, owner: type | None, after: type | None = None) -> None:
        """Rely on what the MRO of `cls`, behind the class `after`, finds under a name: `found` in `owner`, or nothing (owner is None).

        Of data it counts only in which class it is found: whoever reads the data guards its value.
        """
        if id(cls) in self._left_out:
            self._add_lookups_of_bases(cls, name, owner, after)
            return
        end = () if after is None else (reference_to(after),)
        if owner is None:
            fact = (name, "lacks", None, *end)
        elif _is_read_as_data(name, found):
            fact = (name, "in", reference_to(owner), *end)
        else:
            fact = (name, *_what_is_found(found), *end)
        self._lookups.setdefault(cls, {})[name, id(after)] = fact  # `after` is a base of the class, so alive

    def _add_lookups_of_bases(self, cls: type, name: str, owner: type | None, after: type | None) -> None:
        """Rely on what the MRO of a class that the trace has made finds, as far as it depends on other classes."""
        for base in classes_after(mro_of(cls), after):
            if id(base) not in self._left_out and class_may_change(base):
                self.add_lookup(base, name, *find_in_mro(mro_of(base), name))
            if base is owner:
                return

    def add_mro(self, cls: type) -> None:
        """Rely on the bases of a class."""
        if id(cls) in self._left_out:
            for base in mro_of(cls)[1:]:
                self.add_mro(base)
        elif class_may_change(cls):
            self._lookups.setdefault(cls, {})["", 0] = ("", "mro", tuple(map(reference_to, mro_of(cls))))

    def _drop(self, source: Source, op: str, stronger: str) -> None:
        """Forget guards that a stronger one on the same source implies."""
        for key in self._ops[source].pop(op):
            if stronger != "is" or not _may_differ(op, self._guards[key].arg):
                del self._guards[key]
            else:
                self._ops[source].setdefault(op, []).append(key)

    def add_tensor(
        self,
        source: Source,
        tensor: torch.Tensor,
        dynamic_dims: Iterable[int] = (),
        reason: str = "",
        by_identity: bool = False,
        free_strides: tuple[int, ...] = (),
        name: str | None = None,
    ) -> None:
        """Rely on the metadata of a tensor; with `by_identity` also on its identity, because the graph has it as an attribute.

        Sizes and strides of `dynamic_dims` and the strides of `free_strides` are not specialised; `add_sizes` guards what the trace
        decides about them.
        A tensor at two sources is guarded to be one object.
        """
        if source in self._tensors:
            return
        first = self._first_source.setdefault(id(tensor), source)
        self._kept_alive.append(tensor)
        if by_identity:
            self.add(source, "is", tensor, reason)
        elif first is not source:
            self.add(source, "same_object", first)
        dims = tuple(sorted({d % tensor.dim() for d in dynamic_dims})) if tensor.dim() else ()
        self._tensors[source] = TensorGuard.of(source, tensor, dims, by_identity, free_strides, name)
        if first is not source:
            return
        for accessors, op, arg, text in tensor_check.checks(tensor, dims, free_strides):
            guarded = _Derived(source, accessors) if accessors else source
            self.add(guarded, op, arg, reason or f"{source.text}: {text}")

    def add_global_state(self) -> None:
        """Rely on grad mode, inference mode, default dtype, autocast and determinism, and on the absence of function and dispatch modes."""
        if self._has_global_state:
            return
        self._has_global_state = True
        check = tensor_check.GlobalState()
        self.add(ConstSource(None, "global state"), "call", check.check, check.text)

    def add_integer(self, source: Source, name: str) -> None:
        """Rely on an int that is a symbol of the shape environment, under this name."""
        self.add(source, "type_is", int)
        self.add(source, "call", is_small_integer, f"{source.text} is an int of at most 31 bits")
        self._integers[name] = source

    def add_float(self, source: Source, name: str) -> None:
        """Rely on a float that is a symbol of the shape environment, under this name."""
        self.add(source, "type_is", float)
        self._integers[name] = source

    def add_sizes(self, env: Any) -> DynamicNumbers | None:
        """Rely on what a `treadle_shapes.ShapeEnv` has decided about the sizes of this set's tensors and its dynamic integers.

        A symbol belongs to the dimension (or stride, or integer) that its source text in `env` names: `x.size()[0]`, `x.stride()[0]`, `n`.
        None when there is no dynamic number.
        """
        found = self.dynamic_numbers(env)
        if found is not None:
            test = found.guard if found.guard.sizes else found.guard.check  # without sizes there is no size of 1
            self.add(found.sources[0], "call_many", (test, found.sources[1:]), found.text)
            places = self._places()
            for symbol, other in env.shared:
                first = places[env.source_of(symbol)]
                self.add(first, "call_many", (operator.eq, (places[other],)), f"{env.source_of(symbol)} == {other}")
        return found

    def dynamic_numbers(self, env: Any) -> DynamicNumbers | None:
        """What `add_sizes` guards, as decided so far."""
        if env is None:
            return None
        symbols = tuple(s for s, info in env.symbols.items() if not info.unbacked)
        if not symbols:
            return None
        places = self._places()
        sources = tuple(places[env.source_of(symbol)] for symbol in symbols)
        decisions = env.compile_guards(symbols)
        names = tuple(map(env.source_of, symbols))  # of an int, too, as `gcd(x.size()[0], 4)`
        is_size = tuple(i for i, name in enumerate(names) if ".size()[" in name and name not in self._integers)
        check = SizesGuard(decisions.check, is_size)
        pairs = {guard: _equal_sizes(guard, symbols, is_size) for guard in decisions.relations}
        return DynamicNumbers(
            symbols,
            sources,
            check,
            decisions.guards,
            names,
            decisions.box,
            equal=tuple(pair for pair in pairs.values() if pair is not None),
            relations=_function_of([guard for guard, pair in pairs.items() if pair is None]),
        )

    @property
    def answers(self) -> tuple[CachedAnswer, ...]:
        """What the trace relies on cached functions answering."""
        pairs = (guard.arg for guard in self._guards.values() if guard.op == "call_many")
        return tuple(pair[0] for pair in pairs if type(pair[0]) is CachedAnswer)

    def callables_at(self, source: Source) -> list[Any]:
        """The tests that relate what is at `source` to other objects."""
        return [self._guards[key].arg[0] for key in self._ops.get(source, {}).get("call_many", ())]

    @property
    def has_integers(self) -> bool:
        """Whether some int or float outside has a symbol."""
        return bool(self._integers)

    def decides_on(self, env: Any, is_meant: Callable[[Source], bool]) -> bool:
        """Whether the trace holds for some values only of the ints and floats at such sources."""
        names = {name for name, place in self._integers.items() if is_meant(place)}
        asked = () if env is None or not names else (s for guard in env.guards for s in guard.expr.free_symbols)
        values = [g.source for g in self._guards.values() if g.op == "equals" or isinstance(g.arg, _IdenticalConstant)]
        return any(env.source_of(symbol) in names for symbol in asked) or any(map(is_meant, values))

    def _places(self) -> dict[str, Source]:
        """The sources of what may have a symbol, by the text that names it in the shape environment."""
        places: dict[str, Source] = dict(self._integers)
        owners: dict[str, Source] = {}
        for tensor in self.tensors:
            if tensor.rules is None:
                continue
            text = tensor.name
            if owners.setdefault(text, tensor.source) != tensor.source:
                raise InternalError("guards", f"two tensors are called {text}")
            for dim in range(len(tensor.sizes)):
                places[f"{text}.size()[{dim}]"] = TupleItemSource(AttrSource(tensor.source, "shape"), dim)
                stride = (("apply", torch.Tensor.stride), ("tuple_item", dim))
                places[f"{text}.stride()[{dim}]"] = _Derived(tensor.source, stride)
        return places

    @property
    def numbers(self) -> tuple[tuple[Source, int | float | str], ...]:
        """Every int, float and string outside that is guarded by its value, and that value; every guarded length."""
        values = [(g.source, g.arg) for g in self if g.op == "equals" and is_one_of(type(g.arg), (int, float, str))]
        lengths = [(ApplySource(g.source, length_of_container), g.arg) for g in self if g.op == "len"]
        return (*values, *lengths)

    @property
    def modules(self) -> tuple[tuple[Source, weakref.ref[torch.nn.Module]], ...]:
        """Every module that is guarded by its identity, referred to weakly."""
        return tuple(
            (g.source, weakref.ref(g.arg)) for g in self if g.op == "is" and issubclass(type(g.arg), torch.nn.Module)
        )

    @property
    def ends(self) -> tuple[tuple[Source, bool], ...]:
        """Where the trace has asked whether an outside iterator has more items, and what came out."""
        looks = [g for g in self if g.op == "is" and isinstance(g.source, ApplySource)]
        return tuple((g.source, g.arg) for g in looks if is_look_at_end(g.source.function))

    @property
    def weakly_held(self) -> tuple[Any, ...]:
        """The objects without which these guards never hold, and which they do not keep alive."""
        named = [g.arg for g in self._guards.values() if g.op in ("is", "type_is")]
        found = {id(obj): obj for obj in (*named, *self._lookups)}
        return tuple(obj for key, obj in found.items() if key not in self._left_out and is_referred_to_weakly(obj))

    @property
    def tensors(self) -> tuple[TensorGuard, ...]:
        """Every guarded tensor."""
        return tuple(self._tensors.values())

    def __iter__(self) -> Iterator[Guard]:
        yield from self._guards.values()
        for cls, facts in self._lookups.items():
            yield Guard(
                ConstSource(cls), "type_lookup", tuple(facts.values()), f"attributes of class {qualname_of(cls)}"
            )

        if self.decided.decisions:
            first, *others = self.decided.sources
            yield Guard(first, "call_many", (self.decided, tuple(others)), self.decided.text)

    def __len__(self) -> int:
        return len(self._guards) + len(self._lookups) + bool(self.decided.decisions)

    def snapshot(self) -> Any:
        """The state to hand to `restore` when a speculative part of the trace is given up."""
        ops = {source: _copied(keys) for source, keys in self._ops.items()}
        lookups = [(cls, dict(facts)) for cls, facts in self._lookups.items()]
        parts = dict(self._tensors), dict(self._integers), dict(self._first_source), self._has_global_state, lookups
        return dict(self._guards), ops, *parts

    def restore(self, state: Any) -> None:
        """Go back to a snapshot."""
        guards, ops, tensors, integers, first, has_global_state, lookups = state
        self._lookups = IdentityDict((cls, dict(facts)) for cls, facts in lookups)
        self._guards, self._ops = dict(guards), {source: _copied(keys) for source, keys in ops.items()}
        self._integers = dict(integers)
        self._tensors, self._first_source, self._has_global_state = dict(tensors), dict(first), has_global_state

    def program(self):
        """The `treadle_frame.GuardProgram` of this set. It also checks that tensors which could be one object are distinct."""
        import treadle_frame

        ordered = sorted(self, key=is_asked_last)
        checks = [treadle_frame.Check(g.source.path, *KINDS[g.op].compiled(g.arg), g.reason) for g in ordered]
        behind = len(checks) - sum(map(is_asked_last, ordered))
        checks[behind:behind] = [treadle_frame.Check(*parts) for parts in self._alias_checks()]
        return treadle_frame.GuardProgram(checks)

    def _alias_checks(self) -> list[tuple[Path, str, Any, str]]:
        seen = set(self._first_source.values())
        tensors = [t for t in self._tensors.values() if t.source in seen]
        # An input that is a plain tensor cannot be a parameter of the graph: its type is guarded.
        among_parameters = any(t.identity is None and issubclass(t.kind, torch.nn.Parameter) for t in tensors)
        free = [
            t.source.base if isinstance(t.source, AliasSource) else t.source
            for t in tensors
            if t.identity is None or among_parameters or not issubclass(t.kind, torch.nn.Parameter)
        ]
        if len(free) < 2:
            return []
        first, *others = free
        text = f"{', '.join(s.text for s in free)} are different tensors"
        return [(first.path, "distinct_objects", tuple(s.path for s in others), text)]


def _copied(keys: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {op: list(of_op) for op, of_op in keys.items()}


def _equal_sizes(guard: Any, symbols: Sequence[Any], is_size: Sequence[int]) -> tuple[int, int] | None:
    """The positions of the two sizes that a guard says are equal; None when it says something else."""
    from treadle_shapes.expr import as_terms

    if guard.expr.op != "eq0":
        return None
    coefficients, constant = as_terms(guard.expr.args[0])
    if constant != 0 or sorted(coefficients.values()) != [-1, 1] or not all(s in symbols for s in coefficients):
        return None
    first, second = (symbols.index(symbol) for symbol in coefficients)
    return (first, second) if first in is_size and second in is_size else None


def _function_of(relations: Sequence[Any]) -> Any:
    """One function of the symbols in these `treadle_shapes` guards, None if there are none."""
    if not relations:
        return None
    from treadle_shapes import GuardFunction

    used = dict.fromkeys(symbol for guard in relations for symbol in sorted(guard.expr.free_symbols, key=_order))
    return GuardFunction(tuple(used), tuple(relations))


def _order(symbol: Any) -> Any:
    return symbol.order


class _Derived(Source):
    """A source with further accessors, for guards only."""

    __slots__ = ("accessors",)
    base: Source

    def __init__(self, base: Source, accessors: Path):
        self.accessors = accessors
        super().__init__(base, accessors)

    def _write(self) -> str:
        return self.base.text

    def _accessors(self) -> Path:
        return self.accessors


def _may_differ(op: str, arg: Any) -> bool:
    """Whether an object whose identity is known may still fail the guard."""
    return op == "type_is" and instance_may_change_class(arg)


def _is_read_as_data(name: str, found: Any) -> bool:
    """Whether whoever reads it guards its value. None is no data: it may say that there is no method."""
    plain = found is not None and not class_may_change(type(found)) and not is_descriptor(found)
    return plain and not (name.startswith("__") and name.endswith("__"))


def _what_is_found(found: Any) -> tuple[str, Any]:
    """Kind and argument of the fact that a lookup finds this object."""
    if is_referred_to_weakly(found):
        return "refers", weakref.ref(found)
    parts = parts_of(found)
    return ("is", found) if parts is None else ("made_of", parts)


def _arg_key(arg: Any) -> Any:
    kind = type(arg)
    if is_one_of(kind, (str, int, bool, bytes, type(None))):
        return (kind, arg)
    if issubclass(kind, Source) or (
        kind is tuple and all(type(item) is str or issubclass(type(item), Source) for item in arg)
    ):
        return arg
    return arg if type(kind) is type and getattr(kind, "compares_by_value", False) is True else id(arg)


def _plain_equality_is_enough(constant: Any) -> bool:
    """Whether the op `equals` distinguishes this constant from every other: it compares types, bits of floats, and tuples item by item."""
    if issubclass(type(constant), tuple):
        return all(map(_plain_equality_is_enough, constant))
    return not issubclass(type(constant), (complex, frozenset, slice, range))


class _IdenticalConstant(GuardCallable):
    """The value is the recorded constant down to types of members, signs of zeros and nan."""

    __slots__ = ("constant",)

    def __init__(self, constant: Any):
        super().__init__(_constant_key(constant))
        self.constant = constant

    def __call__(self, value: Any) -> bool:
        return value is self.constant or (type(value) is type(self.constant) and _constant_key(value) == self.question)


def _constant_key(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return (kind, value.hex())
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if isinstance(value, tuple):
        return (kind, *map(_constant_key, value))
    if kind is frozenset:
        return (kind, frozenset(map(_constant_key, value)))
    if kind is slice or kind is range:
        return (kind, *map(_constant_key, (value.start, value.stop, value.step)))
    return (kind, value)
