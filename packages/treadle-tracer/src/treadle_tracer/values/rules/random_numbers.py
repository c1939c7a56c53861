"""Rules of the methods of `random.Random`: see `values.random_numbers`. What is not listed here is traced as the Python that it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values import random_numbers
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.growing import OutsideList
from treadle_tracer.values.random_numbers import RandomGenerator
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Method = Callable[["TraceContext", RandomGenerator, Args, Kwargs], Value]


def _of_generator(name: str, method: _Method) -> Apply:
    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if not args:
            raise Unsupported("raises", f"{name} without a generator")
        generator, *rest = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
        if not isinstance(generator, RandomGenerator):
            raise Unsupported("random-number", f"{name} of a generator of another class")
        return method(tx, generator, rest, kwargs)

    return apply


def _drawn(name: str) -> Rule:
    function = vars(random.Random)[name]

    def method(tx: TraceContext, generator: RandomGenerator, args: Args, kwargs: Kwargs) -> Value:
        return random_numbers.draw(tx, generator, function, args, kwargs)

    return Rule(function, _of_generator(name, method), Effect.WRITES_ARGUMENTS)


def _normal(name: str) -> Rule:
    """`mu + z * sigma`, z being drawn (random.py, `gauss` and `normalvariate`): the arguments may change from call to call."""
    function = vars(random.Random)[name]

    def method(tx: TraceContext, generator: RandomGenerator, args: Args, kwargs: Kwargs) -> Value:
        given = dict(zip(("mu", "sigma"), args, strict=False)) | kwargs
        if all(value.is_constant() for value in given.values()):
            return random_numbers.draw(tx, generator, function, args, kwargs)
        mean, width = given.pop("mu", Constant(0.0)), given.pop("sigma", Constant(1.0))
        if given or len(args) > 2 or any(value.python_type() not in (int, float) for value in (mean, width)):
            raise Unsupported("random-number", f"{name} of these arguments")
        drawn = random_numbers.draw(tx, generator, function, [Constant(0.0), Constant(1.0)], {})
        return tx.binary_op("+", mean, tx.binary_op("*", drawn, width))

    return Rule(function, _of_generator(name, method), Effect.WRITES_ARGUMENTS)


def _traced(name: str) -> Rule:
    function: Any = vars(random.Random)[name]

    def method(tx: TraceContext, generator: RandomGenerator, args: Args, kwargs: Kwargs) -> Value:
        return random_numbers.inline_if_known(tx, generator, function, args, kwargs)

    return Rule(function, _of_generator(name, method), Effect.WRITES_ARGUMENTS)


_MOST_ITEMS = 4  # that are chosen of a sequence: each is foreseen for itself


def _chosen(name: str) -> Rule:
    """`sample` and `choices`: of a range, or of a list from outside, a few items."""
    function: Any = vars(random.Random)[name]

    def method(tx: TraceContext, generator: RandomGenerator, args: Args, kwargs: Kwargs) -> Value:
        given = dict(zip(("population", "k"), args, strict=False)) | kwargs
        if generator.is_known(generator.steps(tx)) or len(args) > 2 or given.keys() - {"population", "k"}:
            return random_numbers.inline_if_known(tx, generator, function, args, kwargs)
        population, count = given.get("population"), given.get("k", Constant(1))
        population = population.force(tx) if isinstance(population, LazyValue) else population
        wanted = count.constant() if count.is_constant() else None
        is_range = isinstance(population, Constant) and type(population.obj) is range
        if (
            type(wanted) is not int
            or not 0 < wanted <= _MOST_ITEMS
            or not (is_range or isinstance(population, OutsideList))
        ):
            raise Unsupported("random-number", f"{name} of {generator.describe()}")
        assert population is not None
        places = random_numbers.draw_positions(tx, generator, function, population.length(tx), wanted)
        if not is_range:
            return ListValue([population.get_item(tx, place) for place in places])
        numbers: range = population.constant()
        start, step = Constant(numbers.start), Constant(numbers.step)
        return ListValue([tx.binary_op("+", start, tx.binary_op("*", place, step)) for place in places])

    return Rule(function, _of_generator(name, method), Effect.WRITES_ARGUMENTS)


def _get_state(tx: TraceContext, generator: RandomGenerator, args: Args, kwargs: Kwargs) -> Value:
    return random_numbers.get_state(tx, generator)


def _set_state(tx: TraceContext, generator: RandomGenerator, args: Args, kwargs: Kwargs) -> Value:
    (state,) = (*args, *kwargs.values())
    return random_numbers.set_state(tx, generator, state)


_FLOATS = "lognormvariate vonmisesvariate gammavariate betavariate triangular"

RULES = (
    *map(_normal, ("gauss", "normalvariate")),
    *map(_drawn, _FLOATS.split()),
    _drawn("_randbelow_with_getrandbits"),
    *map(_traced, "shuffle randbytes".split()),
    *map(_chosen, ("sample", "choices")),
    Rule(random.Random.seed, _of_generator("seed", random_numbers.seed), Effect.WRITES_ARGUMENTS),
    Rule(random.Random.getstate, _of_generator("getstate", _get_state), Effect.READS_STATE),
    Rule(random.Random.setstate, _of_generator("setstate", _set_state), Effect.WRITES_ARGUMENTS),
)
