"""Every change to PyTorch's inside: it is needed, it fits PyTorch's side, and it acts for Treadle alone.

A test that fails here says by the name of the patch what a new release of PyTorch changed.
"""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses import fake_impls  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes.torch import (  # noqa: E402
    fake_like,
    fake_mode,
    fake_shape_env,
    fake_tensor,
    patches,
    preserved,
    preserved_operators,
)
from treadle_shapes.torch.fake_tensors import TreadleFakeMode  # noqa: E402

aten = torch.ops.aten
needed = pytest.mark.skipif(torch.__version__ >= "2.13", reason="no longer asked from torch 2.13 on")
SIGNATURES = {
    "symbolic numbers in the fake tensor cache": ["node"],
    "layout questions": ["shape", "strides"],
    "layouts in the fake tensor cache": ["t"],
    "batch norm over one value per channel": (
        "input weight bias running_mean running_var training momentum eps functional".split()
    ),
    "dropout between recurrent layers": (
        "input hidden params has_biases num_layers dropout train bidirectional batch_first layer_fn".split()
    ),
    "rounding of pooled extents": ["x", "y"],
    "quotients of decided sizes and floats": ["self", "other"],
    "batches of gradients": "func in_dims out_dims allow_none_pass_through".split(),
}


def without_treadle(program):
    """What `program` prints in a process of its own, in which nothing of Treadle is."""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("patch", patches.PATCHES, ids=lambda patch: patch.name)
def test_what_it_changes_is_there(patch):
    owner, _, name = patch.changes.rpartition(".")
    program = f"import torch, torch._meta_registrations, torch._subclasses._fake_tensor_utils, inspect\nfound = {patch.changes}\n"
    if patch.name in SIGNATURES:
        program += "print(*inspect.signature(found).parameters)"
        assert without_treadle(program).split() == SIGNATURES[patch.name], f"{patch.name}: {patch.changes} has changed"
    elif owner != "torch._ops.OpOverload":
        without_treadle(program)


def test_nothing_is_changed_by_an_import():
    program = """
import torch, torch._meta_registrations, torch._subclasses._fake_tensor_utils
from torch._subclasses import fake_impls
def seen():
    return (torch._subclasses._fake_tensor_utils._DeconstructedSymNode.from_node,
        torch._prims_common.are_strides_like_channels_last_or_false, torch._decomp.decompositions.native_batch_norm_helper,
        torch._decomp.decompositions._rnn_helper,
        torch._meta_registrations.div_rtn, torch._subclasses.fake_tensor.extract_tensor_metadata,
        dict(torch._decomp.decomposition_table), "_dynamo" in vars(torch),
        dict(fake_impls.op_implementations_dict), list(fake_impls.op_implementations_checks), dict(fake_impls.get_fast_op_impls()))
before = seen()
import treadle_shapes.torch
print(before == seen())
treadle_shapes.torch.fake_mode()
print(before[8:] == seen()[8:], before == seen())
"""
    assert without_treadle(program).split() == ["True", "True", "False"]


def test_batches_of_gradients_at_symbolic_sizes():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.randn(4, 6), [env.create_symbol(4, "n"), None]).requires_grad_()
    with mode:
        unused = torch.ones(2, requires_grad=True)
        y = x.sin()
        basis = torch.ones_like(y).unsqueeze(0).expand(3, -1, -1)
        found, missing = torch.autograd.grad(y, (x, unused), basis, is_grads_batched=True, allow_unused=True)
    assert found.shape == (3, *x.shape) and found.stride() == (6 * x.shape[0], 6, 1) and missing is None
    assert not env.guards


def test_symbolic_numbers_in_the_fake_tensor_cache():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.randn(4, 6), [env.create_symbol(4, "n"), None])
    with mode:
        first, second = torch.relu(x), torch.relu(x)
    assert mode.shape_env.fake_tensor_cache  # type: ignore[union-attr]
    assert second.shape[0].node is first.shape[0].node is x.shape[0].node


def test_layout_questions_record_no_guard():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    n = env.create_symbol(4, "n")
    x = fake_tensor(mode, torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last), [n, None, None, None])
    with mode:
        torch.relu(x)
    assert not env.guards
    assert torch._prims_common.are_strides_like_channels_last_or_false((2, 3, 4, 4), (48, 1, 12, 3))


def test_layouts_in_the_fake_tensor_cache_are_no_answers():
    """A kernel that asks for a layout learns what has been stated since the cache has asked."""
    env = ShapeEnv()
    shape_env = fake_shape_env(env, allow_scalar_outputs=True)
    mode = fake_mode(shape_env=shape_env)
    with mode:
        rows = torch.randn(3, 4)
        batch, height = torch.ones(2, dtype=torch.int64)
        sizes = batch.item(), height.item()
        for size in sizes:
            torch._check(size >= 0)
        images = rows.new_zeros(sizes[0], sizes[1], 4, 3).permute(0, 3, 1, 2)
        assert torch.relu(images).shape[2] == sizes[1]
        for size in sizes:
            torch._check(size >= 1)
        larger = aten.upsample_bilinear2d(images, [8, 8], False)
    assert larger.stride()[1:] == (1, 24, 3)


def test_batch_norm_over_one_value_per_channel_raises_without_the_patch():
    norm = "torch.batch_norm(torch.ones(1, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5, False)"
    program = f"""
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    try:
        {norm}
    except ZeroDivisionError:
        print("raises")
"""
    assert without_treadle(program) == "raises", "the patch is no longer needed"
    with fake_mode():
        assert eval(norm).shape == (1, 3)
    with FakeTensorMode(), pytest.raises(ZeroDivisionError):
        eval(norm)


@needed
def test_rounding_of_pooled_extents_asks_pytorchs_numbers():
    assert "x // y" not in inspect.getsource(torch._meta_registrations.div_rtn)


def test_the_stand_in_steps_aside():
    program = """
import sys, torch
from treadle_shapes.torch import fake_mode
fake_mode()
assert "torch._dynamo" not in sys.modules
import torch._dynamo
print(type(torch._dynamo).__name__, torch._dynamo.is_compiling())
"""
    assert without_treadle(program).split() == ["module", "False"]


# -- preserved operators -----------------------------------------------------------------------------------------------


def python_kernels():
    return {op: dict(op.py_kernels) for op in preserved.kernels()}


def test_preserved_operators_are_taken_apart_without_it():
    before = python_kernels()
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    assert any(key in found for found in before.values()), "PyTorch takes none of them apart any longer"
    with preserved_operators():
        assert not any(key in op.py_kernels for op, kernel in preserved.kernels().items() if kernel is None)
        with preserved_operators():
            pass
        assert aten.upsample_nearest2d.vec.py_kernels[key] is preserved.kernels()[aten.upsample_nearest2d.vec]
    assert python_kernels() == before


# -- the mode of our own -----------------------------------------------------------------------------------------------


def test_pytorchs_tables_hold_none_of_our_kernels():
    fake_mode(shape_env=fake_shape_env(ShapeEnv()))
    for table in (fake_impls.op_implementations_dict, fake_impls.get_fast_op_impls()):
        assert not [op for op, kernel in table.items() if kernel.__module__.startswith("treadle")]
    assert not [pair for pair in fake_impls.op_implementations_checks if pair[1].__module__.startswith("treadle")]


def test_results_of_our_kernels_are_cached_apart():
    """The view of a transposed (1, 8, 30): eager's strides in our mode, PyTorch's in PyTorch's, whichever comes first."""

    def strides(mode):
        with mode:
            x = torch.empty_strided((1, 1, 2, 4), (8, 4, 4, 1)).view(1, 1, 8)
        return x.stride()

    theirs, ours = strides(FakeTensorMode()), strides(fake_mode())
    assert ours == torch.empty_strided((1, 1, 2, 4), (8, 4, 4, 1)).view(1, 1, 8).stride()
    assert theirs != ours, "PyTorch's fake views have eager's strides: the correction is no longer needed"
    assert (strides(FakeTensorMode()), strides(fake_mode())) == (theirs, ours)
    assert TreadleFakeMode.cache is not FakeTensorMode.cache


def test_our_cache_answers():
    """Where `static_calls` has no answer: in inference mode."""
    mode = fake_mode()
    x = fake_like(mode, torch.ones(3, 5))
    with mode, torch.inference_mode():
        torch.relu(x)
        hits, theirs = TreadleFakeMode.cache_hits, FakeTensorMode.cache_hits
        torch.relu(x)
    assert TreadleFakeMode.cache_hits == hits + 1
    assert FakeTensorMode.cache_hits == theirs


def test_the_code_of_the_mode_reads_the_names_that_we_replace():
    """A release that renames one of them would silently leave our kernels out."""
    assert "FakeTensorMode" in FakeTensorMode._cached_dispatch_impl.__code__.co_names
    names = FakeTensorMode._dispatch_impl.__code__.co_names
    assert {"get_fast_op_impls", "op_implementations_checks"} <= set(names)
    assert not FakeTensorMode._dispatch_impl.__code__.co_freevars
