"""Random numbers of Python's `random`, drawn from generators whose state the trace knows, or foresees.

    random.seed(3)
    scale = random.random()                  # a constant: the state is known
    if random.random() < 0.1:                # of a generator in any state: a guard looks at what it will give
        x = x + random.gauss(0, scale)       # and so does the input of the graph

A draw behind an unknown state is a number that each call foresees: a twin with the state of the generator makes the draws that the program
makes up to there. The generator itself moves on after the graph, by the same calls, in order with the program's output.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.class_facts import own_dict
from treadle_tracer.computed_source import ComputedSource
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource, ConstSource
from treadle_tracer.values.arrays import ArrayValue, in_graph, tensor_of_array, why_not_input
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.hidden_draws import refuse_behind_operators
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.plain_arguments import Plain, plain_arguments
from treadle_tracer.values.random_states import copy_state
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_BASE: Any = random.Random.__base__
_TWINS = threading.local()
_STEPS = "steps"  # the name under which the history of a generator is recorded that the trace has made
_MOST_FORESEEN = 16  # draws of one generator that are foreseen: each makes those before it once more
_MOST_CHOICES = 2  # between paths, by numbers that are foreseen: each choice doubles the number of graphs
_MOST_KNOWN = 2000
_NUMBERS = (int, float)
_SETTERS = ("seed", "setstate")


class Family(NamedTuple):
    """A class of generators.

    twin   (generator) -> another one in the same state, to be used at once; raises TypeError for what is no such generator
    blank  () -> a generator in any state
    cost   of foreseeing one number, in calls of operators (`output.profitability`)
    """

    twin: Callable[[Any], Any]
    blank: Callable[[], Any]
    cost: float


class Step:
    """Run-time helper: a call that moves a generator on. Of one that sets the state, the state is known from there on.

    twin: a generator as it is after the step, where the state is known; the next step takes it over.
    """

    __name__ = "random"
    moves_generator = True

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.sets_state = function.__name__ in _SETTERS
        self.twin: Any = None

    def __call__(self, generator: Any) -> Any:
        return self.function(generator, *self.args, **self.kwargs)


Steps = tuple[Step, ...]


class Restored:
    """Run-time helper: `generator.setstate(state)`, the state being that after the steps `before`."""

    __name__ = "random"
    moves_generator = True

    def __init__(self, before: Steps):
        self.before = before

    def __call__(self, generator: Any, state: Any) -> None:
        generator.setstate(state)


class _Foreseen:
    """What the last of some steps will give. Raises TypeError for what is no plain generator."""

    __name__ = "foreseen"

    def __init__(self, family: Family, steps: Steps):
        self.family, self.steps = family, steps
        self.cost = family.cost

    def __call__(self, generator: Any) -> Any:
        twin = self.family.twin(generator)
        for step in self.steps[:-1]:
            step(twin)
        return self.steps[-1](twin)


class _Item:
    """The number of a scalar of NumPy that is foreseen."""

    __name__ = "foreseen"

    def __init__(self, foreseen: _Foreseen):
        self.foreseen = foreseen
        self.cost = foreseen.cost

    def __call__(self, generator: Any) -> Any:
        return self.foreseen(generator).item()


class _Element:
    """One of several numbers that are foreseen."""

    __name__ = "foreseen"

    def __init__(self, foreseen: _Foreseen, position: int):
        self.foreseen, self.position = foreseen, position
        self.cost = foreseen.cost

    def __call__(self, generator: Any) -> Any:
        return self.foreseen(generator)[self.position]


def _twin_of(generator: Any) -> random.Random:
    """A generator in the same state: one for each thread, to be used at once."""
    if type(generator) is not random.Random or own_dict(generator).keys() != {"gauss_next"}:  # type: ignore[union-attr]
        raise TypeError
    twin = getattr(_TWINS, "generator", None)
    if twin is None:
        twin = _TWINS.generator = random.Random()
    copy_state(twin, generator)
    twin.gauss_next = generator.gauss_next
    return twin


PYTHON = Family(_twin_of, random.Random, 1.0)


class RandomGenerator(ObjectValue):
    """A generator: an outside one (`obj`), or one that the trace has made (by `start`, before its steps)."""

    __slots__ = ("family", "start")

    def __init__(
        self,
        cls: type,
        obj: Any = None,
        source: Source | None = None,
        family: Family = PYTHON,
        start: Callable[[], Any] | None = None,
    ):
        super().__init__(cls, obj, source)
        self.family = family
        self.start = start or family.blank

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function = vars(_BASE).get(name)
        if self.family is not PYTHON or name not in ("random", "getrandbits") or kwargs:
            return super().builtin_method(tx, name, args, kwargs)
        return draw(tx, self, function, args, {})

    def steps(self, tx: TraceContext) -> Steps:
        """What the program has done to the generator, from the last time on that its state was set."""
        if self.obj is None:
            stored = tx.mutations.load_attr(self, _STEPS)
            return () if stored is None else stored.obj
        found: Steps = ()
        for function, values in tx.mutations.outputs:
            if values[:1] == (self,):
                if isinstance(function, Restored):
                    found = function.before
                else:
                    found = (function,) if function.sets_state else (*found, function)
        return found

    def is_known(self, steps: Steps) -> bool:
        """Whether the state after the steps is known."""
        return self.obj is None or (bool(steps) and steps[0].sets_state)

    def note(self, tx: TraceContext, function: Step | Restored, *values: Value) -> None:
        """Have `function(generator, *values)` called where the program calls it."""
        if self.obj is not None:
            if not tx.symbols.defers:
                raise Unsupported("random-number", self.describe())
            refuse_behind_operators(tx, self.describe())
            tx.mutations.output(function, (self, *values))
            return
        before = () if isinstance(function, Restored) or function.sets_state else self.steps(tx)
        steps = function.before if isinstance(function, Restored) else (*before, function)
        tx.mutations.store_attr(self, _STEPS, Constant(steps))

    def reconstruct(self, cg: Any) -> None:
        if self.obj is not None:
            super().reconstruct(cg)
        else:
            stored = cg.mutations.load_attr(self, _STEPS)
            cg.call_const(_Made(self.start, () if stored is None else stored.obj))


class _Made:
    """Run-time helper: a new generator, as it is after some steps."""

    __name__ = "Random"

    def __init__(self, start: Callable[[], Any], steps: Steps):
        self.start, self.steps = start, steps

    def __call__(self) -> Any:
        made = self.start()
        for step in self.steps:
            step(made)
        return made


class RandomState(Value):
    """`generator.getstate()` of a generator in an unknown state, after these steps."""

    __slots__ = ("generator", "steps")

    def __init__(self, generator: RandomGenerator, steps: Steps):
        self.source = None
        self.generator = generator
        self.steps = steps

    def python_type(self) -> type:
        return tuple

    def truth(self, tx: TraceContext) -> bool:
        return True

    def hash_key(self, tx: TraceContext) -> Any:
        raise Unsupported("random-number", self.describe())

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        raise Unsupported("random-number", self.describe())

    def iterate(self, tx: TraceContext) -> Value:
        raise Unsupported("random-number", self.describe())

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        raise Unsupported("random-number", self.describe())

    def describe(self) -> str:
        return f"the state of {self.generator.describe()}"

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(_StateAfter(self.steps), self.generator)


class _StateAfter:
    """Run-time helper: the state of a generator after some steps, which it has not made yet."""

    __name__ = "getstate"

    def __init__(self, steps: Steps):
        self.steps = steps

    def __call__(self, generator: Any) -> Any:
        twin = _twin_of(generator)
        for step in self.steps:
            step(twin)
        return twin.getstate()


# ---- what programs do with generators


def draw(
    tx: TraceContext,
    generator: RandomGenerator,
    function: Callable[..., Any],
    args: list[Value],
    kwargs: dict[str, Value],
) -> Value:
    """`function(generator, ...)`, which gives a number that follows from the state and the arguments."""
    step = Step(function, *known_arguments(function, args, kwargs))
    steps = generator.steps(tx)
    if generator.is_known(steps):
        return tx.from_constant(_taken(tx, generator, steps, step))
    foreseen, result, text = _foresee(tx, generator, steps, step)
    assert generator.source is not None
    return _wrapped(tx, result, foreseen, generator.source, text)


def draw_positions(tx: TraceContext, generator: RandomGenerator, function: Any, size: int, count: int) -> list[Value]:
    """`function(generator, range(size), k=count)` of a generator in an unknown state: positions in a sequence."""
    step = Step(function, (range(size),), {"k": count})
    foreseen, result, text = _foresee(tx, generator, generator.steps(tx), step)
    assert generator.source is not None
    places = [
        ComputedSource(_Element(foreseen, i), (generator.source,), lambda *texts, i=i: f"{text}[{i}]")
        for i in range(count)
    ]
    return [tx.wrap(number, place) for number, place in zip(result, places, strict=True)]


def _foresee(tx: TraceContext, generator: RandomGenerator, steps: Steps, step: Step) -> tuple[_Foreseen, Any, str]:
    """What foresees the step, what it gives at this call, and how it is written."""
    what = f"{step.function.__name__} of {generator.describe()}"
    if not tx.symbols.foresees or tx.speculation is not None or _are_too_many(tx, steps):
        raise Unsupported("random-number", what)
    assert generator.source is not None
    foreseen = _Foreseen(generator.family, (*steps, step))
    try:
        result = foreseen(generator.obj)
    except Exception as error:
        raise Unsupported("random-number", f"{what}: {error}") from None
    generator.note(tx, step)
    return foreseen, result, f"{generator.source.text}.{step.function.__name__}()[{len(steps)}]"


def _are_too_many(tx: TraceContext, steps: Steps) -> bool:
    """Whether the graph breaks in front of one more number. Whoever wants one graph or nothing gets it."""
    if tx.symbols.wants_one_graph:
        return False
    return len(steps) >= _MOST_FORESEEN or tx.symbols.choices_on(is_foreseen) >= _MOST_CHOICES


def is_foreseen(place: Source) -> bool:
    """Whether this is where calls find a number that a generator is about to give."""
    return isinstance(place, ComputedSource) and isinstance(place.function, (_Foreseen, _Item, _Element))


def _wrapped(tx: TraceContext, result: Any, foreseen: _Foreseen, source: Source, text: str) -> Value:
    """What is foreseen as an input of the graph. The graph has a copy of an array: every question for it draws a new one."""
    place = ComputedSource(foreseen, (source,), lambda *texts: text)
    if type(result) in _NUMBERS:
        return tx.wrap(result, place)
    if is_numpy_scalar(result) and result.dtype.name in ("int64", "float64"):
        number = tx.wrap(result.item(), ComputedSource(_Item(foreseen), (source,), lambda *texts: text))
        return NumpyNumber(result, number) if isinstance(number, SymbolicValue) else Constant(result)
    if type(result).__name__ == "ndarray" and why_not_input(result) is None:
        tensor = tx.wrap_tensor(tensor_of_array(result), ApplySource(place, tensor_of_array))
        return ArrayValue(in_graph(tx, torch.clone, tensor))
    raise Unsupported("random-number", f"a {type(result).__name__} of {source.text}")


def known_arguments(function: Any, args: list[Value], kwargs: dict[str, Value]) -> Plain:
    """The arguments of a function that draws or seeds, as objects.

    Raises Unsupported where they are not known, or change from call to call: there would be a graph for each of them.
    """
    return plain_arguments(args, kwargs, code="random-number", call=function.__name__)


def _taken(tx: TraceContext, generator: RandomGenerator, steps: Steps, step: Step) -> Any:
    """What a step gives behind others from a known state on."""
    if len(steps) > _MOST_KNOWN:
        raise Unsupported("random-number", f"more than {_MOST_KNOWN} numbers")
    twin = None
    if steps:
        twin, steps[-1].twin = steps[-1].twin, None
    if twin is None:
        twin = generator.start()
        for each in steps:
            each(twin)
    try:
        result = step(twin)
    except Exception as error:
        raise Unsupported("random-number", f"{step.function.__name__}: {error}") from None
    generator.note(tx, step)
    step.twin = twin
    return result


def seed(tx: TraceContext, generator: RandomGenerator, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`generator.seed(a)`, a being a constant"""
    function: Any = generator.cls.seed  # type: ignore[attr-defined]
    step = Step(function, *known_arguments(function, args, kwargs))
    given = [*step.args, *step.kwargs.values()]
    if not given or type(given[0]) not in (int, float, str, bytes):
        raise Unsupported("random-number", "a seed from the system")
    try:
        step(generator.family.blank())
    except Exception as error:
        raise Unsupported("random-number", f"seed: {error}") from None
    generator.note(tx, step)
    return NONE


def get_state(tx: TraceContext, generator: RandomGenerator) -> Value:
    """`generator.getstate()`"""
    steps = generator.steps(tx)
    if not generator.is_known(steps):
        return RandomState(generator, steps)
    twin = random.Random()
    for step in steps:
        step(twin)
    return tx.from_constant(twin.getstate())


def set_state(tx: TraceContext, generator: RandomGenerator, state: Value) -> Value:
    """`generator.setstate(state)`, the state being one that the trace knows or has asked for."""
    if isinstance(state, RandomState):
        if state.generator is not generator:
            raise Unsupported("random-number", "the state of another generator")
        generator.note(tx, Restored(state.steps), state)
        return NONE
    if state.source is not None or not state.is_constant():
        raise Unsupported("random-number", state.describe())
    step = Step(random.Random.setstate, (state.constant(),), {})
    try:
        step(random.Random(0))
    except Exception as error:
        raise Unsupported("random-number", f"setstate: {error}") from None
    generator.note(tx, step)
    return NONE


def new_generator(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`random.Random(seed)`"""
    made = RandomGenerator(random.Random)
    seed(tx, made, args, {"a" if name == "x" else name: value for name, value in kwargs.items()})
    return made


def inline_if_known(
    tx: TraceContext, generator: RandomGenerator, function: Any, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A method written in Python that takes as many numbers as the state tells: traced where that is known."""
    steps = generator.steps(tx)
    if not generator.is_known(steps):
        raise Unsupported("random-number", f"{function.__name__} of {generator.describe()}")
    return tx.inline(FunctionValue.outside(tx, function, ConstSource(function)), [generator, *args], kwargs)


def wrap_python_generator(tx: TraceContext, obj: random.Random, source: Source) -> Value:
    """The Value of an outside generator."""
    tx.guards.add(source, "type_is", random.Random)
    return RandomGenerator(random.Random, obj, source)
