"""What the cache of a function under `functools.lru_cache` holds, asked without running the function."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle_tracer.decision_programs import Place
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.constants import is_constant_object


class CachedAnswer:
    """Guard callable: the cache has the recorded answer for these arguments: an equal constant, or the very object.

    The cache counts how often it is used, and drops what is used least, so it is asked last: on calls that the entry takes if it holds.

    call        where the program calls the function, and how often it has done so before in the trace
    of_numbers  numbers that vary are constants in the trace, because the function is called with them
    """

    __slots__ = ("args", "call", "kwargs", "of_numbers", "result")
    is_asked_last = True

    def __init__(self, args: list[Any], kwargs: dict[str, Any], call: tuple[Place, int], of_numbers: bool):
        self.args, self.kwargs = args, kwargs
        self.call = call
        self.of_numbers = of_numbers
        self.result: Any = None

    def __call__(self, function: Any, again: Any) -> bool:
        if not is_answered(function, self.args, self.kwargs):
            return False
        found = function(*self.args, **self.kwargs)
        if not is_constant_object(self.result):
            return found is self.result
        return type(found) is type(self.result) and repr(found) == repr(self.result) and found == self.result

    @property
    def question(self) -> Any:
        """What tells calls of the function apart."""
        return (*self.args, *self.kwargs.items())

    @property
    def answer(self) -> Any:
        """What tells results apart."""
        return repr(self.result) if is_constant_object(self.result) else id(self.result)


# So many answers at one place have a graph each; behind them, the graph breaks at the call.
_MOST_ANSWERS = 3


def places_that_differ(answers: Iterable[CachedAnswer]) -> set[Place]:
    """The places at which one call of a cached function has had so many answers that the next one is not expected to be among them: for
    numbers that vary, or for the same arguments (the cache has been cleared). Other arguments are constants of the program's paths.
    """
    by_call: dict[Any, list[CachedAnswer]] = defaultdict(list)
    for answer in answers:
        by_call[answer.call].append(answer)
        by_call[*answer.call, answer.question].append(answer)
    found = set()
    for (place, *_), same in by_call.items():
        varies = any(answer.of_numbers for answer in same) or len({answer.question for answer in same}) == 1
        if varies and len({(answer.question, answer.answer) for answer in same}) >= _MOST_ANSWERS:
            found.add(place)
    return found


def is_answered(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of the cached function, by arguments that can be hashed without running code of the program, would be answered by the
    cache.

    Key and cache as in CPython's Modules/_functoolsmodule.c (lru_cache_make_key, lru_cache_tp_traverse), the same from 3.11 to 3.13. Raises
    Unsupported where the object does not look like that.
    """
    *_, cache, _, mark, _, _, attributes = [None] * 6 + gc.get_referents(function)
    if type(cache) is not dict or type(mark) is not object or attributes is not function.__dict__:
        raise Unsupported("builtin-call", "a cached function of an unknown build of Python")
    typed = function.cache_parameters()["typed"]
    if not typed and not kwargs and len(args) == 1 and type(args[0]) in (int, str):
        return args[0] in cache
    named = (mark, *(part for item in kwargs.items() for part in item)) if kwargs else ()
    types = tuple(map(type, (*args, *kwargs.values()))) if typed else ()
    return (*args, *named, *types) in cache
