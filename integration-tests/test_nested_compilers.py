"""torch.compile'd functions called inside compiled functions and the reverse: results, one graph where traced, the hook on, no warning."""

from __future__ import annotations

import warnings

import pytest
import torch

import treadle


@pytest.fixture(autouse=True)
def fresh():
    treadle.reset()
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Dynamo does not know how to trace")  # of treadle.disable, once in a process
        yield


@treadle.disable
def left_to_python(x, function):
    return function(x)


def body(x):
    return x.sin() + 1


def with_torch():
    return torch.compile(body, backend="eager")


def with_treadle():
    return treadle.compile(body, backend="eager")


def check_hook_is_on():
    """A function that is compiled now has a graph of its own."""
    before = treadle.stats().graphs
    assert torch.equal(treadle.compile(lambda x: x * 3 - 1, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
    assert treadle.stats().graphs == before + 1


def test_functions_that_the_program_compiles_are_traced():
    def program(x):
        @treadle.compile
        def scaled(y):
            return y * scale

        scale = x.shape[0]
        return treadle.compile(body)(scaled(x))

    outer = treadle.compile(program, fullgraph=True, backend="eager")
    for rows in (2, 3, 5):
        x = torch.randn(rows)
        assert torch.equal(outer(x), body(x * rows))
    assert treadle.stats().breaks == ()


def test_options_of_what_the_program_compiles_are_checked():
    def program(x):
        return treadle.compile(body, backend="no such backend")(x * 2)

    outer = treadle.compile(program, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="no such backend"):
            outer(torch.ones(2))


def test_a_function_of_torch_compile_is_traced():
    inner = with_torch()
    outer = treadle.compile(lambda x: inner(x * 2).cos(), fullgraph=True, backend="eager")
    for scale in (1.0, 2.0):
        x = torch.ones(3) * scale
        assert torch.equal(outer(x), body(x * 2).cos())
    assert treadle.stats().graphs == 1
    check_hook_is_on()


@pytest.mark.parametrize("options", [{}, {"backend": "eager", "dynamic": True}, {"fullgraph": True}])
def test_torch_compile_called_inside_is_traced(options):
    outer = treadle.compile(lambda x: torch.compile(body, **options)(x * 2).cos(), fullgraph=True, backend="eager")
    x = torch.ones(3)
    assert torch.equal(outer(x), body(x * 2).cos())
    assert treadle.stats().graphs == 1


def test_a_region_marked_for_torch_compile_is_traced():
    region = torch.compiler.nested_compile_region(body)
    outer = treadle.compile(lambda x: region(region(x) * 2), fullgraph=True, backend="eager")
    x = torch.ones(3)
    assert torch.equal(outer(x), body(body(x) * 2))


def test_a_module_of_torch_compile_is_traced():
    layer = torch.nn.Linear(3, 3)
    inner = torch.compile(layer, backend="eager")
    outer = treadle.compile(lambda x: inner(x * 2).cos(), backend="eager")
    x = torch.ones(3)
    for _ in range(2):
        assert torch.equal(outer(x), layer(x * 2).cos())
    check_hook_is_on()


def test_a_function_of_torch_compile_that_python_calls():
    inner = with_torch()

    def run(x):
        y = left_to_python(x * 2, inner)
        return y.cos()

    outer = treadle.compile(run, backend="eager")
    for size in (3, 4, 5):
        x = torch.ones(size)
        assert torch.equal(outer(x), run(x))
    assert treadle.stats().graphs >= 2
    check_hook_is_on()


def test_a_compiled_function_inside_torch_compile():
    inner = with_treadle()
    x = torch.ones(3)
    inner(x)
    outer = torch.compile(lambda x: inner(x * 2).cos(), backend="eager")
    for size in (3, 4, 5):
        x = torch.ones(size)
        assert torch.equal(outer(x), body(x * 2).cos())
    check_hook_is_on()


def test_three_levels_either_way():
    x = torch.ones(3)
    first, second = with_torch(), with_treadle()
    middle = treadle.compile(lambda x: left_to_python(x, first) * 2, backend="eager")
    outer = torch.compile(lambda x: middle(x) + 1, backend="eager")
    assert torch.equal(outer(x), body(x) * 2 + 1)
    other = torch.compile(lambda x: second(x) * 2, backend="eager")
    outermost = treadle.compile(lambda x: left_to_python(x, other) + 1, backend="eager")
    for _ in range(2):
        assert torch.equal(outermost(x), body(x) * 2 + 1)
        assert torch.equal(outer(x), body(x) * 2 + 1)
    check_hook_is_on()


def test_both_with_the_default_backend():
    inner = with_torch()
    outer = treadle.compile(lambda x: left_to_python(x * 2, inner) + inner(x))
    x = torch.ones(3)
    for _ in range(2):
        assert torch.allclose(outer(x), body(x * 2) + body(x))
    check_hook_is_on()


def test_exceptions_pass_through_both():
    def failing(x):
        raise ValueError("from inside")

    inner = torch.compile(failing, backend="eager")
    outer = treadle.compile(lambda x: left_to_python(x + 1, inner), backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="from inside"):
            outer(torch.ones(2))
    check_hook_is_on()
