"""What a program can observe around a compiled training graph is what eager shows: relations of outputs, versions, hooks, errors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treadle

Observe = Callable[[Any, Sequence[torch.Tensor]], Any]


def weights(*shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> Callable[[], list[torch.Tensor]]:
    """Leaves that require gradients; the same in every call."""

    def make() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in shapes]

    return make


def compare(
    function: Callable[..., Any], inputs: Callable[[], Sequence[torch.Tensor]], observe: Observe, **tolerances: float
) -> Any:
    """`observe(outputs, inputs)` of eager and of two calls of the compiled function; returns eager's."""
    compiled = treadle.compile(function)
    found = []
    for run in (function, compiled, compiled):
        given = inputs()
        torch.manual_seed(1)
        found.append(observe(run(*given), given))
    for mine in found[1:]:
        assert_same(mine, found[0], **tolerances)
    return found[0]


def assert_same(mine: Any, theirs: Any, **tolerances: float) -> None:
    if isinstance(theirs, torch.Tensor):
        chosen = {"rtol": 1e-4, "atol": 1e-6, **tolerances}
        torch.testing.assert_close(mine.detach(), theirs.detach(), equal_nan=True, **chosen)
        assert mine.requires_grad == theirs.requires_grad
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other, **tolerances)
    else:
        assert mine == theirs


def assert_one_graph() -> None:
    stats = treadle.stats()
    assert stats.graphs == 1 and not stats.breaks and not stats.eager_graphs, stats


def gradients(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    output.sum().backward()
    return [x.grad for x in inputs]


# ---- outputs and inputs


def test_relations_of_the_outputs() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x @ w
        return h, h[0], h.t(), x.view(-1), w, h.argmax(1), h.detach() + 1

    def observe(out: Any, inputs: Any) -> Any:
        facts = [(t._base is None, t.is_leaf, t.grad_fn is None, t._version, t.requires_grad) for t in out]
        bases = [[a._base is b or (a._base is not None and a._base is b._base) for b in out] for a in out]
        of_inputs = [[a is b or a._base is b for b in inputs] for a in out]
        return facts, bases, of_inputs, gradients(out[1].sum() + 2 * out[2].sum() + out[3].sum(), inputs)

    compare(f, weights((3, 3), (3, 3)), observe)
    assert_one_graph()


def test_writing_to_an_output_reaches_its_views_and_gradients() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x @ w
        return h, h[0]

    def observe(out: Any, inputs: Any) -> Any:
        out[1].mul_(3.0)
        return out[0]._version, out[0], gradients(out[0].square(), inputs)

    compare(f, weights((3, 3), (3, 3)), observe)
    assert_one_graph()


def test_versions_count_eagers_changes() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = (x @ w).add_(1).mul_(2)
        t = (x @ w).t_().unsqueeze_(0)
        state.add_(1)
        state[0] = 5
        other.zero_()
        return h, t, (x @ w).tanh()

    def inputs() -> list[torch.Tensor]:
        return [*weights((3, 3), (3, 3))(), torch.ones(3), torch.ones(2)]

    def observe(out: Any, given: Any) -> Any:
        return [t._version for t in (*out, *given)], [t.shape for t in out], given[2:], gradients(out[0], given[:2])

    compare(f, inputs, observe)
    assert_one_graph()


def test_statistics_have_eagers_versions() -> None:
    def observe(model: nn.Module, run: nn.Module) -> Any:
        gradients(run(torch.ones(4, 3) * torch.arange(4)[:, None]), list(model.parameters()))
        return [b._version for b in model.buffers()], list(model.buffers())

    found = []
    for compiler in (lambda m: m, treadle.compile):
        model = nn.BatchNorm1d(3)
        found.append(observe(model, compiler(model)))
    assert_same(found[1], found[0])


def test_a_loss_beside_its_detached_value() -> None:
    """As training loops log it, and views that are made with gradients off."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        loss = (x @ w).square().mean()
        with torch.no_grad():
            row = w[0]
        return loss, {"loss": loss.detach(), "row": row, "weights": w.detach()[1:]}

    def observe(out: Any, given: Any) -> Any:
        loss, logged = out
        facts = [(t.requires_grad, t.is_leaf, t._is_view(), t._base is given[1]) for t in logged.values()]
        return facts, list(logged.values()), gradients(loss, given)

    compare(f, weights((3, 3), (3, 3)), observe)
    assert_one_graph()


def test_views_made_with_gradients_off_of_a_tensor_that_requires_them() -> None:
    """Nothing that the function returns requires gradients."""

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.no_grad():
            return x.exp() * 2, w[:2], w.t()

    def observe(out: Any, given: Any) -> Any:
        return [(t.requires_grad, t.is_leaf, t._is_view(), t._base is given[1]) for t in out], list(out)

    compare(f, weights((3, 3), (3, 3)), observe)
    assert_one_graph()


@pytest.mark.parametrize("order", [0, 1])
def test_an_input_that_is_changed(order: int) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if order:
            x.mul_(w)
            return x * 2
        y = torch.exp(x) * w
        x.mul_(2)
        return y * x

    def inputs() -> list[torch.Tensor]:
        leaf, w = weights((3, 3), (3, 3))()
        return [leaf * 1, w, leaf]

    def observe(out: Any, given: Any) -> Any:
        x, w, leaf = given
        return x._version, x, gradients(out.sum() + x.sum(), [w, leaf])

    # `leaf` is no argument of the function
    compiled = treadle.compile(f)
    found = []
    for run in (f, compiled, compiled):
        given = inputs()
        found.append(observe(run(*given[:2]), given))
    assert_same(found[1:], [found[0]] * 2)


def test_inputs_that_are_one_tensor() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sum() + (y.sin() * w).sum()

    def observe(run: Any) -> Any:
        (leaf,) = weights((3, 3))()
        return gradients(run(leaf, leaf, leaf.view(3, 3)), [leaf])

    compiled = treadle.compile(f)
    assert_same([observe(compiled), observe(compiled)], [observe(f)] * 2)


def test_inputs_that_are_computed_from_each_other() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.sin(x) * y
        return h, h * y

    def observe(run: Any) -> Any:
        (leaf,) = weights((3,))()
        x = leaf * 2
        h, out = run(x, leaf)
        h.register_hook(lambda g: g * 3)
        (first,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
        return first, torch.autograd.grad(first.sum(), leaf, retain_graph=True), torch.autograd.grad(out.sum(), leaf)

    compiled = treadle.compile(f)
    assert_same([observe(compiled), observe(compiled)], [observe(f)] * 2)


def test_slice_assignment_and_out() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x @ w
        h[0] = w[0]
        h[:, 1] *= 2
        h.view(-1)[3:].add_(x.sum())
        plain = torch.empty(3, 3)
        torch.matmul(x.detach(), w.detach(), out=plain)
        return h * plain

    compare(f, weights((3, 3), (3, 3)), lambda out, inputs: gradients(out.square(), inputs))
    assert_one_graph()


def test_regions_without_gradients() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            a = x @ w
            with torch.enable_grad():
                b = x @ w
        return a, b, a * b + (x.detach() * w)

    def observe(out: Any, inputs: Any) -> Any:
        grads = torch.autograd.grad(out[2].sum(), inputs, create_graph=True)
        return [t.requires_grad for t in out], grads, torch.autograd.grad(sum(g.square().sum() for g in grads), inputs)

    compare(f, weights((3, 3), (3, 3)), observe)


# ---- hooks and intermediate results


def chain(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = x @ w
    second = torch.tanh(first) + x
    third = second * first * w
    return third, first, second, torch.sin(x)


def test_retained_gradients_of_outputs_that_others_depend_on() -> None:
    def observe(out: Any, inputs: Any) -> Any:
        for t in out:
            t.retain_grad()
        (out[0].sum() + out[3].sum()).backward()
        return [t.grad for t in out], [x.grad for x in inputs]

    compare(chain, weights((3, 3), (3, 3)), observe)
    assert_one_graph()


def test_hooks_on_outputs_that_backward_does_not_reach() -> None:
    def observe(out: Any, inputs: Any) -> Any:
        called: list[Any] = []
        out[0].register_hook(lambda g: called.append(g) or g * 2)
        out[1].sum().backward()
        return len(called), [x.grad for x in inputs]

    compare(lambda x, w: (x @ w, torch.tanh(x) * w), weights((3, 3), (3, 3)), observe)
    assert_one_graph()


@pytest.mark.parametrize("keep", [False, True])
def test_hooks_on_outputs_that_others_depend_on(keep: bool) -> None:
    """They see, and may replace, the whole gradient, also when nobody holds the tensor any more."""

    def observe(out: Any, inputs: Any) -> Any:
        third, first, second, _ = out
        seen: list[torch.Tensor] = []
        first.register_hook(lambda g: seen.append(g.clone()))
        first.register_hook(lambda g: g * 2)
        second.register_hook(lambda g: seen.append(g.clone()))
        if not keep:
            del first, second, out
            gc.collect()
        third.sum().backward(retain_graph=True)
        third.sum().backward()
        return seen, [x.grad for x in inputs]

    compiled = treadle.compile(chain)
    found = []
    for run in (chain, compiled, compiled):
        inputs = weights((3, 3), (3, 3))()
        found.append(observe(list(run(*inputs)) if keep else run(*inputs), inputs))
    assert_same(found[1:], [found[0]] * 2)


def test_gradients_with_respect_to_outputs() -> None:
    def observe(out: Any, inputs: Any) -> Any:
        third, first, second, sine = out
        loss = third.sum()
        return [
            torch.autograd.grad(loss, [first, second], retain_graph=True),
            torch.autograd.grad(loss, [first, *inputs], retain_graph=True),
            torch.autograd.grad(loss, second, retain_graph=True),
            torch.autograd.grad(loss, [sine], retain_graph=True, allow_unused=True),
            torch.autograd.grad(loss, inputs, retain_graph=True),
            torch.autograd.grad(torch.autograd.grad(loss, first, create_graph=True)[0].sum(), inputs),
        ]

    compare(chain, weights((3, 3), (3, 3)), observe)


def test_dependent_outputs_are_compiled_when_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle_autograd import training

    monkeypatch.setattr(training.Call, "rerun", None)
    compare(chain, weights((3, 3), (3, 3)), lambda out, inputs: gradients(out[0] + out[1] + out[2], inputs))
    assert_one_graph()


def test_hooks_inside_the_function() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x @ w
        h.register_hook(lambda g: g * 2)
        h.retain_grad()
        return h, torch.tanh(h)

    compare(f, weights((3, 3), (3, 3)), lambda out, inputs: (gradients(out[1], inputs), out[0].grad))


def test_hooks_of_modules() -> None:
    found = []
    for compiler in (lambda m: m, treadle.compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        log: list[Any] = []
        model[0].register_forward_pre_hook(lambda m, args: log.append("before"))
        model[0].register_forward_hook(lambda m, args, out: log.append("forward"))
        model[0].register_full_backward_hook(lambda m, given, got: log.append((given[0].shape, got[0].clone())))
        model[2].register_full_backward_hook(lambda m, given, got: (given[0] * 2,))
        model.register_full_backward_pre_hook(lambda m, got: log.append("backward"))
        x = torch.randn(5, 3, requires_grad=True)
        compiler(model)(x).sum().backward()
        found.append((log, [p.grad for p in model.parameters()], x.grad))
    assert_same(found[1], found[0])


def test_gradients_accumulate_into_the_existing_tensor() -> None:
    (w,) = weights((3, 3))()
    seen: list[torch.Tensor] = []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    f = treadle.compile(lambda x: torch.tanh(x @ w).sum())
    f(torch.ones(2, 3)).backward()
    first = w.grad
    once = first.clone()
    f(torch.ones(2, 3)).backward()
    assert w.grad is first
    assert_same(seen, [once, 2 * once])
    assert first.stride() == (3, 1) and first._base is None


def test_undefined_gradients() -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return None

    def observe(out: Any, inputs: Any) -> Any:
        (Nothing.apply(out[0]).sum() + out[1].sum()).backward()
        return [x.grad for x in inputs]

    compare(lambda x, w: (x @ w, x.tanh()), weights((3, 3), (3, 3)), observe)


# ---- what autograd saves


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) @ w).sum()


@pytest.mark.parametrize("kind", ["identity", "numpy", "save_on_cpu"])
def test_saved_tensor_hooks_around_a_call(kind: str) -> None:
    packed: list[Any] = []
    unpacked: list[Any] = []

    def pack(tensor: torch.Tensor) -> Any:
        packed.append(tensor)
        return tensor if kind == "identity" else tensor.numpy(force=True).copy()

    def unpack(value: Any) -> torch.Tensor:
        unpacked.append(value)
        return value if kind == "identity" else torch.from_numpy(value)

    compiled = treadle.compile(product)
    found = []
    for run in (product, compiled, compiled):
        inputs = weights((3, 3), (3, 3))()
        packed.clear()
        unpacked.clear()
        hooks = torch.autograd.graph
        with hooks.save_on_cpu() if kind == "save_on_cpu" else hooks.saved_tensors_hooks(pack, unpack):
            out = run(*inputs)
        found.append(gradients(out, inputs))
        if kind != "save_on_cpu":
            assert 0 < len(packed) == len(unpacked) <= 5
            assert all(type(tensor) is torch.Tensor or tensor is inputs[1] for tensor in packed)  # nothing fake
    assert_same(found[1:], [found[0]] * 2)
    assert_one_graph()


def test_an_exception_of_a_hook_passes_through_and_the_program_runs_once() -> None:
    class Stop(Exception):
        pass

    calls = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor)
        if len(calls) == 2:
            raise Stop
        return tensor

    compiled = treadle.compile(product)
    inputs = weights((3, 3), (3, 3))()
    expected = gradients(compiled(*inputs), inputs)
    for _ in range(2):
        calls.clear()
        with pytest.raises(Stop), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(*inputs)
        assert len(calls) == 2
    inputs = weights((3, 3), (3, 3))()
    assert_same(gradients(compiled(*inputs), inputs), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_checkpoint(use_reentrant: bool, inside: bool) -> None:
    """Around a compiled function, and around a part of one, with the same masks."""

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(x @ w), 0.5) @ w

    def observe(run: Callable[..., torch.Tensor]) -> Any:
        inputs = weights((4, 4), (4, 4))()
        torch.manual_seed(3)
        grads = gradients(run(inputs[0] * 1, inputs[1]), inputs)
        return grads, torch.rand(1)

    def around(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, w: checkpoint(function, x, w, use_reentrant=use_reentrant)

    compiled = treadle.compile(around(block)) if inside else around(treadle.compile(block))
    expected = observe(around(block))
    assert_same([observe(compiled), observe(compiled)], [expected] * 2)


# ---- anomaly mode


@pytest.mark.parametrize("around", ["both", "backward"])
def test_anomaly_mode_names_the_operation_and_the_line(around: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x @ w
        bad = torch.sqrt(h - h - 1)  # the line
        return (bad + h).sum()

    compiled = treadle.compile(f)
    messages, notes = [], []
    for run in (f, compiled, compiled):
        inputs = weights((3, 3), (3, 3))()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError) as error:
                if around == "both":
                    with torch.autograd.detect_anomaly():
                        run(*inputs).backward()
                else:
                    out = run(*inputs)
                    with torch.autograd.detect_anomaly():
                        out.backward()
        messages.append(str(error.value))
        notes.append([str(w.message) for w in caught if "Traceback of forward call" in str(w.message)])
    assert "SqrtBackward0" in messages[0] and messages[1:] == messages[:1] * 2
    if around == "both":
        assert all("# the line" in note or "torch.sqrt(h - h - 1)" in note for found in notes for note in found)
    assert not treadle.stats().eager_graphs


# ---- kinds of tangents, outputs and functions


def test_tangents_in_any_layout() -> None:
    def observe(out: Any, inputs: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        tangents = [torch.ones(1, 1).expand(3, 4), torch.randn(3, 4, generator=generator).t(), torch.ones(()).expand(4)]
        torch.autograd.backward(out, tangents)
        return [x.grad for x in inputs]

    compare(lambda x, w: (x @ w, (x @ w).t(), (x @ w).sum(0)), weights((3, 3), (3, 4)), observe)
    assert_one_graph()


def test_tangents_of_symbolic_size() -> None:
    (w,) = weights((3, 4))()
    compiled = treadle.compile(lambda x: torch.tanh(x @ w).t(), dynamic=True)
    for n in (3, 5, 7):
        x = torch.randn(n, 3)
        for run in (lambda x: torch.tanh(x @ w).t(), compiled):
            w.grad = None
            run(x).backward(torch.ones(1, 1).expand(4, n))
            expected = w.grad if run is not compiled else expected  # noqa: F821
        assert_same(w.grad, expected)
    assert_one_graph()


def test_complex_numbers() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).abs().sum() + torch.fft.rfft(torch.view_as_real(x.conj() * w)[..., 0]).abs().sum()

    compare(f, weights((3, 3), (3, 3), dtype=torch.complex64), lambda out, inputs: gradients(out, inputs))


def test_outputs_that_carry_no_gradient() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
        values, places = (x @ w).max(1)
        return values, places, values > 0, places.float(), x.shape[0], None, "text"

    def observe(out: Any, inputs: Any) -> Any:
        rest = [(t.requires_grad, t.grad_fn is None) for t in out[1:4]]
        return rest, out[4:], gradients(out[0], inputs)

    compare(f, weights((3, 3), (3, 3)), observe)
    assert_one_graph()


def test_sparse_gradients_run_in_eager_with_a_reason() -> None:
    places = torch.tensor([1, 2, 2])

    def observe(out: Any, inputs: Any) -> Any:
        out.sum().backward()
        return inputs[0].grad.is_sparse, inputs[0].grad.to_dense()

    compare(lambda w: F.embedding(places, w, sparse=True), weights((5, 3)), observe)
    assert "sparse" in treadle.stats().eager_graphs[0].reason


class Scaled(torch.autograd.Function):
    """A backward that is not the derivative, a second output without gradients, and arguments that are no tensors."""

    @staticmethod
    def forward(x: torch.Tensor, w: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ w * factor, x > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.factor = inputs[2]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        x, w = ctx.saved_tensors
        return 7 * gradient @ w.t(), 5 * ctx.factor * x.t() @ gradient, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 10 * gradient


def test_functions_with_a_backward_of_their_own() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product, positive = Scaled.apply(torch.tanh(x), w, 3.0)
        h = product * 1
        Doubled.apply(h)
        return torch.sin(h), positive

    compare(f, weights((3, 3), (3, 3)), lambda out, inputs: (gradients(out[0], inputs), out[1]))


def test_forward_mode_tangents_are_not_dropped() -> None:
    from torch.autograd import forward_ad

    compiled = treadle.compile(lambda x: torch.tanh(x) * 2)
    x, tangent = torch.randn(3), torch.randn(3)
    compiled(x)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, tangent))).tangent
    torch.testing.assert_close(found, 2 * (1 - torch.tanh(x) ** 2) * tangent)


def test_gradcheck() -> None:
    f = treadle.compile(lambda x, w: torch.tanh(x @ w))
    inputs = weights((2, 3), (3, 2), dtype=torch.float64)()
    assert torch.autograd.gradcheck(f, inputs) and torch.autograd.gradgradcheck(f, inputs)


def test_lstm() -> None:
    found = []
    for compiler in (lambda m: m, treadle.compile):
        torch.manual_seed(0)
        model = nn.LSTM(4, 5, 2, batch_first=True, dropout=0.3)
        x = torch.randn(3, 6, 4, requires_grad=True)
        out, (h, c) = compiler(model)(x)
        (out.sum() + h.sum() + c.sum()).backward()
        found.append([x.grad, *[p.grad for p in model.parameters()], torch.rand(1)])
    assert_same(found[1], found[0])
    assert_one_graph()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_saved_tensors_come_back_in_other_layouts(layout):
    """Hooks that move activations away (`save_on_cpu`) give them back contiguous."""
    convolution = nn.Conv2d(4, 6, 3, padding=1).to(memory_format=layout)
    start = torch.randn(2, 4, 5, 5).contiguous(memory_format=layout)
    packs = (lambda t: t.contiguous(), lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t)

    def program(x):
        h = F.gelu(convolution(x))
        return (h * h.sigmoid()).sum() + (x.mT * 2).exp().sum()

    run = treadle.compile(program, options={"leave_unprofitable": False})
    for pack in packs:
        found = []
        for call in (program, run):
            x = start.clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                loss = call(x)
            found.append(torch.autograd.grad(loss, [x, convolution.weight]))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
