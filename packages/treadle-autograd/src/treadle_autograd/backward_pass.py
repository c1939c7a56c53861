"""What one backward pass asks of a compiled program, and the gradients where the compiled backward graph cannot give them.

loss.backward()                              the compiled backward graph, gradients of all primals
torch.autograd.grad(loss, w)                 the compiled backward graph that gives the gradient of `w`
torch.autograd.grad(..., create_graph=True)  a program of the gradients, or PyTorch's own formulas on a second run
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .asked_gradients import named_inputs, node_of
from .gradients_together import differentiable_gradients
from .joint import Gradients

if TYPE_CHECKING:
    from .training import Call, TrainingProgram

_is_in_transform: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor  # by `is_grads_batched=True`

Layout = tuple[Sequence[int], Sequence[int], torch.dtype, torch.device]


class BackwardPass(NamedTuple):
    """One backward pass through one call.

    given     the tangents, None where an output has none
    wanted    positions of the gradients to compute; empty where no tangent is defined
    is_plain  whether no transform maps over the pass and anomaly mode is off
    is_cut    whether somebody looks at the gradients of outputs that others are computed from
    """

    given: tuple[torch.Tensor | None, ...]
    wanted: tuple[int, ...]
    is_plain: bool
    is_cut: bool
    runs_compiled: bool

    def numbers(self) -> list[int]:
        """The numbers of the tangents that are defined."""
        return [k for k, tangent in enumerate(self.given) if tangent is not None]

    def leaves_out_all_others(self, program: TrainingProgram) -> bool:
        """Whether the compiled backward graph reads nothing of what was saved for tangents that are not defined."""
        return len(program.absent(self.given, self.wanted)) + len(self.numbers()) == len(self.given)


def begin_pass(
    call: Call, grad_outputs: Sequence[Any], needed: tuple[bool, ...], functions: Callable[[], Mapping[int, Any]]
) -> BackwardPass:
    """What the pass that runs now asks for.

    needed: for each of the program's gradients in the order of `differentiated` whether autograd's graph goes on behind its primal.
    functions: called for the nodes there, by position of the gradient, where single gradients are asked for.
    """
    program = call.program
    joint = program.joint
    given = tuple([grad_outputs[k] for k in joint.tangents])
    is_defined = tuple([tangent is not None for tangent in given])
    asked = possible = program.possible(is_defined, needed)
    named = named_inputs()
    if named is None or named:  # else the engine goes through all nodes
        behind = functions()
        leaves = {id(given) for given in named or () if node_of(given) is None}
        asked = tuple([k for k in possible if _is_asked_for(behind[k], leaves)])
    wanted = program.choose(asked, possible)
    is_plain = not (torch.is_anomaly_enabled() or any(map(_is_wrapped, given)))
    is_cut = call.observers.were_there()
    runs_compiled = is_plain and not (is_cut or torch.is_grad_enabled())
    if runs_compiled and joint.custom:
        runs_compiled = _are_computed(call, given, wanted)
    return BackwardPass(given, wanted if True in is_defined else (), is_plain, is_cut, runs_compiled)


def _are_computed(call: Call, given: Sequence[torch.Tensor | None], wanted: tuple[int, ...]) -> bool:
    """Whether a compiled backward graph gives autograd's gradients of the program's own functions."""
    defined = frozenset(k for k, tangent in enumerate(given) if tangent is not None)
    others = [custom for custom in call.program.joint.custom if not custom.is_computed(defined)]
    if not (others and defined):
        return True
    return all(custom.is_left_out(defined) for custom in others) and bool(call.program.absent(given, wanted))


def gradients_elsewhere(
    call: Call,
    asked: BackwardPass,
    layouts: Sequence[Layout],
    saved: Sequence[torch.Tensor] | None = None,
    node: Any = None,
) -> Sequence[Any]:
    """The gradients that are wanted, where the compiled backward graph cannot give them. Differentiable in grad mode.

    saved: the tensors that the forward pass has saved, if they are at hand. node: the call's in autograd's graph, if it has one only.
    """
    found = None
    if asked.is_plain and not asked.is_cut:
        if torch.is_grad_enabled() and node is not None and call.program.needs_whole_gradients:
            return differentiable_gradients(call, node, asked.given, asked.wanted)
        found = _differentiable_gradients(call, asked.given, asked.wanted, layouts, saved)
    return _rerun_gradients(call, asked.given, asked.wanted, asked.is_cut) if found is None else found


def _is_asked_for(function: Any, leaves: Set[int]) -> bool:
    """Whether the engine goes on to this node in the backward pass that runs now: `torch.autograd.grad` needs some gradients only.

    leaves: identities of leaves that the caller has named.
    """
    if leaves and id(getattr(function, "variable", None)) in leaves:  # the engine raises for these, which takes 10 us
        return True
    try:
        return torch._C._will_engine_execute_node(function)
    except RuntimeError:
        return True  # torch 2.11 to 2.13 raise for a leaf whose gradient is asked for


def _differentiable_gradients(
    call: Call,
    given: Sequence[torch.Tensor | None],
    wanted: Sequence[int],
    layouts: Sequence[Layout],
    saved: Sequence[torch.Tensor] | None,
) -> Sequence[Any] | None:
    """The gradients by a compiled program that can be differentiated again; None where there is none."""
    if not torch.is_grad_enabled():
        return None
    joint = call.program.joint
    pairs = [(k, t) for k, t in enumerate(given) if t is not None]
    key = Gradients(
        tuple(joint.tangents[k] for k, _ in pairs),
        tuple(joint.gradients[k] for k in wanted),
        tuple(t.requires_grad for _, t in pairs),
    )
    call.raise_if_changed()
    primals = [value for value, _ in call.primals]
    program = call.program.gradient_programs.find(joint, key, primals, None if saved is None else call.program.halves)
    if program is None:
        return None
    tangents = [laid_out(t, *layouts[k]) for k, t in pairs]
    with call.as_in_forward():
        return program(primals, tangents, saved or ())


def _rerun_gradients(
    call: Call, given: Sequence[torch.Tensor | None], wanted: Sequence[int], is_cut: bool
) -> Sequence[Any]:
    """The gradients by PyTorch's own formulas, which autograd records under `create_graph=True`: the program runs again."""
    joint = call.program.joint
    run = call.rerun_cut() if is_cut else call.rerun()
    call.forget_rerun()
    pairs = [(run.outputs[k], tangent) for k, tangent in zip(joint.tangents, given, strict=True) if tangent is not None]
    inputs = [run.inputs[joint.gradients[k]] for k in wanted]
    return run.gradients([output for output, _ in pairs], inputs, [tangent for _, tangent in pairs])


def _is_wrapped(tangent: torch.Tensor | None) -> bool:
    """Whether a transform of `torch.func`, or `is_grads_batched=True`, maps over the backward pass."""
    return tangent is not None and (_is_in_transform(tangent) or _is_batched(tangent))


def laid_out(
    tangent: torch.Tensor | None, size: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tangent with the strides of its output, which backward was compiled for; zeros for an output without one."""
    if tangent is None:
        return torch.empty_strided(size, strides, dtype=dtype, device=device).zero_()
    # Autograd makes tensors of zeros without memory, and lazy conjugates and negatives; kernels read memory.
    is_plain = not (tangent._is_zerotensor() or tangent.is_neg() or tangent.is_conj())
    if is_plain and tangent.stride() == strides:
        return tangent
    return torch.empty_strided(size, strides, dtype=dtype, device=device).copy_(tangent)
