"""Where records of training programs lie, and the names of their compiled halves.

keep_programs(read, write)      # functions of a key, and of a key and bytes; the store returns the bytes that were written, or None
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import fx

from .record import Program, from_bytes, to_bytes

Compiled = Callable[..., Sequence[Any]]
Read = Callable[[str], bytes | None]
Write = Callable[[str, bytes], None]


class KeepingCompiler(Protocol):
    """A compiler that keeps what it makes for later processes, and notes the name of that in `gm.meta["kept_as"]`.

    identity: all that the results depend on beside the graph and PyTorch's settings; None: nothing is kept at present.
    """

    identity: str | None

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled: ...

    def find(self, name: str, graph: Callable[[], fx.GraphModule]) -> Compiled | None:
        """What is kept under the name, or None. graph: makes the graph, if somebody asks for it."""


_store: tuple[Read, Write] | None = None


def keep_programs(read: Read, write: Write) -> None:
    """Look for programs in a store from now on, and write new ones to it."""
    global _store
    _store = read, write


def is_keeping() -> bool:
    """Whether there is a store."""
    return _store is not None


def find_program(key: str, gm: fx.GraphModule) -> Program | None:
    """The program that is kept under the key, or None. gm: the traced graph."""
    data = None if _store is None else _store[0](key)
    return None if data is None else from_bytes(data, gm)


def keep_program(key: str, program: Program, gm: fx.GraphModule) -> None:
    """Keep the program under the key, if it has a record."""
    data = to_bytes(program, gm)
    if data is not None and _store is not None:
        _store[1](key, data)


class BackwardNames:
    """The names of the compiled backward graphs of the program that is kept under `key`, by the gradients that they compute and by the
    tangents that they do without."""

    def __init__(self, key: str, compiler: KeepingCompiler) -> None:
        self._key = key
        self._compiler = compiler

    def has(self, wanted: Sequence[int], absent: Sequence[int]) -> bool:
        """Whether a name is kept."""
        return self._name_of(wanted, absent) is not None

    def find(
        self, wanted: Sequence[int], absent: Sequence[int], graph: Callable[[], fx.GraphModule]
    ) -> Compiled | None:
        """The compiled graph of the gradients at these positions, or None."""
        name = self._name_of(wanted, absent)
        return None if name is None else self._compiler.find(name.decode(), graph)

    def keep(self, wanted: Sequence[int], absent: Sequence[int], name: str | None) -> None:
        """Keep the name of a compiled graph; None: it has not been kept."""
        if name is not None and _store is not None:
            _store[1](self._key_of(wanted, absent), name.encode())

    def _name_of(self, wanted: Sequence[int], absent: Sequence[int]) -> bytes | None:
        return None if _store is None else _store[0](self._key_of(wanted, absent))

    def _key_of(self, wanted: Sequence[int], absent: Sequence[int]) -> str:
        return hashlib.sha256(repr((self._key, tuple(wanted), tuple(absent))).encode()).hexdigest()
