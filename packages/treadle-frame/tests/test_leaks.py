"""10^5 calls of every kind leave references, allocated blocks and memory as they were."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

import treadle_frame
from treadle_frame import (
    RUN_CACHED,
    RUN_ONCE,
    SKIP,
    Check,
    Entry,
    FrameInfo,
    GuardProgram,
    add_entry,
    dispatcher,
    remove_entry,
    reset,
    set_handler,
)

X = ("local", "x")
CALLS = 100_000


class Value:
    def __init__(self) -> None:
        self.items = {"k": [1, 2]}


def f(x: Any, y: int = 2, *args: Any, z: int = 3, **kwargs: Any) -> Any:
    return x


def g(x: Any, y: int = 2, *args: Any, z: int = 3, **kwargs: Any) -> Any:
    local = [x, args, kwargs]
    inner = lambda: local  # noqa: E731
    return inner()[0]


def resident_pages() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1])


PATH = (X, ("attr", "items"), ("dict_item", "k"))
GUARD = GuardProgram(
    [
        Check((X,), "type_is", Value),
        Check(PATH, "len", 2),
        Check((*PATH, ("list_item", 1)), "equals", 2),
        Check((X, ("instance_dict", "items")), "dict_keys", ("k",)),
        Check((X,), "distinct_objects", [PATH]),
        Check((("global", "CALLS"),), "equals", CALLS),
    ]
)
FAILS = GuardProgram([*GUARD.checks, Check((*PATH, ("list_item", 9)), "is", None)])


def hook_hits(value: Value) -> Callable[[], Any]:
    add_entry(f, Entry(g.__code__, FAILS))
    add_entry(f, Entry(g.__code__, GUARD))
    set_handler(RUN_CACHED)
    return lambda: f(value, 1, 2, 3, z=4, w=5)


def hook_misses(value: Value) -> Callable[[], Any]:
    add_entry(f, Entry(g.__code__, FAILS))
    set_handler(RUN_CACHED)
    return lambda: f(value, 1, 2, 3, z=4, w=5)


def handler_answers(value: Value) -> Callable[[], Any]:
    answers: list[Any] = [RUN_ONCE, Entry(g.__code__, GUARD), RUN_ONCE]
    state = [0]

    def handler(frame: FrameInfo) -> Any:
        if frame.code is not f.__code__:
            return SKIP
        reset(f)
        state[0] += 1
        return answers[state[0] % 3]

    fast = dispatcher(f, handler)
    return lambda: fast(value, 1, w=5)


def handler_raises(value: Value) -> Callable[[], Any]:
    def handler(frame: FrameInfo) -> Any:
        raise KeyError("k")

    fast = dispatcher(f, handler)

    def call() -> Any:
        try:
            fast(value, 1, w=5)
        except KeyError:
            return value

    return call


def too_large_for_the_stack(value: Value) -> Callable[[], Any]:
    namespace: dict[str, Any] = {}
    body = "".join(f"    v{i} = 0\n" for i in range(3000))
    exec(f"def h(x, y=2, *args, z=3, **kwargs):\n    if x: return x\n{body}", namespace)
    add_entry(f, Entry(namespace["h"].__code__, GUARD))
    set_handler(RUN_CACHED)
    return lambda: f(value, 1, 2, z=4, w=5)


def dispatcher_hits(value: Value) -> Callable[[], Any]:
    add_entry(f, Entry(g.__code__, GUARD))
    fast = dispatcher(f, lambda frame: RUN_ONCE)
    return lambda: fast(value, 1, 2, z=4, w=5)


def dispatcher_fast_path(value: Value) -> Callable[[], Any]:
    values = ("x", ("args", 0), ("kwargs", "w"))
    add_entry(f, Entry(g.__code__, GUARD, fast_path=(lambda x, a, w: (x, a, w), values, True)))
    fast = dispatcher(f, lambda frame: RUN_ONCE)
    return lambda: fast(value, 1, 2, z=4, w=5)


def dispatcher_wrong_arguments(value: Value) -> Callable[[], Any]:
    add_entry(f, Entry(g.__code__, GUARD))
    fast = dispatcher(f, RUN_CACHED)

    def call() -> Any:
        try:
            fast(value, 1, 2, x=3)
        except TypeError:
            return value

    return call


def entries_come_and_go(value: Value) -> Callable[[], Any]:
    def call() -> Any:
        entry = Entry(g.__code__, GuardProgram(GUARD.checks), payload=[value], fast_path=(len, ("x",), True))
        add_entry(f, entry)
        remove_entry(f, entry)
        return value

    return call


def codes_come_and_go(value: Value) -> Callable[[], Any]:
    def call() -> Any:
        code = f.__code__.replace(co_name="h")
        add_entry(code, Entry(g.__code__, GUARD, payload=[value]))
        add_entry(code, Entry(code, GUARD, payload=[value]))
        treadle_frame.skip(code)
        return value

    return call


def sets_handlers(value: Value) -> Callable[[], Any]:
    def call() -> Any:
        set_handler(lambda frame: SKIP)
        set_handler(None)
        return value

    return call


SLOW = {"entries_come_and_go", "codes_come_and_go", "too_large_for_the_stack", "handler_raises"}
KINDS = [
    hook_hits,
    hook_misses,
    handler_answers,
    handler_raises,
    too_large_for_the_stack,
    dispatcher_hits,
    dispatcher_fast_path,
    dispatcher_wrong_arguments,
    entries_come_and_go,
    codes_come_and_go,
    sets_handlers,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_calls_leave_nothing_behind(kind: Callable[[Value], Callable[[], Any]]) -> None:
    value = Value()
    call = kind(value)
    n = CALLS // 10 if kind.__name__ in SLOW else CALLS
    watched = [value, value.items, value.items["k"], f, f.__code__, g, g.__code__, None]
    for _ in range(1000):
        assert call() is value
    gc.collect()
    gc.disable()
    try:
        blocks, pages = sys.getallocatedblocks(), resident_pages()
        references = [sys.getrefcount(watch) for watch in watched]
        for _ in range(n):
            call()
        half_way = sys.getallocatedblocks()
        for _ in range(n):
            call()
        # A free list or a table may grow once; a leak grows all the time.
        blocks = min((half_way - blocks, sys.getallocatedblocks() - half_way), key=abs)
        pages = resident_pages() - pages
        changed = [sys.getrefcount(watch) - before for watch, before in zip(watched, references, strict=True)]
    finally:
        gc.enable()
        set_handler(None)
    assert abs(blocks) < 200, f"{blocks} more blocks after {n} calls"
    assert all(abs(change) < 20 for change in changed), changed
    assert pages < 512, f"{pages} more pages after {n} calls"
