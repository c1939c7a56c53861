"""Dynamic sizes of one trace: which dimensions are dynamic, their symbols, and the graph nodes that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_tracer.output.tensor_check import dynamic_dims_of
from treadle_tracer.source import Source
from treadle_tracer.values.base import Constant, Value
from treadle_tracer.values.tensor import SymbolicValue, TensorValue

if TYPE_CHECKING:
    from torch import fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    from treadle_tracer.options import TracerOptions
    from treadle_tracer.trace.tracer import Tracer


class Symbols:
    """`dynamic` says which dimensions of which sources are not specialised; `where` gives the user's stack.

    `env` is None until the first dynamic dimension.
    """

    def __init__(
        self,
        mode: FakeTensorMode,
        dynamic: Mapping[Source, tuple[int, ...]],
        options: TracerOptions,
        where: Callable[[], Any],
    ):
        self.mode = mode
        self.dynamic = dict(dynamic)
        self.options = options
        self.where = where
        self.env: Any = None
        self.sources: dict[Any, tuple[Source, int]] = {}
        self._nodes: dict[Any, fx.Node] = {}
        self._integers: dict[Source, SymbolicValue] = {}

    def dynamic_dims(self, source: Source, tensor: torch.Tensor) -> tuple[int, ...]:
        """The dimensions of this tensor that get symbols."""
        return dynamic_dims_of(tensor, source, self.dynamic, self.options)

    def fake_like(self, source: Source, tensor: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        """A fake tensor with the metadata of `tensor`, the sizes of the dimensions `dims` being symbols."""
        if dims:
            fake = self._dynamic_fake(source, tensor, dims)
        else:
            meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
            fake = FakeTensor(self.mode, meta, tensor.device)
        if tensor.requires_grad:
            fake.requires_grad_(True)
        return fake

    def _dynamic_fake(self, source: Source, tensor: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        import treadle_shapes.torch

        self._need_env()
        sizes: list[Any] = [None] * tensor.dim()
        for dim in dims:
            symbol = self.env.create_symbol(tensor.shape[dim], f"{source.text}.size()[{dim}]")
            sizes[dim] = symbol
            self.sources[symbol] = (source, dim)
        return treadle_shapes.torch.fake_tensor(self.mode, tensor, tuple(sizes))

    def _need_env(self) -> None:
        if self.env is None:
            import treadle_shapes.torch

            self.env = treadle_shapes.ShapeEnv(where=self.where)
            self.mode.shape_env = treadle_shapes.torch.fake_shape_env(self.env)  # type: ignore[assignment]
            self.mode.static_shapes = False

    def is_dynamic_integer(self, source: Source | None) -> bool:
        """Whether the int at `source` has changed between calls before, so that it gets a symbol."""
        return source is not None and source in self.dynamic

    def integer(self, tx: Tracer, number: int, source: Source) -> Value:
        """The int at `source` as a symbol."""
        found = self._integers.get(source)
        if found is None:
            import treadle_shapes.torch

            self._need_env()
            tx.guards.add_integer(source)
            symbol = self.env.create_symbol(number, source.text, size=False)
            sym = treadle_shapes.torch.sym_int(self.env, symbol, number)
            found = self._integers[source] = SymbolicValue(None, sym, source, number)
        return found

    def value(self, tx: Tracer, number: Any, node: fx.Node | None) -> Value:
        """The Value of a SymInt, SymFloat or SymBool; plain when it is constant after all."""
        if isinstance(number, torch.SymBool):
            return Constant(bool(number))
        if node is not None:
            self._nodes.setdefault(self._key(number), node)
        return SymbolicValue(self._nodes.get(self._key(number)), number)

    def size_value(self, tx: Tracer, owner: TensorValue, dim: int, size: Any) -> Value:
        """One size of a tensor; sizes that are equal as expressions share a node."""
        key = self._key(size)
        if key not in self._nodes:
            self._nodes[key] = tx.graph.call(
                "call_function", torch.ops.aten.sym_size.int, (owner.node(tx), dim), {}, size, tx.stack_trace()
            )
        return SymbolicValue(self._nodes[key], size)

    def node_of(self, tx: Tracer, value: SymbolicValue) -> fx.Node:
        key = self._key(value.sym)
        if key not in self._nodes and value.source is not None:
            self._nodes[key] = tx.graph.placeholder(value.source, value.obj, value.sym)
        node = self._nodes.get(key)
        if node is None:
            from treadle_tracer.errors import InternalError

            raise InternalError("symbols", f"no graph node computes {value.sym}")
        return node

    def _key(self, number: Any) -> Any:
        return (type(number), number.node.value)
