"""Entries on code objects: adding, order, removal, reset, skip marks, and that all of it dies with the code."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from frame_helpers import Recorder, handled, replacement

from treadle_frame import (
    RUN_CACHED,
    Check,
    Entry,
    GuardProgram,
    LayoutError,
    add_entry,
    counters,
    dispatcher,
    entries,
    get_handler,
    is_skipped,
    remove_entry,
    reset,
    skip,
    unskip,
)

X = ("local", "x")
ALWAYS = GuardProgram([])


def fresh(name: str = "f") -> types.FunctionType:
    """A function whose code object nobody else holds."""
    namespace: dict[str, Any] = {}
    exec(f"def {name}(x):\n    return ('{name}', x)", namespace)
    return namespace.pop(name)


def entry_for(value: Any, text: str) -> Entry:
    namespace: dict[str, Any] = {}
    exec(f"def g(x):\n    return '{text}'", namespace)
    return Entry(namespace["g"].__code__, GuardProgram([Check((X,), "equals", value)]), payload=text)


def test_entries_start_empty_and_newest_is_first() -> None:
    f = fresh()
    assert entries(f) == entries(f.__code__) == ()
    first, second = entry_for(1, "one"), entry_for(2, "two")
    add_entry(f, first)
    add_entry(f.__code__, second)
    assert entries(f) == (second, first)
    add_entry(f, first)
    assert entries(f) == (first, second), "an entry stands there once"


def test_an_entry_that_is_hit_moves_to_the_front() -> None:
    f = fresh()
    one, two, three = (entry_for(n, str(n)) for n in (1, 2, 3))
    for entry in (one, two, three):
        add_entry(f, entry)
    before = counters()
    with handled(RUN_CACHED):
        assert f(1) == "1"
        assert entries(f) == (one, three, two)
        assert f(2) == "2"
        assert entries(f) == (two, one, three)
        assert f(9) == ("f", 9)
    after = counters()
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (2, 1)
    assert after["guard_evals"] - before["guard_evals"] == 3 + 3 + 3
    assert [entry.hits for entry in (one, two, three)] == [1, 1, 0]


def test_remove_entry() -> None:
    f = fresh()
    one, two = entry_for(1, "one"), entry_for(2, "two")
    add_entry(f, one)
    add_entry(f, two)
    assert remove_entry(f, one) is True
    assert entries(f) == (two,)
    assert remove_entry(f, one) is False
    assert remove_entry(fresh(), one) is False


def test_reset_of_one_code_and_of_all() -> None:
    f, g = fresh(), fresh("g")
    for function in (f, g):
        add_entry(function, entry_for(1, "x"))
        skip(function)
    reset(f)
    assert entries(f) == () and not is_skipped(f)
    assert entries(g) != () and is_skipped(g)
    reset()
    assert entries(g) == () and not is_skipped(g)
    reset(fresh())


def test_skip_marks() -> None:
    f = fresh()
    assert not is_skipped(f)
    unskip(f)
    skip(f)
    assert is_skipped(f) and is_skipped(f.__code__)
    add_entry(f, entry_for(1, "one"))
    with handled(RUN_CACHED):
        assert f(1) == ("f", 1)
        unskip(f)
        assert f(1) == "one"


@pytest.mark.parametrize("function", [entries, skip, unskip, is_skipped, reset])
def test_code_may_be_given_as_function_or_method(function: Callable[[Any], Any]) -> None:
    class Some:
        def method(self) -> None: ...

    for good in (fresh(), fresh().__code__, Some.method, Some().method):
        function(good)
    for wrong in (3, len, Some):
        with pytest.raises(TypeError, match="code"):
            function(wrong)


def test_methods_share_the_entries_of_their_function() -> None:
    class Some:
        def method(self, x: int) -> str:
            return "original"

    def other(self: Some, x: int) -> str:
        return "replaced"

    add_entry(Some().method, Entry(other.__code__, ALWAYS))
    with handled(RUN_CACHED):
        assert Some().method(1) == "replaced"


def layout(text: str) -> types.CodeType:
    namespace: dict[str, Any] = {}
    exec(f"def outer(p=0, q=0):\n    {text}\n    return f", namespace)
    return namespace["outer"]().__code__


@pytest.mark.parametrize(
    ("original", "given", "message"),
    [
        ("def f(a): ...", "def f(a, b): ...", "co_argcount is 2, must be 1"),
        ("def f(a, b): ...", "def f(a, /, b): ...", "co_posonlyargcount is 1, must be 0"),
        ("def f(*, a): ...", "def f(*, a, b): ...", "co_kwonlyargcount is 2, must be 1"),
        ("def f(*a): ...", "def f(): ...", "CO_VARARGS is 0, must be 1"),
        ("def f(): ...", "def f(**a): ...", "CO_VARKEYWORDS is 1, must be 0"),
        ("def f(a, b): ...", "def f(a, c): ...", "argument 1 is named 'c', must be 'b'"),
        ("def f(*args): ...", "def f(*rest): ...", "argument 0 is named 'rest', must be 'args'"),
        ("def f(): return p", "def f(): ...", r"co_freevars is \(\), must be \('p',\)"),
        ("def f(): ...", "def f(): return p", r"co_freevars is \('p',\), must be \(\)"),
        ("def f(): return p, q", "def f(): return p", "co_freevars"),
        ("def f(): yield", "def f(): ...", "plain function"),
        ("async def f(): ...", "def f(): ...", "plain function"),
    ],
)
def test_wrong_layout_is_refused_and_named(original: str, given: str, message: str) -> None:
    code = layout(original)
    entry = Entry(layout(given), ALWAYS)
    with pytest.raises(LayoutError, match=message):
        add_entry(code, entry)
    assert entries(code) == ()


def test_layout_errors_are_value_errors() -> None:
    assert issubclass(LayoutError, ValueError)


@pytest.mark.parametrize(
    "text", ["def f(): yield", "async def f(): ...", "async def f(): yield", "f = (x for x in ())"]
)
def test_replacement_code_must_be_a_plain_function(text: str) -> None:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    f = namespace["f"]
    code = f.gi_code if isinstance(f, types.GeneratorType) else f.__code__
    with pytest.raises(LayoutError, match="plain function"):
        Entry(code, ALWAYS)
    with pytest.raises(LayoutError, match="plain function"):
        Entry(compile("1", "", "eval"), ALWAYS)


def test_entry_arguments_are_checked() -> None:
    code = fresh().__code__
    for args in [(), (code,), (fresh(), ALWAYS), (code, [])]:
        with pytest.raises(TypeError):
            Entry(*args)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        add_entry(code, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fast_path",
    [
        3,
        (len,),
        (3, ("x",), True),
        (len, ["x"], True),
        (len, ("x",), 1),
        (len, ("y",), True),
        (len, (3,), True),
        (len, (("x", 0),), True),
        (len, (("args", "k"),), True),
        (len, (("args", -1),), True),
        (len, (("args", 2**80),), True),
        (len, (("kwargs", 0),), True),
        (len, (("args", 0, 0),), True),
    ],
)
def test_wrong_fast_path_is_refused(fast_path: Any) -> None:
    def f(x: int, *args: int, **kwargs: int) -> None: ...

    Entry(f.__code__, ALWAYS, fast_path=(len, ("x", "args", ("args", 0), ("kwargs", "k"), "kwargs"), True))
    with pytest.raises(ValueError, match="fast_path"):
        Entry(f.__code__, ALWAYS, fast_path=fast_path)


def test_what_an_entry_shows() -> None:
    f = fresh()
    payload = object()
    fast_path = (len, ("x",), False)
    entry = Entry(f.__code__, ALWAYS, payload, fast_path)
    assert (entry.code, entry.guard, entry.payload, entry.fast_path, entry.hits) == (
        f.__code__,
        ALWAYS,
        payload,
        fast_path,
        0,
    )
    entry.payload = 3
    assert entry.payload == 3
    with pytest.raises(AttributeError):
        entry.code = None  # type: ignore[misc]
    assert repr(entry) == "<Entry f, 0 checks, 0 hits>"
    assert Entry(f.__code__, ALWAYS).fast_path is None


def test_entries_die_with_the_code_object() -> None:
    f = fresh()
    entry = entry_for(1, "one")
    reference = weakref.ref(entry)
    add_entry(f, entry)
    skip(f)
    del entry
    gc.collect()
    assert reference() is not None
    del f
    gc.collect()
    assert reference() is None
    reset()


def test_entries_that_hold_the_only_reference_to_other_codes() -> None:
    """Freeing a cache frees an entry, whose payload frees another code with a cache, and so on."""
    chain: Any = None
    reference = None
    for _ in range(200):
        f = fresh()
        add_entry(f, Entry(fresh("g").__code__.replace(co_name="g"), ALWAYS, payload=chain))
        reference = reference or weakref.ref(entries(f)[0])
        chain = f.__code__
        del f
    add_entry(chain, Entry(fresh("g").__code__, ALWAYS))
    reset()
    assert reference is not None and reference() is None


def test_reset_from_an_entry_that_is_being_freed() -> None:
    class Resets:
        def __del__(self) -> None:
            reset()
            counters()

    f, g = fresh(), fresh()
    add_entry(f, Entry(f.__code__, ALWAYS, payload=Resets()))
    add_entry(g, Entry(g.__code__, ALWAYS, payload=Resets()))
    reset(f)
    assert entries(f) == entries(g) == ()
    add_entry(f, Entry(fresh().__code__, ALWAYS, payload=Resets()))
    del f
    gc.collect()


@pytest.mark.parametrize("action", ["remove", "reset", "add", "drop"])
def test_guards_may_change_the_cache_they_are_looked_up_in(action: str) -> None:
    f = fresh()
    victim = entry_for(1, "victim")
    reference = weakref.ref(victim)
    box = [victim]

    def change(value: int) -> bool:
        if action == "remove" and box:
            remove_entry(f, box.pop())
        elif action == "reset":
            reset()
        elif action == "drop":
            box.clear()
            reset(f)
            gc.collect()
        else:
            add_entry(f, entry_for(7, "seven"))
        return False

    add_entry(f, victim)
    add_entry(f, Entry(fresh("g").__code__, GuardProgram([Check((X,), "call", change)])))
    del victim
    with handled(RUN_CACHED):
        assert f(1) == "victim", "the loop looks at the entries that were there when it began"
    if action != "add":
        box.clear()
        reset()
        gc.collect()
        assert reference() is None


def test_a_guard_may_replace_the_code_of_the_function() -> None:
    f = fresh()

    def change(value: int) -> bool:
        f.__code__ = fresh("new").__code__
        gc.collect()
        return True

    add_entry(f, Entry(fresh("g").__code__, GuardProgram([Check((X,), "call", change)])))
    with handled(RUN_CACHED):
        assert f(1) == ("g", 1)
    assert f(1) == ("new", 1)


def test_cycles_through_payloads_are_collected() -> None:
    f = fresh()
    entry = Entry(f.__code__, ALWAYS)
    entry.payload = [entry]
    reference = weakref.ref(entry)
    del entry
    gc.collect()
    assert reference() is None


def test_many_entries_on_one_code() -> None:
    f = fresh()
    for n in range(64):
        add_entry(f, entry_for(n, str(n)))
    with handled(RUN_CACHED):
        assert [f(n) for n in range(66)] == [*map(str, range(64)), ("f", 64), ("f", 65)]
    assert len(set(entries(f))) == 64


def test_one_entry_on_several_codes() -> None:
    entry = entry_for(1, "one")
    f, g = fresh(), fresh("g")
    add_entry(f, entry)
    add_entry(g, entry)
    with handled(RUN_CACHED):
        assert (f(1), g(1)) == ("one", "one")
    assert entry.hits == 2


def test_counters_name_what_they_count() -> None:
    assert list(counters()) == [
        "hits",
        "misses",
        "guard_evals",
        "handler_calls",
        "dispatcher_hits",
        "dispatcher_misses",
    ]
    assert all(isinstance(value, int) for value in counters().values())


def test_replacement_may_be_the_original_code() -> None:
    f = fresh()
    add_entry(f, replacement(f))
    with handled(RUN_CACHED):
        assert f(3) == ("f", 3)
    (entry,) = entries(f)
    assert entry.hits == 1 and entry.code == f.__code__
    reference = weakref.ref(entry)
    del f, entry
    gc.collect()
    assert reference() is None, "the code does not keep itself alive through its entry"


HITS_BEFORE_REST, CALLS_OF_REST = 64, 15


def test_entries_that_run_the_original_code_rest() -> None:
    f, record = fresh(), Recorder()
    add_entry(f, replacement(f, Check((X,), "equals", 3)))
    with handled(record):
        for _ in range(HITS_BEFORE_REST):
            assert f(3) == ("f", 3)
        for _ in range(CALLS_OF_REST):
            assert f(4) == ("f", 4)
        assert record.asked == []
        f(4)
        f(4)
    assert record.asked == ["f", "f"], "behind a rest the entries are looked at until one holds"


def test_another_entry_ends_the_rest() -> None:
    f, record = fresh(), Recorder()
    add_entry(f, replacement(f, Check((X,), "equals", 3)))
    with handled(record):
        for _ in range(HITS_BEFORE_REST):
            f(3)
        add_entry(f, entry_for(4, "new"))
        for _ in range(HITS_BEFORE_REST):
            assert f(3) == ("f", 3)
            assert f(4) == "new", "an entry with code of its own is never passed over"


def test_a_dispatcher_rests_as_well() -> None:
    f, record = fresh(), Recorder()
    fast = dispatcher(f, record)
    add_entry(f, replacement(f, Check((X,), "equals", 3)))
    for _ in range(HITS_BEFORE_REST):
        assert fast(3) == ("f", 3)
    for _ in range(CALLS_OF_REST):
        assert fast(4) == ("f", 4)
    assert record.asked == []
    fast(4)
    assert record.asked == ["f"]


def caller_of(g: Callable[..., Any]) -> types.FunctionType:
    namespace: dict[str, Any] = {"g": g}
    exec("def f(x):\n    return g(x)", namespace)
    return namespace["f"]


def test_the_hook_is_off_in_a_rest_where_nothing_below_was_compiled() -> None:
    states: list[Any] = []

    def g(x: int) -> int:
        states.append(get_handler())
        return x

    f, record = caller_of(g), Recorder()
    fast = dispatcher(f, record)
    add_entry(f, replacement(f, Check((X,), "equals", 3)))
    skip(g.__code__)
    for _ in range(HITS_BEFORE_REST + CALLS_OF_REST + 1):
        assert fast(3) == 3
    assert states == [record] * HITS_BEFORE_REST + [None] * CALLS_OF_REST + [record]


@pytest.mark.parametrize("is_asked", (True, False))
def test_the_hook_stays_on_in_a_rest_where_something_below_is_compiled(is_asked: bool) -> None:
    g = fresh("g")
    f, record = caller_of(g), Recorder()
    fast = dispatcher(f, record)
    add_entry(f, replacement(f, Check((X,), "equals", 3)))
    if not is_asked:
        add_entry(g, entry_for(3, "compiled"))
    for _ in range(HITS_BEFORE_REST + CALLS_OF_REST):
        assert fast(3) == (("g", 3) if is_asked else "compiled")
    assert len(record.asked) == (HITS_BEFORE_REST + CALLS_OF_REST if is_asked else 0)
