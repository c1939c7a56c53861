"""What code generation makes of a graph, kept for later processes: key of a graph, record of a host program, store."""
