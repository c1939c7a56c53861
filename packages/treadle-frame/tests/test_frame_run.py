"""Running replacement code: arguments, cells, closures, sizes of frames, what frames see of themselves."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import Any

import pytest
from frame_helpers import Recorder, handled, replacement

import treadle_frame
from treadle_frame import RUN_CACHED, RUN_ONCE, Entry, GuardProgram, add_entry


def build(text: str, **names: Any) -> types.FunctionType:
    namespace: dict[str, Any] = dict(names)
    exec(text, namespace)
    return namespace["f"]


def swap(original: types.FunctionType, given: types.FunctionType) -> None:
    add_entry(original, replacement(given))


SIGNATURES = [
    ("", ""),
    ("a", "1"),
    ("a, b", "1, b=2"),
    ("a, /, b, *, c", "1, 2, c=3"),
    ("a, b=5", "1"),
    ("*args", "1, 2, 3"),
    ("**kwargs", "x=1, y=2"),
    ("a, *args, b, c=7, **kwargs", "1, 2, 3, b=4, z=5"),
    ("a, b=1, *args, c=2, **kwargs", "0"),
    ("a, /, **kwargs", "1, a=2"),
]


@pytest.mark.parametrize(("parameters", "arguments"), SIGNATURES)
@pytest.mark.parametrize("size", ["small", "huge"])
def test_arguments_arrive_in_every_layout(parameters: str, arguments: str, size: str) -> None:
    """`huge` frames do not fit into what is left of the data stack's chunk, so they go the way of a call."""
    original = build(f"def f({parameters}): return 'original'")
    extra = "".join(f"    v{i} = {i}\n" for i in range(5000)) if size == "huge" else "    v0 = 0\n"
    given = build(f"def f({parameters}):\n{extra}    w = lambda: v0\n    names = dict(locals())\n    return names, w()")
    expected = eval(f"given({arguments})", {"given": given})[0]
    swap(original, given)
    with handled(RUN_CACHED):
        names, w = eval(f"original({arguments})", {"original": original})
    del names["w"], expected["w"]
    assert names == expected and w == 0


def test_parameters_that_are_cells() -> None:
    original = build("def f(a, *args, b, **kwargs): return 'original'")
    given = build(
        "def f(a, *args, b, **kwargs):\n"
        "    def inner():\n"
        "        nonlocal a\n"
        "        a += 1\n"
        "        return a, args, b, kwargs\n"
        "    return inner"
    )
    swap(original, given)
    with handled(RUN_CACHED):
        inner = original(1, 2, b=3, c=4)
    assert inner() == (2, (2,), 3, {"c": 4}) and inner() == (3, (2,), 3, {"c": 4})


def test_closures_are_those_of_the_function_called() -> None:
    def make(free: int) -> tuple[Any, Any, Any]:
        def original() -> Any:
            return free

        def other() -> Any:
            nonlocal free
            free += 100
            return free

        return original, other, lambda: free

    one, other, read_one = make(1)
    two, _, read_two = make(2)
    assert one.__code__ is two.__code__
    add_entry(one, replacement(other))
    with handled(RUN_CACHED):
        assert (one(), two(), one()) == (101, 102, 201)
    assert (read_one(), read_two()) == (201, 102)


def test_globals_and_builtins_are_those_of_the_function_called() -> None:
    original = build("def f(): return 'original'", name="original's", __builtins__={"len": lambda x: "mine"})
    given = build("def f(): return name, len('')", name="replacement's")
    swap(original, given)
    with handled(RUN_CACHED):
        assert original() == ("original's", "mine")
    huge = build("def f():\n" + "".join(f"    v{i} = {i}\n" for i in range(5000)) + "    return name, len('')")
    treadle_frame.reset()
    swap(original, huge)
    with handled(RUN_CACHED):
        assert original() == ("original's", "mine")


def test_zero_argument_super_in_replacement() -> None:
    class Base:
        def method(self) -> str:
            return "base"

    class Derived(Base):
        def method(self) -> str:
            return "original " + super().method()

        def other(self) -> str:
            return "replaced " + super().method()

    add_entry(Derived.method, replacement(Derived.other))
    with handled(RUN_CACHED):
        assert Derived().method() == "replaced base"


def test_extra_locals_are_unbound() -> None:
    original = build("def f(a):\n    x = 1\n    return x")
    given = build("def f(a):\n    if a:\n        y = 1\n    return y")
    swap(original, given)
    with handled(RUN_CACHED):
        assert original(1) == 1
        with pytest.raises(UnboundLocalError):
            original(0)


def test_deep_stack_need_in_replacement() -> None:
    depth = 80
    given = build("def f(a):\n    return " + "[a, " * depth + "a" + "]" * depth)
    swap(original := build("def f(a): return a"), given)
    with handled(RUN_CACHED):
        value = original(1)
    assert value == given(1)


def test_frames_of_every_size_over_the_edge_of_a_chunk() -> None:
    """Recursion with a replacement larger than the original crosses chunks of the data stack at every offset."""
    for extra in (1, 3, 17, 101):
        original = build("def f(n): return 0 if n == 0 else f(n - 1)")
        body = "".join(f"    v{i} = [n]\n" for i in range(extra))
        given = build(
            f"def f(n):\n{body}    r = 0 if n == 0 else 1 + f(n - 1)\n    assert v{extra - 1} == [n]\n    return r"
        )
        given.__globals__["f"] = original
        original.__globals__["f"] = original
        swap(original, given)
        with handled(RUN_CACHED):
            for n in (0, 1, 50, 150):
                assert original(n) == n


def test_huge_replacement_raises_like_any_function() -> None:
    body = "".join(f"    v{i} = {i}\n" for i in range(5000))
    original = build("def f(a): return 0")
    swap(original, build(f"def f(a):\n{body}    return 1 // a"))
    with handled(RUN_CACHED):
        assert original(1) == 1
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                original(0)
    assert original(0) == 0


def test_arguments_are_released_when_the_call_is_over() -> None:
    class Value:
        pass

    body = "".join(f"    v{i} = a\n" for i in range(5000))
    for given in (build("def f(a): b = a"), build(f"def f(a):\n{body}    return 1")):
        original = build("def f(a): ...")
        swap(original, given)
        value = Value()
        reference = weakref.ref(value)
        with handled(RUN_CACHED):
            for _ in range(10):
                original(value)
            assert sys.getrefcount(value) == 2
            del value
        assert reference() is None


def test_frame_sees_the_replacement() -> None:
    original = build("def f(a): ...", sys=sys)
    given = build(
        "def f(a):\n    frame = sys._getframe()\n    return frame.f_code, frame.f_lineno, frame.f_back.f_code"
    )
    swap(original, given)
    with handled(RUN_CACHED):
        code, line, back = original(1)
    assert code is given.__code__ and line == 3
    assert back is test_frame_sees_the_replacement.__code__


def test_locals_and_eval_in_replacement() -> None:
    original = build("def f(a, b): ...")
    swap(original, build("def f(a, b):\n    c = a + b\n    return eval('a * b'), sorted(locals())"))
    with handled(RUN_CACHED):
        assert original(3, 4) == (12, ["a", "b", "c"])


def test_generators_made_inside_replacement() -> None:
    original = build("def f(n): ...")
    swap(original, build("def f(n):\n    def g():\n        for i in range(n):\n            yield i\n    return g()"))
    with handled(RUN_CACHED):
        generator = original(3)
    gc.collect()
    assert list(generator) == [0, 1, 2]


def test_exception_groups_and_finally_in_replacement() -> None:
    log: list[str] = []
    original = build("def f(a): ...", log=log)
    text = """
def f(a):
    try:
        try:
            raise ExceptionGroup('g', [ValueError(1), KeyError(2)])
        except* ValueError:
            log.append('value')
        finally:
            log.append('finally')
    except ExceptionGroup as rest:
        return [type(e).__name__ for e in rest.exceptions]
"""
    swap(original, build(text))
    with handled(RUN_CACHED):
        assert original(1) == ["KeyError"]
    assert log == ["value", "finally"]


def test_code_that_was_specialized_before_it_is_replaced_and_after() -> None:
    original = build("def f(a, b): return a - b")
    for _ in range(100):
        original(3, 1)
    given = build("def f(a, b): return a + b")
    for _ in range(100):
        given("a", "b")
    swap(original, given)
    with handled(RUN_CACHED):
        assert [original(i, 1) for i in range(100)] == [i + 1 for i in range(100)]
    assert given("a", "b") == "ab" and original(3, 1) == 2


def test_recursive_replacement_that_calls_the_original_name() -> None:
    record = Recorder(f=None)
    original = build("def f(n): return 'original'")
    given = build("def f(n): return n if n == 0 else g(n - 1)", g=original)
    original.__globals__["g"] = original
    record.answers["f"] = replacement(given)
    with handled(record):
        assert original(20) == 0
    assert record.asked == ["f"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_monitoring_sees_the_replacement() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool, seen = 3, []
    original = build("def f(a): return 0")
    given = build("def f(a):\n    b = 1 // a\n    return b")
    swap(original, given)
    monitoring.use_tool_id(tool, "test")
    try:
        for event in ("PY_START", "PY_RETURN", "PY_UNWIND"):
            number = getattr(monitoring.events, event)
            monitoring.register_callback(
                tool, number, lambda code, *rest, event=event: seen.append((event, code is given.__code__))
            )
        events = monitoring.events
        monitoring.set_local_events(tool, given.__code__, events.PY_START | events.PY_RETURN)
        monitoring.set_events(tool, events.PY_UNWIND)
        with handled(RUN_CACHED):
            assert original(1) == 1
            with pytest.raises(ZeroDivisionError):
                original(0)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert [event for event, ours in seen if ours] == ["PY_START", "PY_RETURN", "PY_START", "PY_UNWIND"]


def test_frame_that_is_left_without_running_releases_everything() -> None:
    """The handler raises: the frame must be cleared and popped, at every place of the data stack."""

    class Value:
        pass

    def handler(frame: treadle_frame.FrameInfo) -> Any:
        raise LookupError

    def nested(n: int, value: Any) -> None:
        if n:
            nested(n - 1, value)
        else:
            treadle_frame.set_handler(handler)
            try:
                leaf(value, value, k=value)
            finally:
                treadle_frame.set_handler(None)

    def leaf(*args: Any, **kwargs: Any) -> None: ...

    value = Value()
    reference = weakref.ref(value)
    for depth in range(0, 120, 7):
        with pytest.raises(LookupError):
            nested(depth, value)
    gc.collect()
    assert sys.getrefcount(value) == 2
    del value
    assert reference() is None


def workload() -> Any:
    """Much of the standard library's Python code: classes, closures, generators, exceptions, descriptors, super()."""
    import argparse
    import ast
    import collections
    import configparser
    import dataclasses
    import decimal
    import email.message
    import enum
    import fractions
    import inspect
    import io
    import json
    import pickle
    import re
    import string
    import textwrap
    import tokenize

    text = textwrap.fill("the quick brown fox jumps over the lazy dog " * 5, 31)
    re.purge()
    found = re.findall(r"\b(\w)(\w+)(?=\s|$)", text)
    tree = ast.dump(ast.parse(inspect.getsource(build)), indent=1)
    tokens = [token.string for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(swap)).readline)]

    @dataclasses.dataclass(order=True, frozen=True)
    class Point:
        x: int
        y: int = dataclasses.field(default=2, compare=False)

    Color = enum.Enum("Color", "RED GREEN")
    Pair = collections.namedtuple("Pair", "a b")
    parser = argparse.ArgumentParser(prog="p")
    parser.add_argument("--flag", type=int, default=3)
    parser.add_argument("names", nargs="*")
    config = configparser.ConfigParser()
    config.read_string("[a]\nb = 1\nc = %(b)s2\n")
    message = email.message.EmailMessage()
    message["Subject"] = "hello"
    message.set_content("text")
    counter = collections.Counter(text)
    ordered = collections.OrderedDict(sorted(counter.items()))
    ordered.move_to_end("t")
    return (
        json.loads(json.dumps({"found": found, "more": [1.5, None, True]}, indent=2)),
        (tree, tokens),
        (repr(sorted([Point(3), Point(1)])), hash(Point(1)), Point(1) == Point(1, 5)),
        ([member.name for member in Color], Color(1).name, Pair(1, 2)._replace(b=3)._asdict()),
        vars(parser.parse_args(["--flag", "7", "x", "y"])) | {"usage": parser.format_help()},
        config.get("a", "c"),
        message.as_string(),
        list(ordered.items()),
        (str(fractions.Fraction("0.125") ** 2), str(decimal.Decimal(2).sqrt())),
        pickle.loads(pickle._dumps({"a": [1, (2, 3)], "b": {4}})),  # type: ignore[attr-defined]
        string.Template("$a-$b").substitute(a=1, b=2),
    )


def test_hook_makes_no_difference_to_code_it_lets_pass() -> None:
    expected = workload()
    with handled(lambda frame: RUN_ONCE):
        assert workload() == expected


@pytest.mark.parametrize("extra_stack", [0, 40, 5000])
def test_every_frame_replaced_by_a_copy_of_its_code(extra_stack: int) -> None:
    """The identity as replacement, everywhere; with frames that grow, and with frames that never fit."""
    expected = workload()
    before = treadle_frame.counters()

    def handler(frame: treadle_frame.FrameInfo) -> Any:
        code = frame.code
        copied = code.replace(co_name=code.co_name + "_", co_stacksize=code.co_stacksize + extra_stack)
        return Entry(copied, GuardProgram([]))

    with handled(handler):
        got = workload()
    assert got == expected
    after = treadle_frame.counters()
    assert after["handler_calls"] - before["handler_calls"] > 200
    assert after["hits"] - before["hits"] > 1000


def test_replacement_with_other_objects_in_its_constants() -> None:
    compiled = [].append
    template = build("def f(a):\n    return 'HERE'(a)".replace("'HERE'(a)", "('HERE', a)"))
    code = template.__code__
    code = code.replace(co_consts=tuple(compiled if c == "HERE" else c for c in code.co_consts))
    original = build("def f(a): ...")
    add_entry(original, Entry(code, GuardProgram([])))
    with handled(RUN_CACHED):
        assert original(3) == (compiled, 3)
