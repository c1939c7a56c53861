"""Torch calls in the graph: run the call on fake tensors, make the node, wrap the result."""

from __future__ import annotations

import functools
import keyword
import logging
import operator
import types
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
)

from treadle_shapes import ShapesError, UnbackedError
from treadle_shapes.torch import Kind, Operator, ask_kernel, is_transforming, run_for_metadata, unwrapped
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values import floats, gradients, random_generators, tensor_numbers, unbacked
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import NONE, ConcreteValue, Constant, LazyValue
from treadle_tracer.values.call_effects import is_in_place, writes_without_functional_form
from treadle_tracer.values.caught_errors import caught_error
from treadle_tracer.values.constant_objects import MadeConstantObject
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.given_results import refuse_other_dtypes
from treadle_tracer.values.heard_warnings import Warned, raise_at_warnings
from treadle_tracer.values.hidden_draws import refuse_behind_draws
from treadle_tracer.values.known_results import known_result
from treadle_tracer.values.mappings import DictValue, DictView
from treadle_tracer.values.number_arguments import schemas_of, with_known_numbers
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.operator_calls import call_operators, takes_dispatched
from treadle_tracer.values.refused_writes import why_not_run
from treadle_tracer.values.sequences import ListValue, Sequence, SliceValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.tensor_queries import answer_of_object, refuse_unguarded
from treadle_tracer.values.tensor_subclasses import SubclassedTensor
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext

_fake_log = logging.getLogger("torch._subclasses.fake_tensor")
_TENSOR_TYPE = type(torch.DoubleTensor)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TORCH_RAISES = (
    *(RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError, KeyError),
    OverflowError,  # a number of more than 64 bits
)


class _Arguments:
    """Turns Values into pairs of graph argument and fake argument.

    keeps_numpy: fake arguments are NumPy's scalars themselves in place of Python's numbers. has_numpy: there were scalars.
    """

    def __init__(self, tx: TraceContext, keeps_numpy: bool = False):
        self.tx = tx
        self.keeps_numpy = keeps_numpy
        self.has_numpy = False

    def pair(self, value: Value) -> tuple[Any, Any]:
        if isinstance(value, TensorValue):
            return value.node(self.tx), value.fake
        if isinstance(value, MadeConstantObject):
            return value.plain, value.plain
        if isinstance(value, ConcreteValue):
            if isinstance(
                value.obj, _TENSOR_TYPE
            ):  # its name, which `x.type` takes: the class has none in the text of a graph
                return (f"{value.obj.__module__}.{value.obj.__name__}",) * 2
            if is_numpy_scalar(value.obj):
                return self.scalar(value.obj, (value.obj.item(),) * 2)
            if type(value.obj) is slice:
                return self.slice([Constant(end) for end in (value.obj.start, value.obj.stop, value.obj.step)])
            return value.obj, value.obj
        if isinstance(value, NumpyNumber):
            return self.scalar(value.obj, self.pair(value.number))
        if isinstance(value, SymbolicValue):
            return value.node(self.tx), value.sym
        if isinstance(value, LazyValue):
            return self.pair(value.force(self.tx))
        if isinstance(value, SubclassedTensor):
            return self.pair(value.plain(self.tx))
        if isinstance(value, ArrayValue):
            raise Unsupported("graph-argument", value.describe())
        if isinstance(value, Sequence):
            return self.sequence(value)
        if isinstance(value, SliceValue):
            return self.slice(value.parts)
        if isinstance(value, DictValue):
            pairs = {key.constant(): self.pair(item) for key, item in value.items(self.tx)}
            return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
        if isinstance(value, DictView):
            return self.sequence(ListValue(value.unpack(self.tx)))
        try:
            plain = value.constant()
        except NotConstant:
            raise Unsupported("graph-argument", value.describe()) from None
        return plain, plain

    def slice(self, ends: Iterable[Value]) -> tuple[Any, Any]:
        pairs = [self.pair(end) for end in ends]
        return slice(*(p[0] for p in pairs)), slice(*(p[1] for p in pairs))

    def scalar(self, scalar: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        if type(scalar).__name__ == "bool":  # kernels take it for a number, and a bool for a truth value
            raise Unsupported("graph-argument", "a truth value of NumPy")
        self.has_numpy = True
        return (pair[0], scalar) if self.keeps_numpy else pair

    def sequence(self, value: Sequence) -> tuple[Any, Any]:
        pairs = [self.pair(item) for item in value.items]
        nodes, fakes = [p[0] for p in pairs], [p[1] for p in pairs]
        if isinstance(value, ListValue):
            return nodes, fakes
        if is_one_of(value.cls, (tuple, torch.Size)):
            return tuple(nodes), tuple(fakes)
        maker: Callable[..., Any] = getattr(value.cls, "_make", value.cls)
        return maker(nodes), maker(fakes)


def argument(tx: TraceContext, value: Value) -> tuple[Any, Any]:
    """Graph argument and fake argument. Raises Unsupported for what no graph can pass."""
    return _Arguments(tx).pair(value)


def _sizes_one_by_one(args: list[Value]) -> list[Value]:
    """The arguments with a `torch.Size` spread out, which a graph would pass as a tuple."""
    found: list[Value] = []
    for arg in args:
        if not isinstance(arg, TupleValue) or arg.cls is not torch.Size:
            found.append(arg)
        elif arg.items:
            found += arg.items
        else:
            raise Unsupported("graph-argument", "an empty torch.Size")
    return found


def _is_new_leaf(result: Any) -> bool:
    """Whether a result is a tensor that autograd would give a gradient. Calls of it in the graph are recorded for arguments only."""
    return isinstance(result, torch.Tensor) and result.requires_grad and result.grad_fn is None


def run_in_graph(
    tx: TraceContext, op: str, target: Callable[..., Any] | str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a torch function (`call_function`) or a method of the first argument (`call_method`) in the graph.

    A result without tensors (a size, a flag) is a constant and leaves no node.
    """
    if tx.modes.ask:
        tx.modes.refuse(_name(target))
    if tx.dispatched and takes_dispatched(tx, (*args, *kwargs.values())):
        return call_operators(tx, op, target, args, kwargs)
    refuse_behind_draws(tx, target)
    known = operator_record(target)
    _refuse_operator(tx, target, known, args)
    found = known_result(tx, target, args, kwargs)
    if found is not None:
        return found
    if "requires_grad" in kwargs and torch.is_grad_enabled() and _name(target) in _FACTORIES:
        return _new_leaf(tx, op, target, args, dict(kwargs))
    generator = random_generators.generator_of(tx, kwargs) if "generator" in kwargs else None
    if generator is not None:
        convert = _Arguments(tx).pair
        others = {name: convert(value)[1] for name, value in kwargs.items() if name != "generator"}
        fakes = [convert(arg)[1] for arg in args], others
        return random_generators.draw(tx, op, target, generator, args, kwargs, fakes)
    if any(map(keyword.iskeyword, kwargs)):  # the text of a graph cannot pass `from=...`
        raise Unsupported("graph-argument", f"the keyword argument of {_name(target)} called {', '.join(kwargs)}")
    return _call_in_graph(tx, op, target, known, args, kwargs)


def _call_in_graph(
    tx: TraceContext,
    op: str,
    target: Callable[..., Any] | str,
    known: Operator | None,
    args: list[Value],
    kwargs: dict[str, Value],
) -> Value:
    """`run_in_graph` of a call without a result that is known, a new leaf or a generator."""
    # These make a tensor of a `torch.Size`, and a tensor with the elements of any other sequence.
    if target is torch.Tensor or (type(target) is str and target == "new"):
        args = _sizes_one_by_one(args)
    args, kwargs = with_known_numbers(tx, _name(target), args, kwargs)
    kwargs = {name: _number_argument(tx, target, name, value) for name, value in kwargs.items()}
    arguments = _Arguments(tx)
    pairs = [arguments.pair(arg) for arg in args]
    named = {name: arguments.pair(arg) for name, arg in kwargs.items()}
    if named.get("generator") == (None, None):  # the default one; overloads with a generator take no symbolic sizes
        del named["generator"]
    caught = None
    try:
        pairs, named, result = _run_or_fix_floats(tx, op, target, pairs, named)
    except Warned:
        if type(target) is not types.FunctionType:
            raise Unsupported("output", f"{_name(target)}, which warns") from None
        return tx.inline(FunctionValue.outside(tx, target, ConstSource(target)), args, kwargs)
    except Unsupported as refusal:
        if arguments.has_numpy:  # with NumPy's scalars the call may work
            raise Unsupported("graph-argument", f"a scalar of NumPy in {_name(target)}") from None
        caught = caught_error(tx, refusal, op, target, *_fakes(pairs, named))
        if caught is None:
            raise
    if caught is not None:
        tx.raise_real(caught)
    if arguments.has_numpy and not (known is not None and known.writes):
        _refuse_other_result_with_scalars(tx, op, target, args, kwargs, result)
    if "requires_grad" in kwargs and torch.is_grad_enabled() and _is_new_leaf(result):
        raise Unsupported("new-parameter", f"{_name(target)}(..., requires_grad=True)")
    if known is not None and known.reads_layout:
        for _, fake in pairs:
            if isinstance(fake, torch.Tensor):
                tx.symbols.exclude_ones(fake)
    unbacked_symbols = tx.symbols.unbacked
    if unbacked_symbols.allowed:
        unbacked_symbols.write_asserts(tx)
    if result is not None and not _has_tensors(result) and not _fakes_tell(tx, target):
        refuse_unguarded(target, args, kwargs)
    value = _result_value(tx, op, target, pairs, named, result)
    if tx.overrides_off:
        value = _of_argument(value, (*args, *kwargs.values()))
    if unbacked_symbols.allowed:
        unbacked_symbols.close_call(tx, value)
    return value


def _refuse_operator(tx: TraceContext, target: Any, known: Operator | None, args: list[Value]) -> None:
    """Raise Unsupported for an operator that no graph computes as eager does, in this state of PyTorch or for this argument."""
    name = _name(target)
    if name == "detach_" and isinstance(args[0], TensorValue) and answer_of_object(tx, args[0], "_is_view"):
        raise Unsupported("torch-call-raises", f"detach_ of {args[0].describe()}, which is a view")
    if target is torch.Tensor or (known is not None and known.is_uninitialised):
        _rely_on_uninitialised(tx, name)
    if known is not None and known.casts_inside and torch._C._is_any_autocast_enabled():
        raise Unsupported("casts-inside", name)
    if known is None and not tx.symbols.wants_one_graph and writes_without_functional_form(target):
        raise Unsupported("writing-operator", name)


def _fakes_tell(tx: TraceContext, target: Any) -> bool:
    """Whether fake tensors answer a question about the object as real ones do: no outside tensor was made in inference mode."""
    return _name(target) == "is_inference" and not (tx.began_in_inference_mode or tx.symbols.inference_storages)


def _of_argument(value: Value, args: Iterable[Value]) -> Value:
    """The result, as the argument that it is."""
    found = (arg for arg in args if isinstance(arg, SubclassedTensor) and arg.tensor is value)
    return next(found, value)


_FACTORIES = frozenset(
    "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like rand rand_like randn randn_like tensor arange linspace "
    "logspace eye normal new_empty new_zeros new_ones new_full new_tensor".split()
)


def _new_leaf(tx: TraceContext, op: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A new tensor that requires gradients or not."""
    wanted = kwargs.pop("requires_grad")
    made = run_in_graph(tx, op, target, args, kwargs)
    if isinstance(made, TensorValue):
        gradients.set_requires_grad(tx, made, wanted)
    return made


def _run_or_fix_floats(
    tx: TraceContext, op: str, target: Any, pairs: list[Any], named: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], Any]:
    """The arguments and the result of the call on fake tensors; with dynamic floats fixed where it does not take them."""

    def run() -> Any:
        args, kwargs = _fakes(pairs, named)
        sizes = _sizes_that_stay(tx, target, args, kwargs)
        if kwargs.get("out") is not None:
            refuse_other_dtypes(target, kwargs, lambda named: run_fake(tx, op, target, args, named))
        result = run_fake(tx, op, target, args, kwargs)
        for fake, given in sizes:
            if tuple(fake.shape) != given[0]:
                with tx.fake_mode, torch.no_grad():
                    fake.as_strided_(*given)
                raise Unsupported("resized-tensor", _name(target))
        return result

    try:
        return pairs, named, run()
    except Unsupported as failed:
        pairs, named = floats.retry_with_constants(failed, pairs, named)
        return pairs, named, run()


def _sizes_that_stay(
    tx: TraceContext, target: Any, args: list[Any], kwargs: dict[str, Any]
) -> list[tuple[torch.Tensor, tuple[Any, Any]]]:
    """The tensors that the call may resize and must not, with sizes and strides.

    A tensor from outside is resized by `out=` and `resize_as_`; the graph's inputs are described as they were at the start. Python kernels
    resize a tensor that is too small for the result of a pointwise operator in place, for which eager raises. What has no functional form
    is left to Python as a whole.
    """
    record = operator_record(target)
    writes = record is not None and record.writes and not record.why_not_functional and record.kind is not Kind.VIEW
    if kwargs.get("out") is None and not writes:
        return []
    fakes = [fake for fake in (*args[:1], kwargs.get("out")) if isinstance(fake, torch.Tensor)]
    in_place = args[0] if args and record is not None and record.kind is Kind.POINTWISE else None
    values = [(fake, tx.tensor_of_fake(fake)) for fake in fakes if fake.layout is torch.strided]
    return [
        (fake, (tuple(fake.shape), fake.stride()))
        for fake, value in values
        if fake is in_place or (value is not None and value.source is not None)
    ]


def _refuse_other_result_with_scalars(
    tx: TraceContext, op: str, target: Any, args: list[Value], kwargs: dict[str, Value], result: Any
) -> None:
    """Raise Unsupported if a call with NumPy's scalars raises or has another dtype than with Python's numbers: `torch.tensor(scalar)`.

    The scalars are those of the call that is traced. What the operator decides on them it has decided on their symbols before.
    """
    convert = _Arguments(tx, keeps_numpy=True).pair
    fakes, named = [convert(arg)[1] for arg in args], {name: convert(arg)[1] for name, arg in kwargs.items()}
    env = tx.symbols.env  # None where no symbol has been made
    with nullcontext() if env is None else env.suppress_guards():
        other = _run_fake(tx, op, target, fakes, named)
    dtypes = [getattr(found, "dtype", type(found)) for found in (result, other)]
    if dtypes[0] != dtypes[1]:
        raise Unsupported("graph-argument", f"a scalar of NumPy in {_name(target)}, which looks at its dtype")


def _rely_on_uninitialised(tx: TraceContext, name: str) -> None:
    """Rely on PyTorch leaving elements that nobody has written as they are. Under deterministic algorithms, which are guarded, it may fill
    them with NaN; a compiled graph does not."""
    if not torch.are_deterministic_algorithms_enabled():
        return
    if torch.utils.deterministic.fill_uninitialized_memory:
        raise Unsupported("deterministic-fill", name)
    tx.guards.add(
        ConstSource(None), "call", _fills_nothing, "torch.utils.deterministic.fill_uninitialized_memory is False"
    )


def _fills_nothing(_: Any) -> bool:
    return not torch._C._get_deterministic_fill_uninitialized_memory()


def _number_argument(tx: TraceContext, target: Any, name: str, value: Value) -> Value:
    """The argument, as a number if it is a scalar tensor of which the kernels of `target` read the number (`alpha=` of `add`)."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if not isinstance(value, TensorValue) or value.fake.dim() or value.fake.requires_grad:
        return value
    return tensor_numbers.read_number(tx, value) if _takes_number(_name(target), name) else value


@functools.cache
def _takes_number(operation: str, argument: str) -> bool:
    """Whether the argument of this name is a number in every overload of ATen's operator."""
    kinds = {str(a.type) for schema in schemas_of(operation) for a in schema.arguments if a.name == argument}
    return kinds == {"number"}


def _result_value(
    tx: TraceContext, op: str, target: Any, pairs: list[Any], named: dict[str, Any], result: Any
) -> Value:
    if not _has_tensors(result):
        if result is None:
            _make_node(tx, op, target, pairs, named, None)
            return NONE
        return constant_result(tx, op, target, pairs, named, result)
    known = tx.tensor_of_fake(result) if isinstance(result, torch.Tensor) else None
    if known is not None and _may_give_its_argument(target, pairs, named):
        return known
    node = _make_node(tx, op, target, pairs, named, result)
    if known is not None:
        tx.note_mutation(known)
        return known
    return wrap_result(tx, result, node)


def _make_node(tx: TraceContext, op: str, target: Any, pairs: list[Any], named: dict[str, Any], result: Any) -> fx.Node:
    if tx.has_own_filters and not _warns_of_nothing(target, pairs, named):
        raise Unsupported("output", f"{_name(target)}, which may warn, under filters that the graph does not see")
    args = tuple(pair[0] for pair in pairs)
    kwargs = {name: pair[0] for name, pair in named.items()}
    node = tx.graph.call(op, target, args, kwargs, result, tx.stack_trace())
    why_not = why_not_run(tx, node)
    if why_not is not None:
        raise Unsupported("torch-call-raises", f"{_name(target)}: {why_not}")
    return node


_QUIET = (Kind.POINTWISE, Kind.MATMUL, Kind.COPY)


def _warns_of_nothing(target: Any, pairs: list[Any], named: dict[str, Any]) -> bool:
    """Whether the kernels of an operator certainly do not warn: of masks of bytes, lost imaginary parts, writes to expanded tensors."""
    known = operator_record(target)
    fakes, kwargs = _fakes(pairs, named)
    tensors = [fake for fake in (*fakes, *kwargs.values()) if isinstance(fake, torch.Tensor)]
    is_plain = "out" not in kwargs and not any(t.dtype is torch.uint8 or t.is_complex() for t in tensors)
    return is_plain and known is not None and known.kind in _QUIET and not known.writes


def _may_give_its_argument(target: Any, pairs: list[Any], named: dict[str, Any]) -> bool:
    """Whether the call writes nothing and gives its argument when there is nothing to do.

    Every other call that gives a tensor known before has written into it.
    """
    known = operator_record(target)
    if known is None or not known.may_return_argument:
        return False
    return not is_in_place(target, *_fakes(pairs, named))


def _fakes(pairs: list[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The fake arguments of pairs of graph argument and fake argument."""
    return [pair[1] for pair in pairs], {name: pair[1] for name, pair in named.items()}


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def run_fake(tx: TraceContext, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Make the call on fake tensors. Where that raises, the real call raises too, or nobody knows: the graph breaks."""
    answer = None if is_transforming() else ask_kernel(target, args, kwargs)
    if answer is not None and answer.refusal is not None:
        raise Unsupported("torch-call-raises", f"{_name(target)}: {answer.refusal}")
    if tx.symbols.unbacked.allowed or is_transforming() or not _is_cacheable(target):
        result = _run_fake(tx, op, target, args, kwargs)
    else:
        result = tx.fake_calls.call(target, lambda: _run_fake(tx, op, target, args, kwargs), args, kwargs)
    if answer is not None and answer.dtype is not None and isinstance(result, torch.Tensor):
        if result.dtype != answer.dtype:
            raise Unsupported("no-fake-kernel", f"{_name(target)}: its dtype would be {result.dtype}")
    return result


def _is_cacheable(target: Any) -> bool:
    """Whether the fake result follows from the metadata of the arguments, as it does for what PyTorch itself defines."""
    # `grad` reads, and frees, the history of its arguments.
    return _is_of_torch(target) and target is not torch.autograd.grad


def _is_of_torch(target: Any) -> bool:
    """Whether PyTorch itself defines the function, or the method of this name."""
    if isinstance(target, str):
        return True
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).startswith("aten.")
    if isinstance(target, types.MethodDescriptorType):
        return target.__objclass__ is torch._C.TensorBase
    return isinstance(target, _FUNCTIONS) and str(target.__module__).split(".")[0] in ("torch", "_operator", "builtins")


def _run_fake(tx: TraceContext, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = args
    was_disabled = _fake_log.disabled
    _fake_log.disabled = True  # the traced program handles a failing kernel; no message is wanted
    # With symbolic sizes PyTorch's Python kernels are preferred, because some kernels in C++ read sizes as ints and so specialise them.
    record = operator_record(target)
    in_python = tx.symbols.env is not None and not (record is not None and record.python_kernel_copies)
    python_kernels = enable_python_dispatcher() if in_python else nullcontext()
    heard = raise_at_warnings() if _is_of_torch(target) else nullcontext()
    with tx.fake_mode, python_kernels, tx.symbols.unbacked.naming(tx), heard:
        try:
            function: Any = target
            if record is not None and record.fake_function is not None:
                function = record.fake_function
            elif op == "call_method":
                function, args = getattr(args[0], str(target)), args[1:]
            return run_for_metadata(tx.symbols.env, function, args, kwargs, assume=tx.symbols.assumes)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            has_size = isinstance(error, DynamicOutputShapeException)
            if tx.symbols.unbacked.allowed or not (tx.symbols.captures if has_size else tx.symbols.takes_numbers):
                raise Unsupported("data-dependent", f"{_name(target)}: {error}") from error
        except UnbackedError as error:
            raise unbacked.refusal(tx, error) from error
        except ShapesError as error:
            code = "unbacked-decision" if tx.symbols.unbacked.allowed else "torch-call-raises"
            raise Unsupported(code, f"{_name(target)}: {error}") from error
        except UnsupportedFakeTensorException as error:
            raise Unsupported("no-fake-kernel", f"{_name(target)}: {error}") from error
        except NotImplementedError as error:
            raise Unsupported("no-fake-kernel", f"{_name(target)}: {error}") from error
        except _TORCH_RAISES as error:
            raise Unsupported("torch-call-raises", f"{_name(target)}: {type(error).__name__}: {error}") from error
        finally:
            _fake_log.disabled = was_disabled
    tx.symbols.unbacked.allow(tx)
    return _run_fake(tx, op, target, given, kwargs)


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", repr(target))


def _has_tensors(result: Any) -> bool:
    if isinstance(result, (torch.Tensor, *_SYMBOLIC)):  # a symbolic number needs a node too
        return True
    if isinstance(result, (tuple, list)):
        return any(_has_tensors(item) for item in result)
    if isinstance(result, dict):
        return any(_has_tensors(item) for item in result.values())
    return False


def constant_result(
    tx: TraceContext, op: str, target: Any, pairs: list[Any], named: dict[str, Any], result: Any
) -> Value:
    if isinstance(result, torch.Size):
        return TupleValue([Constant(size) for size in result], torch.Size)
    return tx.from_constant(result)


def wrap_result(tx: TraceContext, result: Any, node: fx.Node) -> Value:
    """The Value of what a node gives: a tensor, a number, or nested tuples, lists and dicts of them through `getitem` nodes."""
    if isinstance(result, torch.Tensor):
        if not isinstance(unwrapped(result), FakeTensor):
            raise Unsupported("graph-result", f"{_name(node.target)} gave a {type(result).__name__}")
        known = tx.tensor_of_fake(result)
        return known if known is not None else tx.new_tensor(node, result)
    if isinstance(result, _SYMBOLIC):
        return tx.number(result, node)
    if isinstance(result, (tuple, list)):
        items = [_wrap_item(tx, item, node, position) for position, item in enumerate(result)]
        return ListValue(items) if isinstance(result, list) else TupleValue(items, type(result))
    if isinstance(result, dict):
        entries: dict[Any, tuple[Value, Value]] = {
            key: (tx.from_constant(key), _wrap_item(tx, item, node, key)) for key, item in result.items()
        }
        return DictValue(entries, type(result))
    return tx.from_constant(result)


def _wrap_item(tx: TraceContext, item: Any, node: fx.Node, key: Any) -> Value:
    if not _has_tensors(item):
        return tx.from_constant(item)
    known = tx.tensor_of_fake(item) if isinstance(item, torch.Tensor) else None
    if known is not None:
        return known
    part = tx.graph.call("call_function", operator.getitem, (node, key), {}, item, node.meta["stack_trace"])
    return wrap_result(tx, item, part)
