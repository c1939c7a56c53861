"""A second process that trains the same model: it finds the generated code of both halves, and computes the same to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import hashlib, json, sys
import torch, treadle
torch.manual_seed(0)
torch.set_num_threads(1)
width = int(sys.argv[1])

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, width, 3, padding=1), torch.nn.BatchNorm2d(width)
        self.out, self.weights = torch.nn.Linear(width, 5), torch.nn.Parameter(torch.randn(width))
        self.drop = torch.nn.Dropout(float(sys.argv[2]))

    def forward(self, x):
        h = self.drop(torch.nn.functional.gelu(self.norm(self.conv(x)))) * self.weights[:, None, None]
        return self.out(h.mean((2, 3))).log_softmax(-1)

model = Net().train()
x = torch.randn(4, 3, 8, 8)

def step(forward):
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    loss = torch.nn.functional.nll_loss(forward(x), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    return [loss.detach(), *[p.grad for p in model.parameters()]]

before = {k: v.clone() for k, v in model.state_dict().items()}
eager = step(model)
model.load_state_dict(before)
found = step(treadle.compile(model))
for mine, theirs in zip(found, eager, strict=True):
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
data = b"".join(t.contiguous().numpy().tobytes() for t in [*found, *model.state_dict().values()])
passes = sorted(name for name in treadle.stats().seconds if name.startswith("backend.codegen."))
print(json.dumps([hashlib.sha256(data).hexdigest(), passes, treadle.stats().graphs]))
"""


def run(directory, width=6, dropout=0.25, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, str(width), str(dropout)],
        env={**os.environ, "TREADLE_CACHE_DIR": str(directory), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_computes_the_same_to_the_bit_and_lowers_nothing(tmp_path):
    first, second = run(tmp_path), run(tmp_path, PYTHONHASHSEED="7")
    assert first[0] == second[0] and first[2] == second[2] == 1
    assert "backend.codegen.lower" in first[1]
    assert "backend.codegen.look up" in second[1] and "backend.codegen.lower" not in second[1]
    # Other programs in the same cache are other graphs, which the program checks against eager.
    assert "backend.codegen.lower" in run(tmp_path, width=7)[1]
    assert "backend.codegen.lower" in run(tmp_path, dropout=0.5)[1]
