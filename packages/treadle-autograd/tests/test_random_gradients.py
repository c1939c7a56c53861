"""Random programs under autograd: values, gradients, undefined gradients and errors must be those of eager.

TREADLE_EXAMPLES=13 runs 5,200 programs in place of 400.

After the forward pass a program may change an input or an output in place; the backward pass then succeeds or fails as eager's does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gradient_oracle import run_operators
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_random_programs import LAYOUTS, STEPS
from torch import fx

from treadle_autograd import aot, random_replay
from treadle_autograd.partition import min_cut, save_everything, with_budget

SMOOTH = {
    "exp": lambda a, b: torch.exp(a * 0.1),
    "tanh": lambda a, b: torch.tanh(a),
    "sigmoid_mul": lambda a, b: torch.sigmoid(a) * (b if a.shape == b.shape else 1.5),
    "softmax": lambda a, b: torch.softmax(a, -1) if a.dim() else a,
    "matmul": lambda a, b: a @ a.transpose(-1, -2) if a.dim() == 2 else a,
    "sum": lambda a, b: a.sum(-1) if a.dim() else a,
    "mean": lambda a, b: a.mean(),
    "norm": lambda a, b: torch.nn.functional.layer_norm(a, a.shape[-1:]) if a.dim() and a.shape[-1] > 1 else a,
    "dropout": lambda a, b: torch.nn.functional.dropout(a, 0.5, True),
    "where": lambda a, b: torch.where(a > 1, a, a * 0.5),
    "max": lambda a, b: a.max(-1).values if a.dim() else a,
    "cat": lambda a, b: torch.cat([a, a * 2], 0) if a.dim() else a,
    "double": lambda a, b: a.double().to(a.dtype),
    "no_grad": lambda a, b: _without_gradients(a),
    "mul_gradient_": lambda a, b: a.mul_(b) if a.shape == b.shape else a.mul_(0.5),
}
ALL = STEPS | SMOOTH
PROGRAM = st.lists(
    st.tuples(st.sampled_from(sorted(ALL)), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8
)
INPUTS = st.lists(st.tuples(st.integers(0, len(LAYOUTS) - 1), st.booleans(), st.booleans()), min_size=1, max_size=3)


def _without_gradients(a: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return a * 2


def make_inputs(
    layouts: list[tuple[int, bool, bool]], dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Leaves, and the inputs made of them: the leaves themselves, or results that may be changed in place."""
    leaves, inputs = [], []
    for layout, needs_gradient, is_leaf in layouts:
        base = LAYOUTS[layout]() * 0.1
        leaf = torch.empty_strided(base.shape, base.stride(), dtype=dtype).copy_(base).requires_grad_(needs_gradient)
        leaves.append(leaf)
        inputs.append(leaf if is_leaf else leaf.clone(memory_format=torch.preserve_format))
    return leaves, inputs


def build(program: Any, outputs: Any, layouts: Any) -> fx.GraphModule | None:
    """The program as a torch-level graph, or None when eager itself refuses it."""
    graph = fx.Graph()
    _, inputs = make_inputs(layouts)
    values = [(graph.placeholder(f"x{i}"), t) for i, t in enumerate(inputs)]
    for name, i, j in program:
        (node_a, a), (node_b, b) = values[i % len(values)], values[j % len(values)]
        try:
            result = ALL[name](a, b)
        except RuntimeError:  # in place on a leaf or on overlapping memory
            return None
        values.append((graph.call_function(ALL[name], (node_a, node_b)), result))
    graph.output(tuple(values[i % len(values)][0] for i in outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


def observe(run: Any, layouts: Any, changed: int, passed_over: int = 0) -> list[Any]:
    """What can be seen of a forward and a backward pass, with one input or output changed in between.

    passed_over: bits of the outputs that get no gradient.
    """
    torch.manual_seed(0)
    leaves, inputs = make_inputs(layouts)
    outputs = list(run(*inputs))
    seen: list[Any] = [[o.detach().clone() for o in outputs], [o.stride() for o in outputs]]
    seen.append([o.requires_grad for o in outputs])
    seen.append([i.detach().clone() for i in inputs])
    everything = [*outputs, *inputs]
    differentiable = [o * 1 for k, o in enumerate(outputs) if o.requires_grad and not passed_over >> k & 1]
    if changed < len(everything):
        with torch.no_grad():
            try:
                everything[changed].mul_(2)
            except RuntimeError:
                seen.append("not writable")
    if not differentiable:
        return seen
    generator = torch.Generator().manual_seed(1)
    try:
        torch.autograd.backward(differentiable, [torch.randn(o.shape, generator=generator) for o in differentiable])
    except RuntimeError as error:
        return [*seen, "modified by an inplace operation" in str(error)]
    seen.append([None if leaf.grad is None else leaf.grad.clone() for leaf in leaves])
    seen.append(torch.rand(1))  # the generator is where eager leaves it
    return seen


def assert_same(mine: Any, theirs: Any, atol: float = 1e-6) -> None:
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=atol, equal_nan=True)
    elif isinstance(mine, list):
        assert isinstance(theirs, list), theirs
        assert len(mine) == len(theirs), (mine, theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b, atol)
    else:
        assert mine == theirs


EXAMPLES = 400 * int(os.environ.get("TREADLE_EXAMPLES", "1"))
PARTITIONS = {"cut": min_cut, "everything": save_everything, "half": with_budget(0.5), "nothing": with_budget(0)}


@pytest.fixture(autouse=True, scope="module")
def _masks_of_small_programs_are_drawn_again() -> Iterator[None]:
    """As if they took more memory than the generator's state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_replay, "_bytes_saved", lambda target, tensors: 2**20)
        yield


@settings(
    max_examples=int(os.environ.get("TREADLE_RANDOM_PROGRAMS", "400")),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)
@given(
    PROGRAM,
    st.lists(st.integers(0, 20), min_size=1, max_size=4),
    INPUTS,
    st.integers(0, 12),
    st.integers(0, 15),
    st.sampled_from(sorted(PARTITIONS)),
)
def test_random_gradients(
    program: Any, outputs: Any, layouts: Any, changed: int, passed_over: int, partition: str
) -> None:
    gm = build(program, outputs, layouts)
    if gm is None:
        return
    chosen = PARTITIONS[partition]
    compiled = aot(gm, make_inputs(layouts)[1], inference=False, forward=run_operators, partition=chosen)
    mine, theirs = (observe(run, layouts, changed, passed_over) for run in (compiled, gm))
    if theirs[-1] is True and mine[-1] is not True:
        return  # eager had saved what was changed, and we had not: the gradients are those of the values before the change
    if mine[-1] is True and partition in ("half", "nothing"):
        return  # what was changed is an input from which saved memory is computed again
    if mine[-1] is True and passed_over:
        return  # one node saves for all outputs, and looks at what it has saved for those without a gradient as well
    assert_same(mine, theirs)


@pytest.mark.parametrize("depends", [False, True])
def test_a_formula_of_backward_draws_when_backward_runs(depends: bool):
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (torch.rand_like(gradient) if depends else torch.rand(4))

    def program(x):
        return (torch.sin(Noisy.apply(x)),)

    graph = fx.Graph()
    graph.output((graph.call_function(lambda x: program(x)[0], (graph.placeholder("x"),)),))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    leaf = torch.randn(4, requires_grad=True)
    run = aot(gm, [leaf], inference=False, forward=lambda gm, _: gm)
    assert run.why_eager is None
    found = []
    for function in (run, program):
        torch.manual_seed(0)
        (out,) = function(leaf)
        between = torch.rand(2)
        found.append((between, torch.autograd.grad(out.sum(), leaf)[0], torch.rand(1)))
    torch.testing.assert_close(*found, rtol=0, atol=0)
