"""Python's `random` in compiled functions: the numbers of eager, and the generators left where eager leaves them."""

from __future__ import annotations

import random

import pytest
import torch
from compile_runs import compiled, item

GENERATOR = random.Random(11)
TENSORS = [torch.ones(2) * number for number in range(5)]
LOG: list = []


class Holder:
    last = 0.0


HOLDER = Holder()


def scaled(x):
    return x * random.random() + random.uniform(1, 3) + random.gauss(0, 1) + random.expovariate(2)


def explored(x):
    return x + 1 if random.random() < 0.3 else x * 2


def cropped(x):
    start = random.randint(0, 5)
    return x[start : start + 3] * 2


def chosen_tensor(x):
    return x + random.choice(TENSORS)[0]


def chosen_by_position(x):
    return x + TENSORS[random.randrange(len(TENSORS))][1]


def chosen_number(x):
    return x + random.choice([0.5, 1.0, 2.0])


def of_two_generators(x):
    return x * GENERATOR.random() + random.random() - GENERATOR.gauss(0, 1) + GENERATOR.gauss(0, 1)


def seeded(x):
    random.seed(3)
    values = [1, 2, 3, 4]
    random.shuffle(values)
    return x * random.random() + random.sample(values, 2)[0] + random.choices(values, k=3)[1]


def seeded_between(x):
    before = random.random()
    random.seed(7)
    return x * before + random.random(), before


def of_a_new_generator(x):
    generator = random.Random(5)
    first = generator.random()
    return x * first + generator.choice([1, 2, 3]), generator


def restored(x):
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return x * (first == random.random()), first


def state_that_leaves(x):
    random.random()
    state = random.getstate()
    random.random()
    return x + 1, state


def stored_and_printed(x):
    HOLDER.last = random.random()
    LOG.append(random.randint(1, 6))
    print("drawn", HOLDER.last, LOG[-1])
    return x + HOLDER.last


def caught(x):
    try:
        raise ValueError(random.random())
    except ValueError as error:
        return x + error.args[0]


def of_a_size(x):
    return torch.full((random.randint(1, 4),), 1.0) + x[0]


def read_bits(x):
    return x * random.getrandbits(5) + random.randrange(0, 10, 2)


def sampled_positions(x):
    first, second = random.sample(range(10), 2)
    (third,) = random.sample(range(1, 9, 3), k=1)
    return x[first] - x[second] + third, [first, second]


def sampled_tensors(x):
    one, other = random.sample(TENSORS, 2)
    return x + one[0] * other[1]


WHOLE = (
    sampled_positions,
    sampled_tensors,
    scaled,
    cropped,
    chosen_tensor,
    chosen_by_position,
    of_two_generators,
    seeded,
    seeded_between,
    of_a_new_generator,
    restored,
    state_that_leaves,
    stored_and_printed,
    caught,
    read_bits,
)


def around_a_break(x):
    first = random.random()
    number = item((x * first).sum())
    return x * random.random() + number


def many(x):
    for _ in range(30):
        x = x + random.random()
    return x


def rounded(x):
    return x + int(random.random() * 50)


def sampled(x):
    values = list(range(9))
    random.shuffle(values)
    return x + random.sample(values, 3)[1] + random.choices(values)[0]


def decided_often(x):
    for _ in range(5):
        if random.random() < 0.5:
            x = x + 1
    return x


def chosen_often(x):
    a, b = random.choices(TENSORS, k=2)
    return x + a[0] + b[0] + random.choices(["a", "b"], weights=[1, 3])[0].count("a") + random.choices([1, 2], k=9)[3]


def sampled_too_many(x):
    try:
        return x + random.sample(TENSORS, 9)[0][0]
    except ValueError as error:
        return x, str(error), random.sample(range(2), k=2), random.sample([], 0)


def from_the_system(x):
    random.seed()
    random.seed(0)
    return x + random.random()


def of_another_class(x):
    return x + Odd(1).random()


class Odd(random.Random):
    def random(self):
        return 0.25


def _plain(value):
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[1], tuple):
        return hash(value)
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, random.Random):
        return hash(value.getstate())
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _calls(function, capsys):
    random.seed(0)
    GENERATOR.seed(5)
    LOG.clear()
    seen = []
    for number in range(8):
        result = _plain(function(torch.arange(10.0) + number))
        states = hash(random.getstate()), hash(GENERATOR.getstate())
        seen.append((result, states, capsys.readouterr().out, HOLDER.last, list(LOG)))
        if number % 3 == 2:
            random.random()
    return seen


@pytest.mark.parametrize(
    "program",
    (
        *WHOLE,
        of_a_size,
        explored,
        chosen_number,
        around_a_break,
        many,
        rounded,
        sampled,
        decided_often,
        chosen_often,
        sampled_too_many,
        from_the_system,
        of_another_class,
    ),
    ids=lambda program: program.__name__,
)
def test_programs(program, capsys):
    run, said = compiled(program)
    assert _calls(run, capsys) == _calls(program, capsys)
    if program in WHOLE:
        assert not said.breaks and not said.recompiles and len(said.graphs) == 1


def test_each_choice_is_compiled_once():
    run, said = compiled(explored)
    for _ in range(40):
        run(torch.ones(2))
    assert len(said.graphs) == 2 and not said.breaks


def test_calls_that_keep_deciding_differently_draw_in_python():
    run, said = compiled(rounded)
    for _ in range(40):
        run(torch.ones(2))
    assert "random-number" in said.codes()


def test_a_call_that_fails_draws_once():
    def run(x, positions):
        factor = random.random()
        return x[positions] * factor, factor

    fast, _ = compiled(run)
    for function in (run, fast):
        random.seed(2)
        seen = []
        for positions in ([0, 1], [0, 9], [1, 1]):
            try:
                seen.append(_plain(function(torch.arange(3.0), torch.tensor(positions))))
            except IndexError:
                seen.append("out of range")
            seen.append(random.getstate())
        if function is run:
            expected = seen
        assert seen == expected


def test_a_generator_with_a_method_of_its_own():
    def run(x, generator):
        return x + generator.random() + generator.uniform(1, 2)

    fast, _ = compiled(run)
    own = random.Random(3)
    own.random = lambda: 0.5
    for generator in (random.Random(3), own, random.Random(4), Odd(5)):
        again = generator if generator in (own,) else type(generator)()
        if generator is not own:
            again.setstate(generator.getstate())
        assert torch.equal(fast(torch.ones(2), generator), run(torch.ones(2), again))


def test_numbers_drawn_in_a_backward_pass():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * random.random()

    def run(x):
        first = random.random()
        y = Noisy.apply(x * first)
        y.sum().backward()
        return x.grad.clone(), random.random()

    fast, _ = compiled(run)
    expected = []
    for function in (run, fast):
        random.seed(4)
        seen = [_plain(function(torch.ones(2, requires_grad=True))) for _ in range(3)]
        expected = expected or seen
        assert seen == expected


class Schedule:
    step = 0
    width = 1.0


@pytest.mark.parametrize(
    "kind", ["gauss", "normalvariate", "expovariate", "uniform", "seed", "weibullvariate", "vonmisesvariate"]
)
def test_arguments_that_change_from_call_to_call(kind):
    def run(x, schedule):
        schedule.step += 1
        schedule.width *= 0.9
        if kind == "seed":
            return x + random.Random(schedule.step).random()
        return x * getattr(random, kind)(
            *((schedule.width,) if kind == "expovariate" else (schedule.step, schedule.width))
        )

    fast, said = compiled(run)
    seen = {}
    for function in (run, fast):
        random.seed(1)
        schedule = Schedule()
        seen[function] = (
            [_plain(function(torch.ones(2, dtype=torch.float64), schedule)) for _ in range(14)],
            random.getstate(),
        )
    assert seen[run] == seen[fast]
    assert len(said.graphs) <= 6 and not said.skips


def test_one_graph_or_nothing():
    def run(x):
        for _ in range(20):
            x = x + random.random()
        return x * 2 if random.getrandbits(3) == 5 else x + random.randint(0, 3) if random.random() < 0.5 else x

    fast, _ = compiled(run, fullgraph=True)
    seen = []
    for function in (run, fast):
        random.seed(6)
        seen.append(([_plain(function(torch.ones(3))) for _ in range(30)], random.getstate()))
    assert seen[0] == seen[1]


def test_layers_that_are_left_out_at_random():
    """Each choice doubles the number of graphs, so that behind two of them the graph breaks."""

    def run(x):
        for factor in range(8):
            if random.random() < 0.5:
                continue
            x = torch.tanh(x * factor)
        return x

    fast, said = compiled(run)
    seen = []
    for function in (run, fast):
        random.seed(6)
        seen.append(([_plain(function(torch.ones(3))) for _ in range(40)], random.getstate()))
    assert seen[0] == seen[1] and len(said.graphs) < 12


def test_traces_that_do_not_decide_on_a_number_go_on_foreseeing():
    """Layers that training leaves out at random, in evaluation: the number is drawn, and decides nothing."""

    def run(x, training):
        for _ in range(2):
            dropped = random.uniform(0, 1)
            if training and dropped < 0.5:
                continue
            x = torch.tanh(x)
        return x * random.random()

    fast, said = compiled(run)
    for rank in range(1, 8):  # each rank needs a trace
        for _ in range(3):
            random.seed(rank)
            expected, state = run(torch.ones((1,) * rank), False), random.getstate()
            random.seed(rank)
            assert torch.equal(fast(torch.ones((1,) * rank), False), expected) and random.getstate() == state
    assert not said.breaks and len(said.graphs) == 7
