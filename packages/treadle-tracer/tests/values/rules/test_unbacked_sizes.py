"""Functions whose kernels read sizes as plain numbers: one graph serves all sizes, with eager's results."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from compile_runs import compiled


def frequencies(x):
    n = x.shape[0]
    return torch.fft.fftfreq(n), torch.fft.fftfreq(n, 1 / n, dtype=torch.float64), torch.fft.rfftfreq(n, d=2)


def products(x):
    return torch.kron(x, x[:, :1] + 1), torch.kron(x, x.t().contiguous())


def a_product_with_fewer_dimensions(x):
    return torch.kron(x, x[0])


def size_of_both(x):
    pair = torch.Size((3, 1, 1))
    return x.new_ones(torch._C._infer_size(x.shape[:1], pair)), x.new_ones(torch._C._infer_size(pair, x.shape))


def differences(x):
    wide = x.repeat(1, 2)
    return *torch.gradient(x, dim=0), *torch.gradient(wide), *torch.gradient(wide, spacing=(0.5, 3.0), edge_order=2)


def differences_of_complex_numbers(x):
    return torch.gradient(torch.complex(x, x.sin()), spacing=0.25, dim=[-2])


def diagonals(x):
    square, wide = x @ x.t(), x.t() * 2
    same = (x[:, :1] == x[:, 0]).byte()
    return square.fill_diagonal_(0), wide.fill_diagonal_(3.5), same.fill_diagonal_(0) + (same ^ 1)


SIZES = (4, 5, 7, 8, 6)


@pytest.mark.parametrize(
    "program",
    [
        frequencies,
        products,
        a_product_with_fewer_dimensions,
        size_of_both,
        differences,
        differences_of_complex_numbers,
        diagonals,
    ],
)
def test_results(program):
    fast, recorder = compiled(program)
    for size in SIZES:
        x = torch.randn(size, 3 if program is size_of_both else 2)
        for found, expected in zip([*fast(x)], [*program(x)], strict=True):
            rounding = 1e-6 if program is differences else 0
            torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)
            assert found.stride() == expected.stride()
    assert not recorder.breaks
    if not program.__name__.startswith("a_product"):
        assert len(recorder.graphs) == 2


def test_sizes_that_do_not_broadcast():
    def program(x):
        return x.new_ones(torch._C._infer_size(x.shape, torch.Size((3,))))

    fast, _ = compiled(program)
    messages = []
    for function in (fast, program):
        with pytest.raises(RuntimeError) as caught:
            function(torch.ones(2))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def contract_path(equation, *operands, shapes=False, **options):
    """Like opt_einsum: it needs the sizes as numbers, and refuses equations for other operands."""
    sizes = [operand if shapes else operand.shape for operand in operands]
    terms = equation.split("->")[0].split(",")
    if [len(term) for term in terms] != [len(size) for size in sizes]:
        raise ValueError(f"{equation} does not fit")
    assert all(int(size) > 0 for shape in sizes for size in shape)
    return [(1, 2), (0, 1)], None


@pytest.fixture
def opt_einsum(monkeypatch):
    stand_in = SimpleNamespace(contract_path=contract_path)
    names = torch.backends.opt_einsum.get_opt_einsum.__globals__
    for name, value in {
        "_opt_einsum": stand_in,
        "is_available": lambda: True,
        "enabled": True,
        "strategy": "auto",
    }.items():
        monkeypatch.setitem(names, name, value)
    assert torch.backends.opt_einsum.is_available() and torch.backends.opt_einsum.enabled


@pytest.mark.usefixtures("opt_einsum")
def test_contractions_of_several_tensors():
    def program(x):
        return torch.einsum("bi,ij,bj->b", x, x[:3].sin(), x)

    fast, recorder = compiled(program)
    for size in SIZES:
        x = torch.randn(size, 3)
        torch.testing.assert_close(fast(x), program(x))
    assert len(recorder.graphs) == 2 and not recorder.breaks


@pytest.mark.usefixtures("opt_einsum")
def test_an_equation_that_does_not_fit():
    def program(x):
        return torch.einsum("bi,i,bj->b", x, x, x)

    fast, _ = compiled(program)
    for size in SIZES[:3]:
        messages = []
        for function in (fast, program):
            with pytest.raises(ValueError, match="does not fit") as caught:
                function(torch.ones(size, 3))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("options", [{}, {"edge_order": 2}, {"dim": (0, 0)}, {"dim": 5}, {"spacing": (1.0,)}])
def test_differences_that_eager_refuses(options):
    """Too few elements for the edges, or wrong arguments."""

    def program(x):
        return torch.gradient(x, **options)

    run, _ = compiled(program)
    for size in (4, 5, 6, 2, 1, 7):
        x, results = torch.randn(size, 2), []
        for function in (run, program):
            try:
                found = function(x)
                results.append((type(found), torch.stack(found)))
            except (RuntimeError, IndexError) as error:
                results.append(str(error).partition("\n")[0])
        found, expected = results
        if isinstance(expected, str):
            assert found == expected
        else:
            assert found[0] is expected[0] and torch.equal(found[1], expected[1])


def test_histories_of_diagonal_blocks():
    def program(x):
        return torch.block_diag(x, x[0] * 2, x.sum(), x.t().double())

    run, said = compiled(program)
    for size in SIZES:
        x = torch.randn(size, 2)
        inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        found, expected = run(inputs[0]), program(inputs[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert found.stride() == expected.stride()
        weights = torch.randn_like(expected)
        gradients = [torch.autograd.grad(t, i, weights)[0] for t, i in zip((found, expected), inputs, strict=True)]
        torch.testing.assert_close(*gradients)
    assert not said.breaks and len(said.graphs) == 2


def test_rows_of_rows_in_a_transform():
    w, b = torch.randn(4, 3), torch.randn(4)

    def program(x):
        def affine(a):
            return torch.nn.functional.linear(a, w, b).tanh()

        return torch.func.jacfwd(affine)(x), torch.func.vmap(torch.func.jacrev(affine))(torch.stack([x, x + 1]))

    run, said = compiled(program)
    for rows in (2, 3, 5, 4):
        x = torch.randn(rows, rows + 2, 3)
        for found, expected in zip(run(x), program(x), strict=True):
            torch.testing.assert_close(found, expected)
    assert not said.breaks and len(said.graphs) == 2


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_grids_of_affine_maps(dims, align_corners):
    def program(theta, x):
        grid = torch.nn.functional.affine_grid(theta, x.shape, align_corners=align_corners)
        single = torch.nn.functional.affine_grid(theta[:1], [1, 1, *x.shape[2:]], align_corners)
        return grid, single, torch.nn.functional.grid_sample(x, grid, align_corners=align_corners)

    run, said = compiled(program)
    for batch, *sides in [(2, 4, 5, 3), (3, 5, 8, 4), (5, 7, 6, 9), (4, 9, 11, 6)]:
        x = torch.randn(batch, 2, *sides[:dims])
        theta = torch.eye(dims, dims + 1) + torch.randn(batch, dims, dims + 1) / 8
        mine, eagers = theta.clone().requires_grad_(), theta.clone().requires_grad_()
        found, expected = run(mine, x), program(eagers, x)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        gradients = [torch.autograd.grad(r[2].square().sum(), t)[0] for r, t in ((found, mine), (expected, eagers))]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    assert not said.breaks and len(said.graphs) == 2


def test_grids_of_images_of_one_pixel_or_none():
    def program(theta, x):
        return torch.nn.functional.affine_grid(theta, x.shape, align_corners=False)

    run, _ = compiled(program)
    theta = torch.randn(2, 2, 3)
    for sides in [(4, 5), (6, 7), (1, 8), (8, 1), (1, 1), (0, 4), (3, 9)]:
        x, results = torch.ones(2, 1, *sides), []
        for function in (run, program):
            try:
                results.append(function(theta, x))
            except (ValueError, RuntimeError) as error:
                results.append(f"{type(error)} {error}")
        found, expected = results
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
