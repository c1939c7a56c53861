"""A fuzzer for operators: PyTorch's own samples in one process, under changing sizes, strides, aliasing, dtypes and gradient modes.

    python -m soundness.operators --each 30 --backend aot_eager        # from tools/, or with tools/ on PYTHONPATH

Every operator is compiled once and then called with one random variation of a sample after the other, so that an entry made for one call
meets the next. After each call results, aliasing with the arguments, writes to them and exceptions must be those of eager.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import subprocess
import sys
import threading
import time
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from soundness.compare import Describer, first_difference

if "expecttest" not in sys.modules:  # torch.testing imports it for helpers that are not used here
    _stand_in: Any = types.ModuleType("expecttest")
    _stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = _stand_in

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
NO_VALUE = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
TOLERANCES = {torch.bfloat16: 3e-2, torch.float16: 3e-3, torch.float32: 2e-4, torch.complex64: 2e-4}

COMPILED, EAGER, MISMATCH, DONE = "compiled", "eager", "mismatch", "done"  # what a line of a worker says

Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


# -- variations of an argument


def _as_it_is(t: torch.Tensor) -> torch.Tensor:
    return t.clone()


def _columns(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t.clone()


def _every_second(t: torch.Tensor) -> torch.Tensor:
    return torch.stack([t, t], -1)[..., 0]


def _with_offset(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape) if t.numel() else t.clone()


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t.clone()


def _one_row(t: torch.Tensor) -> torch.Tensor:
    return t[:1].clone() if t.dim() else t.clone()


def _half(t: torch.Tensor) -> torch.Tensor:
    return t[..., : max(1, t.shape[-1] // 2)].clone() if t.dim() else t.clone()


def _nothing(t: torch.Tensor) -> torch.Tensor:
    return t[:0].clone() if t.dim() else t.clone()


def _repeated(t: torch.Tensor) -> torch.Tensor:
    return t[:1].clone().expand(t.shape) if t.dim() and t.shape[0] else t.clone()


VARIATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    _as_it_is, _as_it_is, _as_it_is, _columns, _every_second, _with_offset, _channels_last, _one_row, _half, _nothing, _repeated,
)  # fmt: skip


def vary(rng: random.Random, arguments: Arguments) -> Callable[[], Arguments]:
    """A maker of fresh arguments: the same random variation of the sample each time."""
    tensors = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    choices = [rng.choice(VARIATIONS) for _ in tensors]
    is_shared = len(tensors) > 1 and tensors[0].shape == tensors[1].shape and rng.random() < 0.15
    needs_gradient = rng.random() < 0.15

    def make() -> Arguments:
        made: list[torch.Tensor] = []

        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            plain = value.layout is torch.strided and not value.is_nested
            varied = choices[len(made)](value.detach()) if plain else value.detach().clone()
            if is_shared and len(made) == 1:
                varied = made[0]
            elif needs_gradient and varied.is_floating_point():
                varied = varied.detach().requires_grad_()
            made.append(varied)
            return varied

        return tree_map(one, arguments)

    return make


# -- one call


def outcome(function: Callable[..., Any], arguments: Arguments, seed: int) -> tuple[Any, list[torch.Tensor]]:
    """(description of the result and the arguments without values, the tensors with the values)."""
    torch.manual_seed(seed)
    first, rest, named = arguments
    try:
        result = function(first, *rest, **named)
    except Exception as error:
        return ("raises", type(error).__name__), []
    everything = (result, arguments)
    tensors = [t for t in tree_leaves(everything) if isinstance(t, torch.Tensor)]
    return Describer(with_values=False).describe(everything), tensors


def why_different(expected: list[torch.Tensor], found: list[torch.Tensor]) -> str | None:
    """Which values differ by more than rounding."""
    for position, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.layout is not torch.strided:
            continue
        tolerance = TOLERANCES.get(a.dtype, 1e-8)
        try:
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as error:
            return f"tensor {position}: {str(error).splitlines()[0]}"
    return None


def samples(op: Any, rng: random.Random) -> Iterator[Arguments]:
    """Samples of random dtypes, for ever."""
    dtypes = [dtype for dtype in DTYPES if dtype in op.dtypes]
    found = {d: [(s.input, s.args, s.kwargs) for s in op.sample_inputs("cpu", d, requires_grad=False)] for d in dtypes}
    found = {dtype: given for dtype, given in found.items() if given}
    while found:
        yield rng.choice(found[rng.choice(list(found))])


def fuzz_operator(op: Any, steps: int, seed: int, backend: str) -> Iterator[str]:
    """Descriptions of all mismatches of one operator."""
    import treadle

    treadle.reset()
    rng = random.Random(f"{op.name} {seed}")
    compiled = treadle.compile(
        lambda *args, **kwargs: op.op(*args, **kwargs),
        backend=backend,
        options={"raise_internal_errors": True, "leave_unprofitable": False, "setup_in_eager": False},
    )
    for step, arguments in zip(range(steps), samples(op, rng), strict=False):
        make = vary(rng, arguments)
        with torch.set_grad_enabled(rng.random() < 0.8):
            expected, right = outcome(op.op, make(), step)
            print(f"{COMPILED} {op.name} step {step}", flush=True)
            found, values = outcome(compiled, make(), step)
            print(f"{EAGER} {op.name}", flush=True)
        what = None if expected == found else first_difference(expected, found)
        if what is None and op.name not in NO_VALUE:
            what = why_different(right, values)
        if what is not None:
            yield f"{op.name} {op.variant_test_name} step {step}: {what[:400]}"


def run_worker(first: int, given: argparse.Namespace) -> None:
    """Fuzz the operators from the position `first` on; one line each for what is about to run, for a mismatch, and for an end."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    for position, op in list(enumerate(chosen_operators(given.only)))[first:]:
        print(f"{EAGER} {op.name}", flush=True)
        faulthandler.dump_traceback_later(300, exit=True)
        for failure in fuzz_operator(op, given.each, given.seed, given.backend):
            print(f"{MISMATCH} {failure}", flush=True)
        print(f"{DONE} {position}", flush=True)


def chosen_operators(only: str | None) -> list[Any]:
    """PyTorch's operators with samples."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if only is None or only in op.name]


def main() -> int:
    """Print every mismatch. Exit status 1 if there is one. Calls that crash eager are passed over."""
    parser = argparse.ArgumentParser(prog="python -m soundness.operators", description=__doc__)
    parser.add_argument("--each", type=int, default=30, help="calls of each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--only", help="operators whose names contain this")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        run_worker(given.worker, given)
        return 0
    count, first, calls, failures = len(chosen_operators(given.only)), 0, 0, []
    start = time.monotonic()
    while first < count:
        command = [sys.executable, "-m", "soundness.operators", *sys.argv[1:], "--worker", str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
            last = ""
            assert worker.stdout is not None and worker.stderr is not None
            errors: list[str] = []
            threading.Thread(target=errors.extend, args=(worker.stderr,), daemon=True).start()
            for line in worker.stdout:
                kind, _, rest = line.rstrip().partition(" ")
                calls += kind == COMPILED
                if kind == MISMATCH:
                    failures.append(rest)
                    print(rest, flush=True)
                if kind == DONE:
                    first = int(rest) + 1
                    if first % 50 == 0:
                        print(
                            f"{first} of {count} operators, {time.monotonic() - start:.0f} s",
                            file=sys.stderr,
                            flush=True,
                        )
                if kind in (COMPILED, EAGER):
                    last = line.rstrip()
        if worker.returncode:
            if not last:
                sys.exit(f"a worker did not start: {''.join(errors[-5:])}")
            if last.startswith(COMPILED):
                failures.append(f"{last}: exit status {worker.returncode}")
                print(failures[-1], flush=True)
            first += 1
    print(f"{calls} calls, {len(failures)} mismatches: {dict(Counter(text.split()[0] for text in failures))}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
