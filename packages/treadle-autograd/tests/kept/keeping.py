"""A store of programs in memory, and a compiler that keeps the graphs that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import fx

from treadle_autograd.kept import store


class KeepingGraphs:
    """Runs the operators of graphs. `kept`: graphs by name; `n_found`: how many have been found."""

    identity: str | None = "operators"

    def __init__(self) -> None:
        self.kept: dict[str, fx.GraphModule] = {}
        self.n_found = 0

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        name = f"graph {len(self.kept)}"
        self.kept[name] = gm
        gm.meta["kept_as"] = name
        return gm.forward

    def find(self, name: str, graph: Callable[[], fx.GraphModule]) -> Callable[..., Sequence[Any]] | None:
        found = self.kept.get(name)
        self.n_found += found is not None
        return None if found is None else found.forward


@contextmanager
def programs_in_memory() -> Iterator[dict[str, bytes]]:
    """Inside, programs are kept in the dict that this gives."""
    before, files = store._store, dict[str, bytes]()
    store.keep_programs(files.get, files.__setitem__)
    try:
        yield files
    finally:
        store._store = before
