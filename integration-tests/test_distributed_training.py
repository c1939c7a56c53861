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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each of WORKS has returned in each process. Two processes do all of them: importing torch in them takes longer than the rest."""
    directory = tmp_path_factory.mktemp("found")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(_process, (port, str(directory)), PROCESSES, join=True, start_method="spawn")
    results = [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(PROCESSES)]
    return {work.__name__: [result[work.__name__] for result in results] for work in WORKS}


def _process(rank: int, port: int, directory: str) -> None:
    import treadle

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        with treadle.config.patch(raise_internal_errors=True):
            results = {}
            for work in WORKS:
                treadle.reset()
                results[work.__name__] = work(rank)
        torch.save(results, Path(directory) / f"{rank}.pt")
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
def test_two_processes_compute_the_gradients_of_one(work: Callable[..., Any], found: dict[str, list[Any]]) -> None:
    losses, gradients = in_one_process()
    results = found[work.__name__]
    for step, loss in enumerate(losses):
        assert sum(mine[step] for mine, *_ in results) / PROCESSES == pytest.approx(loss, rel=1e-4)
    for _, mine, order, graphs in results:
        for one, other in zip(mine, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        assert graphs is None or graphs >= 1
        assert not order or len(order) == 3 * len(gradients)


class Branching(nn.Module):
    """One of two branches, by a flag: the other's parameters get no gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6)) for _ in range(2))
        self.last = nn.Linear(6, 1)
        self.takes_first = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) if self.takes_first else self.second(x))


def log_stages(events: list[str]) -> None:
    """Append "stage" whenever a part of a compiled backward graph has run."""
    from treadle_autograd.training import TrainingProgram

    compile_backward = TrainingProgram.compile_backward

    def compile_logged(*args: Any) -> Any:
        run = compile_backward(*args)

        def run_logged(*values: Any) -> Any:
            results = run(*values)
            events.append("stage")
            return results

        return run_logged

    TrainingProgram.compile_backward = compile_logged  # type: ignore[method-assign]


def log_buckets(wrapped: nn.parallel.DistributedDataParallel, events: list[str]) -> None:
    """Append "bucket" whenever a bucket of gradients is reduced."""

    def reduce(bucket: Any) -> Any:
        events.append("bucket")
        done = torch.distributed.all_reduce(bucket.buffer().div_(PROCESSES), async_op=True)
        return done.get_future().then(lambda future: future.value()[0])  # type: ignore[union-attr]

    wrapped.register_comm_hook(None, lambda state, bucket: reduce(bucket))


def overlapping(rank: int) -> Any:
    """Events of two steps for every setting, and the gradients of a compiled model and of one that is not."""
    import treadle

    events: list[str] = []
    log_stages(events)
    found = {}
    for name, options in {
        "plain": {},
        "accumulated": {},
        "static graph": {"static_graph": True},
        "unused parameters": {"find_unused_parameters": True},
        "views of buckets": {"gradient_as_bucket_view": True},
    }.items():
        inner = Branching() if name == "unused parameters" else model()
        reference = copy.deepcopy(inner)
        fast, eager = (
            nn.parallel.DistributedDataParallel(m, bucket_cap_mb=0.003, **options)  # type: ignore[arg-type]
            for m in (inner, reference)
        )
        log_buckets(fast, events)
        compiled = treadle.compile(fast)
        for step in range(3):
            del events[:]
            if isinstance(inner, Branching):
                inner.takes_first = reference.takes_first = step != 1
            for run, wrapped in ((compiled, fast), (eager, eager)):
                wrapped.zero_grad()
                if name == "accumulated":
                    with wrapped.no_sync():
                        run(batch()[rank::PROCESSES] * 2).square().mean().backward()
                    if wrapped is fast:
                        assert "bucket" not in events
                        del events[:]
                run(batch()[rank::PROCESSES]).square().mean().backward()
        gradients = [[p.grad for p in m.parameters()] for m in (inner, reference)]
        found[name] = (list(events), gradients)
    return found


WORKS = (data_parallel, of_compiled_module, fully_sharded, overlapping)  # the last one changes Treadle


def test_buckets_are_reduced_while_backward_runs(found: dict[str, list[Any]]) -> None:
    for results in found["overlapping"]:
        for name, (events, (mine, eager)) in results.items():
            assert events.count("stage") > 1, name
            assert events.index("bucket") < len(events) - 1 - events[::-1].index("stage"), (name, events)
            for one, other in zip(mine, eager, strict=True):
                assert (one is None) == (other is None), name
                if one is not None:
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7, msg=name)
