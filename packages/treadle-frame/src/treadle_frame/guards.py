"""Guard programs as data: checks, and queries through a C ABI. `GuardProgram` compiles them."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from treadle_frame._core import ACCESSORS, OPS, ROOTS

Path: TypeAlias = tuple[tuple[Any, ...], ...]


class Check(NamedTuple):
    """One condition: the value at the end of `path` passes the test `op` with argument `arg`.

    `path` starts with a root (`("local", "x")`) and goes on with accessors (`("attr", "weight")`); `reason` is the text
    for people when the check fails. `ROOTS`, `ACCESSORS` and `OPS` are the names in the C tables (csrc/guard_steps.def,
    csrc/guard_checks.c); the README describes them.
    """

    path: Path
    op: str
    arg: Any = None
    reason: str = ""


class NativeImage(NamedTuple):
    """Which bytes decide a `native_tensor` check: as long as they are equal, none of its queries is asked.

    The handle holds the address of an object of the C library. `ranges` are (start, stop) of bytes in that object, multiples of 8, 256
    bytes at most in all. Each of `fields` is a field elsewhere, 0 behind a null pointer: (offset of a pointer in the object, offset behind
    it, 1 to 8 bytes of one aligned word, only_null, needed). With `only_null` all that counts is whether it is 0. `needed`: the bytes
    decide only where the field is not 0 (True), or is 0 (False), and of other values the queries are asked every time; None: they decide
    in either case. `implies` are names of attributes and callables: `getattr(value, name)` and `callable(value)` give the same object as
    long as the bytes are equal. Whoever makes an image vouches for that. The check must be of one type, not of a tuple of types.
    """

    ranges: tuple[tuple[int, int], ...]
    fields: tuple[tuple[int, int, int, bool, bool | None], ...] = ()
    implies: tuple[Any, ...] = ()


class NativeTensorCheck(NamedTuple):
    """The argument of a `native_tensor` check: questions to a C library about the value's handle.

    The value's type must be exactly `type` (or one of the tuple). The handle is the address `id(value) + handle_offset`.
    Each query is `(function address, kind, expected)`; the function is `int32_t f(void *handle, void *out)`, returns 0
    when it worked and writes an int32 (`i32`), int64 (`i64`), bool (`bool`), or a pointer to as many int64 as `expected`
    has (`i64_array`: ask for the length first, queries run in order and stop at the first that fails). An expected value
    or element is an int, a pair (lower, upper) of ints for an interval that holds both ends, or None, which matches
    anything (as an end of an interval: no bound).
    Kind `layout`: the function gives strides as an `i64_array` does, and `expected` is (address of the function that
    gives the sizes, tuple): an element is as above, or `(dimension,)`: the stride is that dimension's size (at least 1)
    times its stride. The functions are called with the GIL held and must not run Python code.
    """

    type: type | tuple[type, ...]
    handle_offset: int
    queries: tuple[tuple[int, str, Any], ...]
    image: NativeImage | None = None


class EqualItems(NamedTuple):
    """The first half of an `equal_items` check's argument, `(EqualItems, other paths)`: elements of arrays are equal.

    Values are numbered: 0 is the one at the check's own path, 1 and up are those at the other paths. All must be exactly of `type`
    (or one of the tuple); handles and functions are as in `NativeTensorCheck`: `length` gives an int64, `items` a pointer to so
    many int64. Each of `pairs` is (value, index, other value, its index); an index beyond the end makes the check fail.
    """

    type: type | tuple[type, ...]
    handle_offset: int
    length: int
    items: int
    pairs: tuple[tuple[int, int, int, int], ...]


__all__ = ["ACCESSORS", "OPS", "ROOTS", "Check", "EqualItems", "NativeImage", "NativeTensorCheck", "Path"]
