"""Records hold for what PyTorch does: every ATen call of the operator samples is checked as it runs.

A few samples of every operator of the installed torch's op_db run under a dispatch mode that sees the ATen overloads they come down to.
Each call is compared with the record of its overload. Where the two differ by intent, `EXCEPTIONS` says why.
"""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict

import pytest

torch = pytest.importorskip("torch")
from op_samples_shapes import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from treadle_shapes.torch import ElementUse, Kind, Raises, checked_state, operator  # noqa: E402

aten = torch.ops.aten
DTYPES = (torch.float32, torch.int64, torch.complex64)
SAMPLES = 3
CALLS = 3  # of each overload that are checked

# (overload, check) -> why the record says otherwise
EXCEPTIONS = {
    ("aten._unsafe_view.default", "aliases"): "only decompositions call it, which know that it is a view",
    ("aten.native_batch_norm.default", "writes"): "writes in training mode only, and only statistics that are given",
    ("aten._batch_norm_with_update.default", "writes"): "writes only statistics that are given",
}


def tensors_of(value):
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def is_plain(t):
    return t.layout is torch.strided and not t.is_quantized


def storage(t):
    return t.untyped_storage()._cdata


def bits(t):
    return t.detach().clone() if is_plain(t) else None


def is_same(a, b):
    return a is None or torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())


def arguments_of(func, args, kwargs):
    """(name, value) of the arguments of a call."""
    given = [(a.name, value) for a, value in zip(func._schema.arguments, args, strict=False)]
    return [*given, *kwargs.items()]


class Checker(TorchDispatchMode):
    """Runs every call and notes where it does not do what the record says: `wrong` is overload, check -> detail."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else torch wraps __torch_dispatch__ in something that imports torch._dynamo

    def __init__(self):
        super().__init__()
        self.wrong = {}
        self.seen = defaultdict(int)
        self.drawn = set()  # overloads that have drawn random numbers
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.seen[func] >= CALLS or func.namespace != "aten":
            return func(*args, **kwargs)
        named = arguments_of(func, args, kwargs)
        given = {name: tensors_of(value) for name, value in named}
        before = {name: [(bits(t), t._version) for t in found] for name, found in given.items()}
        random = torch.get_rng_state()
        result = func(*args, **kwargs)
        self.seen[func] += 1
        self.calls.setdefault(func, (args, kwargs))
        record = operator(func)
        if record is None:
            self.note(func, "record", "there is none")
            return result
        if not torch.equal(random, torch.get_rng_state()):
            self.drawn.add(func)
        self.check_writes(func, record, given, before)
        self.check_aliases(func, record, given, result)
        self.check_layout(func, record, args, kwargs, result)
        return result

    def note(self, func, check, detail):
        if (str(func), check) not in EXCEPTIONS:
            self.wrong.setdefault((str(func), check), detail)

    def check_writes(self, func, record, given, before):
        for name, found in given.items():
            for t, (old, version) in zip(found, before[name], strict=True):
                changed = t._version != version or (old is not None and not is_same(old, t))
                if changed and name not in record.writes:
                    self.note(func, "writes", f"it writes to {name}, the record names {record.writes}")

    def check_aliases(self, func, record, given, result):
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        is_list = len(func._schema.returns) == 1 and isinstance(result, (tuple, list))
        for index, value in enumerate(results):
            for t in filter(is_plain, tensors_of(value)):
                shared = {
                    name for name, found in given.items() for a in found if is_plain(a) and storage(a) == storage(t)
                }
                stated = {name for i, name in record.aliases if i == (0 if is_list else index)}
                if t.untyped_storage().nbytes() and shared - stated - set(record.writes):
                    self.note(func, "aliases", f"result {index} shares memory with {shared}, the record says {stated}")
                if record.is_view and func is not aten.reshape.default and t.numel() and not shared:
                    self.note(func, "is_view", f"result {index} is no view")
                given_itself = any(a is t for found in given.values() for a in found)
                if given_itself and not (record.may_return_argument or record.writes):
                    self.note(func, "may_return_argument", f"result {index} is an argument")

    def check_layout(self, func, record, args, kwargs, result):
        first = args[0] if args else None
        if record.is_query and tensors_of(result):
            self.note(func, "is_query", "it makes a tensor")
        if record.like_first_argument and isinstance(first, torch.Tensor) and kwargs.get("memory_format") is None:
            is_dense = torch.ops.aten.is_non_overlapping_and_dense(first)
            for t in tensors_of(result):
                if is_dense and t.shape == first.shape and t.stride() != first.stride():
                    self.note(func, "like_first_argument", f"strides {t.stride()}, the argument has {first.stride()}")


@pytest.fixture(scope="module")
def checked():
    """A Checker that has seen all samples."""
    checker = Checker()
    for op in op_db():
        dtype = next((dtype for dtype in DTYPES if dtype in op.dtypes), None)
        if dtype is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
                try:
                    with torch.no_grad(), checker:
                        op(sample.input, *sample.args, **sample.kwargs)
                except (RuntimeError, TypeError, ValueError, ImportError, AssertionError):
                    pass  # not meant to run on this machine
    return checker


def test_the_samples_reach_the_operators(checked):
    assert len(checked.seen) > 400


def test_calls_do_what_their_records_say(checked):
    lines = [f"{op}, {check}: {detail}" for (op, check), detail in sorted(checked.wrong.items())]
    assert not lines, "\n".join(lines)


def test_every_exception_is_of_an_operator_that_is_reached(checked):
    reached = {str(op) for op in checked.seen}
    assert {op for op, _ in EXCEPTIONS} <= reached


def test_every_operator_reached_has_a_kind(checked):
    """`item` reads an element: a number is its result."""
    without = {str(op) for op in checked.seen if op.namespace == "aten" and operator(op).kind is Kind.OTHER}
    assert without <= {"aten._local_scalar_dense.default", "aten.item.default"}


def test_operators_that_draw_are_random(checked):
    """Those with a probability of 0 or 1 draw nothing, so the other direction is checked by the tag."""
    wrong = [str(op) for op in checked.drawn if not operator(op).is_random]
    assert not wrong


def test_operators_with_sizes_that_depend_on_elements_are_tagged(checked):
    """A fake kernel gives other operators a result without looking at elements."""
    for op in (aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.bincount.default):
        assert op in checked.seen and operator(op).has_data_dependent_size


# -- what becomes of elements ------------------------------------------------------------------------------------------


def run_again(op, args, kwargs, first):
    """The call with another first argument."""
    return op(first, *args[1:], **kwargs)


def with_elements(x):
    """A float tensor like `x` whose elements are all different, from 1 on, in the order of its indices."""
    return (torch.arange(x.numel(), dtype=x.dtype) + 1).reshape(x.shape)


def candidates(checked, use):
    for op, (args, kwargs) in checked.calls.items():
        record = operator(op)
        if record is None or record.element_use is not use or record.writes or not args:
            continue
        if isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float32 and args[0].numel():
            yield op, args, kwargs


def test_kept_elements_reappear(checked):
    count = 0
    for op, args, kwargs in candidates(checked, ElementUse.KEPT):
        x = with_elements(args[0])
        found = {v for t in tensors_of(run_again(op, args, kwargs, x)) for v in t.to(torch.float64).flatten().tolist()}
        assert set(x.flatten().tolist()) == found, str(op)
        count += 1
    assert count >= 8


def test_ignored_elements_do_not_matter(checked):
    count = 0
    for op, args, kwargs in candidates(checked, ElementUse.IGNORED):
        if operator(op).is_random or op in (aten.empty_like.default,):
            continue
        one, other = (run_again(op, args, kwargs, torch.full_like(args[0], value)) for value in (1.0, float("nan")))
        assert torch.equal(one, other), str(op)
        count += 1
    assert count >= 2


def test_read_elements_all_matter(checked):
    """NaN at any place of the first argument shows in a result."""
    count = 0
    for op, args, kwargs in candidates(checked, ElementUse.READ):
        x = torch.rand_like(args[0]) + 0.5
        for place in range(min(x.numel(), 12)):
            poisoned = x.clone()
            poisoned.view(-1)[place] = float("nan")
            results = tensors_of(run_again(op, args, kwargs, poisoned))
            assert any(t.isnan().any() for t in results), f"{op} at {place}"
        count += 1
    assert count >= 8


def test_views_that_reinterpret_keep_the_order(checked):
    for op, (args, kwargs) in checked.calls.items():
        if operator(op).reinterprets and args[0].dtype is torch.float32:
            x = with_elements(args[0])
            assert torch.equal(run_again(op, args, kwargs, x).flatten(), x.flatten()), str(op)


# -- raising -----------------------------------------------------------------------------------------------------------

x = torch.ones(3, 3)
far = torch.full((3, 3), 99)
row = torch.tensor([99, 0, 0])
singular = torch.zeros(3, 3)
nan = torch.full((3, 3), float("nan"))
RAISING = {
    "index": lambda: aten.index.Tensor(x, [row]),
    "index_select": lambda: aten.index_select(x, 0, row),
    "gather": lambda: aten.gather(x, 0, far),
    "scatter": lambda: aten.scatter.src(x, 0, far, x),
    "scatter_add": lambda: aten.scatter_add(x, 0, far, x),
    "scatter_reduce": lambda: aten.scatter_reduce(x, 0, far, x, "sum"),
    "index_put": lambda: aten.index_put(x, [row], torch.ones(3, 3)),
    "index_add": lambda: aten.index_add(x, 0, row, x),
    "index_copy": lambda: aten.index_copy(x, 0, row, x),
    "index_fill": lambda: aten.index_fill.int_Scalar(x, 0, row, 1.0),
    "index_reduce": lambda: aten.index_reduce(x, 0, row, x, "amax"),
    "take": lambda: aten.take(x, row),
    "put": lambda: aten.put(x, row, torch.ones(3)),
    "embedding": lambda: aten.embedding(x, row),
    "_embedding_bag": lambda: aten._embedding_bag(x, row, torch.tensor([0])),
    "_embedding_bag_forward_only": lambda: aten._embedding_bag_forward_only(x, row, torch.tensor([0])),
    "embedding_bag": lambda: torch.embedding_bag(x, row, torch.tensor([0])),
    "take_along_dim": lambda: torch.take_along_dim(x, far),
    "one_hot": lambda: torch.nn.functional.one_hot(row, 3),
    "max_unpool2d": lambda: aten.max_unpool2d(torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 99), [4, 4]),
    "max_unpool3d": lambda: aten.max_unpool3d(
        torch.ones(1, 1, 2, 2, 2), torch.full((1, 1, 2, 2, 2), 999), [4, 4, 4], [2, 2, 2], [0, 0, 0]
    ),
    "masked_scatter": lambda: aten.masked_scatter(x, x > 0, torch.ones(2)),
    "repeat_interleave": lambda: aten.repeat_interleave.Tensor(torch.tensor([-1, 2])),
    "segment_reduce": lambda: aten.segment_reduce(torch.ones(3), "sum", lengths=torch.tensor([-1, 4])),
    "nll_loss_forward": lambda: aten.nll_loss_forward(x, row, None, 1, -100),
    "nll_loss2d_forward": lambda: aten.nll_loss2d_forward(
        torch.ones(1, 3, 2, 2), torch.full((1, 2, 2), 99), None, 1, -100
    ),
    "nll_loss": lambda: aten.nll_loss(x, row),
    "nll_loss2d": lambda: aten.nll_loss2d(torch.ones(1, 3, 2, 2), torch.full((1, 2, 2), 99)),
    "nll_loss_nd": lambda: aten.nll_loss_nd(x, row),
    "cross_entropy": lambda: torch.nn.functional.cross_entropy(x, row),
    "cross_entropy_loss": lambda: aten.cross_entropy_loss(x, row),
    "ctc_loss": lambda: torch.ctc_loss(
        torch.ones(4, 1, 3), torch.ones(1, 2, dtype=torch.long), torch.tensor([9]), torch.tensor([2])
    ),
    "multilabel_margin_loss": lambda: aten.multilabel_margin_loss(x, far),
    "multi_margin_loss": lambda: aten.multi_margin_loss(x, row),
    "multilabel_margin_loss_forward": lambda: aten.multilabel_margin_loss_forward(x, far, 1),
    "_ctc_loss": lambda: aten._ctc_loss(
        torch.ones(4, 1, 3), torch.ones(1, 2, dtype=torch.long), torch.tensor([9]), torch.tensor([2])
    ),
    "binary_cross_entropy": lambda: aten.binary_cross_entropy(x + 1, x),
    "cholesky": lambda: aten.cholesky(-torch.eye(3)),
    "_linalg_eigh": lambda: torch.linalg.eigh(nan),
    "_linalg_svd": lambda: torch.linalg.svd(nan),
    "linalg_cholesky_ex": lambda: torch.linalg.cholesky(-torch.eye(3)),
    "linalg_inv_ex": lambda: torch.linalg.inv(singular),
    "linalg_lu_factor_ex": lambda: torch.linalg.lu_factor(singular),
    "linalg_ldl_factor_ex": lambda: torch.linalg.ldl_factor(singular),
    "_linalg_solve_ex": lambda: torch.linalg.solve(singular, x),
    "inverse": lambda: torch.inverse(singular),
    "linalg_inv": lambda: torch.linalg.inv(singular),
    "linalg_cholesky": lambda: torch.linalg.cholesky(-torch.eye(3)),
    "linalg_lu_factor": lambda: torch.linalg.lu_factor(singular),
    "linalg_ldl_factor": lambda: torch.linalg.ldl_factor(singular),
    "linalg_solve": lambda: torch.linalg.solve(singular, x),
    "linalg_solve_ex": lambda: torch.linalg.solve_ex(singular, x, check_errors=True),
    "linalg_tensorinv": lambda: torch.linalg.tensorinv(singular, ind=1),
    "linalg_tensorsolve": lambda: torch.linalg.tensorsolve(singular, row),
    "linalg_matrix_power": lambda: torch.linalg.matrix_power(singular, -1),
    "matrix_power": lambda: torch.matrix_power(singular, -1),
    "linalg_eigh": lambda: torch.linalg.eigh(nan),
    "linalg_eigvalsh": lambda: torch.linalg.eigvalsh(nan),
    "linalg_svd": lambda: torch.linalg.svd(nan),
    "linalg_svdvals": lambda: torch.linalg.svdvals(nan),
    "svd": lambda: torch.svd(nan),
    "pinverse": lambda: torch.pinverse(nan),
    "linalg_pinv": lambda: torch.linalg.pinv(nan),
    "linalg_matrix_rank": lambda: torch.linalg.matrix_rank(nan),
    "linalg_cond": lambda: torch.linalg.cond(nan),
    "linalg_norm": lambda: torch.linalg.norm(nan, 2),
    "linalg_matrix_norm": lambda: torch.linalg.matrix_norm(nan, "nuc"),
    "nuclear_norm": lambda: aten.nuclear_norm(nan),
    "linalg_eig": lambda: torch.linalg.eig(nan),
    "bincount": lambda: aten.bincount(torch.tensor([-1])),
    "histc": lambda: aten.histc(nan),
    "histogram": lambda: aten.histogram.bin_ct(nan, 3),
    "_histogramdd_bin_edges": lambda: aten._histogramdd_bin_edges(nan, [2, 2, 2]),
    "_histogramdd_from_bin_cts": lambda: aten._histogramdd_from_bin_cts(nan, [2, 2, 2]),
    "quantile": lambda: aten.quantile(x, torch.tensor(1.5)),
    "nanquantile": lambda: aten.nanquantile(x, torch.tensor(1.5)),
    "fake_quantize_per_channel_affine_cachemask": lambda: aten.fake_quantize_per_channel_affine_cachemask(
        x, torch.ones(3), torch.full((3,), 999, dtype=torch.int32), 0, 0, 255
    ),
    "_pack_padded_sequence": lambda: aten._pack_padded_sequence(x, torch.tensor([0, 0, 0]), False),
    "sparse_coo_tensor": lambda: torch.sparse_coo_tensor(
        torch.tensor([[9]]), torch.ones(1), (3,), check_invariants=True
    ),
    "sparse_compressed_tensor": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 9]), torch.tensor([0]), torch.ones(1), (1, 3), check_invariants=True
    ),
}
RAISING["checked_state"] = lambda: checked_state()(torch.zeros(5056, dtype=torch.uint8), torch.device("cpu"))
# Raise for values that are hard to come by.
UNTRIED = {
    "cholesky_inverse": "for a factor that is singular, in some versions of LAPACK",
    "linalg_eigvals": "where an iteration does not converge; NaN may crash LAPACK",
    "_linalg_eigvals": "where an iteration does not converge; NaN may crash LAPACK",
    "linalg_lstsq": "where an iteration does not converge",
}


def test_every_operator_that_raises_by_value_is_tried():
    from treadle_shapes.torch import families_with
    from treadle_shapes.torch.operators.declare import DECLARED

    stated = {f for f in families_with("raises") if DECLARED[f].facts["raises"] is Raises.BY_VALUE}
    assert stated == RAISING.keys() | UNTRIED.keys()


@pytest.mark.parametrize("family", RAISING)
def test_operators_raise_by_value(family):
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        RAISING[family]()


@pytest.mark.parametrize("family", ["div", "floor_divide", "remainder", "fmod"])
def test_operators_raise_by_zero_divisor(family):
    ones, zeros = torch.ones(3, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    function = getattr(torch, family)
    options = {"rounding_mode": "floor"} if family == "div" else {}
    assert operator(function).raises is Raises.BY_ZERO_DIVISOR
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        function(ones, zeros, **options)


def test_other_pointwise_operators_and_reductions_raise_for_no_values(checked):
    """NaN, infinity, zero and negative numbers everywhere: what may be left out when unused may not raise."""
    for op, (args, kwargs) in checked.calls.items():
        record = operator(op)
        if record.raises is not Raises.NEVER or record.writes or record.is_random:
            continue
        if not (record.is_pointwise or record.kind in (Kind.REDUCTION, Kind.SCAN, Kind.POOLING, Kind.MATMUL)):
            continue
        for value in (float("nan"), float("inf"), 0.0, -1e30):
            poisoned = pytree.tree_map(
                lambda t, value=value: (
                    torch.full_like(t, value) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
                ),
                (args, kwargs),
            )
            op(*poisoned[0], **poisoned[1])


# -- numbers and nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "name", "call"),
    [
        ("fill.Scalar", "value", lambda v, x: aten.fill.Scalar(x, v)),
        ("full_like.default", "fill_value", lambda v, x: aten.full_like(x, v)),
        ("full.default", "fill_value", lambda v, x: aten.full([2], v, dtype=x.dtype)),
        ("new_full.default", "fill_value", lambda v, x: aten.new_full(x, [2], v)),
        ("masked_fill.Scalar", "value", lambda v, x: aten.masked_fill.Scalar(x, x > 0, v)),
        ("constant_pad_nd.default", "value", lambda v, x: aten.constant_pad_nd(x, [1, 1], v)),
        ("clamp.default", "min", lambda v, x: aten.clamp(x, v)),
        ("clamp_max.default", "max", lambda v, x: aten.clamp_max(x, v)),
        ("threshold.default", "value", lambda v, x: aten.threshold(x, 1, v)),
        ("add.Tensor", "alpha", lambda v, x: aten.add.Tensor(x, x, alpha=v)),
        ("leaky_relu.default", "negative_slope", lambda v, x: aten.leaky_relu(x, v)),
        ("addcmul.default", "value", lambda v, x: aten.addcmul(x, x, x, value=v)),
        ("celu.default", "alpha", lambda v, x: aten.celu(x, v)),
    ],
)
def test_numbers_that_a_dtype_cannot_hold_are_refused(op, name, call):
    packet, overload = op.split(".")
    record = operator(getattr(getattr(aten, packet), overload))
    assert name in (*record.held_by_result, *record.held_by_compute)
    call(2.0, torch.ones(3))
    with pytest.raises(RuntimeError, match="overflow"):
        call(1e300, torch.ones(3))


def test_torch_tensor_rounds():
    assert operator(torch.tensor).rounds_numbers and torch.tensor(1e300).isinf()


EMPTY = {
    "max": (torch.max, {}), "min": (torch.min, {}), "median": (torch.median, {}), "argmax": (torch.argmax, {}),
    "argmin": (torch.argmin, {}), "amax": (torch.amax, {}), "amin": (torch.amin, {}),
    "kthvalue": (torch.kthvalue, {"k": 1}), "mode": (torch.mode, {}),
}  # fmt: skip


def test_every_family_that_refuses_nothing_is_tried():
    from treadle_shapes.torch import families_with

    assert EMPTY.keys() == families_with("no_empty_over")


@pytest.mark.parametrize("family", EMPTY)
def test_reductions_refuse_nothing(family):
    function, kwargs = EMPTY[family]
    for overload in getattr(aten, family).overloads():
        dim = operator(getattr(getattr(aten, family), overload)).no_empty_over
        if dim is not None and overload in ("default", "dim"):
            with pytest.raises((RuntimeError, IndexError)):
                function(torch.empty(0, 3), **kwargs, **({"dim": 0} if dim else {}))


# -- linearity ---------------------------------------------------------------------------------------------------------


def replaced(op, args, kwargs, values):
    """The call with other values for the arguments that `values` names; of a list of tensors, for each."""
    named = dict(arguments_of(op, args, kwargs)) | values
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only and a.name in named]
    return op(*[named[name] for name in positional], **{k: v for k, v in named.items() if k not in positional})


def drawn_like(value, draw):
    return pytree.tree_map_only(torch.Tensor, lambda t: draw(t.shape, dtype=t.dtype), value)


def groups_of_tensors(op, args, kwargs):
    """The groups of `linear_in` of which the call has float tensors only, with these."""
    named = dict(arguments_of(op, args, kwargs))
    for group in operator(op).linear_in:
        given = {name: named[name] for name in group if named.get(name) is not None}
        leaves = pytree.tree_leaves(given)
        if leaves and all(isinstance(t, torch.Tensor) and t.dtype is torch.float32 and is_plain(t) for t in leaves):
            yield group, given


def test_operators_are_linear_in_what_their_records_say(checked):
    """f(a + b) = f(a) + f(b), for random numbers in the place of all tensors of a group."""
    count, torch_state = 0, torch.get_rng_state()
    torch.manual_seed(0)
    for op, (args, kwargs) in checked.calls.items():
        record = operator(op)
        if record is None or record.writes or not record.linear_in:
            continue
        for group, given in groups_of_tensors(op, args, kwargs):
            one, other = drawn_like(given, torch.randn), drawn_like(given, torch.randn)
            both = pytree.tree_map(torch.add, one, other)
            of_one, of_other, of_both = (
                tensors_of(replaced(op, args, kwargs, values)) for values in (one, other, both)
            )
            for a, b, c in zip(of_one, of_other, of_both, strict=True):
                if not c.is_floating_point():
                    continue
                assert torch.allclose(a + b, c, rtol=1e-3, atol=1e-4, equal_nan=True), f"{op} in {group}"
            count += 1
    torch.set_rng_state(torch_state)
    assert count >= 30


def test_results_are_filled_with_what_their_records_say(checked):
    count = 0
    for op, (args, kwargs) in checked.calls.items():
        filled_with = None if (record := operator(op)) is None or record.writes else record.filled_with
        if filled_with is not None:
            given = dict(arguments_of(op, args, kwargs))
            number = given[filled_with] if isinstance(filled_with, str) else filled_with
            result = op(*args, **kwargs)
            assert torch.equal(result, torch.full_like(result, number)), str(op)
            count += 1
    assert count >= 6
