"""The options of the tracer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TracerOptions:
    """Options of one compiled function.

    fullgraph              raise an error with the reason and the line at a graph break or a frame that cannot be traced
    dynamic                None: a tensor dimension that changed between calls becomes dynamic; True: all dimensions from the start;
                           False: sizes are always specialised
    raise_internal_errors  raise InternalError at a bug of the tracer, instead of a warning and eager execution
    recompile_limit        the number of entries of one code object (per module instance, if the first argument is a module) after which it
                           runs uncompiled
    capture_scalars        True, and always under `fullgraph`: sizes that depend on data (`nonzero`, boolean masks) stay in the graph, and
                           assumptions may be made about them. None: only where Python can run the program instead when the graph finds
                           that they do not hold, and as long as they hold. False: such sizes break the graph
    defer                  single numbers from tensors (`.item()`, `int(t)`) stay in the graph, unless it cannot check what they must be;
                           output waits until the graph has run. False: both break the graph, unless `capture_scalars` says otherwise for
                           the numbers
    guess                  where one side of a jump on such a number only raises or warns, the graph checks that the other one is taken;
                           Python runs the program where it is not. False: the jump breaks the graph
    expect_items           with `guess`: where a jump asks whether a size that depends on data is 0 (`if index.numel() > 0`), the graph
                           checks that it is not. False: the jump breaks the graph
    assume                 a size that depends on data is assumed to be neither 0 nor 1 where an operator asks; the graph checks that, and
                           Python runs the program where it does not hold. False: such a question breaks the graph
    foresee                numbers of Python's `random` that the program is about to draw are inputs of the graph, and guarded where it
                           decides on them; the generator moves on after the graph. False: they break the graph
    separate               no graph both writes to outside tensors and raises under an exception handler of the program; so it must be for
                           backends that may raise after they have written
    tells_of_compiling     what `torch.compiler.is_compiling()` gives. False where the path of compilers has raised in an earlier trace
    decide_on_inputs       what the program decides on numbers of small outside tensors on the CPU (`if count > 5`, `range(int(n))`) is
                           decided while tracing, and a guard computes it again at the next call. False: it breaks the graph, or the graph
                           checks it
    setup_in_eager         a call that changes what its own trace relies on (the first step of an optimizer makes the state) runs in Python,
                           and is compiled when another call like it comes; a function of which every call does so is traced ever more
                           rarely. The first call of a function that raises runs in Python, too, with all that it calls. False: all are
                           compiled at once
    leave_unprofitable     a function whose graphs cost more than they save against eager is left to Python. The costs are those of
                           treadle_codegen on the CPU
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    raise_internal_errors: bool = False
    recompile_limit: int = 8
    capture_scalars: bool | None = None
    assume: bool = True
    defer: bool = True
    guess: bool = True
    expect_items: bool = True
    foresee: bool = True
    separate: bool = False
    tells_of_compiling: bool = True
    decide_on_inputs: bool = False
    setup_in_eager: bool = False
    leave_unprofitable: bool = False
