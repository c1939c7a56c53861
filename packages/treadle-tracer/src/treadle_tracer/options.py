"""What a user of the tracer can choose, declared once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TracerOptions:
    """Options of one compiled function.

    fullgraph              a graph break or a frame that cannot be traced is an error that names the reason and the line
    dynamic                None: a tensor dimension that changed between calls becomes dynamic; True: all dimensions from the start;
                           False: sizes are always specialised
    raise_internal_errors  a bug of the tracer is raised as InternalError, instead of a warning and eager execution
    recompile_limit        entries kept for one code object (per module instance where the first argument is one); then it runs eagerly
    capture_scalars        numbers and sizes that only the data can tell (`.item()`, `nonzero`, boolean masks) stay in the graph, as always
                           under `fullgraph`; otherwise they are graph breaks
    assume                what an operator asks about a size that only the data can tell (is it 0? is it 1?) is assumed to be otherwise:
                           the graph checks that, and where it does not hold Python runs the program; False: such a question is a break
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    raise_internal_errors: bool = False
    recompile_limit: int = 8
    capture_scalars: bool = False
    assume: bool = True
