"""Sizes that depend on elements that the program makes from constants."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy")

STEPS = "torch.linspace(0, 9, 4).flip(0)"
KNOWN = (
    f"({STEPS} == 3).nonzero()", f"({STEPS} == 4).nonzero()", f"torch.nonzero({STEPS} > 2, as_tuple=True)", f"torch.argwhere({STEPS} > 2)",
    f"torch.where({STEPS} > 2)", f"torch.masked_select({STEPS}, {STEPS} > 2)", "torch.unique(torch.tensor([3, 1, 3]))",
    "torch.unique(torch.tensor([3, 1, 3]), return_inverse=True)", "torch.unique_consecutive(torch.tensor([[1, 1], [2, 3]]), dim=1)",
    "torch.bincount(torch.tensor([3, 1, 3]))", "torch.repeat_interleave(torch.tensor([1, 2]))", "torch.eye(3).nonzero()",
    "torch.unique(torch.tensor([[3, 1, 3], [2, 2, 2]]), dim=1)", "torch.unique(torch.tensor([[[3, 1]], [[2, 2]]]), dim=1)",
    "torch.zeros(2, 2, 0).nonzero()",
    "torch.tensor([float('nan'), 0.0, float('inf')]).nonzero()", "torch.zeros(0, 2).nonzero()", "torch.tensor(True).nonzero()",
)  # fmt: skip


@pytest.mark.parametrize("expression", KNOWN)
def test_as_in_eager(expression):
    scope = {"torch": torch}
    exec(
        f"def f(x):\n    r = {expression}\n    r = r if isinstance(r, tuple) else (r,)\n"
        "    return x + 1, r, [len(part) for part in r], [part.shape for part in r]",
        scope,
    )
    fast, said = compiled(scope["f"], fullgraph=True)
    for _ in range(2):
        found, expected = fast(torch.ones(2)), scope["f"](torch.ones(2))
        assert found[2:] == expected[2:]
        for one, other in zip(found[1], expected[1], strict=True):
            assert (
                one.dtype == other.dtype
                and torch.equal(one, other)
                and one.stride() == other.stride()
                and one._is_view() == other._is_view()
            )
    assert len(said.graphs) == 1


def test_elements_from_outside_are_not_known():
    def f(x):
        return x[0] + (x > 0).nonzero().shape[0]

    fast, _ = compiled(f)
    for x in (torch.tensor([1.0, -1.0]), torch.tensor([1.0, 2.0])):
        assert torch.equal(fast(x), f(x))


def test_written_elements_are_not_known():
    def f(x):
        steps = torch.zeros(3)
        steps[0] = x[0]
        return x + len(steps.nonzero())

    fast, _ = compiled(f)
    for x in (torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0])):
        assert torch.equal(fast(x), f(x))


@pytest.mark.parametrize(
    "conversion", ("float()", "double()", "half()", "to(torch.float32)", "int()", "long()", "bool()", "short()")
)
def test_converted_elements_are_known(conversion):
    """As the samplers of EDM do, which decide on their noise levels."""
    scope = {"torch": torch}
    exec(
        "def f(x):\n"
        f"    steps = torch.cat([torch.arange(4, dtype=torch.float64) * 1.5, torch.zeros(1)]).{conversion}\n"
        "    for now, then in zip(steps[:-1], steps[1:]):\n"
        "        x = x + now if 1 <= now <= 3 else x * then\n"
        "    return x",
        scope,
    )
    fast, said = compiled(scope["f"], fullgraph=True)
    for _ in range(2):
        assert torch.equal(fast(torch.ones(2)), scope["f"](torch.ones(2)))
    assert len(said.graphs) == 1


def test_errors_are_the_programs():
    def f(x):
        try:
            return torch.bincount(torch.tensor([-1]))
        except RuntimeError as error:
            return x, str(error)

    fast, _ = compiled(f)
    assert fast(torch.ones(2))[1] == f(torch.ones(2))[1]


def test_a_scheduler_of_diffusion():
    """As diffusers' Euler schedulers do: the place of a step among all steps is looked up by value."""
    noise = torch.linspace(0.99, 0.1, 100)

    def sample(x):
        steps = np.linspace(0, 99, 6, dtype=np.float32)[::-1].copy()
        sigmas = np.asarray(((1 - noise) / noise).sqrt())
        sigmas = np.interp(steps, np.arange(0, len(sigmas)), sigmas)
        sigmas = torch.from_numpy(np.concatenate([sigmas, [0.0]]).astype(np.float32))
        steps = torch.from_numpy(steps).to(device="cpu")
        for step in steps:
            places = (steps == step).nonzero()
            place = places[1 if len(places) > 1 else 0].item()
            x = x * sigmas[place] + sigmas[place + 1]
        return x

    fast, said = compiled(sample, fullgraph=True)
    for _ in range(2):
        x = torch.randn(3)
        torch.testing.assert_close(fast(x), sample(x))
    assert len(said.graphs) == 1


WRITTEN = (
    "a = torch.arange(5); a += 2; a[0] = 7; r = a.tolist()",
    "a = torch.arange(4); b = a[1:3]; b.mul_(3); r = (a.tolist(), b.tolist())",
    "a = torch.zeros(3); b = a.view(3, 1); r0 = a.tolist(); b.fill_(2); a[1:] = torch.ones(2); r = (r0, b.tolist(), len(a.nonzero()))",
    "a = torch.arange(3); b = a + 1; a.zero_(); r = (a.tolist(), b.tolist(), (b == 2).nonzero().tolist())",
    "a = torch.arange(3); a.copy_(torch.tensor([4, 5, 6])); a[torch.tensor([0, 2])] = 9; r = a.tolist()",
    "a = np.arange(5); a += 1; a[1] = 8; r = torch.from_numpy(a).tolist()",
)
WRITTEN_FROM_ELSEWHERE = (
    "a = torch.zeros(3); a[0] = x[0]; r = a[1].item()",
    "a = torch.zeros(3); b = a[1:]; b += x[0]; r = a.tolist()",
    "a = torch.zeros(4); torch.manual_seed(0); a.uniform_(); r = a.tolist()",
    "a = torch.zeros(2); torch.add(torch.ones(2), 1, out=a); r = a.tolist()",
)


@pytest.mark.parametrize("lines", (*WRITTEN, *WRITTEN_FROM_ELSEWHERE))
def test_what_is_written_is_known(lines):
    scope = {"torch": torch, "np": np}
    body = "".join(f"    {line.strip()}\n" for line in lines.split(";"))
    exec(f"def f(x):\n{body}    return x * 2, r", scope)
    fast, said = compiled(scope["f"])
    for x in (torch.ones(2), torch.zeros(2)):
        assert fast(x)[1] == scope["f"](x)[1]
    assert len(said.graphs) == 1 or lines in WRITTEN_FROM_ELSEWHERE


@pytest.mark.parametrize(
    "place", ("steps[1]", "steps[-1] - 3", "steps[0], steps[1]", "np.int64(2)", "steps[3] * 9", "steps.max()")
)
def test_integers_of_numpy_as_indices(place):
    scope = {"torch": torch, "np": np}
    exec(
        "def f(x):\n    steps = (np.arange(0, 4) * 1).round()[::-1].copy().astype(np.int64)\n"
        f"    try:\n        r = x[{place}]\n    except IndexError as error:\n        return x, str(error)\n"
        "    y = x.clone()\n"
        f"    y[{place}] = 5\n    return r * 2, y",
        scope,
    )
    fast, _ = compiled(scope["f"])
    x = torch.arange(16.0).view(4, 4)
    for one, other in zip(fast(x), scope["f"](x), strict=True):
        assert type(one) is type(other)
        assert one == other if isinstance(one, str) else torch.equal(one, other)
