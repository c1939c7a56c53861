"""The decompositions of treadle_codegen, read when a graph is traced through `aot`. A process that finds its programs compiled reads none,
and then imports none of the modules that lower graphs: 30 ms of a first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any


class LazyDecompositions(Mapping[Any, Callable[..., Any]]):
    """`treadle_codegen.decompositions()`, made when the first item is asked for."""

    #: what it holds follows from the version and the files of treadle_codegen, which the compilers' identities name
    identity = "treadle_codegen.decompositions"

    @cached_property
    def _table(self) -> dict[Any, Callable[..., Any]]:
        from treadle_codegen import decompositions

        return decompositions()

    def __getitem__(self, op: Any) -> Callable[..., Any]:
        return self._table[op]

    def get(self, op: Any, default: Any = None) -> Any:
        # `Mapping.get` catches a KeyError, which is slow; the recorder asks for every operator.
        return self._table.get(op, default)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)
