"""What a first compile imports."""

from __future__ import annotations

import subprocess
import sys

COMPILE_WITHOUT_DYNAMO = """
import sys, torch
from torch import fx
from torch.nn import functional as F
from treadle_autograd import aot

def f(x, w):
    y = F.gelu(F.linear(x, w)).softmax(-1)
    y.add_(1)
    return F.layer_norm(y, (4,)) + F.silu(y) * torch.where(y > 0, y, y.exp()), F.scaled_dot_product_attention(x, x, x)

compiled = aot(fx.symbolic_trace(f), [torch.ones(2, 3, 4), torch.ones(4, 4)], forward=lambda gm, inputs: gm)
assert compiled.why_eager is None, compiled.why_eager
heavy = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
assert not heavy, heavy
torch._dynamo.reset()
assert "torch._dynamo" in sys.modules and type(torch._dynamo).__name__ == "module"
again = aot(fx.symbolic_trace(f), [torch.ones(2, 3, 4), torch.ones(4, 4)], forward=lambda gm, inputs: gm)
assert again.why_eager is None
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).sum() == 4
"""


def test_compiling_leaves_dynamo_out_until_it_is_asked_for():
    subprocess.run([sys.executable, "-c", COMPILE_WITHOUT_DYNAMO], check=True, timeout=120)
