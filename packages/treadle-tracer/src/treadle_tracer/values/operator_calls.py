"""Calls of torch with tensors whose operators the program carries out (`dispatched_tensors`).

    torch.nn.functional.linear(x, w)     =>     Quantised.__torch_dispatch__(aten.t.default, (Quantised,), (w,), {})
                                                Quantised.__torch_dispatch__(aten.mm.default, (Quantised,), (x, w'), {})

Which operators PyTorch asks for, in which order and with which arguments, is asked of PyTorch: it runs the call on stand-ins with the
metadata of the arguments (`StandIn`), and every operator that comes back is traced, the function of the program in place. Autograd and
autocast come before `__torch_dispatch__`. Where one of them has something to do, the graph breaks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import is_transforming
from treadle_tracer.below_autograd import is_below_autograd
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, LazyValue
from treadle_tracer.values.call_effects import storages, writes_to
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.function_overrides import first_answer, insert_to_be_asked, with_items
from treadle_tracer.values.mappings import dict_of
from treadle_tracer.values.sequences import ListValue, SliceValue, TupleValue
from treadle_tracer.values.sequences import Sequence as SequenceValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.tensor_subclasses import OverridingTensor
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_NAME = "__torch_dispatch__"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NOT_OF_A_STAND_IN = frozenset(
    "retain_grad register_hook register_post_accumulate_grad_hook data_ptr set_ resize_ resize_as_ share_memory_ requires_grad_ "
    "storage untyped_storage _is_view is_shared pin_memory numpy __array__ __hash__ __deepcopy__ __reduce_ex__ __repr__ __str__ "
    "__format__ backward as_subclass is_inference".split()
)
"""Methods that look at, or change, the tensor object itself, or need its elements in Python."""


def _dispatch_keys() -> tuple[Any, Any]:
    """Those that are included and excluded at present."""
    return torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()  # type: ignore[attr-defined]


class StandIn(torch.Tensor):
    """Has the metadata of a tensor of the trace, and hands every operator to the call that is being traced."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _CALLS.stack[-1].operator(func, args, kwargs)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Call] = []


_CALLS = _Calls()


def example(of: torch.Tensor) -> torch.Tensor:
    """A stand-in with the metadata of this tensor."""
    return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        StandIn,
        of.shape,
        strides=of.stride(),
        storage_offset=of.storage_offset(),
        dtype=of.dtype,
        layout=of.layout,
        device=of.device,
        requires_grad=of.requires_grad,
    )


class DispatchedTensor(OverridingTensor):
    """A tensor whose operators the program carries out.

    Of one that the trace has made: made_by, the arguments of `_make_wrapper_subclass`; made_at, the instruction of the root frame;
    memory_of, the tensor with which it shares the memory that it does not have (`correct_aliasing`); shares_version, whether its writes
    count as those of another.
    """

    __slots__ = ("made_at", "made_by", "memory_of", "shares_version", "stand_in")

    def __init__(
        self, cls: type, stand_in: torch.Tensor, obj: torch.Tensor | None = None, source: Source | None = None
    ):
        super().__init__(cls, obj, source)
        self.stand_in = stand_in
        self.made_by: tuple[Value, dict[str, Value]] | None = None
        self.made_at = -1
        self.memory_of: Value = NONE
        self.shares_version = False

    def own_attribute(self, tx: TraceContext, name: str) -> Value:
        return _call(tx, lambda stand_in: getattr(stand_in, name), name, [self], {})

    def plain_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in _NOT_OF_A_STAND_IN:
            raise Unsupported("tensor-method", f"{name} of {self.describe()}")
        return call_operators(tx, "call_method", name, [self, *args], kwargs)

    def emit_new(self, cg: Any) -> None:
        assert self.made_by is not None
        if self.shares_version or self.stand_in._is_view():  # PyTorch has made it one
            raise Unsupported("reconstruct", f"{self.describe()}, which is a view of another", made_at=self.made_at)
        size, options = self.made_by
        cg.cb.push_null()
        cg.const(_new_tensor)
        cg.const(self.cls)
        cg.value(size)
        for name, value in options.items():
            cg.const(name)
            cg.value(value)
        cg.cb.build_map(len(options))
        cg.const(_version(self.stand_in))
        cg.value(self.memory_of)
        cg.cb.call(5)


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor has been written to. Those that are made in inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _count_together(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a write to one tensor counts as one to the other."""
    before = _version(other)
    with torch.autograd._unsafe_preserve_version_counter(one):
        torch.autograd.graph.increment_version(one)
        return _version(other) != before


def _new_tensor(
    cls: type, size: Any, options: dict[str, Any], writes: int, memory_of: torch.Tensor | None
) -> torch.Tensor:
    """A tensor as the program has made it and, as its version tells, has written to it."""
    made = torch.Tensor._make_wrapper_subclass(cls, size, **options)  # type: ignore[attr-defined]
    for _ in range(writes):
        torch.autograd.graph.increment_version(made)
    if memory_of is not None:
        torch._functionalize_unsafe_set(made, memory_of)
    return made


def takes_dispatched(tx: TraceContext, values: Iterable[Value]) -> bool:
    """Whether one of these, or of the items of sequences among them, is a tensor whose operators the program carries out."""
    for value in values:
        value = value.force(tx) if isinstance(value, LazyValue) else value
        if isinstance(value, DispatchedTensor):
            return True
        if isinstance(value, SequenceValue) and takes_dispatched(tx, value.items):
            return True
    return False


def call_operators(tx: TraceContext, op: str, target: Any, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """`target(*args, **kwargs)`, a function of torch or a method, with such tensors among the arguments."""

    def run(*given: Any, **named: Any) -> Any:
        if op == "call_method":
            return getattr(given[0], target)(*given[1:], **named)
        return target(*given, **named)

    return _call(
        tx, run, target if isinstance(target, str) else getattr(target, "__name__", repr(target)), args, kwargs
    )


def _call(
    tx: TraceContext, run: Callable[..., Any], name: str, args: Sequence[Value], kwargs: dict[str, Value]
) -> Value:
    why_not = _why_not_call()
    if why_not is not None:
        raise Unsupported("tensor-subclass", f"{name} of a tensor with a __torch_dispatch__ {why_not}")
    call = _Call(tx, name)
    given = [call.given(arg) for arg in args]
    named = {key: call.given(arg) for key, arg in kwargs.items()}
    call.count_given = len(call.dispatched())
    outside = [value for value in tx.dispatched if value.source is not None]
    versions = [_version(value.stand_in) for value in outside]
    # Inside a `__torch_dispatch__` PyTorch has nothing of autograd to do any more, and takes no operator apart.
    below = _CALLS.stack[-1].below if _CALLS.stack else None
    _CALLS.stack.append(call)
    try:
        with nullcontext() if below is None else torch._C._ForceDispatchKeyGuard(*below):  # type: ignore[attr-defined]
            result = run(*given, **named)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        if error is call.failure:
            raise
        raise Unsupported("torch-call-raises", f"{name}: {type(error).__name__}: {error}") from error
    finally:
        _CALLS.stack.pop()
        call.failure = None  # its traceback refers to the trace
    for value, version in zip(outside, versions, strict=True):
        for _ in range(_version(value.stand_in) - version):
            tx.mutations.output(torch.autograd.graph.increment_version, (value,))
    call.note_shared_versions()
    return call.value(result)


def _why_not_call() -> str | None:
    if torch._C._is_any_autocast_enabled():
        return "under autocast"
    if is_transforming():
        return "in a function that a transform calls"
    return "below autograd" if is_below_autograd() else None


def plain_argument(tx: TraceContext, value: Value, tensor: Callable[[Any], torch.Tensor] | None = None) -> Any:
    """The Python object for a value of the trace; tensor(value): that of a tensor. Raises Unsupported for what has none."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if tensor is not None and isinstance(value, (TensorValue, DispatchedTensor)):
        return tensor(value)
    if isinstance(value, SymbolicValue):
        return value.sym
    if isinstance(value, SliceValue):
        return slice(*(plain_argument(tx, part, tensor) for part in value.parts))
    if isinstance(value, SequenceValue) and (isinstance(value, ListValue) or is_one_of(value.cls, (tuple, torch.Size))):
        items = [plain_argument(tx, item, tensor) for item in value.unpack(tx)]
        return items if isinstance(value, ListValue) else tuple(items)
    try:
        plain = value.constant()
    except NotConstant:
        raise Unsupported("graph-argument", value.describe()) from None
    if isinstance(plain, (torch.Tensor, torch.Generator)) or is_numpy_scalar(plain):
        raise Unsupported("graph-argument", value.describe())
    return plain


class _Call:
    """A call of torch whose operators are being traced: stand-ins for its tensors, and the tensors by their stand-ins.

    count_given: how many tensors of such classes are arguments; below: the dispatch keys that PyTorch includes and excludes where it asks
    for an operator; failure: what tracing one has raised, in contrast to PyTorch.
    """

    def __init__(self, tx: TraceContext, name: str):
        self._tx, self._name = tx, name
        self._values: dict[int, tuple[torch.Tensor, Value]] = {}
        self._plain: dict[int, torch.Tensor] = {}
        self.failure: Exception | None = None
        self._last: Value | None = None
        self.count_given = 0
        self._keys = _dispatch_keys()
        self.below: tuple[Any, Any] | None = None

    def dispatched(self) -> list[DispatchedTensor]:
        """The tensors met so far whose operators the program carries out."""
        return [value for _, value in self._values.values() if isinstance(value, DispatchedTensor)]

    def note_shared_versions(self) -> None:
        """Note which new tensors count their writes together with others (`detach`), which nothing else does for them."""
        found = self.dispatched()
        for value in found[self.count_given :]:
            if value.source is None and not value.stand_in.is_inference():
                value.shares_version |= any(
                    _count_together(value.stand_in, o.stand_in) for o in found if o is not value
                )

    # ---- from the trace to PyTorch

    def given(self, value: Value) -> Any:
        """What PyTorch gets for a value of the trace. Raises Unsupported for what has no stand-in."""
        return plain_argument(self._tx, value, self._stand_in)

    def _stand_in(self, value: TensorValue | DispatchedTensor) -> torch.Tensor:
        if isinstance(value, DispatchedTensor):
            made = value.stand_in
        else:
            made = self._plain.get(id(value))
            if made is None:
                self._plain[id(value)] = made = example(value.fake)
        if made.requires_grad and torch.is_grad_enabled():
            raise Unsupported(
                "tensor-subclass", f"gradients through {self._name} of a tensor with a __torch_dispatch__"
            )
        self._values[id(made)] = made, value
        return made

    # ---- from PyTorch to the trace

    def value(self, obj: Any) -> Value:
        """The value of the trace for what PyTorch gives or hands on. Raises Unsupported for what the trace has not seen."""
        known = self._values.get(id(obj))
        if known is not None:
            return known[1]
        if isinstance(obj, (list, tuple)) and not isinstance(obj, torch.Size):
            items = [self.value(item) for item in obj]
            return ListValue(items) if isinstance(obj, list) else TupleValue(items, type(obj))
        if isinstance(obj, (torch.Tensor, torch.Generator)):
            raise Unsupported("tensor-subclass", f"{self._name}, which makes a tensor that no operator gives")
        return self._tx.from_constant(obj)

    def operator(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """An operator that PyTorch asks for, in the state in which the call was made."""
        self.below = _dispatch_keys()
        try:
            with torch._C._ForceDispatchKeyGuard(*self._keys):  # type: ignore[attr-defined]
                values = [self.value(arg) for arg in args]
                named = {name: self.value(arg) for name, arg in (kwargs or {}).items()}
                if function is torch.ops.aten.detach.default and self._is_made_variable(values[0]):
                    return self._again(values[0])
                asked = _in_order_of_asking([*values, *named.values()])
                if asked:
                    self._last = _ask(self._tx, function, asked, values, named)
                else:
                    self._last = self._tx.run_in_graph("call_function", function, values, named)
                return self.given(self._last)
        except Exception as error:
            self.failure = error
            raise

    # ---- what PyTorch does because the stand-in for a result is alive

    def _is_made_variable(self, value: Value) -> bool:
        """Whether PyTorch detaches a new tensor only because somebody else refers to it.

        `torch.zeros_like` and its like take the tensor that the operator gives as it is, if nobody does (torch/csrc/autograd/variable.h,
        `make_variable`). The trace refers to all stand-ins.
        """
        return value is self._last and value.source is None and self._name.endswith("_like")

    def _again(self, value: Value) -> torch.Tensor:
        """Another stand-in for the same tensor."""
        if isinstance(value, DispatchedTensor):
            value.stand_in = example(value.stand_in)
        else:
            del self._plain[id(value)]
        made: torch.Tensor = self.given(value)
        return made


def _in_order_of_asking(values: Iterable[Value]) -> list[DispatchedTensor]:
    """One tensor of each class, from left to right, subclasses first."""
    found: list[DispatchedTensor] = []
    for tensor in with_items(values):
        if isinstance(tensor, DispatchedTensor) and all(tensor.cls is not other.cls for other in found):
            insert_to_be_asked(found, tensor)
    return found


def _ask(
    tx: TraceContext,
    function: Any,
    asked: Sequence[DispatchedTensor],
    args: list[Value],
    kwargs: dict[str, Value],
) -> Value:
    """What the first of these classes that does not refuse gives for the operator."""
    kinds = TupleValue([tx.wrap_known(value.cls) for value in asked])
    given = [tx.wrap_known(function), kinds, TupleValue(args), dict_of(kwargs)]
    before = tx.graph.last()
    result = first_answer(tx, _NAME, asked, given)
    if result is None:
        raise Unsupported("tensor-subclass", f"{asked[0].describe()}, whose {_NAME} refuses {function}")
    _check_calls(tx, function, before, args, kwargs)
    return result


def _check_calls(tx: TraceContext, function: Any, before: fx.Node, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Raise Unsupported where calls of the graph do what they would not do below autograd, where PyTorch asks for an operator.

    There no gradients are recorded, and the versions of tensors do not count writes. Of what the operator itself writes to, PyTorch has
    counted one.
    """
    own = _written_by_operator(function, args, kwargs)
    outside: set[int] = set().union(*(storages(t.fake) for t in tx.known_tensors() if t.source is not None))
    for node in reversed(tx.graph.nodes):  # type: ignore[call-overload]
        if node is before:
            break
        result = node.meta.get("example_value")
        if isinstance(result, torch.Tensor) and result.requires_grad:
            raise Unsupported("tensor-subclass", f"{function} is carried out with tensors that require gradients")
        if writes_to(node, outside - own):
            raise Unsupported("tensor-subclass", f"{function} is carried out by a write to another tensor")
        if writes_to(node, own):
            own = set()


def _written_by_operator(function: Any, args: list[Value], kwargs: dict[str, Value]) -> set[int]:
    """The memory of the plain tensors that the operator writes to by its schema."""
    found: set[int] = set()
    for position, parameter in enumerate(function._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(parameter.name)
        if parameter.alias_info is not None and parameter.alias_info.is_write and isinstance(value, TensorValue):
            found |= storages(value.fake)
    return found
