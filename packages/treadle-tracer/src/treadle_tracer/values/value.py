"""The base of all traced values, and what values and rules may ask of the trace: two halves of one contract.

A value never imports the tracer. Its methods take the trace as `tx`, a `TraceContext`. `Tracer` is the only implementation. The context
names nothing but the state of the trace and those operations that a lower module needs of a higher one; every other operation is a
function that takes `tx`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from treadle_tracer.class_facts import is_subtype, name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.class_lookup import MISSING, LooksUp, lookup
from treadle_tracer.values.missing_methods import error_of_missing_method

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    from treadle_shapes.torch import FakeCallCache
    from treadle_tracer.source import Source
    from treadle_tracer.values.graph_view import Graph
    from treadle_tracer.values.state_views import Contexts, Modes


class Raised(Exception):
    """A Python exception of the traced program on its way through traced frames.

    steps: for each frame from the root inwards that may be left, the step at which the exception has left the innermost one.
    """

    def __init__(self, value: Value):
        self.value = value
        self.steps: tuple[int, ...] = ()
        super().__init__(value)


_MOST_ITEMS = 200_000  # that are unpacked while tracing: each takes microseconds


class NotConstant(Exception):
    """`value` cannot be turned into a Python object at trace time."""

    def __init__(self, value: Value):
        self.value = value
        super().__init__(value)


class Value:
    """Base of all values. `source` says where the outside object is found again; None for what the trace made.

    is_from_cache: the object stands in a cache outside, where another such value may find it, too.
    """

    __slots__ = ("source",)
    is_from_cache: ClassVar[bool] = False

    def __init__(self, source: Source | None = None):
        self.source = source

    # ---- what it is

    def python_type(self) -> type:
        """The class of the object."""
        raise NotImplementedError(type(self).__name__)

    def constant(self) -> Any:
        """The Python object it stands for, to compute with at trace time. Raises NotConstant."""
        raise NotConstant(self)

    def is_constant(self) -> bool:
        """Whether `constant` gives an object."""
        try:
            self.constant()
        except NotConstant:
            return False
        return True

    def identity(self) -> Any:
        """An object that is identical for values standing for the same Python object."""
        return self

    def hash_key(self, tx: TraceContext) -> Any:
        """A hashable stand-in that compares as the traced object would as a dictionary key. Raises TypeError in the program."""
        if lookup(tx, self.python_type(), "__hash__") is None:
            tx.raise_exception(TypeError, f"unhashable type: {name_in_messages(self.python_type())!r}")
        return self

    def as_dict(self, tx: TraceContext) -> Any:
        """The DictValue that the value is or holds, if its class leaves reading a dict as it is; else None."""
        return None

    def describe(self) -> str:
        """Short text for messages."""
        return self.source.text if self.source is not None else f"a {self.python_type().__name__}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    # ---- attributes and calls

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        """`self.name`"""
        found = lookup(tx, self.python_type(), name)
        if found is MISSING:
            tx.raise_exception(
                AttributeError, f"{name_in_messages(self.python_type())!r} object has no attribute {name!r}"
            )
        return tx.bind(self, found, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        """`self.name = value`"""
        raise Unsupported("attribute-store", f"{self.describe()}.{name}")

    def del_attr(self, tx: TraceContext, name: str) -> None:
        """`del self.name`"""
        raise Unsupported("attribute-store", f"del {self.describe()}.{name}")

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`self(*args, **kwargs)`"""
        raise Unsupported("call", self.describe())

    def call_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`self.name(*args, **kwargs)`"""
        return self.get_attr(tx, name).call(tx, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Carry out method `name` of a built-in type on this value."""
        raise Unsupported("builtin-method", f"{self.python_type().__name__}.{name}")

    # ---- protocols

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        """`self[key]`"""
        return call_special(tx, self, "__getitem__", [key])

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        """`self[key] = value`"""
        call_special(tx, self, "__setitem__", [key, value])

    def del_item(self, tx: TraceContext, key: Value) -> None:
        """`del self[key]`"""
        call_special(tx, self, "__delitem__", [key])

    def iterate(self, tx: TraceContext) -> Value:
        """`iter(self)`"""
        found = call_special(tx, self, "__iter__", [])
        if lookup(tx, found.python_type(), "__next__") is MISSING:
            name = name_in_messages(found.python_type())
            tx.raise_exception(TypeError, f"iter() returned non-iterator of type '{name}'")
        return found

    def iterate_backwards(self, tx: TraceContext) -> Value:
        """`reversed(self)` of a built-in container."""
        return tx.list_iterator(self.unpack(tx)[::-1])

    def next(self, tx: TraceContext) -> Value | None:
        """The next item, or None when the iterator is exhausted."""
        try:
            return call_special(tx, self, "__next__", [])
        except Raised as raised:
            if issubclass(raised.value.python_type(), StopIteration):
                return None
            raise

    def truth(self, tx: TraceContext) -> bool:
        """`bool(self)`"""
        cls = self.python_type()
        if lookup(tx, cls, "__bool__") is not MISSING:
            result = call_special(tx, self, "__bool__", [])
            if result.python_type() is not bool:
                kind = result.python_type().__name__
                tx.raise_exception(TypeError, f"__bool__ should return bool, returned {kind}")
            return result.truth(tx)
        return lookup(tx, cls, "__len__") is MISSING or self.length_value(tx).truth(tx)

    def length(self, tx: TraceContext) -> int:
        """`len(self)`"""
        return checked_length(tx, call_special(tx, self, "__len__", []))

    def length_value(self, tx: TraceContext) -> Value:
        """`len(self)` as a Value: a symbol where the length changes between calls."""
        return tx.from_constant(self.length(tx))

    def as_index(self, tx: TraceContext) -> int:
        """`operator.index(self)`; makes a dynamic number a constant."""
        tx.raise_exception(TypeError, f"{self.python_type().__name__!r} object cannot be interpreted as an integer")

    def unpack(self, tx: TraceContext) -> list[Value]:
        """All items, realised."""
        iterator = self.iterate(tx)
        items: list[Value] = []
        while (item := iterator.next(tx)) is not None:
            items.append(item)
            if len(items) > _MOST_ITEMS:
                raise Unsupported("long-trace", f"more than {_MOST_ITEMS} items of {self.describe()}")
        return items

    def contains(self, tx: TraceContext, item: Value) -> bool:
        """`item in self`"""
        if lookup(tx, self.python_type(), "__contains__") is not MISSING:
            return call_special(tx, self, "__contains__", [item]).truth(tx)
        try:
            iterator = self.iterate(tx)
        except Raised as raised:
            if not is_subtype(raised.value.python_type(), TypeError):
                raise
            name = name_in_messages(self.python_type())
            tx.raise_exception(
                TypeError, f"argument of type {name!r} is not iterable"
            )  # abstract.c, _PySequence_IterSearch
        while (own := iterator.next(tx)) is not None:
            if tx.same_or_equal(own, item):
                return True
        return False

    # ---- out of the trace

    def calls_to_replay(self) -> Sequence[tuple[Callable[..., Any], tuple[Value, ...]]] | None:
        """Of an outside container that the program has changed: functions of the container and other values that change it in the same
        way. None: only its new contents are known."""
        return None

    def reconstruct(self, cg: Any) -> None:
        """Emit bytecode that pushes the object; `cg` is an output.replacement.ReplacementBuilder."""
        if self.source is None:
            raise Unsupported("reconstruct", self.describe())
        self.source.emit(cg.cb)


def call_special(tx: TraceContext, value: Value, name: str, args: list[Value]) -> Value:
    """`type(value).name(value, *args)`"""
    raw = lookup(tx, value.python_type(), name)
    if raw is MISSING or raw is None:
        tx.raise_exception(*error_of_missing_method(tx, value.python_type(), name))
    return tx.bind(value, raw, name).call(tx, args, {})


NEGATIVE_LENGTH = "__len__() should return >= 0"


def checked_length(tx: TraceContext, answer: Value) -> int:
    """What `__len__` has answered, as `len` gives it."""
    length = answer.as_index(tx)
    if length > sys.maxsize:
        tx.raise_exception(OverflowError, "cannot fit 'int' into an index-sized integer")
    if length < 0:
        tx.raise_exception(ValueError, NEGATIVE_LENGTH)
    return length


def special_method(tx: TraceContext, owner: Value, name: str) -> Value | None:
    """The special method bound to its owner, or None."""
    raw = lookup(tx, owner.python_type(), name)
    return None if raw is MISSING else tx.bind(owner, raw, name)


# ---- what values and rules may ask of the trace


class Writes(Protocol):
    """Writes of the program to objects, read back by the trace: see `output.mutations`."""

    def load_attr(self, obj: Value, name: str) -> Any | None: ...
    def store_attr(self, obj: Value, name: str, value: Value) -> None: ...
    def delete_attr(self, obj: Value, name: str) -> None: ...
    def forget_attr(self, obj: Value, name: str) -> None: ...
    def attrs_of(self, obj: Value) -> dict[str, Any]: ...
    def output(self, function: Callable[..., Any], values: tuple[Value, ...]) -> None: ...
    @property
    def outputs(self) -> tuple[Any, ...]: ...
    def attr_stores(self) -> Iterator[tuple[Value, str, Any]]: ...
    def containers(self) -> tuple[Value, ...]: ...
    def cell_stores(self) -> Iterator[tuple[Value, Any]]: ...
    def mutated(self, container: Value) -> None: ...
    def is_mutated(self, container: Value) -> bool: ...
    def store_global(self, globals_source: Source | None, name: str, value: Any) -> None: ...
    def global_stores(self) -> Iterator[tuple[Source | None, str, Any]]: ...
    def store_cell(self, cell: Value, value: Any) -> None: ...
    def snapshot(self) -> Any: ...
    @property
    def writes_outside(self) -> int: ...
    def owner(self, key: int) -> Value: ...
    def begin_write(self) -> None: ...
    def freezing(self) -> AbstractContextManager[None]: ...
    @property
    def made(self) -> dict[int, tuple[Any, Value | None]]: ...


class UnbackedSymbols(Protocol):
    """Symbols without a value while tracing: see `values.unbacked`."""

    @property
    def allowed(self) -> bool: ...
    def allow(self, tx: TraceContext) -> None: ...
    def number_node(self, tx: TraceContext, symbol: Any) -> fx.Node | None: ...
    def naming(self, tx: TraceContext) -> AbstractContextManager[None]: ...
    def close_call(self, tx: TraceContext, result: Value) -> None: ...
    def state(self, tx: TraceContext, condition: Any, message: str, error: type = RuntimeError) -> None: ...
    def write_asserts(self, tx: TraceContext, complete: bool = False, error: type = RuntimeError) -> None: ...


class SymbolTable(Protocol):
    """Symbolic numbers of the trace: see `values.symbols`."""

    env: Any

    @property
    def captures(self) -> bool: ...
    @property
    def defers(self) -> bool: ...
    @property
    def guesses(self) -> bool: ...
    @property
    def expects_items(self) -> bool: ...
    @property
    def foresees(self) -> bool: ...
    @property
    def wants_one_graph(self) -> bool: ...
    def choices_on(self, is_meant: Callable[[Source], bool]) -> int: ...
    @property
    def takes_numbers(self) -> bool: ...
    @property
    def assumes(self) -> bool: ...
    @property
    def unbacked(self) -> UnbackedSymbols: ...
    def decides_at(self, place: Any) -> bool: ...
    def keeps_differing(self, place: Any) -> bool: ...
    @property
    def uses_larger_sizes(self) -> bool: ...
    def outside_number(self, tx: TraceContext, number: torch.SymInt) -> tuple[Source, int] | None: ...
    def need_env(self) -> None: ...
    def forget_nodes(self, gone: set[fx.Node]) -> None: ...
    def exclude_ones(self, fake: torch.Tensor) -> None: ...
    def is_structural(self, source: Source) -> bool: ...
    def is_dynamic_integer(self, source: Source | None, number: int) -> bool: ...
    def varies_at(self, source: Source | None) -> bool: ...
    def integer(self, tx: TraceContext, number: int, source: Source) -> Value: ...
    def float_number(self, tx: TraceContext, number: float, source: Source) -> Value: ...
    def size_value(self, tx: TraceContext, owner: Any, dim: int, size: Any) -> Any: ...
    def node_of(self, tx: TraceContext, value: Any) -> fx.Node: ...
    def node_of_symbol(self, tx: TraceContext, symbol: Any) -> fx.Node: ...


class FrameView(Protocol):
    """A frame being evaluated, for those who look at it: see `trace.frame`."""

    @property
    def instructions(self) -> Sequence[Any]: ...
    @property
    def at(self) -> int: ...
    @property
    def program(self) -> Any: ...

    locals_dict: Any
    namespace: Any
    called: tuple[int, Any]
    function_code: Any
    globals: dict[str, Any]
    shows_itself: bool
    # Of the root frame: how many stand between it and the caller of the program's function; None if that is not known.
    frames_between: int | None
    began: int

    @property
    def next_opname(self) -> str: ...
    @property
    def module_name(self) -> str: ...
    def break_step(self) -> int: ...
    def position(self) -> tuple[str, int, str]: ...
    def spreads_keywords(self) -> bool: ...
    @property
    def local_names(self) -> tuple[str, ...]: ...
    def named_locals(self) -> dict[str, Value]: ...
    def implicit_super(self) -> Value: ...


class TraceContext(LooksUp, Protocol):
    """The trace, as values and rules see it."""

    wrapped: dict[int, tuple[Any, Value]]  # Value of an outside object, by id; the object, to keep it alive
    exception: Value | None  # the exception being handled
    hashed: dict[int, Any]  # outside objects that are keys or members by their identity, by id
    hashed_numbers: list[Any]  # addresses of outside objects that are keys or members
    hashes_addresses: bool  # an int that may be an address, kept from an earlier call, is a key or member
    scopes: dict[int, dict[str, Any]]  # globals that the program has read or written, by id
    context: Value | None  # the `contextvars.Context` of the trace's own that the program is running in
    has_own_filters: bool  # the program has changed what becomes of warnings
    module_calls: dict[int, int]  # of `forward` in place of the module: at which step, by the number of frames around
    weak_references: list[Any]  # those with a callback that the trace has made: see `values.weak_references`
    numpy_flags: list[Any]  # where NumPy warns: see `values.array_warnings`
    autocast_nesting: int
    overrides_off: int  # how many parts of the program around this place turn `__torch_function__` off
    dispatches: int  # how many calls of `__torch_function__` are being traced
    dispatched: list[Any]  # tensors whose operators the program carries out: see `values.operator_calls`
    grad_mode_uses: int  # how often the program has asked for grad mode or set it
    differentiated: list[Any]  # custom functions whose backward bodies are being traced for gradients of their own
    step: int  # of the next instruction, counted over all frames
    began_in_inference_mode: bool
    was_told_of_compiling: bool  # the program has asked whether it is being compiled
    tells_of_compiling: bool  # what it hears then
    unrolls_outside_iterators: bool  # False in a continuation that starts in a loop: see `values.outside_iterators`
    deleted: Any  # stands for a deleted attribute, global or cell content

    @property
    def graph(self) -> Graph: ...
    @property
    def mutations(self) -> Writes: ...
    @property
    def symbols(self) -> SymbolTable: ...
    @property
    def frames(self) -> Sequence[FrameView]: ...
    @property
    def fake_mode(self) -> FakeTensorMode: ...
    @property
    def fake_calls(self) -> FakeCallCache: ...
    @property
    def contexts(self) -> Contexts: ...
    @property
    def modes(self) -> Modes: ...
    @property
    def runs_forward(self) -> bool:
        """Whether the code at hand is part of no backward pass and of no function that a transform calls."""
        ...

    @property
    def runs_in_order(self) -> bool:
        """Whether the code at hand runs once, where the program has it, in the state of PyTorch at entry, grad mode aside."""
        ...

    def is_protected(self) -> bool:
        """Whether the traced program may catch what a call at the present place raises."""
        ...

    @property
    def speculation(self) -> object | None:
        """Not None while a path is followed that may turn out not to be taken."""
        ...

    @property
    def vmap_levels(self) -> list[Any]:
        """The levels that the trace has entered, innermost last: see `rules.vmap_levels`."""
        ...

    # values of objects

    def call_by_modes(
        self, function: Any, plain: Callable[..., Value], args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """A call of torch that modes may see; `plain(args, kwargs)` is the call that nobody sees."""
        ...

    def handle_by_modes(self, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`torch.overrides.handle_torch_function(*args, **kwargs)` where modes are active."""
        ...

    def wrap(self, obj: Any, source: Source | None) -> Value:
        """The Value of an outside object, with the guards that its kind relies on. Without a source it needs none."""
        ...

    def wrap_known(self, obj: Any) -> Value:
        """The Value of an object that needs no guard of its own, because what it was found through is guarded."""
        ...

    def wrap_name(self, obj: Any, source: Source, module: Any) -> Value:
        """The Value of an attribute of the module with this name."""
        ...

    def guard_globals(self, source: Source, globals_: dict[str, Any]) -> None:
        """Rely on a function's globals, at `source`, being this dict."""

    def globals_source(self, globals_: dict[str, Any]) -> Source | None:
        """Where these globals are found; None for those of the frame that is compiled."""
        ...

    def load_global(self, globals_: dict[str, Any], name: str) -> Value:
        """A module-level or built-in name."""
        ...

    def wrap_tensor(self, obj: torch.Tensor, source: Source, static: bool = False) -> Value:
        """The Value of an outside tensor."""
        ...

    def from_constant(self, obj: Any) -> Value:
        """The Value of a Python object that the trace has computed itself."""
        ...

    def code_constant(self, obj: Any) -> Value:
        """The Value of a constant of a code object."""
        ...

    def list_iterator(self, items: list[Value]) -> Value:
        """An iterator over these items."""
        ...

    def fixed_iterator(self, owner: Value, items: Sequence[Any], cls: type) -> Value:
        """`iter(owner)`, of this class, of an object that has these items."""
        ...

    instance_dicts: dict[int, Value]
    """`obj.__dict__` of each instance that has been asked for it, by the id of the instance's Value."""

    # exceptions of the traced program

    raised_while: dict[int, tuple[Value, Value | None]]
    """What has been raised, by id: the exception, and the one that was being handled then."""

    tracebacks: dict[int, tuple[Value, object]]
    """Stand-ins for the tracebacks of what has been raised, by id of the exception: the same object for the same traceback."""

    def guard_no_exception(self) -> None:
        """Rely on no caller of the compiled frame handling an exception. Raises Unsupported when one does."""

    def raise_exception(self, cls: type[BaseException], *args: Any) -> NoReturn:
        """Raise `cls(*args)` in the traced program."""
        ...

    def raise_exception_value(self, cls: type[BaseException], args: list[Value]) -> NoReturn:
        """The same with arguments that are Values."""
        ...

    def raise_real(self, error: BaseException) -> NoReturn:
        """Raise in the traced program what a call has really raised."""
        ...

    # Python's operations

    def fold(
        self, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], may_warn: bool = False
    ) -> Value:
        """Call a pure function of constants now."""
        ...

    def inline(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Evaluate a Python function in place."""
        ...

    def run_body(self, function: Value, namespace: Value) -> Value:
        """Evaluate code whose variables stand in a namespace: the body of a class, the text of an `exec` or `eval`."""
        ...

    def bind(self, owner: Value, raw: Any, name: str, found_in: type | None = None) -> Value:
        """`raw.__get__(owner, type(owner))` for a raw attribute of the owner's type; `found_in`: see `values.objects.bind`."""
        ...

    def class_attribute(self, raw: Any, owner: type, name: str) -> Value:
        """The Value of a raw attribute that a lookup has found in a class."""
        ...

    def store_class_attribute(self, cls: Any, name: str, value: Value) -> None:
        """Set an attribute of an outside class."""

    def delete_class_attribute(self, cls: Any, name: str) -> None:
        """Delete an attribute of an outside class."""

    def call_builtin_method(
        self, owner: Value, name: str, function: Any, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Carry out a method implemented in C; `function` is the descriptor that it was found as, or None."""
        ...

    def construct(self, cls_value: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`cls(*args, **kwargs)`"""
        ...

    def class_method(self, owner: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a method implemented in C that is bound to a class."""
        ...

    def module_attr(self, module: Any, name: str) -> Value:
        """An attribute of a Python module."""
        ...

    def compare(self, text: str, a: Value, b: Value) -> Value:
        """`a <text> b` for the six comparisons."""
        ...

    def same_or_equal(self, a: Value, b: Value) -> bool:
        """What `in`, `list.index` and dict lookup ask: identical or equal."""
        ...

    def binary_op(self, text: str, a: Value, b: Value) -> Value:
        """`a <text> b`, in place when the text ends in "="."""
        ...

    # tensors and numbers

    def run_in_graph(
        self, op: str, target: Callable[..., Any] | str, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Call a torch function (`call_function`) or a method of the first argument (`call_method`) in the graph."""
        ...

    def tensor_method(self, owner: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`owner.name(*args, **kwargs)` of a tensor."""
        ...

    def number_of_sizes(self, value: Any) -> Value | None:
        """The integer or truth of a tensor without dimensions that follows from dynamic sizes; None for any other."""
        ...

    def tensor_item(self, owner: Any, key: Value) -> Value:
        """`owner[key]` of a tensor."""
        ...

    def store_tensor_item(self, owner: Any, key: Value, value: Value) -> None:
        """`owner[key] = value` of a tensor."""

    # arrays of NumPy

    def numpy_call(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`function(*args, **kwargs)` of a function of NumPy."""
        ...

    def array_attribute(self, owner: Any, name: str) -> Value:
        """`owner.name` of an array."""
        ...

    def array_method(self, owner: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`owner.name(*args, **kwargs)` of an array."""
        ...

    # numbers

    def number(self, value: Any, node: fx.Node | None) -> Value:
        """The Value of a number, SymInt, SymFloat or SymBool."""
        ...

    def specialise(self, value: Any) -> Any:
        """A symbolic number as a constant that is guarded."""
        ...

    def decide(self, value: Any) -> bool:
        """The truth of a symbolic number."""
        ...

    def decide_condition(self, condition: Any) -> bool:
        """The truth of a condition on sizes."""
        ...

    def input_node(self, value: Any) -> fx.Node:
        """The node of an outside tensor."""
        ...

    def new_tensor(self, node: fx.Node, fake: torch.Tensor) -> Any:
        """The Value of what a node gives."""
        ...

    def tensor_of_fake(self, fake: torch.Tensor) -> Any:
        """The Value that a fake tensor belongs to, or None."""
        ...

    def known_tensors(self) -> Iterable[Any]:
        """The Values of all tensors that the trace has met or made."""
        ...

    def tensor_at(self, source: Source) -> Any:
        """The outside tensor at `source`, which the trace has met."""
        ...

    def note_mutation(self, value: Any) -> None:
        """A graph call has written into a known tensor."""

    # state and place

    def change_state(self, setter: Any, keys: tuple[Any, ...], before: Any, value: Any) -> None:
        """Set torch's state for the rest of the trace, and in the graph."""

    def note_state(self, setter: Any, before: Any, value: Any) -> None:
        """Something else than the setter has changed torch's state."""

    def states_set(self) -> dict[Any, Any]:
        """The state that the trace has set, by setter and keys."""
        ...

    def as_in_backward(self, grad_mode: bool) -> AbstractContextManager[None]:
        """Inside, code is traced that a backward pass will run, in this grad mode."""
        ...

    def as_transformed(self) -> AbstractContextManager[None]:
        """Inside, a function is traced that a transform of `torch.func` calls."""
        ...

    def note_node(self, value: Value) -> None:
        """The tensor's node is another one from here on."""

    def forget_tensors(self, gone: set[fx.Node]) -> None:
        """The nodes of these tensors have been taken out of the graph."""

    def check_weak_container(self, owner: Value) -> None:
        """Before `owner.data` is read, where there are weak references with callbacks: see `values.weak_references`."""

    def has_set_state(self, setter: Any, keys: tuple[Any, ...]) -> bool:
        """Whether the trace has set this state."""
        ...

    def stack_trace(self) -> str:
        """The traced program's stack as Python prints it, innermost call last."""
        ...

    def user_stack(self) -> tuple[tuple[str, int, str], ...]:
        """(file, line, function) of the traced frames, outermost first."""
        ...
