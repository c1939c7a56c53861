"""Calls that eager refuses because of dtypes, where the result is used and where it is not: the same exception, with the same text."""

from __future__ import annotations

import pytest
import torch

import treadle

FLAGS = torch.tensor([True, False])
COUNTS = torch.tensor([3, 4], dtype=torch.int32)
NUMBERS = torch.tensor([1.5, 2.5])
ONE = torch.tensor(2.0)

STATEMENTS = {
    "r = a - 1": FLAGS,
    "r = 1 - a": FLAGS,
    "r = a - True": NUMBERS,
    "r = (a > 3) - a": COUNTS,
    "r = torch.sub(a, a > 3, alpha=3)": COUNTS,
    "r = torch.rsub(a > 3, a)": COUNTS,
    "a *= 1.5": COUNTS,
    "a += 1.5": COUNTS,
    "a /= 2": COUNTS,
    "a.detach().neg_().mul_(1e300)": COUNTS,
    "a.remainder_(torch.ones(2))": ONE,
    "a.fmod_(torch.ones(2))": ONE,
    "r = torch.relu(a)": FLAGS,
    "r = a.floor() + 1": FLAGS,
    "r = a.abs()": FLAGS,
    "r = a & 1": NUMBERS,
    "r = a << 1": NUMBERS,
    "r = torch.gcd(a, a)": NUMBERS,
    "r = torch.heaviside(a, a.half())": NUMBERS,
    "r = torch.nn.functional.softplus(a)": COUNTS,
    "r = a.argmax()": FLAGS,
    "r = a.median()": FLAGS,
    "r = torch.nn.functional.huber_loss(a, a)": COUNTS,
    "r = torch.maximum(a, a)": NUMBERS * 1j,
    "r = a.pow(1e30)": NUMBERS.half(),
    "r = a.pow(2**40)": COUNTS,
    "r = torch.fmod(a, 2**40)": COUNTS,
    "r = torch.nn.functional.hardshrink(a, 1e30)": NUMBERS.half(),
    "r = torch.nn.functional.layer_norm(a.double(), (2,), a)": NUMBERS,
    "r = torch.nn.functional.layer_norm(a, a.shape, a.bfloat16())": NUMBERS,
    "r = torch.nn.functional.group_norm(a.expand(2, 4, 2), 2, torch.ones(4).double())": NUMBERS,
    "r = torch.nn.functional.batch_norm(a.expand(2, 4, 2), *torch.ones(4, 4).double())": NUMBERS,
    "r = torch.nn.functional.cross_entropy(a.expand(3, 2), torch.tensor([1, 0, 1], dtype=torch.int32))": NUMBERS,
    "r = torch.nn.functional.cross_entropy(a.expand(3, 2), torch.tensor([1, 0, 1]), a.double())": NUMBERS,
    "r = torch.nn.functional.nll_loss(a.expand(3, 2), torch.tensor([1, 0, 1]))": COUNTS,
    "r = torch.nn.functional.one_hot(a)": COUNTS,
    "r = torch.nn.functional.one_hot(a, 7)": COUNTS,
    "r = torch.nn.functional.glu(a)": COUNTS,
    "r = torch.complex(a, a.double())": NUMBERS,
    "r = torch.polar(a, a.half())": NUMBERS,
}


def outcome(function, tensor):
    tensor = tensor.clone()
    try:
        result = function(tensor)
    except Exception as error:
        return type(error), str(error), tensor.tolist()
    return result, tensor.tolist()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_it_raises_what_eager_raises(statement, used):
    scope = {"torch": torch}
    exec(f"def f(a):\n    r = a\n    {statement}\n    return {'r' if used else 'a.new_ones(1)'}", scope)
    expected = outcome(scope["f"], STATEMENTS[statement])
    assert isinstance(expected[0], type), "eager does not raise"
    compiled = treadle.compile(scope["f"])
    for _ in range(2):
        assert outcome(compiled, STATEMENTS[statement]) == expected


def test_a_power_of_truth_values():
    """PyTorch's fake tensors give it another dtype."""
    result = treadle.compile(lambda a: a.pow(True) ^ True)(FLAGS)
    assert result.tolist() == [False, True] and result.dtype == torch.bool


def test_logical_operators_convert_scalars():
    codes = torch.tensor([0, 1, 255], dtype=torch.uint8)
    for scalar in (torch.tensor(256, dtype=torch.int16), torch.tensor(3, dtype=torch.int16)):
        for function in (torch.logical_and, torch.logical_or, torch.logical_xor):
            f = lambda a, b, function=function: function(a, b) | False  # noqa: E731
            assert torch.equal(treadle.compile(f)(codes, scalar), f(codes, scalar))


def test_an_embedding_with_a_padding_row_far_behind():
    """The question that the kernel is asked has one row, in which `F.embedding` itself asserts that there is the padding."""
    table = torch.nn.Embedding(10, 4, padding_idx=7)
    compiled = treadle.compile(lambda i: table(i) * 2, fullgraph=True)
    for indices in (torch.tensor([1, 7, 3]), torch.tensor([[2, 7]], dtype=torch.int32)):
        assert torch.equal(compiled(indices), table(indices) * 2)
