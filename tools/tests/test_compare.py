"""What is made ready before starts are timed."""

import importlib.util
from pathlib import Path

import compare


def test_packages_of_the_source_tree_have_bytecode(tmp_path, monkeypatch):
    package = tmp_path / "woven"
    package.mkdir()
    (package / "__init__.py").write_text("from woven import weft\n")
    (package / "weft.py").write_text("threads = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compare, "PACKAGES", ("woven", "not_installed_at_all"))
    compare.write_bytecode()
    for module in ("__init__.py", "weft.py"):
        assert Path(importlib.util.cache_from_source(str(package / module))).is_file()
