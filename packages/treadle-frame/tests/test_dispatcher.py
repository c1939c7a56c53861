"""dispatcher: binding, hits with and without frames, misses, looking like a function, and hypothesis against plain calls."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from frame_helpers import Recorder, examples, handled, replacement
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle_frame
from treadle_frame import (
    RUN_CACHED,
    RUN_ONCE,
    SKIP,
    Check,
    Entry,
    EvaluatorWarning,
    FrameInfo,
    GuardProgram,
    add_entry,
    counters,
    dispatcher,
    entries,
    get_handler,
    is_installed,
    reset,
    set_handler,
)

X = ("local", "x")
ALWAYS = GuardProgram([])


def never(frame: FrameInfo) -> Any:
    raise AssertionError(f"asked about {frame.code.co_name}")


def once(frame: FrameInfo) -> Any:
    return RUN_ONCE


def test_miss_asks_the_handler_and_the_next_call_needs_no_frame() -> None:
    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return "replaced"

    record = Recorder(f=replacement(g, Check((X,), "type_is", int)))
    fast = dispatcher(f, record)
    before = counters()
    assert fast(1) == "replaced" and fast(2) == "replaced"
    record.answers["f"] = SKIP
    assert fast("s") == "original" and fast("t") == "original"
    assert record.asked == ["f", "f"]
    after = counters()
    assert after["dispatcher_hits"] - before["dispatcher_hits"] == 1
    assert after["dispatcher_misses"] - before["dispatcher_misses"] == 3
    assert fast(3) == "replaced", "a skip mark is about frames"


def test_handler_is_set_during_misses_and_hits_and_off_afterwards() -> None:
    states = []

    def callee() -> None:
        states.append(get_handler())

    def f(x: int, call: Any) -> str:
        call()
        return "original"

    def g(x: int, call: Any) -> str:
        call()
        return "replaced"

    record = Recorder()
    fast = dispatcher(f, record)
    assert fast(1, callee) == "original"
    assert record.asked == ["f", "callee"]
    add_entry(f, replacement(g))
    record.asked.clear()
    assert fast(1, callee) == "replaced"
    assert record.asked == ["callee"], "neither the replacement nor the original is asked about"
    assert states == [record, record]
    assert get_handler() is None and not is_installed()


def test_state_from_before_is_restored() -> None:
    def f(x: int) -> int:
        return 1 // x

    fast = dispatcher(f, once)
    other = Recorder()
    with handled(other):
        assert fast(1) == 1
        assert get_handler() is other
        with pytest.raises(ZeroDivisionError):
            fast(0)
        assert get_handler() is other
    assert get_handler() is None
    with pytest.raises(ZeroDivisionError):
        fast(0)
    assert get_handler() is None and not is_installed()


def test_run_cached_stays_run_cached() -> None:
    def f(x: int) -> Any:
        return get_handler()

    fast = dispatcher(f, never)
    with handled(RUN_CACHED):
        assert fast(1) is RUN_CACHED
    assert dispatcher(f, RUN_CACHED)(1) is RUN_CACHED


def test_handler_exception_and_wrong_answer() -> None:
    def f(x: int) -> int:
        return x

    with pytest.raises(AssertionError, match="asked about f"):
        dispatcher(f, never)(1)
    with pytest.raises(TypeError, match="Entry, SKIP"):
        dispatcher(f, lambda frame: 3)(1)  # type: ignore[arg-type, return-value]
    assert get_handler() is None and not is_installed()


# ---- fast-path entries --------------------------------------------------------------------------------------------------------


def with_fast_path(function: Callable[..., Any], call: Any, values: tuple[Any, ...], unpack: bool = False) -> Entry:
    return Entry(function.__code__, ALWAYS, fast_path=(call, values, unpack))


def test_fast_paths_run_no_frame() -> None:
    def f(a: Any, b: Any = 2, *args: Any, c: Any = 3, **kwargs: Any) -> Any:
        return "original"

    seen: list[Any] = []

    def compiled(*values: Any) -> Any:
        seen.append((values, sys._getframe().f_back.f_code.co_name))  # type: ignore[union-attr]
        return ("first", "second")

    add_entry(f, with_fast_path(f, compiled, ("c", "a", "args", ("args", 1), ("kwargs", "k"), "b", "kwargs")))
    here = "test_fast_paths_run_no_frame"
    assert dispatcher(f, never)(1, 5, 6, 7, k=8) == ("first", "second")
    assert seen == [((3, 1, (6, 7), 7, 8, 5, {"k": 8}), here)]
    reset()
    add_entry(f, with_fast_path(f, compiled, ("a",), unpack=True))
    assert dispatcher(f, never)(1) == "first"


@pytest.mark.parametrize(
    ("result", "expected"),
    [((1,), 1), ([2, 3], 2), ("abc", "a"), ({0: 1}, TypeError), ((), IndexError), (3, TypeError)],
)
def test_fast_path_unpacking(result: Any, expected: Any) -> None:
    def f() -> None: ...

    add_entry(f, with_fast_path(f, lambda: result, (), unpack=True))
    if isinstance(expected, type):
        with pytest.raises(expected):
            dispatcher(f, never)()
    else:
        assert dispatcher(f, never)() == expected


def test_fast_path_values_that_are_not_there_run_the_code() -> None:
    def f(*args: Any, **kwargs: Any) -> Any:
        return "code"

    for value in (("args", 1), ("kwargs", "k")):
        reset()
        add_entry(f, with_fast_path(f, lambda x: "fast path", (value,)))
        fast = dispatcher(f, never)
        assert fast(1) == "code" and fast() == "code"
        assert fast(1, 2, k=3) == "fast path"


def test_fast_paths_run_with_the_hook_off() -> None:
    states = []

    def f(x: int) -> int:
        return x

    def compiled(x: int) -> int:
        states.append(get_handler())
        if x == 0:
            raise KeyError
        return -x

    add_entry(f, with_fast_path(f, compiled, ("x",)))
    fast = dispatcher(f, never)
    record = Recorder()
    with handled(record):
        assert fast(3) == -3
        assert get_handler() is record
    with pytest.raises(KeyError), handled(record):
        fast(0)
    assert states == [None, None] and record.asked == []


def test_fast_paths_with_many_values() -> None:
    def f(*args: Any) -> Any: ...

    add_entry(f, with_fast_path(f, lambda *values: values, tuple(("args", i) for i in range(100))))
    assert dispatcher(f, never)(*range(100)) == tuple(range(100))


def test_fast_paths_in_frames_run_their_code() -> None:
    def f(x: int) -> str:
        return "code"

    add_entry(f, with_fast_path(f, lambda x: "fast path", ("x",)))
    with handled(RUN_CACHED):
        assert f(1) == "code"


# ---- methods, attributes --------------------------------------------------------------------------------------------------------


def test_bound_methods() -> None:
    class Model:
        def __init__(self, scale: int) -> None:
            self.scale = scale

        def forward(self, x: int, y: int = 1) -> int:
            return self.scale * x + y

    model = Model(10)
    fast = dispatcher(model.forward, once)
    assert fast(1) == 11 and fast(1, y=3) == 13
    guard = GuardProgram([Check((("local", "self"), ("attr", "scale")), "equals", 10)])
    add_entry(
        Model.forward,
        Entry(Model.forward.__code__, guard, fast_path=(lambda m, x, y: (m, x, y), ("self", "x", "y"), False)),
    )
    assert fast(2) == (model, 2, 1)
    model.scale = 20
    assert fast(2) == 41
    with pytest.raises(TypeError, match="self"):
        fast(1, self=3)
    assert fast.__get__(3) is fast, "bound already"


def test_methods_without_a_place_for_self() -> None:
    class Strange:
        def no_arguments() -> int:  # type: ignore[misc]
            return 1

        def only_more(*args: Any) -> int:
            return len(args)

    add_entry(Strange.no_arguments, replacement(Strange.no_arguments))
    add_entry(Strange.only_more, replacement(Strange.only_more))
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        dispatcher(Strange().no_arguments, once)()
    assert dispatcher(Strange().only_more, once)(5) == 2


def test_binds_like_a_function() -> None:
    class Model:
        @staticmethod
        def helper() -> int:
            return 5

    def method(self: Any, x: int) -> Any:
        return (self, x)

    Model.method = fast = dispatcher(method, once)  # type: ignore[attr-defined]
    model = Model()
    assert model.method(3) == (model, 3)  # type: ignore[attr-defined]
    assert Model.method is fast  # type: ignore[attr-defined]
    assert Model.method(model, 3) == (model, 3)  # type: ignore[attr-defined]
    add_entry(method, with_fast_path(method, lambda s, x: ("fast path", s, x), ("self", "x")))
    assert model.method(3) == ("fast path", model, 3)  # type: ignore[attr-defined]


def test_looks_like_what_it_wraps() -> None:
    def f(a: int, b: str = "x", *, c: float) -> bytes:
        """What f does."""
        return b""

    f.note = "kept"  # type: ignore[attr-defined]
    fast = dispatcher(f, once)
    assert fast.__wrapped__ is f and fast.handler is once
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "note"):
        assert getattr(fast, name) == getattr(f, name)
    assert inspect.signature(fast) == inspect.signature(f)
    assert "dispatcher of <function" in repr(fast)
    fast.extra = 3  # type: ignore[attr-defined]
    assert fast.__dict__["extra"] == 3 and callable(fast)


def test_pickling_is_refused_and_copying_is_by_reference() -> None:
    def f() -> None: ...

    class Model:
        def forward(self) -> None: ...

    fast = dispatcher(f, once)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="__wrapped__"):
            pickle.dumps(fast, protocol)
    assert copy.copy(fast) is fast and copy.deepcopy([fast])[0] is fast
    with pytest.raises(TypeError, match="__wrapped__"):
        copy.deepcopy(dispatcher(Model().forward, once))


@pytest.mark.parametrize("wrong", [3, len, int, type, None, "f"])
def test_only_python_functions_are_wrapped(wrong: Any) -> None:
    with pytest.raises(TypeError, match="fn: must be"):
        dispatcher(wrong, once)


@pytest.mark.parametrize("wrong", [None, 3, SKIP])
def test_only_handlers_are_taken(wrong: Any) -> None:
    with pytest.raises(TypeError, match="handler: must be"):
        dispatcher(lambda: 1, wrong)


def test_weak_references_and_cycles() -> None:
    def make() -> Any:
        def f() -> Any:
            return fast

        fast = dispatcher(f, once)
        fast.itself = fast
        add_entry(f, replacement(f))
        assert fast() is fast
        reset(f)
        return weakref.ref(fast)

    reference = make()
    gc.collect()
    assert reference() is None


def test_closures_share_entries_and_keep_their_own_cells() -> None:
    def make(free: int) -> Any:
        def f() -> int:
            return free

        def g() -> int:
            return -free

        return dispatcher(f, once), g

    one, g = make(1)
    two, _ = make(2)
    add_entry(one.__wrapped__, replacement(g))
    assert (one(), two(), one()) == (-1, -2, -1)


def test_functions_of_gone_entries_are_dropped() -> None:
    def f(x: int) -> int:
        return x

    fast = dispatcher(f, once)
    references = []
    for i in range(5):
        namespace: dict[str, Any] = {}
        exec(f"def g(x): return {i}", namespace)
        entry = Entry(namespace.pop("g").__code__, ALWAYS)
        references.append(weakref.ref(entry))
        reset(f)
        add_entry(f, entry)
        assert fast(0) == i
        del entry
    gc.collect()
    assert [reference() is None for reference in references] == [True] * 4 + [False]


def test_defaults_are_those_of_the_moment() -> None:
    def f(a: int = 1, *, b: int = 2) -> Any: ...

    add_entry(f, with_fast_path(f, lambda a, b: (a, b), ("a", "b")))
    fast = dispatcher(f, never)
    assert fast() == (1, 2)
    f.__defaults__, f.__kwdefaults__ = (10,), {"b": 20}
    assert fast() == (10, 20)
    f.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        dispatcher(f, once)()


def test_code_of_the_function_may_change() -> None:
    def f() -> str:
        return "old"

    def g() -> str:
        return "new"

    fast = dispatcher(f, once)
    add_entry(f, with_fast_path(f, lambda: "fast path", ()))
    assert fast() == "fast path"
    f.__code__ = g.__code__
    assert fast() == "new"


def test_guards_may_drop_everything() -> None:
    box: dict[str, Any] = {}

    def f(x: int) -> str:
        return "code"

    def drop(value: Any) -> bool:
        box.clear()
        reset()
        gc.collect()
        return True

    box["fast"] = dispatcher(f, once)
    box["arg"] = [1]
    add_entry(
        f,
        Entry(f.__code__, GuardProgram([Check((X,), "call", drop)]), fast_path=(lambda x: "fast path", ("x",), False)),
    )
    assert box["fast"](box["arg"]) == "fast path"
    assert entries(f) == ()


def test_recursion_through_fast_paths_is_limited() -> None:
    def f(x: int) -> int:
        return x

    fast = dispatcher(f, never)
    add_entry(f, with_fast_path(f, fast, ("x",)))
    with pytest.raises(RecursionError):
        fast(1)


def test_recursion_through_replacements() -> None:
    def f(n: int) -> int:
        return 0

    def g(n: int) -> int:
        return 0 if n == 0 else 1 + fast(n - 1)

    namespace: dict[str, Any] = {}
    exec("def f(n): return 0\ndef g(n): return 0 if n == 0 else 1 + fast(n - 1)", namespace)
    fast = namespace["fast"] = dispatcher(namespace["f"], never)
    add_entry(namespace["f"], replacement(namespace["g"]))
    assert fast(50) == 50
    with pytest.raises(RecursionError):
        fast(10**6)
    assert fast(50) == 50 and get_handler() is None


def test_generators_are_simply_called() -> None:
    def f(n: int) -> Any:
        yield from range(n)

    assert list(dispatcher(f, never)(3)) == [0, 1, 2]


def test_threads_share_a_dispatcher() -> None:
    def f(x: int) -> Any:
        return ("original", x)

    def g(x: int) -> Any:
        return ("replaced", x)

    def handler(frame: FrameInfo) -> Any:
        if frame.code is not f.__code__:
            return SKIP
        return replacement(g, Check((X,), "equals", frame.locals["x"]))

    fast = dispatcher(f, handler)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(300):
            x = (i * seed) % 5
            if fast(x)[1] != x:
                wrong.append(x)
            if i % 97 == 0:
                reset()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == [] and not is_installed()


def test_foreign_evaluator_in_the_way(compile_c: Callable[..., Path]) -> None:
    import ctypes

    from frame_helpers import FOREIGN_EVALUATOR

    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return "replaced"

    fast = dispatcher(f, never)
    library = ctypes.PyDLL(str(compile_c(FOREIGN_EVALUATOR)))
    library.come()
    try:
        with pytest.warns(EvaluatorWarning):
            assert fast(1) == "original"
        add_entry(f, replacement(g))
        with pytest.warns(EvaluatorWarning):
            assert fast(1) == "replaced"
        reset()
        add_entry(f, with_fast_path(f, lambda x: "fast path", ("x",)))
        assert fast(1) == "fast path"
    finally:
        library.go()
    assert set_handler(None) is None


def test_foreign_evaluator_that_the_handler_expects(compile_c: Callable[..., Path]) -> None:
    import ctypes

    from frame_helpers import FOREIGN_EVALUATOR

    class Expecting(Recorder):
        def expects_evaluator(self) -> bool:
            return True

    def f(x: int) -> str:
        return "original"

    handler = Expecting()
    fast = dispatcher(f, handler)
    add_entry(f, with_fast_path(f, lambda x: "fast path", ("x",)))
    library = ctypes.PyDLL(str(compile_c(FOREIGN_EVALUATOR)))
    library.come()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fast(1) == "original"
    finally:
        library.go()
    assert fast(1) == "fast path" and handler.asked == []


# ---- random signatures and calls against plain calls --------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "e"]


@st.composite
def signatures(draw: st.DrawFn) -> str:
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, 5))]
    n_positional = draw(st.integers(0, len(names)))
    n_posonly = draw(st.integers(0, n_positional))
    n_plain = draw(st.integers(0, n_positional))
    parts = []
    for i, name in enumerate(names[:n_positional]):
        parts.append(f"{name}='d{i}'" if i >= n_plain else name)
        if i + 1 == n_posonly:
            parts.append("/")
    star = draw(st.sampled_from(["*args", "*", None]))
    keyword_only = names[n_positional:]
    if keyword_only or star == "*args":
        parts.append("*args" if star == "*args" else "*")
    parts += [f"{name}='k{i}'" if draw(st.booleans()) else name for i, name in enumerate(keyword_only)]
    if draw(st.booleans()):
        parts.append("**kwargs")
    return ", ".join(parts)


CALLS = st.tuples(
    st.lists(st.integers(0, 9), max_size=6),
    st.dictionaries(st.sampled_from([*NAMES, "x", "args", "kwargs"]), st.integers(10, 19), max_size=4),
)


def outcome(function: Callable[..., Any], args: list[int], kwargs: dict[str, int]) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


@settings(max_examples=examples(300), deadline=None)
@given(
    signatures(),
    st.lists(CALLS, min_size=1, max_size=4),
    st.sampled_from(["fast path", "code", "hook", "miss"]),
    st.booleans(),
)
def test_calls_bind_as_plain_calls_do(signature: str, calls: list[Any], way: str, method: bool) -> None:
    shown = [part.split("=")[0].strip("*") for part in signature.split(", ") if part not in ("", "/", "*")]
    record = "{" + ", ".join(f"'{name}': {name}" for name in shown) + "}"
    namespace: dict[str, Any] = {}
    exec(f"class C:\n    def f({signature}): return {record}\ndef f({signature}): return {record}", namespace)
    plain = namespace["C"]().f if method else namespace["f"]
    function = namespace["C"].f if method else namespace["f"]
    values = tuple(shown)
    if way == "fast path":
        compiled = eval(
            f"lambda {', '.join(f'_{name}' for name in shown)}: {{" + ", ".join(f"'{n}': _{n}" for n in shown) + "}"
        )
        add_entry(function, Entry(function.__code__, ALWAYS, fast_path=(compiled, values, False)))
    elif way != "miss":
        add_entry(function, Entry(function.__code__.replace(co_name="g"), ALWAYS))
    fast = dispatcher(plain, once)
    for args, kwargs in calls:
        expected = outcome(plain, args, kwargs)
        with handled(RUN_CACHED if way == "hook" else None):
            assert outcome(plain if way == "hook" else fast, args, kwargs) == expected
    treadle_frame.reset(function)


@pytest.mark.parametrize("retry", [False, True])
def test_the_code_may_run_when_the_fast_path_callable_raises(retry: bool) -> None:
    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return f"code with {x}"

    def fail(x: int) -> str:
        error = (KeyboardInterrupt if x == 2 else ValueError)("fast path")
        if x == 3:
            error.raised_by_hook = True  # type: ignore[attr-defined]
        if x == 4:
            error.args = ("in the question",)
        raise error

    def may_retry(error: BaseException) -> bool:
        assert error.__traceback__ is not None
        if error.args == ("in the question",):
            raise LookupError("by the question")
        return not hasattr(error, "raised_by_hook")

    question = (may_retry,) if retry else ()
    add_entry(f, Entry(g.__code__, ALWAYS, fast_path=(fail, ("x",), False, *question)))
    fast = dispatcher(f, never)
    with pytest.raises(KeyboardInterrupt):
        fast(2)
    with pytest.raises(ValueError, match="fast path"):
        fast(3)
    if retry:
        assert fast(1) == "code with 1"
        with pytest.raises(LookupError, match="by the question"):
            fast(4)
    else:
        with pytest.raises(ValueError, match="fast path"):
            fast(1)
    with pytest.raises(ValueError, match="fast_path"):
        Entry(g.__code__, ALWAYS, fast_path=(fail, ("x",), False, 1))  # type: ignore[arg-type]


def test_a_copy_follows_its_function():
    def original(x: int, k: int = 1, *, m: int = 0) -> int:
        return x + k + m

    def other(x: int, k: int = 1, *, m: int = 0) -> int:
        return x - k - m

    double = types.FunctionType(original.__code__.replace(), original.__globals__, "double", original.__defaults__)
    double.__kwdefaults__ = original.__kwdefaults__
    refreshed = []

    def refresh() -> None:
        refreshed.append(1)
        double.__code__ = original.__code__.replace()
        double.__defaults__, double.__kwdefaults__ = original.__defaults__, original.__kwdefaults__

    call = dispatcher(double, RUN_CACHED, original, refresh)
    assert (call(5), refreshed) == (6, [])
    original.__defaults__ = (2,)
    assert (call(5), call(5), refreshed) == (7, 7, [1])
    original.__kwdefaults__ = {"m": 10}
    assert (call(5), refreshed) == (17, [1, 1])
    original.__code__ = other.__code__
    assert (call(5), refreshed) == (-7, [1, 1, 1])


def test_an_exception_of_refresh_comes_out_of_the_call():
    def original() -> None: ...

    def refresh() -> None:
        raise KeyError("refresh")

    call = dispatcher(original, RUN_CACHED, original, refresh)
    original.__defaults__ = (2,)
    with pytest.raises(KeyError, match="refresh"):
        call()
    with pytest.raises(TypeError, match="refresh"):
        dispatcher(original, RUN_CACHED, original)  # type: ignore[call-arg]


def test_an_entry_that_is_removed_goes_with_the_function_made_for_it():
    def f(x):
        return "original"

    def replacement(x):
        return "replaced"

    entry = Entry(replacement.__code__, ALWAYS)
    add_entry(f, entry)
    fast, other = dispatcher(f, never), dispatcher(f, never)
    assert fast(1) == other(1) == "replaced"
    reference = weakref.ref(entry)
    assert treadle_frame.remove_entry(f, entry)
    del entry
    assert reference() is None
    add_entry(f, Entry(replacement.__code__, ALWAYS))
    assert fast(1) == other(1) == "replaced"
