"""CPython's own tests, compiled: what they say of lists, generators, classes, exceptions and descriptors holds in a traced function, too.

    python -m soundness.cpython test_dict test_generators        # from tools/, or with tools/ on PYTHONPATH; without names: MODULES

Each test method of a module of the package `test` is called by a compiled function that also computes with a tensor, so that it is traced
together with the methods of `unittest` that it calls. It must end as it does uncompiled: pass, skip, or raise the same exception. A
method that reads what an earlier run has left in the process (a cache of the standard library) may differ without being wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import importlib
import inspect
import io
import signal
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import treadle

MODULES = (
    "test_abc test_augassign test_baseexception test_binop test_bool test_bytes test_class test_collections test_compare test_complex "
    "test_contains test_contextlib test_dataclasses test_decorators test_defaultdict test_deque test_descr test_dict test_dictviews "
    "test_enum test_enumerate test_except_star test_exceptions test_float test_fractions test_funcattrs test_functools test_generators "
    "test_genericalias test_heapq test_inspect test_int test_isinstance test_iter test_itertools test_json test_keywordonlyarg test_list "
    "test_long test_named_expressions test_operator test_ordered_dict test_patma test_positional_only_arg test_property test_raise "
    "test_range test_richcmp test_scope test_set test_slice test_sort test_string test_super test_tuple test_types test_typing "
    "test_unicode test_userdict test_userlist test_weakref test_with"
).split()

SECONDS, SECONDS_COMPILED = 20, 90


class OutOfTime(BaseException):
    """The time for one method is up."""


def _raise_out_of_time(*_: Any) -> None:
    raise OutOfTime


def tests_of(module: str) -> Iterator[unittest.TestCase]:
    """The test cases of a module of CPython's package `test`, but for doctests and coroutines. Raises ImportError."""
    found = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test.{module}"))
    waiting: list[Any] = list(found)
    while waiting:
        case = waiting.pop(0)
        if isinstance(case, unittest.TestSuite):
            waiting[:0] = list(case)
            continue
        name = getattr(case, "_testMethodName", None)
        method = getattr(type(case), name or "", None)
        is_left_out = isinstance(case, doctest.DocTestCase) or inspect.iscoroutinefunction(method)
        is_skipped = getattr(type(case), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False)
        if method is not None and not is_skipped and not is_left_out:
            yield case


def outcome(case: unittest.TestCase, run: Callable[[unittest.TestCase], Any], seconds: int) -> str:
    """How a test method ends: "pass", "skip", "out of time", or an exception as text. `run` calls it."""
    signal.alarm(seconds)
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            case.setUp()
            try:
                run(case)
            finally:
                signal.alarm(0)
                case.tearDown()
                case.doCleanups()
    except unittest.SkipTest:
        return "skip"
    except OutOfTime:
        return "out of time"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    return "pass"


def difference(case: unittest.TestCase) -> str | None:
    """How the compiled method ends otherwise than the method itself; None where it does not, or where that one takes too long."""
    method = getattr(type(case), case._testMethodName)

    def call(test: unittest.TestCase) -> torch.Tensor:
        y = torch.ones(2) * 2
        method(test)
        return y.sum()

    expected = outcome(case, call, SECONDS)
    if expected in ("skip", "out of time"):
        return None
    treadle.reset()
    found = outcome(type(case)(case._testMethodName), treadle.compile(call, backend="eager"), SECONDS_COMPILED)
    return None if found == expected else f"{expected} | {found}"


def main(arguments: list[str] | None = None) -> int:
    """Run the modules; the result is 1 where a method ends otherwise than uncompiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(MODULES))
    parser.add_argument("--only", default="", help="methods whose name holds this text")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, _raise_out_of_time)
    treadle.config.raise_internal_errors = True
    differing = 0
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        for module in asked.modules:
            count = 0
            for case in tests_of(module):
                if asked.only not in case.id():
                    continue
                with contextlib.suppress(unittest.SkipTest):
                    type(case).setUpClass()
                    found = difference(case)
                    type(case).tearDownClass()
                    count += 1
                    if found is not None:
                        differing += 1
                        print(f"{case.id()}: {found}", flush=True)
            print(f"{module}: {count} methods", flush=True)
    print("no difference" if not differing else f"{differing} methods differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
