"""A traced graph to a `TrainingProgram`: the joint graph, the cut, the compiled halves; or what an earlier process has kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import fx

from .gradient_programs import GradientPrograms, Recipe
from .joint import trace_joint
from .kept.key import program_key
from .kept.program import kept_graphs
from .kept.record import Program
from .kept.store import BackwardNames, KeepingCompiler, find_program, is_keeping, keep_program
from .partition import divided
from .traced_run import Traced, results_to_cut
from .training import ProgramFacts, TrainingProgram

Compiled = Callable[..., Sequence[Any]]


def training_program(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    forward: Callable[[fx.GraphModule, Sequence[Any]], Compiled],
    recipe: Recipe,
) -> TrainingProgram | None:
    """The program of `gm` and its gradients; None where there is nothing to differentiate.

    forward: compiles the forward half. Raises UnsupportedGraph where there is no functional form.
    """
    key = _key(gm, example_inputs, forward, recipe) if is_keeping() else None
    program = None if key is None else _found(key, gm, example_inputs, forward, recipe)
    return program or _made(key, gm, example_inputs, forward, recipe)


def _key(gm: fx.GraphModule, example_inputs: Sequence[Any], forward: Any, recipe: Recipe) -> str | None:
    compilers = [getattr(compiler, "identity", None) for compiler in (forward, recipe.compile)]
    choices = [recipe.partition, *filter(None, [recipe.again])]
    texts = [getattr(choice, "kept_as", None) for choice in choices]
    partition = None if None in texts else "; ".join(texts)
    return program_key(gm, example_inputs, partition, recipe.decompositions, compilers)


def _found(
    key: str, gm: fx.GraphModule, example_inputs: Sequence[Any], forward: Any, recipe: Recipe
) -> TrainingProgram | None:
    """The program that is kept under the key, or None. Where there is a key, the compilers keep what they make."""
    kept = find_program(key, gm)
    if kept is None:
        return None
    joint, halves = kept_graphs(gm, kept, example_inputs, recipe)
    compiled = forward.find(kept.forward, lambda: halves.whole().forward)
    if compiled is None:
        return None
    names = BackwardNames(key, cast(KeepingCompiler, recipe.compile))
    programs = GradientPrograms(Traced(gm), recipe)
    return TrainingProgram(joint, halves, kept.facts, compiled, recipe.compile, programs, names)


def _made(
    key: str | None, gm: fx.GraphModule, example_inputs: Sequence[Any], forward: Any, recipe: Recipe
) -> TrainingProgram | None:
    """The program, traced and compiled, and kept under the key."""
    joint = trace_joint(gm, example_inputs, recipe.decompositions)
    if joint is None:
        return None
    is_lossy = bool(joint.cuts) and joint.lossy is not None
    if is_lossy:
        views = {joint.n_outputs + k: view for k, view in enumerate(joint.views)}
        found = results_to_cut(gm, joint.contract, joint.tangents, joint.cuts, views)
        joint = replace(joint, results_to_cut=found)
    halves = divided(joint, recipe.partition, recipe.again)
    compiled = forward(halves.forward, [*joint.contract.static_tensors, *example_inputs])
    facts = ProgramFacts.of(joint, halves)
    name, names = halves.forward.meta.get("kept_as"), None
    if key is not None and name is not None and not (halves.numbers or joint.custom or is_lossy):
        keep_program(key, Program.of(name, joint, halves, facts), gm)
        names = BackwardNames(key, cast(KeepingCompiler, recipe.compile))
    programs = GradientPrograms(Traced(gm), recipe)
    return TrainingProgram(joint, halves, facts, compiled, recipe.compile, programs, names)
