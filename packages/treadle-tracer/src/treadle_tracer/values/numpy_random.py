"""Random numbers of `numpy.random`: the generators of `default_rng`, and those of the old interface, the global one among them.

    np.random.seed(0)
    noise = np.random.normal(size=3)      # constants: the state is known
    if self.rng.random() < epsilon:       # foreseen, as with Python's `random` (`random_numbers`)
        action = self.rng.integers(4)

The state of `default_rng` is a few numbers, that of the old interface some thousand bytes beside the normal number that it keeps. So of
an old generator in an unknown state only methods are foreseen that have no part in the latter.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import ConcreteValue, LazyValue
from treadle_tracer.values.functions import BoundMethod
from treadle_tracer.values.random_numbers import Family, RandomGenerator, draw, known_arguments, seed
from treadle_tracer.values.random_states import copy_twister
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_TWINS = threading.local()
_DRAWS = frozenset(
    "beta binomial chisquare choice dirichlet exponential f gamma geometric gumbel hypergeometric integers laplace logistic lognormal "
    "logseries multinomial multivariate_normal negative_binomial noncentral_chisquare noncentral_f normal pareto permutation poisson power "
    "rand randint randn random random_sample rayleigh standard_cauchy standard_exponential standard_gamma standard_normal standard_t "
    "triangular uniform vonmises wald weibull zipf".split()
)
_WITHOUT_NORMAL = frozenset(
    "choice exponential laplace logistic gumbel permutation rand randint random random_sample rayleigh standard_exponential triangular "
    "uniform weibull".split()
)
"""Methods of the old interface that neither use nor keep a normal number."""


def _numpy_random() -> Any:
    return sys.modules.get("numpy.random")


def _is_compiled_by_cython(obj: Any) -> bool:
    return type(obj).__name__ == "cython_function_or_method"


# ---- generators


def _bits_of(generator: Any, cls: type, attribute: str, kind: type) -> Any:
    """The source of a generator's bits. Raises TypeError for other generators, and other sources."""
    source = getattr(generator, attribute) if type(generator) is cls else None
    if type(source) is not kind:
        raise TypeError
    return source


def _kept_twin(name: str, make: Callable[[], Any]) -> Any:
    """The twin of this thread."""
    if not hasattr(_TWINS, name):
        setattr(_TWINS, name, make())
    return getattr(_TWINS, name)


def _twin_of_generator(generator: Any) -> Any:
    module = _numpy_random()
    source = _bits_of(generator, module.Generator, "bit_generator", module.PCG64)
    twin = _kept_twin("new", _blank_generator)
    twin.bit_generator.state = source.state
    return twin


def _twin_of_old(generator: Any) -> Any:
    module = _numpy_random()
    source = _bits_of(generator, module.RandomState, "_bit_generator", module.MT19937)
    twin = _kept_twin("old", _blank_old)
    copy_twister(twin._bit_generator, source)
    return twin


def _blank_generator() -> Any:
    return _numpy_random().default_rng(0)


def _blank_old() -> Any:
    return _numpy_random().RandomState(0)


NEW, OLD = Family(_twin_of_generator, _blank_generator, 3.0), Family(_twin_of_old, _blank_old, 2.0)


class NumpyGenerator(RandomGenerator):
    """A `numpy.random.Generator`, or a `RandomState`."""

    __slots__ = ()

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        raw = vars(self.cls).get(name)
        if is_random_function(raw):
            return BoundMethod(RandomFunction(raw, ConstSource(raw)), self)
        raise Unsupported("random-number", f"{self.describe()}.{name}")


def is_generator(obj: Any) -> bool:
    """Whether the object is a generator of NumPy's own."""
    module = _numpy_random()
    return module is not None and (type(obj) is module.Generator or type(obj) is module.RandomState)


def is_old_generator(cls: type) -> bool:
    """Whether the class is `numpy.random.RandomState`."""
    return cls.__name__ == "RandomState" and cls is getattr(_numpy_random(), "RandomState", None)


def wrap_numpy_generator(tx: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of an outside generator."""
    is_old = type(obj) is _numpy_random().RandomState
    tx.guards.add(source, "type_is", type(obj))
    check = _HasTwister()
    if is_old:
        if not check(obj):
            raise Unsupported("random-number", f"{source.text}, which is no Mersenne twister")
        tx.guards.add(source, "call", check, f"{source.text} is a Mersenne twister")
    return NumpyGenerator(type(obj), obj, source, OLD if is_old else NEW)


class _HasTwister(GuardCallable):
    """A `RandomState` has the bit generator that seeds are for."""

    __slots__ = ()

    def __call__(self, generator: Any) -> bool:
        return type(generator._bit_generator) is _numpy_random().MT19937


# ---- functions


@functools.cache
def _known_functions() -> tuple[Any, ...]:
    """The functions of the module, and all methods of its generators."""
    module = _numpy_random()
    methods = [raw for cls in (module.Generator, module.RandomState) for raw in vars(cls).values()]
    return (module.default_rng, module.seed, *filter(_is_compiled_by_cython, methods))


def is_random_function(obj: Any) -> bool:
    """Whether the object is a function of `numpy.random`, or a method of its generators."""
    if not _is_compiled_by_cython(obj) or _numpy_random() is None:
        return False
    return any(obj is known for known in _known_functions())


class RandomFunction(ConcreteValue):
    """`numpy.random.default_rng`, `numpy.random.seed`, or a method of a generator."""

    __slots__ = ()

    def truth(self, tx: TraceContext) -> bool:
        return True

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        module = _numpy_random()
        if self.obj is module.default_rng:
            return new_numpy_generator(module.Generator, module.default_rng)(tx, args, kwargs)
        if self.obj is module.seed:
            owner = module.mtrand._rand
            return seed(tx, tx.wrap(owner, ConstSource(owner)), args, kwargs)  # type: ignore[arg-type]
        if not args:
            raise Unsupported("raises", f"{self.describe()} without a generator")
        generator, *rest = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
        name = self.obj.__name__
        if not isinstance(generator, NumpyGenerator) or self.obj is not vars(generator.cls).get(name):
            raise Unsupported("random-number", f"{name} of another generator")
        if name == "seed":
            return seed(tx, generator, rest, kwargs)
        if name not in _DRAWS or "out" in kwargs:
            raise Unsupported("random-number", f"{name} of {generator.describe()}")
        is_known = generator.is_known(generator.steps(tx))
        if generator.family is OLD and not is_known and name not in _WITHOUT_NORMAL:
            raise Unsupported("random-number", f"{name} of {generator.describe()}")
        return draw(tx, generator, self.obj, rest, kwargs)


def new_numpy_generator(cls: Any, make: Any) -> Callable[[TraceContext, list[Value], dict[str, Value]], Value]:
    """`numpy.random.default_rng(seed)`, `numpy.random.RandomState(seed)`"""

    def apply(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        plain, named = known_arguments(make, args, kwargs)
        given = [*plain, *named.values()]
        if len(given) != 1 or type(given[0]) is not int:
            raise Unsupported("random-number", "a seed from the system")
        start = functools.partial(make, *plain, **named)
        try:
            start()
        except Exception as error:
            raise Unsupported("random-number", f"seed: {error}") from None
        is_old = cls is _numpy_random().RandomState
        return NumpyGenerator(cls, family=OLD if is_old else NEW, start=start)

    return apply
