"""Transforms of `torch.func`: the real transform runs on fake tensors, and each call of its function is traced into a graph of its own.

The tensors that a transform passes to the function (batched, or followed for gradients) become stand-ins at the end of the graph. The
calls that the function makes of them are taken out of the graph again: they are the body of a `FunctionTransform`, the target of one node.
"""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.func
import torch.utils._pytree as pytree
from torch import fx
from torch._dispatch.python import enable_python_dispatcher

from treadle_shapes import ShapesError
from treadle_shapes.torch import dispatch_keys_restored
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import torch_calls
from treadle_tracer.values.base import ConcreteValue, Constant, LazyValue
from treadle_tracer.values.function_transform import Body, FunctionTransform, PullbackCall, call_transform
from treadle_tracer.values.mappings import DictValue, dict_of
from treadle_tracer.values.rules.rule import Effect, Rule
from treadle_tracer.values.rules.vmap_levels import has_replaced_helpers, trace_vmap
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.functions import FunctionValue
    from treadle_tracer.values.value import TraceContext

_MAKERS = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd")
"""Transforms that return a function of their own."""
_NO_OPTIONS = ("func", "eager_transforms")  # other free variables of these functions
_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, ShapesError)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@functools.cache
def _made_by() -> dict[CodeType, str]:
    """The name of the transform, by the code of the function that it returns."""
    return {getattr(torch.func, name)(lambda x: x).__code__: name for name in _MAKERS}


def is_transformed(function: FunctionValue) -> bool:
    """Whether the function is what `torch.func.vmap(f, ...)` and the like return."""
    return function.code in _made_by()


def call_transformed(tx: TraceContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of what a transform has returned. The transform's arguments stand in its cells."""
    free = {name: cell.load(tx) for name, cell in zip(function.code.co_freevars, function.closure, strict=True)}
    options = {name: value for name, value in free.items() if name not in _NO_OPTIONS}
    return _apply(tx, _made_by()[function.code], options, free["func"], args, kwargs)


def _is_opaque(leaf: Value) -> bool:
    """Whether vmap takes apart an object that only the trace has: by functions registered with pytree, or by replaced helpers."""
    if isinstance(leaf, (TensorValue, SymbolicValue, ConcreteValue)):
        return False
    return has_replaced_helpers() or leaf.python_type() in pytree.SUPPORTED_NODES


def _jvp(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.func.jvp(func, primals, tangents, *, strict, has_aux)`"""
    given = dict(zip(("func", "primals", "tangents"), args, strict=False)) | kwargs
    options = {name: value for name, value in kwargs.items() if name in ("strict", "has_aux")}
    return _apply(tx, "jvp", options, given["func"], [given["primals"], given["tangents"]], {})


def _vjp(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.func.vjp(func, *primals, has_aux)`"""
    return _apply(tx, "vjp", kwargs, args[0], args[1:], {})


def _linearize(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.func.linearize(func, *primals)`: `jvp` once for the output, and once for each call of the function that it returns.

    The function is traced once, and both nodes have its body.
    """
    if tx.speculation is not None or kwargs:
        raise Unsupported("function-transform", "linearize with keywords, or on a path that the program may not take")
    leaves, spec = pytree.tree_flatten(tuple(tree_of(tx, arg) for arg in args[1:]))
    zeros = [tx.run_in_graph("call_function", torch.zeros_like, [leaf], {}) for leaf in leaves]
    primals = [value_of_tree(item, lambda leaf: leaf) for item in pytree.tree_unflatten(leaves, spec)]
    tangents = [value_of_tree(item, lambda leaf: leaf) for item in pytree.tree_unflatten(zeros, spec)]
    call = _Call(tx, "jvp", {}, args[0])
    output = call.run([TupleValue(primals), TupleValue(tangents)], {}).unpack(tx)[0]
    known = [leaf.fake for leaf in leaves] + [node.meta["example_value"] for node in call.lifted]
    if torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in known):
        raise Unsupported("function-transform", "linearize, whose derivatives have no gradients of primals themselves")
    if any(map(_is_random, call.calls())):
        raise Unsupported("function-transform", "linearize of a function that draws random numbers")
    return TupleValue([output, Linearised(tx, call, TupleValue(primals), leaves, spec)])


def _is_random(node: fx.Node) -> bool:
    record = operator_record(node.target)
    return record is not None and record.is_random


def _apply(
    tx: TraceContext,
    name: str,
    options: Mapping[str, Value | None],
    function: Value | None,
    args: list[Value],
    kwargs: dict[str, Value],
) -> Value:
    if tx.speculation is not None:
        raise Unsupported("function-transform", f"{name} on a path that the program may not take")
    assert function is not None
    if name == "vmap" and any(map(_is_opaque, pytree.tree_leaves([tree_of(tx, arg) for arg in args]))):
        with _fake_run(tx, name), tx.as_transformed():
            return trace_vmap(tx, options, function, args, kwargs)
    plain = {key: _option(tx, name, value) for key, value in options.items()}
    if plain.get("randomness") == "same" and plain.get("chunk_size") is not None:
        raise Unsupported("function-transform", "vmap in chunks that draw the same random numbers")
    return _Call(tx, name, plain, function).run(args, kwargs)


def _option(tx: TraceContext, name: str, value: Value | None) -> Any:
    leaves, spec = pytree.tree_flatten(tree_of(tx, value if value is not None else Constant(None)))
    plain = [
        tx.specialise(leaf) if isinstance(leaf, SymbolicValue) else torch_calls.argument(tx, leaf)[1] for leaf in leaves
    ]
    if any(isinstance(leaf, torch.Tensor) for leaf in plain):
        raise Unsupported("function-transform", f"an option of {name} that is a tensor")
    return pytree.tree_unflatten(plain, spec)


class _Call:
    """One call of a transformed function.

    bodies: what the transform's calls of the function have been traced to. lifted: nodes outside that they read.
    """

    def __init__(self, tx: TraceContext, name: str, options: Mapping[str, Any], function: Value):
        self.tx, self.name, self.options, self.function = tx, name, options, function
        self.bodies: list[Body] = []
        self.lifted: list[fx.Node] = []
        self.failure: BaseException | None = None
        self.target: FunctionTransform | None = None
        self.result: pytree.TreeSpec | None = None

    def run(self, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Run the transform on fake tensors, and make the node."""
        tx = self.tx
        nodes, fakes, spec = _flat_arguments(tx, args, kwargs)
        fake_args, fake_kwargs = pytree.tree_unflatten(fakes, spec)
        with _fake_run(tx, self.name, self):
            found = call_transform(self.name, self.options, self.traced, fake_args, fake_kwargs)
        self.target = FunctionTransform(self.name, self.options, spec, tuple(self.bodies))
        self.result = pytree.tree_structure(found)
        return _make_node(tx, self.target, (nodes, list(self.lifted)), found)

    def run_again(self, args: list[Value]) -> Value:
        """Another node with the same bodies, for arguments of the same kinds."""
        nodes, fakes, spec = _flat_arguments(self.tx, args, {})
        assert self.target is not None and self.result is not None
        if spec != self.target.spec:
            raise Unsupported("torch-call-raises", f"{self.name} of arguments of another structure")
        with _fake_run(self.tx, self.name):
            found = self.target(fakes, [node.meta["example_value"] for node in self.lifted])
        return _make_node(self.tx, self.target, (nodes, list(self.lifted)), pytree.tree_unflatten(found, self.result))

    def calls(self) -> Iterator[fx.Node]:
        """The calls in the bodies, all levels of them."""
        pending = list(self.bodies)
        while pending:
            for node in pending.pop().graph.graph.nodes:
                yield node
                pending += getattr(node.target, "calls", ())

    def traced(self, *args: Any, **kwargs: Any) -> Any:
        """What the transform gets in place of the function."""
        try:
            return self.trace(args, kwargs)
        except BaseException as failure:
            self.failure = failure  # goes through torch's frames, which may turn it into another
            raise

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, and take its nodes out of the graph. Returns what the fake function returns."""
        tx, before = self.tx, self.tx.graph.last()
        given: list[fx.Node | None] = []
        values = [value_of_tree(item, lambda leaf: self.value_of(leaf, given)) for item in args]
        named = {name: value_of_tree(item, lambda leaf: self.value_of(leaf, given)) for name, item in kwargs.items()}
        with tx.as_transformed():
            try:
                result = self.function.call(tx, values, named)
            except Raised as raised:
                cls = raised.value.python_type().__name__
                raise Unsupported("function-transform", f"the function that {self.name} calls raises {cls}") from None
            leaves, spec = pytree.tree_flatten(tree_of(tx, result))
            pairs = [_leaf_pair(tx, leaf) for leaf in leaves]
        results = [node for node, _ in pairs if isinstance(node, fx.Node)]
        place = iter(range(len(results)))
        positions = tuple((next(place), None) if isinstance(node, fx.Node) else (None, node) for node, _ in pairs)
        why_not = tx.graph.why_not_move(before)
        if why_not is not None:
            raise Unsupported("function-transform", f"the function that {self.name} calls {why_not}")
        graph, others, removed = tx.graph.take_out(before, given, results)
        tx.symbols.forget_nodes(removed)
        tx.forget_tensors(removed)
        self.lifted += [node for node in others if node not in self.lifted]
        self.bodies.append(Body(graph, tuple(self.lifted.index(node) for node in others), spec, positions))
        return pytree.tree_unflatten([fake for _, fake in pairs], spec)

    def value_of(self, leaf: Any, given: list[fx.Node | None]) -> Value:
        """The Value of a leaf of the function's arguments. `given` gets its node, or None: the body does not read the argument."""
        tx, number = self.tx, len(given)
        given.append(None)
        if isinstance(leaf, Value):
            return leaf
        if isinstance(leaf, torch.Tensor):
            known = tx.tensor_of_fake(leaf)
            if known is not None:
                return known  # type: ignore[no-any-return]
            given[number] = node = tx.graph.stand_in(f"argument_{number}", leaf)
            return tx.new_tensor(node, leaf)  # type: ignore[no-any-return]
        return tx.number(leaf, None) if isinstance(leaf, _SYMBOLIC) else tx.from_constant(leaf)


@contextmanager
def _fake_run(tx: TraceContext, name: str, call: _Call | None = None) -> Iterator[None]:
    """Inside, PyTorch runs on fake tensors. What it raises breaks the graph; what the trace of a body raises comes out as it is."""
    python_kernels = enable_python_dispatcher() if tx.symbols.env is not None else nullcontext()
    try:
        with tx.fake_mode, python_kernels, dispatch_keys_restored():
            yield
    except Exception as error:
        if call is not None and call.failure is not None:
            raise call.failure from None
        if not isinstance(error, _REFUSALS):
            raise
        raise Unsupported("torch-call-raises", f"{name}: {type(error).__name__}: {error}") from error


def _make_node(tx: TraceContext, target: Callable[..., Any], args: tuple[Any, ...], found: Any) -> Value:
    """Make the node of a call that has given `found`, and the Value of that structure. The node gives its leaves."""
    leaves, trace = pytree.tree_leaves(found), tx.stack_trace()
    node = tx.graph.call("call_function", target, args, {}, leaves, trace)
    places = iter(range(len(leaves)))

    def value_of(leaf: Any) -> Value:
        place = next(places)
        if isinstance(leaf, Value):
            return leaf
        if not isinstance(leaf, (torch.Tensor, *_SYMBOLIC)) and not callable(leaf):
            return tx.from_constant(leaf)
        known = tx.tensor_of_fake(leaf) if isinstance(leaf, torch.Tensor) else None
        if known is not None:
            return known  # type: ignore[no-any-return]
        part = tx.graph.call("call_function", operator.getitem, (node, place), {}, leaf, trace)
        if isinstance(leaf, torch.Tensor):
            return tx.new_tensor(part, leaf)  # type: ignore[no-any-return]
        return tx.number(leaf, part) if isinstance(leaf, _SYMBOLIC) else Pullback(part, leaf)

    return value_of_tree(found, value_of)


# ---- structures


def _flat_arguments(
    tx: TraceContext, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Any], list[Any], pytree.TreeSpec]:
    """Graph arguments and fake arguments for the leaves of (args, kwargs), and the structure."""
    leaves, spec = pytree.tree_flatten((tuple(tree_of(tx, arg) for arg in args), tree_of(tx, dict_of(kwargs))))
    pairs = [_leaf_pair(tx, leaf) for leaf in leaves]
    return [node for node, _ in pairs], [fake for _, fake in pairs], spec


def tree_of(tx: TraceContext, value: Value) -> Any:
    """The containers of a value as pytree knows them, with Values as leaves."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, DictValue) and is_one_of(value.cls, (dict, OrderedDict)):
        return value.cls((key.constant(), tree_of(tx, item)) for key, item in value.items(tx))
    if isinstance(value, ListValue) and value.python_type() is list:
        return [tree_of(tx, item) for item in value.unpack(tx)]
    if isinstance(value, TupleValue) and (value.cls is tuple or pytree.is_namedtuple_class(value.cls)):
        items = [tree_of(tx, item) for item in value.unpack(tx)]
        return tuple(items) if value.cls is tuple else value.cls(*items)
    is_node = isinstance(value, TupleValue) and value.cls in pytree.SUPPORTED_NODES
    if (
        is_node and value.cls is not torch.Size
    ):  # `torch.return_types.topk`; a Size takes no Values and holds no tensors
        return value.cls([tree_of(tx, item) for item in value.unpack(tx)])
    return value


def value_of_tree(tree: Any, value_of: Callable[[Any], Value]) -> Value:
    """The Value of a structure. `value_of` is called for its leaves in their order."""
    if isinstance(tree, Value) or pytree.tree_is_leaf(tree):
        return value_of(tree)
    if isinstance(tree, dict):
        return DictValue(
            {key: (Constant(key), value_of_tree(item, value_of)) for key, item in tree.items()}, type(tree)
        )
    if isinstance(tree, (tuple, list)):
        items = [value_of_tree(item, value_of) for item in tree]
        return ListValue(items) if isinstance(tree, list) else TupleValue(items, type(tree))
    raise Unsupported("function-transform", f"a structure of type {type(tree).__name__}")


def _leaf_pair(tx: TraceContext, leaf: Value) -> tuple[Any, Any]:
    """Graph argument and fake argument. What no graph can pass goes through the transform as the Value that it is, None in the graph."""
    try:
        pair = torch_calls.argument(tx, leaf)
        if isinstance(pair[0], (tuple, list, dict, slice)) and fx.node.map_arg(pair[0], lambda node: None) != pair[0]:
            raise Unsupported("function-transform", f"tensors in {leaf.describe()}")
        return pair
    except Unsupported as error:
        if error.code != "graph-argument":
            raise
        return None, leaf


# ---- functions that transforms return


class Pullback(Value):
    """The function that `torch.func.vjp` has returned. Its calls are nodes of the graph, which it cannot leave."""

    __slots__ = ("function", "node")

    def __init__(self, node: fx.Node, function: Callable[..., Any]):
        self.source = None
        self.node = node
        self.function = function

    def python_type(self) -> type:
        return type(self.function)

    def truth(self, tx: TraceContext) -> bool:
        return True

    def describe(self) -> str:
        return "the function that vjp has returned"

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        nodes, fakes, spec = _flat_arguments(tx, args, kwargs)
        fake_args, fake_kwargs = pytree.tree_unflatten(fakes, spec)
        with _fake_run(tx, "vjp_fn"):
            found = self.function(*fake_args, **fake_kwargs)
        return _make_node(tx, PullbackCall(spec), (self.node, nodes), found)


class Linearised(Value):
    """The second function that `torch.func.linearize` has returned: derivatives at the primals in the direction of its arguments.

    versions: of the tensors that were there. It cannot be called in the graph after one of them has been changed in place.
    """

    __slots__ = ("leaves", "linearised", "primals", "spec", "versions")

    def __init__(
        self, tx: TraceContext, linearised: _Call, primals: TupleValue, leaves: list[Any], spec: pytree.TreeSpec
    ):
        self.source = None
        self.linearised = linearised
        self.primals = primals
        self.leaves = leaves
        self.spec = spec
        self.versions = [(value, value.fake._version) for value in tx.known_tensors() if not value.fake.is_inference()]

    def python_type(self) -> type:
        return FunctionType

    def truth(self, tx: TraceContext) -> bool:
        return True

    def describe(self) -> str:
        return "the function that linearize has returned"

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or any(value.fake._version != version for value, version in self.versions):
            raise Unsupported("function-transform", f"{self.describe()}, after a tensor has been changed in place")
        tangents, spec = pytree.tree_flatten(tuple(tree_of(tx, arg) for arg in args))
        if spec != self.spec or any(map(self.is_other, self.leaves, tangents)):
            raise Unsupported("torch-call-raises", f"{self.describe()} of tangents unlike the primals")
        return self.linearised.run_again([self.primals, TupleValue(list(args))]).unpack(tx)[1]

    @staticmethod
    def is_other(primal: Any, tangent: Any) -> bool:
        if not isinstance(tangent, TensorValue):
            return True
        a, b = primal.fake, tangent.fake
        return bool((a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device))


RULES = (
    Rule(torch.func.linearize, _linearize, Effect.GRAPH),
    Rule(torch.func.jvp, _jvp, Effect.GRAPH),
    Rule(torch.func.vjp, _vjp, Effect.GRAPH),
)
