"""Tensors (a graph node and a fake tensor) and symbolic numbers (a graph node and a SymInt)."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.class_facts import mro_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import InstanceDictSource, OwnDictSource
from treadle_tracer.tables import by_name
from treadle_tracer.values.assigned_data import assign_data
from treadle_tracer.values.base import Constant, Method
from treadle_tracer.values.call_effects import storages
from treadle_tracer.values.class_lookup import MISSING, find_in_mro, is_descriptor, lookup
from treadle_tracer.values.gradients import read_grad, set_requires_grad, write_grad
from treadle_tracer.values.histories import history_at_exit
from treadle_tracer.values.history_nodes import read_history
from treadle_tracer.values.known_elements import constant_number, known_number
from treadle_tracer.values.originals import is_original, replaced_method
from treadle_tracer.values.outside_decisions import index_of_tensor, truth_of_tensor
from treadle_tracer.values.random_ranges import truth_for_all_draws
from treadle_tracer.values.rebuilt_objects import emit_attributes
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor_queries import is_leaf
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

INDEX_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


class TensorValue(Value):
    """A tensor. An outside one (`obj`) gets its placeholder or attribute node when it is first used in the graph.

    fake: a FakeTensor with its metadata; static: stands in the graph as attribute, guarded by identity; leaf_made_at: the instruction of
    the root frame at which the program made it a leaf that requires gradients, -1 if it did not; hooked_at: the same for a hook that is a
    part of the graph; kind: the class of a tensor that the program has made; data: the tensor whose elements the program has given it
    (`tensor.data = other`).
    """

    __slots__ = (
        "_history",
        "_node",
        "data",
        "data_assigned_in",
        "fake",
        "hooked_at",
        "kind",
        "leaf_made_at",
        "obj",
        "static",
    )

    def __init__(
        self,
        node: fx.Node | None,
        fake: torch.Tensor,
        obj: torch.Tensor | None = None,
        source: Source | None = None,
        static: bool = False,
    ):
        self.source = source
        self._node = node
        self._history: tuple[fx.Node, Callable[..., Any] | None] | None = None
        self.leaf_made_at = -1
        self.kind: type[torch.Tensor] = torch.Tensor
        self.data: TensorValue | None = None
        self.data_assigned_in = 0  # how many frames deep
        self.hooked_at = -1
        self.fake = fake
        self.obj = obj
        self.static = static

    def node(self, tx: TraceContext) -> fx.Node:
        if self.data is not None:
            return self.data.node(tx) if not self.fake.requires_grad else self._node_of_assigned(tx, self.data)
        if self._node is None:
            if self.source is None:
                raise Unsupported("function-transform", f"{self.describe()} is used outside the function that made it")
            self._node = tx.input_node(self)
        return self._node

    def _node_of_assigned(self, tx: TraceContext, data: TensorValue) -> fx.Node:
        if not torch.is_grad_enabled():
            return data.node(tx)
        # The graph would give the gradient to the elements from before. The frame that has assigned goes on behind a break.
        refused = Unsupported("tensor-attribute", f".data of {self.describe()} has been assigned, and a gradient flows")
        refused.most_frames = self.data_assigned_in
        raise refused

    def leave_graph(self) -> None:
        """The node has been taken out of the graph, with the function that made it."""
        self._node = None

    def follow(self, tx: TraceContext, node: fx.Node) -> None:
        """`node` gives the tensor from here on: the same object, with another history."""
        self._node = node
        tx.note_node(self)

    def stand_for(self, tx: TraceContext, node: fx.Node, fake: torch.Tensor) -> None:
        """`node` gives the tensor from here on, with other metadata."""
        self._node, self._history, self.fake = node, None, fake
        tx.note_node(self)

    @property
    def known_node(self) -> fx.Node | None:
        """The node, if the tensor has been used in the graph."""
        return self._node

    def python_type(self) -> type:
        return type(self.obj) if self.obj is not None else self.kind

    def identity(self) -> Any:
        return self

    def hash_key(self, tx: TraceContext) -> Any:
        return self

    def describe(self) -> str:
        what = f"tensor {self.fake.dtype} {tuple(self.fake.shape)}"
        return f"{self.source.text} ({what})" if self.source is not None else what

    # ---- attributes

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if tx.modes.ask and isinstance(vars(torch._C.TensorBase).get(name), types.GetSetDescriptorType):
            getter = vars(torch._C.TensorBase)[name].__get__
            return tx.call_by_modes(getter, lambda given, named: self.get_attr(tx, name), [self], {})
        stored = tx.mutations.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        raw = lookup(tx, self.python_type(), name)
        if raw is not MISSING and not is_original(self.python_type(), name, raw):
            return tx.bind(self, raw, name)
        kind = _ATTRIBUTES.get(name)
        if kind is not None:
            return kind(self, tx, name)
        if raw is not MISSING:
            return _bind(self, tx, raw, name)
        return self.own_attr(tx, name)

    def own_attr(self, tx: TraceContext, name: str) -> Value:
        """An attribute that somebody has put on the tensor object itself."""
        if self.obj is not None and self.source is not None:
            own = self.obj.__dict__
            if name in own:
                return tx.wrap(own[name], InstanceDictSource(self.source, name))
            tx.guards.add(OwnDictSource(self.source), "lacks_key", name)
        return tx.raise_exception(AttributeError, f"'Tensor' object has no attribute {name!r}")

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        setter = _SETTERS.get(name)
        if setter is not None:
            tx.modes.refuse(f"assignment to .{name}")
            setter(self, tx, value)
            return
        if hasattr(torch.Tensor, name):
            tx.modes.refuse(f"assignment to .{name}")
            raise Unsupported("tensor-attribute", f"assignment to .{name}")
        tx.mutations.store_attr(self, name, value)

    def call_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if replaced_method(tx, self.python_type(), name) is not None:
            return self.get_attr(tx, name).call(tx, args, kwargs)
        return tx.tensor_method(self, name, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.tensor_method(self, name, args, kwargs)

    # ---- protocols

    def truth(self, tx: TraceContext) -> bool:
        if tx.modes.ask:
            return tx.tensor_method(self, "__bool__", [], {}).truth(tx)
        known = constant_number(tx, self.known_node)
        if known is not None:
            return bool(known)
        number = tx.number_of_sizes(self)
        if number is not None:
            return number.truth(tx)
        decided = truth_for_all_draws(tx, self.known_node)
        if decided is not None:
            return decided
        decided = truth_of_tensor(tx, self)
        if decided is not None:
            return decided
        known = known_number(tx, self.known_node)  # last: it makes constants of symbols
        if known is not None:
            return bool(known)
        raise Unsupported("branch-on-tensor", self.describe())

    def length(self, tx: TraceContext) -> int:
        if replaced_method(tx, self.python_type(), "__len__") is not None:
            return super().length(tx)
        tx.modes.refuse("the length of a tensor")
        if self.fake.dim() == 0:
            tx.raise_exception(TypeError, "len() of a 0-d tensor")
        size = self.fake.shape[0]
        return size if isinstance(size, int) else tx.specialise(tx.symbols.size_value(tx, self, 0, size))

    def as_index(self, tx: TraceContext) -> int:
        tx.modes.refuse("a tensor as an index")
        known = known_number(tx, self.known_node) if self.fake.dtype in INDEX_TYPES else None
        if known is not None:
            return int(known)
        decided = index_of_tensor(tx, self) if self.fake.dtype in INDEX_TYPES else None
        if decided is not None:
            return decided
        raise Unsupported("data-dependent", f"{self.describe()} used as an index")

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        if replaced_method(tx, self.python_type(), "__getitem__") is not None:
            return super().get_item(tx, key)
        return tx.tensor_item(self, key)

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        if replaced_method(tx, self.python_type(), "__setitem__") is not None:
            super().set_item(tx, key, value)
            return
        tx.store_tensor_item(self, key, value)

    def iterate(self, tx: TraceContext) -> Value:
        if replaced_method(tx, self.python_type(), "__iter__") is not None:
            return super().iterate(tx)
        if tx.modes.ask:
            tx.tensor_method(self, "dim", [], {})  # torch/_tensor.py, `Tensor.__iter__`
            return tx.tensor_method(self, "unbind", [Constant(0)], {}).iterate(tx)
        if self.fake.dim() == 0:
            tx.raise_exception(TypeError, "iteration over a 0-d tensor")
        return rows_of(tx, self, self.length(tx)).iterate(tx)  # a size that data tells may be decided on

    def contains(self, tx: TraceContext, item: Value) -> bool:
        raise Unsupported("branch-on-tensor", f"in {self.describe()}")

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        self._push_result(cg)
        attrs = {name: value for name, value in cg.attrs_of(self).items() if isinstance(value, Value)}
        if attrs:
            cg.register(self)
            emit_attributes(cg, self, attrs, _set_attributes)

    def _push_result(self, cg: Any) -> None:
        """Push what the graph has computed, with a history where eager's has one."""
        if self._node is None:
            raise Unsupported("reconstruct", f"{self.describe()}, which a transformed function has made")
        if self.hooked_at >= 0:  # a hook that is registered outside would be called before the graph's
            raise Unsupported("reconstruct", f"{self.describe()}, which has a hook", made_at=self.hooked_at)
        if self._history is None:
            self._history = history_at_exit(self._node, self.fake)
        node, restore = self._history
        if restore is torch.Tensor.requires_grad_:
            cg.usage.leaves.append((self.fake, self.leaf_made_at))
        if self.kind is torch.nn.Parameter:
            restore = _as_parameter if self.fake.requires_grad else _as_constant_parameter
        if restore is None:
            cg.graph_output(node)
            return
        cg.cb.push_null()
        cg.const(restore)
        cg.graph_output(node)
        cg.cb.call(1)


def _as_parameter(value: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(value)


def _as_constant_parameter(value: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(value, requires_grad=False)


def _set_attributes(tensor: Any, attrs: dict[str, Any]) -> None:
    if "grad" in attrs:
        tensor.grad = attrs.pop("grad")
    vars(tensor).update(attrs)


def rows_of(tx: TraceContext, owner: TensorValue, count: int) -> TupleValue:
    """The rows of a tensor that has `count` of them. `unbind` keeps a dimension whose size is decided to be 1 and yet a symbol."""
    if isinstance(owner.fake.shape[0], int):
        return TupleValue(tx.run_in_graph("call_method", "unbind", [owner, Constant(0)], {}).unpack(tx))
    rows = range(count)
    return TupleValue([tx.run_in_graph("call_method", "select", [owner, Constant(0), Constant(k)], {}) for k in rows])


def length_of(tx: TraceContext, value: Value) -> Value:
    """`len(value)`; the length of a tensor may be symbolic."""
    if isinstance(value, TensorValue) and replaced_method(tx, value.python_type(), "__len__") is None:
        return value.builtin_method(tx, "__len__", [], {})
    return value.length_value(tx)


def shape_of(tx: TraceContext, owner: TensorValue) -> TupleValue:
    """The shape: constants, and symbolic sizes with a `sym_size` node of their own."""
    items: list[Value] = []
    for dim, size in enumerate(owner.fake.shape):
        items.append(Constant(size) if isinstance(size, int) else tx.symbols.size_value(tx, owner, dim, size))
    return TupleValue(items, torch.Size)


# ---- attributes by name


def _bind(self: TensorValue, tx: TraceContext, raw: Any, name: str) -> Value:
    """An attribute found on the class of a tensor."""
    if isinstance(raw, property) or not callable(raw):
        known = operator_record(name)
        if isinstance(raw, property) or (known is not None and known.is_view):  # `mT`, `real`
            return _view(self, tx, name)
        if is_descriptor(raw):
            raise Unsupported("tensor-attribute", f".{name}")
        return tx.bind(self, raw, name)
    return Method(self, name, raw)


def _metadata(self: TensorValue, tx: TraceContext, name: str) -> Value:
    if tx.graph.records_anew and name in ("requires_grad", "is_leaf"):
        raise Unsupported("checkpoint", f"use_reentrant=True, and the function asks for .{name}")
    if name == "is_leaf":
        return Constant(is_leaf(tx, self))
    try:
        return Constant(getattr(self.fake, name))
    except AttributeError:  # `names`, which some releases do not have
        raise Unsupported("tensor-attribute", f".{name}") from None


def _shape(self: TensorValue, tx: TraceContext, name: str) -> Value:
    return shape_of(tx, self)


def _view(self: TensorValue, tx: TraceContext, name: str) -> Value:
    return tx.run_in_graph("call_function", getattr, [self, Constant(name)], {})


def _grad(self: TensorValue, tx: TraceContext, name: str) -> Value:
    return read_grad(tx, self)


def _own_dict(self: TensorValue, tx: TraceContext, name: str) -> Value:
    raise Unsupported("tensor-attribute", f".{name} of {self.describe()}")


def _nbytes(self: TensorValue, tx: TraceContext, name: str) -> Value:
    if self.fake.layout is not torch.strided:
        raise Unsupported("tensor-attribute", f".{name} of {self.describe()}")
    return tx.binary_op("*", self.builtin_method(tx, "numel", [], {}), Constant(self.fake.itemsize))


def _version(self: TensorValue, tx: TraceContext, name: str) -> Value:
    """How often the program has written to a tensor that it has made. That of an outside tensor is another number at every call."""
    memory = storages(self.fake)
    outside = (known for known in tx.known_tensors() if known.obj is not None or known.source is not None)
    if not memory or self.fake.is_inference() or any(storages(known.fake) & memory for known in outside):
        raise Unsupported("tensor-attribute", f".{name}")
    return Constant(self.fake._version)


def _type_of(self: TensorValue, tx: TraceContext, name: str) -> Value:
    return tx.wrap_known(self.python_type())


_METADATA = (
    "dtype device layout requires_grad is_leaf is_cuda is_cpu is_sparse is_quantized is_nested is_meta is_mps is_xpu "
    "is_mkldnn is_sparse_csr is_vulkan is_ipu is_xla is_hpu is_mtia names ndim itemsize"
)
METADATA = frozenset(["shape", *_METADATA.split()])
"""Attributes that are metadata of the tensor: reading one leaves no trace but nodes for sizes."""

_ATTRIBUTES: dict[str, Callable[[TensorValue, Any, str], Value]] = by_name(
    (_METADATA, _metadata),
    ("shape", _shape),
    ("data", _view),
    ("grad", _grad),
    ("grad_fn", lambda owner, tx, name: read_history(tx, owner)),
    ("nbytes", _nbytes),
    ("_version", _version),
    ("__dict__", _own_dict),
    ("__class__", _type_of),
)


def _set_data(self: TensorValue, tx: TraceContext, value: Value) -> None:
    """`self.data = value`"""
    if type(self) is not TensorValue or type(value) is not TensorValue:
        raise Unsupported("tensor-attribute", f"assignment to .data of {self.describe()}, or of {value.describe()}")
    assign_data(tx, self, value)


_SETTERS: dict[str, Callable[[TensorValue, Any, Value], None]] = by_name(
    ("requires_grad", lambda owner, tx, value: set_requires_grad(tx, owner, value)),
    ("grad", lambda owner, tx, value: write_grad(tx, owner, value)),
    ("data", _set_data),
)


class SymbolicValue(Value):
    """An int, float or bool that depends on a dynamic size: `node` in the graph, `sym` a SymInt/SymFloat/SymBool."""

    __slots__ = ("_node", "obj", "sym")

    def __init__(self, node: fx.Node | None, sym: Any, source: Source | None = None, obj: Any = None):
        self.source = source
        self._node = node
        self.sym = sym
        self.obj = obj

    def node(self, tx: TraceContext) -> fx.Node:
        if self._node is None:
            self._node = tx.symbols.node_of(tx, self)
        return self._node

    def python_type(self) -> type:
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(self.sym)]

    def describe(self) -> str:
        return f"dynamic {self.python_type().__name__} {self.sym}"

    def hash_key(self, tx: TraceContext) -> Any:
        return tx.specialise(self)

    def truth(self, tx: TraceContext) -> bool:
        return tx.decide(self)

    def as_index(self, tx: TraceContext) -> int:
        return super().as_index(tx) if self.python_type() is float else operator.index(tx.specialise(self))

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        cls = self.python_type()
        if find_in_mro(mro_of(cls), name)[1] is None:  # `__name__` is an attribute of the class alone
            return tx.raise_exception(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")
        raw = getattr(cls, name)
        if name == "__class__":
            return tx.wrap_known(self.python_type())
        if isinstance(raw, types.GetSetDescriptorType):  # real, imag, numerator, denominator
            is_itself = self.python_type() is not bool and name in ("real", "numerator")  # True.real is 1
            return self if is_itself else tx.from_constant(getattr(tx.specialise(self), name))
        return Method(self, name, raw) if callable(raw) else tx.from_constant(raw)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fixed = Constant(tx.specialise(self))
        return tx.fold(getattr(self.python_type(), name), [fixed, *args], kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
        else:
            cg.graph_output(self._node)


def symbol_at(node: fx.Node) -> SymbolicValue:
    """The number that a node gives."""
    return SymbolicValue(node, node.meta["example_value"])
