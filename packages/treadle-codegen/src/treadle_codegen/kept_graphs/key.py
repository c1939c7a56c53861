"""The key of a graph: all that its host program depends on, written out and hashed.

    node      name, op, target, arguments, and of its `meta` what `_META` lists
    tensor    dtype, device, dispatch keys (conjugated, negated), requires_grad, sizes, strides, offset, bytes of memory
    options   all but where the cache is
    process   `fake_call_settings` (gradients, default dtype, threads, ...)
    machine   `Target.identity`; releases of Python and PyTorch, the files of fake kernels and of this package

A graph has no key where something of it has no complete description here: symbolic sizes, constant tensors, operators that are not
PyTorch's own, subclasses of tensors. Names are part of the key because kernels and errors show them.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

import treadle_codegen
from treadle_codegen.cache import content_key
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.target import Target
from treadle_shapes.torch import (
    NotDescribed,
    described,
    fake_call_environment,
    fake_call_settings,
    sources_in,
    states_of,
)

_NAMESPACES = ("aten", "prims")
_NOT_IN_KEY = frozenset(("cache_dir", "cache_bytes"))


def _is_set(value: Any) -> bool:
    """A static input's `meta` holds the tensor itself or a truth value; an input that is not static has None or False."""
    return value is not None and value is not False


#: what code generation reads of a node's `meta`, and what of it enters the key; `val` is described by itself
META: Mapping[str, Callable[[Any], Any]] = {
    "static_input": _is_set,
    "may_raise": bool,
    "opaque": bool,
    "mutates": lambda value: value,
    "rounded": bool,
}
#: read for messages of errors, and by graphs that are replayed, which are not kept
NOT_IN_KEY_META = frozenset(("stack_trace", "saved_results"))


def why_not_kept(target: Target, options: CodegenOptions) -> str | None:
    """Why host programs of graphs are not kept, or None."""
    if target.identity is None:
        return "the target does not tell what of the machine its kernels depend on"
    if options.autotune or options.cuda_graphs:
        return "it depends on measurements, or on recordings"
    if options.verify or options.dump_passes is not None:
        return "the passes are to run"
    if options.pack_weights:
        return "weights are laid out, which looks at the inputs themselves"
    return None


def graph_key(gm: fx.GraphModule, target: Target, options: CodegenOptions, device: torch.device | None) -> str | None:
    """The key of a graph for a target, or None if it has none.

    gm: a functional ATen graph, whose fake results stand in `meta["val"]`; device: where its loops run.
    """
    chosen = identity_of(target, options)
    if chosen is None:
        return None
    try:
        nodes = _Describer().graph(gm.graph)
    except NotDescribed:
        return None
    return content_key("graph", chosen, repr((fake_call_settings(), device)), repr(nodes))


def identity_of(target: Target, options: CodegenOptions) -> str | None:
    """Machine, releases, files and options that what is made for the target depends on; None where some of it is not known."""
    environment, sources = fake_call_environment(), _sources()
    if environment is None or sources is None or target.identity is None:
        return None
    chosen = [(f.name, repr(getattr(options, f.name))) for f in fields(options) if f.name not in _NOT_IN_KEY]
    return repr((environment, sources, target.name, target.identity(), target.costs, chosen))


@functools.cache
def _sources() -> str | None:
    """The state of this package's files; None where they cannot be looked at."""
    folder = os.path.dirname(treadle_codegen.__file__)
    try:
        prelude = [file.path for file in os.scandir(os.path.join(folder, "targets", "cpp")) if file.is_file()]
        return repr(states_of([*sources_in(folder), *sorted(prelude)]))
    except OSError:
        return None


class _Describer:
    """Writes nodes and values as tuples that begin with their kind, and plain values. Raises NotDescribed."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[str, int]] = {}
        self._metadata: dict[Any, int] = {}  # and its number: tensors of equal metadata are many
        self._targets: dict[int, str] = {}

    def graph(self, graph: fx.Graph) -> tuple[list[Any], list[Any]]:
        nodes = [self._node(node) for node in graph.nodes]
        return nodes, list(self._metadata)

    def _node(self, node: fx.Node) -> Any:
        meta = node.meta
        more = [(name, part(meta[name])) for name, part in META.items() if name in meta]
        if node.op == "call_function":
            target = self._target(node.target)
        elif node.op in ("placeholder", "output"):
            target = ""
        else:
            raise NotDescribed(node.op)
        args, kwargs = self._value(node.args), [(name, self._value(value)) for name, value in node.kwargs.items()]
        return node.name, node.op, target, args, kwargs, self._value(meta.get("val")), self._value(more) if more else ()

    def _target(self, target: Any) -> str:
        found = self._targets.get(id(target))
        if found is None:
            if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
                found = str(target)
            elif target is operator.getitem:
                found = "getitem"
            else:
                raise NotDescribed(target)
            self._targets[id(target)] = found
        return found

    def _value(self, value: Any) -> Any:
        return described(value, self._tensor)

    def _tensor(self, tensor: Any) -> tuple[str, int]:
        if type(tensor) is not FakeTensor:
            raise NotDescribed(type(tensor))
        found = self._tensors.get(id(tensor))
        if found is None:
            number = self._metadata.setdefault(_metadata(tensor), len(self._metadata))
            found = self._tensors[id(tensor)] = ("tensor", number)
        return found


def _metadata(t: FakeTensor) -> tuple[Any, ...]:
    keys = torch._C._dispatch_keys(t)
    if t.constant is not None or t.layout is not torch.strided:
        raise NotDescribed("a tensor that metadata does not describe")
    storage_bytes = t.untyped_storage().nbytes()  # symbolic also where the sizes of a view are numbers
    if t._has_symbolic_sizes_strides or not isinstance(storage_bytes, int):  # type: ignore[attr-defined]
        raise NotDescribed("symbolic sizes")
    numbers = (*t.shape,), t.stride(), t.storage_offset(), storage_bytes
    return t.dtype, t.fake_device, keys.raw_repr(), t.requires_grad, *numbers
