"""What people are told about entries."""

from __future__ import annotations

from typing import Any

from frame_helpers import Recorder, handled, replacement

from treadle_frame import RUN_ONCE, Check, Entry, FrameInfo, GuardProgram, add_entry, skip
from treadle_frame.inspect import Rejection, describe, rejections, why_fails

X = ("local", "x")


def test_describe() -> None:
    def f(x: Any) -> None: ...

    guard = GuardProgram(
        [Check((X, ("attr", "a"), ("list_item", 0)), "equals", 5, "x.a[0] == 5"), Check((X,), "is", None)]
    )
    add_entry(f, Entry(f.__code__, guard))
    add_entry(f, Entry(f.__code__.replace(co_name="g"), GuardProgram([]), fast_path=(len, ("x",), True)))
    lines = describe(f).splitlines()
    assert lines[0] == f"{f.__qualname__} ({__file__}:{f.__code__.co_firstlineno})"
    assert lines[1:] == [
        "  entry 0: g, fast path, 0 hits",
        "  entry 1: f, code, 0 hits",
        "    local('x').attr('a').list_item(0) equals 5  x.a[0] == 5",
        "    local('x') is None",
    ]
    skip(f)
    assert describe(f.__code__).splitlines()[0].endswith(", skipped")


def test_rejections_name_the_first_failing_check_of_each_entry() -> None:
    free = "cell"

    def f(x: Any) -> Any:
        return free

    int_only = replacement(f, Check((X,), "type_is", int, "x is an int"))
    other_cell = replacement(
        f,
        Check((X,), "type_is", str, "x is a str"),
        Check((("closure", "free"),), "equals", "other", "free is 'other'"),
    )
    fits = replacement(f, Check((("closure", "free"),), "equals", "cell"), Check((("builtin", "len"),), "is", len))
    seen: list[Any] = []

    def handler(frame: FrameInfo) -> Any:
        if frame.code is f.__code__:
            seen.append(rejections(frame))
            seen.append(why_fails(fits, frame))
        return RUN_ONCE

    add_entry(f, int_only)
    add_entry(f, other_cell)
    with handled(handler):
        f("text")
    assert seen == [[Rejection(other_cell, "free is 'other'"), Rejection(int_only, "x is an int")], None]


def test_no_entries_no_rejections() -> None:
    def f() -> None: ...

    record = Recorder()
    with handled(record):
        f()
    assert rejections(record.frames[0]) == []
