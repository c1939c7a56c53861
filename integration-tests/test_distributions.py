"""`torch.distributions`, validation of arguments included: one graph, eager's numbers and generator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributions as D  # noqa: N812 (short in the table)

import treadle

Make = Callable[[torch.Tensor], D.Distribution]


def positive(x: torch.Tensor) -> torch.Tensor:
    return x.abs() + 0.3


DISTRIBUTIONS: dict[str, Make] = {
    "Bernoulli": lambda x: D.Bernoulli(logits=x),
    "Bernoulli of probabilities": lambda x: D.Bernoulli(x.sigmoid()),
    "Beta": lambda x: D.Beta(positive(x), positive(x)),
    "Binomial": lambda x: D.Binomial(10, x.sigmoid()),
    "Categorical": lambda x: D.Categorical(logits=x),
    "Categorical of probabilities": lambda x: D.Categorical(x.softmax(-1)),
    "Cauchy": lambda x: D.Cauchy(x, positive(x)),
    "Chi2": lambda x: D.Chi2(positive(x)),
    "ContinuousBernoulli": lambda x: D.ContinuousBernoulli(logits=x),
    "Dirichlet": lambda x: D.Dirichlet(positive(x)),
    "Exponential": lambda x: D.Exponential(positive(x)),
    "FisherSnedecor": lambda x: D.FisherSnedecor(positive(x), positive(x)),
    "Gamma": lambda x: D.Gamma(positive(x), positive(x)),
    "Geometric": lambda x: D.Geometric(logits=x),
    "Gumbel": lambda x: D.Gumbel(x, positive(x)),
    "HalfCauchy": lambda x: D.HalfCauchy(positive(x)),
    "HalfNormal": lambda x: D.HalfNormal(positive(x)),
    "Independent": lambda x: D.Independent(D.Normal(x, positive(x)), 1),
    "InverseGamma": lambda x: D.InverseGamma(positive(x) + 3, positive(x)),
    "Kumaraswamy": lambda x: D.Kumaraswamy(positive(x), positive(x)),
    "Laplace": lambda x: D.Laplace(x, positive(x)),
    "LogNormal": lambda x: D.LogNormal(x, positive(x)),
    "LowRankMultivariateNormal": lambda x: D.LowRankMultivariateNormal(x[0], x.mT, positive(x[0])),
    "MixtureSameFamily": lambda x: D.MixtureSameFamily(D.Categorical(logits=x), D.Normal(x, positive(x))),
    "Multinomial": lambda x: D.Multinomial(5, logits=x),
    "MultivariateNormal": lambda x: D.MultivariateNormal(x, scale_tril=torch.eye(x.shape[-1]) * 2),
    "NegativeBinomial": lambda x: D.NegativeBinomial(positive(x), logits=x),
    "Normal": lambda x: D.Normal(x, positive(x)),
    "MultivariateNormal of a covariance": lambda x: D.MultivariateNormal(x, torch.eye(x.shape[-1]) * 2),
    "OneHotCategorical": lambda x: D.OneHotCategorical(logits=x),
    "OneHotCategoricalStraightThrough": lambda x: D.OneHotCategoricalStraightThrough(logits=x),
    "Pareto": lambda x: D.Pareto(positive(x), positive(x) + 3),
    "Poisson": lambda x: D.Poisson(positive(x)),
    "RelaxedBernoulli": lambda x: D.RelaxedBernoulli(torch.tensor(0.5), logits=x),
    "RelaxedOneHotCategorical": lambda x: D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=x),
    "TransformedDistribution": lambda x: D.TransformedDistribution(
        D.Normal(x, positive(x)), [D.SigmoidTransform(), D.AffineTransform(-1, 2.0)]
    ),
    "with a cache": lambda x: D.TransformedDistribution(D.Normal(x, positive(x)), [D.TanhTransform(cache_size=1)]),
    "Uniform": lambda x: D.Uniform(x, x + 3),
    "Weibull": lambda x: D.Weibull(positive(x), positive(x)),
}


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    treadle.reset()


def uses(make: Make) -> Callable[[torch.Tensor], list[Any]]:
    """A program that samples and asks for everything the distribution has."""

    def program(x: torch.Tensor) -> list[Any]:
        distribution = make(x)
        drawn = distribution.sample((2,))
        found: list[Any] = [drawn, distribution.log_prob(drawn), distribution.batch_shape, distribution.event_shape]
        if distribution.has_rsample:
            found.append(distribution.rsample())
        for question in (lambda d: d.entropy(), lambda d: d.mean, lambda d: d.variance, lambda d: d.stddev):
            try:
                found.append(question(distribution))
            except NotImplementedError:
                found.append(None)
        return found

    return program


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_one_graph(name: str, trains: bool) -> None:
    program = uses(DISTRIBUTIONS[name])
    compiled = treadle.compile(program)
    for seed in (1, 2):
        x, y = (torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(trains) for _ in range(2))
        outcomes = []
        for run, given in ((program, x), (compiled, y)):
            torch.manual_seed(seed)
            found = run(given)
            gradients = [f.sum() for f in found if isinstance(f, torch.Tensor) and f.requires_grad]
            if gradients:
                torch.stack(gradients).sum().backward()
            outcomes.append([*found, given.grad, torch.rand(1)])
        for one, other in zip(*outcomes, strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4, equal_nan=True)
            else:
                assert one == other and type(one) is type(other)
    stats = treadle.stats()
    assert stats.graphs == 1 and not stats.breaks and not stats.eager_graphs, stats


def of_a_scale(x: torch.Tensor) -> torch.Tensor:
    return D.Normal(x, x).log_prob(x)


def of_a_covariance(x: torch.Tensor) -> torch.Tensor:
    return D.MultivariateNormal(x, torch.diag(x)).log_prob(x)


@pytest.mark.parametrize(("program", "name"), [(of_a_scale, "scale"), (of_a_covariance, "covariance_matrix")])
def test_wrong_arguments_raise_as_in_eager(program: Make, name: str) -> None:
    compiled = treadle.compile(program)
    torch.testing.assert_close(compiled(torch.ones(3)), program(torch.ones(3)))
    assert treadle.stats().graphs == 1
    messages = []
    for run in (program, compiled):
        with pytest.raises(ValueError, match=f"Expected parameter {name}") as raised:
            run(-torch.ones(3))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_program_without_arguments() -> None:
    """What is validated is made in the graph, which has no inputs."""

    def program() -> torch.Tensor:
        return D.Normal(torch.zeros(3), torch.rand(3) + 0.1).sample()

    compiled = treadle.compile(program)
    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = program()
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(), expected)
    assert not treadle.stats().eager_graphs and treadle.stats().graphs == 1
