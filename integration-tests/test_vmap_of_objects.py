"""`torch.func.vmap` of objects that pytree takes apart: one graph, with values, gradients and structure as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._functorch import vmap as vmap_source
from torch.func import vmap

import treadle

pytestmark = pytest.mark.filterwarnings("error:.*treadle")  # a graph that runs in eager


class Batch:
    """Tensors with leading dimensions in common, which the class knows as `size`."""

    def __init__(self, tensors: dict[str, torch.Tensor], size: tuple[int, ...]):
        self.tensors, self.size = tensors, tuple(size)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]


pytree.register_pytree_node(
    Batch,
    lambda batch: (list(batch.tensors.values()), (list(batch.tensors), batch.size)),
    lambda tensors, context: Batch(dict(zip(context[0], tensors, strict=True)), context[1]),
)


@pytest.fixture
def batches_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers as a library has them that is not taken apart by pytree: inside, the batched dimension is missing in `size`."""

    def process(in_dims: Any, args: Any, func: Any) -> Any:
        leaves, spec = pytree.tree_flatten(args, is_leaf=lambda leaf: isinstance(leaf, Batch))
        dims: Any = vmap_source._broadcast_to_and_flatten(in_dims, spec)
        sizes = [
            leaf.size[dim] if isinstance(leaf, Batch) else leaf.shape[dim]
            for leaf, dim in zip(leaves, dims, strict=True)
            if dim is not None
        ]
        return sizes[0], dims, leaves, spec

    def create(dims: Any, leaves: Any, level: int, spec: Any) -> Any:
        def batched(leaf: Any, dim: int | None) -> Any:
            if dim is None:
                return leaf
            if not isinstance(leaf, Batch):
                return torch._C._functorch._add_batch_dim(leaf, dim, level)
            tensors = {name: torch._C._functorch._add_batch_dim(t, dim, level) for name, t in leaf.tensors.items()}
            return Batch(tensors, leaf.size[:dim] + leaf.size[dim + 1 :])

        return pytree.tree_unflatten([batched(*pair) for pair in zip(leaves, dims, strict=True)], spec)

    monkeypatch.setattr(vmap_source, "_process_batched_inputs", process)
    monkeypatch.setattr(vmap_source, "_create_batched_inputs", create)


def check(program: Callable[..., Any], make: Callable[[int], list[Any]], graphs: int = 2, breaks: int = 0) -> None:
    """Compare values and gradients with eager at several sizes."""
    treadle.reset()
    compiled = treadle.compile(program)
    for size in (3, 3, 4, 5):
        torch.manual_seed(size)
        given = make(size)
        again = copy.deepcopy(given)
        expected, found = program(*given), compiled(*again)
        torch.testing.assert_close(found, expected)
        for results in (expected, found):
            sum(t.square().sum() for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)).backward()
        for one, other in zip(tensors_in(given), tensors_in(again), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    assert (treadle.stats().graphs, len(treadle.stats().breaks)) == (graphs, breaks), treadle.stats()


def tensors_in(given: list[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def inputs(size: int) -> list[Any]:
    weights = torch.randn(size, 2, 4, requires_grad=True), torch.randn(size, 2, requires_grad=True)
    return [Batch(dict(zip(("w", "b"), weights, strict=True)), (size,)), torch.randn(4, requires_grad=True)]


def test_an_object_among_the_arguments() -> None:
    def one(batch: Batch, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (batch["w"] @ x).tanh() + batch["b"], batch["w"].sum()

    check(lambda batch, x: vmap(one, in_dims=(0, None), out_dims=(1, 0))(batch, x), inputs)


def test_an_object_as_result() -> None:
    def program(batch: Batch, x: torch.Tensor) -> Any:
        made = vmap(lambda b, x: Batch({"y": b["w"] @ x, "z": b["b"] * 2}, ()), (0, None))(batch, x)
        return made["y"] * made["z"].shape[0], made["z"], x.sum()

    check(program, inputs)


def test_one_vmap_in_another() -> None:
    def one(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda row, y: (row * y).sum() + batch["b"].sum())(batch["w"], torch.stack([x, x]))

    def both(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda y: vmap(lambda b: b["w"] @ y)(batch))(torch.stack([x, x + 1]))

    check(lambda batch, x: vmap(one, (0, None))(batch, x), inputs)
    check(both, inputs)


def test_sizes_of_results_that_depend_on_the_number_of_members() -> None:
    def program(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        y = vmap(lambda b: b["w"] @ x)(batch)
        return y.reshape(y.shape[0] * y.shape[1]) / y.shape[0]

    check(program, inputs)


def test_helpers_that_a_library_has_replaced(batches_shrink: None) -> None:
    def one(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        return (batch["w"] @ x).tanh() * (1 + len(batch.size))

    check(lambda batch, x: vmap(one, (0, None))(batch, x) * len(batch.size), inputs)


def test_concatenations_serve_all_sizes() -> None:
    def one(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([batch["w"] * batch["b"][:, None], x[:, None].expand(-1, 4) ** 2]).cos()

    def program(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        return vmap(one, (0, None), 1)(batch, x) * 2

    check(program, lambda size: [*inputs(size)[:1], torch.randn(size + 3, requires_grad=True)])


def test_an_ensemble_that_is_trained_inside() -> None:
    model = nn.Linear(4, 2)

    def step(batch: Batch, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = batch["w"].detach().requires_grad_()
        loss = vmap(lambda b: (b["w"].T @ model(x) + b["b"].sum()).tanh().sum())(
            Batch({"w": weights, "b": batch["b"].detach()}, batch.size)
        )
        return torch.autograd.grad(loss.sum(), weights)

    compiled = treadle.compile(step)
    for size in (3, 3, 4, 5):
        given = inputs(size)
        torch.testing.assert_close(compiled(*given), step(*given))


def test_a_tensor_that_leaves_the_function_otherwise_is_as_in_eager() -> None:
    kept: list[Any] = []

    def program(batch: Batch, x: torch.Tensor) -> torch.Tensor:
        del kept[:]

        def one(b: Batch) -> torch.Tensor:
            kept.append(x * 2)
            return b["w"] @ x

        return vmap(one)(batch) + kept[0].sum()

    compiled = treadle.compile(program)
    for size in (3, 3, 4):
        given = inputs(size)
        torch.testing.assert_close(compiled(*given), program(*given))


def test_what_vmap_raises_is_raised() -> None:
    def program(batch: Batch) -> torch.Tensor:
        try:
            return vmap(lambda b: b["w"].sum() + b["b"].sum())(batch)
        except ValueError as error:
            return batch["w"].sum() if "same size" in str(error) else batch["b"].sum()

    compiled = treadle.compile(program)
    for other in (3, 4, 5, 3):
        batch = Batch({"w": torch.randn(3, 2), "b": torch.randn(other, 2)}, (3,))
        torch.testing.assert_close(compiled(batch), program(batch))
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_annotations_of_callables_that_may_be_none() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor, f: Callable[[int], bool] | None = None, g: None | Callable[..., int] = None) -> Any:
            return y * 2 if f is g else y

        return inner(x) + len(inner.__annotations__)

    compiled = treadle.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(3)), program(torch.ones(3)))
