"""Recurrent networks on sequences: packed ones (`torch.nn.utils.rnn`), whose lengths follow from constants, and padded ones.

Of packed sequences, kernels read lengths and batch sizes from memory, which fake tensors do not have. Functions of torch with the same
steps are traced in their place (aten/src/ATen/native/PackedSequence.cpp, RNN.cpp).

On padded sequences PyTorch has a kernel for LSTM. GRU and RNN it takes apart on the CPU, so that a graph holds every step: where there are
many, or their number changes, they are left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.known_elements import known_elements
from treadle_tracer.values.rules.recurrent_cells import Weights, gru_cell, lstm_cell, relu_cell, tanh_cell
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import Sequence as SequenceValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# Of all layers and directions together. Each is some ten nodes, and takes about half a second to compile for training.
_MOST_STEPS = 20
_MOST_STEPS_IN_ONE_GRAPH = 256  # where the user wants one graph or nothing
# Of GRU and RNN on padded sequences, which PyTorch takes apart on the CPU. 50 steps take three seconds to compile and gain a fifth.
_MOST_PADDED_STEPS = 64

Tensors = Sequence[torch.Tensor]

# ---- what is traced in place of the kernels


def packed(input: torch.Tensor, positions: Any, batch_sizes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """torch._pack_padded_sequence: `positions` of the rows among those of the first two dimensions together."""
    rows = torch.tensor(positions, device=input.device)
    return input.flatten(0, 1).index_select(0, rows), torch.tensor(batch_sizes)


def padded(
    data: torch.Tensor, positions: Any, is_given: Any, lengths: Any, batch_first: bool, padding_value: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch._pad_packed_sequence: `positions` of the rows of the result, first those of the first step; `is_given`, None if all are."""
    steps = len(positions)
    rows = torch.tensor(positions, device=data.device).flatten()
    found = data.index_select(0, rows)
    if is_given is not None:
        mask = torch.tensor(is_given, device=data.device).flatten().reshape(-1, *[1] * (data.dim() - 1))
        found = torch.where(mask, found, found.new_full((), padding_value))
    found = found.unflatten(0, (steps, len(positions[0])))
    return (found.transpose(0, 1) if batch_first else found), torch.tensor(lengths)


def _forwards(cell: Any, inputs: torch.Tensor, batch_sizes: Any, state: Tensors, weights: Weights) -> Any:
    """The outputs of all steps, and the last state of each sequence. Sequences end one after the other, the shortest first."""
    outputs, ended, start, running = [], [], 0, batch_sizes[0]
    for size in batch_sizes:
        if size < running:
            ended.append(tuple([part[size:running] for part in state]))
            state = tuple([part[:size] for part in state])
        running = size
        state = cell(inputs[start : start + size], state, weights)
        start += size
        outputs.append(state[0])
    ended.append(state)
    ended.reverse()
    return torch.cat(outputs), tuple([torch.cat(parts) for parts in zip(*ended, strict=True)])


def _backwards(cell: Any, inputs: torch.Tensor, batch_sizes: Any, first: Tensors, weights: Weights) -> Any:
    """The same from the last step to the first one: sequences begin one after the other, the longest first."""
    running, end = batch_sizes[-1], inputs.shape[0]
    state, outputs = tuple([part[:running] for part in first]), []
    for size in reversed(batch_sizes):
        if size > running:
            state = tuple([torch.cat([part, more[running:size]]) for part, more in zip(state, first, strict=True)])
        running = size
        state = cell(inputs[end - size : end], state, weights)
        end -= size
        outputs.append(state[0])
    outputs.reverse()
    return torch.cat(outputs), state


def recurrent(
    cell: Any,
    data: torch.Tensor,
    batch_sizes: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    """torch.lstm, gru, rnn_tanh and rnn_relu of a packed sequence. hx: the states as they are passed, stacked."""
    directions = (_forwards, _backwards) if bidirectional else (_forwards,)
    count = num_layers * len(directions)
    each = len(params) // count
    finals: list[Any] = []
    for layer in range(num_layers):
        outputs = []
        for direction in directions:
            index = len(finals)
            own = params[index * each : (index + 1) * each]
            biases = own[2:4] if has_biases else (None, None)
            weights = Weights(own[0], own[1], biases[0], biases[1], own[-1] if each % 2 else None)
            inputs = F.linear(data, weights.ih, weights.bias_ih)
            output, final = direction(cell, inputs, batch_sizes, tuple([part[index] for part in hx]), weights)
            outputs.append(output)
            finals.append(final)
        data = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            data = F.dropout(data, dropout, True)
    return (data, *[torch.stack(parts) for parts in zip(*finals, strict=True)])


# ---- rules


def _known(tx: TraceContext, value: Value) -> torch.Tensor | None:
    value = value.force(tx) if isinstance(value, LazyValue) else value
    return known_elements(tx, value.known_node) if isinstance(value, TensorValue) else None


def _or_in_graph(target: Callable[..., Any], replace: Any) -> Apply:
    """Call `replace`, or put the call into the graph where that gives None."""

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        args = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
        found = None if kwargs else replace(tx, args)
        return tx.run_in_graph("call_function", target, args, kwargs) if found is None else found

    return apply


def _pack(tx: TraceContext, args: Args) -> Value | None:
    """`_pack_padded_sequence(input, lengths, batch_first)`"""
    if len(args) != 3 or not isinstance(args[0], TensorValue):
        return None
    fake, lengths = args[0].fake, _known(tx, args[1])
    if lengths is None or fake.dim() < 2 or any(type(size) is not int for size in fake.shape):
        return None
    # Which rows the kernel takes is asked of the kernel.
    numbers = torch.arange(fake.shape[0] * fake.shape[1]).reshape(fake.shape[0], fake.shape[1], 1)
    try:
        positions, batch_sizes = torch._pack_padded_sequence(numbers, lengths, args[2].truth(tx))
    except RuntimeError as error:
        raise Unsupported("torch-call-raises", f"_pack_padded_sequence: {error}") from None
    given = [
        args[0],
        tx.from_constant(tuple(positions.flatten().tolist())),
        tx.from_constant(tuple(batch_sizes.tolist())),
    ]
    return tx.inline(tx.wrap_known(packed), given, {})


def _pad(tx: TraceContext, args: Args) -> Value | None:
    """`_pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length)`"""
    if len(args) != 5 or not isinstance(args[0], TensorValue) or not all(arg.is_constant() for arg in args[2:]):
        return None
    batch_sizes, fake = _known(tx, args[1]), args[0].fake
    if batch_sizes is None or not all(type(size) is int for size in fake.shape) or type(args[4].constant()) is not int:
        return None
    numbers = torch.arange(fake.shape[0]).unsqueeze(1)
    try:
        at, lengths = torch._pad_packed_sequence(numbers, batch_sizes, False, -1, args[4].constant())
    except RuntimeError as error:
        raise Unsupported("torch-call-raises", f"_pad_packed_sequence: {error}") from None
    positions, is_given = at.squeeze(-1).clamp(min=0).tolist(), (at >= 0).squeeze(-1)
    mask = None if is_given.all() else is_given.tolist()
    constants = [tx.from_constant(each) for each in (positions, mask, lengths.tolist())]
    return tx.inline(tx.wrap_known(padded), [args[0], *constants, args[2], args[3]], {})


def _network(cell: Callable[..., Any]) -> Callable[[TraceContext, Args], Value | None]:
    def replace(tx: TraceContext, args: Args) -> Value | None:
        """`lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)`"""
        if len(args) != 9 or not isinstance(args[1], TensorValue) or not isinstance(args[3], SequenceValue):
            return None  # of a padded sequence: `gru(input, hx, params, has_biases, ...)`
        data, hx, options = args[0], args[2], args[4:]
        batch_sizes = _known(tx, args[1])
        if batch_sizes is None or not all(option.is_constant() for option in options):
            return None
        if not isinstance(data, TensorValue) or data.fake.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return None
        layers, is_bidirectional = options[1].constant(), bool(options[4].constant())
        most = _MOST_STEPS_IN_ONE_GRAPH if tx.symbols.wants_one_graph else _MOST_STEPS
        if len(batch_sizes) * layers * (1 + is_bidirectional) > most:
            return None
        states = hx if cell is lstm_cell else TupleValue([hx])
        sizes = tx.from_constant(tuple(batch_sizes.tolist()))
        return tx.inline(tx.wrap_known(recurrent), [tx.wrap_known(cell), data, sizes, states, args[3], *options], {})

    return replace


def _refuse_many_steps(tx: TraceContext, name: str, args: Args) -> None:
    """Raise Unsupported for a network on a padded sequence whose steps the graph would hold one by one, for this number of steps alone.

    args: `gru(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)`
    """
    if tx.symbols.wants_one_graph or len(args) != 9 or not isinstance(args[0], TensorValue):
        return
    fake, options = args[0].fake, args[3:]
    if fake.dim() != 3 or fake.device.type != "cpu" or not all(option.is_constant() for option in options):
        return
    _, layers, _, _, is_bidirectional, is_batch_first = [option.constant() for option in options]
    steps = fake.shape[1 if is_batch_first else 0]
    if isinstance(steps, torch.SymInt):
        raise Unsupported("recurrent-steps", f"{name} over a number of steps that changes")
    if steps * layers * (1 + bool(is_bidirectional)) > _MOST_PADDED_STEPS:
        raise Unsupported("recurrent-steps", f"{name} of {layers} layers over {steps} steps")


def _taken_apart(target: Callable[..., Any], cell: Callable[..., Any]) -> Apply:
    """A network for which PyTorch has no kernel on the CPU."""
    replace = _network(cell)

    def or_refuse(tx: TraceContext, args: Args) -> Value | None:
        found = replace(tx, args)
        if found is None:
            _refuse_many_steps(tx, target.__name__, args)
        return found

    return _or_in_graph(target, or_refuse)


RULES = (
    Rule(torch._pack_padded_sequence, _or_in_graph(torch._pack_padded_sequence, _pack), Effect.GRAPH),
    Rule(torch._pad_packed_sequence, _or_in_graph(torch._pad_packed_sequence, _pad), Effect.GRAPH),
    Rule(torch.lstm, _or_in_graph(torch.lstm, _network(lstm_cell)), Effect.GRAPH),
    Rule(torch.gru, _taken_apart(torch.gru, gru_cell), Effect.GRAPH),
    Rule(torch.rnn_tanh, _taken_apart(torch.rnn_tanh, tanh_cell), Effect.GRAPH),
    Rule(torch.rnn_relu, _taken_apart(torch.rnn_relu, relu_cell), Effect.GRAPH),
)
