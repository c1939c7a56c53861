"""Random number generators of the program's own: `torch.Generator` objects, outside and made inside.

    y = torch.rand(3, generator=g)     =>     y, s2 = treadle.draw_rand.generator(s1, [3]);  behind the graph: g.set_state(s2)

In the graph a generator is its state, a tensor, and what draws from it is a function of that state (`treadle_shapes.torch`,
`generator_states`). Outside generators get their states back behind the graph. Of a default generator, from which every operator
without a generator draws, calls in the graph set the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from treadle_shapes.torch import (
    GENERATOR_STATE_BYTES,
    ElementUse,
    checked_state,
    drawing,
    fills_first_argument,
    generator_state,
    is_transforming,
    operator,
    restore_default_state,
    seed_default,
    seeded_state,
    why_not_draw,
)
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import AliasSource, ConstSource
from treadle_tracer.values.aliases import guard_distinct
from treadle_tracer.values.base import NONE, Constant, LazyValue, Method
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_FIRST_SEED = torch.Generator().initial_seed()


class GeneratorObject(ObjectValue):
    """A `torch.Generator`.

    state   its present one, None while that is the state of the outside generator
    seed    what it was seeded with last, None while that is what the outside generator was seeded with
    """

    __slots__ = ("device", "seed", "state")

    def __init__(self, device: torch.device, obj: torch.Generator | None = None, source: Source | None = None):
        super().__init__(torch.Generator, obj, source)
        self.device = device
        self.state: Value | None = None
        self.seed: Value | str | None = None

    @property
    def is_default(self) -> bool:
        """Whether it is the CPU's default generator, from which all operators without a generator draw."""
        return self.obj is torch.default_generator

    # ---- its state

    def read_state(self, tx: TraceContext) -> Value:
        """The present state, a tensor of the graph."""
        if self.is_default:
            return _in_graph(tx, generator_state(), [Constant(self.device)])
        if self.state is None:
            assert self.obj is not None and self.source is not None
            with tx.contexts.while_making_fakes():
                state = _state_of(self.obj)
            self.state = tx.wrap_tensor(state, AliasSource(self.source, _state_of))
        return self.state

    def write_state(self, tx: TraceContext, state: Value, seed: Value | str | None) -> None:
        """Let the generator go on from another state. seed: what it counts as seeded with, or why that is not known."""
        _require_order(tx)
        self.seed = seed
        if self.is_default:
            _in_graph(tx, restore_default_state(), [state])
        else:
            self.state = state

    # ---- attributes and methods

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "device":
            return Constant(self.device)
        if name in _METHODS:
            return Method(self, name, getattr(torch.Generator, name))
        raise Unsupported("random-generator", f"torch.Generator.{name}")

    def call_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.get_attr(tx, name).call(tx, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = _METHODS.get(name)
        if method is None or kwargs:
            raise Unsupported("random-generator", f"torch.Generator.{name}")
        return method(self, tx, *args)

    def manual_seed(self, tx: TraceContext, seed: Value) -> Value:
        seed = _seed(tx, seed)
        self.write_state(tx, _in_graph(tx, seeded_state(), [seed, Constant(self.device)]), _as_read(seed))
        return self

    def get_state(self, tx: TraceContext) -> Value:
        return tx.tensor_method(self.read_state(tx), "clone", [], {})

    def set_state(self, tx: TraceContext, state: Value) -> Value:
        state = _as_state(state.force(tx) if isinstance(state, LazyValue) else state, self.device)
        _require_order(tx)
        checked = _in_graph(tx, checked_state(), [state, Constant(self.device)])
        self.write_state(tx, checked, "the seed of a state")
        return self

    def initial_seed(self, tx: TraceContext) -> Value:
        if isinstance(self.seed, Value):
            return self.seed
        if self.seed is not None or self.source is None or self.obj is None:
            raise Unsupported("random-generator", self.seed or "the seed of a generator")
        seed = self.obj.initial_seed()
        tx.guards.add(self.source, "call", _HasSeed(seed), f"{self.source.text}.initial_seed() is {seed}")
        return Constant(seed)

    # ---- out of the trace

    def emit_new(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_restored)
        cg.const(self.device)
        cg.value(self.state)
        cg.cb.call(2)


_METHODS: dict[str, Callable[..., Value]] = {
    "manual_seed": GeneratorObject.manual_seed,
    "get_state": GeneratorObject.get_state,
    "set_state": GeneratorObject.set_state,
    "initial_seed": GeneratorObject.initial_seed,
}


class _HasSeed(GuardCallable):
    """The generator was seeded with this number."""

    __slots__ = ()

    def __call__(self, generator: Any) -> bool:
        return bool(generator.initial_seed() == self.question)


class _IsOwn(GuardCallable):
    """A generator on this device that is none of PyTorch's default ones."""

    __slots__ = ()

    def __call__(self, generator: Any) -> bool:
        return type(generator) is torch.Generator and generator.device == self.question and not _is_default(generator)


def _is_default(generator: torch.Generator) -> bool:
    if generator.device.type == "cpu":
        return generator is torch.default_generator
    module = torch.get_device_module(generator.device)
    return any(generator is default for default in getattr(module, "default_generators", ()))


def _state_of(generator: torch.Generator) -> torch.Tensor:
    return generator.get_state()


def _restored(device: torch.device, state: torch.Tensor) -> torch.Generator:
    return torch.Generator(device).set_state(state)


def wrap_generator(tx: TraceContext, obj: torch.Generator, source: Source) -> Value:
    """The Value of an outside generator."""
    if obj is torch.default_generator:
        if not isinstance(source, ConstSource):
            tx.guards.add(source, "is", obj)
        return GeneratorObject(obj.device, obj, ConstSource(obj))
    if _is_default(obj) or obj.device.type not in GENERATOR_STATE_BYTES:
        raise Unsupported("random-generator", f"{source.text} is a generator of {obj.device}")
    tx.guards.add(
        source, "call", _IsOwn(obj.device), f"{source.text} is a generator of {obj.device}, not the default one"
    )
    return GeneratorObject(obj.device, obj, source)


def new_generator(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.Generator(device)`"""
    given = args[0] if args else kwargs.get("device", Constant("cpu"))
    if len(args) + len(kwargs) > 1 or (kwargs and "device" not in kwargs):
        raise Unsupported("random-generator", "torch.Generator of these arguments")
    device = torch.device(given.constant())
    if device.type not in GENERATOR_STATE_BYTES or (device.type != "cpu" and device.index is None):
        raise Unsupported("random-generator", f"torch.Generator({device})")
    made = GeneratorObject(device)
    made.state = _in_graph(tx, seeded_state(), [Constant(_FIRST_SEED), Constant(device)])
    made.seed = Constant(_FIRST_SEED)
    return made


def write_states(tx: TraceContext) -> None:
    """At the end of the program: give outside generators the states that it has left them in, behind the graph."""
    known = [value for _, value in tx.wrapped.values() if isinstance(value, GeneratorObject) and not value.is_default]
    for changed in known:
        if changed.state is None or _is_untouched(changed.state):
            continue
        for other in known:
            if other is not changed:
                guard_distinct(tx, changed, other)
        tx.mutations.output(torch.Generator.set_state, (changed, changed.state))


def _is_untouched(state: Value) -> bool:
    return isinstance(state, TensorValue) and isinstance(state.source, AliasSource)


# ---- drawing


def generator_of(tx: TraceContext, kwargs: dict[str, Value]) -> GeneratorObject | None:
    """The generator that a call of torch is given."""
    found = kwargs["generator"]
    found = found.force(tx) if isinstance(found, LazyValue) else found
    return found if isinstance(found, GeneratorObject) else None


def draw(
    tx: TraceContext,
    op: str,
    target: Any,
    generator: GeneratorObject,
    args: list[Value],
    kwargs: dict[str, Value],
    fakes: tuple[list[Any], dict[str, Any]],
) -> Value:
    """A call of torch that draws from `generator`. fakes: the other arguments, as fake tensors and plain objects."""
    rest = {name: value for name, value in kwargs.items() if name != "generator"}
    if generator.is_default:
        return tx.run_in_graph(op, target, args, rest)
    _require_order(tx)
    if "out" in rest or ("requires_grad" in rest and rest["requires_grad"].truth(tx)):
        raise Unsupported("random-generator", "a call with out= or requires_grad=")
    function, given, named = _captured(op, target, generator.device, *fakes)
    why_not = why_not_draw(function)
    if why_not is not None:
        raise Unsupported("random-generator", f"{function}: {why_not}")
    fills = fills_first_argument(function)
    values = [_value(tx, function, value) for value in given if not isinstance(value, torch.Generator)]
    options = {name: _value(tx, function, value) for name, value in named.items() if name != "generator"}
    state = generator.read_state(tx)
    drawn, state = _in_graph(tx, drawing(function), [state, *values], options).unpack(tx)
    if not isinstance(drawn, TensorValue) or drawn.fake.device.type != generator.device.type:
        raise Unsupported("random-generator", f"a generator of {generator.device} for numbers on another device")
    generator.write_state(tx, state, generator.seed)
    if not fills:
        return drawn
    tx.tensor_method(args[0], "copy_", [drawn], {})
    return args[0]


def _value(tx: TraceContext, function: Any, given: Any) -> Value:
    """The argument that PyTorch has given an operator."""
    if isinstance(given, (list, tuple)):
        items = [_value(tx, function, item) for item in given]
        return ListValue(items) if isinstance(given, list) else TupleValue(items)
    if not isinstance(given, torch.Tensor):
        return tx.from_constant(given)
    known = tx.tensor_of_fake(given)
    if known is None:
        raise Unsupported("random-generator", f"{function} of a tensor that the program does not know")
    if not given.requires_grad or not torch.is_grad_enabled():
        return known
    record = operator(function)
    if fills_first_argument(function) or (record is not None and record.element_use is ElementUse.IGNORED):
        return tx.tensor_method(known, "detach", [], {})
    raise Unsupported("random-generator", f"{function} of a tensor that requires gradients")


class _Captured(Exception):
    """An operator has been called with a generator."""


class _Capture(TorchDispatchMode):
    """Ends at the first operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__ in something that imports torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Captured(func, args, kwargs or {})


def _captured(op: str, target: Any, device: torch.device, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """(operator, arguments, named arguments) that a call of torch with a generator of this device comes to."""
    function = target
    if op == "call_method":
        function, args = getattr(args[0], str(target)), args[1:]
    try:
        with torch.no_grad(), _Capture():  # an exception that passes the recording of a history ends the process
            function(*args, **kwargs, generator=torch.Generator(device))
    except _Captured as captured:
        return captured.args
    except Exception as error:
        raise Unsupported("torch-call-raises", f"{target}: {error}") from error
    raise Unsupported("random-generator", f"{target}, which calls no operator")


def _in_graph(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    with tx.modes.settle():
        return tx.run_in_graph("call_function", function, args, kwargs or {})


def _require_order(tx: TraceContext) -> None:
    """Raises Unsupported where the graph does not run the code at hand once, in order, and PathEnds on a path that is only tried."""
    tx.mutations.begin_write()
    if is_transforming() or not tx.runs_forward:
        raise Unsupported("random-generator", "a generator in a backward pass or under a transform")
    if tx.graph.checkpoint is not None:
        raise Unsupported(
            "random-generator", "a generator in a checkpointed function, which draws from it again in backward"
        )


def _seed(tx: TraceContext, seed: Value) -> Value:
    """A seed, as an operator takes it."""
    seed = seed.force(tx) if isinstance(seed, LazyValue) else seed
    if isinstance(seed, SymbolicValue) and seed.python_type() is int:
        return seed
    if not seed.is_constant() or type(seed.constant()) is not int or not -(2**63) <= seed.constant() < 2**63:
        raise Unsupported("random-generator", f"{seed.describe()} as a seed")
    return seed


def _as_read(seed: Value) -> Value | str:
    """What `initial_seed` gives behind this seed."""
    if isinstance(seed, SymbolicValue):
        return "a seed that varies, which may be negative"
    return Constant(torch.Generator().manual_seed(seed.constant()).initial_seed())


def _as_state(state: Value, device: torch.device) -> TensorValue:
    is_plain = isinstance(state, TensorValue) and state.fake.dtype is torch.uint8 and state.fake.device.type == "cpu"
    if not is_plain or tuple(state.fake.shape) != (GENERATOR_STATE_BYTES[device.type],):
        raise Unsupported("random-generator", f"{state.describe()} as the state of a generator")
    return state


# ---- the default generator


def default_generator(tx: TraceContext) -> GeneratorObject:
    """The Value of the CPU's default generator."""
    found = tx.wrap(torch.default_generator, ConstSource(torch.default_generator))
    assert isinstance(found, GeneratorObject)
    return found


def manual_seed(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.manual_seed(seed)`, which seeds the default generators of all devices."""
    given = args[0] if args else kwargs["seed"]
    seed = _seed(tx, given)
    _require_order(tx)
    if torch.cuda.is_available():  # whose generators a second run of the graph under autograd would seed again
        raise Unsupported("global-state", "torch.manual_seed, which seeds all devices")
    _in_graph(tx, seed_default(), [seed])
    generator = default_generator(tx)
    generator.seed = _as_read(seed)
    return generator


def initial_seed(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.initial_seed()`"""
    return default_generator(tx).initial_seed(tx)


def get_rng_state(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.get_rng_state()`"""
    _require_order(tx)
    return default_generator(tx).read_state(tx)


def set_rng_state(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.set_rng_state(new_state)`"""
    default_generator(tx).set_state(tx, args[0] if args else kwargs["new_state"])
    return NONE


__all__ = ["GeneratorObject", "draw", "generator_of", "new_generator", "wrap_generator", "write_states"]
