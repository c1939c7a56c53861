"""Objects with a state, of types implemented in C, that the trace has made: text and byte streams, byte arrays, arrays, hashes.

    stream = io.StringIO()
    print("loss", 3, file=stream)        # done while tracing, on an object of the trace's own
    text = stream.getvalue()             # a constant

The table says which methods follow from the object and constant arguments alone. A call records those that change the object. One that
leaves the trace is made then, and goes through the same calls.
"""

from __future__ import annotations

import array
import contextlib
import copy
import functools
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.iteration import ITEM_ITERATOR, HostIterator
from treadle_tracer.values.plain_arguments import plain_arguments
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_HISTORY = "history"  # the name under which the calls are recorded, so that a path that was only tried leaves none
_LONGEST = 10_000  # so many calls are recorded


@dataclass(frozen=True)
class NativeKind:
    """reads: methods that leave the object as it is; changes: all others that are known; attributes: what is read by name."""

    reads: frozenset[str]
    changes: frozenset[str]
    attributes: frozenset[str]


def _kind(reads: str, changes: str, attributes: str = "") -> NativeKind:
    return NativeKind(*(frozenset(names.split()) for names in (reads, changes, attributes)))


_STREAM = _kind(
    "getvalue tell readable writable seekable isatty",
    "write writelines read readline readlines seek truncate flush close __enter__ __exit__ __next__",
    "closed",
)
_TEXT = (
    "count find rfind index rindex startswith endswith split rsplit strip lstrip rstrip replace join decode hex upper lower title "
    "isalpha isdigit isalnum isspace partition rpartition translate center ljust rjust zfill expandtabs removeprefix removesuffix"
)
_ITEMS = "__len__ __getitem__ __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __mul__ __rmul__ __repr__ __str__"
_CHANGED_ITEMS = "__setitem__ __delitem__ __iadd__ __imul__ append extend insert pop remove reverse"
_HASH = _kind("digest hexdigest copy", "update", "name digest_size block_size")


def _hashes() -> dict[Any, type]:
    """What makes hashes, with their types. Some systems forbid some of them."""
    found: dict[Any, type] = {}
    for name in sorted(hashlib.algorithms_guaranteed):
        with contextlib.suppress(AttributeError, ValueError):
            found[getattr(hashlib, name)] = type(getattr(hashlib, name)())
    return found


_HASHES = _hashes()

KINDS: IdentityDict[type, NativeKind] = IdentityDict(
    {
        io.StringIO: _STREAM,
        io.BytesIO: _STREAM,
        bytearray: _kind(f"{_TEXT} {_ITEMS} copy", f"{_CHANGED_ITEMS} clear"),
        array.array: _kind(
            f"{_ITEMS} count index tobytes tolist __copy__ __deepcopy__",
            f"{_CHANGED_ITEMS} fromlist frombytes byteswap",
            "typecode itemsize",
        ),
        **dict.fromkeys(_HASHES.values(), _HASH),
    }
)
MAKERS: list[Any] = [io.StringIO, io.BytesIO, bytearray, array.array, *_HASHES]
"""What makes such an object of constants."""

_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
_History = tuple[_Call, ...]


class NativeObject(Value):
    """See the module. `make` makes the object as it is before the calls that are recorded."""

    __slots__ = ("_after", "_real", "make")

    def __init__(self, make: Callable[[], Any]):
        self.source = None
        self.make = make
        self._real: Any = make()
        self._after: _History = ()

    def history(self, mutations: Any) -> _History:
        """The calls that have changed the object."""
        stored = mutations.load_attr(self, _HISTORY)
        return () if stored is None else stored.obj

    def real(self, tx: TraceContext) -> Any:
        """The object as it is now, which nobody else may have."""
        history = self.history(tx.mutations)
        if history is not self._after:  # a path has been given up
            self._real, self._after = _Replayed(self.make, history)(), history
        return self._real

    def python_type(self) -> type:
        return type(self._real)

    @property
    def compares(self) -> bool:
        """Whether it is equal to objects with the same contents."""
        return "__eq__" in KINDS[self.python_type()].reads

    def truth(self, tx: TraceContext) -> bool:
        return bool(self.real(tx))

    def hash_key(self, tx: TraceContext) -> Any:
        raise Unsupported("hash", self.describe())

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in KINDS[self.python_type()].attributes:
            return tx.from_constant(getattr(self.real(tx), name))
        return super().get_attr(tx, name)

    def iterate(self, tx: TraceContext) -> Value:
        if "append" in KINDS[self.python_type()].changes:
            return HostIterator(self._items(tx), ITEM_ITERATOR)
        if "__next__" in KINDS[self.python_type()].changes:
            return self
        return super().iterate(tx)

    def _items(self, tx: TraceContext) -> Iterator[Value]:
        position = 0
        while position < len(self.real(tx)):
            yield tx.from_constant(self.real(tx)[position])
            position += 1

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        kind = KINDS[self.python_type()]
        changes = name in kind.changes
        if not changes and name not in kind.reads:
            return super().builtin_method(tx, name, args, kwargs)
        call = (getattr(self.python_type(), name), *plain_arguments(args, kwargs, functools.partial(_plain, tx)))
        history = self.history(tx.mutations)
        real = self.real(tx)
        if changes:
            tx.mutations.begin_write()
            if len(history) > _LONGEST:
                raise Unsupported("long-trace", f"more than {_LONGEST} calls of {self.describe()}")
            self._after = ()  # a call that raises may have changed it
            tx.mutations.store_attr(self, _HISTORY, Constant((*history, call)))
        result = _outcome(tx, real, call)
        if changes:
            self._after = self.history(tx.mutations)
        return self._result(tx, result, history, call)

    def _result(self, tx: TraceContext, result: Any, history: _History, call: _Call) -> Value:
        if result is self._real:
            return self
        if type(result) in KINDS:
            return NativeObject(_Result(_Replayed(self.make, history), call))
        return tx.from_constant(result)

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(_Replayed(self.make, self.history(cg.mutations)))


def _plain(tx: TraceContext, value: Value) -> Any:
    return copy.copy(value.real(tx)) if isinstance(value, NativeObject) else value.constant()


def _outcome(tx: TraceContext, real: Any, call: _Call) -> Any:
    function, args, kwargs = call
    try:
        return function(real, *args, **kwargs)
    except Exception as error:
        return tx.raise_real(error)


class _Replayed:
    """Run-time helper: an object that has gone through some calls. What they raise, the program has caught."""

    __name__ = "made"

    def __init__(self, make: Callable[[], Any], history: _History):
        self.make, self.history = make, history

    def __call__(self) -> Any:
        made = self.make()
        for function, args, kwargs in self.history:
            try:
                function(made, *args, **kwargs)
            except Exception:
                continue
        return made


class _Result:
    """Run-time helper: what a call gives, of an object of its own."""

    __name__ = "made"

    def __init__(self, make: Callable[[], Any], call: _Call):
        self.make, self.call = make, call

    def __call__(self) -> Any:
        function, args, kwargs = self.call
        return function(self.make(), *args, **kwargs)


class _Made:
    """Run-time helper: `maker(*args, **kwargs)`"""

    __name__ = "made"

    def __init__(self, maker: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.maker, self.args, self.kwargs = maker, args, kwargs

    def __call__(self) -> Any:
        return self.maker(*self.args, **self.kwargs)


def new_native(maker: Any) -> Callable[[TraceContext, list[Value], dict[str, Value]], Value]:
    """What the program makes by calling `maker`."""

    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        plain, named = plain_arguments(args, kwargs, functools.partial(_plain, tx))
        try:
            return NativeObject(_Made(maker, plain, named))
        except Exception as error:
            return tx.raise_real(error)

    return make
