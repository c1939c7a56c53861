"""Random programs of views and in-place operators: values, strides, aliasing and changes to the inputs must be those of eager."""

from __future__ import annotations

import torch
from aten_runner import run_aten
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from treadle_autograd import aot

# name -> function of (the operand, another operand); every one works for any shape.
STEPS = {
    "first": lambda a, b: a[0] if a.dim() > 1 else a,
    "tail": lambda a, b: a[1:] if a.dim() and a.shape[0] > 1 else a,
    "every_other": lambda a, b: a[..., ::2] if a.dim() else a,
    "transpose": lambda a, b: a.transpose(0, -1) if a.dim() else a,
    "flatten": lambda a, b: a.reshape(-1),
    "unsqueeze": lambda a, b: a.unsqueeze(0) if a.dim() < 4 else a,
    "expand": lambda a, b: a.unsqueeze(0).expand(2, *a.shape) if a.dim() < 3 else a,
    "detach": lambda a, b: a.detach(),
    "diagonal": lambda a, b: a.diagonal() if a.dim() >= 2 else a,
    "add": lambda a, b: a + 1,
    "mul": lambda a, b: a * b if a.shape == b.shape else a * 2,
    "clone": lambda a, b: a.clone(),
    "contiguous": lambda a, b: a.contiguous(),
    "relu": lambda a, b: torch.relu(a),
    "add_": lambda a, b: a.add_(1),
    "mul_": lambda a, b: a.mul_(3),
    "copy_": lambda a, b: a.copy_(b) if a.shape == b.shape else a.copy_(a + 1),
    "fill_": lambda a, b: a.fill_(7),
    "relu_": lambda a, b: torch.relu_(a),
    "sum_into": lambda a, b: a.sub_(b.sum()),
}

PROGRAM = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=7
)
OUTPUTS = st.lists(st.integers(0, 20), min_size=1, max_size=4)
LAYOUTS = [
    lambda: torch.arange(12.0).view(3, 4),
    lambda: torch.arange(12.0).view(4, 3).t(),
    lambda: torch.arange(40.0)[4:16].view(3, 4),
    lambda: torch.arange(24.0).view(3, 8)[:, ::2],
]


def build(program, outputs, layouts):
    """The program as a torch-level graph, or None when eager itself refuses it."""
    graph = fx.Graph()
    inputs = [LAYOUTS[layout]() for layout in layouts]
    values = [(graph.placeholder(f"x{i}"), t) for i, t in enumerate(inputs)]
    for name, i, j in program:
        (node_a, a), (node_b, b) = values[i % len(values)], values[j % len(values)]
        try:
            result = STEPS[name](a, b)
        except RuntimeError:  # in place on overlapping memory
            return None
        values.append((graph.call_function(STEPS[name], (node_a, node_b)), result))
    graph.output(tuple(values[i % len(values)][0] for i in outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


def observe(run, layouts):
    """Everything that can be seen of a run: output values, strides, identities, then the effect of writing to each output."""
    inputs = [LAYOUTS[layout]() for layout in layouts]
    outputs = list(run(*inputs))
    seen = [[o.clone() for o in outputs], [o.stride() for o in outputs], [i.clone() for i in inputs]]
    everything = outputs + inputs
    seen.append([[x is y for y in everything] for x in everything])
    for k, output in enumerate(outputs):
        if 0 not in output.stride() and output.numel():
            output.as_strided((1,), (1,)).fill_(100.0 + k)
            seen.append([x.clone() for x in everything])
    return seen


def assert_same(mine, theirs):
    if isinstance(mine, torch.Tensor):
        assert torch.equal(mine, theirs)
    elif isinstance(mine, list):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b)
    else:
        assert mine == theirs


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(PROGRAM, OUTPUTS, st.lists(st.integers(0, 3), min_size=1, max_size=2))
def test_random_programs(program, outputs, layouts):
    gm = build(program, outputs, layouts)
    if gm is None:
        return
    compiled = aot(gm, [LAYOUTS[layout]() for layout in layouts], forward=run_aten)
    assert_same(observe(compiled, layouts), observe(gm, layouts))
