"""Limits of one program of a kernel."""

from __future__ import annotations

MAX_ROW = 1 << 14
"""Elements of the longest row that one program holds in registers."""
