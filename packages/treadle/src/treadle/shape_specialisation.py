"""Report when kernels specialised to frequent shapes of a dynamic graph are ready, or failed to compile.

The code generator compiles them in the background and calls these functions from the graph's next call at those shapes.
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
    from treadle_codegen.host.shape_specialisation import ShapeSpecialisation


def report_specialisations(specialisation: ShapeSpecialisation, options: CompileOptions) -> None:
    """Count and log the kernels that `specialisation` compiles. A failed compile is a bug: raised, or warned of, as `options` say."""
    raising = options.values["raise_internal_errors"]

    def ready(sizes: dict[str, int], seconds: float) -> None:
        stats.add(specialised_shapes=1)
        named = ", ".join(f"{name}={value}" for name, value in sizes.items())
        logs.emit("shape_specialisation", f"kernels for {named}, compiled in {seconds:.2f} s")

    def failed(error: Any) -> None:
        report = InternalError(error.pass_name, error.message, error.user_line, error.dump_path)
        if raising:
            raise report from error
        warnings.warn(
            f"A dynamic graph keeps its general kernels because of a bug in treadle: {report}",
            TreadleWarning,
            stacklevel=2,
        )

    specialisation.on_ready, specialisation.on_failure = ready, failed
