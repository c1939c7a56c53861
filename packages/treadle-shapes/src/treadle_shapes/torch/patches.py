"""Every change that Treadle makes to PyTorch's internals. Needs torch.

`PATCHES` lists them. The first `fake_mode()` or `fake_shape_env()` makes all but the last two; no import does. Each acts for Treadle's fake
modes and symbolic numbers only and calls PyTorch's own code for all others. A torch.compile in the same process makes the same graphs with
and without Treadle (integration-tests/test_torch_compile_unaffected.py).

Corrected fake kernels are no patches: `fake_tensors.TreadleFakeMode` finds them in tables of its own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses._fake_tensor_utils import _DeconstructedSymNode

from treadle_shapes.fork import held_during_fork
from treadle_shapes.torch import (
    corrected_kernels,
    dynamo_stand_in,
    function_transforms,
    light_imports,
    symbolic_questions,
)
from treadle_shapes.torch.ours import runs_in_our_mode

_BEFORE_2_13 = torch.__version__ < "2.13"


class Patch(NamedTuple):
    """One change.

    name: its name in tests and messages. changes: the dotted name of the replaced object. why: what goes wrong without it.
    releases: the releases of torch that need it. install: makes the change; None for a change that lasts as long as a trace.
    """

    name: str
    changes: str
    why: str
    releases: str
    install: Callable[[], None] | None
    is_needed: bool = True


def _keep_our_nodes() -> None:
    _DeconstructedSymNode.from_node = staticmethod(symbolic_questions.keep_our_nodes(_DeconstructedSymNode.from_node))


def _ask_layouts_without_guards() -> None:
    module: Any = torch._prims_common
    module.are_strides_like_channels_last_or_false = symbolic_questions.ask_layouts_without_guards(
        module.are_strides_like_channels_last_or_false
    )


def _read_metadata_without_records() -> None:
    from torch._subclasses import fake_tensor

    module: Any = fake_tensor
    module.extract_tensor_metadata = symbolic_questions.read_metadata_without_records(module.extract_tensor_metadata)


def _correct_batch_norm() -> None:
    from torch._decomp import decompositions

    original = decompositions.native_batch_norm_helper

    @functools.wraps(original)
    def native_batch_norm_helper(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not runs_in_our_mode(input):
            return original(input, *args, **kwargs)
        return corrected_kernels.batch_norm(original, input, *args, **kwargs)

    decompositions.native_batch_norm_helper = native_batch_norm_helper


def _keep_dropout_between_layers() -> None:
    from torch._decomp import decompositions

    original = decompositions._rnn_helper

    @functools.wraps(original)
    def rnn_helper(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not runs_in_our_mode(input):
            return original(input, *args, **kwargs)
        return corrected_kernels.recurrent_layers(original, input, *args)

    decompositions._rnn_helper = rnn_helper


def _round_down_without_question() -> None:
    import torch._meta_registrations as meta

    meta.div_rtn = symbolic_questions.round_down(meta.div_rtn)


def _divide_constants() -> None:
    number: Any = torch.SymInt
    number.__truediv__ = symbolic_questions.divide_constants(number.__truediv__, is_divisor=False)
    number.__rtruediv__ = symbolic_questions.divide_constants(number.__rtruediv__, is_divisor=True)


def _ask_nothing_of_powers() -> None:
    from torch._decomp import decomposition_table

    packet = torch.ops.aten.pow
    for overload in (packet.Tensor_Scalar, packet.Scalar):
        power = symbolic_questions.general_power(decomposition_table[overload])
        decomposition_table[overload] = power
        overload.py_kernels[torch._C.DispatchKey.Meta] = power
        overload._dispatch_cache.clear()


def _map_over_gradients_of_symbolic_sizes() -> None:
    from torch import _vmap_internals

    _vmap_internals._vmap = function_transforms.mapped_gradients(_vmap_internals._vmap)


PATCHES = (
    Patch(
        name="symbolic numbers in the fake tensor cache",
        changes="torch._subclasses._fake_tensor_utils._DeconstructedSymNode.from_node",
        why="The cache rebuilds every symbolic number for PyTorch's ShapeEnv. Treadle's numbers must stay unchanged.",
        releases="2.11 to 2.13",
        install=_keep_our_nodes,
    ),
    Patch(
        name="layout questions",
        changes="torch._prims_common.are_strides_like_channels_last_or_false",
        why="The fake tensor cache reads the layout of every tensor. One of its questions would guard on sizes of 1.",
        releases="2.11 to 2.13",
        install=_ask_layouts_without_guards,
    ),
    Patch(
        name="layouts in the fake tensor cache",
        changes="torch._subclasses.fake_tensor.extract_tensor_metadata",
        why="The answers about layouts that only name an entry of the cache would be kept where the program states more afterwards.",
        releases="2.11 to 2.13",
        install=_read_metadata_without_records,
    ),
    Patch(
        name="batch norm over one value per channel",
        changes="torch._decomp.decompositions.native_batch_norm_helper",
        why="The decomposition raises ZeroDivisionError in training mode, where eager counts nan into the running variance.",
        releases="2.11 to 2.13",
        install=_correct_batch_norm,
    ),
    Patch(
        name="dropout between recurrent layers",
        changes="torch._decomp.decompositions._rnn_helper",
        why="The decompositions of LSTM, GRU and RNN, which symbolic sizes lead to, leave the dropout between layers out.",
        releases="2.11 to 2.13",
        install=_keep_dropout_between_layers,
    ),
    Patch(
        name="rounding of pooled extents",
        changes="torch._meta_registrations.div_rtn",
        why="It asks whether a remainder is 0, which would guard every size of a pooling.",
        releases="2.11 and 2.12",
        install=_round_down_without_question,
        is_needed=_BEFORE_2_13,
    ),
    Patch(
        name="quotients of decided sizes and floats",
        changes="torch.SymInt.__rtruediv__",
        why="A size that is decided is a constant, whose quotient with a float is looked for among the methods of a plain float.",
        releases="2.11 to 2.13",
        install=_divide_constants,
    ),
    Patch(
        name="powers with symbolic numbers",
        changes="torch._decomp.decomposition_table",
        why="They ask whether base or exponent is 1, 2 or 0.5 to take a short cut, which would guard on the number.",
        releases="2.11 and 2.12",
        install=_ask_nothing_of_powers,
        is_needed=_BEFORE_2_13,
    ),
    Patch(
        name="batches of gradients",
        changes="torch._vmap_internals._vmap",
        why="`torch.autograd.grad(..., is_grads_batched=True)` maps by an older vmap, whose tensors take no symbolic sizes.",
        releases="2.11 to 2.13",
        install=_map_over_gradients_of_symbolic_sizes,
    ),
    Patch(
        name="checks that hold",
        changes="torch._check_with",
        why="The first check imports sympy, which takes 0.4 s. A condition that is True needs nothing of it.",
        releases="2.11 to 2.13",
        install=light_imports.pass_what_holds,
    ),
    Patch(
        name="stand-in for torch._dynamo",
        changes="torch",
        why="Fake tensors import torch._dynamo, which takes 1.2 to 1.8 s. The stand-in steps aside for the real module.",
        releases="2.11 to 2.13",
        install=dynamo_stand_in.install,
    ),
    Patch(
        name="preserved operators",
        changes="torch._ops.OpOverload.py_kernels",
        why=(
            "PyTorch's Python dispatcher decomposes interpolations, and its dropout draws where all is dropped. "
            "`preserved.preserved_operators` prevents both while tracing."
        ),
        releases="2.11 to 2.13",
        install=None,
    ),
    Patch(
        name="checks of in-place operators",
        changes="torch.ops.aten.hardswish_",
        why=(
            "Functionalisation runs each in-place operator on tensors without elements, where Python kernels take up to 1 ms. "
            "`checked_writes.quick_checks` answers for those of which one can tell that they find nothing, while tracing."
        ),
        releases="2.11 to 2.13",
        install=None,
    ),
)

_lock = held_during_fork(threading.Lock())
_installed = False


def install() -> None:
    """Make the changes, once per process."""
    global _installed
    if _installed:
        return
    with _lock:
        if not _installed:
            for patch in PATCHES:
                if patch.install is not None and patch.is_needed:
                    patch.install()
            _installed = True


__all__ = ["PATCHES", "Patch", "install"]
