"""What the evaluator computes with: one kind of Value per kind of Python object."""
