"""Random control flow with breaks in every place (`control_flow_programs`): results, exceptions, tracebacks' lines, writes and their order
are Python's. `python test_random_control_flow.py FIRST COUNT [nested]` runs more of them."""

from __future__ import annotations

import sys
import traceback
import warnings

import pytest
import torch
from compile_runs import compiled, listed, load, outcome, portrait
from control_flow_programs import HEADER, nested_program, program

ARGUMENTS = [(1.0, 1, 2), (-1.0, 2, 2), (2.0, 3, 4), (1.0, 1, 2)]


def runs(namespace, function):
    seen = []
    for scale, n, m in ARGUMENTS:
        namespace["log"].clear()
        x, y = torch.tensor([1.0, -2.0]) * scale, torch.tensor([0.5, 3.0])
        seen.append(outcome(lambda x, y: listed(function(x, y, n, m)), [x, y], {}) + (portrait(namespace["log"]),))
        assert sys.exc_info() == (None, None, None)
    return seen


def check(seed, make=program):
    text = make(seed)
    eager, traced = load(text), load(text)
    want = runs(eager, eager["program"])
    fast, recorder = compiled(traced["program"])
    have = runs(traced, fast)
    for number, (expected, got) in enumerate(zip(want, have)):
        assert got == expected, f"call {number} of seed {seed}:{text.removeprefix(HEADER)}"
    return recorder


@pytest.mark.parametrize("seed", range(60))
def test_random_control_flow(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(40))
def test_random_control_flow_in_called_functions(seed):
    check(seed, nested_program)


def main(first, count, make="program"):
    failed, codes = [], {}
    for seed in range(int(first), int(first) + int(count)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                recorder = check(seed, {"program": program, "nested": nested_program}[make])
            for _, skip in recorder.skips:
                if not skip.is_others_code:
                    codes[skip.text.partition("\n")[0][:150]] = codes.get(skip.text.partition("\n")[0][:150], 0) + 1
        except SyntaxError:
            continue
        except Exception:
            failed.append(seed)
            print(seed, traceback.format_exc()[-300:], flush=True)
    print(len(failed), "of", count, "failed:", failed)
    for text, times in sorted(codes.items(), key=lambda pair: -pair[1])[:25]:
        print(times, text)


if __name__ == "__main__":
    main(*sys.argv[1:])
