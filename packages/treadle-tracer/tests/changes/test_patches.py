"""Class 9: functions of PyTorch and the standard library, methods of Tensor and builtins that somebody replaces."""

from __future__ import annotations

import builtins
import copy
import copyreg
import math
import operator

import torch
import torch.nn.functional as F
from compile_runs import compiled
from mutate_runs import check, collect, ones, replaced
from torch import nn


def _minus(x, *args, **kwargs):
    return x - 3


def torch_function():
    def f(x):
        return torch.relu(x) * 2

    yield f, ones()
    with replaced(torch, "relu", _minus):
        yield f, ones()
    yield f, ones()


def functional():
    def f(x):
        return F.gelu(x) * 2

    yield f, ones()
    with replaced(F, "gelu", _minus):
        yield f, ones()


def functional_behind_a_module():
    m = nn.GELU()

    def f(x):
        return m(x)

    yield f, ones()
    with replaced(F, "gelu", _minus):
        yield f, ones()


def linear_behind_a_module():
    m = nn.Linear(2, 2)

    def f(x):
        return m(x)

    yield f, ones(1, 2)
    with replaced(F, "linear", lambda x, w, b: x - 3):
        yield f, ones(1, 2)


def functional_taken_by_name():
    from types import SimpleNamespace

    space = SimpleNamespace(relu=F.relu)

    def f(x):
        return space.relu(x)

    yield f, ones()
    space.relu = _minus
    yield f, ones()


def tensor_method():
    def f(x):
        return x.prod() * 2

    yield f, ones()
    with replaced(torch.Tensor, "prod", _minus):
        yield f, ones()


def tensor_method_replaced_before():
    def f(x):
        return x.cos() * 2

    def g(x):
        return x.cos() * 3

    yield g, ones()
    with replaced(torch.Tensor, "cos", _minus):
        yield f, ones()
        yield g, ones()
    yield f, ones()


def tensor_operator():
    def f(x):
        return x + 1

    yield f, ones()
    with replaced(torch.Tensor, "__add__", lambda self, other: torch.mul(self, 5)):
        yield f, ones()


def tensor_reflected_operator():
    def f(x):
        return 1 - x

    yield f, ones()
    with replaced(torch.Tensor, "__rsub__", lambda self, other: torch.mul(self, 5)):
        yield f, ones()


def tensor_comparison():
    def f(x):
        return x > 0

    yield f, ones()
    with replaced(torch.Tensor, "__gt__", lambda self, other: torch.mul(self, 5)):
        yield f, ones()


def tensor_negation():
    def f(x):
        return -x

    yield f, ones()
    with replaced(torch.Tensor, "__neg__", lambda self: torch.mul(self, 5)):
        yield f, ones()


def tensor_in_place_operator():
    def f(x):
        x = x.clone()
        x += 1
        return x

    yield f, ones()
    with replaced(torch.Tensor, "__iadd__", lambda self, other: torch.mul(self, 5)):
        yield f, ones()


def tensor_indexing():
    def f(x):
        return x[0] * 2

    yield f, ones()
    with replaced(torch.Tensor, "__getitem__", lambda self, key: torch.mul(self, 5)):
        yield f, ones()


def tensor_length():
    def f(x):
        return x * len(x)

    yield f, ones()
    with replaced(torch.Tensor, "__len__", lambda self: 7):
        yield f, ones()


def tensor_property():
    def f(x):
        return x.T * 2

    yield f, ones(1, 2)
    with replaced(torch.Tensor, "T", property(lambda self: self - 3)):
        yield f, ones(1, 2)


def tensor_size():
    def f(x):
        return x * x.nelement()

    yield f, ones()
    with replaced(torch.Tensor, "nelement", lambda self: 9):
        yield f, ones()


def tensor_iteration():
    def f(x):
        a, b = x
        return a * 2 - b

    yield f, ones()
    with replaced(torch.Tensor, "__iter__", lambda self: iter([3, 5])):
        yield f, ones()


def method_of_a_parameter():
    m = nn.Linear(2, 2)
    with torch.no_grad():
        m.weight.fill_(1)

    def f(x):
        return x * m.weight.sum()

    yield f, ones()
    with replaced(nn.Parameter, "sum", lambda self: 5):
        yield f, ones()


def method_of_a_module_class():
    m = nn.Linear(2, 2)

    def f(x):
        return m(x)

    yield f, ones(1, 2)
    with replaced(nn.Linear, "forward", lambda self, x: x - 3):
        yield f, ones(1, 2)


def method_of_the_base_module_class():
    m = nn.Linear(2, 2)

    def f(x):
        return m(x)

    yield f, ones(1, 2)
    with replaced(nn.Module, "_call_impl", lambda self, x: x - 3):
        yield f, ones(1, 2)


def math_function():
    def f(x):
        return x * math.sqrt(4)

    yield f, ones()
    with replaced(math, "sqrt", lambda k: 9):
        yield f, ones()


def math_constant():
    def f(x):
        return x * math.pi

    yield f, ones()
    with replaced(math, "pi", 3):
        yield f, ones()


def builtin_len():
    def f(x, items):
        return x * len(items)

    yield f, ones(), [1, 2]
    with replaced(builtins, "len", lambda items: 9):
        yield f, ones(), [1, 2]


def builtin_sum():
    def f(x, items):
        return x * sum(items)

    yield f, ones(), [1, 2]
    with replaced(builtins, "sum", lambda items: 9):
        yield f, ones(), [1, 2]


def builtin_of_a_helper_elsewhere():
    import compile_runs  # any module with functions of its own

    space = {"__builtins__": vars(builtins)}
    exec("def h(items):\n    return max(items)", space)
    assert compile_runs is not None
    h = space["h"]

    def f(x):
        return x * h([1, 2])

    yield f, ones()
    before = max
    with replaced(builtins, "max", lambda *items, **options: 9 if items == ([1, 2],) else before(*items, **options)):
        yield f, ones()


def builtin_class():
    def f(x):
        return x * int(2.5)

    yield f, ones()
    with replaced(builtins, "int", lambda value: 9):
        yield f, ones()


def builtin_isinstance():
    def f(x):
        return x + 1 if isinstance(x, torch.Tensor) else x - 1

    yield f, ones()
    with replaced(builtins, "isinstance", lambda value, cls: False):
        yield f, ones()


def operator_function():
    def f(x):
        return operator.add(x, 1)

    yield f, ones()
    with replaced(operator, "add", lambda a, b: a - 3):
        yield f, ones()


def functools_reduce():
    import functools

    def f(x):
        return x * functools.reduce(lambda a, b: a + b, [1, 2, 3])

    yield f, ones()
    with replaced(functools, "reduce", lambda function, items: 9):
        yield f, ones()


def torch_constructor():
    def f(x):
        return x + torch.ones(2)

    yield f, ones()
    with replaced(torch, "ones", lambda *size: 9):
        yield f, ones()


def torch_namespace():
    def f(x):
        return torch.linalg.norm(x)

    yield f, ones()
    with replaced(torch.linalg, "norm", _minus):
        yield f, ones()


def torch_submodule():
    from types import SimpleNamespace

    def f(x):
        return torch.special.expit(x)

    yield f, ones()
    with replaced(torch, "special", SimpleNamespace(expit=_minus)):
        yield f, ones()


def code_of_a_library_function():
    def f(x):
        return F.relu6(x) * 2

    def other(input, inplace=False):
        return input - 3

    yield f, ones()
    before = F.relu6.__code__
    F.relu6.__code__ = other.__code__
    try:
        yield f, ones()
    finally:
        F.relu6.__code__ = before


def inside_of_a_library_function():
    def f(x):
        return F.relu(x) * 2

    yield f, ones()
    with replaced(torch, "relu", _minus):
        yield f, ones()


def inside_of_a_library_function_by_its_name():
    def f(x):
        return F.softmax(x, dim=0) * 2

    yield f, ones()
    with replaced(torch.Tensor, "softmax", lambda self, *args, **kwargs: self - 3):
        yield f, ones()


def container_module():
    m = nn.Sequential(nn.ReLU(), nn.ReLU())

    def f(x):
        return m(x)

    yield f, ones()
    with replaced(nn.Sequential, "__iter__", lambda self: iter([])):
        yield f, ones()


def default_argument_of_a_library_function():
    def f(x):
        return F.leaky_relu(-x)

    yield f, ones()
    before = F.leaky_relu.__defaults__
    F.leaky_relu.__defaults__ = (0.5, False)
    try:
        yield f, ones()
    finally:
        F.leaky_relu.__defaults__ = before


def context_manager():
    def f(x):
        with torch.no_grad():
            return x + 1 if torch.is_grad_enabled() else x - 1

    yield f, ones()
    try:
        with replaced(torch.no_grad, "__enter__", lambda self: None):
            yield f, ones()
    finally:
        torch.set_grad_enabled(True)


def query():
    def f(x):
        return x + 1 if torch.is_floating_point(x) else x - 1

    yield f, ones()
    with replaced(torch, "is_floating_point", lambda x: False):
        yield f, ones()


def is_tensor():
    def f(x):
        return x + 1 if torch.is_tensor(x) else x - 1

    yield f, ones()
    with replaced(torch, "is_tensor", lambda x: False):
        yield f, ones()


def copies():
    class Plain:
        def __init__(self, k):
            self.k = k

    plain = Plain(2)

    def f(x):
        return x * copy.copy(plain).k + copy.deepcopy(plain).k

    yield f, ones()
    copyreg.pickle(Plain, lambda plain: (Plain, (50,)))
    try:
        yield f, ones()
    finally:
        del copyreg.dispatch_table[Plain]
    yield f, ones()
    copy._deepcopy_dispatch[Plain] = lambda plain, memo: Plain(8)
    try:
        yield f, ones()
    finally:
        del copy._deepcopy_dispatch[Plain]
    Plain.__setstate__ = lambda self, state: setattr(self, "k", 9)
    yield f, ones()


@collect(globals())
def test_patches(program):
    check(program, breaks=program.__name__ in MAY_BREAK)


MAY_BREAK = {"torch_constructor", "tensor_iteration", "copies"}


def test_imports_of_torch_compile_change_nothing(monkeypatch):
    """The body of `F.pad` names `torch._dynamo`, and asks for it only while torch.compile traces it."""
    fast, said = compiled(lambda x: F.pad(x, (1, 1)) * 2)
    expected = F.pad(torch.ones(2), (1, 1)) * 2
    assert torch.equal(fast(torch.ones(2)), expected)
    monkeypatch.setitem(vars(torch), "_dynamo", object())
    assert torch.equal(fast(torch.ones(2)), expected)
    assert len(said.graphs) == 1


def test_a_replaced_print_that_prints(capsys):
    fast, _ = compiled(lambda x: (print("text"), x + 1)[1])
    fast(ones())
    with replaced(builtins, "print", lambda *args, original=print, **kwargs: original("marked", *args, **kwargs)):
        fast(ones())
    fast(ones())
    assert capsys.readouterr().out == "text\nmarked text\ntext\n"
