"""`torch.tensor` and `torch.as_tensor` of sizes that change from call to call: one graph makes the tensor of any of them."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy")

OF_ALL_SIZES = {
    "a size": lambda x: x * torch.tensor(x.shape[0]),
    "a size and a float": lambda x: x.sum() * torch.tensor([x.shape[0], 2.5]),
    "a size and a truth": lambda x: torch.tensor([x.shape[0], True]) + x.sum(),
    "all sizes": lambda x: (torch.tensor(x.shape), torch.as_tensor(x.shape), x + 1),
    "a list of sizes": lambda x: torch.tensor(list(x.view(2, -1).shape)) * x.sum(),
    "as a float": lambda x: x / torch.tensor(x.size(0), dtype=torch.float32, device=x.device),
    "as bfloat16": lambda x: x * torch.tensor(x.shape[0] * 37, dtype=torch.bfloat16),
    "an expression": lambda x: x * torch.tensor(x.shape[0] // 2 - 1, dtype=torch.float64),
    "read again": lambda x: x * torch.tensor(x.shape[0]).item(),
    "as an index": lambda x: x[torch.tensor(x.shape[0] - 1)] + 1,
    "a float64 of NumPy": lambda x: x / torch.as_tensor(np.float64(x.shape[0]) ** 0.5),
    "a power of a float64": lambda x: x.sum() + torch.tensor(np.float64(x.shape[0]) ** 3),
    "an int64 of NumPy": lambda x: x.sum() + torch.tensor(np.int64(x.shape[0]) + 1),
    "numbers between two others": lambda x: x + torch.from_numpy(np.linspace(-1, 2, num=x.shape[0])),
    "numbers without the end": lambda x: x + torch.as_tensor(np.linspace(0.3, 2, x.shape[0], endpoint=False)),
    "as a length": lambda x: torch.arange(int(torch.tensor(x.shape[0]))) + x,
}


def calls():
    return [torch.linspace(-1, 2, size) for size in (4, 6, 8, 10, 22)]


@pytest.mark.parametrize("name", OF_ALL_SIZES)
def test_one_dynamic_graph_serves_all_sizes(name):
    function = OF_ALL_SIZES[name]
    fast, said = compiled(function)
    for x in calls():
        torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)
    assert len(said.graphs) == 2 and not said.breaks and not said.skips


OF_SOME = {
    "uint8": lambda x: torch.tensor(x.shape[0] * 20, dtype=torch.uint8) + x.sum(),
    "float16": lambda x: torch.tensor(x.shape[0] * 7000, dtype=torch.float16) + x.sum(),
    "a pair of pairs": lambda x: torch.tensor([[x.shape[0], 1], [2, x.shape[0]]]) + x.sum(),
    "that requires gradients": lambda x: torch.tensor(float(x.shape[0]), requires_grad=True) * x.sum(),
}


@pytest.mark.parametrize("name", OF_SOME)
def test_what_may_not_fit_or_nests_is_as_in_eager(name):
    function = OF_SOME[name]
    fast, _ = compiled(function)
    for x in calls():
        results = []
        for run in (function, fast):
            try:
                results.append(run(x).detach())
            except RuntimeError as error:
                results.append(str(error))
        assert type(results[0]) is type(results[1])
        if isinstance(results[0], str):
            assert results[0] == results[1]
        else:
            torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
