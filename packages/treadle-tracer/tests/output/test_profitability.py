"""The cost model: what a run of a compiled graph saves against eager, in calls of operators."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.output.profitability import profit_of


def profit(function, *args, grad=False):
    """The profit of the one graph of a function."""
    fn, recorder = compiled(function)
    with torch.set_grad_enabled(grad):
        fn(*args)
    (gm,) = recorder.graphs
    return profit_of(gm, grad)


def chain(n):
    def f(x):
        for _ in range(n):
            x = torch.sin(x)
        return x

    return f


def test_fused_operators_save_and_a_call_costs():
    x = torch.ones(4)
    assert profit(chain(1), x) < 0 < profit(chain(8), x) < profit(chain(16), x)


def test_transforms_save_what_eager_takes_for_their_levels():
    def gradient(x):
        return torch.func.grad(lambda x: torch.sin(x).sum())(x)

    one = profit(gradient, torch.ones(4))
    assert one > 0
    assert profit(lambda x: torch.func.vmap(gradient)(x), torch.ones(3, 4)) > one
    assert profit(lambda x: torch.func.jacrev(torch.sin)(x), torch.ones(4)) > 0


def test_traffic_between_operators_counts():
    assert profit(chain(2), torch.ones(4)) < 0 < profit(chain(2), torch.ones(1 << 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reductions_that_have_no_vectors_in_eager(dtype):
    small, large = torch.ones(4, dtype=dtype), torch.ones(100, 100, dtype=dtype)
    for function in (
        lambda x: x.var(0),
        lambda x: torch.std_mean(x, -1),
        lambda x: x.argmax(0),
        lambda x: torch.max(x, 0),
        lambda x: (x > 0).any(),
    ):
        assert profit(function, small) < 1 < profit(function, large)
    assert profit(lambda x: x.max(), large) < 0
    assert profit(lambda x: x.sum(0), large) < 0
    x = torch.ones(1000, 1000, requires_grad=True)
    assert profit(lambda x: x.var(0), x, grad=True) > 0 > profit(lambda x: x.var(0), x[:4, :4], grad=True)


def test_what_leaves_the_graph_is_written_in_eager_and_compiled_alike():
    x = torch.ones(1 << 20)
    assert profit(chain(1), x) == profit(chain(1), torch.ones(4))
    assert profit(lambda x: torch.sin(x).view(2, -1), x) < 0 < profit(lambda x: torch.sin(x).view(2, -1) + 1, x)


def test_results_cost_memory_and_views_of_them():
    def results(n):
        return lambda x: [torch.sin(x) + k for k in range(n)]

    def views(n):
        return lambda x: list((torch.sin(x) * 2)[:n])

    x = torch.ones(16)
    saved = profit(results(2), x) - profit(results(1), x)
    assert 0 < saved < 2
    assert profit(views(16), x) < profit(views(2), x)


def test_autograd_makes_calls_dearer_and_operators_too():
    x = torch.ones(4, requires_grad=True)
    assert profit(chain(4), x, grad=True) < profit(chain(4), x) < profit(chain(24), x) < profit(chain(24), x, grad=True)


def test_training_small_networks_pays_from_four_layers_on():
    def layers(n):
        def net(x):
            for _ in range(n):
                x = torch.relu(torch.nn.functional.linear(x, w, b))
            return x

        w, b = torch.ones(64, 64, requires_grad=True), torch.ones(64, requires_grad=True)
        return net

    x = torch.ones(32, 64)
    assert profit(layers(3), x, grad=True) < -2 < profit(layers(4), x, grad=True) < profit(layers(6), x, grad=True)
    assert profit(layers(3), x) > 0


def test_what_stands_alone_behind_a_kernel_saves_no_traffic_in_training():
    """The derivative of a large activation between two products moves as much memory as eager's; that of a chain less."""
    x, w = torch.ones(512, 512, requires_grad=True), torch.ones(512, 512)
    alone = profit(lambda x: torch.sin(x @ w) @ w, x, grad=True)
    assert alone < -10
    assert profit(lambda x: torch.sin(torch.sin(x @ w)) @ w, x, grad=True) > alone + 50


def test_few_small_operators_around_convolutions_do_not_pay_for_a_node_of_autograd():
    def net(x):
        for _ in range(3):
            x = torch.relu(torch.nn.functional.batch_norm(torch.conv2d(x, w, None, 1, 1), None, None, training=True))
        return x

    w = torch.ones(16, 16, 3, 3)
    assert profit(net, torch.ones(4, 16, 8, 8, requires_grad=True), grad=True) < 0
    assert profit(net, torch.ones(16, 16, 64, 64, requires_grad=True), grad=True) > 100
    assert profit(net, torch.ones(4, 16, 8, 8)) > 0


def test_what_no_gradient_reaches_counts_once():
    def f(x):
        for _ in range(8):
            x = torch.sin(x)
        return x.detach()

    x = torch.ones(4, requires_grad=True)
    assert profit(f, x, grad=True) == profit(f, x)


def test_a_backward_pass_inside_is_saved_as_a_whole():
    """What it goes through is called twice by eager, and nothing is left to record: the parameters are written to with gradients off."""
    p = torch.nn.Parameter(torch.ones(4))

    def loss(x):
        return chain(4)(p * x).sum()

    def step(x):
        (gradient,) = torch.autograd.grad(loss(x), p)
        with torch.no_grad():
            p.sub_(gradient, alpha=0.1)

    def later(x):
        return loss(x)

    x = torch.ones(4)
    assert profit(later, x, grad=True) < 0 < profit(step, x, grad=True)


def test_statistics_that_a_normalisation_writes_are_not_recorded():
    layer = torch.nn.BatchNorm1d(4)
    p = torch.nn.Parameter(torch.ones(4))

    def step(x):
        return torch.autograd.grad(chain(4)(layer(p * x)).sum(), p)

    assert profit(step, torch.ones(8, 4), grad=True) > 0


def test_a_history_that_is_written_to_an_outside_tensor_is_recorded():
    p = torch.nn.Parameter(torch.ones(4))

    def keep(x, out):
        out[0] = chain(4)(p * x)

    def fill(x, out):
        out.copy_(chain(4)(p * x))

    for function in (keep, fill):
        assert profit(function, torch.ones(4), torch.zeros(2, 4), grad=True) < 0


def test_kernels_of_pytorch_save_nothing():
    def f(x):
        for _ in range(8):
            x = x @ x
        return x

    assert profit(f, torch.ones(80, 80)) < 0


def test_small_products_are_fused():
    def f(x):
        for _ in range(8):
            x = x @ x
        return x

    x = torch.ones(4, 4)
    assert profit(f, x) > 5
    recorded = torch.ones(4, 4, requires_grad=True)
    assert profit(f, recorded, grad=True) > profit(f, torch.ones(80, 80, requires_grad=True), grad=True)
    rows, w = torch.ones(1000, 3), torch.ones(3, 3)
    assert profit(lambda x: (x @ w) @ w, rows) > profit(lambda x: (x @ w.long()) @ w.long(), rows.long())


def test_layers_that_eager_computes_in_one_operator_have_parts_that_fuse():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    assert profit(lambda x: layer(x), torch.ones(2, 5, 16)) > 0
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    assert profit(lambda x: attention(x, x, x, need_weights=False)[0], torch.ones(2, 5, 16)) > 0


def test_writes_random_numbers_and_asserts_cost():
    x = torch.ones(4)
    assert profit(lambda x: x.add_(1), x) < profit(lambda x: x + 1, x)
    assert profit(lambda x: torch.rand_like(x) + 1, x) < profit(lambda x: torch.sin(x) + 1, x)


def test_several_outputs_that_autograd_records_cost():
    """Each has a node of its own, whether it is computed from another one or not."""

    def related(x):
        y = torch.sin(x)
        return y, torch.cos(y)

    def unrelated(x):
        return torch.sin(x), torch.cos(x)

    def one(x):
        return torch.cos(torch.sin(x))

    x = torch.ones(4, requires_grad=True)
    costs = profit(related, x, grad=True)
    assert abs(costs - profit(unrelated, x, grad=True)) < 0.1 and costs < profit(one, x, grad=True) - 20
    assert profit(related, x) == pytest.approx(profit(unrelated, x), abs=0.1)
    assert profit(one, x) - 2 < profit(related, x) < profit(one, x)


def test_other_devices_are_unknown():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.sin, (x,))
    graph.output((y,))
    for node in (x, y):
        node.meta["example_value"] = torch.ones(2, device="meta")
    assert profit_of(torch.fx.GraphModule({}, graph), grad=False) is None


def test_pieces_without_a_graph_and_graphs_in_eager_only_cost():
    fn, recorder = compiled(chain(20))
    fn(torch.ones(4))
    (gm,) = recorder.graphs
    assert profit_of(None, grad=False) < 0
    assert profit_of(gm, grad=False, is_eager=True) < 0 < profit_of(gm, grad=False)


def test_products_with_parameters_cost_a_look_at_these():
    def with_parameter(width):
        module, w, x = torch.nn.Linear(width, width, bias=False), torch.ones(width, width), torch.ones(80, width)
        return profit(lambda x: torch.relu(module(x)), x) - profit(lambda x, w: torch.relu(x @ w.t()), x, w)

    assert with_parameter(512) < -3 < with_parameter(80)  # small weights are read as they lie


def test_numpy_calls_cost_less_than_those_of_pytorch():
    np = pytest.importorskip("numpy")

    def on_tensors(x):
        return x[0] * x[1] + x[2] * x[3] + x[4] * x[5]

    array = np.ones(8, dtype=np.float64)
    assert profit(on_tensors, array) < 0 < profit(on_tensors, torch.ones(8, dtype=torch.float64))


def test_operators_around_convolutions_pay_as_others_do():
    """One thread of an EPYC: two layers lose 47 us of a step of 650, four gain 65 of 1200, eight 250 of 2300."""

    def net(layers):
        def f(x):
            for _ in range(layers):
                h = torch.conv2d(x, w, b, 1, 1)
                x = x + torch.tanh(h) * torch.sigmoid(x) * 0.5
            return x

        return f

    w, b = torch.ones(8, 8, 3, 3, requires_grad=True), torch.ones(8, requires_grad=True)
    x = torch.ones(2, 8, 8, 8)
    assert profit(net(2), x, grad=True) < 0 < profit(net(4), x, grad=True) < profit(net(8), x, grad=True)


def test_sizes_that_change_cost():
    fn, recorder = compiled(chain(8))
    for n in (4, 5):
        fn(torch.ones(n))
    constant, changing = (profit_of(gm, False) for gm in recorder.graphs)
    assert constant is not None and changing is not None
    assert changing == pytest.approx(constant - 2, abs=0.1)


def test_elements_that_numbers_are_read_of_save_nothing():
    def numbers(x):
        return (torch.sin(x) * 2).tolist()

    def rows(x):
        return [row * 2 for row in (torch.sin(x) * 2)]

    few, many = torch.ones(2), torch.ones(32)
    assert profit(numbers, many) == pytest.approx(profit(numbers, few), abs=0.1)
    assert profit(rows, few) < profit(rows, many)


def test_operators_that_eager_splits_are_no_kernels_of_pytorch():
    def cells(x, h, *weights):
        for _ in range(16):
            h = torch.gru_cell(x, h, *weights)
        return h

    x, h, wide, high = torch.ones(2, 8), torch.ones(2, 8), torch.ones(24, 8), torch.ones(24, 8)
    assert profit(cells, x, h, wide, high) > 0
    weights = [w.clone().requires_grad_() for w in (wide, high)]
    assert profit(cells, x, h, *weights, grad=True) > 0
