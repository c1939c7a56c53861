"""What a function has written before it raises is written, once, and the exception is the program's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import treadle


def indexed(x, i):
    x.add_(1)
    x.mul_(2)
    y = x.index_select(0, i)
    x.add_(5)
    return y


def gathered(x, i):
    x.add_(1)
    y = torch.gather(x, 0, i)
    x.zero_()
    return y


def embedded(x, i):
    x.add_(1)
    return F.embedding(i, x[:, None])


def scattered(x, i):
    x.add_(1)
    x.index_add_(0, i, torch.ones(1))
    x.add_(1)


def divided(x, i):
    x.add_(1)
    y = torch.tensor(4) // (i - 5)
    x.add_(1)
    return y


def handled(x, i):
    try:
        x.add_(1)
        return x.index_select(0, i)
    except (IndexError, RuntimeError):
        return x * 2


def drawn(x, i):
    x.add_(torch.rand(3))
    return x.index_select(0, i)


def _outcome(function, x, i):
    try:
        return function(x, i)
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


def looked_at(x, i):
    x.add_(1)
    y = x * 2
    x[i]  # nobody uses it, and eager looks
    return y


@pytest.mark.filterwarnings("ignore:treadle. the compiled graph")
@pytest.mark.parametrize("index", [1, 5])
@pytest.mark.parametrize("program", [indexed, gathered, embedded, scattered, divided, handled, drawn, looked_at])
def test_writes_before_an_exception(program, index):
    compiled = treadle.compile(program)
    for _ in range(2):
        x, copy, i = torch.ones(3), torch.ones(3), torch.tensor([index])
        state = torch.get_rng_state()
        got = _outcome(compiled, x, i)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        want = _outcome(program, copy, i)
        assert got == want if isinstance(want, tuple) or want is None else torch.equal(got, want)
        assert torch.equal(x, copy)
        assert torch.equal(after, torch.get_rng_state())


def test_writes_to_attributes_and_buffers():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.embedding = nn.Embedding(4, 2)
            self.calls = 0

        def forward(self, i):
            self.seen += 1
            self.calls += 1
            return self.embedding(i)

    model = Counting()
    compiled = treadle.compile(model)
    for calls, index in enumerate([1, 9, 2, 9], 1):
        if index == 9:
            with pytest.raises(IndexError):
                compiled(torch.tensor([index]))
        else:
            compiled(torch.tensor([index]))
        assert (model.seen.item(), model.calls) == (calls, calls)


class Counting(nn.Module):
    """Writes its statistics, then looks at the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x, labels):
        h = self.norm(self.first(x))
        hot = F.one_hot(labels, 5)
        self.seen.add_(hot.sum(0))
        return (h * hot).sum()


def test_a_model_that_writes_and_checks_is_one_compiled_graph():
    found = []
    for compiler in (lambda model: model, treadle.compile):
        torch.manual_seed(0)
        model = Counting()
        run = compiler(model)
        seen = []
        for k in range(4):
            labels = torch.tensor([0, 1, 7 if k == 2 else 4, 2])
            try:
                loss = run(torch.randn(4, 4), labels)
                loss.backward()
                seen.append(loss.detach())
            except RuntimeError as error:
                seen.append(str(error))
            seen += [t.clone() for t in (model.seen, model.norm.running_mean, model.norm.num_batches_tracked)]
            seen += [model.seen._version, model.norm.running_mean._version]
        found.append([*seen, model.first.weight.grad])
    for mine, theirs in zip(found[1], found[0], strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs)
        else:
            assert mine == theirs
    stats = treadle.stats()
    assert stats.graphs == 1 and not stats.eager_graphs and not stats.breaks


def checking_labels(x, y, a):
    x.add_(1)
    return (y[:1] * F.one_hot(a.long() + 1, 4)).sum()


def refusing(x, y, a):
    x.add_(1)
    if (a < 0).any():
        raise ValueError("negative")
    return y * 2


def telling(x, y, a):
    x.add_(1)
    if (a < 0).any():
        print("negative")
    return y * 2


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [checking_labels, refusing, telling])
def test_inputs_that_share_memory_are_written_once_where_a_check_fails(function, requires_grad, anomaly):
    """The graph cannot write them back, and must not write before its checks: Python runs the function."""
    compiled = treadle.compile(function)
    for share in (False, True, True, False):
        for sign in (1, -1, 1):
            found = []
            for run in (compiled, function):
                w = torch.ones(4, requires_grad=requires_grad)
                x = w * 2
                y = x[:] if share else torch.ones(4)
                with torch.autograd.set_detect_anomaly(anomaly):
                    try:
                        result = run(x, y, sign * torch.full((2,), 2.0)).detach()
                    except (RuntimeError, ValueError) as error:
                        result = str(error)
                found.append((result, x.detach(), x._version, y._version, x.requires_grad))
            mine, theirs = found
            assert mine[2:] == theirs[2:]
            assert torch.equal(mine[1], theirs[1])
            assert torch.equal(mine[0], theirs[0]) if isinstance(theirs[0], torch.Tensor) else mine[0] == theirs[0]
