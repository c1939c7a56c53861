"""One step of a recurrent network: `torch.lstm_cell`, `gru_cell`, `rnn_tanh_cell` and `rnn_relu_cell`.

PyTorch's functions in C++ compare sizes as numbers, which would fix the size of the batch. Where it is a symbol, functions of torch with
the same steps are traced in their place (aten/src/ATen/native/RNN.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

Tensors = Sequence[torch.Tensor]


class Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    ih: torch.Tensor
    hh: torch.Tensor
    bias_ih: torch.Tensor | None
    bias_hh: torch.Tensor | None
    projection: torch.Tensor | None


def lstm_cell(inputs: torch.Tensor, state: Tensors, weights: Weights) -> tuple[torch.Tensor, ...]:
    gates = F.linear(state[0], weights.hh, weights.bias_hh) + inputs
    ingate, forgetgate, cellgate, outgate = gates.chunk(4, 1)
    cell = forgetgate.sigmoid() * state[1] + ingate.sigmoid() * cellgate.tanh()
    hidden = outgate.sigmoid() * cell.tanh()
    return (hidden if weights.projection is None else torch.matmul(hidden, weights.projection.t())), cell


def gru_cell(inputs: torch.Tensor, state: Tensors, weights: Weights) -> tuple[torch.Tensor, ...]:
    (hidden,) = state
    reset, update, new = inputs.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = F.linear(hidden, weights.hh, weights.bias_hh).chunk(3, 1)
    new = (new + hidden_new * (hidden_reset + reset).sigmoid()).tanh()
    return ((hidden - new) * (hidden_update + update).sigmoid() + new,)


def tanh_cell(inputs: torch.Tensor, state: Tensors, weights: Weights) -> tuple[torch.Tensor, ...]:
    return ((F.linear(state[0], weights.hh, weights.bias_hh) + inputs).tanh(),)


def relu_cell(inputs: torch.Tensor, state: Tensors, weights: Weights) -> tuple[torch.Tensor, ...]:
    return ((F.linear(state[0], weights.hh, weights.bias_hh) + inputs).relu(),)


# ---- the functions of torch


def step(
    cell: Callable[..., tuple[torch.Tensor, ...]],
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """torch.gru_cell, rnn_tanh_cell and rnn_relu_cell."""
    return cell(F.linear(input, w_ih, b_ih), (hx,), Weights(w_ih, w_hh, b_ih, b_hh, None))[0]


def step_of_two(
    cell: Callable[..., tuple[torch.Tensor, ...]],
    input: torch.Tensor,
    hx: Tensors,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """torch.lstm_cell, whose state is two tensors."""
    hidden, memory = hx
    return cell(F.linear(input, w_ih, b_ih), (hidden, memory), Weights(w_ih, w_hh, b_ih, b_hh, None))


def _in_steps(target: Callable[..., object], cell: Callable[..., object]) -> Apply:
    traced = step_of_two if cell is lstm_cell else step

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        given = args[0].force(tx) if args and isinstance(args[0], LazyValue) else (args or [None])[0]
        if not isinstance(given, TensorValue) or why_not_in_steps(given.fake) is not None:
            return tx.run_in_graph("call_function", target, args, kwargs)
        return tx.inline(tx.wrap_known(traced), [tx.wrap_known(cell), *args], kwargs)

    return apply


def why_not_in_steps(fake: torch.Tensor) -> str | None:
    """Why the function of torch itself stands in the graph for an input like this one."""
    if not any(isinstance(size, torch.SymInt) for size in fake.shape):
        return "its sizes are constants"
    if fake.device.type != "cpu":
        return "a fused kernel computes the step"
    return "autocast casts what the function is given" if torch.is_autocast_enabled("cpu") else None


RULES = (
    Rule(torch.lstm_cell, _in_steps(torch.lstm_cell, lstm_cell), Effect.GRAPH),
    Rule(torch.gru_cell, _in_steps(torch.gru_cell, gru_cell), Effect.GRAPH),
    Rule(torch.rnn_tanh_cell, _in_steps(torch.rnn_tanh_cell, tanh_cell), Effect.GRAPH),
    Rule(torch.rnn_relu_cell, _in_steps(torch.rnn_relu_cell, relu_cell), Effect.GRAPH),
)
