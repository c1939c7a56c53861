"""Symbolic integers and shape reasoning without torch; SymPy is imported only when first needed."""

from __future__ import annotations

from treadle_shapes.__about__ import __version__

__all__ = ["__version__"]
