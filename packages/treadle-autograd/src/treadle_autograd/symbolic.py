"""Sizes that are not constants: the graph nodes that compute them, and the Python function that computes them at run time.

A `torch.SymInt` carries an expression of treadle_shapes over symbols; every symbol is the size of some input (or an integer input).
`SymbolicNodes` writes ``aten.sym_size.int(input, dim)`` for a symbol the first time it is needed, and arithmetic nodes above it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes.expr import evaluate
from treadle_shapes.nodes import Expr, Fn, Product, Sum, Symbol

from .errors import UnsupportedGraph

aten = torch.ops.aten

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
}


def expression_of(value: int | torch.SymInt) -> int | Expr:
    """The treadle_shapes expression of a size."""
    if isinstance(value, int):
        return value
    from treadle_shapes.torch import expr_of

    return expr_of(value)


class SymbolicNodes:
    """Writes and reuses the nodes of `graph` that compute symbolic sizes."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._sources: dict[Symbol, tuple[Any, fx.Node, int]] = {}
        self._nodes: dict[Expr, fx.Node] = {}

    def bind(self, value: torch.SymInt, node: fx.Node) -> None:
        """Declare that `node` computes `value`; the first declaration of a symbol wins."""
        expression = expression_of(value)
        if isinstance(expression, Expr):
            self._nodes.setdefault(expression, node)

    def bind_sizes(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """Declare the symbols that are sizes or strides of the input `tensor`."""
        for function, values in ((aten.sym_size.int, tensor.size()), (aten.sym_stride.int, tensor.stride())):
            for dim, value in enumerate(values):
                if isinstance(value, torch.SymInt):
                    expression = expression_of(value)
                    if isinstance(expression, Symbol):
                        self._sources.setdefault(expression, (function, node, dim))

    def node_for(self, value: torch.SymInt) -> Any:
        """A node (or an int, when the expression is constant) that computes `value`."""
        expression = expression_of(value)
        if not isinstance(expression, Expr):
            return int(expression)
        known = expression in self._nodes
        node = self._emit(expression)
        if not known:
            node.meta["val"] = value
        return node

    def _emit(self, expression: int | Expr) -> Any:
        if not isinstance(expression, Expr):
            return expression
        node = self._nodes.get(expression)
        if node is None:
            node = self._nodes[expression] = self._emit_new(expression)
        return node

    def _emit_new(self, expression: Expr) -> fx.Node:
        if isinstance(expression, Symbol):
            if expression not in self._sources:
                raise UnsupportedGraph(f"no input has the size {expression}")
            function, source, dim = self._sources[expression]
            return self.graph.call_function(function, (source, dim))
        if isinstance(expression, Sum):
            total: Any = None
            for monomial, coefficient in expression.coefficients.items():
                term = self._emit(monomial)
                if coefficient != 1:
                    term = self.graph.call_function(operator.mul, (term, coefficient))
                total = term if total is None else self.graph.call_function(operator.add, (total, term))
            return self.graph.call_function(operator.add, (total, expression.const)) if expression.const else total
        if isinstance(expression, Product):
            product: Any = None
            for atom, power in expression.powers.items():
                for _ in range(power):
                    factor = self._emit(atom)
                    product = factor if product is None else self.graph.call_function(operator.mul, (product, factor))
            return product
        if isinstance(expression, Fn) and expression.op in _FUNCTIONS:
            arguments = tuple(self._emit(argument) for argument in expression.args)
            return self.graph.call_function(_FUNCTIONS[expression.op], arguments)
        raise UnsupportedGraph(f"the size expression {expression} has no graph form")


class SizeReader:
    """Evaluates symbolic values from the real inputs of a call.

    `inputs` are the fake values of the graph's placeholders (static inputs included), in order.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._read: dict[Symbol, Callable[[Sequence[Any]], int]] = {}
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                for dim, (size, stride) in enumerate(zip(value.size(), value.stride(), strict=True)):
                    self._add(size, lambda real, p=position, d=dim: real[p].size(d))
                    self._add(stride, lambda real, p=position, d=dim: real[p].stride(d))
            else:
                self._add(value, lambda real, p=position: real[p])

    def _add(self, value: Any, read: Callable[[Sequence[Any]], int]) -> None:
        if isinstance(value, torch.SymInt):
            expression = expression_of(value)
            if isinstance(expression, Symbol):
                self._read.setdefault(expression, read)

    def reader(self, value: Any) -> Callable[[Sequence[Any]], int]:
        """A function from the real inputs to the integer that `value` stands for."""
        expression = expression_of(value)
        if not isinstance(expression, Expr):
            constant = int(expression)
            return lambda inputs: constant
        missing = expression.free_symbols - self._read.keys()
        if missing:
            raise UnsupportedGraph(f"no input has the size {', '.join(map(str, missing))}")
        readers = {free: self._read[free] for free in expression.free_symbols}
        return lambda inputs: int(evaluate(expression, {free: read(inputs) for free, read in readers.items()}))
