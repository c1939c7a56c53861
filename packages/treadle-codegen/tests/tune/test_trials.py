"""Selection, failures and the cache of autotuning, with times that are known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from treadle_codegen.cache import FileCache
from treadle_codegen.errors import CacheWarning, KernelRefused
from treadle_codegen.ir.text import parse_program
from treadle_codegen.tune.trials import Measurer, Variant

PROGRAM = parse_program("""
program inputs b0 outputs view(b1, [8], [1], 0)
input b0 : float32 [8] strides [1] offset 0
output b1 : float32 [8] strides [1] offset 0
loop s0 [i0:8] reduce [] origins
  %0 = load b0[i0] : float32
  %1 = neg %0 : float32
  %2 = store b1[i0] %1 : float32
""")


class KnownTimes:
    """A clock with a table. A time that is an exception is raised."""

    def __init__(self, **times: Any) -> None:
        self.times, self.asked = times, list[str]()
        self.identity, self.noise = "first device", 0.0

    def seconds(self, run: Callable[[], Any], label: str) -> float:
        self.asked.append(label)
        if isinstance(self.times[label], Exception):
            raise self.times[label]
        return self.times[label]


def negated(x: torch.Tensor) -> list[torch.Tensor]:
    return [-x]


def measurer(clock: KnownTimes, directory: Path, **functions: Any) -> Measurer:
    def compiled(variant: Variant) -> Callable[..., list[Any]]:
        made = functions.get(variant.label, negated)
        if isinstance(made, Exception):
            raise made
        return made

    return Measurer(clock, compiled, FileCache(directory), torch.device("cpu"))


def variants(*labels: str) -> list[Variant]:
    return [Variant(label, PROGRAM, label) for label in labels]


def test_the_fastest_is_chosen(tmp_path: Path) -> None:
    found = measurer(KnownTimes(a=3.0, b=1.0, c=2.0), tmp_path)
    assert found.choose("it", variants("a", "b", "c")).choice == "b"
    (trial,) = found.trials
    assert trial.seconds == {"a": 3.0, "b": 1.0, "c": 2.0} and not trial.cached
    assert str(trial).splitlines()[:2] == ["it: b", "   1000000.0 us  b"]


def test_at_equal_times_the_first_stays(tmp_path: Path) -> None:
    assert measurer(KnownTimes(a=1.0, b=1.0), tmp_path).choose("it", variants("a", "b")).label == "a"


def test_where_times_are_noisy_the_first_must_be_beaten_clearly_and_twice(tmp_path: Path) -> None:
    clock = KnownTimes(a=1.0, b=0.98, c=0.5)
    clock.noise = 0.03
    assert measurer(clock, tmp_path).choose("it", variants("a", "b")).label == "a"
    assert measurer(clock, tmp_path).choose("it", variants("a", "b", "c")).label == "c"

    slow_at_first = [1.0]

    class Lucky(KnownTimes):
        def seconds(self, run: Callable[[], Any], label: str) -> float:
            if label == "a":
                return slow_at_first.pop() if slow_at_first else 0.9
            return 0.9

    clock = Lucky()
    clock.noise, clock.identity = 0.03, "third"
    assert measurer(clock, tmp_path).choose("it", variants("a", "b")).label == "a"


def test_out_of_memory_refusals_and_wrong_values_are_no_candidates(tmp_path: Path) -> None:
    clock = KnownTimes(a=3.0, b=torch.OutOfMemoryError("no"), c=0.1, d=0.1, e=2.0)
    wrong: Any = lambda x: [x]  # noqa: E731
    found = measurer(clock, tmp_path, c=KernelRefused("k", "too large", ""), d=wrong)
    assert found.choose("it", variants(*"abcde")).label == "e"
    failures = found.trials[0].failures
    assert failures["b"] == "out of memory"
    assert "does not compile kernel k" in failures["c"]
    assert failures["d"] == "other values than the first variant"


def test_where_nothing_can_be_measured_the_first_is_taken(tmp_path: Path) -> None:
    clock = KnownTimes(a=torch.OutOfMemoryError("no"), b=torch.OutOfMemoryError("no"))
    assert measurer(clock, tmp_path).choose("it", variants("a", "b")).label == "a"


def test_an_error_of_ours_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        measurer(KnownTimes(a=ZeroDivisionError()), tmp_path).choose("it", variants("a"))


def test_results_are_found_again_on_the_same_device_only(tmp_path: Path) -> None:
    measurer(KnownTimes(a=3.0, b=1.0), tmp_path).choose("it", variants("a", "b"))
    clock = KnownTimes()
    again = measurer(clock, tmp_path)
    assert again.choose("it", variants("a", "b")).label == "b"
    assert again.trials[0].cached and not clock.asked
    other = KnownTimes(a=1.0, b=3.0)
    other.identity = "second device"
    assert measurer(other, tmp_path).choose("it", variants("a", "b")).label == "a"
    assert other.asked == ["a", "b"]


def test_equal_regions_are_measured_once(tmp_path: Path) -> None:
    clock = KnownTimes(a=3.0, b=1.0)
    found = measurer(clock, tmp_path)
    for _ in range(3):
        assert found.choose("it", variants("a", "b")).label == "b"
    assert clock.asked == ["a", "b"] and len(found.trials) == 1


@pytest.mark.parametrize("content", [b"garbage", b"", json.dumps([{}, {}, "b"]).encode()])
def test_a_foreign_file_is_not_believed(tmp_path: Path, content: bytes) -> None:
    measurer(KnownTimes(a=3.0, b=1.0), tmp_path).choose("it", variants("a", "b"))
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(content)
    clock = KnownTimes(a=1.0, b=3.0)
    with pytest.warns(CacheWarning, match="unusable"):
        assert measurer(clock, tmp_path).choose("it", variants("a", "b")).label == "a"
    assert clock.asked == ["a", "b"]


def test_random_numbers_of_the_program_stay_as_they_are(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    measurer(KnownTimes(a=3.0, b=1.0), tmp_path).choose("it", variants("a", "b"))
    assert torch.equal(before, torch.get_rng_state())
