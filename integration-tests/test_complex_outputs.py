"""Outputs that read complex numbers in another way than memory has them: parts, conjugates, pairs of floats."""

from __future__ import annotations

import itertools

import pytest
import torch

import treadle

READINGS = {
    "itself": lambda z: z,
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    "conj": lambda z: z.conj(),
    "imag of conj": lambda z: z.conj().imag,
    "adjoint": lambda z: z.mH,
    "part of real": lambda z: z.real[1:, :2],
    "part of conj": lambda z: z.conj()[:, 1],
    "as real": torch.view_as_real,
    "resolved": lambda z: z.conj().resolve_conj(),
    "detached real": lambda z: z.real.detach(),
    "detached conj": lambda z: z.conj().detach(),
    "turned": lambda z: z.real.t(),
}


@pytest.fixture(autouse=True)
def everything_compiled():
    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        yield


def described(outputs):
    """All that a program can see of outputs and of the memory that they share."""
    storages: dict[int, int] = {}
    found = []
    for out in outputs:
        place = storages.setdefault(out.untyped_storage().data_ptr(), len(storages))
        bits = (out.is_conj(), out.is_neg(), out.requires_grad, out.is_leaf, out._version)
        found.append((out.dtype, tuple(out.shape), out.stride(), out.storage_offset(), place, *bits))
    return found


def assert_as_eager(function, make, needs_gradient):
    compiled = treadle.compile(function)
    for _ in range(2):
        x, y = (make().requires_grad_(needs_gradient) for _ in range(2))
        theirs, ours = function(x), compiled(y)
        assert described(ours) == described(theirs)
        for mine, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, expected)
        if needs_gradient:
            for given, outputs in ((x, theirs), (y, ours)):
                with_history = [out for out in outputs if out.requires_grad]
                if with_history:
                    sum(
                        (out.abs() ** 2).sum() + (out * (k + 2)).sum().abs() for k, out in enumerate(with_history)
                    ).backward()
            torch.testing.assert_close(y.grad, x.grad)
        else:  # what is written to one output shows in those that share its memory
            for outputs in (theirs, ours):
                outputs[0].mul_(2)
            for mine, expected in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, expected)
    stats = treadle.stats()
    return stats.eager_graphs


def floats():
    return torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("names", [*itertools.combinations(READINGS, 1), *itertools.combinations(READINGS, 2)])
def test_readings_of_a_result(names, needs_gradient):
    def program(x):
        z = torch.fft.fft(x.sin(), dim=0) * 2
        return tuple([READINGS[name](z) for name in names])

    left = assert_as_eager(program, floats, needs_gradient)
    assert not left or (needs_gradient and any("detached" in name for name in names)), left


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("name", READINGS)
def test_readings_of_an_input(name, needs_gradient):
    def program(z):
        return READINGS[name](z), z * 2

    left = assert_as_eager(program, lambda: torch.fft.fft(floats(), dim=0), needs_gradient)
    assert not left or (needs_gradient and "detached" in name), left


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_complex_numbers_of_pairs_of_floats(needs_gradient):
    def program(x):
        y = torch.stack([x.sin(), x.cos()], -1)
        z = torch.view_as_complex(y)
        return y, z, z[1:], z.conj(), z.real

    assert not assert_as_eager(program, floats, needs_gradient)


def test_pairs_that_begin_at_an_odd_place():
    def program(x):
        y = x * 2
        return y, torch.view_as_complex(y.flatten()[2:].view(-1, 2))

    assert not assert_as_eager(program, floats, needs_gradient=False)


def test_sizes_that_change():
    def program(x):
        z = torch.fft.fft(x)
        return z.real, z.conj()[1:]

    compiled = treadle.compile(program)
    for n in range(4, 12):
        x = torch.linspace(0, 1, n, dtype=torch.float64)
        assert described(compiled(x)) == described(program(x))
        for mine, expected in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(mine, expected)
    assert treadle.stats().graphs == 2 and not treadle.stats().eager_graphs


def test_solvers_that_return_the_real_part_are_compiled():
    def heat(u, steps):
        k = torch.fft.fftfreq(u.shape[-1], 1 / u.shape[-1]).to(u)
        v = torch.fft.fft(u)
        for _ in range(steps):
            v = v * torch.exp(-0.01 * k**2)
        return torch.fft.ifft(v).real

    compiled = treadle.compile(heat)
    u = torch.rand(32, dtype=torch.float64)
    torch.testing.assert_close(compiled(u, 3), heat(u, 3))
    assert not treadle.stats().eager_graphs


@pytest.mark.parametrize("decompose", [torch.linalg.eig, torch.linalg.eigh, torch.linalg.svd])
def test_losses_that_depend_on_a_phase_raise_as_in_eager(decompose):
    def matrix():
        a = torch.complex(floats()[:, :3].sin(), floats()[:, 1:].cos() + torch.eye(3))
        return a @ a.mH

    def of_one_vector(a):
        vectors = decompose(a)[1 if decompose is not torch.linalg.svd else 0]
        return (vectors * (1 + 2j)).real.cumsum(0).sum()

    def of_sizes(a):
        vectors = decompose(a)[1 if decompose is not torch.linalg.svd else 0]
        return (vectors.abs() ** 2)[0].sum() + vectors.abs()[1, 2]

    def gradient(function):
        a = matrix().requires_grad_()
        return torch.autograd.grad(function(a), a)[0]

    for function in (of_one_vector, of_sizes):
        compiled = treadle.compile(function)
        try:
            expected = gradient(function)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                gradient(compiled)
            assert str(raised.value) == str(error)
            assert function is of_one_vector
        else:
            torch.testing.assert_close(gradient(compiled), expected)
            assert function is of_sizes
