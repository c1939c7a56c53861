"""Deferred asserts: conditions on numbers known only at run time, which the graph checks.

A node `aten._assert_scalar(condition, message)` makes every backend raise RuntimeError(message); `meta["raises"]` is the exception class
that the program raises there. The message that the backend gets ends in a tag with the assert's number in the graph. The tag, not the
user's text, tells the exceptions of asserts from all others; nobody sees it, because `raising_typed` and `raising_as_program` raise
exceptions without it.

    aten._assert_scalar(%ge, "n >= 0 does not hold, needed at f.py:3 [treadle assert 0]")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_TAG = re.compile(r" \[treadle assert (\d+)\]")


@dataclass(frozen=True, slots=True)
class DeferredAssert:
    """What one assert of a graph says when it fails, and as which exception."""

    message: str
    raises: type[Exception]


class AssertFailed(RuntimeError):
    """A deferred assert of the graph does not hold. Replacement code catches it and runs the program itself (`deoptimise`)."""

    def __init__(self, failed: DeferredAssert):
        self.message = failed.message
        self.raises = failed.raises
        super().__init__(failed.message)


def tag_asserts(graph: torch.fx.Graph) -> None:
    """Number the asserts of a finished graph in their messages; the message without the tag is kept in `meta["message"]`."""
    for number, node in enumerate(_assert_nodes(graph)):
        condition, message = node.args
        message = node.meta.setdefault("message", message)
        node.args = (condition, f"{message} [treadle assert {number}]")


def asserts_of(gm: torch.fx.GraphModule | None) -> tuple[DeferredAssert, ...]:
    """The asserts of a tagged graph, by number."""
    nodes = _assert_nodes(gm.graph) if gm is not None else []
    return tuple(DeferredAssert(node.meta["message"], node.meta.get("raises", RuntimeError)) for node in nodes)


def _assert_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.target is torch.ops.aten._assert_scalar.default]


def failed_assert(error: RuntimeError, asserts: tuple[DeferredAssert, ...]) -> DeferredAssert | None:
    """The assert whose failure a backend has reported by this exception; None when it reports something else."""
    found = _TAG.search(str(error))
    number = int(found[1]) if found is not None else len(asserts)
    return asserts[number] if number < len(asserts) else None


def raising_typed(
    compiled: Callable[..., Any], asserts: tuple[DeferredAssert, ...], draws: bool = True
) -> Callable[..., Any]:
    """`compiled`, for a graph that Python may have to run after: a failing assert raises AssertFailed.

    draws: the graph draws random numbers. Whatever is raised, those drawn so far count as not drawn (the CPU's generator; reading its
    state takes some microseconds), since the program draws them again.
    """

    def run(*args: Any) -> Any:
        state = torch.get_rng_state() if draws else None
        try:
            return compiled(*args)
        except Exception as error:
            if state is not None:
                torch.set_rng_state(state)
            failed = failed_assert(error, asserts) if isinstance(error, RuntimeError) else None
            if failed is None or hasattr(error, "has_written"):
                raise
            raise AssertFailed(failed) from None

    return run


def raising_as_program(compiled: Callable[..., Any], asserts: tuple[DeferredAssert, ...]) -> Callable[..., Any]:
    """`compiled`, for a graph that Python cannot run after: a failing assert raises the exception that the program would raise."""

    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except RuntimeError as error:
            failed = failed_assert(error, asserts)
            if failed is None:
                raise
            raise failed.raises(failed.message) from None

    return run
