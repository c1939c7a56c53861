"""Calls of `autograd.Function.apply`: the forward body becomes calls of the graph, the backward body a graph of its own.

Without gradients only the forward body is traced. With gradients the backward body is traced behind it, on stand-ins for the gradients that
it will be given; its calls are taken out of the graph again and become the graph module of a `CustomGradient`, the target of one node.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from treadle_shapes.torch import is_transforming, unwrapped
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import refused_writes, torch_calls
from treadle_tracer.values.base import NONE, Constant, LazyValue
from treadle_tracer.values.call_effects import only_computes
from treadle_tracer.values.called_again import CalledAgain, Input
from treadle_tracer.values.class_lookup import find_in_mro, lookup
from treadle_tracer.values.custom_gradient import Body, CustomGradient, layout_of_gradient
from treadle_tracer.values.made_state import MadeState
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.rules.torch_state import set_state
from treadle_tracer.values.sequences import Sequence as SequenceValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.tensor_subclasses import OverridingTensor
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_NO_SETUP_CONTEXT = find_in_mro(torch.autograd.Function.__mro__, "setup_context")[0]
_NO_VJP = find_in_mro(torch.autograd.Function.__mro__, "vjp")[0]
_ONCE: Any = once_differentiable(lambda ctx: None)
_MOST_OPTIONAL_GRADIENTS = 3  # the backward body is traced for each combination of given and missing ones


class FunctionContext:
    """What a traced `autograd.Function` gets as `ctx`, with the methods of `torch.autograd.function.FunctionCtx`."""

    materialize_grads = True
    non_differentiable: tuple[Any, ...] = ()
    dirty_tensors: tuple[Any, ...] = ()
    to_save: tuple[Any, ...] = ()
    saved_for_forward: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: Any) -> None:
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args: Any) -> None:
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


class ContextValue(ObjectValue):
    """The context of one call. real: the class of which eager's context is an instance. reads: what the bodies have asked for."""

    __slots__ = ("reads", "real")

    def __init__(self, real: type):
        super().__init__(FunctionContext)
        self.real = real
        self.reads: set[str] = set()

    @property
    def has_read_saved(self) -> bool:
        return "saved_tensors" in self.reads

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "saved_tensors":
            self.reads.add(name)
            return TupleValue(self.get_attr(tx, "to_save").unpack(tx))
        if not hasattr(FunctionContext, name) and name not in tx.mutations.attrs_of(self) and hasattr(self.real, name):
            raise Unsupported("autograd-function", f"ctx.{name}")
        return super().get_attr(tx, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        found, _ = find_in_mro(self.real.__mro__, name)
        is_stored = hasattr(type(found), "__set__")  # a method of that name is only hidden
        if is_stored and not hasattr(FunctionContext, name):
            raise Unsupported("autograd-function", f"assignment to ctx.{name}")
        super().set_attr(tx, name, value)

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", "the context of an autograd.Function")


# ---- the call


def apply(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`cls.apply(*args)`"""
    cls_value, *rest = args
    rest = [_forced(tx, arg) for arg in rest]
    cls: Any = cls_value.constant()
    if is_transforming():
        return _call_vmapped(tx, cls_value, rest, kwargs)
    has_setup = lookup(tx, cls, "setup_context") is not _NO_SETUP_CONTEXT
    if kwargs or (has_setup and len(inspect.signature(cls.forward).parameters) != len(rest)):
        raise Unsupported("autograd-function", f"{cls.__name__}: arguments by name or by default")
    context = ContextValue(cls._backward_cls)
    needs = [_needs_gradient(tx, arg) for arg in rest]
    if any(needed and not isinstance(arg, TensorValue) for needed, arg in zip(needs, rest, strict=True)):
        raise Unsupported(
            "autograd-function",
            f"{cls.__name__} of a tensor of another class than torch.Tensor that requires gradients",
        )
    tx.mutations.store_attr(context, "needs_input_grad", TupleValue([Constant(needed) for needed in needs]))
    is_recorded = torch.is_grad_enabled() and any(needs)
    if is_recorded and tx.speculation is not None:
        raise Unsupported("autograd-function", f"{cls.__name__} on a path that the program may not take")
    ends_here, before = cls in tx.differentiated, tx.graph.last()
    state = _State(tx, [*rest, cls_value, cls_value.get_attr(tx, "forward")]) if ends_here else None
    with _no_grad(tx):
        if has_setup:
            result = cls_value.get_attr(tx, "forward").call(tx, rest, {})
            cls_value.get_attr(tx, "setup_context").call(tx, [context, TupleValue(rest), result], {})
        else:
            result = cls_value.get_attr(tx, "forward").call(tx, [context, *rest], {})
        is_tuple = isinstance(result, TupleValue)
        results = [_forced(tx, item) for item in (result.items if is_tuple else [result])]
        call = _Call(tx, cls_value, context, rest, results)
        call.copy_returned_inputs(is_recorded=is_recorded)
    if state is not None:
        call.only_computes = state.is_unchanged() and all(map(only_computes, _calls_behind(tx, before)))
    if is_recorded:
        call.record()
    else:
        call.count_dirty()
    return TupleValue(results) if is_tuple else results[0]


def _needs_gradient(tx: TraceContext, value: Value) -> bool:
    if isinstance(value, TensorValue):
        return bool(value.fake.requires_grad)
    if not is_subtype(value.python_type(), torch.Tensor):
        return False
    is_asked = isinstance(value, OverridingTensor)  # attributes of other values ask no `__torch_function__`
    found = value.own_attribute(tx, "requires_grad") if is_asked else value.get_attr(tx, "requires_grad")
    return bool(found.truth(tx))


def _call_vmapped(tx: TraceContext, cls_value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call inside `vmap` of a function whose rule for it is that of its forward body (`generate_vmap_rule`), without gradients."""
    cls: Any = cls_value.constant()
    levels = torch._C._functorch.get_interpreter_stack() or []
    is_vmapped = all(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)
    is_recorded = torch.is_grad_enabled() and any(_requires_grad(tx, arg) for arg in args)
    has_rule = lookup(tx, cls, "generate_vmap_rule") is True
    if not is_vmapped or not has_rule or is_recorded or kwargs:
        raise Unsupported(
            "autograd-function", f"{cls.__name__} inside a transform of torch.func, for which it has rules of its own"
        )
    context = ContextValue(cls._backward_cls)
    tx.mutations.store_attr(context, "needs_input_grad", TupleValue([Constant(False) for _ in args]))
    with _no_grad(tx):
        result = cls_value.get_attr(tx, "forward").call(tx, args, {})
        cls_value.get_attr(tx, "setup_context").call(tx, [context, TupleValue(args), result], {})
    results = [_forced(tx, item) for item in (result.items if isinstance(result, TupleValue) else [result])]
    call = _Call(tx, cls_value, context, args, results)
    if call.noted("dirty_tensors") or any(
        _is_among(value, args) for value in results if isinstance(value, TensorValue)
    ):
        raise call.refuse("it gives an argument of its own inside vmap")
    return result


def _requires_grad(tx: TraceContext, value: Value) -> bool:
    """Whether autograd records calls of a tensor, or of one in a list. Of a tensor of `vmap` the one that it stands for tells."""
    value = _forced(tx, value)
    if isinstance(value, SequenceValue):
        return any(_requires_grad(tx, item) for item in value.items)
    return isinstance(value, TensorValue) and (value.fake.requires_grad or unwrapped(value.fake).requires_grad)


def _forced(tx: TraceContext, value: Value) -> Value:
    return value.force(tx) if isinstance(value, LazyValue) else value


@contextmanager
def _no_grad(tx: TraceContext) -> Iterator[None]:
    before = torch.is_grad_enabled()
    set_state(tx, torch._C._set_grad_enabled, [Constant(False)])
    try:
        yield
    finally:
        set_state(tx, torch._C._set_grad_enabled, [Constant(before)])


@dataclass
class _Call:
    """One call whose forward body has been traced."""

    tx: TraceContext
    cls_value: Value
    context: ContextValue
    args: list[Value]
    results: list[Value]  # changed in place
    kept: list[fx.Node] = field(default_factory=list)
    only_computes: bool = False  # whether the forward body does nothing else; not asked for where nobody needs to know
    ends: bool = False  # gradients of its gradients are not traced

    @property
    def name(self) -> str:
        return str(self.cls_value.constant().__name__)

    def refuse(self, why: str) -> Unsupported:
        return Unsupported("autograd-function", f"{self.name}: {why}")

    def noted(self, name: str) -> list[Value]:
        """The tensors that the program has given to a method of the context."""
        found = [_forced(self.tx, item) for item in self.context.get_attr(self.tx, name).unpack(self.tx)]
        if not all(isinstance(item, TensorValue) or (item is NONE and name == "to_save") for item in found):
            raise self.refuse(f"{name} are not all tensors")
        return found

    def copy_returned_inputs(self, *, is_recorded: bool) -> None:
        """An argument that is returned unchanged is returned as a view of itself, and one that requires gradients as a detached alias
        where nothing is recorded (torch/csrc/autograd/custom_function.cpp)."""
        dirty = self.noted("dirty_tensors")
        for k, value in enumerate(self.results):
            if not isinstance(value, TensorValue) or not _is_among(value, self.args):
                continue
            if not is_recorded and value.fake.requires_grad:
                self.results[k] = self.tx.run_in_graph("call_method", "detach", [value], {})
            elif not _is_among(value, dirty):
                if _is_among(value, self.noted("non_differentiable")):
                    raise self.refuse("an argument is returned and marked as not differentiable")
                self.results[k] = self.tx.run_in_graph("call_method", "view_as", [value, value], {})

    def count_dirty(self) -> None:
        """Count the tensors marked as written once more, as PyTorch does where nothing is recorded, too."""
        for value in self.noted("dirty_tensors"):
            self.tx.run_in_graph("call_function", torch.autograd.graph.increment_version, [value], {})

    def record(self) -> None:
        """Give the results a history: trace the backward body, and make the node."""
        inputs = [arg for arg in self.args if isinstance(arg, TensorValue)]
        outputs = [value for value in self.results if isinstance(value, TensorValue)]
        if not outputs or len(set(map(id, outputs))) < len(outputs):
            raise self.refuse("it returns no tensor, or one of them twice")
        for output in outputs:
            self.tx.note_mutation(output)
        dirty, fixed, saved = (self.noted(name) for name in ("dirty_tensors", "non_differentiable", "to_save"))
        if any(value.fake._is_view() or not _is_among(value, inputs) for value in dirty):  # type: ignore[attr-defined]
            raise self.refuse("mark_dirty of a view, or of what is no argument")
        for value in dirty:
            why_not = refused_writes.why_not_write(self.tx, value.fake)  # type: ignore[attr-defined]
            if why_not is not None:
                raise self.refuse(f"mark_dirty: {why_not}")
        materialises = bool(self.context.get_attr(self.tx, "materialize_grads").constant())
        bodies = self.bodies(outputs, fixed, saved, materialises)
        saved = saved if self.context.has_read_saved else []
        gradient = CustomGradient(
            self.name,
            bodies,
            tuple(k for k, value in enumerate(inputs) if _is_among(value, dirty)),
            tuple(k for k, value in enumerate(outputs) if _is_among(value, fixed)),
            materialises,
            self.is_once,
            again=CalledAgain(self.cls_value.constant(), self.known_arguments()) if self.ends else None,
        )
        groups = (inputs, outputs, saved)
        nodes = [tuple(v.node(self.tx) if isinstance(v, TensorValue) else None for v in group) for group in groups]
        fakes = [tuple(v.fake if isinstance(v, TensorValue) else None for v in group) for group in groups]
        kept = tuple(node.meta["example_value"] for node in self.kept)
        found = torch_calls.run_fake(self.tx, "call_function", gradient, [*fakes, kept], {})
        trace = self.tx.stack_trace()
        node = self.tx.graph.call("call_function", gradient, (*nodes, tuple(self.kept)), {}, found, trace)
        for k, value in enumerate(outputs):
            assert found[k] is value.fake
            value.follow(
                self.tx, self.tx.graph.call("call_function", operator.getitem, (node, k), {}, value.fake, trace)
            )

    # ---- the backward body

    @property
    def backward(self) -> Value:
        cls = self.cls_value.constant()
        name = "backward" if lookup(self.tx, cls, "vjp") is _NO_VJP else "vjp"
        return self.cls_value.get_attr(self.tx, name)

    @property
    def is_once(self) -> bool:
        return getattr(getattr(self.backward, "obj", None), "__code__", None) is _ONCE.__code__

    def bodies(
        self, outputs: Sequence[Any], fixed: Sequence[Value], saved: Sequence[Value], materialises: bool
    ) -> dict[tuple[tuple[bool, ...], bool], Body]:
        """The backward body, traced for each combination of gradients that it can be given, and for grad mode on where that matters."""
        choices: list[tuple[bool, ...]] = [(True,)] * len(outputs)
        if not materialises:
            can_have = [
                not _is_among(v, fixed) and (v.fake.is_floating_point() or v.fake.is_complex()) for v in outputs
            ]
            choices = [(True, False) if can else (False,) for can in can_have]
            if sum(can_have) > _MOST_OPTIONAL_GRADIENTS:
                raise self.refuse("set_materialize_grads(False) with many outputs")
        found: dict[tuple[tuple[bool, ...], bool], Body] = {}
        for defined in itertools.product(*choices):
            uses = self.tx.grad_mode_uses
            found[defined, False] = self.body(outputs, saved, defined, grad_mode=False)
            if self.tx.grad_mode_uses > uses and not self.is_once:
                if self.cls_value.constant() in self.tx.differentiated:
                    self.ends = True
                    continue
                with self.differentiated():
                    found[defined, True] = self.body(outputs, saved, defined, grad_mode=True)
        return found

    def known_arguments(self) -> tuple[Any, ...] | None:
        """The arguments, with an `Input` for each tensor, if the function can be called again with them."""
        if (
            not self.only_computes or not self.cls_value.is_constant()
        ):  # a class that the trace has made is not there later
            return None
        positions = itertools.count()
        found = []
        for arg in self.args:
            if not isinstance(arg, (TensorValue, Constant)):
                return None
            found.append(Input(next(positions)) if isinstance(arg, TensorValue) else arg.obj)
        return tuple(found)

    @contextmanager
    def differentiated(self) -> Iterator[None]:
        """Inside, the backward body is traced for gradients of its own.

        A function whose gradient is made of itself (`Sin` and `Cos` that apply each other) has derivatives of all orders, and each would
        be traced inside the one before: see `values.called_again`.
        """
        self.tx.differentiated.append(self.cls_value.constant())
        try:
            yield
        finally:
            self.tx.differentiated.pop()

    def body(self, outputs: Sequence[Any], saved: Sequence[Value], defined: tuple[bool, ...], grad_mode: bool) -> Body:
        """Trace the backward body and take its calls out of the graph."""
        tx = self.tx
        before, state = tx.graph.last(), _State(tx, [self.context, *self.args, self.cls_value, self.backward])
        tangents = [
            self.tangent(output, k, grad_mode) if is_defined else None
            for k, (output, is_defined) in enumerate(zip(outputs, defined, strict=True))
        ]
        given = dict(zip(map(id, outputs), tangents, strict=True))
        arguments = [given.get(id(value)) or NONE for value in self.results]
        with tx.as_in_backward(grad_mode):
            try:
                result = self.backward.call(tx, [self.context, *arguments], {})
            except Raised as raised:
                raise self.refuse(f"its backward raises {raised.value.python_type().__name__}") from raised
        if not state.is_unchanged():
            raise self.refuse("its backward writes to something that outlives it")
        results = self.gradients(result)
        why_not = tx.graph.why_not_take_out(before, results)
        if why_not is not None:
            raise self.refuse(why_not)
        by_saving = [value.known_node if isinstance(value, TensorValue) else None for value in saved]
        given_nodes = [tangent.known_node for tangent in tangents if tangent is not None]
        given_nodes += by_saving if self.context.has_read_saved else []
        graph, others, removed = tx.graph.take_out(before, given_nodes, results)
        tx.symbols.forget_nodes(removed)
        self.kept += [node for node in others if node not in self.kept]
        return Body(graph, self.context.has_read_saved, tuple(self.kept.index(node) for node in others))

    def tangent(self, output: Any, number: int, grad_mode: bool) -> TensorValue:
        """A stand-in for the gradient of an output."""
        size, stride = layout_of_gradient(output.fake)
        with self.tx.fake_mode:
            fake = torch.empty_strided(size, stride, dtype=output.fake.dtype, device=output.fake.device)
        fake.requires_grad_(grad_mode)
        made: TensorValue = self.tx.new_tensor(self.tx.graph.stand_in(f"tangent_{number}", fake), fake)
        return made

    def gradients(self, result: Value) -> list[fx.Node | None]:
        """The node of each gradient that the backward body returns for a tensor that needs one, in the order of the tensors."""
        items = [_forced(self.tx, item) for item in (result.items if isinstance(result, TupleValue) else [result])]
        if len(items) < len(self.args) or any(item is not NONE for item in items[len(self.args) :]):
            raise self.refuse(f"its backward returns {len(items)} gradients for {len(self.args)} arguments")
        nodes: list[fx.Node | None] = []
        for item, arg in zip(items, self.args, strict=False):
            if item is not NONE and not (isinstance(item, TensorValue) and isinstance(arg, TensorValue)):
                raise self.refuse(
                    "its backward returns something other than tensors, or a gradient of what is no tensor"
                )
            if isinstance(arg, TensorValue):
                is_wanted = isinstance(item, TensorValue) and arg.fake.requires_grad
                nodes.append(item.node(self.tx) if is_wanted else None)  # type: ignore[attr-defined]
        return nodes


def _calls_behind(tx: TraceContext, before: fx.Node) -> list[fx.Node]:
    """The calls made since, but for those that set grad mode."""
    made = itertools.takewhile(lambda node: node is not before, reversed(list(tx.graph.nodes)))
    return [node for node in made if node.op[:5] == "call_" and node.target is not torch._C._set_grad_enabled]


def _is_among(value: Value, others: Sequence[Value]) -> bool:
    return any(value is other for other in others)


class _State:
    """What outlives a body: the program's writes, and what the trace has made before that the body can reach."""

    def __init__(self, tx: TraceContext, roots: Sequence[Value]):
        """roots: what the body is given, and the function itself."""
        self.tx = tx
        self.writes_outside = tx.mutations.writes_outside
        self.made = MadeState(tx, roots)

    def is_unchanged(self) -> bool:
        """Whether nothing of it has been written to. Objects that the body itself has made do not count."""
        return self.tx.mutations.writes_outside == self.writes_outside and self.made.changed() is None
