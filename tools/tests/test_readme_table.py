"""Tests of readme_table.py: the tables' arithmetic, and that README.md shows what the JSON says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import readme_table
from compare import Row


def row(name: str, eager: float, torch_compile: float, treadle: float) -> Row:
    def figures(seconds: float) -> dict:
        return {
            "steady_seconds": seconds,
            "cold_seconds": 100 * seconds,
            "warm_seconds": 10 * seconds,
            "peak_mib": 400.4,
            "graphs": 1,
            "breaks": ["why"],
            "error_ratio": 1.5,
        }

    return Row(name, {"eager": figures(eager), "torch.compile": figures(torch_compile), "treadle": figures(treadle)})


ROWS = [row("a", 0.004, 0.002, 0.001), row("b", 0.004, 0.004, 0.004)]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_speed_table() -> None:
    lines = readme_table.speed_table(ROWS).splitlines()
    assert cells(lines[2]) == ["a", "4.00", "2.00", "1.00", "4.00 ×", "2.00 ×", "1.50 ×", "1 / 1"]
    assert cells(lines[4]) == ["geometric mean", "", "", "", "2.00 ×", "1.41 ×", "", ""]
    assert len({line.count("|") for line in lines}) == 1


def test_start_table() -> None:
    lines = readme_table.start_table(ROWS).splitlines()
    assert cells(lines[2]) == ["a", "0.20", "0.10", "0.500", "0.02", "0.01", "0.500", "400", "400", "400"]
    assert cells(lines[4]) == ["geometric mean", "", "", "0.707", "", "", "0.707", "", "", ""]
    assert len({line.count("|") for line in lines}) == 1


def test_training_table() -> None:
    def figures(seconds: float) -> dict[str, float]:
        return {"step": seconds, "first": 100 * seconds, "warm": 10 * seconds, "saved_mib": 7.25, "error": 1.5}

    model = {"eager": figures(0.004), "torch.compile": figures(0.002), "treadle": figures(0.001)}
    lines = readme_table.training_table({"a": model, "b": {**model, "eager": figures(0.001)}}).splitlines()
    assert cells(lines[2])[:6] == ["a", "4.0", "2.0", "1.0", "4.00 ×", "2.00 ×"]
    assert cells(lines[2])[6:] == ["0.20", "0.10", "0.02", "0.01", "7.2", "7.2", "7.2", "1.50 ×"]
    assert cells(lines[4]) == [
        "geometric mean",
        "",
        "",
        "",
        "2.00 ×",
        "2.00 ×",
        "",
        "2.00 ×",
        "",
        "2.00 ×",
        "",
        "",
        "",
        "",
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_what_is_missing_is_a_dash() -> None:
    table = readme_table.models_tables([Row("a", {"eager": {"steady_seconds": 0.004}})])
    assert "| a | 4.00 | – | – | – | – | – | – |" in table


def test_overhead_table_is_sorted_and_relative_to_eager() -> None:
    lines = readme_table.overhead_table({"torch.compile": 9000.0, "eager": 2000.0}).splitlines()
    assert [cells(line) for line in lines[2:]] == [["eager", "2.00", "1.00 ×"], ["torch.compile", "9.00", "4.50 ×"]]


SECTIONS = {name: readme_table.DOCUMENTS["README.md"][name] for name in ("models", "call_overhead")}


def test_sections_replace_what_is_between_the_markers(tmp_path: Path) -> None:
    machine = {
        "processor": "P",
        "cores": 2,
        "python": "3.11",
        "versions": {"torch": "2.13"},
        "date": "D",
        "commit": "C",
    }
    results = {"command": "run it", "machine": machine, "nanoseconds": {"eager": 2000.0}}
    (tmp_path / "call_overhead.json").write_text(json.dumps(results))
    text = (
        "top <!-- models:begin -->old<!-- models:end --> <!-- call_overhead:begin -->old<!-- call_overhead:end --> end"
    )
    once = readme_table.with_sections(text, SECTIONS, tmp_path)
    assert "old" not in once
    assert "Not measured yet: `python benchmarks/models.py`." in once
    assert "| eager | 2.00 | 1.00 × |" in once
    assert "`run it` on P (2 cores, one thread used), Python 3.11, torch 2.13; D, commit C." in once
    assert once.startswith("top <!-- models:begin -->")
    assert once.endswith("<!-- call_overhead:end --> end")
    assert readme_table.with_sections(once, SECTIONS, tmp_path) == once


def test_missing_markers_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="models:begin"):
        readme_table.with_sections("nothing here", SECTIONS, tmp_path)


def test_the_documents_are_what_the_json_says() -> None:
    assert readme_table.main(["--check"]) == 0
