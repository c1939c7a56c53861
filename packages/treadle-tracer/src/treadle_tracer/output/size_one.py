"""Whether a graph traced with sizes of 2 and more also gives what eager gives where some of them are 1.

A trace with symbolic sizes takes the general answer wherever a size of 1 would only make more layouts and broadcasts possible, and
records no guard for it. At 1 eager may then squeeze, return a view instead of a copy, or give other strides. So the graph is run once
more on fake tensors of the very sizes at hand: every call must give the shapes and dtypes that the symbolic trace says for these sizes,
every output also the same strides, and of inputs, outputs and tensors that are written to the same ones must share memory. That costs
one run on fake tensors, once for each combination of sizes that are 1, and no compile.

A tensor that the trace has computed only because two ways of the program met there (`meta["merged"]`: a condition, and the tensor that
eager has where it does not hold) is replaced by what eager has: so the run is that of eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_arg

from treadle_shapes.torch import fake_mode

from .call_changes import follow, is_same_number
from .graph_writes import written_arguments
from .torch_switches import restoring_switches

if TYPE_CHECKING:
    from ..source import Source
    from .guards import DynamicNumbers

Numbers = Mapping[Any, int]  # symbol -> its value in the call at hand

# What a call on fake tensors raises when an operator refuses its arguments or needs to know values.
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, AssertionError)


def why_not_served(
    gm: torch.fx.GraphModule | None, inputs: Sequence[Source], dynamic: DynamicNumbers, frame: Any
) -> str | None:
    """Why the graph is not right for the sizes that `frame` has, None if it is; `inputs` are the places of the graph's inputs.

    Looks at the decisions recorded so far, and runs the graph on fake tensors when some size is 1.
    """
    values = tuple(follow(source.path, frame) for source in dynamic.sources)
    if not all(type(value) in (int, float) for value in values) or not dynamic.guard.check(*values):
        return "a recorded decision does not hold"
    ones = dynamic.guard.positions_of_one(values)
    if not ones or gm is None:
        return None
    if ones not in dynamic.guard.refused:
        given = [follow(source.path, frame) for source in inputs]
        why_not = why_not_general(gm, given, dict(zip(dynamic.symbols, values, strict=True)))
        if why_not is None:
            return None
        dynamic.guard.refused[ones] = why_not
    return "calls of the graph do something else at sizes of 1"


def check_size_one(
    gm: torch.fx.GraphModule | None, inputs: Sequence[Source], dynamic: DynamicNumbers, frame: Any
) -> bool:
    """Let the entry's guard hold for sizes of 1 as `frame` has them, if the graph is right there."""
    if why_not_served(gm, inputs, dynamic, frame) is not None:
        return False
    dynamic.guard.accept(dynamic.guard.positions_of_one([follow(source.path, frame) for source in dynamic.sources]))
    return True


def why_not_general(gm: torch.fx.GraphModule, inputs: Sequence[Any], numbers: Numbers) -> str | None:
    """The first call of the graph that does something else on these inputs than its symbolic trace says, None when there is none."""
    replay = _Replay(gm, inputs, numbers)
    try:
        return restoring_switches(replay.run, gm)()
    except _REFUSALS as error:
        return f"{replay.at}: {type(error).__name__}: {error}"


class _Replay:
    """The run of one graph on fake tensors without symbols."""

    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], numbers: Numbers):
        self.gm = gm
        self.numbers = numbers
        self.mode = fake_mode()
        self.at = ""
        self._inputs = iter(inputs)
        self._values: dict[torch.fx.Node, Any] = {}
        self._expected_storages: dict[int, int] = {}
        self._storages: dict[int, int] = {}

    def run(self) -> str | None:
        for node in self.gm.graph.nodes:
            self.at = node.name
            if node.op == "output":
                return self._why_written_differ() or self._why_outputs_differ(node)
            found = self._evaluate(node)
            self._values[node] = self._of_eager(node, found)
            why_not = self._why_differs(node, found)
            if why_not is not None:
                return f"{node.name}: {why_not}"
        return None

    def _of_eager(self, node: torch.fx.Node, found: Any) -> Any:
        """What eager has in place of `found`, which the graph computes."""
        if "merged" not in node.meta:
            return found
        from treadle_shapes import evaluate

        condition, other = node.meta["merged"]
        return found if evaluate(condition, self.numbers) else self._values[other]

    def _evaluate(self, node: torch.fx.Node) -> Any:
        if node.op == "placeholder":
            value = next(self._inputs)
            return self._fake(value) if isinstance(value, torch.Tensor) else value
        if node.op == "get_attr":
            value: Any = self.gm
            for name in str(node.target).split("."):
                value = getattr(value, name)
            return self._fake(value) if isinstance(value, torch.Tensor) else value
        args = map_arg(node.args, self._values.__getitem__)
        kwargs = map_arg(node.kwargs, self._values.__getitem__)
        with self.mode:
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        fake = FakeTensor(self.mode, meta, tensor.device)
        return fake.requires_grad_(True) if tensor.requires_grad else fake

    # ---- comparing

    def _why_differs(self, node: torch.fx.Node, found: Any) -> str | None:
        for want, have in _pairs(node.meta.get("example_value"), found):
            if isinstance(want, (tuple, list)):
                return f"gives {have} instead of {want}"
            if isinstance(want, torch.Tensor) != isinstance(have, torch.Tensor):
                return f"gives {type(have).__name__} instead of {type(want).__name__}"
            if isinstance(want, torch.Tensor):
                why_not = self._why_tensors_differ(want, have)
                if why_not is not None:
                    return why_not
            elif isinstance(want, (int, float, torch.SymInt, torch.SymFloat)) and not is_same_number(
                self._number(want), have
            ):
                return f"gives {have} instead of {self._number(want)}"
        return None

    def _why_tensors_differ(self, want: torch.Tensor, have: torch.Tensor) -> str | None:
        if want.dtype != have.dtype or want.requires_grad != have.requires_grad:
            return "another dtype"
        sizes = tuple(map(self._number, want.shape))
        if sizes != tuple(have.shape):
            return f"sizes {tuple(have.shape)} instead of {sizes}"
        return None

    def _why_written_differ(self) -> str | None:
        """Whether a tensor in the middle is a view or a copy shows only where something is written to."""
        nodes = [node for node in self.gm.graph.nodes if node.op != "output"]
        written = [argument for node in nodes if node.op[:5] == "call_" for argument in written_arguments(node)]
        expected = {s for node in written for s in _storages(node.meta.get("example_value"))}
        found = {s for node in written for s in _storages(self._values[node])}
        for node in nodes:
            for want, have in _pairs(node.meta.get("example_value"), self._values[node]):
                shows = node.op[:5] != "call_" or _storages(want) & expected or _storages(have) & found
                if shows and isinstance(want, torch.Tensor) and self._why_aliases_differ(want, have) is not None:
                    return f"{node.name}: another alias"
        return None

    def _why_aliases_differ(self, want: torch.Tensor, have: torch.Tensor) -> str | None:
        if _group(want, self._expected_storages) != _group(have, self._storages):
            return "another alias"
        return None

    def _why_outputs_differ(self, node: torch.fx.Node) -> str | None:
        for output in node.all_input_nodes:
            for want, have in _pairs(output.meta.get("example_value"), self._values[output]):
                if not isinstance(want, torch.Tensor):
                    continue
                strides = tuple(map(self._number, want.stride()))
                if strides != have.stride() or self._number(want.storage_offset()) != have.storage_offset():
                    return f"{output.name}: strides {have.stride()} instead of {strides}"
                if self._why_aliases_differ(want, have) is not None:
                    return f"{output.name}: another alias"
        return None

    def _number(self, value: Any) -> Any:
        if isinstance(value, (int, float)):
            return value
        from treadle_shapes import evaluate
        from treadle_shapes.torch import expr_of

        expr = expr_of(value)
        return expr if isinstance(expr, (int, float)) else evaluate(expr, self.numbers)  # type: ignore[arg-type]


def _storages(value: Any) -> set[int]:
    """The storages of a tensor, or of a tuple or list of them, told apart by address."""
    if isinstance(value, (tuple, list)):
        return {storage for item in value for storage in _storages(item)}
    return {value.untyped_storage()._cdata} if isinstance(value, torch.Tensor) else set()


def _group(tensor: torch.Tensor, seen: dict[int, int]) -> int:
    """Which of the storages seen so far it is: numbers in order of appearance."""
    return seen.setdefault(tensor.untyped_storage()._cdata, len(seen))


def _pairs(expected: Any, found: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of two results that belong together."""
    if isinstance(expected, (tuple, list)) and isinstance(found, (tuple, list)) and len(expected) == len(found):
        for want, have in zip(expected, found, strict=True):
            yield from _pairs(want, have)
    else:
        yield expected, found
