"""Asserts of a graph about numbers known only at run time raise what the program itself would raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def has_asserts(gm: torch.fx.GraphModule | None) -> bool:
    """Whether the graph may refuse numbers that only its run can tell, so that Python must be able to run the program instead."""
    return gm is not None and any(node.target is torch.ops.aten._assert_scalar.default for node in gm.graph.nodes)


def assert_messages(gm: torch.fx.GraphModule) -> frozenset[str]:
    """The messages of the graph's asserts."""
    nodes = [node for node in gm.graph.nodes if node.target is torch.ops.aten._assert_scalar.default]
    return frozenset(str(node.args[1]) for node in nodes)


def drawing_once(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, for a graph with asserts that Python may have to run after: random numbers that it had drawn before an assert failed
    have not been drawn then (the CPU's generator; reading its state takes some microseconds)."""

    def run(*args: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return compiled(*args)
        except Exception:
            torch.set_rng_state(state)
            raise

    return run


def raising_as_asked(compiled: Callable[..., Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """`compiled`, with the RuntimeErrors of `aten._assert_scalar` nodes turned into what their `meta["raises"]` says.

    Backends raise RuntimeError(message); `x[n]` out of bounds is an IndexError.
    """
    errors: dict[str, type[Exception]] = {}
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default and node.meta.get("raises") is not RuntimeError:
            errors[node.args[1]] = node.meta.get("raises", RuntimeError)
    if not errors:
        return compiled

    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except RuntimeError as error:
            found = errors.get(str(error))
            if found is None:
                raise
            raise found(str(error)) from None

    return run
