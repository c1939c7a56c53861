"""The results of a trace: the graph, the guards, the recorded mutations, and the code that replaces the frame."""
