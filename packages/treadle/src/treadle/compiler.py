"""What programs may ask and tell the compiler: `treadle.compiler`, in the place of `torch.compiler`."""

from __future__ import annotations

from treadle_tracer import allow_in_graph, assume_constant_result, export, set_stance, substitute_in_graph


def is_compiling() -> bool:
    """Whether the caller is being compiled: True in compiled code, False where Python runs it."""
    return False


__all__ = ["allow_in_graph", "assume_constant_result", "export", "is_compiling", "set_stance", "substitute_in_graph"]
