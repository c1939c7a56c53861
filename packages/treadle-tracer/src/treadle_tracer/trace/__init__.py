"""Symbolic evaluation of bytecode: the tracer's context, frames, instruction handlers."""
