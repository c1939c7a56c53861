"""The host function: a plan as one straight Python function, and the memory, sizes and entry points it works with."""
