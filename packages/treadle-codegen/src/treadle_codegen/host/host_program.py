"""The host function as text, and what it works on: all that remains of an execution plan when kernels are built.

    plan     segments of kernels and operators over buffers
    program  source of `run(*inputs)`; the constants it names; slots of the table; lifetimes and views of planned temporaries

A `Host` makes the callable of it. With static sizes it is plain data, which `kept_graphs` keeps for later processes.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from treadle_codegen.ir.loops import Buffer, View


@dataclass(slots=True)
class HostProgram:
    """What a host function is made of.

    source: its text; constants: the values that the text names `c[k]`; callees: those of them that are an operator's callable, and
    the operator; tensors: constant tensors by buffer; inputs: buffer or number of each argument; slots: table positions by buffer
    or number; spans: first and last node of each planned temporary, whose Buffer is in `buffers`; views: views of these that the
    text uses; statics: views of static inputs; pool: dtypes of memory for sizes known only during a call; symbols: those whose
    values are the sizes; numbers: of kernels, that follow from the sizes; compared: how many sizes or shapes a call compares;
    state: length of `Fit.state`.
    """

    source: str
    constants: list[Any]
    callees: dict[int, Any]
    tensors: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    slots: dict[str, int]
    spans: dict[str, tuple[int, int]]
    buffers: Mapping[str, Buffer]
    views: list[View | str]
    statics: list[View]
    pool: list[torch.dtype]
    symbols: tuple[Any, ...] = ()
    numbers: list[Any] = field(default_factory=list)
    compared: int = 0
    state: int = 0
    code: types.CodeType | None = None

    def compiled(self) -> types.CodeType:
        """The byte code of the text."""
        if self.code is None:
            self.code = compile(self.source, "<treadle host>", "exec")  # our own text, nothing of the user's
        return self.code
