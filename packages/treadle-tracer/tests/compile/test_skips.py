"""Which frames are left to Python."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json.decoder
import re
import threading
from pathlib import Path

import pytest
import torch

from treadle_tracer import skips
from treadle_tracer.left_below import leave_below


def plain(x):
    return x + 1


@functools.lru_cache
def cached(x):
    return x + 1


def generator(x):
    yield x


async def coroutine(x):
    return x


class Special:
    def __init__(self):
        self.a = 1

    def forward(self):
        return self.a


@dataclasses.dataclass
class Data:
    a: int


class_body = compile("class A:\n x = 1", "somewhere.py", "exec").co_consts[0]


@pytest.mark.parametrize(
    "code",
    [
        plain.__code__,
        Special.forward.__code__,
        torch.nn.Linear.forward.__code__,
        torch.nn.Sequential.forward.__code__,
    ],
)
def test_traced(code):
    assert skips.why_not_trace(code) is None


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (generator.__code__, "generator"),
        (coroutine.__code__, "coroutine"),
        (class_body, "body of a module or class"),
        (Special.__init__.__code__, "__init__"),
        (Data.__init__.__code__, "__init__"),
        (torch.nn.functional.layer_norm.__code__, "torch"),
        (torch.nn.Sequential.__iter__.__code__, "special method"),
        (torch.nn.Module._call_impl.__code__, "torch"),
        (torch.optim.SGD.step.__wrapped__.__code__, "torch"),
        (contextlib.ExitStack.pop_all.__code__, "standard library"),
        (json.decoder.JSONDecoder.decode.__code__, "standard library"),
        (threading.Thread.run.__code__, "standard library"),
        (collections.OrderedDict.fromkeys.__func__.__code__ if hasattr(collections.OrderedDict.fromkeys, "__func__") else
         collections.UserDict.copy.__code__, "standard library"),
        (skips.why_not_trace.__code__, "treadle_tracer"),
        (pytest.raises.__code__, "pytest"),
        (torch.fx.symbolic_trace(plain).forward.__code__, "generated code"),
    ],
)  # fmt: skip
def test_left_alone(code, why):
    assert why in skips.why_not_trace(code).text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (generator.__code__, skips.SkipKind.GENERATOR),
        (class_body, skips.SkipKind.BODY),
        (Special.__init__.__code__, skips.SkipKind.SPECIAL_METHOD),
        (torch.nn.functional.layer_norm.__code__, skips.SkipKind.LIBRARY),
        (pytest.raises.__code__, skips.SkipKind.LIBRARY),
        (skips.why_not_trace.__code__, skips.SkipKind.TREADLE),
        (torch.fx.symbolic_trace(plain).forward.__code__, skips.SkipKind.GENERATED),
        (cached.__wrapped__.__code__, skips.SkipKind.RESULTS_CACHED),
    ],
)
def test_kinds(code, kind):
    if kind is skips.SkipKind.RESULTS_CACHED:
        leave_below(cached.__wrapped__)
    skip = skips.why_not_trace(code)
    assert skip.kind is kind and str(skip) == skip.text
    assert skip.is_others_code is (kind not in (skips.SkipKind.GENERATOR, skips.SkipKind.RESULTS_CACHED))
    never = kind in (skips.SkipKind.GENERATOR, skips.SkipKind.BODY)
    assert skips.why_not_trace(code, is_root=True) == (skip if never else None)


def test_the_page_on_the_design_lists_all_kinds():
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
    listed = dict(re.findall(r"^\| `([A-Z_]+)` \|.* \| (yes|no) \|$", page, re.MULTILINE))
    assert listed == {kind.name: "no" if skips.Skip(kind, "").is_others_code else "yes" for kind in skips.SkipKind}


def test_site_packages_are_not_the_standard_library():
    assert skips.why_not_trace_file(pytest.__file__.replace("pytest", "some_model_library")) is None


def no_tensors(function, **arguments):
    return skips.why_no_tensors(function.__code__, arguments, function.__globals__, function.__closure__ or ())


def test_frames_that_surely_have_no_tensors():
    def computes(a, b):
        return a + b

    def calls(a):
        return torch.ones(a)

    def closes(a):
        return a + held

    held = torch.ones(1)
    assert no_tensors(computes, a=1, b=[2, ("x", None)]) is not None
    assert no_tensors(computes, a=1, b=[2, (torch.ones(1),)]) is None
    assert no_tensors(computes, a=Special(), b=1) is None
    assert no_tensors(computes, a={"k": torch.nn.Linear(1, 1)}, b=1) is None
    assert no_tensors(computes, a=list(range(1000)), b=1) is None
    assert no_tensors(calls, a=1) is None
    assert no_tensors(closes, a=1) is None


def test_iterators_are_looked_into_and_stay_as_they_are():
    def comprehension(iterator):
        return [item + 1 for item in iterator]

    plain, tensors = {"a": 1, "b": 2}, {"a": 1, "b": torch.ones(1)}
    for make in (
        iter, reversed, enumerate, zip,
        lambda d: iter(d.values()), lambda d: iter(d.items()), lambda d: reversed(d.items()), lambda d: iter(list(d.values())),
        lambda d: iter(tuple(d.items())), lambda d: enumerate(zip(d.values(), d)), lambda d: iter({*d}),
    ):  # fmt: skip
        for mapping in (plain, tensors):
            iterator, again = make(mapping), make(mapping)
            holds = str(torch.ones(1)) in str(list(make(mapping)))
            assert (no_tensors(comprehension, iterator=iterator) is None) is holds
            assert str(list(iterator)) == str(list(again))
    assert no_tensors(comprehension, iterator=iter(range(3))) is not None
    assert no_tensors(comprehension, iterator=iter(range(10**9))) is not None
    assert no_tensors(comprehension, iterator=(item for item in [1])) is None
    assert no_tensors(comprehension, iterator=iter([1] * 1000)) is None
    changed = {1: 2}
    iterator = iter(changed)
    changed[3] = 4
    assert no_tensors(comprehension, iterator=iterator) is None
