"""Decisions on numbers of small outside tensors: made while tracing, guarded by their outcome; where calls keep differing, breaks."""

from __future__ import annotations

import math

import pytest
import torch
from compile_runs import compiled

from treadle_tracer import Unsupported

numpy = pytest.importorskip("numpy")


def run(function, calls, **options):
    """Call with fresh arguments from each maker; results and arguments must be eager's. The graphs made, and break codes."""
    fast, recorder = compiled(function, decide_on_inputs=True, **options)
    for make in calls:
        given, expected_given = make(), make()
        assert same(outcome(fast, given), outcome(function, expected_given))
        assert same(given, expected_given)
    return len(recorder.graphs), recorder.codes()


def outcome(function, args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and torch.allclose(a, b, 0, 0, equal_nan=True)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


def scalars(*values, dtype=None):
    return [lambda value=value: (torch.arange(6.0), torch.tensor(value, dtype=dtype)) for value in values]


def branch(x, n):
    return x + 1 if n > 5 else x * n


def test_each_outcome_of_a_choice_gets_an_entry():
    assert run(branch, scalars(1, 7, 2, 8, 5, 6)) == (2, [])


def scheduled(x, n):
    """A rate by the number of the step, as schedules of optimizers compute it."""
    rate = (3 * torch.exp(-0.1 * (torch.tensor(n, dtype=torch.float32) - 5))).clamp(min=0.03, max=1.0)
    return x * rate if rate >= 1 else x + 1


def compared(x, n):
    return x * 2 if torch.tensor(n) > 20 else x + 1


@pytest.mark.parametrize("function", [scheduled, compared])
def test_what_follows_from_a_number_is_decided_without_making_it_a_constant(function):
    calls = [lambda n=n: (torch.arange(6.0), n) for n in (2, 3, 4, 5, 6, 30, 31, 7, 40)]
    assert run(function, calls) == (3, [])  # one more, for the first number


def test_without_the_option_the_graph_breaks():
    fast, recorder = compiled(branch)
    fast(torch.ones(2), torch.tensor(1))
    assert recorder.codes() == ["branch-on-tensor"]


def test_one_object_that_changes_in_place():
    count, x = torch.tensor(0.0), torch.arange(3.0)
    fast, recorder = compiled(branch, decide_on_inputs=True)
    for _ in range(10):
        count += 1
        assert torch.equal(fast(x, count), branch(x, count))
    view = count.numpy()
    view[...] = 2.0  # behind the version counter
    assert torch.equal(fast(x, count), branch(x, count))
    assert len(recorder.graphs) == 2


def loop(x, start, end):
    while start < end:
        x, start = x.sin(), start + 1
    return x, start


def test_loops():
    calls = [
        lambda a=a, b=b: (torch.ones(2), torch.tensor(a), torch.tensor(b))
        for a, b in ((0.0, 3.0), (0.5, 3.4), (1.0, 4.0))
    ]
    assert run(loop, calls) == (1, [])


def elements(x, t):
    if t[0] > t[1]:
        t = -t
    if not (t[1:] > t[:-1]).all():
        raise ValueError("not increasing")
    return x * t[1] if t.min() == t[0] else x


def test_elements_of_a_tensor():
    calls = [
        lambda t=t: (torch.ones(2), torch.tensor(t))
        for t in ([1.0, 2.0, 4.0], [3.0, 4.0, 9.0], [3.0, 2.0, 1.0], [1.0, 1.0, 1.0])
    ]
    graphs, codes = run(elements, calls)
    assert (graphs, codes) == (2, ["raises"])


def sizes(x, n):
    return x.repeat(int(n)), [x + i for i in range(n)]


def test_numbers_that_must_be_constants():
    graphs, codes = run(sizes, scalars(3, 3, 3))
    assert (graphs, codes) == (1, [])


def test_numbers_that_change_are_left_to_a_break():
    def power(x, n):
        for _ in range(n):
            x = x * 2
        return x

    graphs, codes = run(power, scalars(2, 3, 4, 5, 6, 7))
    assert codes and graphs <= 6


def two(x, a, b):
    x = x + 1 if a > 0 else x - 1
    return x * 2 if b > 0 else x / 2


def test_choices_that_vary_together_have_a_bound():
    calls = [lambda a=a, b=b: (torch.ones(2), torch.tensor(a), torch.tensor(b)) for a in (1, -1) for b in (1, -1)] * 3
    graphs, codes = run(two, calls)
    assert graphs <= 8


def written_before(x, step):
    step += 1
    return x + step if step > 3 else x - step


def test_writes_before_the_decision_happen_once():
    fast, recorder = compiled(written_before, decide_on_inputs=True)
    a, b, x = torch.tensor(0.0), torch.tensor(0.0), torch.ones(2)
    for _ in range(8):
        assert torch.equal(fast(x, a), written_before(x, b)) and torch.equal(a, b)
    assert len(recorder.graphs) == 2 and recorder.codes() == []


def written_after_the_read(x, step):
    before = step > 3
    value = step.item()
    step.fill_(9)
    return (x + 1 if before else x), (x * 2 if value > 1 else x)


def test_writes_after_the_number_was_read():
    assert run(written_after_the_read, scalars(0.0, 2.0, 5.0))[1] == []


def through_an_alias(x, step, view):
    view.add_(1)
    return x + 1 if step > 3 else x - 1


def test_a_write_through_an_alias():
    def apart():
        return torch.ones(2), torch.tensor([3.0]), torch.tensor([3.0])

    def aliased():
        step = torch.tensor([3.0])
        return torch.ones(2), step, step.view(1)

    def overlapping():
        memory = numpy.array([0.0, 3.0], dtype=numpy.float32)
        return torch.ones(2), torch.from_numpy(memory)[1:], torch.from_numpy(memory[1:])

    for calls in ([apart, aliased, overlapping, apart], [aliased, apart], [overlapping, apart]):
        run(through_an_alias, calls)


def numbers(x, t):
    step = t.item()
    rate = 5.0 - 2 * step * 0.9**step / (1 - 0.9**step)
    return x * math.sqrt(step) + max(1, step - 2) if rate > -10 else x


def test_arithmetic_of_numbers():
    graphs, codes = run(numbers, scalars(1.0, 2.0, 3.0, 8.0, 30.0))
    assert codes == [] and graphs <= 4


def test_signs_of_zero_and_nan():
    def sign(x, t):
        return x + 1 if 1 / t > 0 else x - 1

    assert run(sign, scalars(0.0, -0.0, float("nan"), 0.0))[0] == 2


def test_division_by_zero_raises_as_in_eager():
    def divide(x, t):
        return x * 2 if 6 // t.item() > 1 else x

    run(divide, scalars(1, 0, 6))


def test_attributes_globals_and_closures():
    class Holder:
        pass

    holder, limit = Holder(), torch.tensor(2)
    holder.step = torch.tensor(0)

    def function(x):
        return x + 1 if holder.step > limit else x * 3

    fast, recorder = compiled(function, decide_on_inputs=True)
    x = torch.ones(2)
    for step in range(5):
        holder.step = torch.tensor(step)
        assert torch.equal(fast(x), function(x))
    limit += 5
    assert torch.equal(fast(x), function(x))
    assert len(recorder.graphs) == 2


def test_buffers_that_the_function_counts():
    class Warm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.tensor(0))
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            self.seen += 1
            return x * self.scale if self.seen > 3 else x

    one, other = Warm(), Warm()
    fast, recorder = compiled(Warm.forward, decide_on_inputs=True)
    x = torch.ones(2)
    for _ in range(8):
        assert torch.equal(fast(one, x), other(x)) and one.seen == other.seen
    assert len(recorder.graphs) == 2


def test_parameters_that_require_gradients():
    weight = torch.nn.Parameter(torch.tensor(0.5))

    def function(x):
        return x * weight if weight > 0 else x - weight

    fast, recorder = compiled(function, decide_on_inputs=True)
    x = torch.ones(2)
    for value in (0.5, 1.5, -1.0, 2.0):
        with torch.no_grad():
            weight.fill_(value)
        found, expected = fast(x), function(x)
        assert torch.equal(found, expected) and found.requires_grad
    assert len(recorder.graphs) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(40, 40),
        lambda: torch.randn(300),
    ],
)
def test_large_tensors_break(make):
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    fast, recorder = compiled(function, decide_on_inputs=True)
    x = make()
    assert torch.equal(fast(x), function(x))
    assert recorder.codes() == ["branch-on-tensor"]


def test_random_and_uninitialised_elements_break():
    def drawn(x, n):
        return x + 1 if torch.rand(()) * n > 0.5 else x - 1

    fast, recorder = compiled(drawn, decide_on_inputs=True)
    torch.manual_seed(0)
    found = [fast(torch.ones(2), torch.tensor(1.0)) for _ in range(6)]
    torch.manual_seed(0)
    assert same(found, [drawn(torch.ones(2), torch.tensor(1.0)) for _ in range(6)])
    assert "branch-on-tensor" in recorder.codes()


def test_random_numbers_are_drawn_as_in_eager():
    def drawn(x, n):
        noise = torch.rand(3)
        return noise + x.sum() if n > 0.5 else noise

    fast, _ = compiled(drawn, decide_on_inputs=True)
    for value in (1.0, 0.0, 1.0):
        torch.manual_seed(0)
        found, state = fast(torch.ones(2), torch.tensor(value)), torch.get_rng_state()
        torch.manual_seed(0)
        assert torch.equal(found, drawn(torch.ones(2), torch.tensor(value))) and torch.equal(
            state, torch.get_rng_state()
        )


def test_in_a_transform_and_in_a_backward_pass():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit):
            ctx.limit = limit
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return (grad * 3 if ctx.limit > 1 else grad), None

    def function(x, limit):
        return Scaled.apply(x, limit)

    fast, _ = compiled(function, decide_on_inputs=True)
    for before, behind in ((0.0, 2.0), (2.0, 0.0)):
        x, limit = torch.ones(2, requires_grad=True), torch.tensor(before)
        out = fast(x, limit)
        limit.fill_(behind)
        out.sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 3.0 if behind > 1 else 1.0))

    def batched(x, limit):
        return torch.func.vmap(lambda row: row + 1 if limit > 1 else row)(x)

    run(batched, [lambda v=v: (torch.ones(2, 2), torch.tensor(v)) for v in (0.0, 2.0, 3.0)])


def test_under_fullgraph():
    fast, recorder = compiled(branch, decide_on_inputs=True, fullgraph=True)
    for value in (1, 9, 2):
        assert torch.equal(fast(torch.ones(2), torch.tensor(value)), branch(torch.ones(2), torch.tensor(value)))
    assert len(recorder.graphs) == 2
    with pytest.raises(Unsupported):
        compiled(lambda x: x + 1 if x.sum() > 0 else x, decide_on_inputs=True, fullgraph=True)[0](torch.ones(999))


def test_sizes_that_change():
    def function(x, t):
        return x + 1 if t.sum() > 3 else x * 2

    run(function, [lambda n=n: (torch.ones(2), torch.ones(n)) for n in (2, 3, 5, 7, 0, 1)])


def test_output_and_exceptions_keep_their_order(capsys):
    def function(x, n):
        print("before")
        if n > 3:
            raise ValueError("too large")
        print("after")
        return x + 1

    fast, _ = compiled(function, decide_on_inputs=True)
    for value in (1, 5, 2, 6):
        found = outcome(fast, (torch.ones(2), torch.tensor(value)))
        text = capsys.readouterr().out
        assert same(found, outcome(function, (torch.ones(2), torch.tensor(value)))) and text == capsys.readouterr().out


def contradicted(x, n):
    n = n.item()
    torch._check(n > 0)
    if n < 5:
        x = x + 1
    return x.repeat(n), [x for _ in range(n)], 7 // n


def test_what_the_program_has_stated_does_not_hold():
    run(contradicted, scalars(2, 0, -1, 3, 9))
    run(contradicted, scalars(0, -1, 2))


def test_writes_of_numpy():
    def function(x, t):
        memory = t.numpy()
        memory += 1
        return x + 1 if t > 2 else x * 2

    run(function, scalars(0.0, 1.5, 3.0))


def test_state_of_pytorch_that_the_program_sets():
    def function(x, t):
        with torch.autocast("cpu", torch.bfloat16):
            product = (t.reshape(1, 1) @ t.reshape(1, 1)).reshape(())
        return x + 1 if product == 1.0001 * 1.0001 else x

    run(function, scalars(1.0, 1.0001, 1.002))


def test_two_threads():
    import threading

    fast, _ = compiled(branch, decide_on_inputs=True)
    wrong = []

    def work(value):
        x, n = torch.ones(2), torch.tensor(value)
        for _ in range(300):
            n.fill_(value)
            if not torch.equal(fast(x, n), branch(x, n)):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sizes_found_by_the_data_of_a_small_tensor():
    def function(x, t):
        n = t.sum().item()
        if n < 0:
            return x
        y = torch.zeros(int(n)) + 1
        return y * 2 if y.shape[0] == 3 else y

    run(function, [lambda t=t: (torch.ones(2), torch.tensor(t)) for t in ([1, 2], [2, 2], [0, 0], [-4, 1], [3, 0])])


def test_a_loop_with_a_condition_on_what_the_graph_computes():
    def function(x, limit):
        turns = 0
        while x.abs().sum() > limit:
            x, turns = x / 2, turns + 1
        return x, turns

    run(
        function,
        [lambda a=a, b=b: (torch.full((400,), a), torch.tensor(b)) for a, b in ((1.0, 50.0), (8.0, 3.0), (0.1, 1.0))],
    )


def test_exceptions_inside_handlers():
    def function(x, n):
        try:
            if n > 2:
                raise KeyError("large")
            y = x + 1
        except KeyError:
            y = x - 1
        finally:
            x = x * 2
        return y, x

    run(function, scalars(1, 5, 2, 9))


def test_generators_and_comprehensions():
    def function(x, t):
        return [x + i for i, item in enumerate(t) if item > 0], max(t), sorted([2, 1], key=lambda i: t[i])

    run(
        function,
        [lambda t=t: (torch.ones(2), torch.tensor(t)) for t in ([1, -2, 3], [1, -5, 3], [-1, -2, -3], [0, 0, 1])],
    )


def step_each(xs, steps):
    """As optimizers do: the loop decides on the state of each parameter."""
    found = []
    for x, step in zip(xs, steps, strict=True):
        step += 1
        size = step.item()
        found.append(x * size if 1 - 0.9**size < 0.3 else x / step)
    return found


def test_hundreds_of_decisions_that_are_computed_alike():
    fast, recorder = compiled(step_each, decide_on_inputs=True)
    xs = [torch.ones(2) for _ in range(300)]
    a, b = ([torch.tensor(0.0) for _ in xs] for _ in range(2))
    for _ in range(6):
        assert same(fast(xs, a), step_each(xs, b)) and same(a, b)
    assert len(recorder.graphs) == 2 and recorder.codes() == []


def test_one_of_many_numbers_differs():
    fast, recorder = compiled(step_each, decide_on_inputs=True)
    xs = [torch.ones(2) for _ in range(5)]
    for ahead in (None, 4, 0, 2, None):
        a, b = ([torch.tensor(9.0 if n == ahead else 1.0) for n in range(5)] for _ in range(2))
        assert same(fast(xs, a), step_each(xs, b)) and same(a, b)


def test_decisions_of_different_dtypes():
    fast, _ = compiled(step_each, decide_on_inputs=True)
    xs = [torch.ones(2) for _ in range(4)]
    for start in (0, 5):
        a, b = (
            [torch.tensor(start, dtype=d) for d in (torch.float32, torch.int64, torch.float64, torch.int32)]
            for _ in "ab"
        )
        assert same(fast(xs, a), step_each(xs, b)) and same(a, b)


def test_tensors_that_the_program_writes_to_may_share_memory_with_each_other():
    def function(x, y, step):
        x += 1
        y += 1
        return x * 2 if step > 3 else y * 3

    def parts(start):
        memory = torch.arange(8.0)
        return memory[:4], memory[4:], torch.tensor(start)

    assert run(function, [lambda n=n: parts(n) for n in (1, 5, 2, 6)]) == (2, [])


def test_a_step_that_lies_in_what_is_written():
    def function(x, step):
        x += 1
        return x * 2 if step > 3 else x * 3

    def apart():
        return torch.zeros(4), torch.tensor([3.0])

    def inside():
        memory = torch.full((5,), 3.0)
        return memory[:4], memory[3:4]

    for calls in ([apart, inside, apart], [inside, apart, inside]):
        run(function, calls)


def test_storage_that_moves_between_calls():
    """The guard remembers where storages are."""

    def function(x, step):
        x += 1
        return x * 2 if step > 3 else x * 3

    fast, _ = compiled(function, decide_on_inputs=True)
    x, step = torch.zeros(4), torch.tensor(3.0)
    memory = torch.full((5,), 3.0)
    for change in (lambda: None, lambda: None, lambda: x.set_(memory[:4]), lambda: step.set_(memory[3]), lambda: None):
        change()
        plain = [t.clone() for t in (x, step)]
        if x.untyped_storage().data_ptr() == step.untyped_storage().data_ptr():
            whole = memory.clone()
            plain = [whole[:4], whole[3]]
        assert same(fast(x, step), function(*plain)) and same([x, step], plain)


def test_a_write_through_an_alias_behind_a_decision():
    """A guard on the first decision and this write would never hold."""

    def function(x, step, view, other):
        x = x + 1 if step > 3 else x - 1
        view.add_(1)
        return x * 2 if other > 3 else x * 3

    fast, recorder = compiled(function, decide_on_inputs=True)
    a, b = torch.tensor([0.0]), torch.tensor([0.0])
    for n in range(8):
        other = torch.tensor(n % 2 * 5)
        assert same(fast(torch.ones(2), a, a.view(1), other), function(torch.ones(2), b, b.view(1), other)) and same(
            a, b
        )
    assert len(recorder.graphs) <= 5


def test_recompiles_for_another_reason_do_not_count_as_changed_choices():
    factors = {"a": 1, b"b": 2, None: 3, (4,): 4, 5: 5}

    def function(x, n, mode):
        x = x + 1 if n > 3 else x - 1
        return x * factors[mode]

    calls = [lambda n=n, mode=mode: (torch.ones(2), torch.tensor(n), mode) for n, mode in zip([0, 9, 9, 9, 9], factors)]
    assert run(function, calls) == (5, [])


def lengths_of(x, grid):
    """Sizes that data tells twice: how many pieces there are, and how long each is."""
    areas = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    bounds = torch.nn.functional.pad(areas.cumsum(0, dtype=torch.int32), (1, 0), value=0)
    return (bounds[1:] - bounds[:-1]).tolist()


def pieces(x, grid):
    return torch.cat([part.softmax(0) for part in torch.split(x, lengths_of(x, grid))])


def attended_pieces(x, grid):
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(part[None], part[None], part[None]) for part in torch.split(x, lengths_of(x, grid))], 1)


def grids(*rows):
    return [
        lambda row=row: (torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.tensor(row))
        for row in rows
    ]


@pytest.mark.parametrize("function", [pieces, attended_pieces])
def test_a_size_that_data_tells_is_decided_on(function):
    same_grid = [[1, 2, 2], [2, 1, 3]]
    assert run(function, grids(same_grid, same_grid)) == (1, [])
    results = run(function, grids(same_grid, [[2, 1, 2], [1, 2, 3]], [[1, 5, 2]], [[5, 1, 2]], same_grid))
    assert results[0] > 1


def test_iteration_over_as_many_rows_as_data_tells():
    def rows(x, mask):
        total = x.sum()
        for position in mask.nonzero():
            total = total * 2 + x[position].sum()
        return total

    masks = [lambda m=m: (torch.arange(4.0), torch.tensor(m)) for m in ([True, False, True, True],) * 2]
    assert run(rows, masks) == (1, [])
    run(
        rows,
        [
            *masks,
            lambda: (torch.arange(4.0), torch.tensor([False] * 4)),
            lambda: (torch.arange(4.0), torch.tensor([True] * 4)),
        ],
    )


def test_a_size_beyond_few_elements_is_not_decided_on():
    def many(x, n):
        return x.sum() + sum(torch.repeat_interleave(torch.ones(1), n).tolist())

    run(many, [lambda: (torch.arange(4.0), torch.tensor([1000]))] * 2)


def test_what_follows_from_constants_alone_may_be_large():
    def padded(x):
        mask = torch.nn.functional.pad(torch.ones(2, 100), (0, 400))
        return x * 2 if (mask.flatten() < 0).any().item() else x * 3

    assert run(padded, [lambda: (torch.arange(4.0),)] * 2) == (1, [])


# ---- sizes among what is decided on


def _limited(x, limit):
    if x.shape[0] > limit * 2:
        return x.sum() * 2
    return x.cumsum(0) + limit


def _of_later_sizes(x, limit):
    y = torch.cat([x, x[1:]])
    return y * 2 if y.shape[0] - limit < 9 else y.sum()


def _of_a_computed_size(x, limit):
    frames = torch.ceil((x.shape[0] - limit) / 3).to(torch.int64)
    if frames > 3:
        x = x + 1
    return x.narrow(0, 0, min(2, x.shape[0])) * frames


def _written_before(x, limit):
    limit += x.shape[0]
    if limit > 20:
        return x * 2, limit
    return x.sum(), limit


@pytest.mark.parametrize("program", [_limited, _of_later_sizes, _of_a_computed_size, _written_before])
@pytest.mark.parametrize("limits", [(3,), (3, 5), (2, 3, 4, 5, 6)])
def test_decisions_on_sizes_that_vary(program, limits):
    run, recorder = compiled(program, decide_on_inputs=True)
    for turn, rows in enumerate((4, 5, 6, 7, 8, 9, 1, 12, 2, 13, 1, 30, 6, 7, 3)):
        limit = limits[turn % len(limits)]
        mine, theirs = torch.tensor(limit), torch.tensor(limit)
        x = torch.arange(float(rows)).sin()
        found, expected = run(x, mine), program(x, theirs)
        for a, b in zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]:
            assert a.shape == b.shape
            torch.testing.assert_close(a, b)
        assert mine == theirs
    assert not recorder.skips


def test_a_decision_on_sizes_serves_all_that_decide_alike():
    run, recorder = compiled(_limited, decide_on_inputs=True)
    limit = torch.tensor(50)
    for rows in range(2, 40):
        torch.testing.assert_close(run(torch.ones(rows), limit), _limited(torch.ones(rows), limit))
    assert len(recorder.graphs) == 2 and not recorder.breaks
