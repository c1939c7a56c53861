"""Without PyTorch none of these tests is collected: treadle-shapes is tested with and without it."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*"]
