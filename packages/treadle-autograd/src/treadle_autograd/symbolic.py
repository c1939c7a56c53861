"""Numbers that are not constants: the graph nodes that compute them, and the Python functions that compute them at run time.

A `torch.SymInt`, `SymFloat` or `SymBool` carries an expression of treadle_shapes over symbols. A symbol is a size of some input, a number
among the inputs, or what an operator of the graph gives: `t.item()`, the number of rows of `x.nonzero()`. `SymbolicNodes` writes
``aten.sym_size.int(node, dim)`` for a size the first time it is needed, and arithmetic nodes above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes import UsageError
from treadle_shapes.expr import BoolExpr, Ne, Node, Symbol, evaluate, free_symbols

from .errors import UnsupportedGraph

aten = torch.ops.aten
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# (inputs of the graph, outputs of the graph) -> number
Read = Callable[[Sequence[Any], Sequence[Any]], Any]


def expression_of(value: Any) -> Any:
    """The treadle_shapes expression of a number, with all that is known put in."""
    if not isinstance(value, SYMBOLIC):
        return value
    from treadle_shapes.torch import expr_of

    return expr_of(value)


def is_symbol(expression: Any) -> bool:
    """Whether it is a bare unknown, an int or a float."""
    return isinstance(expression, Symbol) or (
        isinstance(expression, Node) and not free_symbols(expression) - {expression} and bool(free_symbols(expression))
    )


class SymbolicNodes:
    """Writes and reuses the nodes of `graph` that compute symbolic numbers."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._sources: dict[Any, tuple[Any, fx.Node, tuple[int, ...]]] = {}
        self._nodes: dict[Any, Any] = {}

    def bind(self, value: Any, node: fx.Node) -> None:
        """Declare that `node` computes `value`; the first declaration of an expression wins."""
        if not isinstance(value, SYMBOLIC):
            return
        for expression in (value.node.value, expression_of(value)):  # type: ignore[union-attr]
            if isinstance(expression, Node):
                self._nodes.setdefault(expression, node)
            if isinstance(expression, BoolExpr) and len(free_symbols(expression)) == 1:
                (symbol,) = free_symbols(
                    expression
                )  # a truth value read from a tensor is `u != 0` of a symbol that is 0 or 1
                self._sources.setdefault(symbol, (torch.sym_ite, node, (1, 0)))

    def bind_sizes(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Declare the symbols that are sizes or strides of `tensor`, which `node` computes."""
        places: list[Any] = [(aten.sym_size.int, (dim,), size) for dim, size in enumerate(tensor.size())]
        places += [(aten.sym_stride.int, (dim,), stride) for dim, stride in enumerate(tensor.stride())]
        for function, arguments, value in places:
            if isinstance(value, torch.SymInt):
                for expression in (value.node.value, expression_of(value)):  # type: ignore[attr-defined]
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
        return self.node_of_expression(expression_of(value))

    def node_of_expression(self, expression: Any) -> Any:
        """A node that computes `expression` as it stands."""
        from treadle_shapes.torch import build_calls

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
        from treadle_shapes.torch import env_of, sym_float

        values = [argument.meta["val"] for argument in arguments if isinstance(argument, fx.Node)]
        env = next(env for env in map(env_of, values) if env is not None)
        node = self.graph.call_function(function, arguments)
        node.meta["val"] = sym_float(env, expression)
        return node

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> fx.Node:
        from treadle_shapes.torch import call_on_symbolic

        values = [argument.meta["val"] if isinstance(argument, fx.Node) else argument for argument in arguments]
        node = self.graph.call_function(function, arguments)
        query = _SIZE_QUERIES.get(function)
        node.meta["val"] = query(*values) if query is not None else call_on_symbolic(function, tuple(values))
        return node


_SIZE_QUERIES: dict[Any, Callable[..., Any]] = {
    aten.sym_size.int: lambda tensor, dim: tensor.size(dim),
    aten.sym_stride.int: lambda tensor, dim: tensor.stride(dim),
}


class SizeReader:
    """Evaluates symbolic values of a call.

    `inputs` are the fake values of the graph's placeholders (static inputs included), in order; `outputs` says which graph output is
    the value of a symbol that no input has.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Mapping[Any, int]) -> None:
        self._read: dict[Any, Read] = {}
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                for dim, (size, stride) in enumerate(zip(value.size(), value.stride(), strict=True)):
                    self._add(size, lambda real, fresh, p=position, d=dim: real[p].size(d))
                    self._add(stride, lambda real, fresh, p=position, d=dim: real[p].stride(d))
            else:
                self._add(value, lambda real, fresh, p=position: real[p])
        for symbol, position in outputs.items():
            self._read.setdefault(symbol, lambda real, fresh, p=position: fresh[p])

    def _add(self, value: Any, read: Read) -> None:
        expression = expression_of(value)
        if is_symbol(expression):
            self._read.setdefault(expression, read)

    def knows(self, value: Any) -> bool:
        """Whether all symbols of `value` can be read."""
        return all(map(self.knows_symbol, free_symbols(expression_of(value))))

    def knows_symbol(self, symbol: Any) -> bool:
        return symbol in self._read

    def reader(self, value: Any) -> Read:
        """A function from the real inputs and the graph's outputs to the number that `value` stands for."""
        expression = expression_of(value)
        if not isinstance(expression, Node):
            return lambda inputs, fresh: expression
        missing = free_symbols(expression) - self._read.keys()
        if missing:
            raise UnsupportedGraph(f"no input has the size {', '.join(map(str, missing))}")
        readers = {free: self._read[free] for free in free_symbols(expression)}
        number: Any = expression
        return lambda inputs, fresh: evaluate(number, {free: read(inputs, fresh) for free, read in readers.items()})
