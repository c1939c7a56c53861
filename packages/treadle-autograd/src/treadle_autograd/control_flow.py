"""Branches and loops over values of tensors: one operator, which runs the graphs of their bodies (docs/contracts.md, section 3).

    %y = cond([%p, %x], [%w])        ==>     %y = treadle.control_flow(program 3, [%p, %x, %w], [])
    bodies: x @ w,  x - w

Gradients are those of the bodies that have run: they run again in backward, under PyTorch's own autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

_library = torch.library.Library("treadle", "DEF")
_library.define("control_flow(int program, Tensor[] tensors, SymInt[] numbers) -> Tensor[]")
_library.define(
    "control_flow_backward(int program, Tensor[] tensors, SymInt[] numbers, Tensor[] gradients, bool[] wanted) -> Tensor[]"
)

with torch._C._AutoDispatchBelowAutograd():
    _AUTOGRAD: Any = torch._C._dispatch_tls_local_exclude_set()
_AUTOGRAD = _AUTOGRAD - torch._C._dispatch_tls_local_exclude_set()
_programs: dict[int, _Program] = {}
_numbers = itertools.count()


class _Program:
    """A target with the places of its arguments that are neither tensors nor symbolic numbers filled in.

    places: for each argument, (0, position among the tensors), (1, position among the numbers) or (2, the argument itself).
    """

    def __init__(self, target: Any, places: Sequence[Sequence[tuple[int, Any]]]) -> None:
        self.target = target
        self.places = places

    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        return self.target(*self._arguments(tensors, numbers))  # type: ignore[no-any-return]

    def results(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
        return self.target.results(*self._arguments(tensors, numbers))  # type: ignore[no-any-return]

    def _arguments(self, *given: Any) -> list[list[Any]]:
        return [[place if kind == 2 else given[kind][place] for kind, place in group] for group in self.places]


def is_control_flow(node: fx.Node) -> bool:
    """Whether the node is a branch or a loop."""
    return hasattr(node.target, "control_flow")


def call_control_flow(node: fx.Node, args: Sequence[Sequence[Any]]) -> list[torch.Tensor]:
    """Call the operator with the node's arguments, groups of tensors and numbers."""
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
    program = next(_numbers)
    _programs[program] = _Program(node.target, places)
    return torch.ops.treadle.control_flow.default(program, tensors, numbers)  # type: ignore[no-any-return]


# ---- kernels


def _run(program: int, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
    return _programs[program].run(tensors, numbers)


def _fake(program: int, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[torch.Tensor]:
    return _programs[program].results(tensors, numbers)


def _run_backward(
    program: int,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[int],
    gradients: Sequence[torch.Tensor],
    wanted: Sequence[bool],
) -> list[torch.Tensor]:
    given = [t.detach().requires_grad_(wants) for t, wants in zip(tensors, wanted, strict=True)]
    leaves = [t for t in given if t.requires_grad]
    # The dispatcher calls kernels behind autograd, which is to record here.
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD
    with torch._C._ForceDispatchKeyGuard(*keys), torch.enable_grad():
        results = _programs[program].run(given, numbers)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
        if not pairs:
            return [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in leaves]
        found = torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return [
        torch.zeros_like(t, memory_format=torch.contiguous_format) if g is None else _own(g, given)
        for t, g in zip(leaves, found, strict=True)
    ]


def _own(result: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor in contiguous memory that no argument has."""
    storages = {t.untyped_storage()._cdata for t in given}
    return result.contiguous() if result.untyped_storage()._cdata not in storages else result.clone()


def _fake_backward(
    program: int, tensors: Sequence[torch.Tensor], numbers: Any, gradients: Any, wanted: Sequence[bool]
) -> list[torch.Tensor]:
    return [t.new_empty(t.shape) for t, wants in zip(tensors, wanted, strict=True) if wants]


# ---- autograd


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.program, tensors, ctx.given_numbers = inputs
    ctx.save_for_backward(*tensors)
    ctx.layouts = [(r.shape, r.dtype, r.device) for r in output]


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
    tensors = list(ctx.saved_tensors)
    wanted = [t.requires_grad for t in tensors]
    given = [
        torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
        for gradient, (shape, dtype, device) in zip(gradients, ctx.layouts, strict=True)
    ]
    found = iter(
        torch.ops.treadle.control_flow_backward.default(ctx.program, tensors, ctx.given_numbers, given, wanted)
    )
    return None, [next(found) if wants else None for wants in wanted], [None] * len(ctx.given_numbers)


_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "control_flow": (_run, _fake),
    "control_flow_backward": (_run_backward, _fake_backward),
}
for _name, (_kernel, _metadata) in _KERNELS.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"treadle::{_name}", _metadata, lib=_library)
torch.library.register_autograd("treadle::control_flow", _differentiate, setup_context=_save, lib=_library)
