"""Paths: every root and accessor, what happens when one fails, sharing, the order of evaluation."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
from frame_helpers import examples, handled
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle_frame
from treadle_frame import Check, Entry, GuardProgram, counters


class Thing:
    kind = "class attribute"

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    @property
    def computed(self) -> int:
        return 7

    @property
    def failing(self) -> int:
        raise OSError("no")


class Slotted:
    __slots__ = ("x",)


def holds(path: tuple[Any, ...], op: str, arg: Any, /, **locals_: Any) -> bool:
    """One check on local values; check() and why_fails() must agree."""
    program = GuardProgram([Check(path, op, arg, "the reason")])
    result = program.check(locals_)
    assert program.why_fails(locals_) == (None if result else "the reason")
    return result


X = ("local", "x")


KEY = Thing()


@pytest.mark.parametrize(
    ("accessor", "value", "expected"),
    [
        (("attr", "a"), Thing(a=1), 1),
        (("attr", "kind"), Thing(), "class attribute"),
        (("attr", "computed"), Thing(), 7),
        (("instance_dict", "a"), Thing(a=1), 1),
        (("instance_dict", "kind"), Thing, "class attribute"),
        (("instance_dict", "__new__"), object, object.__new__),
        (("instance_dict", "from_bytes"), int, vars(int)["from_bytes"]),
        (("instance_dict", "pi"), types.ModuleType("m"), None),
        (("dict_item", "k"), {"k": 1}, 1),
        (("dict_item", "k"), OrderedDict(k=1), 1),
        (("dict_item", (1, 2)), {(1, 2): 1}, 1),
        (("dict_item_of", weakref.ref(KEY)), {KEY: 1}, 1),
        (("list_item", 1), [4, 5], 5),
        (("tuple_item", 0), (4, 5), 4),
        (("item", "k"), {"k": 1}, 1),
        (("item", -1), [4, 5], 5),
        (("item", "k"), defaultdict(list), []),
        (("type",), 3, int),
        (("dict_key", 1), {"a": 1, "b": 2}, "b"),
        (("apply", len), "four", 4),
    ],
)
def test_accessors_reach_the_value(accessor: tuple[Any, ...], value: Any, expected: Any) -> None:
    if expected is None:
        value.pi = expected
    assert holds((X, accessor), "equals", expected, x=value)


@pytest.mark.parametrize(
    ("accessor", "value"),
    [
        (("attr", "missing"), Thing()),
        (("attr", "failing"), Thing()),
        (("instance_dict", "kind"), Thing()),
        (("instance_dict", "computed"), Thing()),
        (("instance_dict", "a"), Slotted()),
        (("instance_dict", "a"), 3),
        (("dict_item", "k"), {}),
        (("dict_item", "k"), defaultdict(int)),
        (("dict_item", "k"), [1]),
        (("dict_item", []), {}),
        (("dict_item_of", weakref.ref(KEY)), {}),
        (("dict_item_of", weakref.ref(KEY)), [KEY]),
        (("dict_item_of", weakref.ref(Thing())), {None: 1}),
        (("list_item", 2), [4, 5]),
        (("list_item", 0), (4, 5)),
        (("tuple_item", 2), (4, 5)),
        (("tuple_item", 0), [4]),
        (("item", "k"), {}),
        (("item", 0), 3),
        (("dict_key", 2), {"a": 1, "b": 2}),
        (("dict_key", 0), ["a"]),
        (("apply", len), 4),
        (("apply", lambda value: 1 // 0), 4),
    ],
)
def test_failing_accessors_fail_the_guard(accessor: tuple[Any, ...], value: Any) -> None:
    assert not holds((X, accessor), "is_not", object(), x=value)


def test_accessors_do_not_create_items() -> None:
    value: defaultdict[str, list[int]] = defaultdict(list)
    assert not holds((X, ("dict_item", "k")), "is_not", None, x=value)
    assert value == {}


def test_dict_key_follows_the_order_of_iteration() -> None:
    value = OrderedDict(a=1, b=2, c=3)
    value.move_to_end("a")
    assert holds((X, ("dict_key", 0)), "equals", "b", x=value)
    assert holds((X, ("dict_key", 2)), "equals", "a", x=value)
    plain = {"a": 1, "b": 2, "c": 3}
    del plain["a"]
    assert holds((X, ("dict_key", 0)), "equals", "b", x=plain)


def test_instance_dict_of_a_fresh_instance_keeps_working() -> None:
    thing = Thing()
    thing.a = 1  # type: ignore[attr-defined]
    assert holds((X, ("instance_dict", "a")), "equals", 1, x=thing)
    thing.a = 2  # type: ignore[attr-defined]
    assert holds((X, ("instance_dict", "a")), "equals", 2, x=thing)
    assert thing.a == 2 and thing.__dict__ == {"a": 2}  # type: ignore[attr-defined]


def test_roots_without_a_frame() -> None:
    marker = object()
    cell = types.CellType(4)
    program = GuardProgram(
        [
            Check((X,), "equals", 1, "local"),
            Check((("global", "g"),), "equals", 2, "global"),
            Check((("builtin", "len"),), "is", len, "builtin"),
            Check((("closure", "c"),), "equals", 4, "closure"),
            Check((("const", marker),), "is", marker, "const"),
        ]
    )
    everything: dict[str, Any] = {
        "locals": {"x": 1},
        "globals": {"g": 2},
        "closure": {"c": cell},
        "builtins": vars(builtins),
    }
    assert program.check(**everything) and program.why_fails(**everything) is None
    for name, reason in [("globals", "global"), ("closure", "closure"), ("builtins", "builtin")]:
        assert program.why_fails(**{**everything, name: None}) == reason
        assert program.why_fails(**{**everything, name: {}}) == reason
        assert not program.check(**{**everything, name: {}})
    assert program.why_fails(**{**everything, "closure": {"c": types.CellType()}}) == "closure"


def test_roots_with_other_mappings_than_dicts() -> None:
    program = GuardProgram([Check((X,), "equals", 1)])
    assert program.check(types.MappingProxyType({"x": 1}))
    assert not program.check(types.MappingProxyType({}))
    assert not program.check([])  # type: ignore[arg-type]


def test_closure_as_tuple_of_cells_once_an_entry_binds_the_program() -> None:
    a, b = 1, 2

    def f() -> int:
        return a + b

    program = GuardProgram([Check((("closure", "b"),), "equals", 2, "b is 2")])
    with pytest.raises(TypeError, match="closure"):
        program.check({}, {}, f.__closure__)
    entry = Entry(f.__code__, program)
    assert entry.guard.check({}, {}, f.__closure__)
    b = 3
    assert entry.guard.why_fails({}, {}, f.__closure__) == "b is 2"
    with pytest.raises(TypeError, match="closure"):
        program.check({}, {}, ())


def test_globals_are_not_searched_in_builtins() -> None:
    program = GuardProgram([Check((("global", "len"),), "is", len)])
    assert not program.check({}, {"__builtins__": builtins}, None, vars(builtins))
    assert program.check({}, {"len": len})


def test_shared_prefixes_are_evaluated_once() -> None:
    calls = []

    def get(value: Any) -> Any:
        calls.append(value)
        return value

    path = (X, ("apply", get))
    program = GuardProgram(
        [
            Check((*path, ("attr", "a")), "equals", 1),
            Check((*path, ("attr", "b")), "equals", 2),
            Check(path, "type_is", Thing),
        ]
    )
    assert program.check({"x": Thing(a=1, b=2)})
    assert len(calls) == 1


def test_keys_of_different_type_are_different_steps() -> None:
    class Mine(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            return type(key)

    program = GuardProgram([Check((X, ("item", key)), "is", type(key)) for key in (1, True, 1.0)])
    assert program.check({"x": Mine()})


def test_a_node_is_checked_before_what_is_below_it() -> None:
    order: list[str] = []

    def note(name: str, result: bool = True) -> Any:
        def check(value: Any) -> bool:
            order.append(name)
            return result

        return check

    program = GuardProgram(
        [
            Check((X, ("attr", "a")), "call", note("below")),
            Check((X,), "call", note("first")),
            Check((X,), "call", note("second")),
        ]
    )
    assert program.check({"x": Thing(a=1)})
    assert order == ["first", "second", "below"]


def test_what_failed_moves_to_the_front() -> None:
    order: list[str] = []
    failing = {"c"}

    def check(name: str) -> Any:
        def run(value: Any) -> bool:
            order.append(name)
            return name not in failing

        return run

    names = "abcd"
    program = GuardProgram([Check((("local", name),), "call", check(name), name) for name in names])
    values = dict.fromkeys(names, 0)
    assert not program.check(values)
    assert "".join(order) == "abc"
    order.clear()
    assert not program.check(values)
    assert "".join(order) == "c"
    failing.clear()
    order.clear()
    assert program.check(values)
    assert "".join(order) == "cabd"
    failing.update("bd")
    assert program.why_fails(values) == "b", "why_fails goes by the order given"


def test_reordering_waits_while_an_evaluation_is_under_way() -> None:
    """A guard that runs its own program again must not make the outer run skip a sibling."""
    order: list[str] = []

    def reenter(value: Any) -> bool:
        order.append("reenter")
        if value == "outer":
            inner = {"a": "inner", "b": "b", "c": "fails"}
            assert not program.check(inner)
        return True

    def expect(name: str) -> Any:
        def run(value: Any) -> bool:
            order.append(name)
            return value == name

        return run

    program = GuardProgram(
        [
            Check((("local", "a"),), "call", reenter),
            Check((("local", "b"),), "call", expect("b")),
            Check((("local", "c"),), "call", expect("c")),
        ]
    )
    assert program.check({"a": "outer", "b": "b", "c": "c"})
    assert order == ["reenter", "reenter", "b", "c", "b", "c"]


def test_checks_may_free_what_they_look_at() -> None:
    class Holder:
        pass

    holder = Holder()
    holder.inner = Holder()  # type: ignore[attr-defined]
    holder.inner.value = 5  # type: ignore[attr-defined]

    def drop(value: Any) -> bool:
        holder.__dict__.clear()
        gc.collect()
        return True

    program = GuardProgram(
        [
            Check((X, ("attr", "inner")), "call", drop),
            Check((X, ("attr", "inner"), ("attr", "value")), "equals", 5),
        ]
    )
    assert program.check({"x": holder})
    assert not program.check({"x": holder})


def test_program_may_be_dropped_while_it_runs() -> None:
    box: list[GuardProgram] = []

    def drop(value: Any) -> bool:
        box.clear()
        gc.collect()
        return True

    box.append(GuardProgram([Check((X,), "call", drop), Check((("local", "y"),), "equals", 1)]))
    assert box[0].check({"x": 0, "y": 1})


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_exceptions_that_are_no_errors_pass(exception: type[BaseException]) -> None:
    def raising(value: Any) -> bool:
        raise exception

    for check in [Check((X,), "call", raising), Check((X, ("apply", raising)), "is", None)]:
        program = GuardProgram([check])
        with pytest.raises(exception):
            program.check({"x": 1})
        with pytest.raises(exception):
            program.why_fails({"x": 1})


def test_interrupt_in_a_guard_comes_out_of_the_call() -> None:
    def f(x: int) -> int:
        return x

    def raising(value: Any) -> bool:
        raise KeyboardInterrupt

    treadle_frame.add_entry(f, Entry(f.__code__, GuardProgram([Check((X,), "call", raising)])))
    with pytest.raises(KeyboardInterrupt), handled(treadle_frame.RUN_CACHED):
        f(1)


def test_guards_run_with_the_hook_off() -> None:
    seen = []

    def f(x: int) -> str:
        return "original"

    def g(x: int) -> str:
        return "replaced"

    def check(value: int) -> bool:
        seen.append((treadle_frame.get_handler(), f(value)))
        return True

    treadle_frame.add_entry(f, Entry(g.__code__, GuardProgram([Check((X,), "call", check)])))
    with handled(treadle_frame.RUN_CACHED):
        assert f(1) == "replaced"
        assert treadle_frame.get_handler() is treadle_frame.RUN_CACHED
    assert seen == [(None, "original")]


def test_evaluations_are_counted() -> None:
    program = GuardProgram([])
    before = counters()["guard_evals"]
    assert program.check({}) and program.check({})
    assert counters()["guard_evals"] == before + 2


def test_references_are_balanced() -> None:
    value = Thing(a=[1], b={"k": Thing(c=(1, 2))})
    watched = [value, value.a, value.b, value.b["k"], value.b["k"].c]
    path = (X, ("attr", "b"), ("dict_item", "k"), ("instance_dict", "c"))
    program = GuardProgram(
        [
            Check((X, ("attr", "a")), "len", 1),
            Check(path, "len", 2),
            Check((*path, ("tuple_item", 1)), "equals", 2),
            Check((X,), "distinct_objects", ((X, ("attr", "a")), (X, ("attr", "b")))),
            Check((*path, ("tuple_item", 1)), "equals", 3),
        ]
    )
    before = [sys.getrefcount(object_) for object_ in watched]
    for _ in range(100):
        assert not program.check({"x": value})
        program.why_fails({"x": value})
    assert [sys.getrefcount(object_) for object_ in watched] == before


def test_threads_share_a_program() -> None:
    def slow(value: Any) -> bool:
        return sum(range(50)) == 1225

    names = "abcdef"
    program = GuardProgram(
        [check for n in names for check in (Check((("local", n),), "call", slow), Check((("local", n),), "equals", 0))]
    )
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(200):
            bad = names[(i + seed) % 6] if i % 2 else None
            values = {n: int(n == bad) for n in names}
            if program.check(values) != (bad is None):
                wrong.append(values)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


# ---- against a slow reading of the same data --------------------------------------------------------------------------

VALUES = st.recursive(
    st.one_of(st.integers(0, 2), st.booleans(), st.sampled_from(["a", "b"]), st.none(), st.floats(0, 1, width=16)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", 0, 1]), inner, max_size=3),
        st.builds(Thing, a=inner),
    ),
    max_leaves=6,
)
ACCESSORS = st.one_of(
    st.tuples(st.just("attr"), st.sampled_from(["a", "kind", "failing"])),
    st.tuples(st.just("instance_dict"), st.sampled_from(["a", "kind"])),
    st.tuples(st.just("dict_item"), st.sampled_from(["a", "b", 0])),
    st.tuples(st.just("list_item"), st.integers(0, 1)),
    st.tuples(st.just("tuple_item"), st.integers(0, 1)),
    st.tuples(st.just("item"), st.sampled_from(["a", 0, 1])),
    st.just(("type",)),
    st.tuples(st.just("dict_key"), st.integers(0, 1)),
)
PATHS = st.builds(
    lambda root, steps: (("local", root), *steps), st.sampled_from(["x", "y"]), st.lists(ACCESSORS, max_size=3)
)
CHECKS = st.one_of(
    st.builds(Check, PATHS, st.just("equals"), VALUES),
    st.builds(Check, PATHS, st.just("type_is"), st.sampled_from([int, bool, str, list, dict, Thing])),
    st.builds(Check, PATHS, st.just("len"), st.integers(0, 2)),
    st.builds(Check, PATHS, st.just("has_attr"), st.sampled_from(["a", "kind"])),
    st.builds(Check, PATHS, st.just("lacks_attr"), st.sampled_from(["a", "kind"])),
    st.builds(Check, PATHS, st.sampled_from(["has_key", "lacks_key"]), st.sampled_from(["a", 0])),
    st.builds(Check, PATHS, st.just("is_not"), st.none()),
    st.builds(Check, PATHS, st.just("same_object"), PATHS),
    st.builds(Check, PATHS, st.just("distinct_objects"), st.lists(PATHS, max_size=3)),
)


def step(value: Any, accessor: tuple[Any, ...]) -> Any:
    kind, *rest = accessor
    if kind in ("list_item", "tuple_item"):
        if not isinstance(value, list if kind == "list_item" else tuple):
            raise TypeError
        return value[rest[0]]
    if kind in ("dict_item", "dict_key") and not isinstance(value, dict):
        raise TypeError
    table: dict[str, Any] = {
        "attr": lambda: getattr(value, rest[0]),
        "instance_dict": lambda: value.__dict__[rest[0]],
        "dict_item": lambda: dict.__getitem__(value, rest[0]),
        "item": lambda: value[rest[0]],
        "type": lambda: type(value),
        "dict_key": lambda: list(value)[rest[0]],
    }
    return table[kind]()


def reach(path: Any, values: dict[str, Any]) -> Any:
    value = values[path[0][1]]
    for accessor in path[1:]:
        value = step(value, accessor)
    return value


def strictly_equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(strictly_equal, left, right))
    return bool(left == right)


def slow_check(check: Check, values: dict[str, Any]) -> bool:
    try:
        value = reach(check.path, values)
        arg = check.arg
        if check.op == "same_object":
            return value is reach(arg, values)
        if check.op == "distinct_objects":
            found = [value, *(reach(path, values) for path in arg)]
            return len({id(v) for v in found}) == len(found)
        table: dict[str, Any] = {
            "equals": lambda: strictly_equal(arg, value),
            "type_is": lambda: type(value) is arg,
            "len": lambda: len(value) == arg,
            "has_attr": lambda: hasattr(value, arg),
            "lacks_attr": lambda: not hasattr(value, arg),
            "has_key": lambda: arg in value,
            "lacks_key": lambda: arg not in value,
            "is_not": lambda: value is not arg,
        }
        return bool(table[check.op]())
    except Exception:
        return False


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(CHECKS, max_size=6), st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=4))
def test_programs_agree_with_a_slow_reading(checks: list[Check], frames: list[tuple[Any, Any]]) -> None:
    named = [check._replace(reason=f"reason {i}") for i, check in enumerate(checks)]
    program = GuardProgram(named)
    for x, y in frames:
        values = {"x": x, "y": y}
        failing = [check.reason for check in named if not slow_check(check, values)]
        assert program.check(values) == (not failing)
        assert program.why_fails(values) == (failing[0] if failing else None)
