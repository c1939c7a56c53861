"""Marks: what is checked at once, what the compiled code makes of them, and the errors of calls that contradict them."""

from __future__ import annotations

import pytest
import torch

import treadle
from treadle_tracer.marks import Mark, marks_of


def double(x):
    return x * 2


def only_four(x):
    if x.shape[0] == 4:
        return x + 1
    return x * 2


def sums(x, y):
    return x.sum(0) + y.sum(0)


def marked(*sizes, dims=0, **given):
    x = torch.randn(sizes)
    treadle.mark_dynamic(x, dims, **given)
    return x


def graphs():
    return treadle.stats().graphs


def test_marks_stand_on_the_tensor():
    x = torch.ones(2, 3)
    treadle.mark_dynamic(x, 0, min=2, max=8, name="batch")
    treadle.mark_static(x, [-1])
    assert marks_of(x) == {0: Mark("dynamic", 2, 8, "batch"), 1: Mark("static")}
    treadle.maybe_mark_dynamic(x, (0, 1))
    assert marks_of(x) == {0: Mark("maybe"), 1: Mark("maybe")}
    treadle.mark_static(x)
    assert marks_of(x) == {0: Mark("static"), 1: Mark("static")}
    assert marks_of(x.view(2, 3)) == marks_of(3) == {}


class Attributes:
    """What torch.compile's marks leave on a tensor, without importing them."""

    def __init__(self, dim, lower, upper):
        self.dim, self.min, self.max = dim, lower, upper


def test_marks_of_torch_are_read():
    x = torch.ones(2, 3, 4)
    x._dynamo_dynamic_indices = {0}
    x._dynamo_dynamic_range = {Attributes(0, 2, 9)}
    x._dynamo_weak_dynamic_indices = {-2}
    x._dynamo_static_indices = {0, 2}
    assert marks_of(x) == {0: Mark("dynamic", 2, 9), 1: Mark("maybe"), 2: Mark("static")}
    treadle.mark_static(x, 0)
    assert marks_of(x)[0] == Mark("static")


def test_the_real_marks_of_torch_are_read():
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=9)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    assert marks_of(x) == {0: Mark("dynamic", 2, 9), 1: Mark("maybe")}
    compiled = treadle.compile(double)
    for y in (x, torch.randn(5, 3), torch.randn(5, 4)):
        assert torch.equal(compiled(y), y * 2)
    assert graphs() == 1


@pytest.mark.parametrize("mark", [treadle.mark_dynamic, treadle.maybe_mark_dynamic, treadle.mark_static])
@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((3, 0), TypeError, r"tensor must be a torch\.Tensor, got int: 3"),
        ((torch.ones(2, 3), 2), ValueError, "dims 2 is out of range for a tensor of 2 dimensions; allowed: -2 to 1"),
        ((torch.ones(2, 3), -3), ValueError, "dims -3 is out of range"),
        ((torch.tensor(1.0), 0), ValueError, "allowed: none"),
        ((torch.ones(2, 3), "0"), TypeError, "dims must be an int or ints, got '0'"),
        ((torch.ones(2, 3), True), TypeError, "dims must be an int or ints, got True"),
        ((torch.ones(2, 3), 1.0), TypeError, "dims must be an int or ints, got 1.0"),
        ((torch.ones(2, 3), [0, "a"]), TypeError, "dims must be an int or ints, got 'a'"),
    ],
)
def test_wrong_arguments(mark, arguments, error, said):
    with pytest.raises(error, match=said):
        mark(*arguments)
    assert not marks_of(arguments[0])


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"min": 6}, treadle.ConstraintError, r"dimension 0 .* is 4, outside the range \[6, inf\]"),
        ({"max": 3}, ValueError, r"dimension 0 .* is 4, outside the range \[0, 3\]"),
        ({"min": 5, "max": 3}, ValueError, "min=5, max=3"),
        ({"min": -1}, ValueError, "min must be at least 0, got -1"),
        ({"max": True}, TypeError, "max must be an int or None, got True"),
        ({"min": "2"}, TypeError, "min must be an int or None, got '2'"),
        ({"name": 3}, TypeError, "name must be a non-empty str or None, got 3"),
        ({"name": "n", "dims": (0, 1)}, ValueError, r"dimensions 0 and 1 .* cannot both be named 'n'"),
    ],
)
def test_wrong_ranges_and_names(given, error, said):
    with pytest.raises(error, match=said):
        marked(4, 5, **given)


def test_a_parameter_has_no_dynamic_sizes():
    with pytest.raises(TypeError, match="Parameter"):
        treadle.mark_dynamic(torch.nn.Parameter(torch.ones(3)), 0)


@pytest.mark.parametrize("first", [4, 1])
def test_a_marked_dimension_is_dynamic_from_the_first_call(first):
    compiled = treadle.compile(double)
    for x in (marked(first, 8), torch.randn(5, 8), torch.randn(1, 8), torch.randn(6, 8)):
        assert torch.equal(compiled(x), x * 2)
    assert graphs() == 1
    compiled(torch.randn(6, 9))
    assert graphs() == 2


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_marks_come_before_the_dynamic_argument(dynamic):
    compiled = treadle.compile(double, dynamic=dynamic)
    for n in (4, 5, 6):
        x = marked(n, 8)
        treadle.mark_static(x, 1)
        assert torch.equal(compiled(x), x * 2)
    assert graphs() == 1
    for m in (9, 10):
        x = marked(4, m)
        treadle.mark_static(x, 1)
        compiled(x)
    assert graphs() == 3


class Holder:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("wrap", "function"),
    [
        (lambda x: [x], lambda given: given[0] * 2),
        (lambda x: {"x": (x,)}, lambda given: given["x"][0] * 2),
        (Holder, lambda given: given.x * 2),
    ],
)
def test_marks_are_found_inside_of_arguments(wrap, function):
    compiled = treadle.compile(function)
    for x in (marked(4, 8), torch.randn(5, 8), torch.randn(6, 8)):
        assert torch.equal(compiled(wrap(x)), x * 2)
    assert graphs() == 1


def test_a_mark_after_a_compile_counts_from_the_next_compile_on():
    compiled = treadle.compile(double)
    x = torch.randn(4, 8)
    compiled(x)
    treadle.mark_dynamic(x, (0, 1))
    assert torch.equal(compiled(x), x * 2)  # what is compiled is right for it
    assert graphs() == 1
    for y in (marked(5, 9, dims=(0, 1)), torch.randn(6, 10)):
        assert torch.equal(compiled(y), y * 2)
    assert graphs() == 2


def test_a_decision_that_needs_a_constant_names_the_line_and_the_value():
    with pytest.raises(treadle.ConstraintError) as caught:
        treadle.compile(only_four)(marked(4, 8))
    assert "x.size()[0] is marked dynamic, but the program makes it the constant 4" in str(caught.value)
    assert "test_marks.py:" in str(caught.value) and "if x.shape[0] == 4:" in str(caught.value)
    x = torch.randn(4, 8)
    treadle.maybe_mark_dynamic(x, 0)
    assert torch.equal(treadle.compile(only_four)(x), x + 1)


def test_a_decision_that_leaves_a_choice_is_no_error():
    def large(x):
        return x + 1 if x.shape[0] > 10 else x * 2

    compiled = treadle.compile(large)
    for n in (4, 11, 5, 12):
        x = marked(n, 8)
        assert torch.equal(compiled(x), large(x))
    assert graphs() == 2


def test_a_range_bounds_what_the_code_is_used_for():
    compiled = treadle.compile(lambda x: x * 2 if x.shape[0] <= 16 else x * 3)
    for n in (2, 9, 16):
        x = marked(n, 8, min=2, max=16)
        assert torch.equal(compiled(x), x * 2)
    assert graphs() == 1
    x = torch.randn(17, 8)
    assert torch.equal(compiled(x), x * 3)
    assert graphs() == 2


def test_a_size_that_has_left_its_range_is_an_error():
    x = marked(4, 8, min=2, max=8)
    x.resize_(9, 8)
    with pytest.raises(treadle.ConstraintError, match=r"x\.size\(\)\[0\] is 9, outside the range \[2, 8\]"):
        treadle.compile(double)(x)


def test_dimensions_of_one_name_are_one_size():
    compiled = treadle.compile(sums)
    for n in (4, 5, 1):
        x, y = marked(n, 8, name="batch"), marked(n, 8, name="batch")
        torch.testing.assert_close(compiled(x, y), sums(x, y))
    assert graphs() == 1
    with pytest.raises(treadle.ConstraintError) as caught:
        compiled(marked(4, 8, name="batch"), marked(5, 8, name="batch"))
    for said in ("'batch'", "4 at x.size()[0]", "5 at y.size()[0]"):
        assert said in str(caught.value)
    # the function has been declared to be called so, also with tensors that say nothing
    with pytest.raises(treadle.ConstraintError, match="'batch'"):
        compiled(torch.randn(4, 8), torch.randn(5, 8))
    treadle.reset()
    x, y = torch.randn(4, 8), torch.randn(5, 8)
    torch.testing.assert_close(compiled(x, y), sums(x, y))


def test_one_name_in_one_tensor():
    def square(x):
        return x @ x

    compiled = treadle.compile(square)
    for n in (4, 5, 6):
        x = marked(n, n, dims=(0, -1), name="n")
        torch.testing.assert_close(compiled(x), x @ x)
    assert graphs() == 1


def test_a_size_of_0_is_compiled_on_its_own():
    compiled = treadle.compile(double)
    for n in (4, 0, 5, 0):
        x = marked(n, 8)
        assert torch.equal(compiled(x), x * 2)
    assert graphs() == 2
