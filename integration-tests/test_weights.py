"""Parameters and buffers that change after the compile: in place, by data, by loading, by replacement. Packed or folded weights may not
outlive the values they were made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import treadle


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        return self.linear(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def add_in_place(model):
    for parameter in model.parameters():
        parameter.add_(0.5)


def assign_data(model):
    model.linear.weight.data = torch.randn(5, 8)


def write_data(model):
    model.conv.weight.data.mul_(2)


def load_state(model):
    model.load_state_dict(
        {name: torch.rand_like(value.float()).to(value.dtype) for name, value in model.state_dict().items()}
    )


def replace_parameter(model):
    model.linear.weight = nn.Parameter(torch.randn(5, 8))


def replace_module(model):
    model.linear = nn.Linear(8, 4)


def change_buffer(model):
    model.norm.running_mean.fill_(3)


def widen(model):
    model.double()


def run_training_mode(model):
    model.train()


def freeze(model):
    model.requires_grad_(False)


def change_through_numpy_view(model):
    model.linear.bias.detach().view(-1)[1:3].zero_()


def write_one_weight_through_numpy(model):
    model.conv.weight.detach().numpy()[3, 1, 2, 0] += 1


def write_one_weight_through_data(model):
    model.conv.weight.data[7, 2, 0, 1] -= 1


def write_through_dlpack(model):
    torch.from_dlpack(model.linear.weight.detach()).view(-1)[17:19] = 2


def write_through_storage(model):
    torch.tensor([], dtype=torch.float32).set_(model.conv.weight.untyped_storage())[101] += 3


def optimiser_step(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


CHANGES = [
    add_in_place,
    assign_data,
    write_data,
    load_state,
    replace_parameter,
    replace_module,
    change_buffer,
    widen,
    run_training_mode,
    freeze,
    change_through_numpy_view,
    write_one_weight_through_numpy,
    write_one_weight_through_data,
    write_through_dlpack,
    write_through_storage,
    optimiser_step,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_are_seen(change):
    model = Net().eval()
    compiled = treadle.compile(model)
    with torch.no_grad():
        x = torch.randn(2, 3, 6, 6)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        change(model)
        x = x.to(model.conv.weight.dtype)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_two_models_of_one_class_do_not_share_weights():
    first, second = Net().eval(), Net().eval()
    one, two = treadle.compile(first), treadle.compile(second)
    with torch.no_grad():
        x = torch.randn(2, 3, 6, 6)
        for _ in range(2):
            torch.testing.assert_close(one(x), first(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(two(x), second(x), rtol=1e-4, atol=1e-5)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids).sin())

    model = Tied().eval()
    compiled = treadle.compile(model)
    ids = torch.tensor([[1, 2, 6]])
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), model(ids))
        model.embed.weight.mul_(2)
        torch.testing.assert_close(compiled(ids), model(ids))


def test_inference_mode_and_no_grad():
    model = Net().eval()
    compiled = treadle.compile(model)
    x = torch.randn(2, 3, 6, 6)
    with torch.inference_mode():
        result = compiled(x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
        assert result.is_inference()
    with torch.no_grad():
        result = compiled(x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
        assert not result.is_inference() and not result.requires_grad
    assert compiled(x).requires_grad


class _RowMajor(nn.Module):
    """Two layers whose weights are [in, out], as GPT-2's are."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = [nn.Parameter(torch.randn(*sizes) / 16) for sizes in ((160, 384), (384, 160))]
        self.bias = nn.Parameter(torch.randn(384))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(torch.addmm(self.bias, x, self.up)).mm(self.down)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_rows_see_weights_that_were_written_behind_pytorch(rows: int) -> None:
    torch.manual_seed(0)
    model, x = _RowMajor(), torch.randn(rows, 160)
    compiled = treadle.compile(model)
    with torch.no_grad():
        for k in range(4):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
            model.up.detach().numpy()[k] *= 3
            model.down.data.mul_(-1)
