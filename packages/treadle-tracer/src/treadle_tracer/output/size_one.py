"""Size-one checks: whether a graph traced with sizes of 2 and more also gives eager's results where some of them are 1.

A trace with symbolic sizes takes the size-oblivious answer where a size of 1 would only allow more layouts and broadcasts, and records no
guard for it. At 1 eager may squeeze, return a view instead of a copy, or give other strides. So the graph runs once more, on fake tensors
of the sizes of the call. The check passes when

- every call gives the shapes and dtypes that the symbolic trace says for these sizes,
- every output has the strides and the offset that the trace says (numbers that only the data can tell are symbols in both),
- inputs, outputs and tensors that are written to share memory with the same ones as in the trace.

A check costs one run on fake tensors for each combination of sizes of 1, and no compile.

A tensor that the trace has computed only because two paths of the program join (`meta["joined"]`: a condition, and the tensor that eager
has where the condition does not hold) is replaced by eager's, so the run follows eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from treadle_shapes.torch import fake_mode

from ..by_identity import is_one_of
from ..values.call_effects import storages, written_arguments
from ..values.custom_gradient import CustomGradient
from .call_changes import follow
from .replayed_numbers import ReplayedNumbers, depends_on_data
from .torch_switches import restoring_switches

if TYPE_CHECKING:
    from ..source import Source
    from .guards import DynamicNumbers

Numbers = Mapping[Any, int]  # symbol -> its value in this call

# What a call on fake tensors raises when an operator refuses its arguments or needs to know values.
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError, AssertionError)


def check_size_one(gm: fx.GraphModule | None, inputs: Sequence[Source], dynamic: DynamicNumbers, frame: Any) -> bool:
    """Let the entry's guard accept the sizes of 1 that `frame` has, if the graph is right there. inputs: places of the graph's inputs."""
    if why_not_served(gm, inputs, dynamic, frame) is not None:
        return False
    values = [follow(source.path, frame) for source in dynamic.sources]
    dynamic.guard.accept(dynamic.guard.positions_of_one(values))
    return True


def why_not_served(
    gm: fx.GraphModule | None, inputs: Sequence[Source], dynamic: DynamicNumbers, frame: Any
) -> str | None:
    """Why the graph is not right for the sizes that `frame` has; None if it is.

    Looks at the decisions recorded so far, and runs the graph on fake tensors when some size is 1. A failed check is remembered.
    """
    values = tuple(follow(source.path, frame) for source in dynamic.sources)
    if not all(is_one_of(type(value), (int, float)) for value in values) or not dynamic.guard.check(*values):
        return "a recorded decision does not hold"
    positions = dynamic.guard.positions_of_one(values)
    if not positions or gm is None:
        return None
    if positions not in dynamic.guard.refused:
        given = [follow(source.path, frame) for source in inputs]
        why_not = why_graph_differs(gm, given, dict(zip(dynamic.symbols, values, strict=True)))
        if why_not is None:
            return None
        dynamic.guard.refused[positions] = why_not
    return "calls of the graph do something else at sizes of 1"


def why_graph_differs(gm: fx.GraphModule, inputs: Sequence[Any], numbers: Numbers) -> str | None:
    """The first call of the graph that does something else on these inputs than its symbolic trace says; None when there is none."""
    if any(isinstance(node.target, CustomGradient) for node in gm.graph.nodes):
        return "the backward body of an autograd.Function is not run"
    replay = _Replay(gm, numbers)
    try:
        restoring_switches(replay.run, gm)(*inputs)
    except _Differs as difference:
        return str(difference)
    except _REFUSALS as error:
        return f"{replay.at}: {type(error).__name__}: {error}"
    return None


class _Differs(Exception):
    """The run gives something else than the trace."""


class _Replay(fx.Interpreter):
    """The run of one graph on fake tensors without symbols. Raises _Differs, or what the operators raise."""

    def __init__(self, gm: fx.GraphModule, numbers: Numbers):
        super().__init__(gm, garbage_collect_values=False)
        self.extra_traceback = False
        self.numbers = ReplayedNumbers(numbers)
        self.mode = _mode_with_symbols() if depends_on_data(gm, numbers) else fake_mode()
        self.at = ""
        self._expected_groups: dict[int, int] = {}
        self._groups: dict[int, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node, compared with what the trace says; eager's value where the two differ on purpose."""
        self.at = n.name
        if n.op == "output":
            why_not = self._why_written_differ() or self._why_outputs_differ(n)
        else:
            found = super().run_node(n)
            why_not = self._why_differs(n, found)
            why_not = None if why_not is None else f"{n.name}: {why_not}"
        if why_not is not None:
            raise _Differs(why_not)
        return None if n.op == "output" else self._of_eager(n, found)

    def _of_eager(self, node: fx.Node, found: Any) -> Any:
        """What eager has in place of `found`, which the graph computes."""
        if "joined" not in node.meta:
            return found
        from treadle_shapes import evaluate

        condition, other = node.meta["joined"]
        return found if evaluate(condition, self.numbers.known) else self.env[other]

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._fake(super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._fake(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        with self.mode:
            return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        with self.mode:
            return super().call_method(target, args, kwargs)

    def _fake(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        fake = FakeTensor(self.mode, meta, value.device)
        return fake.requires_grad_(True) if value.requires_grad else fake

    # ---- comparing

    def _why_differs(self, node: fx.Node, found: Any) -> str | None:
        for want, have in _pairs(node.meta.get("example_value"), found):
            if isinstance(want, (tuple, list)):
                return f"gives {have} instead of {want}"
            if isinstance(want, torch.Tensor) != isinstance(have, torch.Tensor):
                return f"gives {type(have).__name__} instead of {type(want).__name__}"
            if isinstance(want, torch.Tensor):
                why_not = self._why_tensors_differ(want, have)
                if why_not is not None:
                    return why_not
            elif isinstance(want, (int, float, torch.SymInt, torch.SymFloat)) and not self.numbers.agree(want, have):
                return f"gives {have} instead of {self._text(want)}"
            elif isinstance(want, torch.SymBool):
                self.numbers.agree(want, have)
        return None

    def _why_tensors_differ(self, want: torch.Tensor, have: torch.Tensor) -> str | None:
        if want.dtype != have.dtype or want.requires_grad != have.requires_grad:
            return "another dtype"
        if not self.numbers.all_agree(want.shape, have.shape):
            return f"sizes {tuple(have.shape)} instead of {self._texts(want.shape)}"
        return None

    def _why_written_differ(self) -> str | None:
        """A difference between view and copy in the middle of the graph matters only for memory that is written to."""
        nodes = [node for node in self.module.graph.nodes if node.op != "output"]  # type: ignore[union-attr]
        written = [argument for node in nodes if node.op[:5] == "call_" for argument in written_arguments(node)]
        expected = storages([node.meta.get("example_value") for node in written])
        found = storages([self.env[node] for node in written])
        for node in nodes:
            for want, have in _pairs(node.meta.get("example_value"), self.env[node]):
                shows = node.op[:5] != "call_" or storages(want) & expected or storages(have) & found
                if shows and isinstance(want, torch.Tensor) and self._why_aliases_differ(want, have) is not None:
                    return f"{node.name}: another alias"
        return None

    def _why_aliases_differ(self, want: torch.Tensor, have: torch.Tensor) -> str | None:
        if _group(want, self._expected_groups) != _group(have, self._groups):
            return "another alias"
        return None

    def _why_outputs_differ(self, node: fx.Node) -> str | None:
        for output in node.all_input_nodes:
            for want, have in _pairs(output.meta.get("example_value"), self.env[output]):
                if not isinstance(want, torch.Tensor):
                    continue
                layouts = [(*tensor.stride(), tensor.storage_offset()) for tensor in (want, have)]
                if not self.numbers.all_agree(*layouts):
                    return f"{output.name}: strides {have.stride()} instead of {self._texts(want.stride())}"
                if self._why_aliases_differ(want, have) is not None:
                    return f"{output.name}: another alias"
        return None

    def _texts(self, values: Sequence[Any]) -> str:
        return f"({', '.join(map(self._text, values))})"

    def _text(self, value: Any) -> str:
        try:
            return f"{self.numbers.in_run(value)}"
        except LookupError:
            return f"{value}"


def _mode_with_symbols() -> FakeTensorMode:
    """A mode whose tensors have numbers and sizes that only the data can tell."""
    from treadle_shapes import ShapeEnv
    from treadle_shapes.torch import fake_shape_env

    return fake_mode(
        shape_env=fake_shape_env(ShapeEnv(), allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    )


def _group(tensor: torch.Tensor, seen: dict[int, int]) -> int:
    """The number of a tensor's storage among those seen so far, in order of appearance."""
    return seen.setdefault(tensor.untyped_storage()._cdata, len(seen))


def _pairs(expected: Any, found: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of two results that belong together."""
    if isinstance(expected, (tuple, list)) and isinstance(found, (tuple, list)) and len(expected) == len(found):
        for want, have in zip(expected, found, strict=True):
            yield from _pairs(want, have)
    else:
        yield expected, found
