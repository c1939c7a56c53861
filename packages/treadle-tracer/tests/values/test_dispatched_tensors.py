"""Tensors of subclasses with a `__torch_dispatch__`: the graph computes with the tensors inside them."""

from __future__ import annotations

import contextlib

import dispatching_programs as programs
import pytest
import torch
from compile_runs import compiled, run_graph
from dispatching_programs import ASKED, BROKEN, WHOLE, Asking, Below, Linear, Pair, Quantised, linear

MODES = {"no_grad": torch.no_grad, "grad": torch.enable_grad, "inference": torch.inference_mode}


def _facts(value):
    with torch._C.DisableTorchFunctionSubclass():
        return _seen(value)


def _seen(value):
    if isinstance(value, torch.Tensor):
        inner = {name: _seen(item) for name, item in vars(value).items()}
        counts = None if value.is_inference() or type(value) is torch.Tensor else value._version
        elements = inner if type(value) is not torch.Tensor and inner else value.tolist()
        layout = tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.requires_grad
        return type(value).__name__, layout, counts, value._is_view(), elements
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_seen(item) for item in value]
    return value


def _arguments(seed=0, cls=Pair):
    torch.manual_seed(seed)
    return torch.randn(4, 4), cls(torch.randn(4, 4), torch.randn(4, 4))


def _outcome(function, arguments):
    ASKED.clear()
    try:
        result = _facts(function(*arguments))
    except Exception as error:
        result = type(error), str(error)
    return result, list(ASKED), _facts(arguments), torch.rand(1).item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", (*WHOLE, *BROKEN), ids=lambda program: program.__name__)
def test_programs(program, mode):
    run, said = compiled(program)
    with MODES[mode]():
        for seed in (0, 1, 0):
            assert _outcome(run, _arguments(seed)) == _outcome(program, _arguments(seed))
    is_whole = not (said.breaks or said.skips)
    if mode == "no_grad":
        assert is_whole == (program in WHOLE), (said.codes(), said.skips)


def test_a_class_that_functions_ask():
    def program(x, w):
        return w + x, w.shape, torch.add(x, w), x * w, w.relu().sum(0), w.first

    run, said = compiled(program)
    with torch.no_grad():
        for seed in range(3):
            assert _outcome(run, _arguments(seed, Asking)) == _outcome(program, _arguments(seed, Asking))
    assert not said.breaks


# ---- what changes between calls


def _another_class(x, w):
    return x, Below(w.first, w.second)


def _another_dtype(x, w):
    return x.double(), Pair(w.first.double(), w.second.double())


def _another_layout(x, w):
    return x, Pair(w.first.t(), w.second.t())


def _another_size(x, w):
    return x.repeat(3, 1), Pair(w.first.repeat(2, 1), w.second.repeat(2, 1))


def _one_tensor_twice(x, w):
    return x, Pair(w.first, w.first)


def _the_argument_inside(x, w):
    return x, Pair(x, w.second)


def _the_same_argument(x, w):
    return w, w


def _a_plain_argument(x, w):
    return x, w.first


def _an_inner_tensor_of_another_kind(x, w):
    w.second = w.second.double()
    return x, w


def _a_pair_inside(x, w):
    w.first = Pair(w.first, w.second)
    return x, w


def _requiring_gradients(x, w):
    return x, Pair(w.first.requires_grad_(), w.second)


CHANGES = (
    _another_class,
    _another_dtype,
    _another_layout,
    _another_size,
    _one_tensor_twice,
    _the_argument_inside,
    _the_same_argument,
    _a_plain_argument,
    _an_inner_tensor_of_another_kind,
    _a_pair_inside,
    _requiring_gradients,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("program", (linear, programs.in_place_inside, programs.writes_outside, programs.operators))
def test_other_arguments(program, change):
    run, _ = compiled(program)
    for given in (
        lambda: _arguments(),
        lambda: change(*_arguments()),
        lambda: _arguments(1),
        lambda: change(*_arguments()),
    ):
        assert _outcome(run, given()) == _outcome(program, given())


def _dispatch_differently(cls, func, types, args=(), kwargs=None):
    return Pair.__torch_dispatch__.__func__(cls, func, types, args, kwargs) * 1


@contextlib.contextmanager
def _set(owner, name, value):
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _item(mapping, key, value):
    before = mapping[key]
    mapping[key] = value
    try:
        yield
    finally:
        mapping[key] = before


CONTEXTS = {
    "class": lambda: _set(
        Pair, "__torch_dispatch__", classmethod(lambda cls, func, types, args=(), kwargs=None: args[0])
    ),
    "table": lambda: _item(Quantised.table, torch.ops.aten.addmm.default, lambda func, args, kwargs: args[1] * 0),
    "functions": lambda: _set(Pair, "__torch_function__", classmethod(lambda *args, **kwargs: 7)),
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "no functions": torch._C.DisableTorchFunctionSubclass,
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_other_circumstances(context):
    def program(x, w):
        return torch.nn.functional.linear(x, w) + 1, programs.LINEAR(x)

    run, _ = compiled(program)
    with torch.no_grad():
        for around in (contextlib.nullcontext, CONTEXTS[context], contextlib.nullcontext, CONTEXTS[context]):
            with around():
                assert _outcome(run, _arguments()) == _outcome(program, _arguments())


def test_parameters_of_a_module_change():
    module = Linear()
    run, said = compiled(lambda x: module(x))
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: module.weight.numbers.add_(1),
            lambda: setattr(module.weight, "scale", module.weight.scale * 2),
            lambda: setattr(module, "weight", Linear().weight),
            lambda: module.to(torch.float32),
        ):
            change()
            x = torch.rand(3, 4)
            assert torch.equal(run(x), module(x))
    assert not said.breaks


def test_below_autograd_python_runs_it():
    """A function that is called by a `__torch_dispatch__` too, which PyTorch calls: composite operators are not taken apart there."""

    def program(x, w):
        return torch.nn.functional.linear(x, w)

    run, _ = compiled(program)

    class Calling(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            FOUND.append(_outcome(function, _arguments()))
            return args[0]

    with torch.no_grad():
        for function in (run, program, run, program):
            FOUND.append(_outcome(function, _arguments()))
            _ = Calling(*_arguments()[0:1] * 2).neg()
    assert FOUND[0] == FOUND[2] == FOUND[4] == FOUND[6]
    assert FOUND[1] == FOUND[3] == FOUND[5] == FOUND[7] != FOUND[0]


FOUND: list[object] = []


# ---- what is left to Python


class Computing(Pair):
    """Its sizes are asked of the class."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dispatch_sizes_strides_policy="sizes")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.sym_size.default, torch.ops.aten.sym_stride.default, torch.ops.prim.device.default):
            return None
        return super().__torch_dispatch__(func, types, args, kwargs)


class WithElements(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
            return func(*args, **(kwargs or {}))


class Refusing(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Raising(Pair):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise ValueError(str(func))


class Recording(Pair):
    """Records gradients where PyTorch has recorded them already."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        leaf = args[0].first.detach().requires_grad_()
        with torch.enable_grad():
            return leaf * 2


@pytest.mark.parametrize("cls", (Computing, Refusing, Raising, Recording))
def test_other_classes(cls):
    def program(x, w):
        try:
            return x + 1, (w * 2).sum()
        except (ValueError, TypeError) as error:
            return type(error)

    run, _ = compiled(program)
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            for seed in range(3):
                assert _outcome(run, _arguments(seed, cls)) == _outcome(program, _arguments(seed, cls))


def test_elements_of_its_own():
    def program(x, w):
        return x + w

    run, _ = compiled(program)
    for _ in range(2):
        x = torch.rand(3)
        assert torch.equal(run(x, x.as_subclass(WithElements)), x + x)


def test_breaks_keep_the_rest():
    def program(x, w):
        y = torch.nn.functional.linear(x, w)
        print("in between", end="")
        w.add_(1)
        return (y + w).first

    graphs = []

    def backend(gm, inputs):
        graphs.append(len([node for node in gm.graph.nodes if node.op == "call_function"]))
        return run_graph(gm, inputs)

    run, _ = compiled(program, backend)
    with torch.no_grad():
        for seed in range(3):
            assert _outcome(run, _arguments(seed)) == _outcome(program, _arguments(seed))
    assert sum(graphs) >= 4
