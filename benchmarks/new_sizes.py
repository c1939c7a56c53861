"""Calls with other sizes every time: what they take in eager, through Treadle and through torch.compile.

    python benchmarks/new_sizes.py                          all programs, to benchmarks/results/new_sizes.json
    python benchmarks/new_sizes.py --programs "gnn, training" --no-torch

Every variant of every program runs in a process of its own on one thread, because libraries keep what they make for a size. Variants get
the same inputs, of sizes that were drawn at random or grow; the first calls, which compile, are not timed, and their results are compared
with eager's. A figure is the median of the processor's microseconds of one call.
"""

from __future__ import annotations

import copy
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import single_programs  # noqa: E402
import treadle  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "new_sizes.json"
UNTIMED, TIMED = 40, 80
DRAWN = random.Random(0)

Inputs = Callable[[int], tuple[Any, ...]]
"""The arguments of a call, by its number."""


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 1)):
            layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Attention(nn.Module):
    """Attention over the edges of a graph, as graph attention networks compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.scores = nn.ModuleList(nn.Linear(64, 1) for _ in range(3))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for layer, score in zip(self.layers, self.scores, strict=True):
            h = layer(x)
            weight = F.leaky_relu(score(torch.cat([h[source], h[target]], 1))[:, 0], 0.2).exp()
            total = torch.zeros(len(x)).index_add(0, target, weight)[target] + 1e-16
            x = F.elu(torch.zeros_like(h).index_add(0, target, h[source] * (weight / total)[:, None])) + x
        return torch.zeros(4, 32).index_add(0, graph, x)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[0], 32)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Decoder(nn.Module):
    """A step of generation: one token behind a cache of so many."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.model(token, past_key_values=cache, use_cache=True).logits


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True), 3)


def _decoder(name: str) -> nn.Module:
    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1000}
    if name == "gpt2":
        config: Any = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
        return Decoder(transformers.GPT2LMHeadModel(config))
    config = transformers.LlamaConfig(**sizes, intermediate_size=256, num_key_value_heads=2)
    return Decoder(transformers.LlamaForCausalLM(config))


def _mobilenet() -> nn.Module:
    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    import timm

    return timm.create_model("mobilenetv3_small_050")


def _graphs(k: int) -> tuple[torch.Tensor, ...]:
    nodes, edges = DRAWN.randint(50, 300), DRAWN.randint(200, 1500)
    return torch.randn(nodes, 32), torch.randint(nodes, (2, edges)), torch.randint(4, (nodes,))


def _growing_graphs(k: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(50 + k, 32), torch.randint(50 + k, (2, 200 + 3 * k)), torch.randint(4, (50 + k,))


def _image(low: int, high: int) -> Inputs:
    return lambda k: (torch.randn(1, 3, DRAWN.randint(low, high), DRAWN.randint(low, high)),)


def _token(heads: int) -> Inputs:
    """One token, and a cache of 10 + k others in four layers of so many heads."""

    def inputs(k: int) -> tuple[Any, ...]:
        import transformers

        cache, past = transformers.DynamicCache(), 10 + k
        for layer in range(4):
            cache.update(torch.randn(1, heads, past, 32), torch.randn(1, heads, past, 32), layer)
        return torch.randint(1000, (1, 1)), cache

    return inputs


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Inputs, bool]] = {
    "gpt2, a token behind a growing cache": (lambda: _decoder("gpt2"), _token(4), False),
    "llama, a token behind a growing cache": (lambda: _decoder("llama"), _token(2), False),
    "encoder": (_encoder, lambda k: (torch.randn(2, DRAWN.randint(20, 200), 64),), False),
    "encoder, training": (_encoder, lambda k: (torch.randn(2, DRAWN.randint(20, 200), 64),), True),
    "gnn": (Attention, _graphs, False),
    "gnn, training": (Attention, _graphs, True),
    "gnn of growing graphs, training": (Attention, _growing_graphs, True),
    "gru cells": (Cells, lambda k: (torch.randn(DRAWN.randint(1, 64), 5, 16),), False),
    "convolutions": (Convolutions, _image(20, 60), False),
    "mobilenetv3_small_050": (_mobilenet, _image(64, 160), False),
}
"""A model, its inputs, and whether it is trained."""


def _call(forward: Callable[..., Any], model: nn.Module, inputs: tuple[Any, ...], trains: bool) -> torch.Tensor:
    if not trains:
        with torch.no_grad():
            return forward(*inputs)
    model.zero_grad()
    output = forward(*inputs)
    output.square().mean().backward()
    return output.detach()


VARIANTS: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {
    "eager": lambda model: model,
    "treadle": lambda model: treadle.compile(model),
    "torch.compile": lambda model: torch.compile(model),
}


def measure(name: str, variant: str) -> int:
    """Microseconds of one variant of a program, in this process. Raises AssertionError where results differ from eager's."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build, inputs, trains = PROGRAMS[name]
    model = build().train(trains)
    forward, seconds = VARIANTS[variant](model), list[float]()
    for k in range(UNTIMED + TIMED):
        given = inputs(k)
        own = copy.deepcopy(given)  # a call adds to its cache
        start = time.process_time()
        result = _call(forward, model, own, trains)
        seconds.append(time.process_time() - start)
        if k < UNTIMED:
            torch.testing.assert_close(result, _call(model, model, given, trains), rtol=1e-3, atol=1e-4)
    return round(1e6 * statistics.median(seconds[UNTIMED:]))


def main(arguments: Sequence[str]) -> int:
    options = single_programs.parsed(__doc__, PROGRAMS, DEFAULT_OUTPUT, arguments)
    variants = [variant for variant in VARIANTS if not (options.no_torch and variant == "torch.compile")]
    found: dict[str, dict[str, int]] = {}
    for name in options.programs:
        found[name] = {variant: single_programs.in_own_process(measure, name, variant) for variant in variants}
        print(name, found[name], file=sys.stderr, flush=True)
    single_programs.report(" ".join(["python benchmarks/new_sizes.py", *arguments]), found, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
