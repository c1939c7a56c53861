"""`flex_attention` in a graph: values, layouts and errors as in eager, all at once and a block of queries at a time."""

import warnings

import pytest
import torch
from compile_runs import compiled

flex = pytest.importorskip("torch.nn.attention.flex_attention")
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from treadle_tracer.values import flex_attention as program  # noqa: E402


@pytest.fixture(autouse=True)
def eager_without_torch_compile(monkeypatch):
    """Eager's own way through torch.compile gives the same, later."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@pytest.fixture(params=["at once", "in blocks"])
def blocks(request, monkeypatch):
    if request.param == "in blocks":
        monkeypatch.setattr(program, "LONG", 1)
        monkeypatch.setattr(program, "ROWS", 16)
        monkeypatch.setattr(program, "ROWS_OF_UNKNOWN", 16)
    return request.param == "in blocks"


SLOPES = torch.rand(4)
BIAS = torch.randn(2, 4, 80, 80)
DOCUMENTS = torch.tensor([0] * 30 + [1] * 10 + [2] * 40)
LENGTHS = torch.tensor([70, 33])


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 20)


def documents(b, h, q, k):
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def lengths(b, h, q, k):
    return k < LENGTHS[b]


def heads(b, h, q, k):
    return (h % 2 == 0) | (q == k)


def nobody_below_ten(b, h, q, k):
    return (q >= 10) & (k > 3)


def relative(score, b, h, q, k):
    return score + (q - k) * 0.01


def slopes(score, b, h, q, k):
    return score + SLOPES[h] * (k - q)


def bias(score, b, h, q, k):
    return score * 2 + BIAS[b, h, q, k]


def capped(score, b, h, q, k):
    return 3 * torch.tanh(score / 3)


def own_mask(score, b, h, q, k):
    return torch.where(q + 5 >= k, score, -float("inf"))


MASKS = [None, causal, window, documents, lengths, heads, nobody_below_ten]
MODIFICATIONS = [None, relative, slopes, bias, capped, own_mask]


def inputs(queries=80, keys=80, heads=4, key_heads=4, dtype=torch.float32):
    query = torch.randn(2, heads, queries, 8, dtype=dtype)
    return query, torch.randn(2, key_heads, keys, 8, dtype=dtype), torch.randn(2, key_heads, keys, 8, dtype=dtype)


def mask_of(function, queries=80, keys=80):
    if function is None:
        return None
    own = (2, 4) if function in (lengths, heads) else (None, None)
    return create_block_mask(function, *own, queries, keys, device="cpu", BLOCK_SIZE=16)


def check(made, expected, tolerance=1e-5):
    for ours, theirs in zip(made, expected, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("modification", MODIFICATIONS)
def test_masks_and_modifications(mask, modification, blocks):
    seen = mask_of(mask)
    fn, recorder = compiled(lambda *args: flex_attention(*args, score_mod=modification, block_mask=seen))
    for _ in range(2):
        args = inputs()
        expected = flex_attention(*args, score_mod=modification, block_mask=seen)
        check([fn(*args)], [expected])
    assert len(recorder.graphs) == 1
    assert not recorder.breaks
    softmaxes = sum("softmax" in str(node.target) for node in recorder.graphs[0].graph.nodes)
    assert softmaxes == (5 if blocks and mask is not None else int(mask is not None or modification is not None))


@pytest.mark.parametrize(("mask", "modification"), [(causal, slopes), (None, relative), (nobody_below_ten, None)])
def test_logarithms_of_sums(mask, modification, blocks):
    seen = mask_of(mask)

    def run(*args):
        return flex_attention(*args, score_mod=modification, block_mask=seen, return_lse=True)

    fn, recorder = compiled(run)
    args = inputs()
    check(fn(*args), run(*args))
    assert len(recorder.graphs) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype, blocks):
    seen = mask_of(causal)

    def run(*args):
        return flex_attention(*args, score_mod=slopes, block_mask=seen)

    args = inputs(dtype=dtype)
    check([compiled(run)[0](*args)], [run(*args)], 1e-5 if dtype is torch.float64 else 1e-2)


def test_heads_that_share_keys(blocks):
    seen = mask_of(causal)

    def run(*args):
        return flex_attention(*args, block_mask=seen, enable_gqa=True)

    args = inputs(key_heads=2)
    check([compiled(run)[0](*args)], [run(*args)])


def test_one_batch_of_keys(blocks):
    seen = mask_of(lengths)
    query, key, value = inputs()

    def run(*args):
        return flex_attention(*args, block_mask=seen)

    args = (query, key[:1], value[:1])
    check([compiled(run)[0](*args)], [run(*args)])


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2)])
def test_the_result_lies_in_memory_as_the_query_does(order, blocks):
    seen = mask_of(window)

    def run(*args):
        return flex_attention(*args, block_mask=seen, scale=0.3)

    back = [order.index(axis) for axis in range(4)]
    args = [t.permute(order).contiguous().permute(back) for t in inputs()]
    check([compiled(run)[0](*args)], [run(*args)])


@pytest.mark.parametrize(("queries", "keys"), [(1, 80), (33, 80), (80, 35), (67, 67)])
def test_lengths(queries, keys, blocks):
    seen = mask_of(causal, queries, keys)

    def run(*args):
        return flex_attention(*args, score_mod=relative, block_mask=seen)

    args = inputs(queries, keys)
    check([compiled(run)[0](*args)], [run(*args)])


def test_lengths_that_change_share_a_graph(blocks):
    def run(query, key, value):
        seen = create_block_mask(causal, None, None, query.shape[2], key.shape[2], device="cpu", BLOCK_SIZE=16)
        return flex_attention(query, key, value, score_mod=slopes, block_mask=seen)

    fn, recorder = compiled(run)
    for length in (72, 80, 67, 70, 90):
        args = inputs(length, length)
        check([fn(*args)], [run(*args)])
    assert len(recorder.graphs) == 2


def test_the_mask_is_what_its_function_tells():
    """Eager does not read the tables: here they tell of no key at all."""
    seen = mask_of(causal)
    seen.kv_num_blocks.zero_()
    if seen.full_kv_num_blocks is not None:
        seen.full_kv_num_blocks.zero_()

    def run(*args):
        return flex_attention(*args, block_mask=seen)

    args = inputs()
    check([compiled(run)[0](*args)], [run(*args)])


def test_captured_tensors_are_inputs():
    scale = torch.ones(())

    def run(*args):
        return flex_attention(*args, score_mod=lambda score, b, h, q, k: score * scale)

    fn, recorder = compiled(run)
    args = inputs()
    check([fn(*args)], [run(*args)])
    scale.mul_(3)
    check([fn(*args)], [run(*args)])
    assert len(recorder.graphs) == 1


def test_a_modification_by_a_parameter():
    table = torch.nn.Parameter(torch.randn(4, 200))

    def run(*args):
        return flex_attention(*args, score_mod=lambda score, b, h, q, k: score + table[h, q - k + 100])

    fn, recorder = compiled(run)
    args = inputs()
    check([fn(*args)], [run(*args)])
    assert len(recorder.graphs) == 1 and not recorder.breaks


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda q, k, v: flex_attention(q, k[..., :4], v), ValueError),
        (lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]), ValueError),
        (lambda q, k, v: flex_attention(q[0], k[0], v[0]), NotImplementedError),
        (lambda q, k, v: flex_attention(q, k, v, block_mask=mask_of(causal, 64, 64)), ValueError),
        (lambda q, k, v: flex_attention(q.clone().requires_grad_(), k, v), NotImplementedError),
    ],
)
def test_errors_are_those_of_eager(call, error):
    args = inputs()
    with pytest.raises(error) as expected:
        call(*args)
    with pytest.raises(error) as raised:
        compiled(call)[0](*args)
    assert str(raised.value) == str(expected.value)


def test_a_function_that_reads_a_value_is_left_to_eager():
    def odd(score, b, h, q, k):
        return score if SLOPES[0].item() > 2 else score + 1

    def run(*args):
        return flex_attention(*args, score_mod=odd)

    args = inputs()
    check([compiled(run)[0](*args)], [run(*args)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast(dtype, blocks):
    seen = mask_of(causal)

    def run(*args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex_attention(*args, score_mod=relative, block_mask=seen)

    args = inputs(dtype=dtype)
    check([compiled(run)[0](*args)], [run(*args)], 1e-2)


def test_gradients_of_captured_tensors(monkeypatch):
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)  # eager knows them on this way only

    def run(weights, *args):
        out = flex_attention(*args, score_mod=lambda score, b, h, q, k: score * weights[h], block_mask=seen)
        return out.square().sum()

    seen, args = mask_of(causal), inputs()
    found = []
    with torch.enable_grad():
        for function in (run, compiled(run)[0]):
            weights = torch.arange(4.0).requires_grad_()
            function(weights, *args).backward()
            found.append(weights.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_one_key_and_many_queries(monkeypatch):
    monkeypatch.setattr(program, "LONG", 1)
    monkeypatch.setattr(program, "ROWS", 8)
    seen = mask_of(causal, 80, 1)
    args = inputs(80, 1)
    check(
        [compiled(lambda *args: flex_attention(*args, block_mask=seen))[0](*args)],
        [flex_attention(*args, block_mask=seen)],
    )


def test_a_mask_that_the_function_writes_first(blocks):
    def run(*args):
        mask = torch.zeros(80, 80, dtype=torch.bool)
        mask[:, 60:] = True
        seen = create_block_mask(lambda b, h, q, k: mask[q, k], None, None, 80, 80, device="cpu", BLOCK_SIZE=16)
        return flex_attention(*args, block_mask=seen)

    args = inputs()
    check([compiled(run)[0](*args)], [run(*args)])


def test_inside_of_a_transform(blocks):
    seen = mask_of(causal)
    args = [torch.stack([t, t + 1]) for t in inputs()]

    def run(*args):
        return torch.vmap(lambda *each: flex_attention(*each, block_mask=seen))(*args)

    try:
        expected = run(*args)
    except Exception as error:
        with pytest.raises(type(error)):
            compiled(run)[0](*args)
    else:
        torch.testing.assert_close(compiled(run)[0](*args), expected, rtol=1e-5, atol=1e-5)
