"""The glossary: sorted, one line per term, and every place that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
TERMS = {
    part.split("\n")[0]: re.findall(r"^\| (.+?) \| .+? \| `([\w.]+)` \| .+? \|$", part, re.MULTILINE)
    for part in SECTIONS
}


@pytest.mark.parametrize("package", TERMS)
def test_terms_are_sorted(package):
    terms = [term for term, _ in TERMS[package]]
    assert terms == sorted(terms, key=str.lower)


def test_every_row_is_read_and_no_term_is_explained_twice():
    rows = sum(line.startswith("| ") for part in SECTIONS for line in part.splitlines()) - 2 * len(SECTIONS)
    terms = [term for found in TERMS.values() for term, _ in found]
    assert len(terms) == rows == len(set(terms))


def test_the_places_exist():
    for found in TERMS.values():
        for term, place in found:
            package, *parts = place.split(".")
            path = ROOT / "packages" / package.replace("_", "-") / "src" / package / Path(*parts)
            assert path.is_dir() or path.with_suffix(".py").is_file(), (term, place)
