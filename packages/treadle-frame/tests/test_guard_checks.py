"""The single checks: each op, its argument, and queries through a C ABI."""

from __future__ import annotations

import ctypes
import gc
import math
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from frame_helpers import address_of

from treadle_frame import Check, Entry, EqualItems, GuardError, GuardProgram, NativeTensorCheck, add_entry, dispatcher
from treadle_frame.guards import OPS

X = ("local", "x")
Y = ("local", "y")
Z = ("local", "z")
NAN = float("nan")


def holds(op: str, arg: Any, /, **values: Any) -> bool:
    program = GuardProgram([Check((X,), op, arg, "the reason")])
    result = program.check(values)
    assert program.why_fails(values) == (None if result else "the reason")
    return result


class Raising:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __contains__(self, key: object) -> bool:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError if name == "x" else AttributeError

    __hash__ = None  # type: ignore[assignment]


class Referred:
    pass


MARKER = object()
REFERRED = Referred()
TABLE = [
    ("is", None, None, True),
    ("is", MARKER, object(), False),
    ("is_not", MARKER, object(), True),
    ("is_not", MARKER, MARKER, False),
    ("refers", weakref.ref(REFERRED), REFERRED, True),
    ("refers", weakref.ref(REFERRED), Referred(), False),
    ("refers", weakref.ref(Referred()), None, False),
    ("type_is", int, 1, True),
    ("type_is", int, True, False),
    ("type_is", object, 1, False),
    ("equals", 1, 1, True),
    ("equals", 1, True, False),
    ("equals", 1, 1.0, False),
    ("equals", 10**30, 10**30, True),
    ("equals", "text", "te" + str("xt"), True),
    ("equals", 0.0, -0.0, False),
    ("equals", -0.0, -0.0, True),
    ("equals", NAN, math.nan, True),
    ("equals", 0j, -0j, False),
    ("equals", (1, (2.0, "a")), (1, (2.0, "a")), True),
    ("equals", (1, 2), (1, 2, 3), False),
    ("equals", (1, 0.0), (1, -0.0), False),
    ("equals", (1,), (True,), False),
    ("equals", [1], (1,), False),
    ("equals", {"a": 1}, {"a": 1}, True),
    ("equals", slice(1, None), slice(1, None), True),
    ("equals", Raising(), Raising(), False),
    ("len", 2, (1, 2), True),
    ("len", 2, [1], False),
    ("len", 2, {"a": 1, "b": 2}, True),
    ("len", 2, "ab", True),
    ("len", 2, 7, False),
    ("len", 0, Raising(), False),
    ("dict_keys", ("a", "b"), {"a": 1, "b": 2}, True),
    ("dict_keys", ("a", "b"), {"b": 2, "a": 1}, False),
    ("dict_keys", ("a",), {"a": 1, "b": 2}, False),
    ("dict_keys", ("a", "b"), {"a": 1}, False),
    ("dict_keys", (1,), {True: 1}, False),
    ("dict_keys", ("a",), OrderedDict(a=1), True),
    ("dict_keys", (), {}, True),
    ("dict_keys", (), [], False),
    ("has_attr", "real", 1, True),
    ("has_attr", "surreal", 1, False),
    ("has_attr", "x", Raising(), False),
    ("lacks_attr", "surreal", 1, True),
    ("lacks_attr", "real", 1, False),
    ("lacks_attr", "x", Raising(), False),
    ("has_key", "a", {"a": 1}, True),
    ("has_key", "a", {}, False),
    ("has_key", "a", {"a"}, True),
    ("has_key", [], {}, False),
    ("has_key", "a", Raising(), False),
    ("lacks_key", "a", {}, True),
    ("lacks_key", "a", {"a": 1}, False),
    ("lacks_key", [], {}, False),
    ("lacks_key", "a", 3, False),
    ("call", callable, len, True),
    ("call", callable, 3, False),
    ("call", len, 3, False),
    ("call", lambda value: Raising(), 3, False),
]


@pytest.mark.parametrize(("op", "arg", "value", "expected"), TABLE)
def test_each_check(op: str, arg: Any, value: Any, expected: bool) -> None:
    assert holds(op, arg, x=value) is expected


def test_ordered_dicts_are_compared_in_their_own_order() -> None:
    value = OrderedDict(a=1, b=2)
    value.move_to_end("a")
    assert holds("dict_keys", ("b", "a"), x=value)
    assert not holds("dict_keys", ("a", "b"), x=value)


def test_deeply_nested_values_fail_rather_than_crash() -> None:
    def nest() -> Any:
        value: Any = ()
        for _ in range(100_000):
            value = (value,)
        return value

    limit = sys.getrecursionlimit()
    assert not holds("equals", nest(), x=nest())
    assert sys.getrecursionlimit() == limit


def test_same_object() -> None:
    value: list[int] = []
    assert holds("same_object", (Y,), x=value, y=value)
    assert not holds("same_object", (Y,), x=value, y=[])
    assert holds("same_object", (Y, ("attr", "real")), x=5, y=5)
    assert not holds("same_object", (Y, ("attr", "missing")), x=5, y=5)
    assert not holds("same_object", (Z,), x=5)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_distinct_objects(n: int) -> None:
    names = [f"v{i}" for i in range(n)]
    program = GuardProgram([Check((("local", "v0"),), "distinct_objects", [(("local", name),) for name in names[1:]])])
    values: dict[str, Any] = {name: [] for name in names}
    assert program.check(values)
    for i, j in [(0, n - 1), (1, n - 1), (n // 2, 0)]:
        if i != j:
            assert not program.check({**values, names[i]: values[names[j]]})


def test_call_many() -> None:
    arg = (lambda x, y, z: x + y == z, [(Y,), (Z,)])
    assert holds("call_many", arg, x=1, y=2, z=3)
    assert not holds("call_many", arg, x=1, y=2, z=4)
    assert not holds("call_many", arg, x=1, y=2, z="3")
    assert not holds("call_many", arg, x=1, y=2)
    assert holds("call_many", (lambda x: x == 1, ()), x=1)


def test_checks_on_several_paths_come_last() -> None:
    order: list[str] = []

    def note(*values: Any) -> bool:
        order.append("many" if len(values) == 2 else "one")
        return True

    program = GuardProgram([Check((X,), "call_many", (note, [(Y,)])), Check((Y,), "call", note)])
    assert program.check({"x": 1, "y": 2})
    assert order == ["one", "many"]


@pytest.mark.parametrize(
    ("op", "arg", "message"),
    [
        ("type_is", 3, "a type"),
        ("len", -1, "int >= 0"),
        ("len", True, "int >= 0"),
        ("len", 2**80, "int >= 0"),
        ("dict_keys", ["a"], "a tuple"),
        ("has_attr", 3, "a str"),
        ("lacks_attr", 3, "a str"),
        ("call", 3, "a callable"),
        ("call_many", len, "pair"),
        ("call_many", (3, []), "pair"),
        ("call_many", (len, 3), "other paths"),
        ("distinct_objects", 3, "other paths"),
        ("same_object", "y", "a tuple"),
        ("same_object", (), "at least one step"),
        ("same_object", (("locale", "y"),), "'locale' is no root"),
        ("capsule", 3, "capsule"),
        ("capsule", (object(), 0), "capsule"),
        ("native_tensor", 3, "NativeTensorCheck"),
        ("native_tensor", NativeTensorCheck(int, 0, [(1, "i32", 1)]), "NativeTensorCheck"),  # type: ignore[arg-type]
        ("native_tensor", NativeTensorCheck((), 0, ()), "NativeTensorCheck"),
        ("native_tensor", NativeTensorCheck(int, 0, ((0, "i32", 1),)), "non-zero address"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "i16", 1),)), "'i16'"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "i64_array", 1),)), "tuple"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "i64", "1"),)), "an int, None or a pair"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "i64", (1, "2")),)), "an int, None or a pair"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "layout", (0, 1)),)), "layout query must be"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "layout", (0, (0, 1))),)), "non-zero address"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "layout", (1, (1, (2,)))),)), "one of 0 to 1"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "layout", (1, (1, ("0",)))),)), "one of 0 to 1"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "layout", (1, (1, "0"))),)), "an int, None or a pair"),
        ("native_tensor", NativeTensorCheck(int, 0, ((1, "i64"),)), "query"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_named(op: str, arg: Any, message: str) -> None:
    with pytest.raises(GuardError, match=message) as caught:
        GuardProgram([Check((X,), "is", None), Check((X,), op, arg)])
    assert "check 1" in str(caught.value) and op in str(caught.value)


def test_every_op_has_a_test_here() -> None:
    apart = {
        "same_object",
        "distinct_objects",
        "call_many",
        "equal_items",
        "capsule",
        "native_tensor",
        "type_lookup",
        "function_code",
        "unset",
    }
    tested = {op for op, *_ in TABLE} | apart
    assert tested == set(OPS)


# ---- C functions ---------------------------------------------------------------------------------------------------------

LIBRARY = """
#include <Python.h>
#include <stdbool.h>
typedef struct { PyObject_HEAD int64_t rank; int64_t sizes[3]; int32_t code; bool flag; } Handle;

static int is_context(PyObject *value, void *context) { return PyLong_AsLong(value) == *(long *)context; }
static long expected = 42;
PyObject *capsule(void) { return PyCapsule_New((void *)is_context, "treadle_frame.check", NULL); }
PyObject *misnamed(void) { return PyCapsule_New((void *)is_context, "another.name", NULL); }
void *context(void) { return &expected; }

/* the handle is the address right behind the object's head */
typedef struct { int64_t rank; int64_t sizes[3]; int32_t code; char flag; } Body;
int calls = 0;
int32_t get_rank(void *handle, void *out) { calls++; *(int64_t *)out = ((Body *)handle)->rank; return 0; }
int32_t get_sizes(void *handle, void *out) { calls++; *(int64_t **)out = ((Body *)handle)->sizes; return 0; }
int32_t get_code(void *handle, void *out) { calls++; *(int32_t *)out = ((Body *)handle)->code; return 0; }
int32_t get_flag(void *handle, void *out) { calls++; *(_Bool *)out = ((Body *)handle)->flag; return 0; }
int32_t get_error(void *handle, void *out) { calls++; *(int64_t *)out = 1; return 1; }
"""


@pytest.fixture(scope="module")
def library(compile_c: Callable[..., Path]) -> ctypes.PyDLL:
    loaded = ctypes.PyDLL(str(compile_c(LIBRARY)))
    loaded.capsule.restype = loaded.misnamed.restype = ctypes.py_object
    loaded.context.restype = ctypes.c_void_p
    return loaded


def test_capsule(library: ctypes.PyDLL) -> None:
    arg = (library.capsule(), library.context())
    assert holds("capsule", arg, x=42)
    assert not holds("capsule", arg, x=41)
    with pytest.raises(GuardError, match="capsule"):
        GuardProgram([Check((X,), "capsule", (library.misnamed(), 0))])
    with pytest.raises(GuardError, match="capsule"):
        GuardProgram([Check((X,), "capsule", (library.capsule(), "0"))])


class Body(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 3),
        ("code", ctypes.c_int32),
        ("flag", ctypes.c_char),
    ]


HEAD = bytes.__basicsize__ - 1  # the payload of a bytes object stands behind its head


def packed(rank: int, sizes: tuple[int, int, int], code: int, flag: bool) -> bytes:
    return bytes(Body(rank, sizes, code, bytes([flag])))


class Other(bytes):
    pass


def test_native_tensor(library: ctypes.PyDLL) -> None:
    rank, sizes, code, flag = (address_of(library, f"get_{name}") for name in ("rank", "sizes", "code", "flag"))
    value = packed(3, (2, 5, 7), -4, True)

    def native_tensor(*queries: Any, types: Any = bytes) -> bool:
        return holds("native_tensor", NativeTensorCheck(types, HEAD, queries), x=value)

    assert native_tensor((rank, "i64", 3), (sizes, "i64_array", (2, 5, 7)), (code, "i32", -4), (flag, "bool", True))
    assert native_tensor((sizes, "i64_array", (2, None, 7)), (code, "i32", None), (rank, "i64", None))
    assert native_tensor((sizes, "i64_array", ()))
    assert not native_tensor((rank, "i64", 2))
    assert not native_tensor((sizes, "i64_array", (2, 5, 8)))
    assert not native_tensor((code, "i32", 4))
    assert not native_tensor((flag, "bool", False))
    assert native_tensor(types=(int, bytes))
    assert not native_tensor(types=int)
    assert not native_tensor(types=(int, str))
    assert not holds("native_tensor", NativeTensorCheck(bytes, HEAD, ()), x=Other(value))


def test_native_tensor_intervals(library: ctypes.PyDLL) -> None:
    rank, sizes = address_of(library, "get_rank"), address_of(library, "get_sizes")
    value = packed(3, (2, 5, 7), 0, False)

    def native_tensor(*query: Any) -> bool:
        return holds("native_tensor", NativeTensorCheck(bytes, HEAD, (query,)), x=value)

    for interval in ((3, 3), (2, 4), (None, 3), (3, None), (None, None)):
        assert native_tensor(rank, "i64", interval)
    for interval in ((4, 4), (4, 2), (None, 2), (4, None)):
        assert not native_tensor(rank, "i64", interval)
    assert native_tensor(sizes, "i64_array", ((2, None), 5, (1, 7)))
    assert not native_tensor(sizes, "i64_array", ((3, None), 5, (1, 7)))
    assert not native_tensor(sizes, "i64_array", ((2, None), 5, (1, 6)))


def test_native_tensor_layout() -> None:
    torch = pytest.importorskip("torch")
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    strides, sizes = (address_of(library, f"aoti_torch_get_{name}") for name in ("strides", "sizes"))

    def layout(tensor: Any, *expected: Any) -> bool:
        return holds(
            "native_tensor", NativeTensorCheck(torch.Tensor, 16, ((strides, "layout", (sizes, expected)),)), x=tensor
        )

    x = torch.empty(2, 3, 4, 5)
    contiguous = ((1,), (2,), (3,), 1)
    assert layout(x, *contiguous)
    assert layout(x[:1], *contiguous)
    for other in (x.to(memory_format=torch.channels_last), x[:, :, ::2], x[:, :2], x[..., :3]):
        assert not layout(other, *contiguous)
    assert layout(x.to(memory_format=torch.channels_last), (2,), 1, (3,), (1,))
    assert layout(x[:, :2], (60, 60), (2,), (3,), 1)
    assert layout(x[:, :2], (1, None), (2,), (3,), 1) and layout(x[:, :2], None, (2,), (3,), 1)
    assert not layout(x[:, :2], (61, None), (2,), (3,), 1)
    assert layout(torch.empty(3, 1).expand(3, 4), 1, 0)
    assert layout(torch.empty(0, 4), (1,), 1) and layout(torch.empty(4, 0), (1,), 1)
    assert layout(torch.tensor(1.0))
    assert not layout(torch.empty_strided((2, 2), (2**62, 2**62), device="meta"), (1,), 2**62)


def test_equal_items(library: ctypes.PyDLL) -> None:
    rank, sizes = address_of(library, "get_rank"), address_of(library, "get_sizes")
    x, y, z = packed(3, (2, 5, 7), 0, False), packed(3, (5, 2, 9), 0, False), packed(2, (7, 7, 7), 0, False)

    def equal(*pairs: Any, types: Any = bytes, **values: Any) -> bool:
        given = {"x": x, "y": y, "z": z, **values}
        others = tuple((("local", name),) for name in ("y", "z"))
        spec = EqualItems(types, HEAD, rank, sizes, pairs)
        return GuardProgram([Check((X,), "equal_items", (spec, others))]).check(given)

    assert equal()
    assert equal((0, 0, 1, 1), (0, 1, 1, 0), (0, 2, 2, 0), (2, 0, 2, 1), (1, 2, 1, 2))
    assert not equal((0, 0, 1, 0))
    assert not equal((0, 0, 1, 1), (0, 2, 2, 2)), "an index beyond the end"
    assert not equal((0, 0, 1, 1), y=3) and not equal((0, 0, 1, 1), x=None)
    assert not equal((0, 0, 1, 1), types=(int, str)) and equal((0, 0, 1, 1), types=(int, bytes))
    for wrong in ((0, 0, 3, 0), (0, 0, 1), (-1, 0, 0, 0), ("0", 0, 0, 0), 3):
        with pytest.raises(GuardError, match="a pair must be"):
            equal(wrong)
    for spec in (3, (bytes, HEAD, rank, sizes), (3, HEAD, rank, sizes, ()), (bytes, HEAD, rank, sizes, 0)):
        with pytest.raises(GuardError, match="EqualItems"):
            GuardProgram([Check((X,), "equal_items", (spec, ()))])
    for spec in ((bytes, HEAD, 0, sizes, ()), (bytes, HEAD, rank, 0, ())):
        with pytest.raises(GuardError, match="non-zero address"):
            GuardProgram([Check((X,), "equal_items", (spec, ()))])


def test_equal_items_of_many_values(library: ctypes.PyDLL) -> None:
    rank, sizes = address_of(library, "get_rank"), address_of(library, "get_sizes")
    names = [f"v{i}" for i in range(40)]
    values = {name: packed(3, (2, i, 7), 0, False) for i, name in enumerate(names)}
    pairs = tuple((0, 2, i, 2) for i in range(1, 40))
    spec = EqualItems(bytes, HEAD, rank, sizes, pairs)
    first, *others = ((("local", name),) for name in names)
    program = GuardProgram([Check(first, "equal_items", (spec, tuple(others)))])
    assert program.check(values)
    assert not program.check({**values, "v39": packed(3, (2, 3, 8), 0, False)})


def test_native_tensor_queries_stop_at_the_first_that_fails(library: ctypes.PyDLL) -> None:
    calls = ctypes.c_int.in_dll(library, "calls")
    rank, error = address_of(library, "get_rank"), address_of(library, "get_error")
    value = packed(3, (2, 5, 7), 0, False)

    def count(*queries: Any) -> int:
        program = GuardProgram([Check((X,), "native_tensor", NativeTensorCheck(bytes, HEAD, queries))])
        before = calls.value
        assert not program.check({"x": value})
        return calls.value - before

    assert count((rank, "i64", 2), (rank, "i64", 3)) == 1
    assert count((rank, "i64", 3), (error, "i64", 1), (rank, "i64", 3)) == 2
    program = GuardProgram([Check((X,), "native_tensor", NativeTensorCheck(bytes, HEAD, ((rank, "i64", 3),)))])
    before = calls.value
    assert not program.check({"x": 3})
    assert calls.value == before, "no query may see a value of another type"


def test_native_tensor_on_tensors() -> None:
    torch = pytest.importorskip("torch")
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    offset = 16

    def query(name: str, kind: str, expected: Any) -> tuple[int, str, Any]:
        return (address_of(library, f"aoti_torch_get_{name}"), kind, expected)

    def native_tensor(tensor: Any) -> NativeTensorCheck:
        return NativeTensorCheck(
            (torch.Tensor, torch.nn.Parameter),
            offset,
            (
                query("dim", "i64", tensor.dim()),
                query("sizes", "i64_array", tuple(tensor.shape)),
                query("strides", "i64_array", tuple(tensor.stride())),
                query("dtype", "i32", getattr(library, f"aoti_torch_dtype_{str(tensor.dtype)[6:]}")()),
            ),
        )

    example = torch.zeros(2, 3, 4).transpose(0, 1)
    matching = torch.ones(4, 2, 3).permute(2, 1, 0).contiguous().transpose(0, 1).contiguous().transpose(0, 1)
    assert (matching.shape, matching.stride()) == (example.shape, example.stride())
    others = [torch.zeros(3, 2, 4), torch.zeros(3, 2), example.double(), torch.zeros(2, 3, 5).transpose(0, 1), 3]

    def f(x: Any) -> str:
        return "original"

    arg = native_tensor(example)
    add_entry(
        f,
        Entry(
            f.__code__,
            GuardProgram([Check((X,), "native_tensor", arg)]),
            fast_path=(lambda x: "fast path", ("x",), False),
        ),
    )
    fast = dispatcher(f, lambda frame: pytest.fail("asked"))
    assert fast(example) == fast(matching) == fast(torch.nn.Parameter(example.clone())) == "fast path"
    for other in others:
        assert not holds("native_tensor", arg, x=other)


# ---- what lookups find


class Base:
    value = object()
    referred = REFERRED
    number = 3

    def method(self) -> None: ...

    @property
    def computed(self) -> int:
        return 3

    @staticmethod
    def static() -> None: ...


class Derived(Base):
    pass


class Slotted:
    __slots__ = ("item",)


def _type_fact(*fact: Any) -> GuardProgram:
    return GuardProgram([Check((("const", Derived),), "type_lookup", (fact,), "the lookup")])


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (("method", "is", Base.__dict__["method"]), True),
        (("method", "is", None), False),
        (("method", "in", Base), False),
        (("number", "in", Base), True),
        (("value", "in", Base), True),
        (("number", "in", Derived), False),
        (("method", "in", Derived), False),
        (("method", "lacks", None), False),
        (("other", "lacks", None), True),
        (("other", "in", Base), False),
        (("__init__", "in", object), False),
        (("__doc__", "in", Derived), True),
        (("method", "is", Base.__dict__["method"], Derived), True),
        (("method", "lacks", None, Base), True),
        (("method", "in", Base, Base), False),
        (("method", "in", Base, int), False),
        (("method", "lacks", None, int), False),
        (("referred", "refers", weakref.ref(REFERRED)), True),
        (("referred", "refers", weakref.ref(Referred())), False),
        (("", "mro", Derived.__mro__), True),
        (("", "mro", Base.__mro__), False),
        (("", "mro", tuple(map(weakref.ref, Derived.__mro__))), True),
        (("", "mro", (weakref.ref(Derived), weakref.ref(Referred), object)), False),
        (("number", "in", weakref.ref(Base)), True),
        (("number", "in", weakref.ref(Derived)), False),
        (("method", "is", Base.__dict__["method"], weakref.ref(Derived)), True),
        (("method", "lacks", None, weakref.ref(Referred)), False),
        (("method", "refers", weakref.ref(Base.__dict__["method"])), True),
        (("computed", "made_of", (property, ("fget", weakref.ref(Base.computed.fget)), ("fset", None))), True),
        (("computed", "made_of", (property, ("fget", weakref.ref(Base.method)), ("fset", None))), False),
        (("computed", "made_of", (property, ("fset", Base.method))), False),
        (("computed", "made_of", (staticmethod,)), False),
        (("computed", "made_of", (property, ("no such member", None))), False),
        (("static", "made_of", (staticmethod, ("__func__", weakref.ref(Base.static)))), True),
        (("nowhere", "made_of", (property,)), False),
    ],
)
def test_a_lookup_on_a_class_finds_what_it_found(fact, expected):
    program = _type_fact(*fact)
    assert program.check({}) is expected
    assert program.check({}) is expected, "also from the remembered version"


@pytest.mark.parametrize(
    ("value", "is_data"),
    [
        (3, True),
        (re.compile("a"), True),  # of a type that is made at run time and cannot be changed
        (deque(), True),
        (threading.Lock(), True),
        (threading.local(), True),
        (Derived(), False),
        (len, True),
        (property(len), False),
    ],
)
def test_data_is_of_a_type_that_cannot_become_a_descriptor(value, is_data):
    holder = type("Holder", (), {"item": value})
    program = GuardProgram([Check((("const", holder),), "type_lookup", (("item", "in", holder),), "the lookup")])
    for _ in range(2):
        assert program.check({}) is is_data


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (lambda: setattr(Derived, "method", None), lambda: delattr(Derived, "method")),
        (lambda: setattr(Base, "extra", 1), lambda: delattr(Base, "extra")),
        (lambda: setattr(Derived, "__bases__", (Referred,)), lambda: setattr(Derived, "__bases__", (Base,))),
    ],
)
def test_a_changed_class_is_looked_at_again(change, undo):
    program = GuardProgram(
        [
            Check(
                (("const", Derived),),
                "type_lookup",
                (("method", "is", Base.__dict__["method"]), ("extra", "lacks", None)),
                "the lookup",
            )
        ]
    )
    for _ in range(3):
        assert program.check({})
        assert program.check({})
        change()
        assert not program.check({})
        assert program.why_fails({}) == "the lookup"
        undo()


def test_an_unrelated_change_of_a_class_does_not_matter():
    program = _type_fact("method", "is", Base.__dict__["method"])
    assert program.check({})
    Base.unrelated = 1
    try:
        assert program.check({})
    finally:
        del Base.unrelated


def test_type_lookup_of_something_else_than_a_class_fails():
    assert not holds("type_lookup", (("x", "lacks", None),), x=3)


@pytest.mark.parametrize(
    "argument",
    [
        None,
        (1,),
        (("name",),),
        (("name", "was", 1),),
        ((1, "is", 1),),
        (("name", "is", 1, 2),),
        (("name", "refers", 1),),
        (("name", "in", 1),),
        (("name", "mro", 1),),
        (("name", "made_of", 1),),
        (("name", "made_of", (Base,)),),
        (("name", "made_of", (property, "fget")),),
        (("name", "is", 1, "Base"),),
    ],
)
def test_wrong_type_facts_are_refused(argument):
    with pytest.raises(GuardError, match="type_lookup"):
        GuardProgram([Check((X,), "type_lookup", argument)])


def test_function_code_is_compared_and_not_kept_alive():
    def first(): ...

    def second(): ...

    expected = (weakref.ref(first.__code__), 0, ())
    assert holds("function_code", expected, x=first)
    assert not holds("function_code", expected, x=second)
    assert not holds("function_code", expected, x=3)
    first.__code__ = second.__code__
    assert not holds("function_code", expected, x=first)


def test_function_code_counts_defaults():
    def function(a: int, b: int = 1, *, c: int = 2): ...

    expected = (weakref.ref(function.__code__), 1, ("c",))
    assert holds("function_code", expected, x=function)
    function.__defaults__ = (3,)
    assert holds("function_code", expected, x=function)
    function.__defaults__ = (3, 4)
    assert not holds("function_code", expected, x=function)
    function.__defaults__ = None
    assert not holds("function_code", expected, x=function)
    function.__defaults__ = (3,)
    function.__kwdefaults__["d"] = function.__kwdefaults__.pop("c")
    assert not holds("function_code", expected, x=function)
    with pytest.raises(GuardError, match="function_code"):
        GuardProgram([Check((X,), "function_code", weakref.ref(function))])


def test_a_slot_is_unset_until_it_is_set():
    slotted, descriptor = Slotted(), Slotted.__dict__["item"]
    assert holds("unset", descriptor, x=slotted)
    slotted.item = 3
    assert not holds("unset", descriptor, x=slotted)
    assert not holds("unset", descriptor, x=object())
    with pytest.raises(GuardError, match="unset"):
        GuardProgram([Check((X,), "unset", 3)])


def test_a_slot_is_found_by_its_name_in_a_class_that_is_not_kept_alive():
    class Owner:
        __slots__ = ("item", "other")

    class Heir(Owner):
        __slots__ = ("item",)

    owner = Owner()
    unset, item = (
        GuardProgram([Check((X,), "unset", (weakref.ref(Owner), "item"))]),
        GuardProgram([Check((X, ("slot", (weakref.ref(Owner), "item"))), "equals", 3)]),
    )
    for _ in range(3):
        assert unset.check({"x": owner})
        assert not item.check({"x": owner})
        owner.item = 3
        assert not unset.check({"x": owner})
        assert item.check({"x": owner})
        assert not item.check({"x": 3})
        del owner.item
    heir = Heir()
    heir.item = 3
    assert not item.check({"x": heir})
    assert unset.check({"x": heir})
    owner.item = 3
    Owner.item = Owner.other
    assert not item.check({"x": owner})
    del Owner.item
    assert not item.check({"x": owner})
    reference = weakref.ref(Owner)
    del Owner, Heir, owner, heir
    gc.collect()
    assert reference() is None
    assert not unset.check({"x": 3})
    assert not item.check({"x": 3})


@pytest.mark.parametrize("slot", [3, ("item",), (Slotted, "item"), (weakref.ref(Slotted), 3)])
def test_wrong_slots_are_refused(slot):
    with pytest.raises(GuardError, match="slot"):
        GuardProgram([Check((X, ("slot", slot)), "equals", 3)])
    with pytest.raises(GuardError, match="unset"):
        GuardProgram([Check((X,), "unset", slot)])


def test_a_slot_is_read_through_its_descriptor():
    class Overriding(Slotted):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError

    item = Overriding()
    Slotted.__dict__["item"].__set__(item, 3)
    program = GuardProgram([Check((X, ("descriptor", Slotted.__dict__["item"])), "equals", 3)])
    assert program.check({"x": item})
    assert not program.check({"x": 3})


def test_the_own_dict_is_read_past_descriptors():
    class Hiding:
        @property
        def __dict__(self):
            raise RuntimeError

    item = Hiding()
    item.a = 1
    has = GuardProgram([Check((X, ("own_dict",)), "has_key", "a"), Check((X, ("own_dict",)), "lacks_key", "b")])
    assert has.check({"x": item})
    item.b = 2
    assert not has.check({"x": item})
    assert not has.check({"x": 3})


def test_the_own_dict_of_a_class_is_its_namespace():
    class Own:
        a = 1

    has = GuardProgram([Check((X, ("own_dict",)), "has_key", "a"), Check((X, ("own_dict",)), "lacks_key", "b")])
    assert has.check({"x": Own})
    Own.b = 2
    assert not has.check({"x": Own})
    assert GuardProgram([Check((X, ("own_dict",)), "has_key", "from_bytes")]).check({"x": int})
    assert GuardProgram([Check((X, ("own_dict",)), "lacks_key", "a")]).check({"x": object})


def test_the_globals_are_a_root():
    names = {"a": 1}
    program = GuardProgram([Check((("globals",),), "lacks_key", "b")])
    assert program.check({}, names)
    names["b"] = 1
    assert not program.check({}, names)
    assert not program.check({})


def test_the_cells_of_free_variables_are_roots():
    cell, other = types.CellType(1), types.CellType(1)
    program = GuardProgram([Check((("closure_cell", "k"),), "is", cell), Check((("closure", "k"),), "equals", 1)])
    assert program.check({}, closure={"k": cell})
    assert not program.check({}, closure={"k": other})


class EqualKey:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


KEY = EqualKey()


@pytest.mark.parametrize(
    ("keys", "given", "expected"),
    [
        ((KEY,), {KEY: 1}, True),
        ((KEY,), {EqualKey(): 1}, False),
        (((1, KEY),), {(1, EqualKey()): 1}, False),
        (((1, "a"),), {(1, "a"): 1}, True),
        ((1,), {True: 1}, False),
        ((frozenset({1}),), {frozenset({True}): 1}, False),
    ],
)
def test_keys_that_are_equal_but_not_the_same(keys, given, expected):
    assert holds("dict_keys", keys, x=given) is expected


class Reordered(dict):
    """A dict whose iteration is code of the program, which a guard must not run."""

    def __iter__(self) -> Any:
        raise AssertionError("asked by a guard")


class ReorderedOrdered(OrderedDict):
    def __iter__(self) -> Any:
        raise AssertionError("asked by a guard")


def test_keys_are_read_past_the_class() -> None:
    ordered = ReorderedOrdered(a=1, b=2)
    ordered.move_to_end("a")
    for value, keys in ((Reordered(a=1, b=2), ("a", "b")), (ordered, ("b", "a"))):
        assert holds("dict_keys", keys, x=value)
        assert not holds("dict_keys", keys[::-1], x=value)
