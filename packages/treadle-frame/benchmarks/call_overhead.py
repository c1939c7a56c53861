"""What a call costs: plain, through a dispatcher, with the hook on. Process time, best of many short runs.

python benchmarks/call_overhead.py       (tensors and libtorch's C queries where torch is installed, ints elsewhere)
"""

from __future__ import annotations

import ctypes
import sys
import time
import timeit
from pathlib import Path
from typing import Any

import treadle_frame
from treadle_frame import RUN_CACHED, RUN_ONCE, Check, Entry, GuardProgram, NativeTensorCheck, add_entry, dispatcher

X = (("local", "x"),)
HANDLE_OFFSET = 16  # of the tensor handle in a torch.Tensor: measured on torch 2.13
LOOPS, RUNS = 10_000, 200


def subject() -> tuple[Any, list[Check]]:
    """The argument of the calls and the checks that hold for it."""
    try:
        import torch
    except ImportError:
        return 3, [Check(X, "type_is", int), Check(X, "equals", 3)]
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    queries = []
    expected = {"dtype": ("i32", 6), "dim": ("i64", 1), "sizes": ("i64_array", (8,)), "strides": ("i64_array", (1,))}
    for name, (kind, value) in expected.items():
        address = ctypes.cast(getattr(library, f"aoti_torch_get_{name}"), ctypes.c_void_p).value
        assert address is not None
        queries.append((address, kind, value))
    native_tensor = NativeTensorCheck(torch.Tensor, HANDLE_OFFSET, tuple(queries))
    return torch.zeros(8), [Check(X, "type_is", torch.Tensor), Check(X, "native_tensor", native_tensor)]


def nanoseconds(statement: str, names: dict[str, Any], loops: int = LOOPS) -> float:
    runs = timeit.repeat(statement, globals=names, number=loops, repeat=RUNS, timer=time.process_time)
    return min(runs) / loops * 1e9


def function() -> Any:
    """A function with a code object of its own."""
    namespace: dict[str, Any] = {}
    exec("def f(x): return x", namespace)
    return namespace["f"]


def main() -> None:
    x, checks = subject()
    guard = GuardProgram(checks)
    plain, unchecked, fast_path, replaced, hooked = (function() for _ in range(5))
    add_entry(unchecked, Entry(unchecked.__code__, GuardProgram([]), fast_path=(id, ("x",), False)))
    add_entry(fast_path, Entry(fast_path.__code__, guard, fast_path=(plain, ("x",), False)))
    add_entry(replaced, Entry(plain.__code__, guard))
    add_entry(hooked, Entry(plain.__code__, guard))
    names = {"x": x, "id": id, "plain": plain, "hooked": hooked}
    for name, wrapped in [("unchecked", unchecked), ("fast_path", fast_path), ("replaced", replaced)]:
        names[name] = dispatcher(wrapped, lambda frame: RUN_ONCE)
    print(f"CPython {sys.version.split()[0]}, x is a {type(x).__name__}, {len(checks)} checks")
    rows = [
        ("plain(x)", "a plain Python function"),
        ("id(x)", "a builtin"),
        ("unchecked(x)", "dispatcher, fast-path entry without checks, to a builtin"),
        ("fast_path(x)", "dispatcher, fast-path entry with the checks, to a Python function"),
        ("replaced(x)", "dispatcher, replacement code"),
    ]
    for statement, meaning in rows:
        print(f"{nanoseconds(statement, names):8.1f} ns  {meaning}")
    treadle_frame.set_handler(RUN_CACHED)
    print(f"{nanoseconds('hooked(x)', names):8.1f} ns  hook on, the entry runs in the frame")
    print(f"{nanoseconds('plain(x)', names):8.1f} ns  hook on, code without entries")
    treadle_frame.set_handler(None)
    if "torch" in sys.modules:
        print(f"{nanoseconds('x + 1', names, 1000):8.1f} ns  eager x + 1, for comparison")


if __name__ == "__main__":
    main()
