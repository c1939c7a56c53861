"""Graph-level rewrites of ATen graphs: one pass, one file, one function."""
