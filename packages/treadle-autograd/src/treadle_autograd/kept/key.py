"""The key of a training program: all that its joint graph, the cut and the compiled halves depend on, written out and hashed.

    node      name, op, target, arguments, metadata of its example value; where the program has checkpoints
    tensor    dtype, device, dispatch keys, sizes, strides, offset, requires_grad; which ones are one object or share memory
    settings  those that choose among PyTorch's kernels and formulas
    others    the partition, the decompositions, the compilers, releases of Python and PyTorch, this package's files

A program has no key where something of it has no complete description here: symbolic sizes, functions that are not PyTorch's own or not
as they were installed, inputs with a history, modes, kernels that a program has registered for PyTorch's operators.
"""

from __future__ import annotations

import functools
import hashlib
import os
import types
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

import treadle_autograd
from treadle_shapes.torch import (
    NotDescribed,
    described,
    fake_call_environment,
    fake_call_settings,
    sources_in,
    states_of,
)

from ..ambient import Ambient
from ..decompositions import Decompositions

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
_NAMESPACES = ("aten", "prims")
# Kernels that no such program meets, or that PyTorch registers in Python itself, some of them late: rules of `vmap`, for one.
_HARMLESS_KERNELS = ("Meta", "MPS", "CUDA", "XPU", "FuncTorch", "Sparse", "Nested", "Quantized")
_OWN_METADATA = frozenset({"example_value", "stack_trace", "source", "checkpoint", "message"})


def program_key(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    partition: str | None,
    decompositions: Decompositions,
    compilers: Sequence[str | None],
) -> str | None:
    """The key of a program, or None if it has none.

    partition, compilers: what the cut and the compiled halves depend on beside the graph; None where that is not known.
    """
    environment, files = fake_call_environment(), _files()
    if None in (environment, files, partition, *compilers) or why_settings_unknown() is not None:
        return None
    try:
        program = _Describer().program(gm, example_inputs)
    except NotDescribed:
        return None
    parts = (environment, files, partition, compilers, _described_functions(decompositions), _settings(), program)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def why_settings_unknown() -> str | None:
    """Why the key cannot tell which kernels and formulas a trace would meet now."""
    core: Any = torch._C
    if core._len_torch_function_stack() or core._len_torch_dispatch_stack():
        return "a mode is active"
    if core._are_functorch_transforms_active():
        return "a transform is active"
    for name in torch.library._impls:
        if name.startswith("aten/") and not name.rpartition("/")[2].startswith(_HARMLESS_KERNELS):
            return f"{name} has a kernel of the program's"
    return None


def _settings() -> tuple[Any, ...]:
    core: Any = torch._C
    attention = (
        core._get_flash_sdp_enabled(),
        core._get_mem_efficient_sdp_enabled(),
        core._get_math_sdp_enabled(),
        core._get_cudnn_sdp_enabled(),
        core._get_overrideable_sdp_enabled(),
    )
    modes = torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(), torch.is_autocast_cache_enabled()
    return fake_call_settings(), Ambient.current(), attention, modes


@functools.cache
def _files() -> str | None:
    """The state of this package's files, and of those of PyTorch that define what graphs call; None where they cannot be looked at."""
    ours, theirs = os.path.dirname(treadle_autograd.__file__), os.path.dirname(torch.__file__)
    files = [os.path.join(theirs, name) for name in ("_tensor.py", "nn/functional.py", "functional.py")]
    try:
        return repr(states_of([*sources_in(ours), *files]))
    except OSError:
        return None


def _described_functions(decompositions: Decompositions) -> str | list[tuple[str, str, str]]:
    identity = getattr(decompositions, "identity", None)
    if isinstance(identity, str):
        return identity
    return sorted((str(op), f.__module__, f.__qualname__) for op, f in decompositions.items())


class _Describer:
    """Writes a program as tuples. Raises NotDescribed."""

    def __init__(self) -> None:
        self._objects: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._alive: list[Any] = []  # identities are compared

    def program(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[Any, ...]:
        placeholders = gm.graph.find_nodes(op="placeholder")
        inputs = [self._input(value, node) for value, node in zip(example_inputs, placeholders, strict=True)]
        return inputs, [self._node(node, gm) for node in gm.graph.nodes]

    def _input(self, value: Any, node: fx.Node) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._value(value)
        if "example_value" not in node.meta:
            raise NotDescribed("its graph is made without the input")
        if _has_history(value):
            raise NotDescribed("an input has a history")
        return self._tensor(value)

    def _node(self, node: fx.Node, gm: fx.GraphModule) -> Any:
        if not _OWN_METADATA.issuperset(node.meta):
            raise NotDescribed("metadata")
        if node.op == "call_function":
            own: Any = _described_target(node.target)
        elif node.op == "call_method":
            own = _described_method(str(node.target))
        elif node.op == "get_attr":
            own = node.target, self._attribute(attrgetter(str(node.target))(gm))
        elif node.op in ("placeholder", "output"):
            own = node.target
        else:
            raise NotDescribed(node.op)
        kwargs = [(name, self._value(value)) for name, value in node.kwargs.items()]
        example = self._value(node.meta.get("example_value"))
        checkpoint = self._value(node.meta.get("checkpoint"))
        return node.name, node.op, own, self._value(node.args), kwargs, example, checkpoint

    def _attribute(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._value(value)
        if _has_history(value):
            raise NotDescribed("a tensor that the graph holds has a history")
        return self._tensor(value)  # its elements are nobody's business: the graph takes it as an input

    def _value(self, value: Any) -> Any:
        return described(value, self._tensor)

    def _tensor(self, t: torch.Tensor) -> Any:
        if type(t) not in _TENSORS or t.layout is not torch.strided or t.device.type != "cpu":
            raise NotDescribed("a tensor that metadata does not describe")
        if isinstance(t, FakeTensor) and (t._has_symbolic_sizes_strides or t.constant is not None):  # type: ignore[attr-defined]
            raise NotDescribed("symbolic sizes, or a constant")
        storage = t.untyped_storage()
        self._alive.append((t, storage))
        same = self._objects.setdefault(id(t), len(self._objects))
        shared = self._storages.setdefault(storage._cdata, len(self._storages))
        has_memory = isinstance(t, FakeTensor) or not t.numel() or t.data_ptr() != 0
        numbers = (*t.shape,), t.stride(), t.storage_offset(), storage.nbytes()
        kinds = type(t).__name__, t.dtype, torch._C._dispatch_keys(t).raw_repr()
        flags = t.requires_grad, t._is_view(), t.is_inference(), has_memory
        return same, shared, kinds, numbers, flags


def _has_history(tensor: torch.Tensor) -> bool:
    """Whether autograd knows what a tensor comes from. A view may refuse to tell."""
    return tensor.requires_grad and (tensor._is_view() or not tensor.is_leaf)


def _described_target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
        return str(target)
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if type(target) is types.BuiltinFunctionType and module in ("_operator", "torch", "torch._C", "torch._C._nn"):
        return f"{module}.{name}"
    if type(target) is types.FunctionType and module == "torch.nn.functional" and _is_as_installed(target):
        return f"{module}.{name}"
    raise NotDescribed(target)


def _described_method(name: str) -> str:
    """A method of tensors, if it is PyTorch's own."""
    method = getattr(torch.Tensor, name, None)
    if isinstance(method, types.MethodDescriptorType):
        return name
    if type(method) is types.FunctionType and method.__module__ == "torch._tensor" and _calls_pytorch_only(method):
        return name
    raise NotDescribed(name)


def _is_as_installed(function: types.FunctionType) -> bool:
    """Whether a function of torch.nn.functional is the one in PyTorch's files, and finds PyTorch's own by the names that it uses."""
    return vars(torch.nn.functional).get(function.__name__) is function and _calls_pytorch_only(function)


def _calls_pytorch_only(function: types.FunctionType) -> bool:
    """Whether a function of PyTorch, and what it may call by its names one level down, come from PyTorch's files."""
    named = (vars(place).get(name) for name in function.__code__.co_names for place in _PLACES)
    inherited = (getattr(torch.Tensor, name, None) for name in function.__code__.co_names)
    enclosed = (cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY_CELL)
    return _is_of_pytorch(function) and all(map(_is_of_pytorch, (*named, *inherited, *enclosed)))


_EMPTY_CELL = types.CellType()
_PLACES = (torch, torch._C._nn, torch.nn.functional)
_FOLDER = os.path.join(os.path.dirname(torch.__file__), "")


def _is_of_pytorch(value: Any) -> bool:
    """Whether a value is no callable, or one of PyTorch's or of C code."""
    if type(value) is types.FunctionType:
        return value.__code__.co_filename.startswith(_FOLDER)
    if not callable(value) or isinstance(value, (type, types.BuiltinFunctionType, types.MethodDescriptorType)):
        return True
    return type(value).__module__.partition(".")[0] in ("torch", "builtins", "typing")
