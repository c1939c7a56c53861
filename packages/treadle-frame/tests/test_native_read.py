"""What a C library says about many values at once."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from frame_helpers import address_of

from treadle_frame import native_memory, native_numbers

# The values are bytes objects; their payload is the library's object.
LIBRARY = r"""
#include <stdint.h>
int32_t first(void *handle, int64_t *out) { *out = ((unsigned char *)handle)[0]; return 0; }
int32_t second(void *handle, int64_t *out) { *out = -(int64_t)((unsigned char *)handle)[1]; return 0; }
int32_t itself(void *handle, int64_t *out) { *out = (int64_t)(intptr_t)handle; return 0; }
int32_t nowhere(void *handle, int64_t *out) { *out = 0; return 0; }
int32_t fails(void *handle, int64_t *out) { return ((unsigned char *)handle)[0] == 'x'; }
"""
HEAD = bytes.__basicsize__ - 1


class Named(bytes):
    pass


@pytest.fixture(scope="module")
def library(compile_c: Callable[..., Path]) -> ctypes.PyDLL:
    return ctypes.PyDLL(str(compile_c(LIBRARY)))


def test_numbers(library: ctypes.PyDLL) -> None:
    functions = (address_of(library, "first"), address_of(library, "second"))
    found = native_numbers([b"\x01\x02", b"\x03\x04"], bytes, HEAD, functions)
    assert struct.unpack("4q", found) == (1, -2, 3, -4)
    assert native_numbers((b"\x05\x06",), (int, bytes), HEAD, functions[:1]) == struct.pack("q", 5)
    assert native_numbers((), bytes, HEAD, functions) == b""


def test_memory(library: ctypes.PyDLL) -> None:
    itself, nowhere = address_of(library, "itself"), address_of(library, "nowhere")
    assert native_memory([b"abcd", b"ef", b"g"], bytes, HEAD, itself, (3, 2, 0)) == b"abcef"
    assert native_memory([b"abcd"], bytes, HEAD, nowhere, (0,)) == b""
    with pytest.raises(ValueError, match="object 1 has no memory"):
        native_memory([b"abcd", b"efgh"], bytes, HEAD, nowhere, (0, 1))


def test_values_of_other_types_are_not_touched(library: ctypes.PyDLL) -> None:
    itself = address_of(library, "itself")
    for other in (3, None, Named(b"abcd")):
        with pytest.raises(TypeError, match="object 1 is of another type"):
            native_memory([b"abcd", other], (bytes, str), HEAD, itself, (1, 1))
        with pytest.raises(TypeError, match="object 1 is of another type"):
            native_numbers([b"abcd", other], bytes, HEAD, (itself,))


def test_a_function_that_fails(library: ctypes.PyDLL) -> None:
    fails = address_of(library, "fails")
    with pytest.raises(RuntimeError, match="object 1"):
        native_numbers([b"abcd", b"xyz"], bytes, HEAD, (fails,))
    with pytest.raises(RuntimeError, match="object 0"):
        native_memory([b"x"], bytes, HEAD, fails, (1,))


BAD: list[tuple[tuple[Any, ...], type[Exception]]] = [
    ((3, bytes, HEAD, 1, (1,)), TypeError),
    (([b"ab"], 3, HEAD, 1, (1,)), TypeError),
    (([b"ab"], bytes, HEAD, 0, (1,)), ValueError),
    (([b"ab"], bytes, HEAD, "1", (1,)), ValueError),
    (([b"ab"], bytes, HEAD, 1, ()), ValueError),
    (([b"ab"], bytes, HEAD, 1, (-1,)), ValueError),
    (([b"ab"], bytes, HEAD, 1, ("1",)), TypeError),
    (([b"ab", b"cd"], bytes, HEAD, 1, (2**62, 2**62)), ValueError),
    (([b"ab"], bytes, HEAD, 1, [1]), TypeError),
]


@pytest.mark.parametrize(("args", "error"), BAD)
def test_bad_arguments_of_native_memory(args: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        native_memory(*args)


@pytest.mark.parametrize("functions", [(), (0,), ("1",), (1,) * 9])
def test_bad_functions_of_native_numbers(functions: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        native_numbers([b"ab"], bytes, HEAD, functions)
