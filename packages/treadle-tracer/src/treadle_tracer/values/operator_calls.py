"""Calls of torch with tensors whose operators the program carries out (`dispatched_tensors`).

    torch.nn.functional.linear(x, w)     =>     Quantised.__torch_dispatch__(aten.t.default, (Quantised,), (w,), {})
                                                Quantised.__torch_dispatch__(aten.mm.default, (Quantised,), (x, w'), {})

Which operators PyTorch asks for, in which order and with which arguments, is asked of PyTorch: it runs the call on stand-ins with the
metadata of the arguments (`StandIn`), and every operator that comes back is traced, the function of the program in place. Autograd and
autocast come before `__torch_dispatch__`: the arguments are cast already, and derivatives are asked for as well (`dispatched_gradients`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import is_transforming
from treadle_tracer.below_autograd import is_below_autograd
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import dispatched_gradients
from treadle_tracer.values.base import NONE, LazyValue
from treadle_tracer.values.call_effects import storages, writes_to
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.dispatched_gradients import Pairs
from treadle_tracer.values.function_overrides import first_answer, insert_to_be_asked, with_items
from treadle_tracer.values.mappings import dict_of
from treadle_tracer.values.ragged_lengths import RaggedLength
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


_AUTOCAST_DEVICES = ("cpu", "cuda")


def _casting_devices() -> list[str]:
    """The devices on whose tensors autocast acts. It does so no more where PyTorch asks for an operator whose arguments it has cast."""
    return [device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]


@contextmanager
def _without_autocast(tx: TraceContext, devices: Sequence[str]) -> Iterator[None]:
    """Inside, the graph casts nothing on these devices."""
    for device in devices:
        tx.change_state(torch.set_autocast_enabled, (device,), True, False)
    try:
        yield
    finally:
        for device in devices:
            tx.change_state(torch.set_autocast_enabled, (device,), False, True)


class StandIn(torch.Tensor):
    """Has the metadata of a tensor of the trace, and hands every operator to the call that is being traced."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _CALLS.stack[-1].operator(func, args, kwargs)


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[OperatorCall] = []


_CALLS = _Calls()


def current_call() -> OperatorCall:
    """The call whose operators are being traced."""
    return _CALLS.stack[-1]


def example(of: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
    """A stand-in with the metadata of this tensor. requires_grad: whether it requires gradients where the tensor does."""
    return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        StandIn,
        of.shape,
        strides=of.stride(),
        storage_offset=of.storage_offset(),
        dtype=of.dtype,
        layout=of.layout,
        device=of.device,
        requires_grad=requires_grad and of.requires_grad,
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

    def new_call(self, tx: TraceContext, name: str) -> OperatorCall:
        """A call with this tensor among its arguments."""
        return OperatorCall(tx, name)

    def new_stand_in(self) -> torch.Tensor:
        """Another stand-in with the metadata of the tensor."""
        return example(self.stand_in)

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
    return next(_dispatched(tx, values), None) is not None


def _dispatched(tx: TraceContext, values: Iterable[Value]) -> Iterator[DispatchedTensor]:
    for value in values:
        value = value.force(tx) if isinstance(value, LazyValue) else value
        if isinstance(value, DispatchedTensor):
            yield value
        elif isinstance(value, SequenceValue):
            yield from _dispatched(tx, value.items)


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
    call = next(_dispatched(tx, (*args, *kwargs.values()))).new_call(tx, name)
    given = [call.given(arg) for arg in args]
    named = {key: call.given(arg) for key, arg in kwargs.items()}
    call.count_given = len(call.dispatched())
    is_recorded = call.begin()
    outside = [value for value in tx.dispatched if value.source is not None]
    versions = [_version(value.stand_in) for value in outside]
    # Inside a `__torch_dispatch__` PyTorch has nothing of autograd to do any more, and takes no operator apart.
    below = _CALLS.stack[-1].below if _CALLS.stack else None
    with nullcontext() if below is None else torch._C._ForceDispatchKeyGuard(*below):  # type: ignore[attr-defined]
        result = (call.record if is_recorded else call.trace)(lambda: run(*given, **named))
    for value, version in zip(outside, versions, strict=True):
        for _ in range(_version(value.stand_in) - version):
            tx.mutations.output(torch.autograd.graph.increment_version, (value,))
    call.note_shared_versions()
    return call.value(result)


def _why_not_call() -> str | None:
    if is_transforming():
        return "in a function that a transform calls"
    return "below autograd" if is_below_autograd() else None


def plain_argument(tx: TraceContext, value: Value, tensor: Callable[[Any], torch.Tensor] | None = None) -> Any:
    """The Python object for a value of the trace; tensor(value): that of a tensor. Raises Unsupported for what has none."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if tensor is not None and isinstance(value, (TensorValue, DispatchedTensor)):
        return tensor(value)
    if isinstance(value, (SymbolicValue, RaggedLength)):
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


class OperatorCall:
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
        self._grad_mode = torch.is_grad_enabled()
        self._is_given = self._is_recorded = False
        self.count_given = 0
        self._keys, self._casting = _dispatch_keys(), _casting_devices()
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

    def trace(self, run: Callable[[], Any]) -> Any:
        """Trace the operators that PyTorch asks for while a function of stand-ins runs; return its result, stand-ins as well."""
        _CALLS.stack.append(self)
        try:
            return run()
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if error is self.failure:
                raise
            raise Unsupported("torch-call-raises", f"{self._name}: {type(error).__name__}: {error}") from error
        finally:
            _CALLS.stack.pop()
            self.failure = None  # its traceback refers to the trace

    # ---- gradients

    def begin(self) -> bool:
        """Whether autograd records the call, now that its arguments are given. Raises Unsupported where that cannot be traced."""
        self._is_given = True
        asking = [value for made, value in self._values.values() if made.requires_grad and torch.is_grad_enabled()]
        if not asking:
            return False
        if any(isinstance(value, DispatchedTensor) for value in asking):
            raise self._refusal("that requires gradients itself")
        if self._tx.speculation is not None:
            raise self._refusal("on a path that the program may not take")
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:  # type: ignore[attr-defined]
            raise self._refusal("under hooks of saved tensors")
        self._is_recorded = True
        return True

    def record(self, run: Callable[[], Any]) -> Any:
        """Trace a call that autograd records: its operators without gradients, and behind them the history of the results."""
        tx, mode = self._tx, torch._C._set_grad_enabled
        inputs = [(made, value) for made, value in self._values.values() if isinstance(value, TensorValue)]
        before = tx.grad_mode_uses, tx.mutations.writes_outside
        tx.change_state(mode, (), True, False)
        with torch.enable_grad():
            result = self.trace(run)
        if before != (tx.grad_mode_uses, tx.mutations.writes_outside):
            raise self._refusal("that asks for the grad mode, or writes to something outside")
        outputs = [(made, self._without_base(made)) for made in self._tensors(result)]
        tx.change_state(mode, (), False, True)
        why_not = dispatched_gradients.why_not_outputs(inputs, outputs)
        if any(value.stand_in.requires_grad for value in self.dispatched()):
            why_not = "that gives others that require gradients"
        if why_not is not None:
            raise self._refusal(why_not)
        if any(made.requires_grad for made, _ in outputs):
            dispatched_gradients.record(tx, self._name, inputs, outputs, self)
        return result

    def seen(self) -> list[TensorValue]:
        """The plain tensors met so far."""
        return [value for _, value in self._values.values() if isinstance(value, TensorValue)]

    def derivative(
        self, outputs: Pairs, inputs: Sequence[torch.Tensor], tangents: Sequence[TensorValue], grad_mode: bool
    ) -> tuple[list[tuple[torch.Tensor, Value] | None], Pairs]:
        """The gradients of inputs, for tangents of those of the outputs that have a history; and these tangents."""
        given = [(self._stand_in(tangent), tangent) for tangent in tangents]
        asked = [(made, pair) for (made, _), pair in zip(outputs, given, strict=True) if made.requires_grad]
        for _, (stand_in, _) in asked:
            stand_in.requires_grad_(grad_mode)
        results, read = zip(*asked, strict=True)
        grad_outputs = [stand_in for stand_in, _ in read]
        self._keys, self._casting = _dispatch_keys(), _casting_devices()  # a backward pass runs without autocast
        found = self.trace(
            lambda: torch.autograd.grad(
                results, inputs, grad_outputs, retain_graph=True, create_graph=grad_mode, allow_unused=True
            )
        )
        return [None if gradient is None else (gradient, self.value(gradient)) for gradient in found], read

    def _tensors(self, result: Any) -> list[torch.Tensor]:
        """The stand-ins for plain tensors in a result."""
        if isinstance(result, (list, tuple)) and not isinstance(result, torch.Size):
            return [made for item in result for made in self._tensors(item)]
        return [result] if isinstance(result, torch.Tensor) and isinstance(self.value(result), TensorValue) else []

    def _without_gradients(self, value: Value) -> Value:
        """What an operator gives, without the gradients that views have in grad mode or not, but not below autograd."""
        if isinstance(value, SequenceValue):
            items = [self._without_gradients(item) for item in value.unpack(self._tx)]
            return ListValue(items) if isinstance(value, ListValue) else TupleValue(items, value.cls)
        if isinstance(value, TensorValue) and value.fake.requires_grad:
            return self._tx.run_in_graph("call_method", "detach", [value], {})
        return value

    def _without_base(self, made: torch.Tensor) -> TensorValue:
        """The tensor for a result, no view: autograd lets no view be written to whose history is that of a node of the program's own."""
        tx, value = self._tx, self.value(made)
        assert isinstance(value, TensorValue)
        own = value.node(tx)
        others = (n for n in own.graph.nodes if n is not own)
        if any(storages(n.meta.get("example_value")) & storages(value.fake) for n in others):
            size = TupleValue([self.value(length) for length in value.fake.shape])
            value = tx.run_in_graph("call_function", torch.ops.aten._unsafe_view.default, [value, size], {})
            self._values[id(made)] = made, value
            assert isinstance(value, TensorValue)
        return value

    def _refusal(self, why: str) -> Unsupported:
        return Unsupported(
            "tensor-subclass", f"gradients through {self._name} of a tensor with a __torch_dispatch__ {why}"
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
        if self._is_given and made.requires_grad and self._grad_mode:
            raise self._refusal(", which gives a tensor that requires gradients")
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
        if isinstance(obj, _SYMBOLIC):
            return self._tx.symbols.computed(self._tx, obj)
        return self._tx.from_constant(obj)

    def operator(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """An operator that PyTorch asks for, in the state in which the call was made."""
        self.below = _dispatch_keys()
        grad_mode, casting = torch.is_grad_enabled(), _casting_devices()
        cast = [device for device in self._casting if device not in casting]
        torch._C._set_grad_enabled(
            self._grad_mode and not self._is_recorded
        )  # PyTorch may have switched it (`cached_cast`)
        try:
            with torch._C._ForceDispatchKeyGuard(*self._keys), _without_autocast(self._tx, cast):  # type: ignore[attr-defined]
                values = [self.value(arg) for arg in args]
                named = {name: self.value(arg) for name, arg in (kwargs or {}).items()}
                if function is torch.ops.aten.detach.default and self._is_of_pytorch(values[0]):
                    return self._again(values[0])
                asked = _in_order_of_asking([*values, *named.values()])
                if asked:
                    self._last = self.carry_out(function, values, named)
                else:
                    self._last = self._tx.run_in_graph("call_function", function, values, named)
                    self._last = self._without_gradients(self._last)
                return self.given(self._last)
        except Exception as error:
            self.failure = error
            raise
        finally:
            torch._C._set_grad_enabled(grad_mode)

    def carry_out(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """What the program gives for an operator with such tensors among its arguments."""
        return _ask(self._tx, function, _in_order_of_asking([*args, *kwargs.values()]), args, kwargs)

    # ---- what PyTorch does because the stand-in for a result is alive

    def _is_of_pytorch(self, value: Value) -> bool:
        """Whether PyTorch detaches a tensor for reasons of its own, of which eager tells nobody.

        `torch.zeros_like` and its like take the tensor that the operator gives as it is, if nobody else refers to it
        (torch/csrc/autograd/variable.h, `make_variable`). The trace refers to all stand-ins. And a result that the derivative reads is
        saved detached, which no plain tensor asks anybody for (torch/csrc/autograd/saved_variable.cpp).
        """
        if self._is_recorded and isinstance(value, TensorValue) and not self._name.startswith("detach"):
            return True
        return value is self._last and value.source is None and self._name.endswith("_like")

    def _again(self, value: Value) -> torch.Tensor:
        """Another stand-in for the same tensor."""
        if isinstance(value, DispatchedTensor):
            value.stand_in = value.new_stand_in()
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
        if isinstance(result, torch.Tensor) and result.requires_grad and node.op.startswith("call_"):
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
