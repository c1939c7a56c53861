"""Hooks on inputs that some outputs of a graph do not depend on: calls with such inputs run in eager.

    def f(x): return x @ v, x @ w           w.register_hook(lambda gradient: gradient * mask)
    f(x)[0].sum().backward()                in eager the pass does not come to w

The node of a compiled graph leads to all inputs that have gradients. Where a pass has none for one of them, autograd goes there all the
same, and calls the hooks with None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from .contract import CallInput

if TYPE_CHECKING:
    from .training import TrainingProgram

_HOOKS = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


def hooked_inputs(program: TrainingProgram) -> Callable[[Sequence[Any]], bool] | None:
    """Whether the inputs of a call, given to the result, have hooks that passes from single outputs must not call. None where no pass
    leaves out an input that another comes to.

    Where such passes drop nothing of each other's (`separate_passes`), any hook counts: it may ask for stages, which drop all."""
    joint, reads = program.joint, program.halves.reads
    least = len(joint.tangents) + bool(joint.freed_by)
    some = [joint.gradients[k] for k in program.differentiated if 0 < len(reads[k] or ()) < least]
    inputs = [joint.contract.inputs[place] for place in some]
    given = [source.index for source in inputs if isinstance(source, CallInput)]
    static = [source.tensor for source in inputs if not isinstance(source, CallInput)]

    def are_hooked(args: Sequence[Any]) -> bool:
        return any(any(_HOOKS(t)) for t in static) or any(any(_HOOKS(args[k])) for k in given)

    return are_hooked if some else None


__all__ = ["hooked_inputs"]
