"""What is said when sizes of a dynamic graph have got kernels of their own, or should have.

The code generator compiles them in the background (`treadle_codegen.codegen.hot_sizes`) and calls these functions from the graph's
next call at the sizes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from . import logs
from .bugs import InternalError
from .errors import TreadleWarning
from .options import CompileOptions
from .stats import stats

if TYPE_CHECKING:
    from treadle_codegen.codegen.hot_sizes import HotSizes


def report_hot_sizes(hot: HotSizes, options: CompileOptions) -> None:
    """Count and log what `hot` compiles; a compile that fails is a bug, raised or warned of as the options say."""
    raising = options.values["raise_internal_errors"]

    def ready(sizes: dict[str, int], seconds: float) -> None:
        stats.add(hot_sizes=1)
        named = ", ".join(f"{name}={value}" for name, value in sizes.items())
        logs.emit("hot_sizes", f"kernels for {named}, compiled in {seconds:.2f} s")

    def failed(error: Any) -> None:
        if raising:
            raise InternalError(f"bug of treadle in pass {error.pass_name!r}", str(error)) from error
        warnings.warn(f"{error}. The graph keeps the kernels it has.", TreadleWarning, stacklevel=2)

    hot.on_ready, hot.on_failure = ready, failed
