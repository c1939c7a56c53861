"""Calls that eager refuses for the dtypes of their arguments; each expression ends in eager as `ask_kernel` says."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from treadle_shapes.torch import ask_kernel, fake_like, fake_mode

FLAGS = torch.tensor([True, False])
COUNTS = torch.tensor([3, 4])
NUMBERS = torch.tensor([1.5, 2.5])
HALVES = NUMBERS.half()
ROWS = torch.rand(2, 3, 2)

REFUSED = [
    (operator.sub, FLAGS, COUNTS),
    (operator.sub, FLAGS, 1),
    (operator.sub, NUMBERS, True),
    (torch.rsub, FLAGS, 1),
    (operator.imul, COUNTS, 1.5),
    ("mul_", COUNTS, 1.5),
    ("add_", COUNTS, NUMBERS),
    ("abs_", FLAGS),
    ("gcd_", NUMBERS, NUMBERS),
    (torch.relu, FLAGS),
    ("floor", FLAGS),
    (torch.abs, FLAGS),
    (torch.heaviside, NUMBERS, HALVES),
    (operator.and_, NUMBERS, 1),
    (torch.lcm, HALVES, HALVES),
    (F.softplus, COUNTS),
    (torch.softmax, COUNTS.char(), 0),
    ("argmax", FLAGS),
    ("median", FLAGS),
    (torch.dot, FLAGS, FLAGS),
    (F.smooth_l1_loss, COUNTS, COUNTS),
    ("pow", HALVES, 1e30),
    (torch.fmod, COUNTS.int(), 2**40),
    (F.layer_norm, NUMBERS.double(), (2,), NUMBERS),
    (F.layer_norm, ROWS, (2,), HALVES),
    (F.group_norm, ROWS, 1, torch.ones(3).double()),
    (F.batch_norm, ROWS.double(), torch.ones(3), torch.ones(3), torch.ones(3)),
    (F.cross_entropy, ROWS[0], torch.tensor([1, 0, 1], dtype=torch.int32)),
    (F.cross_entropy, ROWS[0], torch.tensor([1, 0, 1]), NUMBERS.double()),
    (F.nll_loss, torch.ones(3, 2, dtype=torch.int64), torch.tensor([1, 0, 1])),
    (F.nll_loss, ROWS[0].to(torch.complex64), torch.tensor([1, 0, 1])),
    (F.one_hot, COUNTS.int()),
    (F.glu, COUNTS),
    (torch.complex, NUMBERS, NUMBERS.double()),
    (torch.polar, HALVES, NUMBERS),
]
ACCEPTED = [
    (operator.sub, COUNTS, 1),
    (operator.sub, NUMBERS, 1),
    (operator.imul, NUMBERS, 2),
    (operator.truediv, COUNTS, 0),
    (operator.floordiv, COUNTS, 0),
    (operator.pow, COUNTS, -1),
    ("mul_", HALVES, NUMBERS),
    (torch.relu, HALVES),
    (operator.and_, FLAGS, True),
    (torch.where, FLAGS, COUNTS, 0.5),
    ("sum", FLAGS, 0),
    ("topk", COUNTS, 2),
    (torch.softmax, HALVES, -1),
    (torch.matmul, COUNTS, COUNTS),
    (F.layer_norm, HALVES, (2,), NUMBERS),
    (F.group_norm, ROWS.bfloat16(), 1, torch.ones(3)),
    (F.cross_entropy, ROWS[0], torch.tensor([1, 0, 1], dtype=torch.uint8)),
    (F.one_hot, COUNTS, 5),
    (F.embedding, COUNTS.int(), ROWS[0]),
    (F.embedding, torch.tensor([0, 1]), ROWS[0], 2),  # an AssertionError where there is one row
    ("gather", NUMBERS, 0, COUNTS),
    (F.glu, HALVES),
]


def refusal(target, args):
    mode = fake_mode()
    fakes = [fake_like(mode, arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    with mode:
        answer = ask_kernel(target, fakes, {})
    return None if answer is None else answer.refusal


@pytest.mark.parametrize(("target", "args"), [(target, args) for target, *args in REFUSED])
def test_refused(target, args):
    given = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    with pytest.raises(RuntimeError) as error:
        getattr(given[0], target)(*given[1:]) if isinstance(target, str) else target(*given)
    assert str(error.value)[:40] in refusal(target, args)


@pytest.mark.parametrize(("target", "args"), [(target, args) for target, *args in ACCEPTED])
def test_not_refused(target, args):
    """Zeros as divisors and negative powers are no question of dtypes."""
    assert refusal(target, args) is None


def test_the_dtype_of_the_result():
    """PyTorch's fake tensors say int64."""
    with fake_mode() as mode:
        answer = ask_kernel("pow", [fake_like(mode, FLAGS), True], {})
    assert answer is not None and answer.dtype == torch.bool == FLAGS.pow(True).dtype


def test_the_kernel_is_asked_once_for_all_numbers(monkeypatch):
    import treadle_shapes.torch.refused_dtypes as module

    asked = []
    monkeypatch.setattr(module, "_answers", {})
    monkeypatch.setattr(module, "_answer", lambda *args: asked.append(args) or module.KernelAnswer(None, None))
    for number in (2, 3, 4):
        refusal(operator.add, (NUMBERS, number))
    refusal(operator.add, (NUMBERS, 2.5))
    assert len(asked) == 2


def test_neither_random_numbers_nor_warnings_are_used(recwarn):
    before = torch.get_rng_state()
    refusal(torch.masked_fill, (NUMBERS, COUNTS.byte(), 1))
    assert torch.equal(before, torch.get_rng_state()) and not recwarn.list


LOSSES = [
    (F.nll_loss, 2, 1),
    (F.multi_margin_loss, 2, 1),
    (F.multilabel_margin_loss, 2, 2),
    (F.nll_loss, 4, 3),
]


@pytest.mark.parametrize(("loss", "dim", "target_dim"), LOSSES)
def test_losses_are_asked_with_classes_that_are_there(loss, dim, target_dim, monkeypatch):
    """On CUDA, a class that is out of range takes the device away from the process."""
    import treadle_shapes.torch.refused_dtypes as module

    answers = []
    answer = module._answer
    monkeypatch.setattr(module, "_answers", {})
    monkeypatch.setattr(module, "_answer", lambda *args: answers.append(answer(*args)) or answers[-1])
    for dtype in (torch.bfloat16, torch.int64):
        ask_kernel(loss, [torch.ones((2,) * dim, dtype=dtype), torch.ones((2,) * target_dim, dtype=torch.int64)], {})
    assert answers and not [a for a in answers if a.refusal and ("out of" in a.refusal or "IndexError" in a.refusal)]
