"""The evaluator: states of a thread, which frames it looks at, and that everything else is as without it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from frame_helpers import FOREIGN_EVALUATOR, Recorder, address_of, handled, replacement

import treadle_frame
from treadle_frame import (
    RUN_CACHED,
    RUN_ONCE,
    RUN_ONCE_BELOW,
    SKIP,
    SKIP_BELOW,
    Check,
    Entry,
    EvaluatorError,
    EvaluatorWarning,
    FrameInfo,
    GuardProgram,
    LayoutError,
    StaleGuardWarning,
    entries,
    get_handler,
    is_installed,
    is_skipped,
    set_handler,
)


def test_set_handler_returns_what_was_set_before() -> None:
    def handler(frame: FrameInfo) -> Any:
        return RUN_ONCE

    assert set_handler(handler) is None
    assert get_handler() is handler
    assert set_handler(RUN_CACHED) is handler
    assert set_handler(None) is RUN_CACHED
    assert get_handler() is None


@pytest.mark.parametrize("wrong", [1, "x", SKIP, RUN_ONCE, object()])
def test_set_handler_refuses_what_is_no_handler(wrong: Any) -> None:
    with pytest.raises(TypeError, match="handler"):
        set_handler(wrong)


def test_sentinels_are_named_and_single() -> None:
    import copy
    import pickle

    assert [repr(s) for s in (RUN_CACHED, SKIP, RUN_ONCE)] == [
        "treadle_frame.RUN_CACHED",
        "treadle_frame.SKIP",
        "treadle_frame.RUN_ONCE",
    ]
    assert copy.deepcopy(SKIP) is SKIP
    assert pickle.loads(pickle.dumps(RUN_ONCE)) is RUN_ONCE


def test_evaluator_is_installed_only_while_needed() -> None:
    assert not is_installed()
    set_handler(lambda frame: RUN_ONCE)
    assert is_installed()
    set_handler(None)
    assert not is_installed()


def test_evaluator_is_away_while_the_handler_runs() -> None:
    seen = []

    def f() -> int:
        return 1

    def handler(frame: FrameInfo) -> Any:
        seen.append((is_installed(), get_handler()))
        return RUN_ONCE

    with handled(handler):
        f()
        assert get_handler() is handler and is_installed()
    assert seen == [(False, None)]


def test_handler_is_told_about_the_frame() -> None:
    outer = 5

    def f(a: int, /, b: int, *args: int, c: int = 3, **kwargs: int) -> int:
        inner = outer
        return inner + a

    record = Recorder()
    with handled(record):
        assert f(1, 2, 4, d=6) == 6
    (frame,) = record.frames
    assert frame.code is f.__code__ and frame.function is f
    assert frame.globals is globals() and frame.builtins["len"] is len
    assert frame.locals == {"a": 1, "b": 2, "args": (4,), "c": 3, "kwargs": {"d": 6}}
    assert frame.closure is f.__closure__ and frame.closure is not None
    assert frame.closure[0].cell_contents == 5


def test_function_without_free_variables_has_no_closure() -> None:
    record = Recorder()
    with handled(record):
        top_level(1)
    assert record.frames[0].closure is None


def top_level(x: Any) -> Any:
    return x


def test_entry_runs_in_place_of_the_function() -> None:
    def f(x: int) -> str:
        return f"original {x}"

    def g(x: int) -> str:
        return f"replaced {x}"

    record = Recorder(f=replacement(g, Check((("local", "x"),), "type_is", int)))
    with handled(record):
        assert [f(1), f(2)] == ["replaced 1", "replaced 2"]
        assert record.asked.count("f") == 1
        record.answers["f"] = RUN_ONCE
        assert f("s") == "original s"
        assert record.asked.count("f") == 2
    assert f(3) == "original 3"
    assert entries(f)[0].hits == 1


def test_run_cached_uses_entries_and_never_asks() -> None:
    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return "replaced"

    treadle_frame.add_entry(f, replacement(g, Check((("local", "x"),), "equals", 1)))
    with handled(RUN_CACHED):
        assert [f(1), f(2)] == ["replaced", "original"]


def test_skip_is_for_ever_run_once_for_one_call() -> None:
    def f() -> None: ...
    def g() -> None: ...

    record = Recorder(f=SKIP)
    with handled(record):
        for _ in range(3):
            f()
            g()
    assert record.asked == ["f", "g", "g", "g"]
    assert is_skipped(f) and not is_skipped(g)


def test_callees_of_skipped_and_replaced_code_are_looked_at() -> None:
    def callee() -> int:
        return 1

    def skipped() -> int:
        return callee()

    def original(h: Callable[[], int]) -> int:
        return 0

    def other(h: Callable[[], int]) -> int:
        return h()

    record = Recorder(skipped=SKIP, original=replacement(other))
    with handled(record):
        assert skipped() == 1 and original(callee) == 1
    assert record.asked == ["skipped", "callee", "original", "callee"]


def test_handler_exception_comes_out_of_the_call() -> None:
    class Odd(Exception):
        pass

    def f(x: list[int]) -> None:
        x.append(1)

    def handler(frame: FrameInfo) -> Any:
        raise Odd("from the handler")

    given: list[int] = []
    with pytest.raises(Odd, match="from the handler") as caught, handled(handler):
        try:
            f(given)
        finally:
            assert get_handler() is handler and is_installed()
    assert given == []
    assert "handler" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    del caught  # its traceback holds the handler's frame
    gc.collect()
    assert sys.getrefcount(given) == 2


def test_wrong_answer_is_a_type_error() -> None:
    def f() -> None: ...

    with (
        pytest.raises(TypeError, match="Entry, SKIP, SKIP_BELOW, RUN_ONCE or RUN_ONCE_BELOW, not 7"),
        handled(lambda frame: 7),
    ):
        f()


def test_wrong_layout_comes_out_of_the_call() -> None:
    def f(a: int) -> None: ...
    def g(b: int) -> None: ...

    with handled(Recorder(f=replacement(g))), pytest.raises(LayoutError, match="named 'b', must be 'a'"):
        f(1)


def test_stale_guard_warns_and_runs_the_original() -> None:
    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return "replaced"

    record = Recorder(f=replacement(g, Check((("local", "x"),), "type_is", str, "x is a str")))
    with handled(record), pytest.warns(StaleGuardWarning, match="'f' is not used.*x is a str"):
        assert f(1) == "original"
    assert entries(f) == ()


def test_code_whose_entries_are_always_stale_is_left_alone() -> None:
    def f(x: int) -> str:
        return "original"

    asked = []

    def handler(frame: FrameInfo) -> Any:
        if frame.code is not f.__code__:
            return RUN_ONCE
        asked.append(frame)
        return replacement(f, Check((("local", "x"),), "type_is", str, "x is a str"))

    with pytest.warns(StaleGuardWarning):
        with handled(handler):
            for _ in range(20):
                assert f(1) == "original"
        assert len(asked) == 8
        assert is_skipped(f)
        treadle_frame.reset(f)
        with handled(handler):
            assert f(1) == "original"
        assert len(asked) == 9


def test_stale_guard_as_error_comes_out_of_the_call() -> None:
    def f(x: int) -> str:
        return "original"

    record = Recorder(f=replacement(f, Check((("local", "x"),), "type_is", str)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with handled(record), pytest.raises(StaleGuardWarning):
            f(1)


def test_generators_and_coroutines_pass_untouched() -> None:
    def numbers(n: int) -> Iterator[int]:
        received = 0
        while n:
            received = (yield n + received) or 0
            n -= 1

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def ticks() -> Any:
        yield 1
        await asyncio.sleep(0)
        yield 2

    async def everything() -> list[int]:
        return [await answer(), *[tick async for tick in ticks()]]

    record = Recorder()
    with handled(record):
        generator = numbers(3)
        assert [next(generator), generator.send(10), *generator] == [3, 12, 1]
        thrown = numbers(3)
        next(thrown)
        with pytest.raises(KeyError):
            thrown.throw(KeyError("k"))
        assert sum(x for x in range(4)) == 6
        assert asyncio.run(everything()) == [42, 1, 2]
    assert not {"numbers", "answer", "ticks", "everything", "<genexpr>"} & set(record.asked)


def test_class_bodies_modules_and_exec_pass_untouched() -> None:
    def f() -> int:
        return 1

    record = Recorder()
    namespace: dict[str, Any] = {}
    with handled(record):

        class Body:
            x = 1

        exec("y = 2\ndef inner(): return 3", namespace)
        assert eval("y + 1", namespace) == 3
        exec(f.__code__, {})
    assert record.asked == []
    assert Body.x == 1 and namespace["inner"]() == 3


def test_exceptions_and_tracebacks_of_replaced_code() -> None:
    def f(x: int) -> int:
        return x

    def g(x: int) -> int:
        return 1 // x

    with handled(Recorder(f=replacement(g))):
        assert f(1) == 1
        with pytest.raises(ZeroDivisionError) as caught:
            f(0)
        try:
            f(0)
        except ZeroDivisionError as error:
            assert error.__traceback__ is not None
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "g" and frames[-1].line == "return 1 // x"
    frame = caught.value.__traceback__
    assert frame is not None
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert frame.tb_frame.f_locals == {"x": 0} and frame.tb_frame.f_back is not None


def test_frame_objects_outlive_replaced_calls() -> None:
    def f(x: Any) -> Any: ...

    def g(x: Any) -> Any:
        extra = [x]
        return sys._getframe(), extra

    with handled(Recorder(f=replacement(g))):
        frame, extra = f("value")
    assert frame.f_locals == {"x": "value", "extra": ["value"]} and frame.f_code is g.__code__
    assert frame.f_locals["extra"] is extra


def test_recursion_limit_holds() -> None:
    def f(n: int) -> int:
        return 0 if n == 0 else 1 + f(n - 1)

    def g(n: int) -> int:
        return 0 if n == 0 else 1 + f(n - 1)

    g = _with_free_variable(f, g)
    with handled(Recorder(f=replacement(g))):
        assert f(100) == 100
        with pytest.raises(RecursionError):
            f(10**6)
        assert f(100) == 100


def _with_free_variable(f: Any, g: Any) -> Any:
    """Both close over `f`, as a replacement must."""
    assert g.__code__.co_freevars == f.__code__.co_freevars == ("f",)
    return g


def test_deep_recursion_of_original_code_under_the_hook() -> None:
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    with handled(lambda frame: RUN_ONCE):
        with pytest.raises(RecursionError):
            depth(10**6)
        assert depth(200) == 200


def test_handler_that_exhausts_the_stack() -> None:
    def endless() -> Any:
        return endless()

    def f() -> int:
        return 1

    with handled(lambda frame: endless()):
        assert f() == 1  # Python has room for it


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_tracing_and_profiling_see_replaced_code(install: Callable[[Any], None]) -> None:
    events: list[tuple[str, str]] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            events.append((frame.f_code.co_name, event))
        return trace

    def f(x: int) -> int:
        return x

    def g(x: int) -> int:
        y = x + 1
        return y

    treadle_frame.add_entry(f, replacement(g))
    with handled(RUN_CACHED):
        install(trace)
        try:
            result = f(1)
        finally:
            install(None)  # type: ignore[arg-type]
    assert result == 2
    assert ("g", "call") in events and ("g", "return") in events
    assert not [name for name, _ in events if name == "f"]


def test_tracing_with_a_handler_that_raises() -> None:
    def f(x: int) -> int:
        return x

    def handler(frame: FrameInfo) -> Any:
        raise ValueError("no")

    def trace(frame: Any, event: str, argument: Any) -> Any:
        return trace

    old = sys.gettrace()
    with pytest.raises(ValueError, match="no"), handled(handler):
        sys.settrace(trace)
        try:
            f(1)
        finally:
            sys.settrace(old)


def test_each_thread_has_its_own_state() -> None:
    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return "replaced"

    results: dict[str, Any] = {}
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        results["before"] = (get_handler(), f(1))
        set_handler(RUN_CACHED)
        results["after"] = (get_handler(), f(1))
        go.set()
        done.wait(10)

    treadle_frame.add_entry(f, replacement(g))
    thread = threading.Thread(target=other)
    thread.start()
    go.wait(10)
    assert is_installed() and get_handler() is None and f(1) == "original"
    done.set()
    thread.join()
    assert results == {"before": (None, "original"), "after": (RUN_CACHED, "replaced")}
    assert not is_installed(), "the thread ended with its state on"


def test_state_of_a_thread_that_ended_releases_its_handler() -> None:
    import weakref

    class Handler:
        def __call__(self, frame: FrameInfo) -> Any:
            return RUN_ONCE

    handler: Handler | None = Handler()
    reference = weakref.ref(handler)
    thread = threading.Thread(target=set_handler, args=(handler,))
    thread.start()
    thread.join()
    del thread
    handler = None
    gc.collect()
    assert reference() is None and not is_installed()


def test_many_threads_at_once() -> None:
    def f(x: int) -> int:
        return x

    def g(x: int) -> int:
        return -x

    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(300):
                handler = Recorder(f=replacement(g, Check((("local", "x"),), "equals", i % 3)))
                with handled(handler if (i + seed) % 2 else RUN_CACHED):
                    for x in range(3):
                        assert f(x) in (x, -x)
                if i % 50 == seed:
                    treadle_frame.reset()
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StaleGuardWarning)
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == [] and not is_installed()


def test_handler_may_set_a_handler_of_its_own() -> None:
    def f() -> int:
        return 1

    def helper() -> int:
        return 1

    inner = Recorder()

    def handler(frame: FrameInfo) -> Any:
        with handled(inner):
            helper()
        set_handler(inner)  # unbalanced: overruled when the handler returns
        return RUN_ONCE

    with handled(handler):
        assert f() == 1
        assert get_handler() is handler
    assert inner.asked == ["helper"]


REPLACED = """
def g(x):
    import gc
    treadle_frame.reset()
    gc.collect()
    return f"still running {x}"
"""


def test_reset_from_within_replaced_code() -> None:
    def f(x: int) -> str:
        return "original"

    for _ in range(3):
        namespace: dict[str, Any] = {}
        exec(REPLACED, namespace)  # a new code object each time, which only the entry holds
        code = namespace.pop("g").__code__
        treadle_frame.add_entry(f, Entry(code, GuardProgram([])))
        del code, namespace
        with handled(RUN_CACHED):
            assert f(5) == "still running 5"
            assert f(5) == "original"


@pytest.fixture
def foreign_evaluator(compile_c: Callable[..., Path]) -> Iterator[ctypes.PyDLL]:
    library = ctypes.PyDLL(str(compile_c(FOREIGN_EVALUATOR)))
    assert address_of(library, "come")
    yield library
    library.go()


def test_no_installing_over_a_foreign_evaluator(foreign_evaluator: ctypes.PyDLL) -> None:
    foreign_evaluator.come()
    with pytest.raises(EvaluatorError, match="PEP 523"):
        set_handler(RUN_CACHED)
    assert get_handler() is None
    foreign_evaluator.go()
    set_handler(RUN_CACHED)
    set_handler(None)


def test_no_uninstalling_of_a_foreign_evaluator(foreign_evaluator: ctypes.PyDLL) -> None:
    set_handler(RUN_CACHED)
    foreign_evaluator.come()
    assert not is_installed()
    set_handler(None)
    with pytest.raises(EvaluatorError):
        set_handler(RUN_CACHED)


def test_foreign_evaluator_that_comes_while_the_handler_runs(foreign_evaluator: ctypes.PyDLL) -> None:
    def f() -> int:
        return 1

    def handler(frame: FrameInfo) -> Any:
        foreign_evaluator.come()
        return RUN_ONCE

    with pytest.warns(EvaluatorWarning, match="off in this thread"):
        set_handler(handler)
        assert f() == 1
    assert get_handler() is None


def test_interpreter_exits_cleanly_with_the_hook_on() -> None:
    script = """
        import threading, treadle_frame as tf
        def f(x): return x
        def handler(frame):
            return tf.Entry(frame.code, tf.GuardProgram([]))
        tf.set_handler(handler)
        def forever():
            tf.set_handler(handler)
            while True:
                f(1)
        threading.Thread(target=forever, daemon=True).start()
        print(f(2))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_subinterpreters_are_refused() -> None:
    if sys.version_info < (3, 12):
        name = "_xxsubinterpreters"
    else:
        name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    script = f"""
        import {name} as interpreters, treadle_frame
        identity = interpreters.create()
        text = "try:\\n  import treadle_frame\\nexcept ImportError: pass\\nelse: raise SystemError('imported')"
        failed = interpreters.run_string(identity, text)
        print("failed" if failed else "refused")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_recursion_as_deep_as_without_a_hook() -> None:
    """Under an installed evaluator each call takes C stack."""
    program = """
import sys, treadle_frame
sys.setrecursionlimit(30000)
treadle_frame.set_handler(lambda frame: treadle_frame.RUN_ONCE)
def count_down(n):
    return 0 if n == 0 else count_down(n - 1)
for _ in range(2):
    assert count_down(20000) == 0
assert treadle_frame.is_installed()
treadle_frame.set_handler(None)
assert not treadle_frame.is_installed()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_a_handler_without_room_leaves_the_frame_to_python() -> None:
    def handler(frame: object) -> object:
        raise RecursionError

    def function() -> int:
        return 3

    previous = treadle_frame.set_handler(handler)
    try:
        assert function() == 3
    finally:
        treadle_frame.set_handler(previous)


def test_run_once_below_turns_the_hook_off_in_one_call_and_what_it_calls() -> None:
    def inner(x: int) -> int:
        if x < 0:
            raise ValueError(x)
        return x + (get_handler() is None)

    def outer(x: int) -> int:
        return inner(x)

    record = Recorder(outer=RUN_ONCE_BELOW)
    with handled(record):
        assert outer(1) == 2
        assert "inner" not in record.asked and not is_skipped(outer)
        with pytest.raises(ValueError):
            outer(-1)
        assert get_handler() is record
        assert "inner" not in record.asked and record.asked.count("outer") == 2
        record.answers["outer"] = RUN_ONCE
        assert outer(1) == 1
        assert record.asked[-2:] == ["outer", "inner"]
    fast = treadle_frame.dispatcher(outer, lambda frame: RUN_ONCE_BELOW)
    assert fast(1) == 2 and fast(1) == 2


def test_skip_below_turns_the_hook_off_in_what_the_function_calls() -> None:
    def inner(x: int) -> int:
        if x < 0:
            raise ValueError(x)
        return x + 1

    def outer(x: int) -> int:
        return inner(x) + (get_handler() is None)

    def other(x: int) -> int:
        return outer(x) + inner(x)

    record = Recorder(outer=SKIP_BELOW)
    with handled(record):
        assert other(1) == 5
        assert record.asked.count("inner") == 1  # for `other`, not for `outer`
        assert other(1) == 5
        with pytest.raises(ValueError):
            outer(-1)
        assert get_handler() is record
        assert record.asked.count("outer") == 1 and record.asked.count("inner") == 2
        treadle_frame.unskip(outer)
        assert outer(1) == 3  # asked again, and answered as before
        assert record.asked.count("outer") == 2
