"""The joint graph and the halves of a program that has been found, not traced. They are made when somebody asks for them: for stages of
the backward pass, for gradients that are differentiated again, for the report of the partition."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes import paused, signals_held
from treadle_shapes.torch import outside_transforms

from ..custom_gradients import CustomCall
from ..errors import InternalError
from ..joint import JointTrace, trace_joint
from ..partition import Halves, divided
from .record import Program

if TYPE_CHECKING:
    from ..gradient_programs import Recipe


class _Graphs:
    """What the program of a record has been made of. differentiable: for each input, whether it requires gradients."""

    def __init__(self, gm: fx.GraphModule, program: Program, differentiable: Sequence[bool], recipe: Recipe) -> None:
        self._gm = gm
        self._program = program
        self._differentiable = differentiable
        self._recipe = recipe

    @functools.cached_property
    def halves(self) -> Halves:
        """Raises InternalError where they are not what the record says."""
        recipe, examples = self._recipe, self._examples()
        with signals_held(), paused(), outside_transforms(), recipe.ambient.in_force():
            joint = trace_joint(self._gm, examples, recipe.decompositions)
            if joint is None:
                raise InternalError("kept", "there is nothing to differentiate")
            halves = divided(joint, recipe.partition, recipe.again)
        if Program.of(self._program.forward, joint, halves, self._program.facts) != self._program:
            raise InternalError("kept", "the program that was kept is another one")
        return halves

    def _examples(self) -> list[Any]:
        """The tracer's values of the inputs, in the place of the real ones, which have gone."""
        placeholders = self._gm.graph.find_nodes(op="placeholder")
        values = [node.meta.get("example_value") for node in placeholders]
        return [
            value.detach().requires_grad_(wanted) if isinstance(value, torch.Tensor) else value
            for value, wanted in zip(values, self._differentiable, strict=True)
        ]


class KeptTrace:
    """What a `JointTrace` tells without its graph."""

    custom: tuple[CustomCall, ...] = ()
    results_to_cut: Mapping[int, str] = MappingProxyType({})  # a lossy trace with cuts is not kept

    def __init__(self, program: Program, input_values: Sequence[Any], graphs: _Graphs) -> None:
        self.contract = program.contract
        self.input_values = tuple(input_values)
        self.n_outputs = program.n_outputs
        self.tangents = program.tangents
        self.gradients = program.gradients
        self.sources = program.sources
        self.cuts = program.cuts
        self.freed_by = program.freed_by
        self.views = program.views
        self._graphs = graphs

    def whole(self) -> JointTrace:
        """The trace."""
        return self._graphs.halves.classes.joint


class KeptHalves:
    """What `Halves` tell without their graphs."""

    def __init__(self, program: Program, graphs: _Graphs) -> None:
        self.primals = program.primals
        self.reads = program.reads
        self.saved_for = program.saved_for
        self._graphs = graphs

    def whole(self) -> Halves:
        """The halves."""
        return self._graphs.halves


def kept_graphs(
    gm: fx.GraphModule, program: Program, example_inputs: Sequence[Any], recipe: Recipe
) -> tuple[KeptTrace, KeptHalves]:
    """The trace and the halves of a program that has been found. gm: the traced graph."""
    differentiable = [isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs]
    graphs = _Graphs(gm, program, differentiable, recipe)
    fakes = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    return KeptTrace(program, [*program.contract.static_tensors, *fakes], graphs), KeptHalves(program, graphs)
