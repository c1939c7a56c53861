"""Branches and loops over values of tensors: one operator, which runs the graphs of their bodies (docs/contracts.md, section 3).

    %y = cond([%p, %x], [%w])        ==>     %y = treadle.control_flow(program 3, [%p, %x, %w], [])
    bodies: x @ w,  x - w

Gradients are those of the bodies that have run: they run again in backward, under PyTorch's own autograd. What computes gradients is a
program for the same operator, so that it has gradients in turn.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import fx

from treadle_shapes.torch import register_fake

from .recorder import AtenRecorder

with torch._C._AutoDispatchBelowAutograd():
    _AUTOGRAD: Any = torch._C._dispatch_tls_local_exclude_set()
_AUTOGRAD = _AUTOGRAD - torch._C._dispatch_tls_local_exclude_set()
_programs: WeakValueDictionary[int, _Program] = WeakValueDictionary()
_numbers = itertools.count()
_libraries: list[torch.library.Library] = []  # what they define lives as long as they


class _Program(ABC):
    """What a call of the operator runs. It lives as long as the recorded graphs whose nodes call it, and what they have computed."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        _programs[self.number] = self
        self._gradients: dict[tuple[bool, ...], _Program] = {}

    @abstractmethod
    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        """Contiguous results that share no memory with the arguments; differentiable where gradients are enabled."""

    @abstractmethod
    def results(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        """Tensors with the metadata of the results."""

    def gradient(self, wanted: Sequence[bool]) -> _Program:
        """The program (*tensors, *gradients of the results) -> gradients of the `wanted` tensors."""
        key = tuple(wanted)
        if key not in self._gradients:
            self._gradients[key] = _Gradient(self, key)
        return self._gradients[key]


class _Call(_Program):
    """A target with the places of its arguments that are neither tensors nor symbolic numbers filled in.

    places: for each argument, (0, position among the tensors), (1, position among the numbers) or (2, the argument itself).
    """

    def __init__(self, target: Any, places: Sequence[Sequence[tuple[int, Any]]]) -> None:
        super().__init__()
        self.target = target
        self.places = places

    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        return self.target(*self._arguments(tensors, numbers))  # type: ignore[no-any-return]

    def results(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        return self.target.results(*self._arguments(tensors, numbers))  # type: ignore[no-any-return]

    def _arguments(self, *given: Any) -> list[list[Any]]:
        return [[place if kind == 2 else given[kind][place] for kind, place in group] for group in self.places]


class _Gradient(_Program):
    """Runs a program again and differentiates it."""

    def __init__(self, of: _Program, wanted: tuple[bool, ...]) -> None:
        super().__init__()
        self.of = of
        self.wanted = wanted

    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        twice = torch.is_grad_enabled()
        given = [
            t.view_as(t) if twice and t.requires_grad else t.detach().requires_grad_(wants)
            for t, wants in zip(tensors, self.wanted, strict=False)
        ]
        gradients = tensors[len(given) :]
        leaves = [t for t, wants in zip(given, self.wanted, strict=True) if wants]
        # The dispatcher calls kernels behind autograd, which is to record here.
        keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD
        with torch._C._ForceDispatchKeyGuard(*keys), torch.enable_grad():
            results = self.of.run(given, numbers)
            pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
            found: Sequence[torch.Tensor | None] = [None] * len(leaves)
            if pairs:
                outputs, tangents = zip(*pairs, strict=True)
                found = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True, create_graph=twice)
            return _own([torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)], tensors)

    def results(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        return [t.new_empty(t.shape) for t, wants in zip(tensors, self.wanted, strict=False) if wants]


def _own(results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in contiguous memory that neither an argument nor another of them has."""
    taken = {t.untyped_storage()._cdata for t in arguments}
    own: list[torch.Tensor] = []
    for result in results:
        shared = result.untyped_storage()._cdata in taken
        own.append(result.clone(memory_format=torch.contiguous_format) if shared else result.contiguous())
        taken.add(own[-1].untyped_storage()._cdata)
    return own


def is_control_flow(node: fx.Node) -> bool:
    """Whether the node is a branch or a loop."""
    return hasattr(node.target, "control_flow")


def call_control_flow(node: fx.Node, args: Sequence[Sequence[Any]], recorder: AtenRecorder) -> list[torch.Tensor]:
    """Call the operator with the node's arguments, groups of tensors and numbers. The recorded nodes keep the program."""
    tensors: list[torch.Tensor] = []
    numbers: list[Any] = []
    places: list[list[tuple[int, Any]]] = []
    for group in args:
        places.append([])
        for value in group:
            kind = 0 if isinstance(value, torch.Tensor) else 1 if isinstance(value, torch.SymInt) else 2
            places[-1].append((kind, (len(tensors), len(numbers), value)[kind]))
            if kind < 2:
                (tensors, numbers)[kind].append(value)
    program = _Call(node.target, places)
    recorder.meta = {**recorder.meta, "control_flow": program}
    return _operator()(program.number, tensors, numbers)  # type: ignore[no-any-return]


# ---- the operator


@functools.cache
def _operator() -> torch._ops.OpOverload:
    """The operator, defined with its first call: most programs have none."""
    library = torch.library.Library("treadle", "FRAGMENT")
    library.define(
        "control_flow(int program, Tensor[] tensors, SymInt[] numbers) -> Tensor[]",
        tags=(torch.Tag.nondeterministic_seeded,),  # bodies may draw random numbers: the call is made once, used or not
    )
    library.impl("control_flow", _run, "CompositeExplicitAutograd")
    register_fake("treadle::control_flow", _fake, library)
    torch.library.register_autograd("treadle::control_flow", _differentiate, setup_context=_save, lib=library)
    _libraries.append(library)
    return torch.ops.treadle.control_flow.default


# ---- kernels


def _run(program: int, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
    with torch.no_grad():
        return _programs[program].run(tensors, numbers)


def _fake(program: int, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
    return _programs[program].results(tensors, numbers)


# ---- autograd


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    program, tensors, ctx.given_numbers = inputs
    ctx.program = _programs[program]
    ctx.save_for_backward(*tensors)
    ctx.layouts = [(r.shape, r.dtype, r.device) for r in output]


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
    tensors = ctx.saved_tensors
    wanted = [t.requires_grad for t in tensors]
    given = [
        torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
        for gradient, (shape, dtype, device) in zip(gradients, ctx.layouts, strict=True)
    ]
    program = ctx.program.gradient(wanted)
    found = iter(_operator()(program.number, [*tensors, *given], ctx.given_numbers))
    return None, [next(found) if wants else None for wants in wanted], [None] * len(ctx.given_numbers)
