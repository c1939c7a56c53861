"""Run a torch-level graph on fake tensors under C++ functionalisation and record the ATen operators it comes down to.

    def f(x):                           %x : placeholder
        y = x.view(2, 6)        ==>     %view = aten.view(%x, [2, 6]);  %add = aten.add(%view, 1)
        y.add_(1)                       %view_1 = aten.view(%add, [3, 4]);  %mul = aten.mul(%view_1, 2)
        return x * 2                    x is written back from %view_1

PyTorch's functionalisation layer (``torch._to_functional_tensor`` and the dispatch key Functionalize) turns in-place operators and
mutated views into functional ones; composite operators decompose on their own above it. Below it stands the `AtenRecorder`, a dispatch
mode that sees functional overloads on fake tensors and writes one fx node each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from treadle_shapes.expr import substitute
from treadle_shapes.torch import answer_size_obliviously, fake_like, run_for_metadata

from .contract import CallInput, InputDescription, StaticInput
from .decomp import Decompositions, decompose_composite
from .effects import ROUNDING, held_condition, held_numbers, may_raise, overflow_message
from .errors import UnsupportedGraph
from .layouts import FAKE_AS_EAGER, like_argument
from .symbolic import SYMBOLIC, SymbolicNodes, expression_of
from .unbacked import adapter_of, explain_offset, has_elements, is_assert, is_number_call, same_symbols

aten = torch.ops.aten

# Operators that only ask about a tensor: no node.
_QUERIES = frozenset(
    {
        torch.ops.prim.device.default,
        aten.size.default,
        aten.sym_size.int,
        aten.sym_stride.int,
        aten.sym_storage_offset.default,
    }
)

# Torch-level calls after which tensors belong to autograd or have left the graph.
_UNSUPPORTED_METHODS = frozenset(
    {"requires_grad_", "backward", "retain_grad", "register_hook", "resize_", "set_", "numpy", "tolist"}
)

# Views whose schemas do not say so: the result of writing to them would be lost.
_UNDECLARED_VIEWS = frozenset({"unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"})


def user_line(stack_trace: str | None) -> str:
    """The innermost ``File "...", line N`` of a stack trace as ``file:N``, or ""."""
    for line in reversed((stack_trace or "").splitlines()):
        text = line.strip()
        if text.startswith('File "') and ", line " in text:
            name, _, rest = text[len('File "') :].partition('", line ')
            return f"{name}:{rest.split(',')[0].strip()}"
    return ""


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share one storage (fake and functional tensors included)."""
    return tensor.untyped_storage()._cdata


@dataclass
class RecordedGraph:
    """The ATen graph under construction and what is known of its inputs."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[InputDescription] = field(default_factory=list)
    input_nodes: list[fx.Node] = field(default_factory=list)
    n_static: int = 0

    def add_static(self, name: str, tensor: torch.Tensor, val: torch.Tensor) -> fx.Node:
        """A placeholder for `tensor` after the static inputs there are and before all call inputs."""
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
        node = self.graph.placeholder(name)
        node.meta["val"] = val
        self.inputs.append(CallInput(index))
        self.input_nodes.append(node)
        return node


class AtenRecorder(TorchDispatchMode):
    """Writes one node of `recorded` per functional ATen operator that reaches it, and lets the fake mode compute the result."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__ in something that imports torch._dynamo

    def __init__(self, recorded: RecordedGraph, mode: FakeTensorMode, decompositions: Decompositions) -> None:
        super().__init__()
        self.recorded = recorded
        self.mode = mode
        self.decompositions = decompositions
        self.meta: dict[str, Any] = {}
        self.function: Any = None  # what the node of the traced graph calls that is being run
        self.input_storages: set[int] = set()
        self.stat_updates: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.symbolic = SymbolicNodes(recorded.graph)
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # keeps the ids above unique
        self._constants: dict[int, fx.Node] = {}
        self.traced_asserts: set[Any] = set()
        self._renamed: dict[Any, Any] = {}
        self._offsets: set[Any] = set()
        adapter = adapter_of(mode)
        self._n_asserts = 0 if adapter is None else len(adapter.env.runtime_asserts)

    def bind(self, value: Any, node: fx.Node) -> None:
        """Declare that `node` computes `value` (a fake tensor or a symbolic number)."""
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)
            if node.op == "placeholder":
                self.symbolic.bind_sizes(value, node)
                self.input_storages.add(storage_key(value))
        else:
            self.symbolic.bind(value, node)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        node = self._nodes.get(id(tensor))
        return node if node is not None else self._constant(tensor)

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        """A tensor nobody computed: a constant of the trace, which becomes a static input."""
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
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            items = [self.to_argument(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return self.symbolic.node_for(value) if isinstance(value, SYMBOLIC) else value

    def line(self) -> str:
        return user_line(self.meta.get("stack_trace"))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUERIES:
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self._lift(args[0])
        if not isinstance(func, torch._ops.OpOverload):
            raise UnsupportedGraph(f"the higher-order operator {func} is not supported", self.line())
        if (
            func is aten.as_strided.default
            and (len(args) > 3 or kwargs)
            and storage_key(args[0]) in self.input_storages
        ):
            raise UnsupportedGraph("as_strided reads an input from an absolute place in its storage", self.line())
        rule = self.decompositions.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func is aten.bernoulli.p and (order := _memory_order(args[0])) is not None:
            with self:
                drawn = func(aten.permute.default(args[0], order), *args[1:], **kwargs)
                return aten.permute.default(drawn, [order.index(d) for d in range(len(order))])
        if func is aten._efficientzerotensor.default:
            func = aten.zeros.default  # the same values in memory, which kernels read
        composite = decompose_composite(func)
        if composite is not None:
            with self:
                return composite(*args, **kwargs)
        if func is aten.native_batch_norm.default and args[5] and args[3] is not None:
            return self._training_batch_norm(*args)
        if func._schema.is_mutable:
            raise UnsupportedGraph(f"{func} changes its arguments below functionalisation", self.line())
        return self._record(func, args, kwargs)

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        node_args = tuple([self.to_argument(a) for a in args])
        node_kwargs = {name: self.to_argument(value) for name, value in kwargs.items()}
        adapter = adapter_of(self.mode)
        if adapter is not None and not has_elements(adapter, func, args, kwargs):
            raise UnsupportedGraph(f"{func} has nothing to reduce", self.line())
        compute: Any = FAKE_AS_EAGER.get(func, func)
        result = run_for_metadata(adapter, compute, args, kwargs)
        result = like_argument(func, args, kwargs, result)
        self._require_held(func, args, kwargs, result)
        node = self.recorded.graph.call_function(func, node_args, node_kwargs)
        node.meta.update(self.meta)
        node.meta["val"] = result
        if may_raise(func, args, result):
            node.meta["may_raise"] = True
        if isinstance(result, torch.Tensor):
            if (
                id(result) in self._nodes
            ):  # an operator that answered with its argument: the name must stay the argument's
                node.graph.erase_node(node)
            else:
                self._bind_result(node, result)
                if adapter is not None:
                    self._offsets |= explain_offset(adapter, func, args, result)
        elif isinstance(result, (list, tuple)):
            self._bind_items(node, result)
        elif isinstance(result, SYMBOLIC):
            self.symbolic.bind(result, node)
        return result

    def _require_held(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Eager raises for a number that the dtype of a tensor cannot hold; kernels would round it to infinity, or wrap it."""
        if self.function in ROUNDING and result.dim() == 0:
            return
        for value, dtype in held_numbers(func, args, kwargs, result):
            condition = held_condition(expression_of(value), dtype)
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
                item_node = self.recorded.graph.call_function(operator.getitem, (node, position))
                item_node.meta.update(self.meta)
                item_node.meta["val"] = item
                self._bind_result(item_node, item)

    def settle(self, expected: Any, result: Any) -> None:
        """After a node of the traced graph: its new symbols are those of the tracer's run (`expected`), and what operators have needed to
        know of values that only the run can tell is asserted, unless the tracer has written that assert."""
        adapter = adapter_of(self.mode)
        if adapter is None:
            return
        for new, old in same_symbols(adapter, expected, result).items():
            self.symbolic.alias(new, old)
            self._renamed[new] = old
        found = adapter.env.runtime_asserts[self._n_asserts :]
        self._n_asserts += len(found)
        for needed in found:
            condition = substitute(needed.condition, self._renamed)
            if condition not in self.traced_asserts and not needed.condition.free_symbols <= self._offsets:
                self.add_assert(condition, f"{adapter.env.describe(condition)} does not hold")

    def add_assert(self, condition: Any, message: str) -> None:
        """A node that checks `condition` (an expression, or a truth value) when the graph runs."""
        if condition is True:
            return
        node = self.recorded.graph.call_function(
            aten._assert_scalar.default, (self.symbolic.node_of_expression(condition), message)
        )
        node.meta.update(self.meta)
        node.meta["val"] = None
        self.traced_asserts.add(condition)

    def _lift(self, constant: torch.Tensor) -> torch.Tensor:
        """``torch.tensor(3.0)`` inside the graph: the tensor made at trace time becomes a static input."""
        node = self._constant(constant)
        fake = fake_like(self.mode, constant)
        self.bind(fake, node)
        node.meta["val"] = fake
        return fake

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
        """``native_batch_norm`` changes the running statistics without saying so in its schema; its functional form returns them."""
        functional = aten._native_batch_norm_legit_functional.default
        with self:
            out, saved_mean, saved_invstd, new_mean, new_var = functional(
                x, weight, bias, mean, var, True, momentum, eps
            )
        self.stat_updates += [(mean, new_mean), (var, new_var)]
        return out, saved_mean, saved_invstd


def _memory_order(x: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense tensor in the order of its memory, None where that is the row-major order or not known.

    `x.bernoulli_(p)`, and so dropout, draws in the order of memory (aten/src/ATen/native/cpu/DistributionTemplates.h), the functional
    `bernoulli.p` in row-major order: its result is always contiguous.
    """
    if not all(type(n) is int for n in (*x.shape, *x.stride())) or x.is_contiguous():
        return None
    order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
    expected = 1
    for d in reversed(order):
        if x.shape[d] != 1 and x.stride(d) != expected:
            return None
        expected *= x.shape[d]
    return order


@contextmanager
def functionalisation() -> Iterator[None]:
    """The C++ functionalisation layer, with views replayed as views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def wrap(fake: torch.Tensor) -> torch.Tensor:
    return torch._to_functional_tensor(fake)


def unwrap(wrapper: torch.Tensor) -> torch.Tensor:
    """The current value of a functional tensor, with pending writes through other views applied."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


def _flush_stat_updates(recorder: AtenRecorder, wrappers: Iterable[torch.Tensor]) -> None:
    """Carry running statistics computed below functionalisation up to the functional tensors that hold them."""
    holders = {id(torch._from_functional_tensor(w)): w for w in wrappers}
    for old, new in recorder.stat_updates:
        holder = holders.get(id(old))
        if holder is None:
            raise UnsupportedGraph("batch norm updates statistics that are not an input of the graph", recorder.line())
        torch._functionalize_replace(holder, new)
        torch._functionalize_commit_update(holder)
        torch._sync(holder)
    recorder.stat_updates.clear()


def why_not_refusal(error: BaseException) -> str | None:
    """Why an exception is a bug of ours; None if torch raised it itself: for an operator that its functionalisation or its fake
    kernels do not know, or a call that always raises. Told by the innermost frame, which is torch's, or a function of ours that
    does nothing but call torch."""
    if not isinstance(error, (RuntimeError, IndexError, ValueError, OverflowError)) or isinstance(
        error, RecursionError
    ):
        return f"{type(error).__name__} is nothing that torch refuses a call with"
    frame = None
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
    if frame is None or not frame.f_globals.get("__name__", "").startswith("treadle_"):
        return None
    calls = (_run_node, run_for_metadata, *FAKE_AS_EAGER.values())
    if frame.f_code in [getattr(function, "__code__", None) for function in calls]:
        return None
    return f"raised in {frame.f_code.co_name}"


def why_not_functional(gm: fx.GraphModule) -> str | None:
    """Why the graph cannot be traced functionally, judged by its nodes alone."""
    for node in gm.graph.nodes:
        if node.op == "call_method" and node.target in _UNSUPPORTED_METHODS:
            return f"Tensor.{node.target}() has no functional form"
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name in _UNDECLARED_VIEWS:
            return f"{name} gives views that it does not declare"
        if node.op == "call_module":
            return f"call_module nodes ({node.target}) are not part of the contract"
    return None


Layouts = dict[fx.Node, tuple[tuple[Any, ...], tuple[Any, ...]]]


@dataclass
class FunctionalRun:
    """What came out of interpreting a graph on functional tensors: its outputs, whether anything was changed in place, and the
    sizes and strides of every node's result at the time it was made."""

    outputs: list[Any]
    mutated: bool
    layouts: Layouts


def run_functional(
    gm: fx.GraphModule, arguments: Sequence[Any], attributes: Mapping[str, Any], recorder: AtenRecorder
) -> FunctionalRun:
    """Interpret `gm` on functional tensors, telling `recorder` which node is being run. Placeholders take `arguments` in order."""
    holders = [value for value in (*arguments, *attributes.values()) if isinstance(value, torch.Tensor)]
    layouts: Layouts = {}
    mutated = False
    recorder.traced_asserts = {
        n.args[0].meta["example_value"].node.value for n in filter(is_assert, gm.graph.nodes) if _is_open(n)
    }  # type: ignore[union-attr]

    def run_node(node: fx.Node, args: Any, kwargs: Any) -> Any:
        nonlocal mutated
        recorder.meta = {"stack_trace": node.meta["stack_trace"]} if node.meta.get("stack_trace") else {}
        recorder.function = node.target
        if is_assert(node):
            recorder.add_assert(getattr(getattr(args[0], "node", None), "value", args[0]), args[1])
            return None
        result = _run_node(node, args, kwargs, recorder.mode)
        recorder.settle(node.meta.get("example_value"), result)
        result = _canonical(node, result)
        if recorder.stat_updates:
            _flush_stat_updates(recorder, holders)
            mutated = True
        if isinstance(result, torch.Tensor):
            layouts[node] = tuple(result.size()), tuple(result.stride())
            mutated = mutated or _is_changed(result)
        return result

    outputs = _interpret(gm, arguments, attributes, run_node)
    mutated = mutated or any(_is_changed(tensor) for tensor in holders)
    return FunctionalRun(outputs, mutated, layouts)


def _is_open(node: fx.Node) -> bool:
    condition = node.args[0]
    return isinstance(condition, fx.Node) and isinstance(condition.meta.get("example_value"), torch.SymBool)


def _canonical(node: fx.Node, result: Any) -> Any:
    """A float read from a tensor as the tracer knows it: nothing says to the environment that two float symbols are one number."""
    expected = node.meta.get("example_value")
    return expected if isinstance(result, torch.SymFloat) and isinstance(expected, torch.SymFloat) else result


def _is_changed(tensor: torch.Tensor) -> bool:
    return torch._is_functional_tensor(tensor) and torch._functionalize_mutation_counter(tensor) > 0


def run_plain(
    gm: fx.GraphModule, arguments: Sequence[Any], attributes: Mapping[str, Any], expected: Layouts, mode: FakeTensorMode
) -> list[Any]:
    """Interpret `gm` on plain fake tensors; returns the items of its output.

    Raises `UnsupportedGraph` where a node's result has other strides than its functional twin had (`expected`): from there on the two
    programs may take different ways; and where a tensor whose elements share memory (``x.expand(..).fill_(7)``) is written to, which
    functionalisation would add up.
    """

    adapter = adapter_of(mode)

    def run_node(node: fx.Node, args: Any, kwargs: Any) -> Any:
        if is_assert(node):
            return None
        overlapping = [(t, t._version) for t in _tensors_in((args, kwargs)) if _shares_elements(t)]
        result = _run_as_eager(node, args, kwargs, mode)
        line = user_line(node.meta.get("stack_trace"))
        if adapter is not None:
            same_symbols(adapter, node.meta.get("example_value"), result)
            result = _canonical(node, result)
        if any(tensor._version != version for tensor, version in overlapping):
            raise UnsupportedGraph("a tensor whose elements share memory is written to", line)
        if isinstance(result, torch.Tensor):
            if not same_layout(expected[node], (tuple(result.size()), tuple(result.stride()))):
                raise UnsupportedGraph("an in-place operator keeps strides that its functional form does not", line)
        return result

    return _interpret(gm, arguments, attributes, run_node)


# What C++ says where a kernel reads sizes as plain ints (c10's SymIntArrayRef.h, TensorImpl.h).
_NO_SYMBOLS = ("symbolic sizes", "expected to contain only concrete integers")


def _run_as_eager(node: fx.Node, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """The node by the composite kernels of C++, whose results alias what eager's alias (Python's `dropout` copies); by Python's where
    those of C++ take no symbolic sizes (`matmul` before torch 2.13)."""
    try:
        return _run_node(node, args, kwargs, mode)
    except RuntimeError as refused:
        if mode.shape_env is None or not any(text in str(refused) for text in _NO_SYMBOLS):
            raise
    from treadle_shapes.torch import symbolic_dispatch

    with symbolic_dispatch():
        return _run_node(node, args, kwargs, mode)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors_in(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _shares_elements(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory; a size that varies may be more than 1, and is not asked (that would be a guard)."""
    sizes_and_strides = zip(tensor.size(), tensor.stride(), strict=True)
    return any(stride == 0 and (isinstance(size, torch.SymInt) or size != 1) for size, stride in sizes_and_strides)


def same_layout(mine: tuple[Any, Any], theirs: tuple[Any, Any]) -> bool:
    """Whether sizes agree, and strides wherever they matter."""
    if mine[0] != theirs[0]:
        return False
    sizes_and_strides = zip(mine[0], mine[1], theirs[1], strict=True)
    return mine[1] == theirs[1] or all(m == t for size, m, t in sizes_and_strides if size != 1)


def _interpret(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    attributes: Mapping[str, Any],
    run_node: Callable[[fx.Node, Any, Any], Any],
) -> list[Any]:
    env: dict[fx.Node, Any] = {}
    remaining = iter(arguments)
    last_use = _last_uses(gm.graph)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(remaining)
            continue
        if node.op == "get_attr":
            env[node] = attributes[str(node.target)]
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return list(args[0]) if isinstance(args[0], (list, tuple)) else [args[0]]
        env[node] = run_node(node, args, kwargs)
        for dead in last_use.get(node, ()):
            del env[dead]
    raise AssertionError("the graph has no output node")


def _run_node(node: fx.Node, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    if is_number_call(node):
        return node.meta["example_value"]
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target), node.target
    with answer_size_obliviously(mode.shape_env, node.target):  # as in the trace that made the graph
        return node.target(*args, **kwargs)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For every node, the nodes whose values nobody needs after it."""
    dead_after: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                dead_after.setdefault(node, []).append(used)
    return dead_after


def is_random(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in func.tags


def is_pure(node: fx.Node) -> bool:
    """Whether leaving the node out when nobody uses it cannot be noticed: no random draw, no effect, no unknown namespace, nothing
    raised."""
    func = node.target
    if node.meta.get("may_raise"):
        return False
    if not isinstance(func, torch._ops.OpOverload):
        return node.op == "call_function"  # operator.getitem and symbolic arithmetic
    return func.namespace in ("aten", "prims") and len(func._schema.returns) > 0 and not is_random(func)


def remove_dead_nodes(graph: fx.Graph) -> int:
    """Erase pure nodes without users, last first; returns how many."""
    erased = 0
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and is_pure(node):
            graph.erase_node(node)
            erased += 1
    return erased
