"""Tests of measure.py, compare.py and zoo.py: the figures' arithmetic, the workers, and that scenarios repeat."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import compare
import main_job
import measure
import zoo


def test_error_ratio_of_eager_is_one() -> None:
    exact = [torch.linspace(0, 1, 50, dtype=torch.float64)]
    eager = [exact[0].float() + 1e-5]
    assert measure.error_ratio(eager, eager, exact) == pytest.approx(1.0)
    assert measure.error_ratio([exact[0].float() + 3e-5], eager, exact) == pytest.approx(3.0, rel=1e-2)


def test_error_ratio_does_not_blow_up_when_eager_is_exact() -> None:
    exact = [torch.tensor([1.0], dtype=torch.float64)]
    off_by_one_ulp = [torch.tensor([1.0 + 2**-23])]
    assert measure.error_ratio(off_by_one_ulp, [exact[0].float()], exact) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "result",
    [
        [torch.tensor([math.nan, 1.0])],
        [torch.ones(3)],
        [torch.ones(2, dtype=torch.float64)],
        [],
        [torch.ones(2), torch.ones(2)],
    ],
)
def test_error_ratio_of_what_does_not_compare_is_infinite(result: list[torch.Tensor]) -> None:
    assert measure.error_ratio(result, [torch.ones(2)], [torch.ones(2, dtype=torch.float64)]) == math.inf


def test_interleaved_medians_call_everything_equally_often() -> None:
    calls = {"a": 0, "b": 0}

    def count(name: str) -> None:
        calls[name] += 1

    medians = measure.interleaved_medians({"a": lambda: count("a"), "b": lambda: count("b")}, seconds=0.0, least=7)
    assert calls == {"a": 10, "b": 10}
    assert medians.keys() == {"a", "b"}


def test_lines_of_json_reads_past_chatter() -> None:
    assert list(measure.lines_of_json('hello\n{"a": 1}\n[x]\n{"b": []}')) == [{"a": 1}, {"b": []}]


def test_there_are_twelve_scenarios() -> None:
    libraries = [scenario.library for scenario in zoo.SCENARIOS.values()]
    assert (libraries.count("transformers"), libraries.count("timm")) == (5, 7)


def test_a_scenario_is_the_same_every_time() -> None:
    scenario = zoo.SCENARIOS["bert"]
    first, second = (zoo.tensors_of(scenario.build()(**scenario.inputs(2))) for _ in range(2))
    assert [tuple(t.shape) for t in first] == [(2, 128, 256), (2, 256)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not scenario.build().training


def test_tensors_of_and_in_float64() -> None:
    one, two = torch.ones(1), torch.ones(2)
    assert zoo.tensors_of({"a": one, "b": [two, (one, "text")]}) == [one, two, one]
    widened = zoo.in_float64({"x": one, "ids": torch.tensor([1]), "flag": True})
    assert widened["x"].dtype == torch.float64
    assert widened["ids"].dtype == torch.int64
    assert widened["flag"] is True


def test_comparing_eager_with_itself() -> None:
    steps: list[str] = []
    row = compare.compare("vit", ["eager"], ["cold", "steady"], steps.append)
    assert row.errors == {}
    assert row.get("eager", "error_ratio") == pytest.approx(1.0)
    assert row.get("eager", "cold_seconds") > 0
    assert row.get("eager", "peak_mib") >= row.get("eager", "peak_mib_before")
    assert row.ratio("steady_seconds", "eager", "eager") == 1.0
    assert len(steps) == compare.steps_of(["eager"], ["cold", "steady"])


def test_a_worker_that_fails_is_a_reason_not_a_figure(tmp_path: Path) -> None:
    figures, reason = compare.run_worker(["first", "no such scenario", "eager"], tmp_path, 60)
    assert figures is None
    assert "no such scenario" in reason


@pytest.mark.parametrize(
    ("figures", "errors", "reason"),
    [
        ({"error_ratio": 2.0, "graphs": 1, "breaks": []}, {}, None),
        ({"error_ratio": 11.0, "graphs": 1, "breaks": []}, {}, "11 x eager's own"),
        ({"error_ratio": math.nan, "graphs": 1, "breaks": []}, {}, "nan x eager's own"),
        ({"error_ratio": 1.0, "graphs": 2, "breaks": ["print at line 3"]}, {}, "print at line 3"),
        ({"error_ratio": 1.0, "graphs": 1, "breaks": []}, {"treadle cold": "boom"}, "boom"),
        ({}, {}, "not checked"),
    ],
)
def test_why_not_passed(figures: dict, errors: dict[str, str], reason: str | None) -> None:
    row = compare.Row("bert", {"treadle": figures}, errors)
    found = main_job.why_not_passed(row)
    assert found is None if reason is None else reason in str(found)


def test_geometric_mean() -> None:
    assert compare.geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert compare.geometric_mean([None]) is None


def test_main_job_refuses_unknown_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_job.parse(["bert", "brt"])
    assert "unknown model brt" in capsys.readouterr().err
    assert main_job.parse(["--all"]).models == list(zoo.SCENARIOS)
    assert main_job.parse([]).models == ["bert", "resnet18"]
