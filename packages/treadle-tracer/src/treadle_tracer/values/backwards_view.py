"""Views of arrays that run backwards: `array[::-1]`. NumPy has them, and tensors have not.

    order = np.arange(n)[::-1]        # a BackwardsView
    torch.from_numpy(order.copy())    # a tensor of the flipped elements

Whoever reads the view gets the elements that the array has then, in a tensor of their own. Outside the graph the view is made from the
array, and so are slices of it. Whatever would write to the view or make another view of it breaks the graph.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.array_options import is_absent
from treadle_tracer.values.arrays import ArrayValue, in_graph, numpy_module
from treadle_tracer.values.base import Constant, Method
from treadle_tracer.values.iteration import ItemIterator
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# Attributes and methods that give a new object, whatever the arguments.
_ATTRIBUTES = frozenset("shape ndim size nbytes itemsize dtype device __class__ __array_priority__".split())
_METHODS = frozenset(
    "copy flatten sum prod max min any all mean var std argmax argmin cumsum cumprod item tolist round repeat dot __len__ __copy__ "
    "__float__ __int__".split()
)


class BackwardsView(Value):
    """`owner[key]`. key: a slice, or a tuple of slices, of constants; one of them at least has a negative step."""

    __slots__ = ("key", "owner")

    def __init__(self, owner: ArrayValue, key: tuple[slice, ...]):
        self.source = None
        self.owner = owner
        self.key = key

    def read(self, tx: TraceContext) -> ArrayValue:
        """The elements as they are now, in an array of their own."""
        sizes = self.owner.tensor.fake.shape
        forward, flipped = [], []
        for dim, part in enumerate(self.key):
            if part.step is None or part.step > 0:
                forward.append(part)
                continue
            flipped.append(dim)
            places = None if part == _REVERSED else range(sizes[dim])[part]
            forward.append(slice(None) if places is None else slice(places[-1], places[0] + 1, -part.step))
        found: Any = self.owner.tensor
        if any(part != slice(None) for part in forward):
            found = tx.tensor_item(found, Constant(tuple(forward)))
        return ArrayValue(in_graph(tx, torch.flip, found, tuple(flipped)))

    @property
    def ndim(self) -> int:
        return self.owner.ndim

    @property
    def dtype(self) -> Any:
        """NumPy's dtype."""
        return self.owner.dtype

    def python_type(self) -> type:
        return numpy_module().ndarray

    def describe(self) -> str:
        return f"{self.owner.describe()} backwards"

    def constant(self) -> Any:
        raise NotConstant(self)

    def hash_key(self, tx: TraceContext) -> Any:
        return self.owner.hash_key(tx)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in _ATTRIBUTES:
            return tx.array_attribute(self.read(tx), name)
        found = tx.array_attribute(self.owner, name)
        if not isinstance(found, Method):
            raise Unsupported("numpy", f".{name} of {self.describe()}")
        return Method(self, name, found.function)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "astype" and "copy" not in kwargs and len(args) == 1:
            return tx.array_method(self.read(tx), name, args, kwargs)
        if name not in _METHODS or not is_absent(kwargs.get("out")):
            raise Unsupported("numpy", f".{name}() of {self.describe()}")
        return tx.array_method(self.read(tx), name, args, kwargs)

    # ---- protocols

    def truth(self, tx: TraceContext) -> bool:
        return self.read(tx).truth(tx)

    def length(self, tx: TraceContext) -> int:
        return self.read(tx).length(tx)

    def length_value(self, tx: TraceContext) -> Value:
        return self.read(tx).length_value(tx)

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        part = self._part(tx, key)
        if part is not None:
            return part
        found = self.read(tx).get_item(tx, key)
        if not (isinstance(found, ArrayValue) and found.is_scalar):
            raise Unsupported("numpy", f"a part of {self.describe()}")
        return found

    def _part(self, tx: TraceContext, key: Value) -> Value | None:
        """`self[key]` of slices: a view of the same array. None for another key."""
        try:
            given = key.constant()
        except NotConstant:
            return None
        slices = given if type(given) is tuple else (given,)
        sizes = self.owner.tensor.fake.shape
        if not all(type(part) is slice for part in slices) or not all(type(size) is int for size in sizes):
            return None
        if len(slices) > len(sizes):
            return None
        every = slice(None)
        own = (*self.key, *[every] * (len(sizes) - len(self.key)))
        wanted = (*slices, *[every] * (len(sizes) - len(slices)))
        places = [range(size)[a][b] for size, a, b in zip(sizes, own, wanted, strict=True)]
        composed = [_slice_of(part) for part in places]
        if any(part.step < 0 for part in places):
            return backwards_view(tx, self.owner, composed)
        return self.owner.get_item(tx, TupleValue([Constant(part) for part in composed]))

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        raise Unsupported("numpy", f"a write to {self.describe()}")

    def iterate(self, tx: TraceContext) -> Value:
        if self.ndim != 1:
            raise Unsupported("numpy", f"iteration over {self.describe()}")
        return ItemIterator(self, self.length(tx))

    def contains(self, tx: TraceContext, item: Value) -> bool:
        raise Unsupported("branch-on-tensor", f"in {self.describe()}")

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(operator.getitem, self.owner, Constant(self.key))


_REVERSED = slice(None, None, -1)


def _slice_of(places: range) -> slice:
    """The slice that selects these places."""
    beyond = places.start + len(places) * places.step
    return slice(places.start, None if beyond < 0 else beyond, places.step)


def backwards_view(tx: TraceContext, owner: ArrayValue, parts: list[Any]) -> BackwardsView:
    """`owner[parts]`, one of which is a slice with a negative step. parts: Python objects.

    Raises Unsupported where a part is no slice, or a part that runs backwards has less than two elements: such a view does not run
    backwards for NumPy.
    """
    if not all(type(part) is slice for part in parts) or len(parts) > owner.ndim or owner.is_scalar:
        raise Unsupported("numpy", "a slice that goes backwards, beside another key")
    for size, part in zip(owner.tensor.fake.shape, parts, strict=False):
        if part.step is not None and part.step < 0 and part != _REVERSED and type(size) is not int:
            raise Unsupported("numpy", "a part of a dynamic dimension, backwards")
        if type(size) is int and len(range(size)[part]) < 2:
            raise Unsupported("numpy", "a slice that goes backwards over less than two elements")
    return BackwardsView(owner, tuple(parts))


def forwards(tx: TraceContext, value: Value) -> Value:
    """A value that an operation only reads: the elements of a view that runs backwards, in an array of their own."""
    return value.read(tx) if isinstance(value, BackwardsView) else value
