"""`numpy.random` in compiled functions: the numbers of eager, and the generators left where eager leaves them."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy", "2.0")

NEW = np.random.default_rng(4)
OLD = np.random.RandomState(3)


class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = NEW
        self.rate = 0.3
        self.policy = torch.nn.Linear(4, 3)

    def forward(self, x):
        if self.generator.random() < self.rate:
            return int(self.generator.integers(3))
        return self.policy(x).argmax()


AGENT = Agent()


def seeded(x):
    np.random.seed(0)
    return x * np.random.rand() + np.random.normal(), np.random.randint(5, size=3), np.random.choice(4)


def of_new_generators(x):
    new, old = np.random.default_rng(3), np.random.RandomState(5)
    first = new.random(), old.rand(), old.normal(size=2)
    return x * first[0] + first[1], new.permutation(3), first[2], new, old


def scaled(x):
    return x * np.random.rand() + float(np.random.uniform(0.8, 1.2)), int(np.random.randint(1, 5))


def of_a_generator_from_outside(x):
    return x + NEW.normal(0, 0.1), NEW.integers(10), type(NEW.integers(3)).__name__, OLD.randint(4)


def noise(x):
    return x + torch.from_numpy(np.random.uniform(size=4)), np.random.random(3), NEW.standard_normal((2, 2))


def written_noise(x):
    noise = NEW.random(4)
    same = noise
    noise += 1
    return noise, x + torch.from_numpy(same), same is noise


def cropped(x):
    start = np.random.randint(0, 2)
    return x[start : start + 2] * 2


def permuted(x):
    return x[torch.from_numpy(np.random.permutation(4))]


WHOLE = (seeded, of_new_generators, scaled, of_a_generator_from_outside, noise, written_noise, cropped, permuted)


def explored(x):
    return x + 1 if np.random.rand() < 0.3 else x * 2


def acted(x):
    return AGENT(x)


def normal_numbers(x):
    return x + np.random.randn() + np.random.rand() + np.random.normal()


def with_weights(x):
    return x + np.random.choice([1.0, 2.0], p=np.array([0.2, 0.8]))


def shuffled(x):
    values = np.arange(4)
    np.random.shuffle(values)
    return x + torch.from_numpy(values)


def restored(x):
    state = np.random.get_state()
    first = np.random.rand()
    np.random.set_state(state)
    return x * first, np.random.rand()


def refused(x):
    try:
        return x + np.random.uniform(size=-1)
    except ValueError:
        return x * np.random.rand()


def _plain(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist(), value.base is None
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return _state(value) if isinstance(value, np.random.RandomState) else (type(value).__name__, value)


def _state(generator):
    _, words, *rest = generator.get_state()
    return words.tolist(), rest


def _calls(function):
    np.random.seed(7)
    NEW.bit_generator.state = np.random.default_rng(4).bit_generator.state
    OLD.seed(3)
    seen = []
    for number in range(8):
        result = _plain(function(torch.arange(4.0) + number))
        seen.append((result, _state(np.random), NEW.bit_generator.state, _state(OLD)))
        if number % 3 == 2:
            np.random.rand()
            NEW.random()
    return seen


@pytest.mark.parametrize(
    "program",
    (*WHOLE, explored, acted, normal_numbers, with_weights, shuffled, restored, refused),
    ids=lambda program: program.__name__,
)
def test_programs(program):
    run, said = compiled(program)
    assert _calls(run) == _calls(program)
    if program in WHOLE:
        assert not said.breaks and not said.recompiles and len(said.graphs) == 1


def test_another_bit_generator():
    def program(x, generator):
        return x * generator.random()

    run, _ = compiled(program)
    for _ in range(2):
        for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox):
            one, other = np.random.Generator(kind(3)), np.random.Generator(kind(3))
            assert torch.equal(run(torch.ones(2), one), program(torch.ones(2), other))
            assert str(one.bit_generator.state) == str(other.bit_generator.state)
            old, same = np.random.RandomState(kind(3)), np.random.RandomState(kind(3))
            assert torch.equal(run(torch.ones(2), old), program(torch.ones(2), same))
            assert old.random() == same.random()


def _masked_spans(shape, probability, length, lengths=None):
    """As in wav2vec2: how many numbers are drawn follows from a number drawn before."""
    rows, columns = shape
    epsilon = np.random.rand(1).item()
    mask = np.zeros((rows, columns), dtype=bool)
    for row in range(rows):
        count = max(int(probability * columns / length + epsilon), 1)
        starts = np.random.choice(np.arange(columns - length + 1), count, replace=False)
        for start in starts:
            mask[row, start : start + length] = True
    return mask


def test_a_function_of_numbers_that_draws_is_one_break():
    def program(x):
        x = torch.relu(x) * 2
        mask = torch.tensor(_masked_spans(x.shape, 0.4, 2))
        return torch.where(mask, 0.0, x) + 1

    run, said = compiled(program)
    for seed in range(6):
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            np.random.seed(seed)
            found = run(x), np.random.rand()
            np.random.seed(seed)
            assert torch.equal(found[0], program(x)) and found[1] == np.random.rand()
    assert len(said.graphs) <= 4 and len(said.breaks) <= 2 and not said.skips
