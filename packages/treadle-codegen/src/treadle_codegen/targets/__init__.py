"""Targets: one folder each, one record each (`target.Target`), all of them listed in `table.TARGETS`."""
