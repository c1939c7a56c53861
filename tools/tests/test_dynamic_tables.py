"""Tests of dynamic_tables.py: which figure stands in which cell."""

from __future__ import annotations

import dynamic_tables


def test_compilations_stand_side_by_side() -> None:
    def engine(models: int, functions: dict[str, dict[str, int]]) -> dict[str, object]:
        return {"models": {"bert": {"shapes": 30, "compilations": models}}, "functions": functions}

    text = dynamic_tables.matrix_section(
        {
            "treadle": engine(2, {"f": {"4 5 6": 2}, "n": {"2 ... 9": 1}}),
            "torch": engine(5, {"f": {"4 5 6": 3}, "n": {"2 ... 9": 4}}),
        }
    )
    assert "| bert | 30 | 2 | 5 |" in text
    assert "| f | 2 / 3 |  |" in text
    assert "| n |  | 1 / 4 |" in text


def test_the_engine_is_compared_by_kind_of_query() -> None:
    def kinds(microseconds: float) -> dict[str, dict[str, float]]:
        return {kind: {"microseconds": microseconds} for kind in dynamic_tables.KINDS}

    text = dynamic_tables.shapes_section(
        {
            "queries": {"bert": {"treadle_shapes": kinds(2.0), "torch ShapeEnv": kinds(25.0), "SymPy": {}}},
            "traces": {"bert": {"static": 0.2, "dynamic": 0.25, "ratio": 1.25}},
            "package": {"import milliseconds": 11.0, "wheel bytes": 204800},
        }
    )
    assert text.count("| bert | 2.00 | 25.00 | 12.5 × | – |") == len(dynamic_tables.KINDS)
    assert "| bert | 0.200 | 0.250 | 1.25 × |" in text
    assert "11.0 ms" in text and "200 KiB" in text


def test_the_worst_ratio_is_shown_beside_the_mean() -> None:
    rows = [
        {"case": "softmax", "mode": mode, "ratio": {"dynamic": ratio, "hot": 1.0}, "seconds": {"": seconds}}
        for mode, ratio, seconds in (("batch", 1.0, 1e-4), ("batch", 1.21, 1e-3), ("all", 0.9, 1e-6))
    ]
    text = dynamic_tables.speed_section({"rows": rows})
    assert "| softmax | 1.100 | 1.210 | 1.000 | 1.000 | 0.900 | 0.900 | 1.000 | 1.000 |" in text
    long = (
        "2 cases whose static call takes at least 10 µs: with kernels for all sizes geometric mean 1.100, 1 above 1.05"
    )
    assert f"{long}, the worst 1.21 (105.00 µs more on average); hot geometric mean 1.000, 0 above 1.05" in text
    assert "1 cases whose static call takes less than 10 µs: with kernels for all sizes geometric mean 0.900" in text
