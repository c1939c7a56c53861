"""Every operation of the builder, by running what it builds."""

from __future__ import annotations

import inspect
import operator
import types

import pytest
from bytecode_building import FullBuilder, blank, new_code_like, sketch

from treadle_tracer.bytecode import BytecodeError, Instruction, Label, read
from treadle_tracer.bytecode.opcodes import BINARY_OPS, COMPARE_OPS, MINOR


class Box:
    """Something with attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def method(self, *args, **kwargs):
        return self, args, kwargs


def run(emit, *args, parameters=("x", "y", "z"), namespace=None, closure=None, **shape):
    """Run a function whose body ``emit`` builds; missing arguments are None."""
    builder = FullBuilder.function("f", parameters, **shape)
    emit(builder)
    function = types.FunctionType(builder.finish(), {} if namespace is None else namespace, closure=closure)
    return function(*args, *[None] * (len(parameters) - len(args)))


def body(*steps):
    """An emitter of ``steps`` (method name, arguments…) that ends with a return."""

    def emit(builder):
        for name, *arguments in steps:
            getattr(builder, name)(*arguments)
        builder.return_value()

    return emit


X, Y, Z = ("load_fast", "x"), ("load_fast", "y"), ("load_fast", "z")


@pytest.mark.parametrize(
    ("steps", "args", "expected"),
    [
        ([("load_const", (1, [2]))], (), (1, [2])),
        ([X, ("store_fast", "new"), ("load_fast", "new")], (5,), 5),
        ([("load_global", "g")], (), "global"),
        ([X, ("load_attr", "a")], (Box(a=3),), 3),
        ([Y, X, ("store_attr", "a"), X, ("load_attr", "a")], (Box(), 4), 4),
        ([X, ("delete_attr", "a"), X, ("load_attr", "__dict__")], (Box(a=1),), {}),
        ([X, Y, ("build_tuple", 2)], (1, 2), (1, 2)),
        ([X, Y, ("build_list", 2)], (1, 2), [1, 2]),
        ([X, Y, ("build_set", 2)], (1, 2), {1, 2}),
        ([X, Y, Z, X, ("build_map", 2)], (1, 2, 3), {1: 2, 3: 1}),
        ([X, Y, ("build_string", 2)], ("a", "b"), "ab"),
        ([X, Y, Z, ("build_slice", 3)], (1, 2, 3), slice(1, 2, 3)),
        ([X, Y, ("build_slice", 2)], (1, 2), slice(1, 2)),
        ([X, ("unpack_sequence", 3), ("build_list", 3)], ((1, 2, 3),), [3, 2, 1]),
        ([("build_list", 0), X, ("list_append",)], (7,), [7]),
        ([X, Y, ("binary_subscr",)], ({"k": 1}, "k"), 1),
        ([Z, X, Y, ("store_subscr",), X], ([0, 0], 1, 9), [0, 9]),
        ([X, Y, ("delete_subscr",), X], ([1, 2], 0), [2]),
        ([X, Y, ("swap", 2), ("build_tuple", 2)], (1, 2), (2, 1)),
        ([X, Y, Z, ("swap", 3), ("build_tuple", 3)], (1, 2, 3), (3, 2, 1)),
        ([X, ("swap", 1)], (1,), 1),
        ([X, Y, ("copy", 2), ("build_tuple", 3)], (1, 2), (1, 2, 1)),
        ([X, ("copy",), ("build_tuple", 2)], (1,), (1, 1)),
        ([X, Y, ("pop_top",)], (1, 2), 1),
        ([X, Y, ("is_op",)], (1, 1), True),
        ([X, ("unary_not",)], ([],), True),
        ([X, Y, ("contains_op",)], (1, [1]), True),
        ([("nop",), X], (1,), 1),
        ([("load_callable_const", max), X, Y, ("call", 2)], (1, 2), 2),
        ([("load_callable_global", "len"), X, ("call", 1)], ([1, 2],), 2),
        ([("begin_call",), X, ("callable_done",), Y, ("call", 1)], (str, 5), "5"),
        ([X, ("callable_on_top",), Y, ("call", 1)], (str, 5), "5"),
        ([X, ("load_method", "count"), Y, ("call", 1)], ("aab", "a"), 2),
        ([X, ("load_method", "value"), Y, ("call", 1)], (Box(value=str), 3), "3"),
        ([("load_callable_const", dict), X, ("call_kw", 1, ["a", "b"])], (), "wrong"),
        ([("load_callable_const", sorted), X, Y, ("call_kw", 1, ["reverse"])], ([1, 2], True), [2, 1]),
        ([("load_callable_const", sorted), X, ("call_kw", 1, [])], ([2, 1],), [1, 2]),
        ([("load_callable_const", max), X, ("call_ex",)], ((1, 4),), 4),
    ],
)  # fmt: skip
def test_straight_line(steps, args, expected):
    if expected == "wrong":
        with pytest.raises(BytecodeError, match="takes more than the stack holds"):
            run(body(*steps), *args)
        return
    assert run(body(*steps), *args, namespace={"g": "global"}) == expected


def test_keyword_arguments():
    def emit(builder):
        builder.load_fast("x")
        builder.load_method("method")
        for name in ("y", "z", "x"):
            builder.load_fast(name)
        builder.call_kw(1, ("one", "two"))
        builder.return_value()

    box = Box()
    assert run(emit, box, 1, 2) == (box, (1,), {"one": 2, "two": box})

    def spread(builder):
        builder.load_callable_const(lambda *args, **kwargs: (args, kwargs))
        builder.load_fast("x")
        builder.load_fast("y")
        builder.call_ex(keywords=True)
        builder.return_value()

    assert run(spread, (1, 2), {"a": 3}) == ((1, 2), {"a": 3})


@pytest.mark.parametrize("text", BINARY_OPS)
def test_binary_operators(text):
    function = {"/": operator.truediv, "//": operator.floordiv, "%": operator.mod, "**": operator.pow}.get(
        text.rstrip("="), None
    )
    if "@" in text:
        return
    expected = eval(f"13 {text.removesuffix('=')} 3")
    assert function is None or function(13, 3) == expected
    assert run(body(X, Y, ("binary_op", text)), 13, 3) == expected


@pytest.mark.parametrize("text", COMPARE_OPS)
def test_comparisons(text):
    for pair in ((1, 2), (2, 2), (3, 2), (float("nan"), 1.0)):
        assert run(body(X, Y, ("compare_op", text)), *pair) is eval(f"a {text} b", {"a": pair[0], "b": pair[1]})


@pytest.mark.parametrize("condition", ["true", "false", "none", "not_none"])
@pytest.mark.parametrize("backward", [False, True])
def test_conditional_jumps(condition, backward):
    taken = {"true": bool, "false": operator.not_, "none": lambda v: v is None, "not_none": lambda v: v is not None}

    def emit(builder):
        target, start = builder.label("target"), builder.label("start")
        if backward:
            builder.jump(start)
            builder.place(target)
            builder.load_const("taken")
            builder.return_value()
            builder.place(start)
        builder.load_fast("x")
        getattr(builder, f"pop_jump_if_{condition}")(target)
        builder.load_const("not taken")
        builder.return_value()
        if not backward:
            builder.place(target)
            builder.load_const("taken")
            builder.return_value()

    for value in (None, True, False, [], [1], "", 0.0, object()):
        assert run(emit, value) == ("taken" if taken[condition](value) else "not taken")


def test_jumps_on_exact_booleans_save_the_conversion():
    def emit(builder):
        end = builder.label()
        builder.load_fast("x")
        builder.pop_jump_if_false(end, exact_bool=True)
        builder.load_fast("y")
        builder.return_value()
        builder.place(end)
        builder.load_fast("z")
        builder.return_value()

    assert [run(emit, value, 1, 2) for value in (True, False)] == [1, 2]


def test_for_loop():
    def emit(builder):
        top, end = builder.label("top"), builder.label("end")
        builder.build_list(0)
        builder.store_fast("out")
        builder.load_fast("x")
        builder.get_iter()
        builder.place(top)
        builder.for_iter(end)
        builder.store_fast("item")
        builder.load_fast("out")
        builder.load_fast("item")
        builder.list_append()
        builder.pop_top()
        builder.jump(top)
        builder.end_for(end)
        builder.load_fast("out")
        builder.return_value()

    assert run(emit, "abc") == ["a", "b", "c"]
    assert run(emit, iter(())) == []


def test_exception_range():
    def emit(builder):
        start, end, handler = builder.label(), builder.label(), builder.label()
        builder.place(start)
        builder.load_fast("x")
        builder.callable_on_top()
        builder.call(0)
        builder.return_value()
        builder.place(end)
        builder.place(handler)
        builder.emit("PUSH_EXC_INFO")
        builder.load_attr("args")
        builder.swap(2)
        builder.emit("POP_EXCEPT")
        builder.return_value()
        builder.protect(start, end, handler, depth=0)

    def fail():
        raise ValueError("why", 1)

    assert run(emit, lambda: 3) == 3
    assert run(emit, fail) == ("why", 1)


def test_a_range_may_begin_with_a_call():
    def emit(builder):
        start, end, handler, twice = builder.label(), builder.label(), builder.label(), builder.label()
        builder.load_const(0)
        builder.store_fast("turns")
        builder.place(twice)
        builder.load_fast("x")
        builder.callable_on_top()
        builder.load_fast("turns")
        builder.place(start)
        builder.call(1)
        builder.place(end)
        builder.pop_top()
        builder.load_fast("turns")
        builder.load_const(1)
        builder.binary_op("+")
        builder.store_fast("turns")
        builder.jump(twice)
        builder.place(handler)
        builder.emit("PUSH_EXC_INFO")
        builder.load_attr("args")
        builder.swap(2)
        builder.emit("POP_EXCEPT")
        builder.return_value()
        builder.protect(start, end, handler, depth=0)

    def fail(turns):
        if turns == 50:
            raise ValueError("why", turns)

    for _ in range(3):
        assert run(emit, fail) == ("why", 50)


def test_raising():
    with pytest.raises(KeyError, match="why"):
        run(lambda b: (b.load_fast("x"), b.raise_()), KeyError("why"))
    with pytest.raises(KeyError) as info:
        run(lambda b: (b.load_fast("x"), b.load_fast("y"), b.raise_(2)), KeyError("why"), ValueError("cause"))
    assert isinstance(info.value.__cause__, ValueError)


def test_cells_and_closures():
    def emit(builder):
        builder.load_deref("x")
        builder.load_deref("outer")
        builder.binary_op("+")
        builder.store_deref("own")
        inner = FullBuilder.function("inner", ["n"], freevars=["x", "own"])
        for name in ("n", "x", "own"):
            inner.load_variable(name)
        inner.build_tuple(3)
        inner.return_value()
        builder.make_function(inner.finish(), closure=["x", "own"])
        builder.load_closure("own")
        builder.load_closure("outer")
        builder.build_tuple(3)
        builder.load_const(100)
        builder.store_variable("x")
        builder.return_value()

    cell = types.CellType(5)
    shape = {"cellvars": ["x", "own"], "freevars": ["outer"], "closure": (cell,)}
    inner, own, outer = run(emit, 2, parameters=("x",), **shape)
    assert inner("n") == ("n", 100, 7)
    assert own.cell_contents == 7
    assert outer is cell
    with pytest.raises(NameError):
        run(body(("delete_deref", "outer"), ("load_deref", "outer")), freevars=["outer"], closure=(types.CellType(1),))
    builder = FullBuilder(blank("f", ["a"], cellvars=["a"]))
    assert builder.is_cell("a")
    assert not builder.is_cell("b")


def test_default_arguments():
    def emit(builder):
        inner = FullBuilder.function("inner", ["n"])
        inner.load_fast("n")
        inner.return_value()
        builder.load_const((42,))
        builder.make_function(inner.finish(), defaults=True)
        builder.return_value()

    assert run(emit)() == 42


def test_global_store_and_deletes():
    namespace = {}
    assert run(body(X, ("store_global", "g"), ("load_global", "g")), 3, namespace=namespace) == 3
    assert namespace["g"] == 3
    with pytest.raises(UnboundLocalError):
        run(lambda b: (b.delete_fast("x"), b.emit("DELETE_FAST", "x"), b.load_const(0), b.return_value()), 1)


def original(a, /, b, *rest, c=3, **others):
    """Its docstring."""

    def inner():
        return a, c, d

    d = b
    return inner, rest, others


def test_new_code_keeps_the_signature():
    def emit(builder):
        for name in ("a", "b", "c", "rest", "others", "new"):
            if name == "new":
                builder.load_const("new value")
                builder.store_fast("new")
            builder.load_variable(name)
        builder.build_tuple(6)
        builder.return_value()

    code = new_code_like(original.__code__, emit, name="renamed")
    old = original.__code__
    for name in ("argcount", "posonlyargcount", "kwonlyargcount", "flags", "cellvars", "freevars", "filename"):
        assert getattr(code, f"co_{name}") == getattr(old, f"co_{name}")
    assert code.co_name == "renamed"
    assert code.co_varnames == (*old.co_varnames, "new")
    function = types.FunctionType(code, {}, argdefs=original.__defaults__)
    function.__kwdefaults__ = original.__kwdefaults__
    assert function(1, 2, 3, k=4) == (1, 2, 3, (3,), {"k": 4}, "new value")
    assert function.__doc__ == original.__doc__
    assert str(inspect.signature(function)) == str(inspect.signature(original))


def test_new_code_of_closures_and_generators():
    y = 10

    def closed(x):
        return x + y

    closed.__code__ = new_code_like(closed.__code__, body(("load_deref", "y"), ("load_fast", "x"), ("build_tuple", 2)))
    assert closed(1) == (10, 1)

    def generating():
        yield 1

    def emit(builder):
        builder.load_const("one")
        builder.emit("YIELD_VALUE", 0) if MINOR >= 12 else builder.emit("YIELD_VALUE")
        builder.resume(1)
        builder.return_value()

    generating.__code__ = new_code_like(generating.__code__, emit)
    generator = generating()
    assert next(generator) == "one"
    with pytest.raises(StopIteration) as info:
        generator.send("back")
    assert info.value.value == "back"


def test_positions_and_extend():
    builder = FullBuilder(sketch(original.__code__), prologue=False)
    builder.positions = (7, 7, 1, 2)
    builder.resume()
    builder.extend([Instruction("LOAD_CONST", None, 5, -1, (8, 8, 0, 1)), Instruction("RETURN_VALUE")])
    model = builder.model()
    assert [i.positions for i in model.instructions] == [(7, 7, 1, 2), (8, 8, 0, 1), (None,) * 4]
    assert list(builder.finish().co_lines())[0][2] == 7
    jumping = next(i for i in read(test_for_loop.__code__).instructions if True and not i.op.jumps)
    builder.extend([jumping])
    with pytest.raises(BytecodeError, match="refers to its own model"):
        builder.extend([Instruction("JUMP_FORWARD", None, 3)])


def test_wrong_use():
    builder = FullBuilder.function("f")
    with pytest.raises(BytecodeError, match=f"FLY is no opcode of Python 3.{MINOR}"):
        builder.emit("FLY")
    label = Label("somewhere")
    builder.jump(label)
    with pytest.raises(BytecodeError, match="Label.'somewhere', not placed. is used but never placed"):
        builder.finish()
    builder.place(label)
    with pytest.raises(BytecodeError, match="is placed twice"):
        builder.place(label)
    with pytest.raises(BytecodeError, match="LOAD_GLOBAL takes 1 flag bits, got 2"):
        builder.emit("LOAD_GLOBAL", "x", arg=2)
