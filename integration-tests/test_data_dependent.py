"""Programs whose numbers and sizes depend on data, in one graph over all backends, against eager."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from data_dependent_programs import Program, programs
from hypothesis import HealthCheck, given, settings

import treadle
from torchvision_schemas import define_missing_schemas
from treadle_tracer import Unsupported

BACKENDS = ["eager", "aot_eager", "codegen"]


@pytest.fixture(autouse=True)
def _settings():
    treadle.reset()
    with treadle.config.patch(capture_scalars=True, raise_internal_errors=True):
        yield
    treadle.reset()


# ---- random programs

_ROWS = ((4, 3), (4, 3), (4, 3), (4, 3), (5, 2), (7, 3), (1, 4))
_SHIFTS = (0.0, -100.0, 100.0, 0.0, 0.0, 0.0, 0.0)
_NUMBERS = (2, 0, 3, -1, 1, 4, 1)


def _inputs(which: int):
    """Arguments of a program: no row, all rows, some rows chosen by masks; other sizes; numbers that are too small and too large."""
    generator = torch.Generator().manual_seed(which)
    x, y = (torch.randn(rows, 6, generator=generator) + _SHIFTS[which] for rows in _ROWS[which])
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(99))
    return x, y, torch.tensor(_NUMBERS[which]), weight, []


def _outcome(function, which: int):
    """(the type of what is raised, None) or (None, results and arguments afterwards)."""
    arguments = _inputs(which)
    try:
        result = function(*arguments)
    except Exception as error:  # the program's own: its type is compared
        return type(error), None
    return None, (result, arguments)


def _assert_same(got, want):
    assert type(got) is type(want)
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            _assert_same(one, other)
    elif isinstance(want, (torch.Tensor, float)):
        # Up to some thousands of float32 values around 100 are summed.
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3, equal_nan=True)
    else:
        assert got == want


@pytest.mark.parametrize("capture", [None, True])
@pytest.mark.parametrize(("backend", "examples"), [("eager", 15), ("aot_eager", 15), ("codegen", 8)])
def test_random_programs(backend, examples, capture):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def check(program: Program):
        treadle.reset()
        compiled = treadle.compile(program.run, backend=backend, options={"capture_scalars": capture})
        for which in range(len(_ROWS)):
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="treadle: .*a bug of")
                warnings.filterwarnings("ignore", message="treadle: the compiled graph")
                expected, actual = _outcome(program.run, which), _outcome(compiled, which)
            _assert_same(actual, expected)

    check()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_fullgraph_errors_speak_the_users_language(program: Program):
    treadle.reset()
    compiled = treadle.compile(program.run, backend="eager", fullgraph=True)
    try:
        compiled(*_inputs(0))
    except Unsupported as error:
        assert re.search(r"\b[usf]\d+\b", str(error).replace(__file__, "")) is None
        assert "<data dependent program" in str(error)
    except Exception as error:  # the program's own
        expected, _ = _outcome(program.run, 0)
        assert type(error) is expected


# ---- programs that people write


def padded(x, lengths):
    """Rows of different lengths packed, worked on, and unpacked."""
    longest = lengths.max().item()
    mask = torch.arange(x.shape[1])[None] < lengths[:, None]
    packed = torch.nn.functional.gelu(x[mask])
    out = torch.zeros_like(x)
    out[mask] = packed
    return out[:, :longest], packed.shape[0]


def experts(x, scores):
    """Each row goes to its best expert, the results are added up."""
    best = scores.argmax(-1)
    out = torch.zeros_like(x)
    for expert in range(scores.shape[-1]):
        (rows,) = torch.where(best == expert)
        out.index_add_(0, rows, torch.tanh(x[rows] * (expert + 1)) * scores[rows, expert, None])
    return out


def tokens(table, ids, pad):
    """The mean embedding of the tokens that are no padding."""
    kept = ids[ids != pad.item()]
    return torch.nn.functional.embedding(kept, table).mean(0), kept.numel()


def histogram(x):
    values, counts = torch.unique((x * 2).to(torch.int64), return_counts=True)
    return values * counts, torch.bincount((x.abs() * 2).to(torch.int64).flatten())


def spread(x, counts):
    """Frames of a sequence repeated, as text-to-speech models do, cut to chunks of given lengths."""
    long = x.repeat_interleave(counts, dim=0)
    head, tail = torch.split(x, [counts[0].item(), x.shape[0] - counts[0].item()])
    return long * 2, long.shape[0], head.sum(0), tail + 1


def outliers(x, limit):
    """Numbers read from tensors as scalars of operators."""
    scale = x.abs().max().item()
    worst = torch.nonzero(x.abs() > limit.item() * scale)
    return (x / scale).clamp(max=limit.item()), worst, scale, int(worst.shape[0]) * 2


def _x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


WRITTEN = {
    padded: [(_x(3, 5, 4), torch.tensor(n)) for n in ([5, 2, 3], [1, 1, 1], [0, 0, 0], [5, 5, 5])],
    experts: [(_x(6, 4), s) for s in (_x(6, 3), torch.eye(3)[[0] * 6], torch.eye(3)[[0, 1, 1, 1, 1, 1]])],
    tokens: [(_x(9, 4), torch.tensor(ids), torch.tensor(0)) for ids in ([1, 0, 3, 8], [5, 0, 0, 0], [1, 2, 3, 4])],
    histogram: [(_x(5, 3),), (torch.zeros(5, 3),)],
    spread: [(_x(4, 3), torch.tensor(c)) for c in ([1, 2, 0, 3], [4, 0, 0, 0], [0, 1, 0, 0])],
    outliers: [(_x(5, 4), torch.tensor(limit)) for limit in (0.5, 1.0, 0.0)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", WRITTEN, ids=lambda f: f.__name__)
def test_one_graph_for_all_data(function, backend):
    compiled = treadle.compile(function, backend=backend, fullgraph=True)
    for arguments in WRITTEN[function]:
        torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=1e-5, atol=1e-5)
    assert treadle.stats().graphs == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_raises_and_writes_nothing_wrong(backend):
    def narrow(x, t):
        return x.narrow(0, 0, t.item()) * 2

    compiled = treadle.compile(narrow, backend=backend, fullgraph=True)
    x = _x(4, 3)
    torch.testing.assert_close(compiled(x, torch.tensor(2)), narrow(x, torch.tensor(2)))
    with pytest.raises(RuntimeError):
        compiled(x, torch.tensor(9))
    torch.testing.assert_close(compiled(x, torch.tensor(4)), narrow(x, torch.tensor(4)))


def test_without_the_option_the_graph_breaks():
    def picked(x):
        return x[x > 0].sum() + 1

    with treadle.config.patch(capture_scalars=False):
        compiled = treadle.compile(picked, backend="eager")
        torch.testing.assert_close(compiled(_x(5, 3)), picked(_x(5, 3)))
    assert [b.code for b in treadle.stats().breaks] == ["data-dependent"]


def test_the_option_of_one_compile():
    def picked(x):
        return x[x > 0].sum() + 1

    with treadle.config.patch(capture_scalars=False):
        compiled = treadle.compile(picked, backend="aot_eager", options={"capture_scalars": True})
        torch.testing.assert_close(compiled(_x(5, 3)), picked(_x(5, 3)))
    assert not treadle.stats().breaks


# ---- mixtures of experts


@pytest.mark.parametrize("experts_implementation", ["batched_mm", "grouped_mm", "eager"])
def test_mixtral(experts_implementation):
    define_missing_schemas()
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MixtralConfig(vocab_size=32, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, **sizes)
    model = MixtralForCausalLM(config).eval()
    model.set_experts_implementation(experts_implementation)
    compiled = treadle.compile(model, backend="aot_eager")
    graphs = []
    with torch.no_grad():
        for shape in ((2, 7), (3, 9), (2, 7), (4, 5), (2, 12)):
            ids = torch.randint(0, 32, shape)
            got, want = (m(ids, use_cache=False).logits for m in (compiled, model))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            graphs.append(treadle.stats().graphs)
    if experts_implementation == "eager":
        # loops over the experts that are hit: pieces, each compiled twice at most and not once for every turn
        assert graphs[1] <= 26 and graphs[2:] == [graphs[1]] * 3
    else:
        assert graphs[1:] == [2] * 4 and not treadle.stats().breaks


@pytest.mark.parametrize("text", ["x == b", "x != b", "b == x", "x < b", "b >= x", "x + b", "x.bool() & b"])
@pytest.mark.parametrize("flag", ["bool(x.sum() > 1)", "torch.equal(x, x)", "x.sum().item() > 9"])
def test_a_tensor_and_a_truth_value_that_is_known_at_run_time(text, flag):
    """Tensors do not know such a value: `==` gave a bool, as for two objects."""
    scope = {"torch": torch}
    exec(f"def f(x):\n    b = {flag}\n    return {text}", scope)
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])):
        assert torch.equal(treadle.compile(scope["f"])(x), scope["f"](x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_padded_rows_of_which_there_may_be_none(backend):
    """Kernels read neighbours in front of the condition under which they are there, but not where there are none at all."""

    def function(x, mask):
        rows = x[mask] * 2
        return torch.nn.functional.pad(rows * rows, (0, 0, 1, 0)) + 1

    compiled, x = treadle.compile(function, backend=backend), torch.randn(40, 3)
    for count in (20, 0, 40, 1):
        mask = torch.arange(40) < count
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
    assert treadle.stats().graphs == 1 and not treadle.stats().eager_graphs


def test_a_mask_may_select_more_elements_than_its_tensor_has():
    """It is broadcast with the tensor. The number of elements was taken to be at most that of the tensor's own."""

    def function(x, mask):
        selected = torch.masked_select(x, mask)
        return selected * 2 if selected.shape[0] <= 3 else selected * 3

    compiled, x = treadle.compile(function), torch.arange(3.0)
    for rows in (4, 5, 1):
        mask = torch.ones(rows, 3, dtype=torch.bool)
        torch.testing.assert_close(compiled(x, mask), function(x, mask))


def test_nonzero_of_tensors_whose_sizes_are_quotients():
    compiled = treadle.compile(lambda x, rows: (x > 0).view(rows.shape[0], -1).nonzero() + 1, dynamic=True)
    for size, rows in ((12, 3), (20, 4), (30, 5)):
        x, rows = torch.randn(size), torch.empty(rows)
        torch.testing.assert_close(compiled(x, rows), (x > 0).view(rows.shape[0], -1).nonzero() + 1)
    assert treadle.stats().graphs == 1 and not treadle.stats().breaks
