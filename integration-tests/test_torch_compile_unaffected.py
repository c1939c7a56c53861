"""torch.compile gives the same graphs and results in a process in which Treadle compiled the same programs before.

Treadle changes things inside PyTorch (`treadle_shapes.torch.patches`). One process runs torch.compile on all programs, another one after
Treadle has compiled them all. A recording backend under AOTAutograd writes down every graph with the layout of each fake value.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAMS = {
    "views along sizes of 1": """
def f(x):
    y = x.transpose(1, 2).reshape(1, -1, 5, 6)
    return F.interpolate(y, size=(10, 12), mode="bilinear") + y.reshape(1, -1).sum()
calls = [(torch.randn(1, 30, 8),)]
""",
    "batch norm in training mode": """
norm = torch.nn.BatchNorm1d(3)
def f(x):
    return norm(x) * 2
calls = [(torch.randn(4, 3),), (torch.randn(6, 3),)]
""",
    "batch norm over one value per channel": """
mean, var = torch.zeros(3), torch.ones(3)
def f(x):
    return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)
calls = [(torch.randn(1, 3),)]
""",
    "dropout between recurrent layers": """
rnn = torch.nn.GRU(4, 5, 2, dropout=0.5)
def f(x):
    return rnn(x)[0] * 2
calls = [(torch.randn(3, n, 4),) for n in (2, 3)]
dynamic = True
""",
    "channels-last convolution": """
conv = torch.nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
def f(x):
    return conv(x).relu()
calls = [(torch.randn(n, 3, 8, 9).to(memory_format=torch.channels_last),) for n in (2, 3)]
dynamic = True
""",
    "roll of a channels-last tensor": """
def f(x):
    return torch.roll(x, (1, 2), (2, 3)) + 1
calls = [(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),)]
""",
    "slices with dynamic sizes": """
def f(x, n):
    return x[:, 1:-1] * 2, x[2:].sum(0), x[: n + 1]
calls = [(torch.randn(6, 8), 2), (torch.randn(7, 9), 3)]
dynamic = True
""",
    "power with a symbolic exponent": """
def f(x, n):
    return x**n + n**x
calls = [(torch.rand(4, 3), 3), (torch.rand(5, 3), 4)]
dynamic = True
""",
    "dynamic interpolation": """
def f(x):
    a = F.interpolate(x, scale_factor=2.0)
    return a, F.interpolate(x, scale_factor=1.5, mode="bilinear"), F.hardshrink(x)
calls = [(torch.randn(1, 2, 6, 8),), (torch.randn(1, 2, 7, 9),)]
dynamic = True
""",
    "encoder layer": """
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
def f(x):
    with torch.no_grad():
        return layer(x)
calls = [(torch.randn(4, 3, 8).transpose(0, 1),)]
""",
    "dynamic views": """
def f(x, w):
    b, s, e = x.shape
    y = F.layer_norm(x, (e,)).view(b, s, 2, e // 2).transpose(1, 2).unsqueeze(0).expand(3, b, 2, s, e // 2)
    return y.permute(1, 3, 2, 4, 0).reshape(b * s, -1) @ w.t()
calls = [(torch.randn(2, 5, 8), torch.randn(4, 24)), (torch.randn(3, 6, 8), torch.randn(4, 24))]
dynamic = True
""",
    "dynamic pooling": """
def f(x):
    return F.avg_pool2d(x, 3, stride=2, ceil_mode=True), F.adaptive_avg_pool2d(x, (2, 2)), F.max_pool2d(x, 2)
calls = [(torch.randn(2, 3, 9, 8),), (torch.randn(2, 3, 12, 10),)]
dynamic = True
""",
    "attention and group norm": """
def f(q, mask, x):
    return F.scaled_dot_product_attention(q, q, q, mask), F.group_norm(x, 2), torch.einsum("bhs,bht->st", q[..., 0], q[..., 0])
calls = [(torch.randn(2, 2, n, 4), torch.randn(2, 1, n, n), torch.randn(2, 4, n)) for n in (5, 6)]
dynamic = True
""",
    "training step": """
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
def f(x):
    return F.cross_entropy(model(x), torch.tensor([0, 1, 1])).sum()
calls = [(torch.randn(3, 4),)]
""",
}

PROCESS = """
import copy, sys, warnings
import torch
import torch.nn.functional as F

warnings.simplefilter("ignore")


def load(program):
    torch.manual_seed(0)
    names = {"torch": torch, "F": F, "dynamic": None}
    exec(program, names)
    return names


def run_treadle(program):
    import treadle

    names = load(program)
    for options in ({}, {"dynamic": True}):
        compiled = treadle.compile(names["f"], **options)
        for args in names["calls"]:
            compiled(*copy.deepcopy(args))
    treadle.reset()


def value(v):
    if isinstance(v, torch.Tensor):
        return f"{v.dtype} {tuple(v.shape)} {v.stride()} {v.storage_offset()}"
    return type(v)(map(value, v)) if isinstance(v, (tuple, list)) else str(v)


def record(gm, inputs):
    print(gm.print_readable(print_output=False))
    for node in gm.graph.nodes:
        print(node.name, value(node.meta.get("val")))
    return gm.forward


def run_torch_compile(program):
    from torch._dynamo.backends.common import aot_autograd

    names = load(program)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=record, bw_compiler=record)
    compiled = torch.compile(names["f"], backend=backend, dynamic=names["dynamic"])
    for args in names["calls"]:
        torch.manual_seed(2)
        try:
            results = compiled(*args)
        except Exception as error:  # it is to fail as it does alone
            print(type(error).__name__, *str(error).splitlines()[:1])
            continue
        for result in torch.utils._pytree.tree_leaves(results):
            print(tuple(result.shape), result.stride(), result.detach().flatten()[:50].tolist())


programs = PROGRAMS
if sys.argv[1] == "after":
    for program in programs.values():
        run_treadle(program)
for name, program in programs.items():
    print("=====", name)
    run_torch_compile(program)
"""


def graphs(when):
    """Program -> all graphs and results that torch.compile gives, as lines; comments, which hold source lines, left out."""
    text = PROCESS.replace("= PROGRAMS", f"= {PROGRAMS!r}")
    done = subprocess.run([sys.executable, "-c", text, when], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    parts = [part.splitlines() for part in done.stdout.split("===== ")[1:]]
    return {name: [line for line in lines if not line.strip().startswith("#")] for name, *lines in parts}


@pytest.fixture(scope="module")
def found():
    return {when: graphs(when) for when in ("alone", "after")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_torch_compile_gives_the_same_graphs(found, name):
    assert found["alone"][name]
    assert found["after"][name] == found["alone"][name]
