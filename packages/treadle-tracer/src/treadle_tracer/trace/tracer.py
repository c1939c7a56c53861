"""The context of one trace: graph, guards, mutations, the values of outside objects, and the operations values ask for."""

from __future__ import annotations

import builtins
import collections
import contextlib
import importlib.util
import linecache
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes import Frame as SizeFrame
from treadle_shapes.torch import FakeCallCache, fake_mode
from treadle_tracer.errors import Unsupported
from treadle_tracer.options import TracerOptions
from treadle_tracer.output.graph import GraphBuilder
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.output.mutations import DELETED, Mutations
from treadle_tracer.source import AttrSource, ConstSource, GlobalSource, InstanceDictSource, Source
from treadle_tracer.values import construct as construction
from treadle_tracer.values import objects, protocol, text, torch_calls, unbacked
from treadle_tracer.values import wrap as wrapping
from treadle_tracer.values.base import MISSING, Constant, Value
from treadle_tracer.values.functions import BoundMethod, CellValue, ClassValue, FunctionValue, ModuleObject
from treadle_tracer.values.instance_dict import InstanceDict
from treadle_tracer.values.iteration import SequenceIterator
from treadle_tracer.values.joined import JoinedTensor
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue, SuperValue
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.symbols import Symbols
from treadle_tracer.values.tensor import SymbolicValue, TensorValue

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.trace.frame import Frame
    from treadle_tracer.trace.speculation import Speculation

_MAX_DEPTH = 200
_ROOM = 10_000  # Python frames of ours for _MAX_DEPTH traced ones; a call of Python from Python takes no C stack


@contextlib.contextmanager
def room_to_recurse() -> Iterator[None]:
    """Let the evaluator recurse as deeply as `_MAX_DEPTH` inlined calls need."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _ROOM))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _weakly(where: Callable[[], tuple[SizeFrame, ...]]) -> Callable[[], tuple[SizeFrame, ...]]:
    """`where` without keeping its tracer alive: PyTorch's fake tensor cache keeps sizes, and they their environment."""
    method = weakref.WeakMethod(where)

    def here() -> tuple[SizeFrame, ...]:
        bound = method()
        return () if bound is None else bound()

    return here


class Tracer:
    """One trace of one frame. Values receive it as `tx`; most of its methods are functions of `values/`."""

    def __init__(
        self,
        inline: Callable[[Tracer, FunctionValue, list[Value], dict[str, Value]], Value],
        dynamic: Mapping[Source, Mapping[int, int]] | None = None,
        options: TracerOptions | None = None,
    ):
        self.graph = GraphBuilder()
        self.guards = GuardSet()
        self.mutations = Mutations()
        self.fake_mode = fake_mode()
        self.recall = FakeCallCache(self.fake_mode)
        self.symbols = Symbols(
            self.fake_mode, {} if dynamic is None else dynamic, options or TracerOptions(), _weakly(self.where)
        )
        self.wrapped: dict[int, tuple[Any, Value]] = {}
        self.known: dict[int, tuple[Any, Value]] = {}
        self.lookup_cache: dict[tuple[type, str], tuple[Any, type | None]] = {}
        self.global_cache: dict[tuple[int, str], Value] = {}
        self.frames: list[Frame] = []
        self.root_globals: dict[str, Any] | None = None
        self.exception: Value | None = None
        self.protected = 0
        self.was_protected = False
        self.autocast_nesting = 0
        self.speculation: Speculation | None = None
        self.failed_merges: collections.Counter[tuple[int, int]] = collections.Counter()
        self.deleted = DELETED
        self._inline = inline
        self._fakes: dict[int, TensorValue] = {}
        self._stores_globals = False
        self._trace_lines: dict[tuple[str, int, str], str] = {}
        self._states: dict[Any, tuple[Any, Any]] = {}
        self.guards.add_global_state()

    # ---- operations kept in values/

    fold = protocol.fold
    raise_exception = protocol.raise_exception
    raise_exception_value = protocol.raise_exception_value
    raise_real = protocol.raise_real
    is_same = staticmethod(protocol.is_same)
    same_or_equal = protocol.same_or_equal
    truth = protocol.truth
    object_truth = protocol.object_truth
    special_length = protocol.special_length
    index = protocol.index
    concrete_slice = protocol.concrete_slice
    call_special = protocol.call_special
    special_iterator = protocol.special_iterator
    generic_contains = protocol.generic_contains
    hash_key_of = protocol.hash_key_of
    binary_op = protocol.binary_op
    unary_op = protocol.unary_op
    not_ = protocol.not_
    compare = protocol.compare
    object_equal = protocol.object_equal
    call_builtin_method = protocol.call_builtin_method
    lookup = objects.lookup
    bind = objects.bind
    run_in_graph = torch_calls.run_in_graph
    tensor_method = torch_calls.tensor_method
    bind_tensor_method = torch_calls.bind_tensor_method
    operator_in_graph = torch_calls.operator_in_graph
    shape_of = torch_calls.shape_of
    construct = construction.construct
    instantiate = construction.instantiate
    init_container = construction.init_container
    class_method = construction.method_of_class
    to_str = text.to_str
    to_repr = text.to_repr
    format_value = text.format_value
    wrap = wrapping.wrap
    from_constant = wrapping.from_constant
    is_constant_object = staticmethod(wrapping.is_constant_object)
    is_trusted_class = staticmethod(wrapping.is_trusted_class)
    is_trusted_function = staticmethod(wrapping.is_trusted_function)

    # ---- calls

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return function.call(self, args, kwargs)

    def call_method(self, owner: Value, name: str, args: list[Value] | None = None) -> Value:
        return owner.call_method(self, name, args or [], {})

    def get_attr(self, owner: Value, name: str) -> Value:
        return owner.get_attr(self, name)

    def has_special(self, owner: Value, name: str) -> Value | None:
        """The special method bound to its owner, or None."""
        raw = objects.lookup(self, owner.python_type(), name)
        return None if raw is MISSING else objects.bind(self, owner, raw, name)

    def inline(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Evaluate a Python function in place."""
        if not isinstance(function, FunctionValue):
            return self.call(function, args, kwargs)
        if len(self.frames) >= _MAX_DEPTH:
            raise Unsupported("recursion", function.describe())
        return self._inline(self, function, args, kwargs)

    def bound_method(self, function: Value, instance: Value) -> Value:
        return BoundMethod(function, instance)

    def implicit_super(self) -> Value:
        """`super()` without arguments in the running frame."""
        frame = self.frames[-1]
        cell = frame.cells.get("__class__")
        code = frame.function_code
        if cell is None or not code.co_argcount:
            self.raise_exception(RuntimeError, "super(): no arguments")
        name = code.co_varnames[0]
        instance = frame.cells[name].load(self) if name in frame.cells else frame.load_local(name)
        cls = cell.load(self)
        assert isinstance(cls, ClassValue)
        if instance is None:
            self.raise_exception(RuntimeError, "super(): arg[0] deleted")
        return SuperValue(cls.obj, instance)

    # ---- values of known things

    def wrap_known(self, obj: Any) -> Value:
        """The Value of an object that needs no guard of its own, because what it was found through is guarded."""
        return self.wrap(obj, ConstSource(obj))

    def wrap_function(self, obj: types.FunctionType) -> Value:
        cached = self.wrapped.get(id(obj))
        return cached[1] if cached is not None else self.wrap(obj, ConstSource(obj))

    def wrap_key(self, key: Any, source: Source) -> Value:
        """The Value of a dictionary key; the dict's key guard covers it."""
        if wrapping.is_constant_object(key):
            return Constant(key) if key is not None else self.from_constant(None)
        if isinstance(key, tuple) and type(key) is tuple:
            return TupleValue([self.wrap_key(item, source) for item in key])
        return self.wrap(key, ConstSource(key))

    def constant_source(self, obj: Any) -> Source:
        return ConstSource(obj)

    def wrap_cell(self, cell: types.CellType, source: Source, contents_source: Source | None = None) -> CellValue:
        cached = self.wrapped.get(id(cell))
        if cached is None:
            value = CellValue.outside(cell, source, contents_source)
            self.wrapped[id(cell)] = (cell, value)
            return value
        assert isinstance(cached[1], CellValue)
        return cached[1]

    def tuple_of(self, items: list[Value]) -> Value:
        return TupleValue(items)

    def dict_of(self, items: Mapping[str, Value]) -> Value:
        return DictValue({name: (Constant(name), value) for name, value in items.items()})

    def list_iterator(self, items: list[Value]) -> Value:
        return SequenceIterator(ListValue(items))

    def unpack_constants(self, value: Value) -> list[Any]:
        return [item.constant() for item in value.unpack(self)]

    def as_dict(self, value: Value) -> DictValue | None:
        """The dict a value is or holds, unless its class overrides how a dict is read."""
        if isinstance(value, DictValue):
            return value
        if isinstance(value, ObjectValue) and isinstance(value.container, DictValue):
            for name in ("keys", "__getitem__", "__iter__"):
                if isinstance(objects.lookup(self, value.cls, name), types.FunctionType):
                    return None
            return value.container
        return None

    def instance_dict(self, owner: Value) -> Value:
        return InstanceDict.of(self, owner)

    def instance_items(self, owner: ObjectValue) -> Iterator[tuple[str, Value]]:
        return InstanceDict.of(self, owner).named_items(self)

    def changed_dict(self, members: Any) -> DictValue | None:
        """The Value of an outside dict, if the trace has changed that dict."""
        cached = self.wrapped.get(id(members))
        if cached is None or not self.mutations.is_mutated(cached[1]):
            return None
        assert isinstance(cached[1], DictValue)
        return cached[1]

    # ---- names

    def load_global(self, globals_: dict[str, Any], name: str) -> Value:
        """A module-level or built-in name."""
        if self._stores_globals:
            stored = self.mutations.load_global(self.globals_source(globals_), name)
            if isinstance(stored, Value):
                return stored
            if stored is not None:
                self.raise_exception(NameError, f"name {name!r} is not defined")
        key = (id(globals_), name)
        found = self.global_cache.get(key)
        if found is None:
            found = self._find_global(globals_, name)
            self.global_cache[key] = found
        return found

    def _find_global(self, globals_: dict[str, Any], name: str) -> Value:
        if name in globals_:
            source = GlobalSource(name, self.globals_source(globals_))
            return self.wrap_name(globals_[name], source, globals_.get("__name__"))
        scope = globals_.get("__builtins__", builtins)
        scope = scope if isinstance(scope, dict) else vars(scope)
        if name not in scope:
            self.raise_exception(NameError, f"name {name!r} is not defined")
        return self.wrap(scope[name], ConstSource(scope[name]))

    def wrap_name(self, obj: Any, source: Source, module: Any) -> Value:
        """A module attribute. Functions, classes and modules of PyTorch and the standard library are not guarded."""
        if wrapping.is_trusted_name(module) and (isinstance(obj, _DEFINITIONS) or callable(obj)):
            source = ConstSource(obj)
        return self.wrap(obj, source)

    def globals_source(self, globals_: dict[str, Any]) -> Source | None:
        return None if globals_ is self.root_globals else ConstSource(globals_)

    def store_global(self, globals_: dict[str, Any], name: str, value: Any) -> None:
        self._stores_globals = True
        self.mutations.store_global(self.globals_source(globals_), name, value)

    def module_attr(self, module: ModuleObject, name: str) -> Value:
        scope = vars(module.obj)
        if self._stores_globals:
            stored = self.mutations.load_global(self.globals_source(scope), name)
            if isinstance(stored, Value):
                return stored
        value = getattr(module.obj, name, MISSING)
        if value is MISSING:
            self.raise_exception(AttributeError, f"module {module.obj.__name__!r} has no attribute {name!r}")
        return self.wrap_name(value, AttrSource(ConstSource(module.obj), name), module.obj.__name__)

    def import_name(self, globals_: dict[str, Any], name: str, names: Value, level: int) -> Value:
        """The `import` statement; a module that is not loaded yet is loaded, as it would be."""
        if level:
            name = importlib.util.resolve_name("." * level + name, globals_.get("__package__") or globals_["__name__"])
        if name.partition(".")[0] == "torch" and name not in sys.modules:
            raise Unsupported("import", name)
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            self.raise_real(error)
        has_names = not (names.is_constant() and not names.constant())
        return self.wrap_known(module if has_names else sys.modules[name.partition(".")[0]])

    def import_from(self, module: Value, name: str) -> Value:
        """`from module import name`: an attribute, or a submodule."""
        found = getattr(module.constant(), name, MISSING)
        if found is MISSING:
            found = sys.modules.get(f"{module.constant().__name__}.{name}", MISSING)
            if found is MISSING:
                self.raise_exception(ImportError, f"cannot import name {name!r} from {module.describe()!r}")
            return self.wrap_known(found)
        return module.get_attr(self, name)

    # ---- tensors

    def wrap_tensor(self, obj: torch.Tensor, source: Source, static: bool = False) -> Value:
        why_not = _why_not_traceable(obj)
        if why_not is not None:
            raise Unsupported("tensor-kind", f"{source.text} is {why_not}")
        static = (static or isinstance(obj, torch.nn.Parameter)) and source not in self.symbols.dynamic.inputs
        dims = () if static else self.symbols.dynamic_dims(source, obj)
        self.guards.add_tensor(source, obj, dims, by_identity=static)
        fake = self.symbols.fake_like(source, obj, dims)
        made = TensorValue(None, fake, obj, source, static)
        self._fakes[id(fake)] = made
        return made

    def wrap_member(self, obj: Any, source: Source) -> Value:
        """A parameter or buffer in a module's dict."""
        if not isinstance(obj, torch.Tensor):
            return self.wrap(obj, source)
        cached = self.wrapped.get(id(obj))
        if cached is not None:
            return self.wrap(obj, source)
        made = self.wrap_tensor(obj, source, static=True)
        self.wrapped[id(obj)] = (obj, made)
        return made

    def wrap_in_module(self, obj: Any, source: Source) -> Value:
        """An attribute of a module. A tuple of constants (a stride, say) is the same object at every call: one guard.
        Floats are guarded one by one: what changes from call to call is more often a float."""
        if type(obj) is tuple and all(
            type(item) in wrapping.CONSTANT_TYPES and type(item) is not float for item in obj
        ):
            self.guards.add(source, "is", obj)
            return TupleValue([Constant(item) for item in obj], tuple, source, obj)
        return self.wrap(obj, source)

    def new_tensor(self, node: fx.Node, fake: torch.Tensor) -> TensorValue:
        made = TensorValue(node, fake)
        self._fakes[id(fake)] = made
        return made

    def adopt(self, value: TensorValue) -> None:
        """From now on the tensor's fake stands for this Value."""
        self._fakes[id(value.fake)] = value

    def tensor_of_fake(self, fake: torch.Tensor) -> TensorValue | None:
        found = self._fakes.get(id(fake))
        return found if found is not None and found.fake is fake else None

    def input_node(self, value: TensorValue) -> fx.Node:
        assert value.source is not None
        if value.static:
            return self.graph.attribute(value.source.text, value.obj, value.fake)  # type: ignore[arg-type]
        self.note_protection()
        return self.graph.placeholder(value.source, value.obj, value.fake)

    def note_mutation(self, value: TensorValue) -> None:
        """A graph call has written into a known tensor. Calls stay in order, so there is nothing to record."""
        if isinstance(value, JoinedTensor):
            value.settle()

    def note_protection(self) -> None:
        """Note that the graph is written to where the traced program may catch what the graph raises."""
        self.was_protected = self.was_protected or self.protected > 0 or self.frames[-1].is_protected()

    # ---- dynamic numbers

    def decide_condition(self, condition: Any) -> bool:
        """The truth of a condition on sizes, decided for good; on a way that is only tried out, what follows there."""
        return self.symbols.env.decide(condition) if self.speculation is None else self.speculation.decide(condition)

    def number(self, value: Any, node: fx.Node | None) -> Value:
        if isinstance(value, (int, float, bool)):
            return Constant(value)
        return self.symbols.value(self, value, node)

    def size_value(self, owner: TensorValue, dim: int, size: Any) -> Value:
        return self.symbols.size_value(self, owner, dim, size)

    def symbol_node(self, value: SymbolicValue) -> fx.Node:
        return self.symbols.node_of(self, value)

    specialise = unbacked.specialise
    decide = unbacked.decide
    select_at_run_time = unbacked.get_item
    store_at_run_time = unbacked.set_item

    def tensor_at(self, source: Source) -> TensorValue:
        """The outside tensor at `source`, which the trace has met."""
        return next(v for v in self._fakes.values() if v.source == source)

    def concrete_int(self, size: Any) -> int:
        return size if isinstance(size, int) else self.specialise(SymbolicValue(None, size))

    def symbolic_extreme(self, text: str, items: list[Value]) -> Value:
        if any(item.python_type() is float for item in items):
            return self._extreme_of_floats(text, items)
        function = torch.sym_max if text == ">" else torch.sym_min
        best = items[0]
        for item in items[1:]:
            best = self.operator_in_graph(function, [best, item])
        return best

    def _extreme_of_floats(self, text: str, items: list[Value]) -> Value:
        """Python's min and max: of the first among equals, which 0.0 and -0.0 are; nan is neither less nor greater."""
        best = items[0]
        for item in items[1:]:
            if best.python_type() is float and item.python_type() is float:
                best = self.operator_in_graph(max if text == ">" else min, [best, item])
            elif protocol.truth(self, protocol.compare(self, text, item, best)):
                best = item
        return best

    def symbolic_math(self, function: Callable[..., Any], value: SymbolicValue) -> Value:
        if value.python_type() is float:
            return self.operator_in_graph(function, [value])
        graph_function = getattr(torch, f"_sym_{function.__name__}", None) or {"floor": None}.get(function.__name__)
        if graph_function is None:
            return Constant(function(self.specialise(value)))
        return self.operator_in_graph(graph_function, [value])

    def convert_symbolic(self, value: SymbolicValue, cls: type) -> Value:
        if cls is float:
            return self.operator_in_graph(torch.sym_float, [value])
        if cls is int and value.python_type() is float:
            return self.operator_in_graph(int, [value])
        return Constant(cls(self.specialise(value)))

    def forget_restored(self) -> None:
        """Drop attribute stores that have put back the constant that was there before; guard that it is there."""
        for owner, name, value in list(self.mutations.attr_stores()):
            obj = getattr(owner, "obj", None)
            if obj is None or owner.source is None or not isinstance(value, Constant) or isinstance(owner, TensorValue):
                continue
            before = getattr(obj, "__dict__", {}).get(name, MISSING)
            if wrapping.is_constant_object(before) and before is value.obj:
                # A number that is a symbol may be another one in the next call, and then the store counts.
                if not isinstance(self.wrap(before, InstanceDictSource(owner.source, name)), SymbolicValue):
                    self.mutations.forget_attr(owner, name)

    # ---- torch's global state

    def change_state(self, setter: Any, keys: tuple[Any, ...], before: Any, value: Any) -> None:
        first = self._states.get((setter, keys), (before, None))[0]
        self._states[setter, keys] = (first, value)
        setter(*keys, value)
        self.graph.call("call_function", setter, (*keys, value), {}, None, self.stack_trace())

    def state_changes(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Setter calls that lead from the state before the frame to the state the trace is in now."""
        return [(setter, (*keys, now)) for (setter, keys), (first, now) in self._states.items() if now != first]

    def close_state(self) -> None:
        """Put torch's own state back, now and at the end of the graph."""
        for (setter, keys), (first, now) in reversed(self._states.items()):
            if now != first:
                setter(*keys, first)
                self.graph.call("call_function", setter, (*keys, first), {}, None, "")

    def abandon(self) -> None:
        """Put torch's own state back after a trace that is given up."""
        for (setter, keys), (first, _) in reversed(self._states.items()):
            setter(*keys, first)

    # ---- where the traced program is

    def user_stack(self) -> tuple[tuple[str, int, str], ...]:
        return tuple(frame.position() for frame in self.frames)

    def where(self) -> tuple[SizeFrame, ...]:
        """The traced program's stack for messages about sizes, innermost first."""
        return tuple(SizeFrame(*position) for position in reversed(self.user_stack()))

    def stack_trace(self) -> str:
        """The traced program's stack as Python prints it, innermost call last."""
        self.note_protection()
        lines = self._trace_lines
        parts = []
        for frame in self.frames:
            position = frame.position()
            text = lines.get(position)
            if text is None:
                file, line, name = position
                source = linecache.getline(file, line).strip()
                text = lines[position] = f'  File "{file}", line {line}, in {name}\n    {source}\n'
            parts.append(text)
        return "".join(parts)


_DEFINITIONS = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)


def _why_not_traceable(obj: torch.Tensor) -> str | None:
    """Why a tensor object cannot be an input of a graph, or None."""
    if isinstance(obj, FakeTensor):
        return "a fake tensor"
    if type(obj) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not _is_plain_subclass(type(obj)):
        return f"a {type(obj).__qualname__}, a subclass of Tensor"
    if obj.layout is not torch.strided:
        return f"of layout {obj.layout}"
    if obj.is_nested or obj.is_quantized:
        return "nested or quantised"
    if obj.is_conj() or obj.is_neg():
        return "a lazily conjugated or negated view"
    return None


def _is_plain_subclass(cls: type) -> bool:
    return issubclass(cls, torch.nn.Parameter) and cls.__torch_function__ is torch._C._disabled_torch_function_impl


__all__ = ["Tracer"]
