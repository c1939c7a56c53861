"""Inputs at the edges of what kernels address: the result is eager's, or the error that eager gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)

import treadle


def outcome(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """What a call returns or the class of what it raises."""
    try:
        return "returns", function(*arguments)
    except Exception as error:  # whatever eager raises
        return "raises", type(error)


def same(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> tuple[str, Any]:
    """Compare eager and compiled calls, results and arguments afterwards, on the first call and on the next; eager's outcome."""
    compiled = treadle.compile(function)
    wanted: tuple[str, Any] = "", None
    for _ in range(2):
        given, mine = make(), make()
        wanted, found = outcome(function, *given), outcome(compiled, *mine)
        assert found[0] == wanted[0], (found, wanted)
        if wanted[0] == "raises":
            assert found[1] is wanted[1]
        else:
            torch.testing.assert_close(found[1], wanted[1], equal_nan=True)
        torch.testing.assert_close(mine, given, equal_nan=True)
    return wanted


def memory() -> torch.Tensor:
    return torch.arange(24.0)


OVERLAPPING: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "windows are read": (lambda x: torch.sin(x) + 1, lambda: (memory().as_strided((5, 6), (3, 1)),)),
    "an expanded row is read": (lambda x: (x * 2).sum(0), lambda: (memory()[:4].expand(7, 4),)),
    "windows are written": (lambda x: x.add_(1), lambda: (memory().as_strided((5, 6), (3, 1)),)),
    "an expanded row is written": (lambda x: x.mul_(2), lambda: (memory()[:4].expand(7, 4),)),
    "rows added to an expanded row": (
        lambda x: x.index_add_(0, torch.tensor([0, 1]), torch.ones(2, 4)),
        lambda: (memory()[:4].expand(7, 4),),
    ),
}


@pytest.mark.parametrize("case", OVERLAPPING)
def test_inputs_that_overlap_themselves(case: str) -> None:
    same(*OVERLAPPING[case])


@pytest.mark.parametrize("step", [1, 2, 8])
def test_inputs_that_overlap_each_other(step: int) -> None:
    def shifted() -> tuple[torch.Tensor, torch.Tensor]:
        x = memory()
        return x[step:], x[:-step]

    same(lambda a, b: a * 2 + b, shifted)
    same(lambda a, b: (a.mul_(2), b + 1), shifted)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 4)])
def test_nothing_to_compute(shape: tuple[int, ...]) -> None:
    same(lambda x: torch.exp(x) + 1, lambda: (torch.empty(shape),))
    same(lambda x: x.sum(-1), lambda: (torch.empty(shape),))
    same(lambda x: x.amax(-1), lambda: (torch.empty(shape),))
    same(lambda x: torch.softmax(x, -1), lambda: (torch.empty(shape),))
    same(lambda x: x.t().contiguous() if x.dim() == 2 else x.clone(), lambda: (torch.empty(shape),))


@pytest.mark.parametrize("wrong", [7, -1])
def test_nothing_is_added_at_a_wrong_position(wrong: int) -> None:
    index = torch.tensor([0, 2, wrong])
    for function in (
        lambda x, i, y: x.scatter_add_(0, i[:, None].expand(3, 5), y),
        lambda x, i, y: x.scatter_reduce(0, i[:, None].expand(3, 5), y, "amax"),
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        lambda x, i, y: x.index_copy(0, i, y),
    ):
        same(function, lambda: (torch.zeros(5, 5), index, torch.ones(3, 5)))


SCATTERS: dict[str, Callable[..., Any]] = {
    "index_add": lambda x, i, y: x.index_add(0, i, y),
    "index_copy": lambda x, i, y: x.index_copy(0, i, y),
    "index_put": lambda x, i, y: x.index_put((i,), y),
    "index_put that adds": lambda x, i, y: x.index_put((i,), y, accumulate=True),
    "scatter": lambda x, i, y: x.scatter(0, i[:, None].expand(3, 4), y),
    "index_select": lambda x, i, y: x.index_select(0, i),
}


@pytest.mark.parametrize("shape", [(3, 4), (3, 1), (1, 4), (2, 4), (4,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("name", SCATTERS)
def test_values_of_a_wrong_shape(name: str, shape: tuple[int, ...]) -> None:
    same(SCATTERS[name], lambda: (torch.zeros(5, 4), torch.tensor([0, 2, 1]), torch.ones(shape)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.float32])
@pytest.mark.parametrize("name", SCATTERS)
def test_positions_of_a_wrong_dtype(name: str, dtype: torch.dtype) -> None:
    same(SCATTERS[name], lambda: (torch.zeros(5, 4), torch.tensor([0, 2, 1], dtype=dtype), torch.ones(3, 4)))


GATHERS: dict[str, Callable[..., Any]] = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i) + 1,
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "gather of what is computed": lambda x, i: (x * 2).gather(0, i[:, None]),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_select of what was found": lambda x, i: torch.nonzero(x > 9)[:, 0].index_select(0, i),
    "gather of what was found": lambda x, i: x[x > 9].gather(0, i) + 1,
}


@pytest.mark.parametrize("name", GATHERS)
def test_nothing_to_read_at_a_position(name: str) -> None:
    rows = 4 if "found" in name else 0
    kind, _ = same(GATHERS[name], lambda: (torch.zeros(rows, 1), torch.tensor([0, 1])))
    assert kind == "raises"


@pytest.mark.filterwarnings("error::treadle.TreadleWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).logsumexp(()),
        lambda x: F.smooth_l1_loss(x * 2, x, beta=-1.0),
        lambda x: F.celu(x * 2, 0.0),
        lambda x: torch.slice_scatter(x * 2, x, 0, 1),
        lambda x: torch.diagonal_scatter(x * 2, x),
        lambda x: (x * 2).index_put((torch.arange(2), torch.arange(3)), x[0, 0]),
        lambda x: (x := x * 2)[1:].add_(x[:-1]),
    ],
)
def test_what_only_eager_refuses(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = treadle.compile(function, dynamic=dynamic)
    for rows in (3, 4, 6, 7):
        texts = []
        for run in (function, compiled):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                run(torch.ones(rows, 4))
            texts.append((raised.type, str(raised.value)))
        assert texts[0] == texts[1]


def test_deviations_whose_squares_are_no_floats() -> None:
    same(lambda x: torch.cat([x.std(1), x.std(0), x.std()[None]]) * 2, lambda: (memory().view(4, 6) * 1e30,))


def test_one_wrong_position() -> None:
    for function in (
        lambda x, i, y: x.index_add_(0, i, y),
        lambda x, i, y: x.index_put_((i,), y),
        lambda x, i, y: x.scatter_(0, i, y),
    ):
        assert same(function, lambda: (torch.zeros(5), torch.tensor([7]), torch.ones(1)))[0] == "raises"


def test_rows_of_nothing_are_added() -> None:
    empty = torch.empty(0, dtype=torch.long)
    same(lambda x, i, y: x.index_add_(0, i, y) + 1, lambda: (torch.zeros(5, 3), empty, torch.empty(0, 3)))
    same(lambda x, i, y: x.index_add(0, i, y), lambda: (torch.zeros(5, 0), torch.tensor([1]), torch.empty(1, 0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_unaligned_memory(dtype: torch.dtype) -> None:
    def make() -> tuple[torch.Tensor]:
        content = bytearray(bytes([17, 60, 3, 61, 44, 62]) * 200)
        return (torch.frombuffer(content, dtype=dtype, count=100, offset=1),)

    same(lambda x: (x + 1, x.sum(), x.view(10, 10).t().contiguous()), make)
    same(lambda x: x.add_(1), make)


def test_more_than_two_to_the_31_elements() -> None:
    n = 2**31 + 17
    row = torch.ones(1, dtype=torch.int8).expand(n)
    assert treadle.compile(lambda x: x.sum(dtype=torch.int64))(row).item() == n


def test_elements_further_than_two_to_the_31_from_the_first() -> None:
    memory = torch.empty(2**31 + 4096, dtype=torch.int8)  # pages that nobody touches take no memory
    far = memory[:: 2**20]
    far.copy_(torch.arange(len(far)) % 100)
    same(lambda x: x + 1, lambda: (far,))
    same(lambda x, i: x[i] * 2, lambda: (memory, torch.tensor([0, 2**20, 2**31, -4096])))


def test_memory_that_cannot_be_had() -> None:
    assert same(lambda x: x.expand(2**50, 8) * 2, lambda: (torch.ones(8),)) == ("raises", RuntimeError)


def test_devices_that_do_not_mix() -> None:
    on_meta = torch.ones(4, device="meta")
    wanted = outcome(lambda a, b: a + b, torch.ones(4), on_meta)
    assert wanted[0] == "raises"
    assert outcome(treadle.compile(lambda a, b: a + b), torch.ones(4), on_meta) == wanted


def test_modules_stay_as_they_are() -> None:
    layer = torch.nn.Linear(3, 3)
    before = copy.deepcopy(layer.state_dict())
    compiled = treadle.compile(layer)
    assert outcome(compiled, torch.ones(2, 4))[0] == "raises"
    torch.testing.assert_close(dict(layer.state_dict()), dict(before))


def test_a_failing_check_names_the_line_of_the_program() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x > 0, lambda: "some are not positive")
        return x * 2

    compiled = treadle.compile(doubled)
    compiled(torch.ones(3))
    with pytest.raises(RuntimeError, match="some are not positive") as caught:
        compiled(-torch.ones(3))
    (note,) = caught.value.__notes__
    assert f"{__file__}:{doubled.__code__.co_firstlineno + 1} in doubled" in note
