"""The recording mode: one fx node per functional ATen operator.

    %x : placeholder                        %x : placeholder
    torch.relu(x.view(2, 6))       ==>      %view = aten.view.default(%x, [2, 6])
                                            %relu = aten.relu.default(%view)

`AtenRecorder` is a dispatch mode below PyTorch's C++ functionalisation layer (`functionalise`), so it sees functional overloads on fake
tensors only. Composite operators decompose above it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.types import py_sym_types
from torch.utils._python_dispatch import TorchDispatchMode

from treadle_shapes.expr import substitute
from treadle_shapes.torch import Kind, Operator, expr_of, fake_calls, fake_like, operator, run_for_metadata

from .contract import CallInput, InputDescription, StaticInput
from .decompositions import Decompositions, decompose_composite
from .effects import may_raise
from .errors import InternalError, Refusal, UnsupportedGraph
from .expansions import Expansions
from .graph_nodes import append_call
from .graph_runner import user_line
from .layouts import like_first_argument, memory_order
from .lost_histories import Histories
from .overflow import fits_dtype, numbers_that_must_fit, overflow_message, why_not_of_kind
from .refusals import TYPED, call_torch
from .symbolic_nodes import SymbolicNodes
from .unbacked import has_elements, offset_fact, shape_env_of, unify_symbols

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
# Overloads that the recorder treats on their own. Looked up at each call, each would take 0.1 us.
_LIFT_FRESH = aten.lift_fresh.default
_BERNOULLI = aten.bernoulli.p
_AS_STRIDED = aten.as_strided.default
_AS_STRIDED_SCATTER = aten.as_strided_scatter.default
_ZEROS_WITHOUT_MEMORY = aten._efficientzerotensor.default
_TO_COPY = aten._to_copy.default
_BATCH_NORM = aten.native_batch_norm.default
_DETACH = aten.detach.default


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share one storage, fake and functional tensors included."""
    return tensor.untyped_storage()._cdata


@dataclass
class RecordedGraph:
    """The ATen graph under construction, and a description of each of its placeholders."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[InputDescription] = field(default_factory=list)
    input_nodes: list[fx.Node] = field(default_factory=list)
    n_static: int = 0

    def add_static(self, name: str, tensor: torch.Tensor, val: torch.Tensor) -> fx.Node:
        """Add a placeholder for `tensor` behind the other static inputs and in front of all call inputs."""
        if self.n_static:
            place = self.graph.inserting_after(self.input_nodes[self.n_static - 1])
        else:
            place = self.graph.inserting_before(next(iter(self.graph.nodes), None))
        with place:
            node = self.graph.placeholder(name)
        node.meta.update(val=val, static_input=tensor)
        self.inputs.insert(self.n_static, StaticInput(name, tensor))
        self.input_nodes.insert(self.n_static, node)
        self.n_static += 1
        return node

    def add_call_input(self, name: str, index: int, val: Any) -> fx.Node:
        """Add a placeholder for the `index`-th argument of the compiled callable."""
        node = self.graph.placeholder(name)
        node.meta["val"] = val
        self.inputs.append(CallInput(index))
        self.input_nodes.append(node)
        return node


class AtenRecorder(TorchDispatchMode):
    """Writes one node of `recorded` per functional ATen operator and lets the fake mode compute the result.

    meta, function: what the traced graph's current node says; set by whoever runs that graph. inherited: what all nodes of that graph say.
    calls_with_gradients: whether gradients were enabled when the current node's call began; set likewise.
    values_before_no_grad: tensor identities -> nodes of the values from which on calls without gradients use them (`custom_gradients`).
    custom_calls: calls of custom autograd functions, in order (`custom_gradients`).
    for_training: whether a backward pass follows. histories: what may be lost for a second run of the forward part under autograd.
    stat_updates: (old, new) running statistics of batch norms, which the functionalisation layer has not seen yet.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__ in something that imports torch._dynamo

    def __init__(self, recorded: RecordedGraph, mode: FakeTensorMode, decompositions: Decompositions) -> None:
        super().__init__()
        self.recorded = recorded
        self.mode = mode
        self.shape_env = shape_env_of(mode)
        self.decompositions = decompositions
        self.meta: dict[str, Any] = {}
        self.inherited: dict[str, Any] = {}
        self.custom_calls: list[Any] = []
        self.values_before_no_grad: dict[int, fx.Node] = {}
        self.function: Any = None
        self.calls_with_gradients = False
        self.input_storages: set[int] = set()
        self.stat_updates: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.symbolic = SymbolicNodes(recorded.graph)
        self.traced_asserts: set[Any] = set()
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # keeps the ids above unique
        self._constants: dict[int, fx.Node] = {}
        self._lifted_numbers: dict[
            int, Any
        ] = {}  # the elements of `torch.tensor(3.0)`, by the identities of fake tensors
        self._renamed: dict[Any, Any] = {}
        self._offsets: set[Any] = set()
        self.for_training = False
        self.histories = Histories()
        self._expansions = Expansions()
        self._n_asserts = 0 if self.shape_env is None else len(self.shape_env.env.runtime_asserts)

    def bind(self, value: Any, node: fx.Node) -> None:
        """Declare that `node` computes `value`, a fake tensor or a symbolic number."""
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)
            if node.op == "placeholder":
                self.symbolic.bind_sizes(value, node)
                self.input_storages.add(storage_key(value))
        else:
            self.symbolic.bind(value, node)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that computes `tensor`. A real tensor is a constant of the trace and becomes a static input."""
        node = self._nodes.get(id(tensor))
        return node if node is not None else self._constant(tensor)

    def node_of_value(self, value: Any) -> Any:
        """The node that computes the current value of a functional tensor, or a symbolic number; any other value itself."""
        if isinstance(value, torch.Tensor):
            torch._sync(value)
            return self.node_of(torch._from_functional_tensor(value))
        return self.to_argument(value)

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        if isinstance(tensor, FakeTensor):
            raise AssertionError(
                f"fake tensor of shape {tuple(tensor.shape)} was not computed by any recorded operator"
            )
        node = self._constants.get(id(tensor))
        if node is None:
            node = self.recorded.add_static(f"constant_{len(self._constants)}", tensor, fake_like(self.mode, tensor))
            self._constants[id(tensor)] = node
            self._alive.append(tensor)
        return node

    def to_argument(self, value: Any) -> Any:
        """An operator's argument as a node's argument."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            items = [self.to_argument(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return self.symbolic.node_for(value) if isinstance(value, py_sym_types) else value

    def line(self) -> str:
        """The user's line of the current node."""
        return user_line(self.meta.get("stack_trace"))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:  # functional tensors ask their values for it after every call
            return args[0].device if type(args[0]) is not FakeTensor else args[0].fake_device
        try:
            return self._dispatch(func, args, kwargs or {})
        except TYPED:
            raise
        except Exception as bug:  # ours: what torch raises has become a Refusal
            raise InternalError("functionalise", f"{type(bug).__name__}: {bug}", self.line()) from bug

    def _dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        record = operator(func)
        if record is not None and record.is_query:
            return call_torch(func, args, kwargs, self.line)  # no node
        if func is _LIFT_FRESH and not isinstance(args[0], FakeTensor):
            return self._lift(args[0])
        reason = self._why_not_functional(func, args, kwargs)
        if reason is not None:
            raise UnsupportedGraph(reason, self.line())
        rule = self.decompositions.get(func)
        if rule is not None:
            result = self._decomposed(func, rule, args, kwargs)
            if result is not NotImplemented:
                return result
        if func is _BERNOULLI and (order := memory_order(args[0])) is not None:
            return self._bernoulli_in_memory_order(order, args, kwargs)
        if func is _AS_STRIDED_SCATTER and _writes_all(*args, **kwargs):
            func, args, kwargs = aten.copy.default, args[:2], {}
        if func is _ZEROS_WITHOUT_MEMORY:
            func = aten.zeros.default  # the same values in memory, which kernels read
        if func is _TO_COPY and isinstance(args[0], _NUMBERS):
            func, args, kwargs = aten.full.default, ([], args[0]), _of_scalar(args[0], kwargs)
        if _takes_number_for_tensor(func, args):
            with self:
                number = aten.full.default([], args[0], **_of_scalar(args[0], {}))
                return call_torch(func, (number, *args[1:]), kwargs, self.line)
        composite = decompose_composite(func)
        if composite is not None:
            with self:
                return call_torch(composite, args, kwargs, self.line)
        if func is _BATCH_NORM and args[5] and args[3] is not None:
            return self._training_batch_norm(*args)
        if func._schema.is_mutable:
            return self._write(func, args, kwargs)
        result = self._record(func, record, args, kwargs)
        if self.for_training and record is not None and record.is_zero_or_one and result.dtype.itemsize > 1:
            with self:  # a byte per element can be saved for backward, instead of one float
                result = aten._to_copy.default(aten.ne.Scalar(result, 0), dtype=result.dtype)
        return result

    def _decomposed(self, func: Any, rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of the decomposition `rule`, which records its operators; NotImplemented where it declines."""
        call = self._expansions.call_of(self, func, rule, args, kwargs)
        if call is not None:
            result = self._expansions.copied(self, call)
            if result is not NotImplemented:
                return result
        last, n_inputs = next(iter(reversed(self.recorded.graph.nodes)), None), len(self.recorded.inputs)
        try:
            with self:
                result = call_torch(rule, args, kwargs, self.line)
        except Refusal as refusal:
            if not isinstance(refusal.__cause__, ZeroDivisionError):
                raise
            result = NotImplemented  # the mean of no elements: C++ divides by zero, Python does not
        if call is not None and result is not NotImplemented:
            self._expansions.keep(self, call, last, n_inputs, result)
        return result

    def holds_lifted_number(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of the tensors is a number of the program's, which operators may take as a number (`_beside`)."""
        return any(id(tensor) in self._lifted_numbers for tensor in tensors)

    def _write(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A write that a composite operator makes below functionalisation: `1 - x` in C++ fills an empty tensor.

        What nothing else shares memory with is replaced: from here on its node is that of the operator that returns the new values.
        """
        functional, written = _functional_overload(func), args[0] if args else None
        is_own = isinstance(written, FakeTensor) and id(written) in self._nodes and not self._shares_memory(written)
        if functional is None or not is_own:
            raise UnsupportedGraph(f"{func} changes its arguments below functionalisation", self.line())
        assert isinstance(written, torch.Tensor)
        with self:
            result = call_torch(functional, args, kwargs, self.line)
        if self._shares_memory(result) or any(get(result) != get(written) for get in _LAYOUT):
            raise UnsupportedGraph(f"{func} gives a tensor other memory below functionalisation", self.line())
        self._nodes[id(written)] = self._nodes[id(result)]
        return written

    def _shares_memory(self, tensor: torch.Tensor) -> bool:
        """Whether the graph knows another tensor with this one's memory."""
        key = storage_key(tensor)
        if key in self.input_storages:
            return True
        return any(other is not tensor and storage_key(other) == key for other in self._alive if _has_storage(other))

    def _why_not_functional(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why the call cannot stand in the graph, whatever it decomposes into."""
        if not isinstance(func, torch._ops.OpOverload):
            return f"the higher-order operator {func} is not supported"
        record = operator(func)
        if record is not None and record.is_sparse_part and args[0].layout != torch.strided:
            return f"nobody traces how many elements a sparse tensor holds, which {func} asks for"
        if func is _AS_STRIDED_SCATTER and not _is_zero(args[0].storage_offset()):
            return "as_strided_scatter writes to an absolute place in the storage of a view"
        if func is _AS_STRIDED_SCATTER and (len(args) > 4 or kwargs) and not _writes_all(*args, **kwargs):
            if storage_key(args[0]) in self.input_storages:
                return "as_strided_scatter writes to an absolute place in the storage of an input"
        if func is _AS_STRIDED and (len(args) > 3 or kwargs):
            if storage_key(args[0]) in self.input_storages:
                return "as_strided reads an input from an absolute place in its storage"
        return None

    def _record(self, func: Any, record: Operator | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        node_args = tuple([self.to_argument(a) for a in self._beside(record, args)])
        node_kwargs = {name: self.to_argument(value) for name, value in kwargs.items()}
        if not has_elements(self.shape_env, func, record, args, kwargs):
            raise UnsupportedGraph(f"{func} has nothing to reduce", self.line())

        def run() -> Any:
            return run_for_metadata(self.shape_env, func, args, kwargs)

        result = call_torch(fake_calls(self.mode).call, (func, run, args, kwargs), {}, self.line)
        result = like_first_argument(record, args, kwargs, result)
        reason = why_not_of_kind(record, kwargs, result)
        if reason is not None:
            raise UnsupportedGraph(reason, self.line())
        for value, dtype in numbers_that_must_fit(func, record, args, kwargs, result):
            self._require_fit(func, value, dtype, result)
        node = append_call(self.recorded.graph, func, node_args, node_kwargs)
        node.meta.update(self.meta)
        node.meta["val"] = result
        if may_raise(func, args, result):
            node.meta["may_raise"] = True
        if not self._has_gradients(func):
            node.meta["no_grad"] = True
        if self.for_training and self._is_hidden(func):
            node.meta["inside_call"] = True
        if isinstance(result, torch.Tensor):
            if id(result) in self._nodes:  # the operator returned its argument, which has a node
                node.graph.erase_node(node)
            else:
                self._bind_result(node, result)
                if self.shape_env is not None:
                    self._offsets |= offset_fact(self.shape_env, record, args, result)
        elif isinstance(result, (list, tuple)):
            self._bind_items(node, result)
        elif isinstance(result, py_sym_types):
            self.symbolic.bind(result, node)
        return result

    def _has_gradients(self, func: Any) -> bool:
        """Whether autograd differentiates the call. The formulas of custom operators call them with gradients off."""
        return torch.is_grad_enabled() or (self.calls_with_gradients and func.namespace != "aten")

    def _is_hidden(self, func: Any) -> bool:
        """Whether a call of the traced graph, made with gradients on, turns them off, or detaches a tensor, inside. Backward formulas
        run without gradients, and their results have no history."""
        if self.meta.get("of_backward") or self.function is torch.autograd.grad:
            return False
        if not torch.is_grad_enabled():
            return self.calls_with_gradients and func.namespace == "aten"
        return func is _DETACH and operator(self.function) is None

    def _require_fit(self, func: Any, value: Any, dtype: torch.dtype, result: torch.Tensor) -> None:
        """Assert that `dtype` can hold a number of the call. Eager raises where it cannot; kernels would round or wrap the number."""
        caller = operator(self.function)
        if caller is not None and caller.rounds_numbers and result.dim() == 0:
            return
        condition = fits_dtype(expr_of(value), dtype)
        if condition is False:
            raise UnsupportedGraph(f"{func}: {overflow_message(dtype)}", self.line())
        if condition not in self.traced_asserts:
            self.add_assert(condition, overflow_message(dtype))

    def _bind_result(self, node: fx.Node, result: torch.Tensor) -> None:
        self._nodes[id(result)] = node
        self._alive.append(result)
        if result._has_symbolic_sizes_strides:
            self.symbolic.bind_sizes(result, node)

    def _bind_items(self, node: fx.Node, result: Sequence[Any]) -> None:
        for position, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                item_node = append_call(self.recorded.graph, getitem, (node, position), {})
                item_node.meta.update(self.meta)
                item_node.meta["val"] = item
                self._bind_result(item_node, item)
            elif isinstance(item, (list, tuple)):
                raise UnsupportedGraph(f"{node.target} returns lists of tensors among other results", self.line())

    def finish_call(self, expected: Any, result: Any) -> None:
        """After a call of the traced graph: give its new symbols the tracer's names, and assert the facts that its operators needed.

        `expected` is the tracer's result. Asserts that the tracer has written are not repeated.
        """
        shape_env = self.shape_env
        if shape_env is None:
            return
        for new, old in unify_symbols(shape_env, expected, result).items():
            self.symbolic.alias(new, old)
            self._renamed[new] = old
            if isinstance(expected, torch.SymFloat):  # `tracers_float`: what follows is written with the tracer's
                self.symbolic.node_of_expression(old).meta["val"] = expected
        found = shape_env.env.runtime_asserts[self._n_asserts :]
        self._n_asserts += len(found)
        for needed in found:
            condition = substitute(needed.condition, self._renamed)
            if condition not in self.traced_asserts and not needed.condition.free_symbols <= self._offsets:
                self.add_assert(condition, f"{shape_env.env.describe(condition)} does not hold")

    def add_assert(self, condition: Any, message: str) -> None:
        """Add a node that checks `condition`, an expression or a bool, when the graph runs."""
        if condition is True:
            return
        node = self.recorded.graph.call_function(
            aten._assert_scalar.default, (self.symbolic.node_of_expression(condition), message)
        )
        node.meta.update(self.meta)
        node.meta["val"] = None
        self.traced_asserts.add(condition)

    def _lift(self, constant: torch.Tensor) -> torch.Tensor:
        """Make the tensor of ``torch.tensor(3.0)``, which exists since the trace, a static input."""
        node = self._constant(constant)
        fake = fake_like(self.mode, constant)
        self.bind(fake, node)
        node.meta["val"] = fake
        if constant.dim() == 0 and constant.device.type == "cpu":
            with torch._C._DisableTorchDispatch():
                self._lifted_numbers[id(fake)] = constant.item()
        return fake

    def _beside(self, record: Operator | None, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments, with numbers that the program has made tensors of (`x[mask] = 0.5`) on the device of the others.

        Operators take them from the CPU; kernels for another device read no memory there.
        """
        if not self._lifted_numbers or record is None or record.kind not in _MIX_DEVICES:
            return args
        device = next((a.fake_device for a in args if isinstance(a, FakeTensor) and a.fake_device.type != "cpu"), None)
        if device is None:
            return args
        return [self._moved(a, device) if id(a) in self._lifted_numbers else a for a in args]

    def _moved(self, number: FakeTensor, device: torch.device) -> torch.Tensor:
        with self:
            return aten.full.default([], self._lifted_numbers[id(number)], dtype=number.dtype, device=device)

    def _bernoulli_in_memory_order(self, order: list[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with self:
            drawn = aten.bernoulli.p(aten.permute.default(args[0], order), *args[1:], **kwargs)
            return aten.permute.default(drawn, [order.index(d) for d in range(len(order))])

    def _training_batch_norm(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        mean: torch.Tensor,
        var: torch.Tensor,
        _: bool,
        momentum: float,
        eps: float,
    ) -> Any:
        """Record the functional form, which returns the running statistics. `native_batch_norm` writes them, undeclared by its schema."""
        functional = aten._native_batch_norm_legit_functional.default
        with self:
            out, saved_mean, saved_invstd, new_mean, new_var = functional(
                x, weight, bias, mean, var, True, momentum, eps
            )
        self.stat_updates += [(mean, new_mean), (var, new_var)]
        return out, saved_mean, saved_invstd


def _of_scalar(number: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `full` for `_to_copy` of a wrapped number, which PyTorch hands to a dispatch mode as the number itself."""
    options = {name: value for name, value in given.items() if name in ("dtype", "layout", "device", "pin_memory")}
    if options.get("dtype") is None:
        options["dtype"] = next(dtype for kinds, dtype in _DTYPES_OF_NUMBERS.items() if isinstance(number, kinds))
    return options


def _takes_number_for_tensor(func: Any, args: Sequence[Any]) -> bool:
    """Whether a wrapped number is the call's only tensor, as in `conj(1j)` of a derivative: kernels take no number there."""
    return bool(args) and isinstance(args[0], _NUMBERS) and _takes_one_tensor(func)


@functools.cache
def _takes_one_tensor(func: Any) -> bool:
    """Whether the first argument is the overload's only tensor."""
    tensors = [k for k, parameter in enumerate(func._schema.arguments) if isinstance(parameter.type, torch.TensorType)]
    return tensors == [0]


_NUMBERS = (bool, int, float, complex, *py_sym_types)
# Kinds whose operators take a tensor without dimensions from the CPU beside tensors of another device.
_MIX_DEVICES = frozenset({Kind.POINTWISE, Kind.SCATTER, Kind.COPY})
_DTYPES_OF_NUMBERS = {
    (bool, torch.SymBool): torch.bool,
    (int, torch.SymInt): torch.int64,
    (float, torch.SymFloat): torch.float64,
    (complex,): torch.complex128,
}


def _is_zero(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def _writes_all(
    tensor: torch.Tensor, src: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> bool:
    """Whether `as_strided_scatter` of these arguments replaces every element of `tensor` at its own place, as autograd's copies of views of
    one element do."""
    same = [tuple(tensor.shape), tuple(tensor.stride())] == [tuple(size), tuple(stride)]
    is_static = all(isinstance(number, int) for number in (*size, *stride))
    return is_static and same and _is_zero(storage_offset or 0) and tuple(src.shape) == tuple(size)


# What a write leaves as it is.
_LAYOUT = (torch.Tensor.size, torch.Tensor.stride, lambda t: t.dtype, lambda t: t.device)


def _functional_overload(func: Any) -> Any:
    """The operator that returns what an in-place operator writes to its first argument; None where there is none."""
    name, record = func._schema.name.removeprefix("aten::"), operator(func)
    written = [argument.name for argument in func._schema.arguments if argument.is_write]
    if not name.endswith("_") or written != ["self"] or (record is not None and record.is_random):
        return None
    found = getattr(getattr(aten, name[:-1], None), func._overloadname, None)
    return None if found is None or found._schema.is_mutable else found


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided
