"""Graph nodes that compute symbolic numbers.

    x.new_zeros(x.shape[0] + 2)        ==>        %size = aten.sym_size.int(%x, 0);  %add = operator.add(%size, 2)

A `torch.SymInt`, `SymFloat` or `SymBool` carries an expression of treadle_shapes over symbols. A symbol is a size of an input, a number
among the inputs, or the result of an operator of the graph (`t.item()`, the number of rows of `x.nonzero()`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.types import py_sym_types

from treadle_shapes import UsageError
from treadle_shapes.expr import BoolExpr, Ne, Node, Symbol, free_symbols
from treadle_shapes.torch import build_calls, call_on_symbolic, env_of, expr_of, operator, raw_expr, sym_float

from .errors import UnsupportedGraph

aten = torch.ops.aten


def metadata_query(target: Any) -> Callable[..., Any] | None:
    """The method of Tensor that answers what the operator `target` asks about metadata (``aten.sym_size.int``: ``Tensor.size``)."""
    record = operator(target)
    return None if record is None or record.query_method is None else getattr(torch.Tensor, record.query_method)


class SymbolicNodes:
    """Writes and reuses the nodes of `graph` that compute symbolic numbers."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._sources: dict[Any, tuple[Any, fx.Node, tuple[int, ...]]] = {}
        self._nodes: dict[Any, Any] = {}

    def bind(self, value: Any, node: fx.Node) -> None:
        """Declare that `node` computes `value`; the first declaration of an expression wins."""
        if not isinstance(value, py_sym_types):
            return
        for expression in (raw_expr(value), expr_of(value)):
            if isinstance(expression, Node):
                self._nodes.setdefault(expression, node)
            if isinstance(expression, BoolExpr) and len(free_symbols(expression)) == 1:
                (symbol,) = free_symbols(expression)  # a bool read from a tensor is `u != 0` of a symbol that is 0 or 1
                self._sources.setdefault(symbol, (torch.sym_ite, node, (1, 0)))

    def bind_sizes(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Declare the symbols that are sizes or strides of `tensor`, which `node` computes."""
        if not tensor._has_symbolic_sizes_strides:  # type: ignore[attr-defined]
            return
        places: list[Any] = [(aten.sym_size.int, (dim,), size) for dim, size in enumerate(tensor.size())]
        places += [(aten.sym_stride.int, (dim,), stride) for dim, stride in enumerate(tensor.stride())]
        for function, arguments, value in places:
            if isinstance(value, torch.SymInt):
                for expression in (raw_expr(value), expr_of(value)):
                    if isinstance(expression, Symbol):
                        self._sources.setdefault(expression, (function, node, arguments))

    def alias(self, symbol: Any, other: Any) -> None:
        """Declare that what computes `symbol` computes the symbol `other` too."""
        for table in (self._nodes, self._sources):
            if symbol in table:
                table.setdefault(other, table[symbol])
        truth = Ne(symbol, 0) if isinstance(symbol, Symbol) else None
        if truth in self._nodes:
            self._nodes.setdefault(Ne(other, 0), self._nodes[truth])

    def node_for(self, value: Any) -> Any:
        """A node (or a number, when the expression is constant) that computes `value`."""
        return self.node_of_expression(expr_of(value))

    def node_of_expression(self, expression: Any) -> Any:
        """A node that computes `expression` as it stands."""
        try:
            return build_calls(expression, self._leaf, self._call, self._nodes, self._call_float)
        except UsageError as error:
            raise UnsupportedGraph(f"the number {expression} has no graph form: {error}") from error

    def _leaf(self, symbol: Any) -> fx.Node:
        if symbol not in self._sources:
            raise UnsupportedGraph(f"no input has the size {symbol}")
        function, source, arguments = self._sources[symbol]
        return self._call(function, (source, *arguments))

    def _call_float(self, function: Callable[..., Any], arguments: tuple[Any, ...], expression: Any) -> fx.Node:
        values = [argument.meta["val"] for argument in arguments if isinstance(argument, fx.Node)]
        env = next(env for env in map(env_of, values) if env is not None)
        node = self.graph.call_function(function, arguments)
        node.meta["val"] = sym_float(env, expression)
        return node

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> fx.Node:
        values = [argument.meta["val"] if isinstance(argument, fx.Node) else argument for argument in arguments]
        node = self.graph.call_function(function, arguments)
        query = metadata_query(function)
        node.meta["val"] = query(*values) if query is not None else call_on_symbolic(function, tuple(values))
        return node
