"""Rules: what the trace does at calls of functions that it neither evaluates in place nor puts into the graph as they are."""
