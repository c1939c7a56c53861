"""DistributedDataParallel and fully_shard with two gloo processes: gradients of one process, hooks as gradients become ready."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

PROCESSES = 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def batch() -> torch.Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


def train(run: Callable[..., Any], trained: nn.Module, inputs: torch.Tensor) -> list[float]:
    """Three steps of the parameters of `trained`; the losses."""
    losses = []
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = run(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_processes(work: Callable[..., Any], directory: Path) -> list[Any]:
    """What `work` has returned in each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(_process, (work, port, str(directory)), PROCESSES, join=True, start_method="spawn")
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(PROCESSES)]


def _process(rank: int, work: Callable[..., Any], port: int, directory: str) -> None:
    import treadle

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        with treadle.config.patch(raise_internal_errors=True):
            torch.save(work(rank), Path(directory) / f"{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def data_parallel(rank: int) -> Any:
    import treadle

    inner = model()
    wrapped = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.003)  # several buckets
    order: list[str] = []
    for name, parameter in inner.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, n=name: order.append(n))
    fast = treadle.compile(wrapped)
    losses = train(fast, inner, batch()[rank::PROCESSES])
    return losses, [p.grad for p in inner.parameters()], order, treadle.stats().graphs


def of_compiled_module(rank: int) -> Any:
    """The other way round: DDP around a compiled module."""
    import treadle

    inner = model()
    wrapped = nn.parallel.DistributedDataParallel(treadle.compile(inner), bucket_cap_mb=0.003)
    losses = train(wrapped, inner, batch()[rank::PROCESSES])
    return losses, [p.grad for p in inner.parameters()], [], treadle.stats().graphs


def fully_sharded(rank: int) -> Any:
    from torch.distributed.fsdp import fully_shard

    import treadle

    inner = model()
    for layer in inner:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(inner)
    fast = treadle.compile(inner)
    losses = train(fast, inner, batch()[rank::PROCESSES])
    return losses, [p.grad.full_tensor() for p in inner.parameters()], [], None


def in_one_process() -> tuple[list[float], list[torch.Tensor]]:
    """The mean over the processes of every loss, and the gradients of the last step."""
    reference = model()
    losses = train(reference, reference, batch())
    return losses, [copy.deepcopy(p.grad) for p in reference.parameters()]


@pytest.mark.parametrize("work", [data_parallel, of_compiled_module, fully_sharded], ids=lambda work: work.__name__)
def test_two_processes_compute_the_gradients_of_one(work: Callable[..., Any], tmp_path: Path) -> None:
    losses, gradients = in_one_process()
    found = run_processes(work, tmp_path)
    for step, loss in enumerate(losses):
        assert sum(mine[step] for mine, *_ in found) / PROCESSES == pytest.approx(loss, rel=1e-4)
    for _, mine, order, graphs in found:
        for one, other in zip(mine, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        assert graphs is None or graphs >= 1
        assert not order or len(order) == 3 * len(gradients)
