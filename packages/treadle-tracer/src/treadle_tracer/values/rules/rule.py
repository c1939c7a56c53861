"""The record of a rule, and the makers of the simplest rules."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

Args = list[Value]
Kwargs = dict[str, Value]
Apply = Callable[["TraceContext", Args, Kwargs], Value]


class Effect(Enum):
    """What carrying out a rule leaves behind for the program to see."""

    NONE = "nothing; methods of the program that the rule calls are traced with their own effects"
    ARGUMENTS = (
        "depends on the arguments: iterators advance, functions and operators of theirs run, nodes are made of tensors"
    )
    GRAPH = "nodes in the graph"
    WRITES_ARGUMENTS = "an argument is written to"
    READS_STATE = "nothing, but the answer depends on state of the process or of the trace"
    WRITES_STATE = "state of PyTorch or of the trace changes"
    BREAKS = "the trace ends: Python runs the call"


class Version(NamedTuple):
    """A release of Python ("python") or of a distribution."""

    of: str
    number: tuple[int, int]

    def is_reached(self) -> bool:
        """Whether this release or a later one is running, or installed."""
        if self.of == "python":
            return sys.version_info[:2] >= self.number
        installed = _installed(self.of)
        return installed is not None and installed >= self.number


@functools.cache
def _installed(distribution: str) -> tuple[int, int] | None:
    """Return the major and minor number of the installed release, or None."""
    # A module that is loaded knows its release; reading the metadata of a distribution takes 2 ms.
    text = getattr(sys.modules.get(distribution), "__version__", None)
    try:
        major, minor = (text or metadata.version(distribution)).split(".")[:2]
    except metadata.PackageNotFoundError:
        return None
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Rule:
    """What the trace does at a call of one function.

    function                the callable, or "module.qualname" of one whose module the tracer does not import
    apply                   carries out the call: apply(tx, arguments, named arguments) -> result
    effect                  what that leaves behind
    answers_at_trace_time   the result is a constant: there is no node, and nothing but constants is looked at
    since, until            the first release that has the function; the first that has it no longer; None: no such limit
    wraps                   the rule for calls that this one leaves alone; it must not be registered itself
    """

    function: Any
    apply: Apply
    effect: Effect = Effect.ARGUMENTS
    answers_at_trace_time: bool = False
    since: Version | None = None
    until: Version | None = None
    wraps: Rule | None = None

    @property
    def is_speculatable(self) -> bool:
        """Whether the call may be traced on a path that the program may turn out not to take."""
        return self.answers_at_trace_time or self.effect is Effect.NONE

    @property
    def is_current(self) -> bool:
        """Whether the releases in use have the function."""
        return (self.since is None or self.since.is_reached()) and not (self.until and self.until.is_reached())

    @property
    def place(self) -> str:
        """Where the rule is written, for messages."""
        code = getattr(self.apply, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(self.apply)


def always(function: Any, value: Constant, until: Version | None = None) -> Rule:
    """The call gives `value`."""
    return Rule(function, lambda tx, args, kwargs: value, Effect.NONE, answers_at_trace_time=True, until=until)


def folds(function: Any, effect: Effect = Effect.NONE) -> Rule:
    """The function is called while tracing; its arguments are constants."""
    return Rule(function, lambda tx, args, kwargs: tx.fold(function, args, kwargs), effect, answers_at_trace_time=True)


def breaks(function: Any, code: str) -> Rule:
    """The graph breaks at the call; `code` is a key of breaks.toml."""

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        raise Unsupported(code, ", ".join(arg.describe() for arg in args[:2]))

    return Rule(function, apply, Effect.BREAKS)


def in_graph(function: Any) -> Rule:
    """The call is a node: what happens without a rule, for rules to wrap."""
    return Rule(
        function, lambda tx, args, kwargs: tx.run_in_graph("call_function", function, args, kwargs), Effect.GRAPH
    )


def members(owner: str, names: str) -> list[Any]:
    """The functions with these names in an imported module. The dotted name stands for one that the module lacks, and matches nothing."""
    module = sys.modules.get(owner)
    return [getattr(module, name, f"{owner}.{name}") for name in names.split()]
