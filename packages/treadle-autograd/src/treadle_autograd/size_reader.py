"""Evaluate symbolic numbers when the compiled graph is called: from the sizes of its inputs, the numbers among them, and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.types import py_sym_types

from treadle_shapes import python_function
from treadle_shapes.expr import Node, Symbol, evaluate, free_symbols
from treadle_shapes.floats import FloatSymbol
from treadle_shapes.torch import expr_of

from .errors import UnsupportedGraph

# After so many evaluations an expression becomes a Python function.
_INTERPRETED = 8

# (inputs of the graph, outputs of the graph) -> number
Read = Callable[[Sequence[Any], Sequence[Any]], Any]


class SizeReader:
    """Makes functions that evaluate symbolic numbers for one call of the graph.

    inputs: the fake values of the graph's placeholders, static inputs included, in order.
    outputs: symbol -> position of the graph output that is its value, for symbols that no input has.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Mapping[Any, int]) -> None:
        self._read: dict[Any, Read] = {}
        for position, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                for dim, (size, stride) in enumerate(zip(value.size(), value.stride(), strict=True)):
                    self._add(size, lambda real, fresh, p=position, d=dim: real[p].size(d))
                    self._add(stride, lambda real, fresh, p=position, d=dim: real[p].stride(d))
            elif isinstance(value, py_sym_types):
                self._add(value, lambda real, fresh, p=position: real[p])
        for symbol, position in outputs.items():
            self._read.setdefault(symbol, lambda real, fresh, p=position: fresh[p])

    def _add(self, value: Any, read: Read) -> None:
        expression = expr_of(value)
        if isinstance(expression, (Symbol, FloatSymbol)):
            self._read.setdefault(expression, read)

    def knows(self, value: Any) -> bool:
        """Whether all symbols of `value` can be read from a call."""
        return all(map(self.knows_symbol, free_symbols(expr_of(value))))

    def knows_symbol(self, symbol: Any) -> bool:
        return symbol in self._read

    def reader(self, value: Any) -> Read:
        """A function from the real inputs and the graph's outputs to the number that `value` stands for."""
        expression = expr_of(value)
        if not isinstance(expression, Node):
            return lambda inputs, fresh: expression
        missing = free_symbols(expression) - self._read.keys()
        if missing:
            raise UnsupportedGraph(f"no input has the size {', '.join(map(str, missing))}")
        if expression in self._read:
            return self._read[expression]
        return _Evaluation(expression, {free: self._read[free] for free in free_symbols(expression)})


class _Evaluation:
    """Evaluates an expression for a call. The first calls interpret it, because few graphs are called often; then it is compiled."""

    def __init__(self, expression: Any, readers: dict[Any, Read]) -> None:
        self._expression = expression
        self._readers = readers
        self._interpreted = 0
        self._function: Callable[..., Any] | None = None

    def __call__(self, inputs: Sequence[Any], fresh: Sequence[Any]) -> Any:
        values = [read(inputs, fresh) for read in self._readers.values()]
        if self._function is not None:
            return self._function(*values)
        self._interpreted += 1
        if self._interpreted == _INTERPRETED:
            self._function = python_function(self._expression, list(self._readers))
        return evaluate(self._expression, dict(zip(self._readers, values, strict=True)))
