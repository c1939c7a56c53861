"""One measurement: a region in several variants, each compiled and timed; the fastest is remembered on disk.

A variant that cannot be compiled, runs out of memory, or disagrees with the first one is no candidate.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from treadle_codegen.__about__ import __version__
from treadle_codegen.cache import FileCache, content_key
from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.ir.loops import Program
from treadle_codegen.ir.text import format_program
from treadle_codegen.tune.clock import Clock
from treadle_codegen.tune.region import random_inputs

_KIND, _SUFFIX = "tuned", ".json"
_PROGRESS_AFTER = 5.0  # seconds
_COMPILES_AT_ONCE = 16
# Largest difference from the first variant, relative to its largest value, and how many elements may differ by more:
# a comparison in what follows the product may tip over.
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float32: 1e-2}
_MAY_DIFFER = 1e-3


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a region: what it is called in tables, its program, and the tiling of its first kernel (or None).

    parts: into how many parts the sums of the region's matrix product are cut; 0: no loop computes it, or it has none.
    """

    label: str
    program: Program
    choice: Any = None
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured of one region: seconds by label, or why there are none, and the label that was chosen."""

    region: str
    seconds: dict[str, float]
    failures: dict[str, str]
    chosen: str
    cached: bool

    def __str__(self) -> str:
        rows = [f"  {1e6 * t:10.1f} us  {label}" for label, t in sorted(self.seconds.items(), key=lambda row: row[1])]
        rows += [f"  {'-':>10}     {label}: {reason}" for label, reason in self.failures.items()]
        where = " (from the cache)" if self.cached else ""
        return "\n".join([f"{self.region}: {self.chosen}{where}", *rows])


Compile = Callable[[Variant], Callable[..., list[Any]]]


@dataclass(slots=True)
class Measurer:
    """Runs trials on one device. `compile` makes a function of a variant; `trials` lists all that were run, in order."""

    clock: Clock
    compile: Compile
    cache: FileCache
    device: torch.device
    trials: list[Trial] = field(default_factory=list)
    _known: dict[str, Trial] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    def choose(self, name: str, variants: Sequence[Variant]) -> Variant:
        """The fastest variant. The first is the one that is right for certain, and is chosen where no other can be measured."""
        key = self._key(variants)
        trial = self._known.get(key) or self._read(name, key, variants)
        if trial is None:
            trial = self._measure(name, variants)
            content = json.dumps([trial.seconds, trial.failures, trial.chosen]).encode()
            self.cache.store(_KIND, key, content, _SUFFIX)
        if key not in self._known:
            self._known[key] = trial
            self.trials.append(trial)
        return next(v for v in variants if v.label == trial.chosen)

    def _key(self, variants: Sequence[Variant]) -> str:
        texts = [part for v in variants for part in (v.label, format_program(v.program), repr(v.choice))]
        return content_key(self.clock.identity, __version__, str(self.device.type), *texts)

    def _read(self, name: str, key: str, variants: Sequence[Variant]) -> Trial | None:
        content = self.cache.read(_KIND, key, _SUFFIX)
        if content is None:
            return None
        seconds, failures, chosen = json.loads(content)
        return Trial(name, seconds, failures, chosen, True) if chosen in {v.label for v in variants} else None

    def _measure(self, name: str, variants: Sequence[Variant]) -> Trial:
        self._show(f"measuring {len(variants)} variants of {name}")
        seconds: dict[str, float] = {}
        failures: dict[str, str] = {}
        expected: list[Any] | None = None
        inputs: list[torch.Tensor] = []
        runs: dict[str, Callable[[], Any]] = {}
        for variant, made in zip(variants, self._compile_all(variants), strict=True):
            if isinstance(made, Exception):
                failures[variant.label] = _short(made)
                continue
            try:
                inputs = inputs or random_inputs(variant.program, self.device)
                found = made(*inputs)
                if expected is None:
                    expected = found
                elif not _agree(found, expected):
                    failures[variant.label] = "other values than the first variant"
                    continue
                runs[variant.label] = partial(made, *inputs)
                seconds[variant.label] = self.clock.seconds(runs[variant.label], variant.label)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failures[variant.label] = "out of memory"
        chosen = self._fastest(variants[0].label, seconds, runs)
        return Trial(name, seconds, failures, chosen, False)

    def _fastest(self, first: str, seconds: dict[str, float], runs: Mapping[str, Callable[[], Any]]) -> str:
        """The label with the shortest time. Where times are noisy, it must beat the first one's clearly, in a second round, too."""
        chosen = min(seconds, key=lambda label: seconds[label]) if seconds else first
        if first not in seconds or chosen == first:
            return chosen
        if self.clock.noise > 0:
            for label in (first, chosen, first, chosen):
                seconds[label] = min(seconds[label], self.clock.seconds(runs[label], label))
        return chosen if seconds[chosen] <= (1 - self.clock.noise) * seconds[first] else first

    def _compile_all(self, variants: Sequence[Variant]) -> list[Any]:
        def attempt(variant: Variant) -> Any:
            try:
                return self.compile(variant)
            except CodegenUnavailable as error:
                return error

        with ThreadPoolExecutor(min(len(variants), _COMPILES_AT_ONCE), "treadle-tune") as threads:
            return list(threads.map(attempt, variants))

    def _show(self, text: str) -> None:
        if time.monotonic() - self._started > _PROGRESS_AFTER:
            sys.stderr.write(f"treadle: autotuning, {text}\n")


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory could not be had. PyTorch's allocator for the CPU says so in the message of a RuntimeError only."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _agree(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(_same(a, b) for a, b in zip(found, expected, strict=True) if isinstance(a, torch.Tensor))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not b.numel():
        return True
    if not b.dtype.is_floating_point:
        return float((a != b).double().mean()) <= _MAY_DIFFER
    a, b, tolerance = a.double(), b.double(), _TOLERANCE.get(b.dtype, 1e-6)
    scale = float(b.nan_to_num(0, 0, 0).abs().max())
    return (
        float((~torch.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)).double().mean())
        <= _MAY_DIFFER
    )
